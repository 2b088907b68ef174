"""The maps on NumPy arrays, as users call them.

Shared by all: ``scores`` is an array of float16, float32 or float64 (integers become float64), mapped along ``axis``.
``mask`` is boolean, broadcastable to the scores, True where an entry may be chosen; a score of -inf says the same as
False, and so does a masked entry of a masked array (results are plain arrays). Entries that may not be chosen get
exactly 0 and do not count for the row's size, sum or mean; a row with nothing to choose is all zeros. A row with NaN or
+inf is all NaN. Controls are numbers, or arrays that broadcast against the scores without the class axis: one control a
row, or a head. ``return_info=True`` adds an :class:`Info` with the support size and the threshold of each row. The
caller's arrays are never written.
"""

from __future__ import annotations

from typing import Any

from sparsegen import _losses, _numpy


def project(points: Any, radius: Any = 1.0, *, axis: int = -1, mask: Any = None, return_info: bool = False) -> Any:
    r"""Project onto the simplex of a given radius: the primitive behind every map.

    .. math:: [x - \tau]_+ / r, \qquad \tau \text{ such that the result sums to 1}

    Parameters
    ----------
    points : array
        Points x.
    radius : number or array, at least 0
        0 gives the limit: uniform on the maximal entries. Infinity gives uniform on all entries.

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.project([0.5, 0.25, 0.0], 0.5)
    array([0.75, 0.25, 0.  ])
    """
    return _numpy.apply_project(points, radius, axis, mask, return_info)


def sparsemax(scores: Any, *, axis: int = -1, mask: Any = None, return_info: bool = False) -> Any:
    r"""Nearest distribution to the scores.

    .. math:: \operatorname{argmin}_{p \in \Delta} \|p - z\|^2

    Ties share equally. An entry exactly at the threshold is not in the support.

    Examples
    --------
    >>> import sparsegen as sg
    >>> p, info = sg.sparsemax([0.25, 1.0, 0.5], return_info=True)
    >>> p
    array([0.  , 0.75, 0.25])
    >>> int(info.support_size), float(info.threshold)
    (2, 0.25)
    """
    return _numpy.apply("sparsemax", scores, {}, axis, mask, return_info)


def sparsegen(
    scores: Any, *, lam: Any = 0.0, transform: Any = "lin", axis: int = -1, mask: Any = None,
    return_info: bool = False,
) -> Any:  # fmt: skip
    r"""Sparsemax of transformed scores with a dial (the paper's Eq. 2).

    .. math:: \operatorname{argmin}_{p \in \Delta} \|p - g(z)\|^2 - \lambda \|p\|^2
              = \mathrm{sparsemax}(g(z) / (1 - \lambda))

    Parameters
    ----------
    lam : number or array, below 1
        Towards 1 sparser, down to one nonzero entry; towards -infinity denser, up to uniform. (The paper's Section 3
        states these limits the other way round.)
    transform : "lin", "exp", "sq", "log" or a callable
        The g of the equation. A callable maps an array to one of the same shape, entry by entry.

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.sparsegen([0.5, 0.25, 0.0], lam=0.5)
    array([0.75, 0.25, 0.  ])
    >>> sg.sparsegen([0.5, -0.5, 0.25], transform=abs)
    array([0.41666667, 0.41666667, 0.16666667])
    """
    return _numpy.apply_sparsegen(scores, lam, transform, axis, mask, return_info)


def sparsegen_lin(scores: Any, *, lam: Any = 0.0, axis: int = -1, mask: Any = None, return_info: bool = False) -> Any:
    """Sparsemax with a dial: sparsemax(z / (1 - lam)). See :func:`sparsegen`.

    Examples
    --------
    >>> import sparsegen as sg
    >>> [int((sg.sparsegen_lin([0.5, 0.25, 0.0], lam=lam) > 0).sum()) for lam in (-1.0, 0.5, 0.75)]
    [3, 2, 1]
    """
    return _numpy.apply("sparsegen_lin", scores, {"lam": lam}, axis, mask, return_info)


def sparsegen_exp(scores: Any, *, lam: Any = 0.0, axis: int = -1, mask: Any = None, return_info: bool = False) -> Any:
    """Sparsegen with g(z) = exp(z), free of overflow. See :func:`sparsegen`.

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.sparsegen_exp([1000.0, 1000.0, 999.0])
    array([0.5, 0.5, 0. ])
    """
    return _numpy.apply("sparsegen_exp", scores, {"lam": lam}, axis, mask, return_info)


def sparsegen_sq(scores: Any, *, lam: Any = 0.0, axis: int = -1, mask: Any = None, return_info: bool = False) -> Any:
    """Sparsegen with g(z) = z^2: large negative scores count like large positive ones. See :func:`sparsegen`.

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.sparsegen_sq([1.0, -2.0, 0.5])
    array([0., 1., 0.])
    """
    return _numpy.apply("sparsegen_sq", scores, {"lam": lam}, axis, mask, return_info)


