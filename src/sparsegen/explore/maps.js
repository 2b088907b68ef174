"use strict";
// The maps, computed as the library does: a transform, a radius, a power, one projection. The table of maps is the library's own.
const sparsegen = (() => {
  const total = (values) => values.reduce((a, b) => a + b, 0);

  // What each transform projects. `x` is measured from the largest, in units such that the radius is `radius * unit`:
  // nothing overflows and ties stay ties. `back` gives a threshold on the scale of g(z); `weights` are g(z) up to scale.
  const TRANSFORMS = {
    lin: (z) => ({ g: z, x: z, unit: 1, back: (tau) => tau, weights: z }),
    exp: (z) => {
      const top = Math.max(...z);
      return {
        g: z.map(Math.exp), x: z.map((v) => Math.expm1(v - top)), unit: Math.exp(-top),
        back: (tau) => Math.exp(top) * (1 + tau), weights: z.map((v) => Math.exp(v - top)),
      };
    },
    sq: (z) => {
      const top = Math.max(...z.map(Math.abs)) || 1;
      return {
        g: z.map((v) => v * v), x: z.map((v) => ((Math.abs(v) - top) / top) * (Math.abs(v) / top + 1)),
        unit: 1 / top / top, back: (tau) => top * top * (1 + tau), weights: z.map((v) => (v / top) ** 2),
      };
    },
    log: (z) => ({ g: z.map(Math.log), x: z.map(Math.log), unit: 1, back: (tau) => tau, weights: z.map(Math.log) }),
  };

  const blend = (height, n, q) => (q === Infinity ? 1 : (height + q) / (1 / n + q));
  const RADII = {
    dial: (z, { lam }) => 1 - lam,
    total: (z, { lam }) => 1 - lam, // times the sum of the points
    cone: (z, { q }) => blend(total(z) / z.length, z.length, q),
    hourglass: (z, { q }) => blend(Math.abs(total(z) / z.length), z.length, q),
  };

  // project(x, r) = [x - tau]_+ / r with tau such that it sums to 1, by the plain method, a sort. An entry is above tau
  // when the radius exceeds what it costs to lift all larger ones over it. Radius 0 and Infinity are the limits.
  function project(x, radius) {
    if (radius === Infinity) return { p: x.map(() => 1 / x.length), tau: -Infinity };
    const sorted = [...x].sort((a, b) => b - a), top = sorted[0];
    let size = 0, sum = 0;
    while (size < x.length && (radius > 0 ? cost(sorted, size, sum) < radius : sorted[size] === top)) sum += sorted[size++] - top;
    const tau = (sum - radius) / size;
    const p = x.map((v) => (radius > 0 ? Math.max(0, (v - top - tau) / radius) : v === top ? 1 / size : 0));
    return { p, tau: top + tau };
  }
  const cost = (sorted, size, sum) => sum - size * (sorted[size] - sorted[0]);

  // project((alpha - 1) z, 1)^(1/(alpha - 1)): Newton's method for how far all scores must be lowered, in a bracket.
  function entmax(z, alpha) {
    const gap = alpha - 1, top = Math.max(...z), bent = (v) => (gap === 0 ? v : -Math.expm1(-gap * v) / gap);
    const share = (w) => (gap * w >= 1 ? 0 : Math.exp(gap === 0 ? -w : Math.log1p(-gap * w) / gap));
    let low = 0, high = bent(Math.log(z.length)), shift = 0, p = [], sum = 0;
    for (let turn = 0; turn < 100; turn++) {
      p = z.map((v) => share(shift + top - v));
      sum = total(p);
      if (sum >= 1) low = shift; else high = shift;
      const next = shift + (bent(Math.log(sum)) * sum) / total(p.map((v) => (v > 0 ? v ** (1 - gap) : 0)));
      if (next === shift || !(low < high)) break;
      shift = next > low && next < high ? next : (low + high) / 2;
    }
    p = p.map((v) => v / sum);
    return { p, tau: gap * top - Math.max(...p) ** gap, radius: 1, g: z.map((v) => gap * v), size: p.filter((v) => v > 0).length };
  }

  // Maps whose radius is a share of the sum of the points; all of it makes the threshold 0.
  function shares(g, weights, keep) {
    const sum = total(weights), all = total(g);
    if (weights.some((v) => v < 0)) return { outside: "it needs every z at least 0" };
    if (!(sum > 0)) return { outside: "it needs a z that is not 0" };
    const { p, tau } = keep === 1 ? { p: weights.map((v) => v / sum), tau: 0 } : project(weights, keep * sum);
    return { p, tau: tau === 0 ? 0 : (tau / sum) * all, radius: keep * all, g, size: p.filter((v) => v > 0).length };
  }

  const cooled = (map, z, controls) => (map.controls.includes("temperature") ? z.map((v) => v / controls.temperature) : z);

  // Apply a row of the table. What is outside its domain has a reason in `outside` and no p.
  function apply(map, scores, given) {
    const z = cooled(map, scores, given), controls = { ...given, ...map.fixed };
    if (map.power) return entmax(z, controls.alpha);
    if (map.transform === "log" && z.some((v) => v <= 0)) return { outside: "it needs every z above 0" };
    const { g, x, unit, back, weights } = TRANSFORMS[map.transform](z);
    if (map.radius === "total") return shares(g, weights, RADII.total(z, controls));
    const kind = RADII[map.radius];
    const radius = kind ? kind(z, controls) : map.radius;
    if (map.domain && map.radius === "cone" && !(radius > 0)) return { outside: `it needs ${map.domain}` };
    const { p, tau } = project(x, radius * unit);
    return { p, tau: back(tau), radius, g, size: p.filter((v) => v > 0).length };
  }

  // The values of lam at which one more entry drops out, largest first: lam below the k-th gives k entries or more.
  function breaks(map, z, controls) {
    const made = TRANSFORMS[map.transform](cooled(map, z, controls)), whole = map.radius === "total";
    const sorted = [...(whole ? made.weights : made.x)].sort((a, b) => b - a);
    const unit = whole ? total(made.weights) : made.unit;
    let sum = 0;
    return sorted.map((v, size) => {
      const needed = cost(sorted, size, sum);
      sum += v - sorted[0];
      return 1 - needed / unit;
    });
  }

  return { apply, breaks, project, total };
})();
