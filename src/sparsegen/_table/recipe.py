"""The one recipe: from a row of the table of maps and some scores to probabilities.

scores -> hide -> transform and radius -> project -> shape and type back. A front end lends its array functions and its
projection as a :class:`Frame`; nothing here knows a framework, and nothing here is written again in one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from sparsegen._table.maps import HIDDEN, TRANSFORMS, Map, Points
from sparsegen._table.radius import of_mean

Array = Any


class Frame(Protocol):
    """What a front end lends: NumPy's words for arrays, its types, its projection, its way to refuse rows."""

    xp: Any

    def nothing(self, z: Array, axis: int) -> bool:
        """Are there no classes?"""

    def unmoved(self, x: Array, control: Any) -> Array:
        """`x`, in which a control had no part: its derivative is 0."""

    def wide(self, x: Array) -> Array:
        """In the type that row statistics are kept in."""

    def working(self, z: Array) -> Array:
        """In the type that is computed in: float32 for half precision."""

    def like(self, x: Array, z: Array) -> Array:
        """In the type of `z`."""

    def still(self, x: Array) -> Array:
        """`x` without derivatives."""

    def number(self, value: Any, like: Array) -> Array:
        """A number or an array of controls as an array beside `like`."""

    def total(self, w: Array, axis: int) -> Array:
        """The sum of each row, with an axis of size 1 for it, as exact as the type allows."""

    def project(self, x: Array, radius: Any, axis: int, mask: Array | None, own: bool) -> Array:
        """The projection, with derivatives where there are any; `own` points may be written over."""

    def project_mean(self, m: Map, z: Array, q: Any, axis: int, mask: Array | None) -> Array:
        """The projection onto a radius that is made of each row's mean."""

    def means(self, z: Array, axis: int, mask: Array | None) -> tuple[Array, Array]:
        """Mean and number of each row's entries that may be chosen."""

    def whole(self, m: Map, z: Array, radius: Any, temperature: Any, axis: int, mask: Array | None) -> Array | None:
        """A map with a dial from scores to probabilities by one kernel; None: by the operations of the recipe."""

    def exp_shares(self, x: Array, axis: int) -> Array:
        """The softmax of scores that are at most 0."""

    def entmax(self, z: Array, alpha: Any, axis: int, mask: Array | None) -> Array:
        """Entmax, with derivatives where there are any."""

    def refuse(self, m: Map, wrong: Array, condition: str, values: Array, x: Array, axis: int) -> Array:
        """`x`, or a refusal where a score or a row is `wrong`: an error, or NaN."""


def hide(xp: Any, z: Array, mask: Array | None) -> Array:
    """Scores with -inf where the mask is False."""
    return z if mask is None else xp.where(mask, z, HIDDEN)


def top_of(f: Frame, z: Array, axis: int) -> Array:
    """Largest entry of each row, without derivatives; 0 where nothing may be chosen."""
    top = f.xp.amax(f.still(z), axis, keepdims=True)
    return f.xp.where(top == HIDDEN, 0.0, top)


def points(f: Frame, m: Map, z: Array, axis: int) -> Points:
    """g(z) with hidden entries as -inf, in an array of its own."""
    xp, g, hidden = f.xp, TRANSFORMS[m.transform], z == HIDDEN
    safe = xp.where(hidden, 1.0, z)
    top = top_of(f, xp.where(hidden, HIDDEN, g.top_of(safe)), axis) if g.top_of else xp.zeros_like(z[..., :1])
    found = g.points(xp, safe, top, f.wide(top))
    x = found.x
    if m.outside is not None:
        x = f.refuse(m, m.outside(safe) & ~hidden, m.each, z, x, axis)
    return Points(xp.where(hidden, HIDDEN, x), found.unit)


def own_points(f: Frame, transform: Callable[[Array], Array], z: Array, axis: int) -> Points:
    """A caller's own transform; it sees the row's maximum where an entry is hidden."""
    hidden = z == HIDDEN
    x = transform(f.xp.where(hidden, top_of(f, z, axis), z))
    broken = f.xp.isnan(z) | (z == math.inf)
    return Points(f.xp.where(hidden, HIDDEN, f.like(f.xp.where(broken, math.nan, x), z)))


def scaled(f: Frame, radius: Any, unit: Any, axis: int) -> Any:
    """radius * unit for each row; an infinite radius stays infinite in any unit."""
    if isinstance(unit, float):
        return radius * unit
    unit = f.xp.squeeze(unit, axis)
    xp, radius = f.xp, f.number(radius, unit)
    far, limit = xp.isinf(unit), xp.isinf(radius)  # as factors they would make derivatives 0 * inf
    moved = xp.where(limit, 1.0, radius) * xp.where(far, 1.0, unit) + xp.where(far, math.inf, 0.0)
    return xp.where(limit, radius, moved)


