"""Switching models of transformers to sparse attention and back; what their configs remember of it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache, wraps
from typing import Any

from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask, sdpa_mask

from sparsegen._table import checks
from sparsegen.transformers.controls import CHILD, SparseControls, carriers
from sparsegen.transformers.interface import ADDITIVE, NAME, attend


def register() -> None:
    """Make ``attn_implementation="sparsegen"`` known, and let saved sparse models come back as they were.

    Importing ``sparsegen.transformers`` and calling this (or :func:`sparsify`) is what a program needs before
    ``from_pretrained`` of a sparse model: the config of one describes its maps, and they are attached as the model is
    made. Without it transformers would run softmax and not say so.

    Examples
    --------
    >>> import sparsegen.transformers, transformers
    >>> sparsegen.transformers.register()
    >>> "sparsegen" in transformers.AttentionInterface()
    True
    """
    for name, mask in ((NAME, sdpa_mask), (ADDITIVE, eager_mask)):
        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, mask)
    if not hasattr(PreTrainedModel.post_init, "_sparsegen"):
        PreTrainedModel.post_init = _then(PreTrainedModel.post_init, after=_restore)  # type: ignore[method-assign]
        PreTrainedModel.save_pretrained = _then(PreTrainedModel.save_pretrained, before=_note)  # type: ignore[method-assign]


def _then(method: Any, before: Any = None, after: Any = None) -> Any:
    """A method of models with something done before or after it."""

    @wraps(method)
    def both(self: Any, *args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(self)
        result = method(self, *args, **kwargs)
        if after is not None:
            after(self)
        return result

    both._sparsegen = True  # type: ignore[attr-defined]
    return both


@cache
def _dispatches(kind: type) -> bool:
    """Does a module call the attention that its config names? Only its source says so."""
    try:
        return "attention_interface(" in inspect.getsource(kind.forward)  # type: ignore[attr-defined]
    except (OSError, TypeError, AttributeError):
        return False


def attention_modules(model: nn.Module) -> tuple[dict[str, nn.Module], list[str]]:
    """The attention modules of a model that can be switched, by name, and the names of those that cannot.

    Parameters
    ----------
    model : nn.Module

    Returns
    -------
    dict
        Modules that call the attention their config names.
    list of str
        Modules with attention of their own: they keep softmax whatever the config says.

    Examples
    --------
    >>> import transformers
    >>> from sparsegen.transformers import attention_modules
    >>> config = transformers.BloomConfig(vocab_size=8, hidden_size=8, n_layer=1, n_head=2)
    >>> attention_modules(transformers.BloomModel(config))
    ({}, ['h.0.self_attention'])
    """
    named = dict(model.named_modules())
    found = {name: module for name, module in named.items() if _dispatches(type(module))}  # type: ignore[arg-type]
    looks = {n: m for n, m in named.items() if "Attention" in type(m).__name__ and not isinstance(m, PreTrainedModel)}
    near = [*found, *looks]

    def alone(name: str) -> bool:  # no part of another, and no other is a part of it
        inside = any(other != name and other.startswith(name + ".") for other in near)
        return not inside and not any(name == other or name.startswith(other + ".") for other in found)

    return found, [name for name in looks if alone(name)]


def sparsify(
    model: PreTrainedModel, mapping: str = "sparsegen_softmax", *, only: str = "*", learnable: bool = False,
    **controls: Any,
) -> list[str]:  # fmt: skip
    """Switch the attention of a model to a sparse map.

    The model keeps its weights. Its config remembers the maps: ``save_pretrained`` writes them, and ``from_pretrained``
    attaches them again once :func:`register` was called.

    Parameters
    ----------
    model : PreTrainedModel
    mapping : str
        A name of the table of maps. ``"sparsegen_softmax"`` begins at softmax (lam = 0): its weights differ from
        softmax's by at most lam in total variation.
    only : str
        A pattern of module names; the others keep what they have. They must be switched by a call of their own before
        the model runs.
    learnable : bool
        Is the control of the map trained, one for each head?
    **controls
        ``lam``, ``q``, ``temperature`` or ``alpha``: a number, one for each head, or a dict from patterns of module
        names to either; the first that fits counts, and ``"*"`` is the rest.

    Returns
    -------
    list of str
        The modules that were switched.

    Examples
    --------
    >>> import transformers
    >>> from sparsegen.transformers import sparsify
    >>> config = transformers.GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2)
    >>> model = transformers.GPT2LMHeadModel(config)
    >>> sparsify(model, "sparsegen_lin", lam={"*.h.0.*": -2.0, "*.h.1.*": [0.0, 0.5]})
    ['transformer.h.0.attn', 'transformer.h.1.attn']
    >>> model.config.sparsegen["modules"]["transformer.h.1.attn"]
    {'mapping': 'sparsegen_lin', 'learnable': False, 'lam': [0.0, 0.5]}
    """
    if not isinstance(model, PreTrainedModel):
        checks.fail(TypeError, "model", "a PreTrainedModel of transformers", type(model).__name__)
    register()
    found, deaf = attention_modules(model)
    chosen = {name: module for name, module in found.items() if fnmatchcase(name, only)}
    if found and not chosen:
        checks.fail(ValueError, "only", f"a pattern of some of {_listed(found)}", repr(only))
    if not chosen:
        what = f"attention of its own in {', '.join(deaf[:4])}" if deaf else "none"
        checks.fail(ValueError, "model", "one whose attention can be switched by its config", what)
    if deaf:
        warnings.warn(
            f"sparsegen: these modules have attention of their own and keep softmax: {', '.join(deaf)}.", stacklevel=2
        )
    _check_patterns(controls, chosen)
    made = {name: _made(name, module, mapping, learnable, controls) for name, module in chosen.items()}
    before = getattr(model.config, NAME, None) or {"before": model.config._attn_implementation}
    for name, module in chosen.items():
        module.add_module(CHILD, made[name].to(next(module.parameters()).device))
    model.config.sparsegen = {**before, "modules": {}}
    _note(model)
    _use(model)
    return list(chosen)


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name + ".", pattern)


def _listed(names: Iterable[str]) -> str:
    """The first few names, to be copied from a message."""
    first = list(names)
    return ", ".join(first[:3]) + (f" and {len(first) - 3} more" if len(first) > 3 else "")


def _check_patterns(controls: dict[str, Any], names: Iterable[str]) -> None:
    """Every pattern of a control names a module, and every module is named."""
    for control, given in controls.items():
        if not isinstance(given, Mapping):
            continue
        for pattern in given:
            if not any(_fits(name, pattern) for name in names):
                checks.fail(ValueError, control, f"a dict of patterns of some of {_listed(names)}", repr(pattern))
        for name in names:
            if not any(_fits(name, pattern) for pattern in given):
                condition = 'a dict that has a pattern for every module ("*" is the rest)'
                checks.fail(ValueError, control, condition, f"none for {name}")


def _made(name: str, module: nn.Module, mapping: str, learnable: bool, controls: dict[str, Any]) -> SparseControls:
    def of_module(given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return next(value for pattern, value in given.items() if _fits(name, pattern))

    return SparseControls(_heads(module), mapping, learnable, **{k: of_module(v) for k, v in controls.items()})


_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")


def _heads(module: nn.Module) -> int:
    for owner in (module, getattr(module, "config", None)):
        for name in _HEADS:
            if isinstance(getattr(owner, name, None), int):
                return getattr(owner, name)
    checks.fail(ValueError, type(module).__name__, f"a module that tells its heads as one of {_HEADS}", "none of them")


def _use(model: PreTrainedModel) -> None:
    """Name the implementation in the config of the model and of its parts, which may have copies of their own."""
    name = NAME if getattr(model, "_supports_sdpa", True) else ADDITIVE
    model.set_attn_implementation(name)
    for module in attention_modules(model)[0].values():
        config = getattr(module, "config", None)
        if config is not None and CHILD in module._modules:
            config._attn_implementation_internal = name


def _note(model: PreTrainedModel) -> None:
    """Write what the modules carry, as it is now, into the config."""
    found = carriers(model)
    if found and getattr(model.config, NAME, None):
        model.config.sparsegen["modules"] = {name: carrier.description() for name, carrier in found.items()}


def _restore(model: PreTrainedModel) -> None:
    """Attach what the config of a model that was just made tells. Parts of a model come first and know other names."""
    noted = getattr(model.config, NAME, None)
    if not isinstance(noted, dict):
        return
    found = attention_modules(model)[0]
    for name, told in noted.get("modules", {}).items():
        module = found.get(name) or _by_suffix(name, found)
        if module is not None:
            module.add_module(CHILD, SparseControls(_heads(module), **told))
    if carriers(model):
        _use(model)


def _by_suffix(name: str, found: dict[str, nn.Module]) -> nn.Module | None:
    """A model with a head calls the modules of the one without it by a longer name."""
    alike = [m for other, m in found.items() if other.endswith("." + name) or name.endswith("." + other)]
    return alike[0] if len(alike) == 1 else None


def unsparsify(model: PreTrainedModel) -> list[str]:
    """Give a model its softmax back, and forget the maps.

    Parameters
    ----------
    model : PreTrainedModel
        As :func:`sparsify` left it.

    Returns
    -------
    list of str
        The modules that were switched back.

    Examples
    --------
    >>> import transformers
    >>> from sparsegen.transformers import sparsify, unsparsify
    >>> model = transformers.GPT2Model(transformers.GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2))
    >>> sparsify(model, "sparsemax"), unsparsify(model)
    (['h.0.attn'], ['h.0.attn'])
    """
    found = carriers(model)
    before = (getattr(model.config, NAME, None) or {}).get("before") or "eager"
    for name in found:
        module = model.get_submodule(name)
        delattr(module, CHILD)
        config = getattr(module, "config", None)
        if config is not None:
            config._attn_implementation_internal = before
    model.set_attn_implementation(before)
    if hasattr(model.config, NAME):
        delattr(model.config, NAME)
    return list(found)
