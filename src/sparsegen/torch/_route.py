"""Which way a call takes: straight to a kernel, through a registered operator, or by plain operations.

Plain CPU tensors in eager mode go straight to the kernel, with a small autograd Function if gradients are wanted.
Tracers (compile, export, fake and meta tensors) see registered operators. Everything else (torch.func, forward mode,
derivatives of derivatives) gets its values from the operator and its derivatives from plain operations. An operator
asks for the engine of its device here. What torch says of its own state in private names is asked here and nowhere
else.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.modules.module as _modules
from torch import Tensor
from torch.compiler import is_compiling

import sparsegen._core as _core
from sparsegen._table.extras import advice
from sparsegen.torch import _cpu, _plain

# Asked in every call, so kept where one look finds them.
_dispatch_modes, _is_tracing = torch._C._len_torch_dispatch_stack, torch._C._is_tracing
_in_functorch, _is_batched = torch._C._are_functorch_transforms_active, torch._C._functorch.is_legacy_batchedtensor

PLAIN_TYPES = (Tensor, torch.nn.Parameter)
_HOOKS = ("forward", "forward_pre", "backward", "backward_pre")  # of all modules


# What the kernel asks by itself in small calls: see _kernel/tensors.hpp.
_core.know_torch({
    "tensor": Tensor, "parameter": torch.nn.Parameter, "storages": tuple(_cpu.STORAGE), "empty_like": torch.empty_like,
    "wide": functools.partial(torch.empty, dtype=torch.float64), "threads": torch.get_num_threads,
    "modes": _dispatch_modes, "tracing": _is_tracing, "functorch": _in_functorch, "records": torch.is_grad_enabled,
    "levels": vars(forward_ad), "level": "_current_level", "address": _cpu.address.__name__,
    "truth": torch.bool, "deferred": torch._C._is_cow_tensor,  # type: ignore[attr-defined]
    "exchange": getattr(Tensor, "__dlpack_c_exchange_api__", None),
    "hooks": tuple(getattr(_modules, f"_global_{name}_hooks") for name in _HOOKS),
})  # fmt: skip

# A map of a plain tensor along its last axis (scores, kind, radius, second), or of one of our modules (module, scores),
# without mask and gradients, in few calls; None: ask for more. Who calls them asks is_dynamo_compiling() first, as the
# compiler knows nothing of them; other tracers show in what they ask themselves.
quick, quick_module = _core.quick_map, _core.quick_module

# The engines of other devices than the CPU, imported when the first tensor of theirs arrives ("cuda" is ROCm's name
# too); plain operations serve the devices that have none.
ENGINES = {"cuda": "sparsegen.torch._triton"}


@functools.cache
def engine_of(device: str) -> Any:
    """The engine of a kind of device; plain operations, with one warning, where its packages are missing."""
    if device not in ENGINES:
        return _plain
    try:
        return importlib.import_module(ENGINES[device])
    except ModuleNotFoundError as error:
        text = f"sparsegen: {error.name} is not installed, so {device} tensors are mapped by plain torch operations, "
        warnings.warn(text + f"slower and in more memory ({advice('gpu')}).", RuntimeWarning, stacklevel=2)
        return _plain


def engine(t: Tensor) -> Any:
    """The engine for tensors on this device: project, project_vjp and hinge_labels."""
    return _cpu if t.is_cpu else engine_of(t.device.type)


def by_operator(x: Tensor) -> bool:
    """Is a call one operator with its own derivatives? So it is for tracers, for subclasses, and on other devices."""
    return (traced() or not x.is_cpu or type(x) not in PLAIN_TYPES) and not transformed()


def knows_maps(x: Tensor) -> bool:
    """Has the device an engine that takes whole maps of the table in one call, and may it here?"""
    return not x.is_cpu and not transformed() and hasattr(engine(x), "map_rows")


def traced() -> bool:
    """Is this call being recorded, so that it must show as registered operators?"""
    return is_compiling() or _dispatch_modes() > 0 or _is_tracing()


def transformed() -> bool:
    """Is a transform of torch.func or forward-mode differentiation under way?"""
    return _in_functorch() or forward_ad._current_level >= 0


def readable(t: Any) -> bool:
    """May the CPU's kernel read this, if nothing is traced? A number, a plain tensor there, or None."""
    return t is None or type(t) is float or (type(t) in PLAIN_TYPES and t.is_cpu)


def all_plain(*given: Any) -> bool:
    """May the CPU's kernel read every tensor among `given`, here and now?"""
    plain = all(readable(t) for t in given if isinstance(t, Tensor))
    return plain and not traced() and not transformed()


def recorded(t: Tensor) -> bool:
    """Should a call on tensors like this one show as an operator that stands for the CPU's kernel?"""
    return t.is_cpu and (traced() or type(t) not in PLAIN_TYPES) and not transformed() and not to_onnx()


def to_onnx() -> bool:
    """Is the call being exported to ONNX, which knows none of our operators?"""
    return torch.onnx.is_in_onnx_export()


def once(*upstream: Tensor) -> bool:
    """Are gradients wanted as plain numbers? Not with create_graph=True, which differentiates again, nor under vmap."""
    if torch.is_grad_enabled() or not bare():
        return False
    return all(type(v) is Tensor and v.is_cpu and not _is_batched(v) for v in upstream)


def bare() -> bool:
    """Is nothing under way that could see a tensor otherwise than the kernel does?"""
    return not is_compiling() and _core.idle()


def know_forward(forward: Any) -> None:
    """Tell the kernel what our modules do when they are called: one that does something else is left to torch."""
    _core.know_forward(forward)


def one_number(t: Tensor) -> float | None:
    """The number of a plain tensor on the CPU that has one, in few calls; None: look closer."""
    return None if is_compiling() else _core.tensor_number(t)


def eager(x: Tensor, radius: Any, mask: Tensor | None) -> bool:
    """all_plain() of what a projection takes, with fewer calls: the usual one has a number and no mask."""
    if type(x) not in PLAIN_TYPES or not x.is_cpu:
        return False
    return (type(radius) is float or readable(radius)) and (mask is None or readable(mask)) and bare()
