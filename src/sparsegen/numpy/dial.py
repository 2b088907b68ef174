"""Maps with the control lam, as the projection of some points onto the radius 1 - lam."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsegen._table import checks, recipe
from sparsegen._table.controls import controls_of, mapping_name
from sparsegen._table.maps import HIDDEN, MAPS, TRANSFORMS
from sparsegen.numpy import maps
from sparsegen.numpy._inputs import read_scores

NAMES = tuple(name for name, m in MAPS.items() if "lam" in m.controls)


class Dial:
    """A map with lam, and the temperature it may have besides."""

    def __init__(self, mapping: str, temperature: Any = None) -> None:
        self.map = MAPS[mapping_name(mapping, NAMES)]
        given = {} if temperature is None else {"temperature": temperature}
        found = controls_of(mapping, self.map.controls, given)
        self.others = {name: value for name, value in found.items() if name != "lam"}

    def apply(self, scores: Any, **given: Any) -> Any:
        """Apply the map."""
        return getattr(maps, self.map.name)(scores, **self.others, **given)

    def points(self, scores: Any, axis: int, mask: Any) -> tuple[Any, int, Any]:
        """What is projected onto 1 - lam: the scores themselves, g of them, or their shares; with axis and mask."""
        m = self.map
        if m.linear:
            return scores, axis, mask
        z, mask = read_scores(scores, mask)
        wide = recipe.hide(np, z.astype(np.float64), mask)
        if m.radius.of == "sum":
            x = np.asarray(self.apply(wide, axis=axis, lam=0.0))
        else:
            with np.errstate(all="ignore"):
                x = TRANSFORMS[m.transform].g(np, wide)
        if m.outside is not None and (m.outside(wide) & (wide != HIDDEN)).any():
            checks.fail(ValueError, "scores", f"{m.each} for mapping {m.name!r}", "others")
        return np.where(wide == HIDDEN, HIDDEN, x), axis, None
