"""
What the dial does
==================

Five scores, and every ``lam`` from very dense to one-hot. Entries leave one by one, each at a point that can be asked
for; a temperature never lets go of any.
"""

import matplotlib.pyplot as plt
import numpy as np

import sparsegen as sg

z = np.array([1.2, 0.9, 0.5, 0.3, 0.1])
radius = np.geomspace(8, 0.05, 400)  # 1 - lam
temperature = np.geomspace(4, 0.02, 400)

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
left.plot(radius, sg.sparsegen_lin(np.tile(z, (400, 1)), lam=1 - radius))
left.set(title="sparsegen_lin", xlabel="1 - lam", ylabel="probability", xscale="log", xlim=(8, 0.05))
right.plot(temperature, [sg.softmax(z, temperature=float(t)) for t in temperature])
right.set(title="softmax", xlabel="temperature", xscale="log", xlim=(4, 0.02))
for k in (2, 3, 4):
    left.axvline(1 - float(sg.lam_for_support(z, k)), color="gray", linewidth=0.8, linestyle=":")
plt.show()

# %%
# The dotted lines are where :func:`sparsegen.lam_for_support` puts the dial for two, three and four nonzeros.

for k in (1, 2, 3, 4, 5):
    lam = float(sg.lam_for_support(z, k))
    print(f"{k} nonzeros: lam = {lam:7.3f}   p = {sg.sparsegen_lin(z, lam=lam).round(3)}")
