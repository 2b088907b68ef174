"""
So many nonzeros
================

A dial for each row gives every row the same number of nonzeros; one dial for all gives that number on average, and lets
clear rows have few and doubtful rows many.
"""

import matplotlib.pyplot as plt
import numpy as np

import sparsegen as sg

rng = np.random.default_rng(0)
z = rng.normal(size=(5000, 40)) * rng.uniform(0.3, 3.0, size=(5000, 1))  # rows of every clearness

each = sg.sparsegen_lin(z, lam=sg.lam_for_support(z, 6))
one = sg.sparsegen_lin(z, lam=sg.lam_for_mean_support(z, 6))

fig, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
bins = np.arange(0.5, 41.5)
ax.hist((one > 0).sum(axis=-1), bins, alpha=0.7, label="one lam: 6 on average")
ax.axvline(6, color="C1", linewidth=2, label="a lam for each row: 6 in all")
ax.set(xlabel="nonzeros in a row", ylabel="rows", xlim=(0, 41))
ax.legend()
plt.show()

# %%
sizes = (each > 0).sum(axis=-1)
print(sizes.min(), sizes.max(), (one > 0).sum(axis=-1).mean())