def sparsegen_log(scores: Any, *, lam: Any = 0.0, axis: int = -1, mask: Any = None, return_info: bool = False) -> Any:
    """Sparsegen with g(z) = log(z), for positive scores: does not change with their scale. See :func:`sparsegen`.

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.sparsegen_log([2.0, 2.0, 0.25])
    array([0.5, 0.5, 0. ])
    """
    return _numpy.apply("sparsegen_log", scores, {"lam": lam}, axis, mask, return_info)


def sparsecone(scores: Any, *, q: Any, axis: int = -1, mask: Any = None, return_info: bool = False) -> Any:
    r"""Sum normalization (q = 0) and sparsemax (q = inf), and what lies between.

    .. math:: \mathrm{sparsemax}(\alpha z), \quad \alpha = (1 + Kq) / (S + Kq), \quad S = \sum_i z_i > -Kq

    A row outside that domain is an error.

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.sparsecone([1.0, 3.0, 4.0], q=0)
    array([0.125, 0.375, 0.5  ])
    """
    return _numpy.apply("sparsecone", scores, {"q": q}, axis, mask, return_info)


def sparsehourglass(scores: Any, *, q: Any, axis: int = -1, mask: Any = None, return_info: bool = False) -> Any:
    r"""Sparsecone for all scores: trades scale invariance (q -> 0) for translation invariance (q -> inf).

    .. math:: \mathrm{sparsemax}(\hat\alpha z), \quad \hat\alpha = (1 + Kq) / (|S| + Kq), \quad S = \sum_i z_i

    q is a trade-off between invariances, not a sparsity dial: a larger q makes rows with ``|S| > 1`` sparser and rows
    with ``|S| < 1`` denser.

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.sparsehourglass([-1.0, -2.0], q=0)
    array([0.66666667, 0.33333333])
    >>> [int((sg.sparsehourglass([1.8, 0.6, 0.2], q=q) > 0).sum()) for q in (0.1, 1.0, 10.0)]
    [3, 2, 1]
    """
    return _numpy.apply("sparsehourglass", scores, {"q": q}, axis, mask, return_info)


def sum_normalization(scores: Any, *, axis: int = -1, mask: Any = None, return_info: bool = False) -> Any:
    """Scores over their sum, for scores that are not negative and not all 0.

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.sum_normalization([1.0, 3.0, 4.0])
    array([0.125, 0.375, 0.5  ])
    """
    return _numpy.apply("sum_normalization", scores, {}, axis, mask, return_info)


def sum_normalization_plus(scores: Any, *, axis: int = -1, mask: Any = None, return_info: bool = False) -> Any:
    """Sum normalization for all scores: sparsehourglass with q = 0, sparsemax(z / abs(S)).

    Where the sum is 0 it is the limit q -> 0: uniform on the maximal entries.

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.sum_normalization_plus([1.0, 1.0, -2.0])
    array([0.5, 0.5, 0. ])
    """
    return _numpy.apply("sum_normalization_plus", scores, {}, axis, mask, return_info)


def spherical_softmax(scores: Any, *, axis: int = -1, mask: Any = None, return_info: bool = False) -> Any:
    """Squared scores over their sum, for scores that are not all 0.

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.spherical_softmax([1.0, -1.0, 0.0])
    array([0.5, 0.5, 0. ])
    """
    return _numpy.apply("spherical_softmax", scores, {}, axis, mask, return_info)


def softmax(scores: Any, *, temperature: Any = 1.0, axis: int = -1, mask: Any = None, return_info: bool = False) -> Any:
    """Softmax of the scores over a temperature.

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.softmax([0.0, 0.0], temperature=2.0)
    array([0.5, 0.5])
    """
    return _numpy.apply("softmax", scores, {"temperature": temperature}, axis, mask, return_info)


def hardmax(scores: Any, *, axis: int = -1, mask: Any = None, return_info: bool = False) -> Any:
    """Uniform on the maximal entries: the limit of sparsegen for lam -> 1.

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.hardmax([2.0, 0.5, 2.0])
    array([0.5, 0. , 0.5])
    """
    return _numpy.apply("hardmax", scores, {}, axis, mask, return_info)


def softmax_log_loss(
    scores: Any, target: Any, *, mask: Any = None, weight: Any = None, reduction: str = "mean",
    ignore_index: int = -100, ignore_empty: bool = False, return_grad: bool = False,
) -> Any:  # fmt: skip
    r"""Kullback-Leibler divergence of softmax from the target: the loss of softmax.

    .. math:: \mathrm{KL}(\eta \,\|\, \mathrm{softmax}(z))
              = \log\sum_j e^{z_j} - \eta\cdot z + \sum_i \eta_i \log \eta_i

    Parameters
    ----------
    scores : array (..., K)
        Scores z, one row for each example; classes on the last axis.
    target : array or SciPy sparse matrix
        Multi-hot (..., K) with 0 and 1: the labels of a row share equally, :math:`\eta = y / |y|`. Or class indices
        (...), integers. This loss and :func:`sparsemax_huber_loss` also take any distribution (rows that sum to 1).
    mask : boolean array, broadcastable to the scores
        True where an entry may be chosen. An entry that is hidden, or has the score -inf, takes no part; a label
        there is an error.
    weight : array, broadcastable to the rows
        Not negative; each row's loss is multiplied by it, and the mean divided by the sum of weights.
    reduction : "mean", "sum" or "none"
        "none" gives one loss a row. The mean of no rows is 0.
    ignore_index : int
        Rows with this class index take no part.
    ignore_empty : bool
        Leave out rows without a label, which are an error otherwise.
    return_grad : bool
        Return (loss, :class:`Gradients`); with "none" the gradient of their sum.

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.softmax_log_loss([[1.0, 1.0, 0.0, 0.0], [2.0, 2.0, 0.0, 0.0]], [[1, 1, 0, 0], [1, 1, 0, 0]]).round(3)
    np.float64(0.22)
    """
    return _losses.apply(
        "softmax_log", scores, target, None, mask, weight, reduction, ignore_index, ignore_empty, return_grad
    )


