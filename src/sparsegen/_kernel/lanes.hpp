// Small K: W rows share the lanes of one vector, so that no pass ends in a sum across lanes.
//
// The rows are transposed into a K x W buffer and Newton's method runs in lockstep. A lane that has arrived is frozen:
// its result does not depend on its neighbours.
#pragma once

#include "simplex.hpp"

namespace sparsegen::SPARSEGEN_ISA {

// W rows to K x W. Rows hold at least kTile entries.
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

template <class T>
inline void from_lanes(const T* lanes, int64_t K, T* const* rows) {  // rows that are null are left out
  constexpr int W = kWidth<T>, B = kTile<T>;
  for (int64_t k = 0; k < K; k += B) {
    const int64_t from = std::min<int64_t>(k, K - B);
    for (int w = 0; w < W; w += B) {
      Tile<T> tile;
      for (int i = 0; i < B; ++i) tile.load(i, lanes + (from + i) * W + w);
      tile.transpose();
      for (int i = 0; i < B; ++i)
        if (rows[w + i]) tile.store(i, rows[w + i] + from);
    }
  }
}

template <class T>
inline void excess_lanes(const T* lanes, int64_t K, Vec<T> tau, Vec<T>& sum, Mask<T>& count) {
  constexpr int W = kWidth<T>;
  const Vec<T> zero{};
  Mask<T> n[kUnroll] = {};
  sum = zero;
  int64_t k = 0;
  for (; k + kUnroll <= K;) {
    Vec<T> part[kUnroll] = {};
    for (int64_t end = std::min(k + 4 * kUnroll, K); k + kUnroll <= end; k += kUnroll)
      for (int j = 0; j < kUnroll; ++j) {
        Vec<T> d = load(lanes + (k + j) * W) - tau;
        part[j] += vmax(d, zero);
        n[j] -= d > zero;
      }
    sum += (part[0] + part[1]) + (part[2] + part[3]);
  }
  for (; k < K; ++k) {
    Vec<T> d = load(lanes + k * W) - tau;
    sum += vmax(d, zero);
    n[0] -= d > zero;
  }
  count = (n[0] + n[1]) + (n[2] + n[3]);
}

template <class T>
inline Vec<T> next_below(Vec<T> v) {
  const Mask<T> bits = (Mask<T>)v, one = Mask<T>{} + 1;
  const Mask<T> positive = v > Vec<T>{}, negative = v < Vec<T>{};
  const Mask<T> moved = bits + (positive & -one) + (negative & one);
  const Vec<T> under_zero = splat(-std::numeric_limits<T>::denorm_min());
  return select<T>(positive | negative, (Vec<T>)moved, under_zero);
}

template <class T>
inline Vec<T> add_down(Vec<T> tau, Vec<T> step) {
  const Vec<T> next = tau + step, b = next - tau;
  const Vec<T> error = (tau - (next - b)) + (step - b);
  return select<T>(error < Vec<T>{}, next_below<T>(next), next);
}

template <class T>
struct LaneCut {
  Vec<T> tau, rest, sum;
};

template <class T>
inline LaneCut<T> newton_lanes(const T* lanes, int64_t K, Vec<T> r) {
  constexpr int W = kWidth<T>;
  Vec<T> top = splat(-kInf<T>), sum{};
  for (int64_t k = 0; k < K; ++k) {
    Vec<T> v = load(lanes + k * W);
    top = vmax(v, top);
    sum += v;
  }
  const Vec<T> mean = (sum - r) / T(K), low = add_down<T>(top, -r);
  LaneCut<T> cut{select<T>((mean > low) & (mean < top), mean, low), Vec<T>{}, sum};
  const Mask<T> none = Mask<T>{} + (std::numeric_limits<int32_t>::max)();
  Mask<T> last = none, active = ~Mask<T>{};
  for (bool first = true;; first = false) {
    Vec<T> excess;
    Mask<T> count;
    excess_lanes(lanes, K, cut.tau, excess, count);
    const Vec<T> step = (excess - r) / __builtin_convertvector(count, Vec<T>);
    const Vec<T> next = add_down<T>(cut.tau, step);
    cut.rest = select<T>(active, step, cut.rest);
    cut.sum = select<T>(active, excess, cut.sum);
    active &= (count < last) & (count > Mask<T>{}) & (next != cut.tau);
    if (!lane_bits<T>(active)) break;
    const Mask<T> back = first ? step < Vec<T>{} : Mask<T>{};
    last = active ? (back ? none : count) : last;
    cut.tau = select<T>(active, next, cut.tau);
  }
  // A NaN or an infinite entry, or a sum that overflowed, must fail the caller's test.
  cut.sum = select<T>((sum - sum == Vec<T>{}) | (sum == splat(-kInf<T>)), cut.sum, splat(kInf<T>));
  return cut;
}

// Projects up to W rows of K >= kTile entries. Returns the rows left undone, one bit each: those that project_any must
// see. Nothing is written to these.
template <class T>
inline unsigned project_lanes(const T* const* src, const double* r, int n, int64_t K, T* const* dst, T* lanes,
                              double* threshold) {
  constexpr int W = kWidth<T>;
  const T* rows[W];
  T* out[W];
  T radius[W], scale[W];
  for (int i = 0; i < W; ++i) {
    const int at = i < n ? i : 0;
    rows[i] = src[at];
    radius[i] = plain_radius<T>(r[at]) ? T(r[at]) : T(1);
    scale[i] = T(1 / double(radius[i]));
  }
  to_lanes(rows, K, lanes);
  const Vec<T> rv = load(radius);
  const LaneCut<T> cut = newton_lanes(lanes, K, rv);
  const unsigned good = lane_bits<T>((cut.sum > Vec<T>{}) & (cut.sum <= rv + rv));
  unsigned undone = 0;
  for (int i = 0; i < W; ++i) {
    const bool use = i < n && (good >> i & 1) && plain_radius<T>(r[i]);
    out[i] = use ? dst[i] : nullptr;
    if (use) threshold[i] = double(cut.tau[i]) + double(cut.rest[i]);
    else if (i < n) undone |= 1u << i;
  }
  const Vec<T> sv = load(scale), zero{};
  for (int64_t k = 0; k < K; ++k)
    store(lanes + k * W, vmax((load(lanes + k * W) - cut.tau) - cut.rest, zero) * sv);
  from_lanes(lanes, K, out);
  return undone;
}

}  // namespace sparsegen::SPARSEGEN_ISA
