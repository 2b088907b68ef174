"""Every map of the table through the public functions: NumPy and torch, any layout, and torch's gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import long_double
import oracle
import sparsegen as sg
import sparsegen.torch as sgt
from long_double import LEAST, POWERS, SHARES, Answer, Real, kept
from scores import (
    EPS,
    LARGEST,
    LAYOUTS,
    TINY,
    as_rows,
    computed_in,
    laid_out,
    length,
    literal,
    parts,
    rounded,
    simpler,
    spoil,
)
from scores import rows as random_rows
from sparsegen._table.controls import CONDITIONS
from sparsegen._table.maps import MAPS

RULES = tuple(name for name, m in MAPS.items() if m.radius.of == "mean")  # their radius is made of the row's mean
TORCH_LAYOUTS = ("rows", "columns", "transposed", "stepped", "padded", "off by one", "middle")


@dataclass(frozen=True)
class Case:
    """Rows (N, K), and how they reach the library."""

    name: str
    front: str
    storage: str
    z: np.ndarray
    mask: np.ndarray | None = None
    control: np.ndarray | None = None  # one a row, or (one entry) one for all
    layout: str = "rows"
    threads: int = 1
    v: np.ndarray | None = None  # what the gradient is taken along

    @property
    def rows(self) -> int:
        return len(self.z)

    def label(self) -> str:
        return self.name

    def shown(self) -> np.ndarray:
        return np.ones(self.z.shape, bool) if self.mask is None else self.mask

    def controls(self) -> np.ndarray:
        return np.broadcast_to(np.zeros(1) if self.control is None else self.control, self.rows)


def _inside(rng: np.random.Generator, name: str, z: np.ndarray, mask: np.ndarray | None, storage: str) -> np.ndarray:
    """Scores moved into the map's domain; the first of a row is there, so that not all are 0."""
    if name == "sparsegen_log":
        z = np.where(z == -math.inf, z, abs(z))
        return np.where(z == 0, TINY[storage], z)
    if name in ("sum_normalization", "spherical_softmax"):
        z = np.where(z == -math.inf, z, abs(z)) if name == "sum_normalization" else z.copy()
        z[:, 0] = np.where((z[:, 0] == 0) | (z[:, 0] == -math.inf), 1.0, z[:, 0])
    return z


def _control(rng: np.random.Generator, name: str, z: np.ndarray, shown: np.ndarray) -> np.ndarray | None:
    n = len(z) if rng.random() < 0.4 else 1
    if "lam" in MAPS[name].controls:
        plain = rng.choice([0.0, 0.5, -1.0, 0.9375, 1 - 10.0 ** rng.uniform(-6, 6)], n)
        return np.where(rng.random(n) < 0.05, -math.inf, plain)
    if "temperature" in MAPS[name].controls:
        return 10.0 ** rng.uniform(-1.3, 1.3, n)
    if "alpha" in MAPS[name].controls:
        return rng.choice([1.0, 1.5, 2.0, 3.0, rng.uniform(1.01, 2.5)], n)
    if "q" not in MAPS[name].controls:
        return None
    q = rng.choice([0.0, 1.0, 0.1, 10.0 ** rng.uniform(-6, 6), math.inf], n)
    if name != "sparsecone":
        return q
    with np.errstate(all="ignore"):
        safe = np.where(shown & np.isfinite(z), z, 0)
        need = np.maximum(-safe.sum(1) / np.maximum((shown & np.isfinite(z)).sum(1), 1), 0) * 1.01 + 1e-3
    return need + q if n > 1 else np.array([need.max() + q[0]])


