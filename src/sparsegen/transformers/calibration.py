"""Controls for a model by what they should do, found on a user's own text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sparsegen._table import checks
from sparsegen._table.controls import control_number
from sparsegen._table.maps import MAPS
from sparsegen.torch.attention.probes import AttentionProbe
from sparsegen.transformers.controls import SparseControls, carriers
from sparsegen.transformers.interface import open_keys, run

_LIMITS: checks.Conditions = {
    "mean_support": ("a number at least 1", lambda v: v >= 1),
    "distance": ("between 0 and 1", lambda v: 0 <= v <= 1),
    "max_loss_increase": ("a number at least 0", lambda v: 0 <= v < math.inf),
}
Batches = list[Mapping[str, Any]]


def calibrate(
    model: nn.Module, batches: Iterable[Mapping[str, Any]], *, mean_support: float | None = None,
    distance: float | None = None, max_loss_increase: float | None = None, passes: int = 10,
) -> list[dict[str, Any]]:  # fmt: skip
    """Find the dials of a sparse model on batches of its own inputs, and set them.

    Parameters
    ----------
    model : PreTrainedModel
        As :func:`sparsify` left it, with maps that have a ``lam``.
    batches : iterable of dict
        Arguments of the model; with ``labels`` for `max_loss_increase`.
    mean_support : float, optional
        Keys that a query of each head should use on average: one lam for each head.
    distance : float, optional
        Total variation between the weights of each head and softmax's, on average at most this: one lam for each head.
    max_loss_increase : float, optional
        How much larger than softmax's the loss may become, as a share of it: one lam for all heads. For maps that begin
        at softmax.
    passes : int
        Passes over the batches; each halves the interval in which log(1 - lam) is looked for.

    Returns
    -------
    list of dict
        One entry for each head: module, head, lam, and the support it has now.

    Examples
    --------
    >>> import torch, transformers
    >>> from sparsegen.transformers import calibrate, sparsify
    >>> _ = torch.manual_seed(0)
    >>> config = transformers.GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, initializer_range=0.5)
    >>> model = transformers.GPT2LMHeadModel(config)
    >>> _ = sparsify(model)
    >>> found = calibrate(model, [{"input_ids": torch.arange(32)[None]}], mean_support=4)
    >>> [round(row["support"]) for row in found]
    [4, 4]
    """
    wished = {"mean_support": mean_support, "distance": distance, "max_loss_increase": max_loss_increase}
    given = {name: control_number(name, value, _LIMITS) for name, value in wished.items() if value is not None}
    if len(given) != 1:
        checks.fail(
            ValueError, "the aim", "one of mean_support, distance and max_loss_increase", f"{len(given)} of them"
        )
    ((aim, target),) = given.items()
    found, each = _dials(model), list(batches)
    if not each:
        checks.fail(ValueError, "batches", "at least one batch", "none")
    with _evaluating(model):
        if aim == "max_loss_increase":
            _by_loss(model, found, each, target, passes)
        else:
            _by_head(model, found, each, _support if aim == "mean_support" else _nearness, target, passes)
        return _table(model, found, each)


def _dials(model: nn.Module) -> dict[str, SparseControls]:
    found = carriers(model)
    if not found or any("lam" not in MAPS[c.name].controls for c in found.values()):
        kinds = sorted({c.name for c in found.values()})
        checks.fail(
            ValueError, "model", "sparse by maps that have a lam", f"maps {kinds}" if kinds else "no sparse module"
        )
    return found


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    before = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(before)


def _bracket(carrier: SparseControls) -> tuple[float, float]:
    """Where log(1 - lam) is looked for: shares of a sum end at softmax, other radii far beyond all scores."""
    return (math.log(1e-4), 0.0) if MAPS[carrier.name].radius.of == "sum" else (math.log(1e-3), math.log(1e3))


def _set(carrier: SparseControls, log_radius: Tensor) -> None:
    carrier.set_value("lam", 1 - log_radius.exp())


Measure = Callable[[nn.Module, dict[str, SparseControls], Batches, float], dict[str, Tensor]]


def _by_head(
    model: nn.Module, found: dict[str, SparseControls], batches: Batches, measure: Measure, target: float, passes: int
) -> None:
    """Bisect for every head at once; what earlier layers do to later ones is part of each measurement."""
    low, high = (
        {n: torch.full((c.heads,), _bracket(c)[i], dtype=torch.float64) for n, c in found.items()} for i in (0, 1)
    )
    for _ in range(passes):
        middle = {name: (low[name] + high[name]) / 2 for name in found}
        for name, carrier in found.items():
            _set(carrier, middle[name])
        for name, excess in measure(model, found, batches, target).items():
            high[name] = torch.where(excess > 0, middle[name], high[name])
            low[name] = torch.where(excess > 0, low[name], middle[name])
    for name, carrier in found.items():
        _set(carrier, high[name] if measure is _nearness else (low[name] + high[name]) / 2)


def _support(model: nn.Module, found: dict[str, SparseControls], batches: Batches, target: float) -> dict[str, Tensor]:
    """How many keys too many the heads use."""
    columns: dict[str, list[float]] = {name: [] for name in found}
    for row in _probed(model, batches):
        columns[row["module"]].append(row["support"])
    return {name: torch.tensor(column, dtype=torch.float64) - target for name, column in columns.items() if column}


def _probed(model: nn.Module, batches: Batches) -> list[dict[str, Any]]:
    with AttentionProbe(model) as probe:
        for batch in batches:
            model(**batch)
    return [{**row, "module": row["module"].rpartition(".")[0]} for row in probe.table()]


class _Distance:
    """Sums, for each head, of the total variation between its weights and softmax's."""

    def __init__(self, carrier: SparseControls) -> None:
        self.carrier, self.soft = carrier, SparseControls(carrier.heads, "softmax")
        self.total, self.rows = torch.zeros(carrier.heads, dtype=torch.float64), torch.zeros((), dtype=torch.float64)

    def __call__(self, *call: Any) -> None:
        p, s = (run(c, *call, 0.0, True)[1] for c in (self.carrier, self.soft))  # type: ignore[call-arg]
        assert p is not None  # asked for
        assert s is not None
        some = open_keys(call[3], call[4], p)
        rows = torch.ones_like(p[..., 0]) if some is None else some.any(-1).to(p.dtype)
        apart = (p.float() - s.float()).abs().sum(-1) / 2 * rows
        self.total += apart.sum((0, 2)).double().cpu()
        self.rows += rows[:, 0].sum().double().cpu()


