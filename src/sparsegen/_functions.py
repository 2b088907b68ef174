"""The maps on NumPy arrays, as users call them.

Shared by all: ``scores`` is an array of float16, float32 or float64 (integers become float64), mapped along ``axis``.
``mask`` is boolean, broadcastable to the scores, True where an entry may be chosen; a score of -inf says the same as
False. Entries that may not be chosen get exactly 0 and do not count for the row's size, sum or mean; a row with nothing
to choose is all zeros. A row with NaN or +inf is all NaN. Controls are numbers, or arrays that broadcast against the
scores without the class axis: one control a row, or a head. ``return_info=True`` adds an :class:`Info` with the support
size and the threshold of each row. The caller's arrays are never written.
"""

from __future__ import annotations

from typing import Any

from sparsegen import _numpy


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
