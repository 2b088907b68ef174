"""
Attention with few keys
=======================

The same queries and keys under four maps. Framed cells are not zero.
"""

import matplotlib.pyplot as plt
import torch

import sparsegen.torch as sgt

torch.manual_seed(3)
places = torch.arange(12.0)
near = torch.exp(-((places[:, None] - places[None]) ** 2) / 8)  # words resemble their neighbours
q = k = torch.linalg.cholesky(near + 0.01 * torch.eye(12)) * 2.2
maps = {
    "softmax": {},
    "sparsegen_softmax": {"lam": 0.1},
    "entmax15": {},
    "sparsegen_lin": {"lam": 0.5},
}

fig, axes = plt.subplots(1, 4, figsize=(12, 3.5), sharey=True, layout="constrained")
for ax, (name, control) in zip(axes, maps.items()):
    _, w = sgt.sparse_attention(q, k, torch.eye(12), mapping=name, scale=1.0, return_weights=True, **control)
    ax.imshow(w.numpy(), cmap="Blues", vmin=0, vmax=0.6)
    for i, j in (w > 0).nonzero().tolist():
        ax.add_patch(plt.Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=0.7))
    ax.set(title=f"{name}: {100 * (w == 0).float().mean():.0f} % zeros", xlabel="key", xticks=[], yticks=[])
axes[0].set_ylabel("query")
plt.show()