def info(f: Frame, x: Array, p: Array, radius: Any, axis: int) -> tuple[Array, Array]:
    """Support size, and the tau with which the points `x` where p > 0 give a sum of 1; NaN without one."""
    xp, p = f.xp, f.still(p)
    chosen = p > 0
    size = xp.sum(chosen, axis)
    broken = xp.any(xp.isnan(p), axis) | (size == 0)
    n = xp.where(broken, 1.0, f.wide(size))
    x = f.wide(f.still(x)) / _column(f, n, p, axis)  # shares of the mean: their sum does not overflow
    mean = xp.sum(xp.where(chosen, x, 0.0), axis)
    tau = mean - f.still(f.number(radius, mean)) / n
    return size, xp.where(broken, math.nan, tau)


def apply(f: Frame, m: Map, z: Array, controls: dict[str, Any], axis: int, mask: Array | None, want: bool) -> Any:
    """Probabilities of a map of the table, and what :func:`info` finds if that is wanted."""
    if m.power:
        return powers(f, z, controls.get("alpha", m.fixed.get("alpha")), axis, mask, want)
    if m.radius.of == "mean":
        return _apply_mean(f, m, z, controls.get("q", m.fixed.get("q")), axis, mask, want)
    temperature = controls.get("temperature", 1.0)
    own = {"lam": controls.get("lam", m.fixed.get("lam"))} if m.radius.fixed is None else {}
    return apply_radius(f, m, z, m.radius.value(f.xp, **own), temperature, axis, mask, want)


def apply_radius(
    f: Frame, m: Map, z: Array, radius: Any, temperature: Any, axis: int, mask: Array | None, want: bool
) -> Any:
    """The same of a map with a dial, given its radius 1 - lam."""
    p = None if m.linear else f.whole(m, z, radius, temperature, axis, mask)
    if p is not None and not want:
        return p
    if m.radius.of == "sum":
        return shares(f, m, z, radius, temperature, axis, mask, want, p)
    return project_map(f, m, z, radius, axis, mask, want, p)


def project_map(
    f: Frame, m: Map, z: Array, radius: Any, axis: int, mask: Array | None, want: bool, p: Array | None = None
) -> Any:
    """A map whose radius is given; its probabilities may be known."""
    if m.transform == "lin":
        return project(f, z, radius, axis, mask, want)
    g = TRANSFORMS[m.transform].g
    if p is not None:
        return p, info(f, g(f.xp, f.wide(f.still(hide(f.xp, z, mask)))), p, radius, axis)
    return project(f, z, radius, axis, mask, want, lambda x: points(f, m, x, axis), lambda x: g(f.xp, x))


def project(
    f: Frame, z: Array, radius: Any, axis: int, mask: Array | None, want: bool,
    points: Callable[[Array], Points] | None = None, g: Callable[[Array], Array] | None = None,
) -> Any:  # fmt: skip
    """Project `z`, or the points made of it, onto `radius`. `g` gives the scale thresholds are reported on."""
    if points is None or f.nothing(z, axis):
        p = f.project(z, radius, axis, mask, False)
        return (p, info(f, hide(f.xp, z, mask), p, radius, axis)) if want else p
    scores = hide(f.xp, f.working(z), mask)
    made = points(scores)
    p = f.project(made.x, scaled(f, radius, made.unit, axis), axis, None, True)
    if not want:
        return f.like(p, z)
    x = made.x if g is None else g(f.wide(f.still(scores)))
    return f.like(p, z), info(f, x, p, radius, axis)


def _apply_mean(f: Frame, m: Map, z: Array, q: Any, axis: int, mask: Array | None, want: bool) -> Any:
    p = f.project_mean(m, z, q, axis, mask)
    if not want:
        return p
    return p, info(f, hide(f.xp, z, mask), p, mean_radius(f, m, f.still(z), q, axis, mask), axis)


def mean_radius(f: Frame, m: Map, z: Array, q: Any, axis: int, mask: Array | None) -> Array:
    """The radius a map makes of each row's mean, with derivatives."""
    mean, n = f.means(z, axis, mask)
    return of_mean(f.xp, m.radius, mean, n, f.number(q, mean))


def shares(
    f: Frame, m: Map, z: Array, keep: Any, temperature: Any, axis: int, mask: Array | None, want: bool,
    p: Array | None = None,
) -> Any:  # fmt: skip
    """Maps whose radius is the share `keep` of the sum of the points; all of it makes the threshold 0."""
    x, nothing = hide(f.xp, f.working(z), mask), f.nothing(z, axis)
    if p is None:
        p = f.unmoved(f.unmoved(x, temperature), keep) if nothing else _shares(f, m, x, temperature, keep, axis)
        p = f.like(p, z)
    if not want:
        return p
    if not (_is_one(keep) or nothing):
        return p, _shares_info(f, m, x, p, temperature, keep, axis)
    size = f.xp.sum(f.still(p) > 0, axis)
    return p, (size, f.xp.where(size > 0, 0.0, f.wide(size) * math.nan))


