"""Label sets in the forms scikit-learn users have them: an indicator, class labels, or sets of labels of any type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from sparsegen._table.checks import fail


class Labels(NamedTuple):
    """What the caller gave as `y`: label sets as a CSR indicator, and the form to give predictions in."""

    Y: sp.csr_array
    classes: np.ndarray
    form: str  # "indicator", "sparse", "classes" or "sets"


def _are_sets(y: Any) -> bool:
    """Is `y` a sequence of label sets? Rows of equal length that hold only 0 and 1 are an indicator."""
    if not isinstance(y, Sequence) or isinstance(y, str) or len(y) == 0:
        return False
    if all(isinstance(row, (set, frozenset, tuple)) for row in y):
        return True
    if not all(isinstance(row, list) for row in y):
        return False
    same = len({len(row) for row in y}) == 1
    return not (same and all(entry in (0, 1) for row in y for entry in row))


def _listed(y: Any) -> Any:
    """A column whose entries are rows of labels, as a pandas Series or an array of objects has them, as a list."""
    if getattr(y, "ndim", None) != 1 or len(y) == 0:
        return y
    return list(y) if isinstance(next(iter(y)), (set, frozenset, tuple, list)) else y


def _of_one_kind(y: Any) -> None:
    """Rows are all label sets (an empty one has no label) or all labels; of a mix of those NumPy would make text."""
    if not isinstance(y, (list, tuple)) or all(isinstance(row, Real) for row in y):
        return
    sets = [isinstance(row, (set, frozenset, list, tuple)) for row in y]
    if any(sets):
        for i, row in enumerate(y):
            if not sets[i] and np.ndim(row) == 0:
                fail(TypeError, f"y[{i}]", "a label set, as the other rows are", repr(row))
    elif all(np.ndim(row) == 0 for row in y):
        _in_one_order([y])


def _in_one_order(rows: Iterable[Iterable[Any]]) -> None:
    """Classes are sorted, so their labels must be of types that compare."""
    labels = [label for row in rows for label in row]
    try:
        sorted(set(labels))
    except TypeError:
        kinds = sorted({type(label).__name__ for label in labels})
        fail(TypeError, "y", "made of labels that can be sorted, as those of one type can", " and ".join(kinds))


def _read_sets(y: Any, classes: np.ndarray | None) -> Labels:
    _in_one_order(y)
    binarizer = MultiLabelBinarizer(classes=None if classes is None else list(classes), sparse_output=True)
    binarizer.fit(y)
    unknown = set().union(*map(set, y)) - set(binarizer.classes_)
    if unknown:
        fail(ValueError, "y", f"made of the classes {list(binarizer.classes_)}", f"the label {sorted(unknown)[0]!r}")
    Y = sp.csr_array(binarizer.transform(y), dtype=np.int8)
    Y.sort_indices()
    return Labels(Y, binarizer.classes_, "sets")


def _read_indicator(y: Any, classes: np.ndarray | None) -> Labels:
    form = "sparse" if sp.issparse(y) else "indicator"
    Y: Any = sp.csr_array(y, copy=True) if sp.issparse(y) else y
    values = Y.data if sp.issparse(Y) else Y
    if values.dtype.kind not in "biuf":
        fail(
            TypeError, "y", "an indicator of 0 and 1, class labels, or label sets", f"a matrix of dtype {values.dtype}"
        )
    wrong = ~((values == 0) | (values == 1))
    if wrong.any():
        fail(ValueError, "y", "0 or 1 in every entry of the indicator", values[wrong].flat[0])
    Y = sp.csr_array(Y, dtype=np.int8)
    Y.sum_duplicates()
    Y.eliminate_zeros()
    columns = np.arange(Y.shape[1]) if classes is None else classes
    if len(columns) != Y.shape[1]:
        fail(ValueError, "y", f"an indicator of {len(columns)} columns, one a class", f"{Y.shape[1]}")
    return Labels(Y, columns, form)


def _read_classes(y: Any, classes: np.ndarray | None) -> Labels:
    y = column_or_1d(y, warn=True)
    if y.dtype.kind == "f":
        assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    found, at = np.unique(y, return_inverse=True)
    if classes is None:
        classes = found
    elif not np.isin(found, classes).all():
        fail(ValueError, "y", f"among the classes {list(classes)}", found[~np.isin(found, classes)][0])
    else:
        order = np.argsort(classes)
        at = order[np.searchsorted(classes, found, sorter=order)][at]
    ones = np.ones(len(y), np.int8)
    return Labels(sp.csr_array((ones, (np.arange(len(y)), at)), shape=(len(y), len(classes))), classes, "classes")


def read_labels(y: Any, classes: np.ndarray | None = None) -> Labels:
    """Read `y` in any of its forms; `classes` are those that are known already.

    >>> read_labels([("rain", "wind"), ("sun",)]).classes
    array(['rain', 'sun', 'wind'], dtype=object)
    """
    if y is None:
        raise ValueError("This estimator requires y to be passed, but the target y is None.")
    y = _listed(y)
    if _are_sets(y):
        return _read_sets(y, classes)
    if not sp.issparse(y):
        _of_one_kind(y)
        y = np.asarray(y)
    if sp.issparse(y) or (y.ndim == 2 and y.shape[1] != 1):
        return _read_indicator(y, classes)
    return _read_classes(y, classes)
