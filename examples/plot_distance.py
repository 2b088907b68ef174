"""
Near softmax
============

``sparsegen_softmax`` begins at softmax. Its ``lam`` bounds how much of the probability moves, and a little goes a long
way: most entries of a peaked row have next to none.
"""

import matplotlib.pyplot as plt
import numpy as np

import sparsegen as sg

rng = np.random.default_rng(0)
lams = np.linspace(0, 0.3, 31)

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for scale in (1, 2, 4):
    z = scale * rng.normal(size=(500, 100))
    p = [sg.sparsegen_softmax(z, lam=float(lam)) for lam in lams]
    moved = [(abs(row - p[0]).sum(axis=-1) / 2).max() for row in p]
    left.plot(lams, moved, label=f"scores of scale {scale}")
    right.plot(lams, [100 * (row == 0).mean() for row in p])
left.plot(lams, lams, color="gray", linestyle=":", label="the bound")
left.set(xlabel="lam", ylabel="largest distance to softmax")
left.legend()
right.set(xlabel="lam", ylabel="exact zeros, percent", ylim=(0, 100))
plt.show()
