"""A scikit-learn classifier of label sets."""

from sparsegen._table.extras import front_end as _front_end

with _front_end("sklearn"):
    import sklearn.base  # noqa: F401

from sparsegen.sklearn.dials import best_threshold
from sparsegen.sklearn.estimator import ConstantFitWarning, SparseMultilabelClassifier

__all__ = ["ConstantFitWarning", "SparseMultilabelClassifier", "best_threshold"]
