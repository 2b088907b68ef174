"""The maps on NumPy arrays, as users call them: made from the table, one function for each row.

Those named here are known to type checkers and editors; a row without a line is a function all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike

from sparsegen._table.functions import control_options, made
from sparsegen._table.maps import MAPS
from sparsegen._table.prose import NUMPY, map_doc
from sparsegen.numpy._apply import Info, apply, apply_project, apply_sparsegen

Both = tuple[np.ndarray, Info]


class Uncontrolled(Protocol):
    """A map without a control."""

    @overload
    def __call__(
        self, scores: ArrayLike, *, axis: int = ..., mask: ArrayLike | None = ..., return_info: Literal[False] = ...
    ) -> np.ndarray: ...
    @overload
    def __call__(
        self, scores: ArrayLike, *, axis: int = ..., mask: ArrayLike | None = ..., return_info: Literal[True]
    ) -> Both: ...


class WithLam(Protocol):
    """A map with the control lam."""

    @overload
    def __call__(
        self, scores: ArrayLike, *, lam: ArrayLike = ..., axis: int = ..., mask: ArrayLike | None = ...,
        return_info: Literal[False] = ...,
    ) -> np.ndarray: ...  # fmt: skip
    @overload
    def __call__(
        self, scores: ArrayLike, *, lam: ArrayLike = ..., axis: int = ..., mask: ArrayLike | None = ...,
        return_info: Literal[True],
    ) -> Both: ...  # fmt: skip


class WithQ(Protocol):
    """A map with the control q."""

    @overload
    def __call__(
        self, scores: ArrayLike, *, q: ArrayLike, axis: int = ..., mask: ArrayLike | None = ...,
        return_info: Literal[False] = ...,
    ) -> np.ndarray: ...  # fmt: skip
    @overload
    def __call__(
        self, scores: ArrayLike, *, q: ArrayLike, axis: int = ..., mask: ArrayLike | None = ...,
        return_info: Literal[True],
    ) -> Both: ...  # fmt: skip


class WithTemperature(Protocol):
    """A map with the control temperature."""

    @overload
    def __call__(
        self, scores: ArrayLike, *, temperature: ArrayLike = ..., axis: int = ..., mask: ArrayLike | None = ...,
        return_info: Literal[False] = ...,
    ) -> np.ndarray: ...  # fmt: skip
    @overload
    def __call__(
        self, scores: ArrayLike, *, temperature: ArrayLike = ..., axis: int = ..., mask: ArrayLike | None = ...,
        return_info: Literal[True],
    ) -> Both: ...  # fmt: skip


class WithAlpha(Protocol):
    """A map with the control alpha."""

    @overload
    def __call__(
        self, scores: ArrayLike, *, alpha: ArrayLike = ..., axis: int = ..., mask: ArrayLike | None = ...,
        return_info: Literal[False] = ...,
    ) -> np.ndarray: ...  # fmt: skip
    @overload
    def __call__(
        self, scores: ArrayLike, *, alpha: ArrayLike = ..., axis: int = ..., mask: ArrayLike | None = ...,
        return_info: Literal[True],
    ) -> Both: ...  # fmt: skip


class WithLamAndTemperature(Protocol):
    """A map with the controls lam and temperature."""

    @overload
    def __call__(
        self, scores: ArrayLike, *, lam: ArrayLike = ..., temperature: ArrayLike = ..., axis: int = ...,
        mask: ArrayLike | None = ..., return_info: Literal[False] = ...,
    ) -> np.ndarray: ...  # fmt: skip
    @overload
    def __call__(
        self, scores: ArrayLike, *, lam: ArrayLike = ..., temperature: ArrayLike = ..., axis: int = ...,
        mask: ArrayLike | None = ..., return_info: Literal[True],
    ) -> Both: ...  # fmt: skip


def _made(name: str) -> Any:
    """The function of a row, with what the row says of it."""
    m = MAPS[name]

    def call(given: Mapping[str, Any]) -> Any:
        own = {key: given[key] for key in m.controls}
        return apply(name, given["scores"], own, given["axis"], given["mask"], given["return_info"])

    options = {**control_options(m.controls), "axis": -1, "mask": None, "return_info": False}
    return made(name, map_doc(m, NUMPY), ["scores"], options, call)


def __getattr__(name: str) -> Any:
    if name not in MAPS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _made(name)


sparsemax: Uncontrolled = _made("sparsemax")
sparsegen_lin: WithLam = _made("sparsegen_lin")
sparsegen_exp: WithLam = _made("sparsegen_exp")
sparsegen_sq: WithLam = _made("sparsegen_sq")
sparsegen_log: WithLam = _made("sparsegen_log")
sparsecone: WithQ = _made("sparsecone")
sparsehourglass: WithQ = _made("sparsehourglass")
sum_normalization_plus: Uncontrolled = _made("sum_normalization_plus")
sum_normalization: WithLam = _made("sum_normalization")
spherical_softmax: WithLam = _made("spherical_softmax")
softmax: WithTemperature = _made("softmax")
sparsegen_softmax: WithLamAndTemperature = _made("sparsegen_softmax")
entmax: WithAlpha = _made("entmax")
entmax15: Uncontrolled = _made("entmax15")
hardmax: Uncontrolled = _made("hardmax")


@overload
def project(
    points: ArrayLike, radius: ArrayLike = ..., *, axis: int = ..., mask: ArrayLike | None = ...,
    return_info: Literal[False] = ...,
) -> np.ndarray: ...  # fmt: skip
@overload
def project(
    points: ArrayLike, radius: ArrayLike = ..., *, axis: int = ..., mask: ArrayLike | None = ...,
    return_info: Literal[True],
) -> Both: ...  # fmt: skip
def project(points: Any, radius: Any = 1.0, *, axis: int = -1, mask: Any = None, return_info: bool = False) -> Any:
    r"""Project onto the simplex of a given radius: the primitive behind every map.

    .. math:: [x - \tau]_+ / r, \qquad \tau \text{ such that the result sums to 1}

    Parameters
    ----------
    points : array
        Points x.
    radius : number or array, at least 0
        0 gives the limit: uniform on the maximal entries. Infinity gives uniform on all entries. One for all rows, or
        one that broadcasts to the points without the class axis.
    axis : int
        The axis of the classes.
    mask : boolean array, optional
        Broadcasts to the points; True where an entry may be chosen.
    return_info : bool
        Also return support size and threshold of each row.

    Returns
    -------
    p : array
        Probabilities, of the points' shape and dtype.
    info : Info
        Only with ``return_info=True``.

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.project([0.5, 0.25, 0.0], 0.5)
    array([0.75, 0.25, 0.  ])
    """
    return apply_project(points, radius, axis, mask, return_info)


Transform = Literal["lin", "exp", "sq", "log"] | Callable[[np.ndarray], ArrayLike]


@overload
def sparsegen(
    scores: ArrayLike, *, lam: ArrayLike = ..., transform: Transform = ..., axis: int = ...,
    mask: ArrayLike | None = ..., return_info: Literal[False] = ...,
) -> np.ndarray: ...  # fmt: skip
@overload
def sparsegen(
    scores: ArrayLike, *, lam: ArrayLike = ..., transform: Transform = ..., axis: int = ...,
    mask: ArrayLike | None = ..., return_info: Literal[True],
) -> Both: ...  # fmt: skip
def sparsegen(
    scores: Any, *, lam: Any = 0.0, transform: Any = "lin", axis: int = -1, mask: Any = None,
    return_info: bool = False,
) -> Any:  # fmt: skip
    r"""Sparsemax of transformed scores with a dial (the paper's Eq. 2).

    .. math:: \operatorname{argmin}_{p \in \Delta} \|p - g(z)\|^2 - \lambda \|p\|^2
              = \mathrm{sparsemax}(g(z) / (1 - \lambda))

    Parameters
    ----------
    scores : array
        Mapped along one axis. A row with NaN or +inf is all NaN.
    lam : number or array, below 1
        Towards 1 sparser, down to one nonzero entry; towards -infinity denser, up to uniform. (The paper's Section 3
        states these limits the other way round.)
    transform : "lin", "exp", "sq", "log" or a callable
        The g of the equation. A callable maps an array to one of the same shape, entry by entry.
    axis : int
        The axis of the classes.
    mask : boolean array, optional
        Broadcasts to the scores; True where an entry may be chosen.
    return_info : bool
        Also return support size and threshold of each row.

    Returns
    -------
    p : array
        Probabilities, of the scores' shape and dtype.
    info : Info
        Only with ``return_info=True``.

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.sparsegen([0.5, 0.25, 0.0], lam=0.5)
    array([0.75, 0.25, 0.  ])
    >>> sg.sparsegen([0.5, -0.5, 0.25], transform=abs)
    array([0.41666667, 0.41666667, 0.16666667])
    """
    return apply_sparsegen(scores, lam, transform, axis, mask, return_info)
