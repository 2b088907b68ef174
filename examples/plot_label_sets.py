"""
Label sets
==========

Points of the plane, a label for each of three discs that they lie in. The classifier is linear in a few features; its
probabilities have exact zeros, and a threshold that it chooses itself says which labels are given.
"""

import matplotlib.pyplot as plt
import numpy as np

from sparsegen.sklearn import SparseMultilabelClassifier

rng = np.random.default_rng(0)
centres = {"left": (-0.6, 0.0), "right": (0.6, 0.0), "top": (0.0, 0.8)}


def features(points):
    x, y = points.T
    return np.stack([x, y, x * x, x * y, y * y], axis=-1)


def labels(points):
    inside = {name: np.hypot(*(points - centre).T) < 1 for name, centre in centres.items()}
    return np.stack([*inside.values(), ~np.any(list(inside.values()), axis=0)], axis=-1).astype(int)


points = rng.uniform(-2, 2, size=(600, 2))
model = SparseMultilabelClassifier().fit(features(points), labels(points))

side = np.linspace(-2, 2, 200)
grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
p = model.predict_proba(features(grid)).reshape(200, 200, 4)
fig, axes = plt.subplots(1, 4, figsize=(12, 3.3), sharey=True, layout="constrained")
for ax, name, values in zip(axes, [*centres, "none"], np.moveaxis(p, -1, 0)):
    ax.pcolormesh(side, side, np.where(values > 0, values, np.nan), cmap="viridis", vmin=0, vmax=1, rasterized=True)
    if name in centres:
        ax.add_patch(plt.Circle(centres[name], 1, fill=False, edgecolor="red"))
    ax.set(title=name, aspect="equal")
plt.show()

# %%
# White is an exact zero. What was chosen in ``fit``:

print(f"penalty {model.alpha_:.3g}, threshold {model.threshold_:.3g}")
