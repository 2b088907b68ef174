"""
Where entries leave
===================

Three scores, the third held at zero. Colours count the nonzeros: the white lines are where an entry leaves the support.
Softmax would be one colour.
"""

import matplotlib.pyplot as plt
import numpy as np

import sparsegen as sg

side = np.linspace(-2, 2, 300)
x, y = np.meshgrid(side, side)
z = np.stack([x, y, np.zeros_like(x)], axis=-1)
shown = {
    "sparsemax": sg.sparsemax(z),
    "sparsegen_lin, lam = 0.6": sg.sparsegen_lin(z, lam=0.6),
    "entmax, alpha = 1.5": sg.entmax15(z),
    "sparsehourglass, q = 0.2": sg.sparsehourglass(z, q=0.2),
}

fig, axes = plt.subplots(1, 4, figsize=(12, 3.4), sharey=True, layout="constrained")
for ax, (name, p) in zip(axes, shown.items()):
    ax.pcolormesh(side, side, (p > 0).sum(axis=-1), cmap="viridis", vmin=1, vmax=3, rasterized=True)
    ax.contour(side, side, p[..., 0], levels=np.linspace(0.05, 0.95, 7), colors="white", linewidths=0.6)
    ax.set(title=name, xlabel="first score", aspect="equal")
axes[0].set_ylabel("second score")
plt.show()
