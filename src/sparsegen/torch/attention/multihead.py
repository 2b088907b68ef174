"""Multi-head attention with exact zeros, in the place of torch's own."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsegen._table import checks
from sparsegen._table.controls import control_number
from sparsegen.torch import modules
from sparsegen.torch._mapping import Mapping, as_kept, as_value, take_control
from sparsegen.torch.attention import multihead_inputs as inputs
from sparsegen.torch.attention.functional import sparse_attention
from sparsegen.torch.attention.probes import Probed

PARAMETERS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias", "bias_k", "bias_v")


class _Inputs(NamedTuple):
    """Queries, keys and values as (batch, heads, length, features of a head), and who may attend to what."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None  # as sparse_attention takes it: True = may attend, or numbers to add


class MultiheadAttention(Probed):
    """:class:`torch.nn.MultiheadAttention` with a map of this library in the place of softmax.

    Arguments, parameters, initial values, masks and results are torch's, so weights trained there load here. A query
    that may attend to nothing gets weights of 0 where torch gives NaN.

    In torch's transformer layers it is called in every mode: their fast path for inference, which knows only softmax,
    is never taken. Hide keys by boolean masks or -inf: large negative numbers are scores like others to the maps that
    are not translation invariant.

    Parameters
    ----------
    embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        As torch's.
    mapping : str or module
        A name of the table of maps, or a mapping module with ``dim=-1``.
    lam, q, temperature, alpha : number, sequence or Tensor, optional
        The control of a map given by name: one number, or one for each head.
    learnable : bool
        Makes one control for each head a parameter.

    Examples
    --------
    >>> import torch, sparsegen.torch as sgt
    >>> _ = torch.manual_seed(0)
    >>> attention = sgt.MultiheadAttention(8, 2, batch_first=True, mapping="sparsegen_lin", lam=[-99.0, 0.999])
    >>> x = torch.randn(1, 4, 8)
    >>> output, weights = attention(x, x, x, average_attn_weights=False)
    >>> output.shape, weights.shape
    (torch.Size([1, 4, 8]), torch.Size([1, 2, 4, 4]))
    >>> (weights > 0).sum(-1)  # keys used: (batch, heads, queries)
    tensor([[[4, 4, 4, 4],
             [1, 1, 1, 1]]])
    >>> layer = torch.nn.TransformerEncoderLayer(8, nhead=2, batch_first=True)
    >>> layer.self_attn = attention
    >>> layer.eval()(x).shape
    torch.Size([1, 4, 8])
    """

    # Torch's transformer layers read this to see whether they may skip forward and compute softmax attention fused.
    _qkv_same_embed_dim = False

    in_proj_weight: Tensor | None
    q_proj_weight: Tensor
    k_proj_weight: Tensor
    v_proj_weight: Tensor
    in_proj_bias: Tensor | None
    bias_k: Tensor | None
    bias_v: Tensor | None
    mapping: Any  # a name, or a mapping module

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
        add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
        device: Any = None, dtype: torch.dtype | None = None, *, mapping: Any = "sparsemax", lam: Any = None,
        q: Any = None, temperature: Any = None, alpha: Any = None, learnable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        inputs.check_sizes(embed_dim, num_heads)
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn
        self._add_parameters(bias, add_bias_kv, {"device": device, "dtype": dtype})
        self._reset_parameters()
        given = {"lam": lam, "q": q, "temperature": temperature, "alpha": alpha}
        self._set_mapping(mapping, given, learnable, device, dtype)

    def _add_parameters(self, bias: bool, add_bias_kv: bool, factory: dict[str, Any]) -> None:
        """Torch's names and shapes; None for those the options leave out."""
        e, together = self.embed_dim, self.kdim == self.vdim == self.embed_dim
        shapes: dict[str, tuple[int, ...] | None] = {
            "in_proj_weight": (3 * e, e) if together else None,
            "q_proj_weight": None if together else (e, e),
            "k_proj_weight": None if together else (e, self.kdim),
            "v_proj_weight": None if together else (e, self.vdim),
            "in_proj_bias": (3 * e,) if bias else None,
            "bias_k": (1, 1, e) if add_bias_kv else None,
            "bias_v": (1, 1, e) if add_bias_kv else None,
        }
        for name in PARAMETERS:
            shape = shapes[name]
            self.register_parameter(name, None if shape is None else nn.Parameter(torch.empty(shape, **factory)))
        self.out_proj = nn.Linear(e, e, bias=bias, **factory)

    def _reset_parameters(self) -> None:
        """Torch's distributions in torch's order: the same seed gives the same numbers."""
        for name in PARAMETERS:
            parameter = getattr(self, name)
            if parameter is None:
                continue
            if name == "in_proj_bias":
                nn.init.zeros_(parameter)
                nn.init.zeros_(self.out_proj.bias)
            elif name.endswith("weight"):
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.xavier_normal_(parameter)

    def _set_mapping(
        self, mapping: Any, given: dict[str, Any], learnable: bool, device: Any, dtype: torch.dtype | None
    ) -> None:
        given = {name: value for name, value in given.items() if value is not None}
        self.mapping = mapping
        self.controls: dict[str, Any] = {}  # numbers, by the name of the control; the first is saved with the state
        if isinstance(mapping, nn.Module):
            inputs.check_module(mapping, given, learnable)
            return
        values: dict[str, Any] = {name: inputs.column(name, value, self.num_heads) for name, value in given.items()}
        each = learnable or any(value.dim() > 0 for value in values.values())
        made: Any = modules.make_map(mapping, **values, learnable=learnable, shape=(self.num_heads, 1) if each else ())
        if each:
            self.mapping = made.to(device=torch.get_default_device() if device is None else device, dtype=dtype)
        elif made.given is not None:  # a number needs no module: it follows every dtype and device
            self.controls = {name: getattr(made, name) for name in made.control_names()}
            self.controls[made.control_name] = as_value(made.control_name, made.given.item())

    @property
    def lam(self) -> Any:
        """The control lam as it is now, for maps that have it; it may be set."""
        return self._control("lam")

    @lam.setter
    def lam(self, value: Any) -> None:
        self._set_control("lam", value)

    @property
    def q(self) -> Any:
        """The control q as it is now, for maps that have it; it may be set."""
        return self._control("q")

    @q.setter
    def q(self, value: Any) -> None:
        self._set_control("q", value)

    @property
    def temperature(self) -> Any:
        """The temperature as it is now, for maps that have it; it may be set."""
        return self._control("temperature")

    @temperature.setter
    def temperature(self, value: Any) -> None:
        self._set_control("temperature", value)

    @property
    def alpha(self) -> Any:
        """The control alpha as it is now, for maps that have it; it may be set."""
        return self._control("alpha")

    @alpha.setter
    def alpha(self, value: Any) -> None:
        self._set_control("alpha", value)

    def _has(self, name: str) -> None:
        own = self.mapping.control_names() if isinstance(self.mapping, Mapping) else self.controls
        if name not in own:
            raise AttributeError(f"the map of this attention has no {name}")

    def _control(self, name: str) -> Any:
        self._has(name)
        return getattr(self.mapping, name) if isinstance(self.mapping, Mapping) else self.controls[name]

    def _set_control(self, name: str, value: Any) -> None:
        self._has(name)
        if isinstance(self.mapping, Mapping):
            setattr(self.mapping, name, value)
        else:
            self.controls[name] = control_number(name, value)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Save a control that is a number as a mapping module would save it."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, value in list(self.controls.items())[:1]:
            positive = torch.tensor(as_kept(name, value), dtype=torch.float64, device="cpu")
            destination[f"{prefix}mapping.control"] = positive

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load. A fixed control that the state does not speak of, as torch's does not, is what it was made with."""
        self._load_control(state_dict, f"{prefix}mapping.")
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _load_control(self, state_dict: dict[str, Any], prefix: str) -> None:
        if isinstance(self.mapping, nn.Module):
            fixed = None if self.mapping.learnable else self.mapping.given
            if fixed is not None and f"{prefix}theta" not in state_dict:
                state_dict.setdefault(f"{prefix}control", fixed)
            return
        positive = take_control(state_dict, prefix) if self.controls else None
        if positive is None:
            return
        name = next(iter(self.controls))
        value = as_value(name, positive.detach().double().cpu())
        if value.numel() == 1 or bool((value == value.flatten()[0]).all()):
            self.controls[name] = value.flatten()[0].item()
        else:  # a control for each head, which a module takes
            given = {**self.controls, name: value}
            self._set_mapping(self.mapping, given, False, self.out_proj.weight.device, None)
            state_dict[f"{prefix}control"] = positive

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Attend. Arguments and results are those of :class:`torch.nn.MultiheadAttention`: True in a mask hides."""
        if query.is_nested or key.is_nested or value.is_nested:
            inputs.check_nested(query, key, value, key_padding_mask, attn_mask)
            return self._forward_nested(query, need_weights, average_attn_weights)
        if is_causal and attn_mask is None:
            checks.fail(ValueError, "attn_mask", "given with is_causal, which is a hint about it", None)
        batched = query.dim() == 3
        q, k, v = self._batch_first(query, key, value)
        attn_mask, padding = inputs.check_masks(attn_mask, key_padding_mask, q, k, self.num_heads, batched)
        x = self._project(q, k, v, attn_mask, padding)
        # The hint is taken where it saves the mask. Beside keys of the module's own it would hide those as well.
        square = q.shape[1] == k.shape[1] == x.k.shape[2]
        causal = is_causal and square and key_padding_mask is None and not need_weights
        output, weights = self._attend(x, causal, need_weights, average_attn_weights)
        if not batched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

    def _batch_first(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The inputs as (batch, length, features), checked; one tensor given several times stays one."""
        inputs.check_axes(query, key, value)
        q = self._lay(query)
        k = q if key is query else self._lay(key)
        v = k if value is key else self._lay(value)
        inputs.check_shapes(q, k, v, (self.embed_dim, self.kdim, self.vdim))
        return q, k, v

    def _lay(self, x: Tensor) -> Tensor:
        if x.dim() == 2:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _project(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, padding: Tensor | None
    ) -> _Inputs:
        q, k, v = self._in_proj(query, key, value)
        mask = inputs.merge(attn_mask, padding, q.dtype)
        batch, extra = q.shape[0], []
        if self.bias_k is not None and self.bias_v is not None:
            extra.append((self.bias_k, self.bias_v))
        if self.add_zero_attn:
            zero = k.new_zeros(1, 1, self.embed_dim)
            extra.append((zero, zero))
        for more_k, more_v in extra:
            k = torch.cat((k, more_k.to(k.dtype).expand(batch, 1, -1)), dim=1)
            v = torch.cat((v, more_v.to(v.dtype).expand(batch, 1, -1)), dim=1)
        if mask is not None and extra:  # every query may attend to the keys added
            mask = F.pad(mask, (0, len(extra)), value=1.0 if mask.dtype == torch.bool else 0.0)
        return _Inputs(self._heads(q), self._heads(k), self._heads(v), mask)

    def _in_proj(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        bias = self.in_proj_bias
        if self.in_proj_weight is None:
            weights: tuple[Tensor, ...] = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        elif query is key and key is value:
            q, k, v = F.linear(query, self.in_proj_weight, bias).chunk(3, dim=-1)
            return q, k, v
        else:
            weights = self.in_proj_weight.chunk(3)
        biases = (None, None, None) if bias is None else bias.chunk(3)
        q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))
        return q, k, v

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _attend(self, x: _Inputs, causal: bool, need_weights: bool, average: bool) -> tuple[Tensor, Tensor | None]:
        if self._probes:
            self._show(x)
        result = sparse_attention(
            x.q, x.k, x.v, mapping=self.mapping, attn_mask=None if causal else x.mask, is_causal=causal,
            dropout_p=self.dropout if self.training else 0.0, return_weights=need_weights, **self.controls,
        )  # fmt: skip
        output, weights = result if isinstance(result, tuple) else (result, None)
        if weights is not None and average:
            weights = weights.mean(dim=1)
        return self.out_proj(output.transpose(1, 2).flatten(2)), weights

    def _show(self, x: _Inputs) -> None:
        """Show the probes the weights before dropout: by a call of its own, so that the model's stays as it is."""
        with torch.no_grad():
            _, weights = sparse_attention(
                x.q, x.k, x.v, mapping=self.mapping, attn_mask=x.mask, return_weights=True, **self.controls
            )
            mask = x.mask if x.mask is None or x.mask.dtype == torch.bool else x.mask != -math.inf
            self._observe(weights, mask)

    def _forward_nested(self, x: Tensor, need_weights: bool, average: bool) -> tuple[Tensor, Tensor | None]:
        """Self-attention of sequences packed by torch's transformer encoder; weights come padded with 0."""
        lengths = [part.shape[0] for part in x.unbind()]
        if any(lengths):
            padded = x.to_padded_tensor(0.0)
        else:  # nothing to pad, which torch refuses to do
            padded = torch.empty(len(lengths), 0, self.embed_dim, dtype=x.dtype, device=x.device)
        there = torch.arange(padded.shape[1], device=x.device) < torch.tensor(lengths, device=x.device)[:, None]
        hidden = ~(there[:, None, :, None] & there[:, None, None, :])  # queries that are not there attend to nothing
        parts = self._project(padded, padded, padded, hidden, None)
        output, weights = self._attend(parts, False, need_weights, average)
        rows = [row[:n] for row, n in zip(output, lengths)]
        return torch.nested.as_nested_tensor(rows, dtype=output.dtype, device=x.device), weights

    def extra_repr(self) -> str:
        """Show the arguments."""
        shown = "" if isinstance(self.mapping, nn.Module) else f", mapping={self.mapping!r}"
        numbers = "".join(f", {name}={value:.4g}" for name, value in self.controls.items())
        return f"{self.embed_dim}, num_heads={self.num_heads}, batch_first={self.batch_first}{shown}{numbers}"

    @classmethod
    def from_torch(
        cls, module: nn.MultiheadAttention, *, mapping: Any = "sparsemax", lam: Any = None, q: Any = None,
        temperature: Any = None, alpha: Any = None, learnable: bool = False,
    ) -> MultiheadAttention:  # fmt: skip
        """The attention of a torch module: its options, and its parameters themselves, not copies.

        Parameters
        ----------
        module : torch.nn.MultiheadAttention
        mapping, lam, q, temperature, alpha, learnable
            As for the class.

        Returns
        -------
        attention : MultiheadAttention

        Examples
        --------
        >>> import torch, sparsegen.torch as sgt
        >>> theirs = torch.nn.MultiheadAttention(8, 2)
        >>> ours = sgt.MultiheadAttention.from_torch(theirs, mapping="sparsehourglass", q=1.0)
        >>> ours
        MultiheadAttention(
          8, num_heads=2, batch_first=False, mapping='sparsehourglass', q=1
          (out_proj): NonDynamicallyQuantizableLinear(in_features=8, out_features=8, bias=True)
        )
        >>> ours.in_proj_weight is theirs.in_proj_weight
        True
        """
        m, weight = module, module.out_proj.weight
        # On the meta device, where initial values cost neither memory nor random numbers.
        new = cls(
            m.embed_dim, m.num_heads, m.dropout, m.in_proj_bias is not None, m.bias_k is not None, m.add_zero_attn,
            m.kdim, m.vdim, m.batch_first, device="meta",
        )  # fmt: skip
        for name in PARAMETERS:
            setattr(new, name, getattr(m, name))
        new.out_proj = m.out_proj
        given = {"lam": lam, "q": q, "temperature": temperature, "alpha": alpha}
        new._set_mapping(mapping, given, learnable, weight.device, weight.dtype)
        return new.train(m.training)