def _nearness(model: nn.Module, found: dict[str, SparseControls], batches: Batches, target: float) -> dict[str, Tensor]:
    """How much nearer to softmax than asked the heads are."""
    watching = {name: _Distance(carrier) for name, carrier in found.items()}
    for name, carrier in found.items():
        carrier.watch = watching[name]
    try:
        for batch in batches:
            model(**batch)
    finally:
        for carrier in found.values():
            del carrier.watch
    return {name: target - w.total / w.rows for name, w in watching.items() if w.rows > 0}


def _loss(model: nn.Module, batches: Batches) -> float:
    total = 0.0
    for batch in batches:
        loss = getattr(model(**batch), "loss", None)
        if loss is None:
            checks.fail(ValueError, "batches", "dicts with labels, of which the model makes a loss", "none")
        total += float(loss)
    return total / len(batches)


@contextmanager
def _softmax(found: dict[str, SparseControls]) -> Iterator[None]:
    """The carriers with softmax for their maps."""
    before = {name: (c.name, c.bias, c.controls) for name, c in found.items()}
    for carrier in found.values():
        carrier.name, carrier.bias, carrier.controls = "softmax", None, {"temperature": 1.0}
    try:
        yield
    finally:
        for name, carrier in found.items():
            carrier.name, carrier.bias, carrier.controls = before[name]


def _by_loss(model: nn.Module, found: dict[str, SparseControls], batches: Batches, target: float, passes: int) -> None:
    if any(MAPS[c.name].radius.of != "sum" for c in found.values()):
        kinds = sorted({c.name for c in found.values()})
        checks.fail(ValueError, "max_loss_increase", "None for maps that do not begin at softmax", f"maps {kinds}")
    with _softmax(found):
        most = _loss(model, batches) * (1 + target)
    low, high = _bracket(next(iter(found.values())))
    for turn in range(passes + 1):  # the last one sets what was found
        middle = (low + high) / 2 if turn < passes else high
        for carrier in found.values():
            _set(carrier, torch.full((carrier.heads,), middle, dtype=torch.float64))
        if turn < passes:
            low, high = (low, middle) if _loss(model, batches) <= most else (middle, high)


def _table(model: nn.Module, found: dict[str, SparseControls], batches: Batches) -> list[dict[str, Any]]:
    lams = {name: carrier.value("lam").tolist() for name, carrier in found.items()}
    rows = _probed(model, batches)
    return [
        {"module": r["module"], "head": r["head"], "lam": lams[r["module"]][r["head"]], "support": r["support"]}
        for r in rows
    ]
