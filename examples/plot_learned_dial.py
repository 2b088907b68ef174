"""
A dial that learns
==================

Each sequence has a marked word whose value is the answer. A layer that pools with attention learns where to look, and
its dial learns to look nowhere else.
"""

import matplotlib.pyplot as plt
import torch

import sparsegen.torch as sgt

torch.manual_seed(0)
words = torch.randn(512, 20, 8)
marked = torch.randint(20, (512,))
words[..., 0] = 0.3 * words[..., 0]
words[torch.arange(512), marked, 0] += 1.5
answer = words[torch.arange(512), marked, 1]

score = torch.nn.Linear(8, 1)
attend = sgt.Sparsegen(lam=-2.0, learnable=True)
optimizer = torch.optim.Adam([*score.parameters(), *attend.parameters()], lr=0.02)
loss_seen, lam_seen, size_seen = [], [], []
for _ in range(200):
    weights = attend(score(words).squeeze(-1))
    loss = ((weights * words[..., 1]).sum(-1) - answer).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss_seen.append(loss.item())
    lam_seen.append(attend.lam.item())
    size_seen.append((weights > 0).sum(-1).float().mean().item())

fig, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
for ax, values, name in zip(axes, (loss_seen, lam_seen, size_seen), ("loss", "lam", "words looked at, mean")):
    ax.plot(values)
    ax.set(xlabel="step", title=name)
plt.show()