def replace_attention(
    model: nn.Module, mapping: Any = "sparsemax", *, lam: Any = None, q: Any = None, temperature: Any = None,
    alpha: Any = None, learnable: bool = False,
) -> int:  # fmt: skip
    """Put :class:`MultiheadAttention` in the place of each torch.nn.MultiheadAttention in a model; return how many.

    The parameters stay the same objects, so optimisers made before still hold them; controls that are learnable are
    new. Subclasses of torch's attention are left alone: they compute in their own way. If one cannot be replaced, none
    is. A model without any is left as it is, with a warning.

    Parameters
    ----------
    model : nn.Module
        Changed in place.
    mapping : str or module
        A name of the table of maps, or a mapping module, which is copied for each.
    lam, q, temperature, alpha, learnable
        As for :class:`MultiheadAttention`.

    Returns
    -------
    replaced : int

    Examples
    --------
    >>> import torch, sparsegen.torch as sgt
    >>> layer = torch.nn.TransformerDecoderLayer(8, nhead=2)
    >>> sgt.replace_attention(layer, "sparsegen_lin", lam=0.5)
    2
    """
    if not isinstance(model, nn.Module):
        checks.fail(TypeError, "model", "a torch.nn.Module", type(model).__name__)
    if type(model) is nn.MultiheadAttention:
        condition = "a module with attention inside it (MultiheadAttention.from_torch takes one by itself)"
        checks.fail(ValueError, "model", condition, "a torch.nn.MultiheadAttention")
    controls: dict[str, Any] = {"lam": lam, "q": q, "temperature": temperature, "alpha": alpha, "learnable": learnable}
    old = {id(m): m for m in model.modules() if type(m) is nn.MultiheadAttention}
    if not old:
        text = f"sparsegen: {type(model).__name__} has no torch.nn.MultiheadAttention in it, so nothing is replaced. "
        text += "Models of transformers: sparsegen.transformers.sparsify; your own attention: sgt.sparse_attention."
        warnings.warn(text, UserWarning, stacklevel=2)
    # Copies of a learnable mapping must not share what it learns.
    new = {i: MultiheadAttention.from_torch(m, mapping=copy.deepcopy(mapping), **controls) for i, m in old.items()}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if id(child) in new:
                parent._modules[name] = new[id(child)]
    return len(new)
