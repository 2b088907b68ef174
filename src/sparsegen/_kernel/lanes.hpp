// Small K: W rows share the lanes of one vector, so that no pass ends in a sum across lanes.
//
// The rows are transposed into a K x W buffer and Newton's method runs in lockstep. A lane that has arrived is frozen:
// its result does not depend on its neighbours.
#pragma once

#include "simplex.hpp"

namespace sparsegen::SPARSEGEN_ISA {

template <class T>
struct LaneSurvey {
  Vec<T> top, sum, squares;
};

// W rows, of at least kTile entries each, to K x W.
template <class T>
inline void to_lanes(const T* const* rows, int64_t K, T* lanes) {
  constexpr int W = kWidth<T>, B = kTile<T>;
  for (int64_t k = 0; k < K; k += B) {
    const int64_t from = std::min<int64_t>(k, K - B);  // the last tile overlaps the one before
    for (int w = 0; w < W; w += B) {
      Tile<T> tile;
      for (int i = 0; i < B; ++i) tile.load(i, rows[w + i] + from);
      tile.transpose();
      for (int i = 0; i < B; ++i) tile.store(i, lanes + (from + i) * W + w);
    }
  }
}

// K x W to W rows, `f` applied to each vector on the way; rows that are null are left out. It also asks for the rows of the
// next group, which stand W * K entries after these and their `sources`; null where rows are so short that they make one
// stream.
template <class T, class F>
inline void from_lanes(T* lanes, int64_t K, T* const* rows, const T* const* sources, F&& f) {
  constexpr int W = kWidth<T>, B = kTile<T>;
  if constexpr (W != B)
    for (int64_t k = 0; k < K * W; k += W) store(lanes + k, f(load(lanes + k)));
  for (int64_t k = 0; k < K; k += B) {
    const int64_t from = std::min<int64_t>(k, K - B);
    for (int w = 0; w < W; w += B) {
      Tile<T> tile;
      for (int i = 0; i < B; ++i) {
        const T* at = lanes + (from + i) * W + w;
        if constexpr (W == B) tile.set(i, f(load(at)));
        else tile.load(i, at);
      }
      tile.transpose();
      for (int i = 0; i < B; ++i)
        if (rows[w + i]) tile.store(i, rows[w + i] + from);
      for (int i = 0; sources && i < B; ++i) {
        prefetch(sources[w + i] + from + W * K);
        if (rows[w + i]) prefetch_to_write(rows[w + i] + from + W * K);
      }
    }
  }
}

// Four chains of additions below: with fewer, each waits for the one before.
template <class T>
inline LaneSurvey<T> survey_lanes(const T* lanes, int64_t K) {
  constexpr int W = kWidth<T>;
  Vec<T> t0 = splat(-kInf<T>), t1 = t0, s0{}, s1{}, s2{}, s3{}, q0{}, q1{}, q2{}, q3{};
  const T* const end = lanes + K * W;
  for (; lanes + 4 * W <= end; lanes += 4 * W) {
    const Vec<T> v0 = load(lanes), v1 = load(lanes + W), v2 = load(lanes + 2 * W), v3 = load(lanes + 3 * W);
    t0 = vmax(v0, t0), t1 = vmax(v1, t1), t0 = vmax(v2, t0), t1 = vmax(v3, t1);
    s0 += v0, s1 += v1, s2 += v2, s3 += v3;
    q0 += v0 * v0, q1 += v1 * v1, q2 += v2 * v2, q3 += v3 * v3;
  }
  for (; lanes < end; lanes += W) {
    const Vec<T> v = load(lanes);
    t0 = vmax(v, t0), s0 += v, q0 += v * v;
  }
  return {vmax(t0, t1), (s0 + s1) + (s2 + s3), (q0 + q1) + (q2 + q3)};
}

template <class T>
inline void excess_lanes(const T* lanes, int64_t K, Vec<T> tau, Vec<T>& sum, Mask<T>& count) {
  constexpr int W = kWidth<T>;
  const Vec<T> zero{};
  Mask<T> n0{}, n1{};
  sum = zero;
  const T* const end = lanes + K * W;
  while (lanes + 4 * W <= end) {
    Vec<T> s0{}, s1{}, s2{}, s3{};
    const int64_t turns = std::min<int64_t>(kFold, (end - lanes) / (4 * W));
    for (const T* stop = lanes + turns * 4 * W; lanes != stop; lanes += 4 * W) {
      const Vec<T> d0 = load(lanes) - tau, d1 = load(lanes + W) - tau;
      const Vec<T> d2 = load(lanes + 2 * W) - tau, d3 = load(lanes + 3 * W) - tau;
      s0 += vmax(d0, zero), n0 -= d0 > zero;
      s1 += vmax(d1, zero), n1 -= d1 > zero;
      s2 += vmax(d2, zero), n0 -= d2 > zero;
      s3 += vmax(d3, zero), n1 -= d3 > zero;
    }
    sum += (s0 + s1) + (s2 + s3);
  }
  for (; lanes < end; lanes += W) {
    const Vec<T> d = load(lanes) - tau;
    sum += vmax(d, zero), n0 -= d > zero;
  }
  count = n0 + n1;
}

template <class T>
inline Vec<T> next_below_lanes(Vec<T> v) {
  const Mask<T> bits = (Mask<T>)v, one = Mask<T>{} + 1;
  const Mask<T> positive = v > Vec<T>{}, negative = v < Vec<T>{};
  const Mask<T> moved = bits + (positive & -one) + (negative & one);
  const Vec<T> under_zero = splat(-std::numeric_limits<T>::denorm_min());
  return select<T>(positive | negative, (Vec<T>)moved, under_zero);
}

template <class T>
inline Vec<T> add_down_lanes(Vec<T> tau, Vec<T> step) {
  const Vec<T> next = tau + step, b = next - tau;
  const Vec<T> error = (tau - (next - b)) + (step - b);
  return select<T>(error < Vec<T>{}, next_below_lanes<T>(next), next);
}

template <class T>
struct LaneCut {
  Vec<T> tau, rest, sum, count;
};

// newton() for W rows.
template <class T>
inline LaneCut<T> newton_lanes(const T* lanes, int64_t K, Vec<T> r) {
  const LaneSurvey<T> all = survey_lanes(lanes, K);
  const Vec<T> mean = all.sum / T(K), spread = vsqrt(all.squares / T(K) - mean * mean);
  const Vec<T> low = add_down_lanes<T>(all.top, -r), start = guess<T>(mean, spread, r / (spread * T(K)));
  LaneCut<T> cut{select<T>((start > low) & (start < all.top), start, low), Vec<T>{}, Vec<T>{}, Vec<T>{}};
  Mask<T> last = ~Mask<T>{}, active = last;
  for (int pass = 0;; ++pass) {
    Vec<T> sum;
    Mask<T> count;
    excess_lanes(lanes, K, cut.tau, sum, count);
    const Mask<T> beyond = (count == Mask<T>{}) & (cut.tau > low);
    const Vec<T> n = __builtin_convertvector(count, Vec<T>), step = (sum - r) / n;
    const Vec<T> next = add_down_lanes<T>(cut.tau, step);
    cut.rest = select<T>(active, step, cut.rest);
    cut.sum = select<T>(active, sum, cut.sum);
    cut.count = select<T>(active, n, cut.count);
    Mask<T> done = (count == last) | (count == Mask<T>{}) | (next == cut.tau);
    if (pass > 1) done |= count > last;
    active &= ~done | beyond;
    if (!lane_bits<T>(active)) break;
    last = (active & ~beyond) ? count : last;
    cut.tau = select<T>(active, select<T>(beyond | (next < low), low, next), cut.tau);
  }
  // A NaN or an infinite entry, or a sum that overflowed, must fail the caller's test.
  cut.sum = select<T>((all.sum - all.sum == Vec<T>{}) | (all.sum == splat(-kInf<T>)), cut.sum, splat(kInf<T>));
  return cut;
}

// The radii of W rows, 1 where it takes project_any.
template <class T>
struct LaneRadii {
  T r[kWidth<T>], scale[kWidth<T>];
  unsigned plain = 0;
  void set(int i, double radius) {
    const bool ok = plain_radius<T>(radius);
    r[i] = ok ? T(radius) : T(1);
    scale[i] = ok ? T(1 / radius) : T(1);
    plain = (plain & ~(1u << i)) | unsigned(ok) << i;
  }
};

// Projects n <= W rows of K >= kTile entries. Returns the rows left undone, one bit each: those that project_any must see.
// Nothing is written to these. `threshold` may be null.
template <class T>
inline unsigned project_lanes(const T* const* src, const LaneRadii<T>& radii, int n, int64_t K, T* const* dst, T* lanes,
                              double* threshold) {
  constexpr int W = kWidth<T>;
  const T* rows[W];
  T* out[W];
  for (int i = 0; i < W; ++i) rows[i] = src[i < n ? i : 0];
  to_lanes(rows, K, lanes);
  const Vec<T> r = load(radii.r), scale = load(radii.scale), zero{};
  const LaneCut<T> cut = newton_lanes(lanes, K, r);
  const unsigned good = lane_bits<T>((cut.sum > zero) & (cut.sum <= r + r)) & radii.plain;
  for (int i = 0; i < W; ++i) out[i] = i < n && (good >> i & 1) ? dst[i] : nullptr;
  if (threshold)
    for (int i = 0; i < n; ++i) threshold[i] = double(cut.tau[i]) + double(cut.rest[i]);
  const Vec<T> error = r * kRounding<T> / cut.count;
  from_lanes<T>(lanes, K, out, K < 64 ? nullptr : rows,
                [&](Vec<T> x) { return probability<T>(x, cut.tau, cut.rest, error, scale); });
  return ~good & ((1u << n) - 1);
}

// Gradients as vjp_short() has them, for n <= W rows of K >= kTile entries. `lanes` has room for 2 K vectors.
template <class T>
inline void vjp_lanes(const T* const* p, const T* const* v, Vec<T> scale, int n, int64_t K, T* const* g, T* lanes,
                      T* along) {
  constexpr int W = kWidth<T>;
  const T *ps[W], *vs[W];
  T* out[W];
  for (int i = 0; i < W; ++i) ps[i] = p[i < n ? i : 0], vs[i] = v[i < n ? i : 0], out[i] = i < n ? g[i] : nullptr;
  T *lp = lanes, *lv = lanes + K * W;
  to_lanes(ps, K, lp);
  to_lanes(vs, K, lv);
  const Vec<T> zero{};
  Vec<T> sum{}, wp{};
  Mask<T> count{};
  for (int64_t k = 0; k < K * W; k += W) {
    const Mask<T> on = load(lp + k) > zero;
    sum += keep<T>(on, load(lv + k)), count -= on;
  }
  const Vec<T> size = vmax(__builtin_convertvector(count, Vec<T>), splat(T(1))), mean = sum / size;
  const Vec<T> nan = load(lp) - load(lp);  // a row with NaN is NaN throughout
  for (int64_t k = 0; k < K * W; k += W) {
    const Vec<T> pk = load(lp + k), w = keep<T>(pk > zero, load(lv + k) - mean);
    wp += w * pk;
    store(lv + k, w * scale + nan);
  }
  if (along) store(along, wp + nan);
  from_lanes<T>(lv, K, out, nullptr, [](Vec<T> g) { return g; });
}

}  // namespace sparsegen::SPARSEGEN_ISA