def make(rng: np.random.Generator, name: str) -> Case:
    front = "torch" if rng.random() < 0.5 else "numpy"
    storage = str(rng.choice(["float32", "float32", "float64", "float16", *(["bfloat16"] if front == "torch" else [])]))
    k = length(rng)
    n = 2 * int(rng.integers(1, max(2, min(2000, 16384 // k))))
    z = spoil(rng, random_rows(rng, n, k, storage, most=1e150 if name in RULES else LARGEST[storage]))
    mask = rng.random((n, k)) < 0.7 if rng.random() < 0.2 else None
    if mask is not None and name in SHARES:
        mask[:, 0] = True
    z = _inside(rng, name, z, mask, storage)
    layout = str(rng.choice(TORCH_LAYOUTS if front == "torch" else list(LAYOUTS)))
    shown = np.ones(z.shape, bool) if mask is None else mask
    v = rounded(rng.standard_normal((n, k)), storage) if front == "torch" and rng.random() < 0.6 else None
    control = _control(rng, name, z, shown)
    return Case(name, front, storage, z, mask, control, layout, int(rng.integers(1, 4)), v)


def _lead(c: Case) -> tuple[int, ...]:
    return (c.rows // 2, 2) if c.layout == "middle" else (c.rows,)


def _numpy(c: Case) -> np.ndarray:
    x = laid_out(c.z.astype(c.storage), c.layout)
    how: dict[str, Any] = {} if c.mask is None else {"mask": laid_out(c.mask, c.layout)}
    if c.control is not None:
        one = len(c.control) == 1
        how[MAPS[c.name].controls[0]] = float(c.control[0]) if one else c.control.reshape(_lead(c))
    p = getattr(sg, c.name)(x, axis=LAYOUTS[c.layout][1], **how)
    return as_rows(p, c.layout, c.z.shape).astype(np.float64)


def tensor(x: np.ndarray, storage: str) -> torch.Tensor:
    """A tensor with the array's strides."""
    return torch.from_numpy(x.astype(computed_in(storage), copy=False)).to(getattr(torch, storage))


def _laid_tensor(x: np.ndarray, c: Case) -> torch.Tensor:
    return tensor(laid_out(x.astype(computed_in(c.storage)), c.layout), c.storage)


def _torch(c: Case) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    x = _laid_tensor(c.z, c)
    how: dict[str, Any] = {} if c.mask is None else {"mask": torch.from_numpy(laid_out(c.mask, c.layout))}
    wanted = [x.requires_grad_()] if c.v is not None else []
    if c.control is not None:
        given: Any = torch.tensor(c.control).reshape(_lead(c)) if len(c.control) > 1 else float(c.control[0])
        if c.v is not None and len(c.control) > 1:
            wanted.append(given.requires_grad_())
        how[MAPS[c.name].controls[0]] = given
    p = getattr(sgt, c.name)(x, dim=LAYOUTS[c.layout][1], **how)
    found = as_rows(p.detach().double().numpy(), c.layout, c.z.shape)
    if c.v is None:
        return found, None, None
    grads = torch.autograd.grad(p, wanted, _laid_tensor(c.v, c), materialize_grads=True)
    by_score = as_rows(grads[0].double().numpy(), c.layout, c.z.shape)
    return found, by_score, grads[1].double().numpy().reshape(-1) if len(grads) > 1 else None


def _first(wrong: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(wrong)[0])


def _p_wrong(c: Case, p: np.ndarray, want: Answer) -> str:
    single, eps = EPS[computed_in(c.storage)], EPS[c.storage]
    blur = want.blur if want.blur.ndim == 2 else want.blur[:, None]
    allowed = 4 * single * (want.p + 1 / want.firm[:, None]) + blur + TINY["float32"]
    if c.storage in ("float16", "bfloat16"):
        allowed = allowed + 0.51 * eps * (want.p + allowed) + TINY[c.storage]
    near = (abs(p - want.p) <= allowed) | (np.isnan(p) & np.isnan(want.p)) | want.skip[:, None]
    if not near.all():
        at = _first(~near)
        return f"entry {at[1]} of row {at[0]} is {p[at]!r}, not {float(want.p[at])!r}"
    if c.storage not in ("float32", "float64"):
        return ""
    off = abs(p.astype(Real).sum(1) - 1) / eps
    most = 8 + c.z.shape[1] / 2 if c.name in SHARES else 4  # those that divide do so by a plain sum
    wrong = (off > most) & (want.p.sum(1) > 0.5) & ~want.skip
    return f"row {_first(wrong)[0]} misses 1 by {float(off[wrong][0])} eps" if wrong.any() else ""


def _centred(p: np.ndarray, v: np.ndarray) -> np.ndarray:
    on = p > 0
    mean = np.where(on, v, 0).sum(1, keepdims=True) / np.maximum(on.sum(1, keepdims=True), 1)
    return np.where(on, v - mean, Real(0))


Gradients = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _share_gradients(
    c: Case, p: np.ndarray, want: Answer, v: np.ndarray, safe: np.ndarray, size: np.ndarray
) -> Gradients:
    """Those of the projection of x onto keep * sum x; slopes are of x in units of its largest."""
    shown, keep = c.shown() & (c.z != -math.inf), kept(c.name, c.controls().astype(Real))
    top = np.where(shown, abs(safe) if c.name != "sparsegen_softmax" else safe, Real(-np.inf)).max(1, keepdims=True)
    unit = np.where(np.isfinite(top) & (top != 0), top, Real(1))
    x = {"spherical_softmax": (safe / unit) ** 2, "sum_normalization": safe / unit}.get(c.name, np.exp(safe - unit))
    x = np.where(shown, np.exp(safe - top) if c.name == "sparsegen_softmax" else x, Real(0))
    slope = {"spherical_softmax": 2 * safe / unit**2, "sum_normalization": 1 / unit + 0 * safe}.get(c.name, x)
    radius = (keep * x.sum(1))[:, None]
    w = np.where((keep == 1)[:, None], v - (p * v).sum(1, keepdims=True), _centred(p, v))
    along = (w * p).sum(1)
    over = np.where(np.isinf(radius), Real(0), 1 / np.where(radius == 0, Real(1), radius))
    by_score = slope * over * np.where((keep == 1)[:, None], w, w - np.where(np.isinf(keep), 0, keep * along)[:, None])
    by_score = np.where(shown, by_score, 0)
    # An array of lam has the projection's derivative also at lam = 0, where entries of 0 are at the threshold.
    kink = (keep == 1) & ((p == 0) & shown).any(1) & (c.control is not None and len(c.control) > 1)
    by_score[kink] = np.nan
    lost = TINY[computed_in(c.storage)] / EPS[computed_in(c.storage)]
    each = abs(slope) + (lost if c.name == "sparsegen_softmax" else lost / abs(unit))
    each = each * over * size * (2 + np.where(np.isinf(keep), 0, keep))[:, None]
    centred = (_centred(p, v) * p).sum(1)
    return by_score, centred / keep, 2 * np.where(shown, each, 0), (size[:, 0] * 2) / keep


def _power_gradients(c: Case, p: np.ndarray, v: np.ndarray, size: np.ndarray) -> Gradients:
    """docs/math.md, section 9, given p."""
    gap = (np.full(c.rows, Real(0.5)) if c.name == "entmax15" else c.controls().astype(Real) - 1)[:, None]
    on = p > 0
    log = np.log(np.where(on, p, Real(1)))
    s = np.where(on, np.exp((1 - gap) * log), Real(0))
    total = np.maximum(s.sum(1, keepdims=True), LEAST)
    share, h = s / total, -p * log
    by_score = s * (v - (share * v).sum(1, keepdims=True))
    far = np.where(gap == 0, Real(1), gap)
    bent = (p - share) / far**2 + (h - share * h.sum(1, keepdims=True)) / far
    at_one = p * ((p * log * log).sum(1, keepdims=True) - log * log) / 2
    slope = np.where(gap == 0, at_one, bent)
    spread = (p + share) * (1 + log * log + (p * log * log).sum(1, keepdims=True)) * (1 + 1 / far**2)
    return by_score, (slope * v).sum(1), 2 * s * size * on, (spread * size).sum(1)


def _gradients(c: Case, p: np.ndarray, want: Answer) -> Gradients:
    """Gradients by score and by control, and the size that their rounding errors are measured by."""
    assert c.v is not None
    z, v, p = c.z.astype(Real), c.v.astype(Real), p.astype(Real)
    shown, control = c.shown() & (c.z != -math.inf), c.controls().astype(Real)
    size, safe = abs(v).max(1, keepdims=True), np.where(shown, z, Real(0))
    if c.name in SHARES:
        w = v - (p * v).sum(1, keepdims=True)
        if c.name == "softmax":
            t = control[:, None]
            low = np.where(shown, z - np.where(shown, z, Real(-np.inf)).max(1, keepdims=True), Real(0))
            far = abs(low) / t + 1
            along = -(p * w * low).sum(1) / control**2
            lost = TINY[computed_in(c.storage)] / EPS[computed_in(c.storage)]  # of p, where that is subnormal
            return p * w / t, along, (p + lost) * size * far / t, (p * size * far**2).sum(1) / control
        return _share_gradients(c, p, want, np.where(shown, v, 0), safe, size)
    if c.name in POWERS:
        return _power_gradients(c, p, v, size)
    w, r = _centred(p, v), want.radius[:, None]
    over_r = np.where((r == 0) | (r == np.inf), Real(0), 1 / np.where(r == 0, Real(1), r))
    along = -(w * p * over_r).sum(1)
    along_size = (abs(w) * p * over_r).sum(1) + (size * over_r)[:, 0]
    on = p > 0
    if c.name in ("sparsegen_exp", "sparsegen_sq"):
        far = np.where(on, safe - np.where(on, safe, Real(-np.inf)).max(1, keepdims=True), Real(0))
        top = abs(safe).max(1, keepdims=True)
        slope = np.exp(far) if c.name == "sparsegen_exp" else 2 * safe / np.where(top > 0, top, Real(1)) ** 2
        real_r = np.where(control == -np.inf, Real(np.inf), 1 - control)
        scale = slope * over_r
        # Both slopes are differences of numbers of the size of the largest: torch has expm1(x) + 1 for exp(x).
        bend = over_r if c.name == "sparsegen_exp" else over_r * 2 / np.where(top > 0, top, Real(1))
        lost = TINY[computed_in(c.storage)] / EPS[computed_in(c.storage)]  # of w / r, where that is subnormal
        bend = bend + (lost if c.name == "sparsegen_exp" else lost * 2 / np.where(top > 0, top, Real(1)))
        scale[(size * over_r)[:, 0] > LARGEST[computed_in(c.storage)] / 4] = np.nan  # w / r overflows on the way
        return (
            w * scale,
            (w * p).sum(1) / real_r,
            size * bend * on * (1 + abs(far)),
            ((abs(w) * p).sum(1) + size[:, 0]) / real_r,
        )
    if c.name == "sparsegen_log":
        slope = 1 / np.where(safe > 0, safe, Real(1))
        return w * over_r * slope, -along, size * over_r * slope * on, along_size
    by_score, score_size = w * over_r, size * over_r * on
    if c.name in RULES:
        n = np.maximum(shown.sum(1), 1)
        q, mean = np.where(control == np.inf, Real(1), control), safe.sum(1) / n
        far, sign = control == np.inf, np.ones_like(mean) if c.name == "sparsecone" else np.sign(mean)
        width = 1 / n.astype(Real) + q
        push = np.where(far, Real(0), sign / n / width)
        height = mean if c.name == "sparsecone" else abs(mean)
        bend = np.where(far, Real(0), (1 / n.astype(Real) - height) / width**2)
        by_score = by_score + np.where(shown, (along * push)[:, None], 0)
        zero = abs(mean) <= Real(2.0**-53) * (n + 8) * abs(safe).sum(1) / n  # up to rounding: either sign will do
        by_score[zero & (c.name != "sparsecone")] = np.nan
        score_size = score_size + (along_size * abs(push))[:, None]
        return by_score, along * bend, score_size, along_size * (abs(bend) + abs(height) / width**2)
    return by_score, -along, score_size, along_size


def _grad_wrong(c: Case, p: np.ndarray, got: tuple[np.ndarray, np.ndarray | None], want: Answer) -> str:
    """The closed form on the support that was found; sums over it have at most K/2 + 24 roundings each."""
    if c.storage in ("float16", "bfloat16") and (MAPS[c.name].transform != "lin" or c.name in SHARES):
        return ""  # gradients come from the p before it was rounded, which is not ours to see
    by_score, by_control, score_size, control_size = _gradients(c, p, want)
    single, eps, largest = EPS[computed_in(c.storage)], EPS[c.storage], LARGEST[computed_in(c.storage)]
    steps = 2 * single * (c.z.shape[1] / 2 + 64)
    lost = want.blur[:, None] * 4 if c.name in RULES else 0
    allowed = steps * score_size + (eps + lost) * (abs(by_score) + score_size) + 4 * TINY[c.storage] * (1 + score_size)
    beyond = ~(score_size + abs(by_score) + allowed < min(largest, LARGEST[c.storage]) / 4)
    skip = (want.skip | np.isnan(p).any(1))[:, None] | beyond
    near = (abs(got[0] - by_score) <= allowed) | skip
    if not near.all():
        at = _first(~near)
        return f"the gradient of entry {at[1]} of row {at[0]} is {got[0][at]!r}, not {float(by_score[at])!r}"
    if got[1] is None:
        return ""
    lost = want.blur * 4 if c.name in RULES else 0
    # Entmax's formula takes it that p sums to 1: p as it was stored does up to its own rounding.
    rounding = eps if c.name in POWERS else single
    allowed = (
        steps * control_size
        + (lost + rounding) * (abs(by_control) + control_size)
        + 4 * TINY["float32"] * (1 + control_size)
    )
    near = (abs(got[1] - by_control) <= allowed) | skip.any(1) | ~(control_size < largest / 4)
    if near.all():
        return ""
    at = _first(~near)
    return f"the gradient of the control of row {at[0]} is {got[1][at]!r}, not {float(by_control[at])!r}"


def _exact_wrong(c: Case, want: Answer) -> str:
    """The judge is judged: a short row in fractions. Rows are many, so the first alone."""
    too_large = MAPS[c.name].transform == "exp" and not (abs(c.z[0][c.z[0] > -math.inf]) < 1e4).all()
    if c.z.shape[1] > 5 or want.skip[0] or too_large:
        return ""
    controls = {} if c.control is None else {MAPS[c.name].controls[0]: float(c.controls()[0])}
    exact = oracle.map_row(c.name, c.z[0], c.shown()[0], **controls).p
    blur = np.max(want.blur[0]) if np.isfinite(np.max(want.blur[0])) else 0
    near = (abs(exact - want.p[0]) <= 1e-15 + blur) | (np.isnan(exact) & np.isnan(want.p[0]))
    return "" if near.all() else f"the oracles disagree: {exact.tolist()} and {want.p[0].tolist()}"


def check(c: Case, sabotage: bool = False) -> str:
    """What is wrong with the library's answer; nothing: an empty text."""
    sg.set_num_threads(c.threads)
    p, by_score, by_control = (_numpy(c), None, None) if c.front == "numpy" else _torch(c)
    if sabotage and c.z.shape[1] > 1:
        p = p.copy()
        p[0, 0] += 2.0**-6
    with np.errstate(all="ignore"):
        want = long_double.map_rows(c.name, c.z, c.shown(), c.controls(), EPS[computed_in(c.storage)])
        wrong = _exact_wrong(c, want) or _p_wrong(c, p, want)
        if wrong or by_score is None:
            return wrong
        return _grad_wrong(c, p, (by_score, by_control), want)


def _without_rows(c: Case, part: slice) -> Case:
    keep = np.ones(c.rows, bool)
    keep[part] = False
    own = c.control is not None and len(c.control) > 1
    return replace(
        c, z=c.z[keep], mask=None if c.mask is None else c.mask[keep], v=None if c.v is None else c.v[keep],
        control=c.control[keep] if own and c.control is not None else c.control, layout="rows",
    )  # fmt: skip


def _without_entries(c: Case, part: slice) -> Case:
    keep = np.ones(c.z.shape[1], bool)
    keep[part] = False
    return replace(
        c, z=c.z[:, keep], mask=None if c.mask is None else c.mask[:, keep], v=None if c.v is None else c.v[:, keep]
    )


def _allowed(name: str, control: float) -> bool:
    holds = CONDITIONS[MAPS[name].controls[0]][1]
    return bool(holds(control)) and name != "sparsecone"


def simplified(c: Case) -> Iterator[Case]:
    """Simpler cases, the most promising first."""
    yield from (_without_rows(c, part) for part in parts(c.rows))
    yield from (_without_entries(c, part) for part in parts(c.z.shape[1]))
    if c.layout != "rows":
        yield replace(c, layout="rows")
    if c.mask is not None:
        yield replace(c, mask=None)
    if c.v is not None:
        yield replace(c, v=None)
    if c.threads > 1:
        yield replace(c, threads=1)
    if c.control is not None and len(c.control) > 1:
        yield replace(c, control=c.control[:1])
    for values in ("z", "control"):
        given = getattr(c, values)
        if given is None or given.size > 64:
            continue
        for at in np.ndindex(given.shape):
            for number in simpler(float(given[at])):
                changed = given.copy()
                changed[at] = rounded(np.array(number), c.storage) if values == "z" else number
                if changed[at] != given[at] and (values == "z" or _allowed(c.name, number)):
                    yield replace(c, **{values: changed})


def line(c: Case, engine: str) -> str:
    """One line of Python that does it again."""
    expression, axis = LAYOUTS[c.layout]
    control = ""
    if c.control is not None:
        one = len(c.control) == 1
        value = literal(c.control[0]) if one else f"np.array({literal(c.control)}).reshape{_lead(c)}"
        value = value if one or c.front == "numpy" else f"torch.tensor({value})"
        control = f", {MAPS[c.name].controls[0]}={value}"
    mask = "" if c.mask is None else f"(lambda x: {expression})(np.array({literal(c.mask)}))"
    storage = c.storage if c.front == "numpy" else computed_in(c.storage)
    start = (
        f"import numpy as np, sparsegen as sg; from numpy import nan, inf; sg._core.use_engine({engine!r}); "
        f"x = np.array({literal(c.z)}, {storage!r}); y = {expression}; "
    )
    if c.front == "numpy":
        return f"{start}print(sg.{c.name}(y, axis={axis}{control}{', mask=' + mask if mask else ''}))"
    mask = f", mask=torch.from_numpy({mask})" if mask else ""
    call = f"p = sgt.{c.name}(t, dim={axis}{control}{mask}); print(p)"
    start += f"import torch, sparsegen.torch as sgt; t = torch.from_numpy(y).to(torch.{c.storage}).requires_grad_(); "
    if c.v is None:
        return start + call
    v = f"(lambda x: {expression})(np.array({literal(c.v)}, {storage!r}))"
    return f"{start}{call}; p.backward(torch.from_numpy({v}).to(torch.{c.storage})); print(t.grad)"
