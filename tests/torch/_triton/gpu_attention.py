"""What the tests of attention on GPUs share: samples, both ways through a call, and the launches alone."""

import math

import torch

import sparsegen.torch as sgt
from sparsegen._table.maps import MAPS
from sparsegen.torch import _triton
from sparsegen.torch._triton import attention_launch as attention

INF = math.inf


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sample(heads, shared, lq, lk, d, dv, dtype=torch.float32):
    return [
        draw(1, h, n, e, seed=i).to(dtype)
        for i, (h, n, e) in enumerate([(heads, lq, d), (shared, lk, d), (shared, lk, dv)])
    ]


def masked(kind, heads, lq, lk):
    if kind == "bool":
        mask = draw(lq, lk, seed=5) > 0
        mask[3], mask[:, :16] = False, False
        return mask
    if kind == "keys":
        return draw(1, 1, 1, lk, seed=5) > 0
    if kind == "bias":
        bias = draw(heads, 1, lk, seed=5)
        bias[..., 5] = -INF
        return bias
    return None


def both(gpu, tensors, mask, causal, scale, mapping, controls, wants=True):
    """Output and gradients on the GPU's way and, in float64, on the CPU's; and the size of the scores."""
    found = []
    for device, dtype in ((gpu, None), ("cpu", torch.float64)):
        given = [t.to(device, dtype or t.dtype).clone().requires_grad_(wants) for t in tensors]
        values = {key: c.to(device).clone().requires_grad_(wants) for key, c in controls.items()}
        m = mask if mask is None or mask.dtype == torch.bool else mask.to(dtype or torch.float32)
        out = sgt.sparse_attention(*given, None if m is None else m.to(device), 0.0, causal, mapping=mapping,
                                   scale=scale, enable_gqa=True, **values)  # fmt: skip
        upstream = draw(*out.shape, seed=9).to(out)
        grads = torch.autograd.grad(out, [*given, *values.values()], upstream) if wants else []
        found.append([out.detach().cpu().double(), *(g.cpu().double() for g in grads)])
    return found


CASES = [  # query heads, shared heads, queries, keys, sizes, causal, mask, scale
    (2, 1, 20, 40, 16, 12, False, None, None),
    (1, 1, 33, 33, 16, 16, True, None, None),
    (1, 1, 20, 40, 20, 16, True, None, 0.05),
    (1, 1, 20, 40, 16, 16, False, "bool", -1.0),
    (2, 2, 18, 40, 16, 16, False, "bias", None),
    (1, 1, 18, 40, 16, 16, False, "keys", None),
    (1, 1, 1, 100, 16, 16, False, None, 0.02),
]


def size_of_scores(tensors, scale):
    """What rounding of the scores is measured by."""
    q, k = tensors[:2]
    return 1 + float(q.norm(dim=-1).max() * k.norm(dim=-1).max()) * abs(scale or 1 / math.sqrt(q.shape[-1]))


def forward(gpu, q, k, v, control, mapping="sparsemax", mask=None, scale=1.0):
    """Output and what is kept for the way back, by the launches themselves."""
    given = _triton.Setting(False, scale, 1.0, 0.0).given(MAPS[mapping], mask, None)
    control = torch.as_tensor(control, dtype=torch.float64, device=gpu)
    return attention.forward(q.to(gpu), k.to(gpu), v.to(gpu), control, given)
