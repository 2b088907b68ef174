"""The maps as modules, made from the table: a class for each row, and Sparsegen for the four that share a dial."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any

from torch import Tensor, nn

from sparsegen._table import checks
from sparsegen._table.controls import control_number, controls_of, mapping_name
from sparsegen._table.maps import MAPS, TRANSFORMS, Map
from sparsegen._table.prose import module_doc
from sparsegen.torch import _apply
from sparsegen.torch._mapping import Mapping

_ROWS = {name: MAPS[f"sparsegen_{name}"] for name in TRANSFORMS}


class _Uncontrolled(Mapping):
    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim)
        self._plan = self._planned()


class _WithQ(Mapping):
    def __init__(self, q: Any, learnable: bool = False, shape: Sequence[int] = (), dim: int = -1) -> None:
        super().__init__(dim)
        self._keep("q", q, learnable, shape)

    @property
    def q(self) -> Tensor:
        """The control as it is now; it may be set."""
        return self.value()

    @q.setter
    def q(self, value: Any) -> None:
        self.set_value(value)


class _WithTemperature(Mapping):
    def __init__(
        self, temperature: Any = 1.0, learnable: bool = False, shape: Sequence[int] = (), dim: int = -1
    ) -> None:
        super().__init__(dim)
        self._keep("temperature", temperature, learnable, shape)

    @property
    def temperature(self) -> Tensor:
        """The control as it is now; it may be set."""
        return self.value()

    @temperature.setter
    def temperature(self, value: Any) -> None:
        self.set_value(value)


class Sparsegen(Mapping):
    """Sparsegen with a fixed or learnable dial. See :func:`sparsegen.torch.sparsegen`.

    Parameters
    ----------
    lam : number, sequence or tensor
        The dial, below 1. A learnable one is kept as ``theta = log(1 - lam)``.
    transform : "lin", "exp", "sq", "log" or a callable
    learnable : bool
        Is the control a parameter?
    shape : sequence of int
        One control for each row or head: it broadcasts against the scores without the class axis.
    dim : int
        The axis of the classes.

    Examples
    --------
    >>> import torch, sparsegen.torch as sgt
    >>> heads = sgt.Sparsegen(lam=0.5, learnable=True, shape=(8, 1))  # scores: (batch, 8, queries, keys)
    >>> heads
    Sparsegen(lam=tensor(8, 1), transform='lin', learnable=True, dim=-1)
    >>> heads(torch.zeros(2, 8, 5, 4)).shape
    torch.Size([2, 8, 5, 4])
    >>> heads.lam = -1.0
    """

    def __init__(
        self, lam: Any = 0.0, transform: Any = "lin", learnable: bool = False, shape: Sequence[int] = (), dim: int = -1
    ) -> None:
        super().__init__(dim)
        if not callable(transform):
            checks.transform_name(transform, tuple(TRANSFORMS))
        self.transform = transform
        self._keep("lam", lam, learnable, shape)

    @property
    def row(self) -> Map | None:  # type: ignore[override]
        """The row of the table; None for a transform of the caller's own."""
        return None if callable(self.transform) else _ROWS[self.transform]

    @property
    def lam(self) -> Tensor:
        """The control as it is now; it may be set."""
        return self.value()

    @lam.setter
    def lam(self, value: Any) -> None:
        self.set_value(value)

    def _by_own(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return _apply.apply_own(scores, self.kept(), self.transform, self.dim, mask)

    def _options(self) -> list[str]:
        name = self.transform if isinstance(self.transform, str) else getattr(self.transform, "__name__", "callable")
        lam, learnable = super()._options()
        return [lam, f"transform={name!r}", learnable]


class _WithLam(Sparsegen):
    """A dial on a row that is none of sparsegen's."""

    row: Map

    def __init__(self, lam: Any = 0.0, learnable: bool = False, shape: Sequence[int] = (), dim: int = -1) -> None:
        Mapping.__init__(self, dim)
        self.transform = self.row.transform
        self._keep("lam", lam, learnable, shape)


class _WithLamAndTemperature(_WithLam):
    """A dial that may be learned, beside a temperature that stays."""

    _temperature = 1.0

    def __init__(
        self, lam: Any = 0.0, temperature: float = 1.0, learnable: bool = False, shape: Sequence[int] = (),
        dim: int = -1,
    ) -> None:  # fmt: skip
        super().__init__(lam, learnable, shape, dim)
        self.temperature = temperature

    @property
    def temperature(self) -> float:
        """The temperature, one number; it may be set."""
        return self._temperature

    @temperature.setter
    def temperature(self, value: Any) -> None:
        self._temperature = control_number("temperature", value)
        self._plan = self._planned()

    def _options(self) -> list[str]:
        lam, learnable = Mapping._options(self)
        return [lam, f"temperature={self.temperature:g}", learnable]


class _WithAlpha(Mapping):
    def __init__(self, alpha: Any = 1.5, learnable: bool = False, shape: Sequence[int] = (), dim: int = -1) -> None:
        super().__init__(dim)
        self._keep("alpha", alpha, learnable, shape)

    @property
    def alpha(self) -> Tensor:
        """The control as it is now; it may be set. A learnable one stays above 1 and at most 2."""
        return self.value()

    @alpha.setter
    def alpha(self, value: Any) -> None:
        self.set_value(value)


_BASES: dict[tuple[str, ...], Any] = {
    (): _Uncontrolled, ("lam",): _WithLam, ("q",): _WithQ, ("temperature",): _WithTemperature,
    ("alpha",): _WithAlpha, ("lam", "temperature"): _WithLamAndTemperature,
}  # fmt: skip


def _made(name: str) -> Any:
    """The class of a row of the table."""
    m = MAPS[name]
    title = "".join(word.title() for word in name.split("_"))
    base = _BASES[m.controls]
    made = type(title, (base,), {"row": m, "__doc__": module_doc(m, title), "__module__": __name__})
    made.__init__ = _renamed(base.__init__, f"{title}.__init__")  # type: ignore[misc]
    return made


def _renamed(f: Any, name: str) -> Any:
    """A function under another name, by which Python calls it where arguments are missing."""
    copy = FunctionType(f.__code__, f.__globals__, name, f.__defaults__, f.__closure__)
    copy.__qualname__, copy.__kwdefaults__, copy.__annotations__ = name, f.__kwdefaults__, f.__annotations__
    return copy


Sparsemax: type[_Uncontrolled] = _made("sparsemax")
Sparsecone: type[_WithQ] = _made("sparsecone")
Sparsehourglass: type[_WithQ] = _made("sparsehourglass")
SumNormalizationPlus: type[_Uncontrolled] = _made("sum_normalization_plus")
SumNormalization: type[_WithLam] = _made("sum_normalization")
SphericalSoftmax: type[_WithLam] = _made("spherical_softmax")
Softmax: type[_WithTemperature] = _made("softmax")
SparsegenSoftmax: type[_WithLamAndTemperature] = _made("sparsegen_softmax")
Entmax: type[_WithAlpha] = _made("entmax")
Entmax15: type[_Uncontrolled] = _made("entmax15")
Hardmax: type[_Uncontrolled] = _made("hardmax")


def make_map(
    mapping: str | nn.Module, *, lam: Any = None, q: Any = None, temperature: Any = None, alpha: Any = None,
    learnable: bool = False, shape: Sequence[int] = (), dim: int = -1,
) -> nn.Module:  # fmt: skip
    """Make the module of a map from its name and control; a module is returned as it is.

    Parameters
    ----------
    mapping : str or module
        A name of the table, e.g. ``"sparsegen_lin"``, or a module called with scores and a mask.
    lam, q, temperature, alpha : number, sequence or tensor, optional
        The controls of that map, none other.
    learnable, shape, dim
        As for the modules, e.g. ``shape=(n_heads, 1)`` for a control of each head.

    Returns
    -------
    module : nn.Module

    Examples
    --------
    >>> import sparsegen.torch as sgt
    >>> sgt.make_map("sparsegen_lin", lam=0.5)
    Sparsegen(lam=0.5, transform='lin', learnable=False, dim=-1)
    >>> sgt.make_map("sparsemax", q=1.0)
    Traceback (most recent call last):
    ...
    ValueError: sparsegen: q must be left out for mapping 'sparsemax', which has no control, got 1.0.
    """
    given = {"lam": lam, "q": q, "temperature": temperature, "alpha": alpha}
    if isinstance(mapping, nn.Module):
        refuse_controls(given, learnable)
        return mapping
    m = MAPS[mapping_name(mapping, MAPS, ", or a module")]
    controls = controls_of(m.name, m.controls, given)
    if not controls:
        if learnable:
            checks.fail(ValueError, "learnable", f"False for mapping {mapping!r}, which has no control", learnable)
        return _class_of(m)(dim=dim)
    return _class_of(m)(**controls, learnable=learnable, shape=shape, dim=dim)


def refuse_controls(given: dict[str, Any], learnable: bool) -> None:
    """Refuse controls beside a mapping module, which has its own."""
    for name, value in given.items():
        if value is not None:
            checks.fail(ValueError, name, "left out where mapping is a module, which has its own control", value)
    if learnable:
        checks.fail(ValueError, "learnable", "False where mapping is a module: make that one learnable", learnable)


def _class_of(m: Map) -> Any:
    """What makes a module of a row: its class, or Sparsegen with its transform."""
    if m.name.startswith("sparsegen_") and m.name.removeprefix("sparsegen_") in TRANSFORMS:
        return lambda **options: Sparsegen(transform=m.transform, **options)
    known = globals().get("".join(word.title() for word in m.name.split("_")))
    return known if isinstance(known, type) else _made(m.name)
