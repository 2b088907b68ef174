"""The maps on torch tensors: the names, controls and edge cases of :mod:`sparsegen`, with ``dim`` and gradients.

Differentiable in the scores and in controls given as tensors (``lam``, ``q``, ``temperature``, ``radius``). They
broadcast against the scores without the class axis: one control per row, or per head. float16 and bfloat16 are
computed in float32 and rounded once. What would be an error about values in NumPy would make torch wait for the
device, so it is a NaN row here: a control tensor out of its range, a row outside the domain of ``sparsecone``,
``sparsegen_log``, ``sum_normalization`` or ``spherical_softmax``. Controls given as Python numbers are checked.

The functions are made from the table, one for each row. Those named here are known to type checkers and editors; a
row without a line is a function all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Literal, Protocol, overload

from torch import Tensor
from torch.compiler import is_dynamo_compiling

from sparsegen._table.maps import MAPS
from sparsegen._table.prose import TORCH, map_doc
from sparsegen.torch._apply import Info, apply, apply_project, apply_sparsegen
from sparsegen.torch._route import quick

Both = tuple[Tensor, Info]
Control = float | Tensor


class Uncontrolled(Protocol):
    """A map without a control."""

    @overload
    def __call__(
        self, scores: Tensor, *, dim: int = ..., mask: Tensor | None = ..., return_info: Literal[False] = ...
    ) -> Tensor: ...
    @overload
    def __call__(
        self, scores: Tensor, *, dim: int = ..., mask: Tensor | None = ..., return_info: Literal[True]
    ) -> Both: ...


class WithLam(Protocol):
    """A map with the control lam."""

    @overload
    def __call__(
        self, scores: Tensor, *, lam: Control = ..., dim: int = ..., mask: Tensor | None = ...,
        return_info: Literal[False] = ...,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def __call__(
        self, scores: Tensor, *, lam: Control = ..., dim: int = ..., mask: Tensor | None = ...,
        return_info: Literal[True],
    ) -> Both: ...  # fmt: skip


class WithQ(Protocol):
    """A map with the control q."""

    @overload
    def __call__(
        self, scores: Tensor, *, q: Control, dim: int = ..., mask: Tensor | None = ...,
        return_info: Literal[False] = ...,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def __call__(
        self, scores: Tensor, *, q: Control, dim: int = ..., mask: Tensor | None = ...,
        return_info: Literal[True],
    ) -> Both: ...  # fmt: skip


class WithTemperature(Protocol):
    """A map with the control temperature."""

    @overload
    def __call__(
        self, scores: Tensor, *, temperature: Control = ..., dim: int = ..., mask: Tensor | None = ...,
        return_info: Literal[False] = ...,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def __call__(
        self, scores: Tensor, *, temperature: Control = ..., dim: int = ..., mask: Tensor | None = ...,
        return_info: Literal[True],
    ) -> Both: ...  # fmt: skip


class WithAlpha(Protocol):
    """A map with the control alpha."""

    @overload
    def __call__(
        self, scores: Tensor, *, alpha: Control = ..., dim: int = ..., mask: Tensor | None = ...,
        return_info: Literal[False] = ...,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def __call__(
        self, scores: Tensor, *, alpha: Control = ..., dim: int = ..., mask: Tensor | None = ...,
        return_info: Literal[True],
    ) -> Both: ...  # fmt: skip


class WithLamAndTemperature(Protocol):
    """A map with the controls lam and temperature."""

    @overload
    def __call__(
        self, scores: Tensor, *, lam: Control = ..., temperature: Control = ..., dim: int = ...,
        mask: Tensor | None = ..., return_info: Literal[False] = ...,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def __call__(
        self, scores: Tensor, *, lam: Control = ..., temperature: Control = ..., dim: int = ...,
        mask: Tensor | None = ..., return_info: Literal[True],
    ) -> Both: ...  # fmt: skip


def _uncontrolled(name: str) -> Any:
    m = MAPS[name]
    radius: Any = m.fixed.get("q", m.radius.fixed)
    kind, second = m.kind, m.fixed.get("alpha", 1.0)

    def f(scores: Tensor, *, dim: int = -1, mask: Tensor | None = None, return_info: bool = False) -> Any:
        if dim == -1 and mask is None and not return_info:
            p = None if is_dynamo_compiling() else quick(scores, kind, radius, second)
            if p is not None:
                return p
        return apply(name, scores, {}, dim, mask, return_info)

    return f


def _with_lam(name: str) -> Any:
    kind = MAPS[name].kind

    def f(
        scores: Tensor, *, lam: Any = 0.0, dim: int = -1, mask: Tensor | None = None, return_info: bool = False
    ) -> Any:
        if dim == -1 and mask is None and not return_info and type(lam) is float and lam < 1:
            p = None if is_dynamo_compiling() else quick(scores, kind, 1 - lam, 1.0)
            if p is not None:
                return p
        return apply(name, scores, {"lam": lam}, dim, mask, return_info)

    return f


def _with_q(name: str) -> Any:
    kind = MAPS[name].kind

    def f(scores: Tensor, *, q: Any, dim: int = -1, mask: Tensor | None = None, return_info: bool = False) -> Any:
        if dim == -1 and mask is None and not return_info and type(q) is float and q >= 0:
            p = None if is_dynamo_compiling() else quick(scores, kind, q, 1.0)
            if p is not None:
                return p
        return apply(name, scores, {"q": q}, dim, mask, return_info)

    return f


def _with_temperature(name: str) -> Any:
    kind = MAPS[name].kind

    def f(
        scores: Tensor, *, temperature: Any = 1.0, dim: int = -1, mask: Tensor | None = None, return_info: bool = False
    ) -> Any:
        if dim == -1 and mask is None and not return_info and type(temperature) is float and temperature > 0:
            p = None if is_dynamo_compiling() else quick(scores, kind, 1.0, temperature)
            if p is not None:
                return p
        return apply(name, scores, {"temperature": temperature}, dim, mask, return_info)

    return f


def _with_alpha(name: str) -> Any:
    kind = MAPS[name].kind

    def f(
        scores: Tensor, *, alpha: Any = 1.5, dim: int = -1, mask: Tensor | None = None, return_info: bool = False
    ) -> Any:
        if dim == -1 and mask is None and not return_info and type(alpha) is float and 1 <= alpha < inf:
            p = None if is_dynamo_compiling() else quick(scores, kind, 1.0, alpha)
            if p is not None:
                return p
        return apply(name, scores, {"alpha": alpha}, dim, mask, return_info)

    return f


def _with_lam_and_temperature(name: str) -> Any:
    kind = MAPS[name].kind

    def f(
        scores: Tensor, *, lam: Any = 0.0, temperature: Any = 1.0, dim: int = -1, mask: Tensor | None = None,
        return_info: bool = False,
    ) -> Any:  # fmt: skip
        if (
            dim == -1
            and mask is None
            and not return_info
            and type(lam) is type(temperature) is float
            and lam < 1
            and temperature > 0
        ):
            p = None if is_dynamo_compiling() else quick(scores, kind, 1 - lam, temperature)
            if p is not None:
                return p
        return apply(name, scores, {"lam": lam, "temperature": temperature}, dim, mask, return_info)

    return f


_MAKERS: dict[tuple[str, ...], Callable[[str], Any]] = {
    (): _uncontrolled, ("lam",): _with_lam, ("q",): _with_q, ("temperature",): _with_temperature,
    ("alpha",): _with_alpha, ("lam", "temperature"): _with_lam_and_temperature,
}  # fmt: skip


def _made(name: str) -> Any:
    """The function of a row, with what the row says of it."""
    f = _MAKERS[MAPS[name].controls](name)
    f.__name__ = f.__qualname__ = name
    f.__doc__ = map_doc(MAPS[name], TORCH)
    return f


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
    points: Tensor, radius: Control = ..., *, dim: int = ..., mask: Tensor | None = ...,
    return_info: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def project(
    points: Tensor, radius: Control = ..., *, dim: int = ..., mask: Tensor | None = ...,
    return_info: Literal[True],
) -> Both: ...  # fmt: skip
def project(
    points: Tensor, radius: Any = 1.0, *, dim: int = -1, mask: Tensor | None = None, return_info: bool = False
) -> Any:
    r"""Project onto the simplex of a given radius: the primitive behind every map.

    .. math:: [x - \tau]_+ / r, \qquad \tau \text{ such that the result sums to 1}

    Parameters
    ----------
    points : Tensor
        Points x.
    radius : number or Tensor, at least 0
        0 gives the limit: uniform on the maximal entries. Infinity gives uniform on all entries. One for all rows, or
        one that broadcasts to the points without the class axis; differentiable.
    dim : int
        The axis of the classes.
    mask : boolean Tensor, optional
        Broadcasts to the points; True where an entry may be chosen.
    return_info : bool
        Also return support size and threshold of each row.

    Returns
    -------
    p : Tensor
        Probabilities, of the points' shape and dtype.
    info : Info
        Only with ``return_info=True``.

    Examples
    --------
    >>> import torch, sparsegen.torch as sgt
    >>> sgt.project(torch.tensor([0.5, 0.25, 0.0]), 0.5)
    tensor([0.7500, 0.2500, 0.0000])
    """
    return apply_project(points, radius, dim, mask, return_info)


Transform = Literal["lin", "exp", "sq", "log"] | Callable[[Tensor], Tensor]


@overload
def sparsegen(
    scores: Tensor, *, lam: Control = ..., transform: Transform = ..., dim: int = ...,
    mask: Tensor | None = ..., return_info: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def sparsegen(
    scores: Tensor, *, lam: Control = ..., transform: Transform = ..., dim: int = ...,
    mask: Tensor | None = ..., return_info: Literal[True],
) -> Both: ...  # fmt: skip
def sparsegen(
    scores: Tensor, *, lam: Any = 0.0, transform: Any = "lin", dim: int = -1, mask: Tensor | None = None,
    return_info: bool = False,
) -> Any:  # fmt: skip
    r"""Sparsemax of transformed scores with a dial (the paper's Eq. 2).

    .. math:: \operatorname{argmin}_{p \in \Delta} \|p - g(z)\|^2 - \lambda \|p\|^2
              = \mathrm{sparsemax}(g(z) / (1 - \lambda))

    Parameters
    ----------
    scores : Tensor
        Mapped along one axis. A row with NaN or +inf is all NaN.
    lam : number or Tensor, below 1
        Towards 1 sparser, down to one nonzero entry; towards -infinity denser, up to uniform. Differentiable.
    transform : "lin", "exp", "sq", "log" or a callable
        The g of the equation. A callable maps a tensor to one of the same shape by operations torch can differentiate.
    dim : int
        The axis of the classes.
    mask : boolean Tensor, optional
        Broadcasts to the scores; True where an entry may be chosen.
    return_info : bool
        Also return support size and threshold of each row.

    Returns
    -------
    p : Tensor
        Probabilities, of the scores' shape and dtype.
    info : Info
        Only with ``return_info=True``.

    Examples
    --------
    >>> import torch, sparsegen.torch as sgt
    >>> sgt.sparsegen(torch.tensor([0.5, -0.5, 0.25]), transform=torch.abs)
    tensor([0.4167, 0.4167, 0.1667])
    >>> lam = torch.tensor([-1.0, 0.5], requires_grad=True)  # one per row
    >>> p = sgt.sparsegen(torch.tensor([[0.5, 0.25, 0.0]]).expand(2, 3), lam=lam)
    >>> p[:, 0].sum().backward()
    >>> lam.grad
    tensor([0.0625, 0.5000])
    """
    return apply_sparsegen(scores, lam, transform, dim, mask, return_info)
