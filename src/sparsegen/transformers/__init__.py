"""Sparse attention for models of Hugging Face transformers: any softmax model made sparse in one line.

>>> import torch, transformers
>>> from sparsegen.transformers import sparsify
>>> config = transformers.LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
...                                   num_attention_heads=2)
>>> model = transformers.LlamaForCausalLM(config).eval()
>>> sparsify(model, "sparsegen_softmax", lam=0.05)
['model.layers.0.self_attn']
>>> model(torch.arange(5)[None]).logits.shape
torch.Size([1, 5, 32])
"""

from sparsegen._table.extras import front_end as _front_end

with _front_end("transformers"):
    import transformers as _transformers  # noqa: F401

from sparsegen.transformers.calibration import calibrate
from sparsegen.transformers.controls import SparseControls
from sparsegen.transformers.interface import attend
from sparsegen.transformers.switch import attention_modules, register, sparsify, unsparsify

__all__ = ["SparseControls", "attend", "attention_modules", "calibrate", "register", "sparsify", "unsparsify"]