def sparsemax_huber_loss(
    scores: Any, target: Any, *, lam: Any = 0.0, mask: Any = None, weight: Any = None, reduction: str = "mean",
    ignore_index: int = -100, ignore_empty: bool = False, return_grad: bool = False,
) -> Any:  # fmt: skip
    r"""Loss whose gradient is sparsegen_lin(z, lam) - eta: smooth, Huber's function for two classes.

    .. math:: (p - \eta)\cdot\bigl(z - (1 - \lambda)(p + \eta)/2\bigr), \qquad p = \mathrm{sparsegen\_lin}(z, \lambda)

    With lam = 0 it is the sparsemax loss. See :func:`softmax_log_loss` for the arguments.

    Parameters
    ----------
    lam : number or array without the class axis, finite and below 1
        The control of the map it trains.

    Examples
    --------
    >>> import sparsegen as sg
    >>> loss, grad = sg.sparsemax_huber_loss([0.25, 1.0, 0.5], 1, return_grad=True)
    >>> loss, grad.scores
    (np.float64(0.0625), array([ 0.  , -0.25,  0.25]))
    """
    return _losses.apply(
        "sparsemax_huber", scores, target, lam, mask, weight, reduction, ignore_index, ignore_empty, return_grad
    )


def sparsegen_hinge_loss(
    scores: Any, target: Any, *, lam: Any = 0.0, mask: Any = None, weight: Any = None, reduction: str = "mean",
    ignore_index: int = -100, ignore_empty: bool = False, return_grad: bool = False,
) -> Any:  # fmt: skip
    r"""Convex loss that is 0 exactly where sparsegen_lin(z, lam) is uniform on the labels (the paper's hinge loss).

    .. math:: \frac{1}{1-\lambda} \sum_{i, j \in Y} |z_i - z_j|
              + \sum_{i \in Y, j \notin Y} \Bigl[\eta_i - \frac{z_i - z_j}{1-\lambda}\Bigr]_+

    Pairs are ordered, as the paper writes them: the first sum counts each twice. Time O(K log P) and memory O(K) a
    row, P the number of its labels. Where a term is at its kink it counts as inactive. Distributions that are not
    uniform on their labels are refused: a loss of 0 would not mean that the map returns them. See
    :func:`softmax_log_loss` for the other arguments.

    Parameters
    ----------
    lam : number or array without the class axis, finite and below 1
        The control of the map it trains; 0 is sparsemax.

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.sparsegen_hinge_loss([[0.5, 0.5, 0.0], [0.5, 0.5, 0.25]], [[1, 1, 0], [1, 1, 0]], reduction="none")
    array([0. , 0.5])
    """
    return _losses.apply(
        "sparsegen_hinge", scores, target, lam, mask, weight, reduction, ignore_index, ignore_empty, return_grad
    )


def sparsehourglass_hinge_loss(
    scores: Any, target: Any, *, q: Any = 1.0, mask: Any = None, weight: Any = None, reduction: str = "mean",
    ignore_index: int = -100, ignore_empty: bool = False, return_grad: bool = False,
) -> Any:  # fmt: skip
    r"""Convex loss that is 0 exactly where sparsehourglass(z, q) is uniform on the labels.

    .. math:: \sum_{i, j \in Y} |z_i - z_j| + \sum_{i \in Y, j \notin Y}
              \bigl[\eta_i / \hat\alpha(z) - (z_i - z_j)\bigr]_+, \qquad
              \hat\alpha(z) = \frac{1 + Kq}{|\sum_k z_k| + Kq}

    As :func:`sparsegen_hinge_loss` otherwise.

    Parameters
    ----------
    q : number or array without the class axis, positive
        The control of the map it trains. With q = 0 the loss would be 0 at z = 0 for every label set.

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.sparsehourglass_hinge_loss([0.5, 1.0, -0.25, 0.75], [1, 0, 0, 1], q=1.0)
    np.float64(2.45)
    """
    return _losses.apply(
        "sparsehourglass_hinge", scores, target, q, mask, weight, reduction, ignore_index, ignore_empty, return_grad
    )