def _is_one(keep: Any) -> bool:
    return isinstance(keep, float) and keep == 1.0


def _shares_info(f: Frame, m: Map, z: Array, p: Array, temperature: Any, keep: Any, axis: int) -> tuple[Array, Array]:
    """What :func:`info` finds: of the shares, then on the scale of g(z), whose sum may be beyond all numbers."""
    xp, hidden, wide = f.xp, z == HIDDEN, f.wide(f.still(z))
    size, tau = info(f, f.still(_shares(f, m, wide, temperature, 1.0, axis)), p, keep, axis)
    wide = wide / _temperature(f, temperature, wide, axis) if m.transform == "exp" else wide
    total = xp.sum(xp.where(hidden, 0.0, TRANSFORMS[m.transform].g(xp, xp.where(hidden, 0.0, wide))), axis)
    return size, f.still(xp.where(tau == 0, 0.0, tau * total))


def _column(f: Frame, control: Array, z: Array, axis: int) -> Array:
    """One control per row, with an axis of size 1 where the scores have their classes."""
    shape = list(z.shape)
    shape[axis] = 1
    lead = shape[:axis] + shape[axis:][1:]
    return f.xp.reshape(f.xp.broadcast_to(control, tuple(lead)), tuple(shape))


def _shares(f: Frame, m: Map, z: Array, temperature: Any, keep: Any, axis: int) -> Array:
    xp, hidden = f.xp, z == HIDDEN
    empty = xp.all(hidden, axis, keepdims=True)
    w = _weights(f, m, z, hidden, empty, temperature, axis)
    total = f.total(w, axis)
    w = f.refuse(m, (total == 0) & ~empty, "not all 0", None, w, axis)
    all_of_it = xp.where(empty, 0.0, w if m.transform == "exp" else w / xp.where(total == 0, 1.0, total))
    if _is_one(keep):
        return all_of_it
    radius = scaled(f, keep, xp.where(empty, 1.0, f.wide(total)), axis)
    p = f.project(xp.where(hidden, HIDDEN, w), radius, axis, None, True)
    if isinstance(keep, float):
        return p
    # Among other shares, all of the sum still gives what it gives alone, to the last bit.
    return xp.where(_column(f, keep, z, axis) == 1, f.still(all_of_it) + (p - f.still(p)), p)


def _weights(f: Frame, m: Map, z: Array, hidden: Array, empty: Array, temperature: Any, axis: int) -> Array:
    """What is shared out: at most 1, and 0 where hidden; softmax itself of exp."""
    xp, safe = f.xp, f.xp.where(hidden, 0.0, z)
    if m.transform == "exp":
        cooled = xp.where(hidden, HIDDEN, (safe - top_of(f, z, axis)) / _temperature(f, temperature, z, axis))
        return f.exp_shares(xp.where(empty, 0.0, cooled), axis)
    size = abs(safe) if m.transform == "sq" else safe
    top = xp.amax(f.still(size), axis, keepdims=True)
    w = size / xp.where(top > 0, top, 1.0)
    w = w * w if m.transform == "sq" else w
    return w if m.outside is None else f.refuse(m, m.outside(safe), m.each, z, w, axis)


def powers(f: Frame, z: Array, alpha: Any, axis: int, mask: Array | None, want: bool) -> Any:
    """Entmax: the projection of (alpha - 1) z with the power 1/(alpha - 1)."""
    p = f.entmax(z, alpha, axis, mask)
    if not want:
        return p
    if f.nothing(z, axis):
        size = f.xp.sum(f.still(p) > 0, axis)
        return p, (size, f.wide(size) * math.nan)
    still, wide = f.still(p), f.wide(f.still(hide(f.xp, z, mask)))
    chosen = still > 0
    size = f.xp.sum(chosen, axis)
    broken = f.xp.any(f.xp.isnan(still), axis) | (size == 0)
    top = f.xp.amax(wide, axis)
    gap = f.still(f.number(alpha, top)) - 1
    # p = (gap z - tau)^(1/gap) at the largest entry, whose probability has the most digits.
    tau = gap * top - f.xp.amax(f.wide(still), axis) ** gap
    return p, (size, f.xp.where(broken, math.nan, tau))


def _temperature(f: Frame, temperature: Any, z: Array, axis: int) -> Any:
    """The temperature beside the scores. One below the smallest number is that number: the limit is the same."""
    tiny = float(f.xp.finfo(z.dtype).tiny)
    if isinstance(temperature, float):
        return max(temperature, tiny)
    t = _column(f, temperature, z, axis)
    return f.like(f.xp.where(t < tiny, tiny, t), z)
