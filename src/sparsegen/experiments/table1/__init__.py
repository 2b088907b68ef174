"""The paper's Table 1 and figures of the maps."""
