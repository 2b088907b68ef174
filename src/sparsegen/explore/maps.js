"use strict";
// The maps, computed as the library does: a transform, a radius, one projection. The table of maps is the library's own.
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

  // Apply a row of the table. What is outside its domain has a reason in `outside` and no p.
  function apply(map, scores, controls) {
    const z = map.controls.includes("temperature") ? scores.map((v) => v / controls.temperature) : scores;
    if (map.transform === "log" && z.some((v) => v <= 0)) return { outside: "it needs every z above 0" };
    const { g, x, unit, back, weights } = TRANSFORMS[map.transform](z);
    if (map.radius === null) {
      const sum = total(weights);
      if (weights.some((v) => v < 0)) return { outside: "it needs every z at least 0" };
      if (!(sum > 0)) return { outside: "it needs a z that is not 0" };
      return { p: weights.map((v) => v / sum), tau: 0, radius: total(g), g, size: weights.filter((v) => v > 0).length };
    }
    const kind = RADII[map.radius];
    const radius = kind ? kind(z, { ...controls, ...map.fixed }) : map.radius;
    if (map.domain && map.radius === "cone" && !(radius > 0)) return { outside: `it needs ${map.domain}` };
    const { p, tau } = project(x, radius * unit);
    return { p, tau: back(tau), radius, g, size: p.filter((v) => v > 0).length };
  }

  // The values of lam at which one more entry drops out, largest first: lam below the k-th gives k entries or more.
  function breaks(map, z) {
    const { x, unit } = TRANSFORMS[map.transform](z), sorted = [...x].sort((a, b) => b - a);
    let sum = 0;
    return sorted.map((v, size) => {
      const needed = cost(sorted, size, sum);
      sum += v - sorted[0];
      return 1 - needed / unit;
    });
  }

  return { apply, breaks, project, total };
})();
