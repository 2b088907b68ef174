"""Results as tables, as figures, and as one HTML page."""
