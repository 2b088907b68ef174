"""Multilabel learning: the paper's data sets, pairs of map and loss, and experiments (Sec. 6.1)."""
