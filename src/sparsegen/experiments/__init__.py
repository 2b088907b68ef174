"""The paper's experiments: data, metrics and runs. They need more than NumPy: the extra `experiments`."""
