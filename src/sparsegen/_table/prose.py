"""What the functions of the front ends say of themselves, made from the tables: numpydoc, with an example that runs."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from sparsegen._table.controls import CONTROLS, LOSS_CONDITIONS, Control
from sparsegen._table.losses import EXAMPLE, Loss
from sparsegen._table.maps import Map

WIDTH = 110

_WHOLE = (
    " A dense target has the classes of this rank, as the scores have. A sparse one and class indices are of all "
    "classes, and the same on every rank."
)


class Front(NamedTuple):
    """How a front end speaks: its import, its short name, its arrays and its word for an axis."""

    imports: str
    alias: str
    array: str
    made: str  # how an example makes an array of the list {}
    axis: str
    outside: str  # what becomes of rows on which a map is not defined
    grads: bool = False  # do losses return gradients on request?
    mask: str = "mask"  # its word for what may be chosen
    within: str = ""  # what an example must stand in: classes are split over processes


NUMPY = Front("import sparsegen as sg", "sg", "array", "{}", "axis", "A row outside the domain is a ValueError.", True)
TORCH = Front(
    "import torch, sparsegen.torch as sgt", "sgt", "Tensor", "torch.tensor({})", "dim",
    "A row outside the domain is NaN: looking at it would make torch wait for the device.",
)  # fmt: skip
JAX = Front(
    "import jax.numpy as jnp, sparsegen.jax as sgj", "sgj", "Array", "jnp.array({})", "axis",
    "A row outside the domain is NaN: what is traced cannot be looked at.", mask="where",
)  # fmt: skip
SHARDED = Front(
    "import torch, sparsegen.torch.distributed as sgd", "sgd", "Tensor", "torch.tensor({})", "dim", TORCH.outside,
    within="with sgd.single_process():  # torchrun starts several",
)  # fmt: skip


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


def _parameter(name: str, kind: str, text: str) -> str:
    return f"{name} : {kind}\n{_filled(text, '    ')}"


def _section(title: str, parts: Iterable[str]) -> str:
    return f"{title}\n{'-' * len(title)}\n" + "\n".join(parts)


def _display(tex: str) -> list[str]:
    return [f".. math:: {tex}"] if tex else []


def _controls(m: Map, front: Front) -> Iterable[str]:
    for name in m.controls:
        control = CONTROLS[name]
        kind = f"number or {front.array}, {_range(control)}"
        kind += ", optional" if control.default is not None else ""
        yield _parameter(name, kind, control.text + " One for all rows, or one that broadcasts to the scores without "
                         "the class axis: per row, per head.")  # fmt: skip


def _range(control: Control) -> str:
    """The condition of a control without its noun: "below 1", "finite and at least 1"."""
    return control.condition.removeprefix("a ").replace("finite number", "finite and").replace("number", "").strip()


def map_doc(m: Map, front: Front) -> str:
    """Return the docstring of a map's function."""
    axis = _parameter(f"{front.axis}", "int", "The axis of the classes.")
    mask = _parameter(
        front.mask, f"boolean {front.array}, optional",
        "Broadcasts to the scores; True where an entry may be chosen. A score of -inf says the same as False. Such "
        "entries get exactly 0 and do not count for the row's size, sum or mean; a row with nothing to choose is all "
        "zeros.",
    )  # fmt: skip
    scores = "Mapped along one axis. A row with NaN or +inf is all NaN." + (f" {front.outside}" if m.domain else "")
    info = _parameter("return_info", "bool", "Also return support size and threshold of each row.")
    group = _group() if front.within else []
    kept = "of the scores' shape and dtype, not negative, each row with a sum of 1"
    parts = [
        m.summary, *_display(m.display), *([_filled(m.notes)] if m.notes else []),
        _section("Parameters", [_parameter("scores", front.array, scores), *_controls(m, front), axis, mask, info,
                                *group]),
        _section("Returns", [_parameter("p", front.array, f"Probabilities: {kept}."),
                             _parameter("info", "Info", "Only with ``return_info=True``.")]),
        _section("Examples", _map_example(m, front)),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _map_example(m: Map, front: Front) -> list[str]:
    given = "".join(f", {name}={value}" for name, value in m.example.controls.items())
    scores = front.made.format(list(m.example.scores))
    call = f"{front.alias}.{m.name}({scores}{given}).tolist()"
    return [*_example(front, call), str(list(m.example.result))]


def _example(front: Front, call: str) -> list[str]:
    lines = [f">>> {front.within}", f"...     {call}"] if front.within else [f">>> {call}"]
    return [f">>> {front.imports}", *lines]


def _group() -> list[str]:
    text = (
        "The ranks that the classes are split over, each with its own part of every row, in the order of ranks; parts "
        "may differ in size, and be empty. None is the default group. All of its ranks must make the call."
    )
    return [_parameter("group", "torch.distributed.ProcessGroup, optional", text)]


def _sharded_loss() -> list[str]:
    text = (
        "Let backward give the gradient of the scores as a sparse COO tensor where few of them are not 0: for matrices "
        "of scores made by :class:`ShardedLinear`, or leaves."
    )
    return [_parameter("sparse_grad", "bool", text), *_group()]


LOSS_OPTIONS = (
    _parameter("reduction", '"mean", "sum" or "none"', '"none" gives one loss per row. The mean of no rows is 0.'),
    _parameter("ignore_index", "int", "Rows with this class index take no part."),
    _parameter("ignore_empty", "bool", "Leave out rows without a label, which are an error otherwise."),
)


def loss_doc(loss: Loss, front: Front) -> str:
    """Return the docstring of a loss's function."""
    shares = " Other shares of the labels are refused." if loss.even else " Or any distribution: rows that sum to 1."
    parameters = [
        _parameter("scores", f"{front.array} (..., K)", "Scores z, one row per example; classes on the last axis."),
        _parameter("target", f"{front.array} or sparse matrix",
                   "Multi-hot (..., K) with 0 and 1: the labels of a row share equally. Or class indices (...)."
                   + shares + (_WHOLE if front.within else "")),
        *_loss_control(loss, front),
        _parameter(front.mask, f"boolean {front.array}, optional",
                   "Broadcasts to the scores; True where an entry may be chosen. One that is hidden, or has the score "
                   "-inf, takes no part; a label there is an error."),
        _parameter("weight", f"{front.array}, optional",
                   "Broadcasts to the rows; not negative. Each row's loss is multiplied by it, and the mean divided by "
                   "the sum of weights."),
        *LOSS_OPTIONS,
    ]  # fmt: skip
    if front.within:
        parameters.extend(_sharded_loss())
    returns = [_parameter("loss", front.array, 'One number, or one per row for the reduction "none".')]
    if front.grads:
        parameters.append(_parameter("return_grad", "bool", 'Also return the gradients; with "none" those of the sum.'))
        returns.append(_parameter("grad", "Gradients", "Only with ``return_grad=True``."))
    parts = [
        loss.summary, *_display(loss.display), *([_filled(loss.notes)] if loss.notes else []),
        _section("Parameters", parameters), _section("Returns", returns),
        _section("Examples", _loss_example(loss, front)),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _loss_control(loss: Loss, front: Front) -> Iterable[str]:
    if loss.control:
        kind = LOSS_CONDITIONS[loss.control][0].removeprefix("a ")
        text = f"The control of the map it trains, {loss.mapping}; {loss.default:g} if left out."
        yield _parameter(loss.control, f"{kind} or {front.array}, optional", text)


def _loss_example(loss: Loss, front: Front) -> list[str]:
    scores, target = (front.made.format(list(values)) for values in EXAMPLE)
    call = f"{front.alias}.{loss.name}_loss({scores}, {target})"
    return [*_example(front, f"round(float({call}), 4)"), str(loss.example)]


def module_doc(m: Map, title: str) -> str:
    """Return the docstring of a map's module in torch."""
    given = ", ".join(f"{name}={value}" for name, value in m.example.controls.items())
    parts = [
        f"{m.summary} See :func:`sparsegen.torch.{m.name}`.", _section("Parameters", _module_parameters(m)),
        _section("Examples", [f">>> {TORCH.imports}",
                              f">>> sgt.{title}({given})({TORCH.made.format(list(m.example.scores))}).tolist()",
                              str(list(m.example.result))]),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _module_parameters(m: Map) -> Iterable[str]:
    for name in m.controls:
        control = CONTROLS[name]
        kind = f"number, sequence or Tensor, {_range(control)}"
        yield _parameter(name, kind + (", optional" if control.default is not None else ""), control.text)
    if m.controls:
        yield _parameter("learnable", "bool", "Is the control a parameter? It stays inside its range.")
        yield _parameter("shape", "sequence of int", "Of the control, one for each row or head: it broadcasts against "
                         "the scores without the class axis.")  # fmt: skip
    yield _parameter("dim", "int", "The axis of the classes.")


def loss_module_doc(loss: Loss, title: str) -> str:
    """Return the docstring of a loss's module in torch."""
    scores, target = (TORCH.made.format(list(values)) for values in EXAMPLE)
    parts = [
        loss.summary,
        f"Scores, target, mask and weight are given in the call. See :func:`sparsegen.torch.{loss.name}_loss`.",
        _section("Parameters", [*LOSS_OPTIONS, *_loss_control(loss, TORCH)]),
        _section("Examples", [f">>> {TORCH.imports}", f'>>> loss = sgt.{title}(reduction="sum")',
                              f">>> round(float(loss({scores}, {target})), 4)", str(loss.example)]),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def retold(f: Callable[..., Any], told: Callable[..., Any], words: Mapping[str, str]) -> str:
    """Return the docstring of `f`, a summary and an example, with Parameters and Returns of `told` in other words."""
    summary, _, example = inspect.cleandoc(f.__doc__ or "").partition("\n\n")
    text = inspect.getdoc(told) or ""
    shared = text[text.index("Parameters\n") : text.index("Examples\n")]
    for word, here in words.items():
        shared = shared.replace(word, here)
    return f"{summary}\n\n{shared}{_section('Examples', [example])}\n"
