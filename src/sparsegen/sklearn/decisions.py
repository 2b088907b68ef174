"""From scores to label sets: the map, the dial at prediction, and what is done with rows that no label passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.special import logsumexp

import sparsegen
from sparsegen.sklearn import dials


@dataclass(frozen=True)
class Decision:
    """How scores (n, K) are answered; with `empty`, the last column is the class of rows without labels."""

    mapping: str
    controls: dict[str, float]
    radius: float | None = None
    """Radius at prediction; None: the map's own."""
    threshold: float = 0.0
    empty: bool = False

    def _map(self, z: np.ndarray, return_info: bool = False) -> Any:
        mapping, controls = self.mapping, self.controls
        if self.radius is not None:
            mapping, controls = "sparsegen_lin", {"lam": 1 - self.radius}  # whose radius is 1 - lam
        return getattr(sparsegen, mapping)(z, **controls, return_info=return_info)

    def _shown(self, values: np.ndarray) -> np.ndarray:
        return values[:, :-1] if self.empty else values

    def probabilities(self, z: np.ndarray) -> np.ndarray:
        """Return the map of each row."""
        return self._shown(self._map(z))

    def labels(self, z: np.ndarray) -> np.ndarray:
        """Return which labels each row has: those above the threshold, or else the most probable."""
        on = self.probabilities(z) > self.threshold
        return on if self.empty else on | dials.tops(z)

    def margins(self, z: np.ndarray) -> np.ndarray:
        """Return the scores above what a label of the row needs: positive for those it has."""
        if self.mapping == "softmax":
            with np.errstate(divide="ignore"):
                cut = logsumexp(z, axis=1, keepdims=True) + np.log(self.threshold)
        else:
            tau = self._map(z, return_info=True)[1].threshold[:, None]
            radius = np.maximum(z - tau, 0.0).sum(axis=1, keepdims=True)  # p = (z - tau) / radius where it is positive
            cut = tau + self.threshold * radius
        if not self.empty:
            cut = np.minimum(cut, np.nextafter(z.max(axis=1, keepdims=True), -np.inf))
        return self._shown(z - cut)

    def keys(self, z: np.ndarray, dial: str, radius: float) -> sp.csr_array:
        """Return the numbers that a dial cuts: see dials.py."""
        found = dials.radius_keys(z, radius) if dial == "radius" else dials.probability_keys(self._map(z))
        if not self.empty:
            return dials.with_tops(found, z)
        return sp.csr_array(found[:, :-1])
