"""A scikit-learn classifier of label sets."""

try:
    import sklearn.base  # noqa: F401
except ImportError as error:
    raise ImportError(
        "sparsegen.sklearn needs scikit-learn 1.6 or newer, which is not installed: pip install 'sparsegen[sklearn]'."
    ) from error

from sparsegen.sklearn.dials import best_threshold
from sparsegen.sklearn.estimator import ConstantFitWarning, SparseMultilabelClassifier

__all__ = ["ConstantFitWarning", "SparseMultilabelClassifier", "best_threshold"]
