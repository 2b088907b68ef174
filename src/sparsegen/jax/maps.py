"""The maps on JAX arrays: names, controls and edge cases of :mod:`sparsegen`, and ``where`` as jax.nn.softmax has it.

They can be traced, differentiated (in the scores and in controls given as arrays, to any order), mapped by vmap and
sharded. Controls broadcast against the scores without the class axis: one control per row, or per head. float16 and
bfloat16 are computed in float32 and rounded once. What would be an error about values in NumPy cannot be asked of an
array that is traced, so it is a NaN row here: a control array out of its range, a row outside the domain of
``sparsecone``, ``sparsegen_log``, ``sum_normalization`` or ``spherical_softmax``. Controls given as Python numbers are
checked.

The functions are made from the table, one for each row. Those named here are known to type checkers and editors; a
row without a line is a function all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, overload

import jax

from sparsegen._table.functions import control_options, made
from sparsegen._table.maps import MAPS
from sparsegen._table.prose import JAX, map_doc
from sparsegen.jax._apply import Info, apply, apply_project, apply_sparsegen

Both = tuple[jax.Array, Info]
Control = float | jax.Array


class Uncontrolled(Protocol):
    """A map without a control."""

    @overload
    def __call__(
        self, scores: Any, *, axis: int = ..., where: Any = ..., return_info: Literal[False] = ...
    ) -> jax.Array: ...
    @overload
    def __call__(self, scores: Any, *, axis: int = ..., where: Any = ..., return_info: Literal[True]) -> Both: ...


class WithLam(Protocol):
    """A map with the control lam."""

    @overload
    def __call__(
        self, scores: Any, *, lam: Control = ..., axis: int = ..., where: Any = ..., return_info: Literal[False] = ...
    ) -> jax.Array: ...
    @overload
    def __call__(
        self, scores: Any, *, lam: Control = ..., axis: int = ..., where: Any = ..., return_info: Literal[True]
    ) -> Both: ...


class WithQ(Protocol):
    """A map with the control q."""

    @overload
    def __call__(
        self, scores: Any, *, q: Control, axis: int = ..., where: Any = ..., return_info: Literal[False] = ...
    ) -> jax.Array: ...
    @overload
    def __call__(
        self, scores: Any, *, q: Control, axis: int = ..., where: Any = ..., return_info: Literal[True]
    ) -> Both: ...


class WithTemperature(Protocol):
    """A map with the control temperature."""

    @overload
    def __call__(
        self, scores: Any, *, temperature: Control = ..., axis: int = ..., where: Any = ...,
        return_info: Literal[False] = ...,
    ) -> jax.Array: ...  # fmt: skip
    @overload
    def __call__(
        self, scores: Any, *, temperature: Control = ..., axis: int = ..., where: Any = ...,
        return_info: Literal[True],
    ) -> Both: ...  # fmt: skip


class WithAlpha(Protocol):
    """A map with the control alpha."""

    @overload
    def __call__(
        self, scores: Any, *, alpha: Control = ..., axis: int = ..., where: Any = ..., return_info: Literal[False] = ...
    ) -> jax.Array: ...
    @overload
    def __call__(
        self, scores: Any, *, alpha: Control = ..., axis: int = ..., where: Any = ..., return_info: Literal[True]
    ) -> Both: ...


class WithLamAndTemperature(Protocol):
    """A map with the controls lam and temperature."""

    @overload
    def __call__(
        self, scores: Any, *, lam: Control = ..., temperature: Control = ..., axis: int = ..., where: Any = ...,
        return_info: Literal[False] = ...,
    ) -> jax.Array: ...  # fmt: skip
    @overload
    def __call__(
        self, scores: Any, *, lam: Control = ..., temperature: Control = ..., axis: int = ..., where: Any = ...,
        return_info: Literal[True],
    ) -> Both: ...  # fmt: skip


def _made(name: str) -> Any:
    """The function of a row."""
    m = MAPS[name]

    def call(given: Mapping[str, Any]) -> Any:
        own = {key: given[key] for key in m.controls}
        return apply(name, given["scores"], own, given["axis"], given["where"], given["return_info"])

    options = {**control_options(m.controls), "axis": -1, "where": None, "return_info": False}
    return made(name, map_doc(m, JAX), ["scores"], options, call)


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
hardmax: Uncontrolled = _made("hardmax")
sparsegen_softmax: WithLamAndTemperature = _made("sparsegen_softmax")
entmax: WithAlpha = _made("entmax")
entmax15: Uncontrolled = _made("entmax15")


@overload
def project(
    points: Any, radius: Control = ..., *, axis: int = ..., where: Any = ..., return_info: Literal[False] = ...
) -> jax.Array: ...
@overload
def project(
    points: Any, radius: Control = ..., *, axis: int = ..., where: Any = ..., return_info: Literal[True]
) -> Both: ...
def project(points: Any, radius: Any = 1.0, *, axis: int = -1, where: Any = None, return_info: bool = False) -> Any:
    r"""Project onto the simplex of a given radius: the primitive behind every map.

    .. math:: [x - \tau]_+ / r, \qquad \tau \text{ such that the result sums to 1}

    Parameters
    ----------
    points : Array
        Points x.
    radius : number or Array, at least 0
        0 gives the limit: uniform on the maximal entries. Infinity gives uniform on all entries. One for all rows, or
        one that broadcasts to the points without the class axis; differentiable.
    axis : int
        The axis of the classes.
    where : boolean Array, optional
        Broadcasts to the points; True where an entry may be chosen.
    return_info : bool
        Also return support size and threshold of each row.

    Returns
    -------
    p : Array
        Probabilities, of the points' shape and dtype.
    info : Info
        Only with ``return_info=True``.

    Examples
    --------
    >>> import jax.numpy as jnp, sparsegen.jax as sgj
    >>> sgj.project(jnp.array([0.5, 0.25, 0.0]), 0.5).tolist()
    [0.75, 0.25, 0.0]
    """
    return apply_project(points, radius, axis, where, return_info)


Transform = Literal["lin", "exp", "sq", "log"] | Callable[[jax.Array], jax.Array]


@overload
def sparsegen(
    scores: Any, *, lam: Control = ..., transform: Transform = ..., axis: int = ..., where: Any = ...,
    return_info: Literal[False] = ...,
) -> jax.Array: ...  # fmt: skip
@overload
def sparsegen(
    scores: Any, *, lam: Control = ..., transform: Transform = ..., axis: int = ..., where: Any = ...,
    return_info: Literal[True],
) -> Both: ...  # fmt: skip
def sparsegen(
    scores: Any, *, lam: Any = 0.0, transform: Any = "lin", axis: int = -1, where: Any = None, return_info: bool = False
) -> Any:
    r"""Sparsemax of transformed scores with a dial (the paper's Eq. 2).

    .. math:: \operatorname{argmin}_{p \in \Delta} \|p - g(z)\|^2 - \lambda \|p\|^2
              = \mathrm{sparsemax}(g(z) / (1 - \lambda))

    Parameters
    ----------
    scores : Array
        Mapped along one axis. A row with NaN or +inf is all NaN.
    lam : number or Array, below 1
        Towards 1 sparser, down to one nonzero entry; towards -infinity denser, up to uniform. Differentiable.
    transform : "lin", "exp", "sq", "log" or a callable
        The g of the equation. A callable maps an array to one of the same shape by operations JAX can differentiate.
    axis : int
        The axis of the classes.
    where : boolean Array, optional
        Broadcasts to the scores; True where an entry may be chosen.
    return_info : bool
        Also return support size and threshold of each row.

    Returns
    -------
    p : Array
        Probabilities, of the scores' shape and dtype.
    info : Info
        Only with ``return_info=True``.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, sparsegen.jax as sgj
    >>> sgj.sparsegen(jnp.array([0.75, -0.25, 0.0]), lam=0.5, transform=jnp.abs).tolist()
    [1.0, 0.0, 0.0]
    >>> z = jnp.array([[0.5, 0.25, 0.0], [0.5, 0.25, 0.0]])
    >>> jax.grad(lambda lam: sgj.sparsegen(z, lam=lam)[:, 0].sum())(jnp.array([-1.0, 0.5])).tolist()  # one per row
    [0.0625, 0.5]
    """
    return apply_sparsegen(scores, lam, transform, axis, where, return_info)
