"""Label sets out of a million: sparse documents, a model whose labels are split over processes, and its training."""
