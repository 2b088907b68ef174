"""The attention function that transformers calls, and the masks it asks for.

Models hand over queries, keys and values as (batch, heads, length, features), a boolean mask (True may attend) or one
of numbers, and what their family adds: a bias by position, a cap on the scores, sinks.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsegen._table import checks
from sparsegen.torch import make_map, sparse_attention
from sparsegen.torch.attention import plain
from sparsegen.transformers.controls import CHILD, SparseControls

NAME = "sparsegen"
ADDITIVE = "sparsegen_additive"  # for the few models that add the mask to something themselves


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, is_causal: bool | None = None, position_bias: Tensor | None = None,
    softcap: float | None = None, s_aux: Tensor | None = None, **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Sparse attention as an ``attn_implementation``; what the model asks for its own softmax, by the module's map.

    Parameters
    ----------
    module : nn.Module
        The attention module; a :class:`SparseControls` hangs on it.
    query, key, value : Tensor
        (batch, heads, length, features), with fewer heads of keys and values where they are shared.
    attention_mask : Tensor, optional
        Boolean or additive. A query that sees nothing gets zeros.
    dropout, scaling, is_causal, position_bias, softcap, s_aux
        As transformers hands them over.
    **kwargs
        What other implementations want; ``output_attentions`` is read.

    Returns
    -------
    Tensor
        (batch, length, heads, features).
    Tensor or None
        The weights, if anyone will look at them.
    """
    carrier = module._modules.get(CHILD)
    if not isinstance(carrier, SparseControls):
        checks.fail(ValueError, type(module).__name__, "a module that sparsify() has switched", "one without its map")
    dtype = value.dtype
    if not query.dtype == key.dtype == dtype:  # rotary embeddings under autocast: queries and keys are wide
        wide = torch.promote_types(torch.promote_types(query.dtype, key.dtype), dtype)
        query, key, value = query.to(wide), key.to(wide), value.to(wide)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    mask, causal = _mask(module, query, key, attention_mask, is_causal, position_bias)
    if s_aux is not None:
        query, key, value, mask = _with_sink(query, key, value, mask, causal, s_aux, scale)
        causal = False
    seen = _is_wanted(kwargs) or bool(carrier._probes)
    call = (query, key, value, mask, causal, scale, softcap)
    if carrier.watch is not None:
        carrier.watch(*call)
    out, weights = run(carrier, *call, dropout, seen)
    if carrier._probes and weights is not None:
        shown = weights if not dropout else run(carrier, *map(_detached, call), 0.0, True)[1]  # type: ignore[call-arg]
        carrier._observe(shown, open_keys(mask, causal, weights))  # type: ignore[arg-type]
    if weights is not None and s_aux is not None:
        weights = weights[..., :-1]
    return out.to(dtype).transpose(1, 2).contiguous(), weights


def _detached(t: Any) -> Any:
    return t.detach() if isinstance(t, Tensor) else t


def _is_wanted(kwargs: dict[str, Any]) -> bool:
    """Will the caller look at the weights? Transformers does not always say so: it also collects by hooks."""
    if kwargs.get("output_attentions"):
        return True
    from transformers.utils import output_capturing

    collected = output_capturing._active_collector.get()
    return bool(collected) and any("attentions" in key for key in collected)


def _mask(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool | None, bias: Tensor | None
) -> tuple[Tensor | None, bool]:
    """The one mask of a call, and whether the triangle stands for it."""
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    causal = bool(query.shape[2] > 1 and mask is None and causal)
    if mask is not None and mask.shape[-1] > key.shape[-2]:  # masks may be longer than the cache
        mask = mask[..., : key.shape[-2]]
    if mask is not None and mask.dtype != torch.bool:
        # Transformers hides by the lowest number, which is a score like others to some maps.
        mask = mask.masked_fill(mask <= torch.finfo(mask.dtype).min / 2, -math.inf)
    if bias is None:
        return mask, causal
    open_to = plain.allowed(causal, mask, query, key.shape[-2])
    if open_to is None:
        return bias, False
    shifted = torch.where(open_to, bias, -math.inf) if open_to.dtype == torch.bool else bias + open_to
    return shifted, False


def _with_sink(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, sinks: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """One key more, whose score is that of each head's sink and whose value is 0, by one more feature."""
    own = (sinks / scale).to(q.dtype).reshape(1, -1, 1, 1).expand(*q.shape[:-1], 1)
    key = F.pad(k.new_zeros(*k.shape[:2], 1, k.shape[3]), (0, 1), value=1.0)
    mask = plain.allowed(causal, mask, q, k.shape[-2])
    if mask is not None:
        mask = F.pad(mask, (0, 1), value=True if mask.dtype == torch.bool else 0.0)
    return torch.cat((q, own), -1), torch.cat((F.pad(k, (0, 1)), key), -2), F.pad(v, (0, 0, 0, 1)), mask


def run(
    carrier: SparseControls, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float,
    softcap: float | None, dropout: float, seen: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Output, and the weights if they are to be seen."""
    group = q.shape[1] // k.shape[1]
    if softcap is not None:
        return _capped(
            carrier, q, plain.repeat(k, group), plain.repeat(v, group), mask, causal, scale, softcap, dropout
        )
    found = sparse_attention(
        q, k, v, mask, dropout, causal, mapping=carrier.mapping, scale=scale, enable_gqa=group > 1,
        return_weights=seen, **carrier.arguments(q),
    )  # fmt: skip
    return found if seen else (found, None)  # type: ignore[return-value]


def _capped(
    carrier: SparseControls, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float,
    softcap: float, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same of scores through tanh, which no fused kernel knows."""
    z = softcap * torch.tanh(plain.scores(q.float(), k.float(), None, scale / softcap))
    mask = plain.allowed(causal, mask, q, k.shape[-2])
    if mask is not None and mask.dtype != torch.bool:
        z, mask = z + mask, None
    mapping = carrier.mapping
    module = make_map(mapping, **carrier.arguments(q)) if isinstance(mapping, str) else mapping
    weights = module(z, mask)
    kept = F.dropout(weights, dropout) if dropout else weights
    return (kept @ v.float()).to(q.dtype), weights.to(q.dtype)


def open_keys(mask: Tensor | None, causal: bool, weights: Tensor) -> Tensor | None:
    """Where the probes may look."""
    mask = plain.allowed(causal, mask, weights, weights.shape[-1])
    if mask is None:
        return None
    return (mask if mask.dtype == torch.bool else mask != -math.inf).expand(weights.shape)
