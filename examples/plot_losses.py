"""
Losses that know when to stop
=============================

Two labels out of four. The score of the second label moves; a hinge loss is zero once the map is uniform on the labels,
the log loss never is.
"""

import matplotlib.pyplot as plt
import numpy as np

import sparsegen as sg

moving = np.linspace(-2, 4, 400)
z = np.tile([1.5, 0.0, -0.5, -1.0], (400, 1))
z[:, 1] = moving
y = np.tile([1, 1, 0, 0], (400, 1))
half = y / 2

fig, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
ax.plot(moving, sg.softmax_log_loss(z, half, reduction="none"), label="softmax_log_loss")
ax.plot(moving, sg.sparsemax_huber_loss(z, half, reduction="none"), label="sparsemax_huber_loss")
ax.plot(moving, sg.sparsegen_hinge_loss(z, y, reduction="none"), label="sparsegen_hinge_loss")
ax.plot(moving, sg.sparsehourglass_hinge_loss(z, y, q=1.0, reduction="none"), label="sparsehourglass_hinge_loss")
ax.set(xlabel="score of the second label (the first has 1.5)", ylabel="loss", ylim=(-0.1, 4))
ax.legend()
plt.show()
