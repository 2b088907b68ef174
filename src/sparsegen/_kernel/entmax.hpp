// One row of entmax with alpha = 1.5 (docs/math.md, section 9); powers.hpp has other alphas.
//
// It is  p = ([z - t]_+ / 2)^2: the root of  h(t) = |[z - t]_+| - 2,  convex and decreasing. Newton's method on
// h from any lower bound climbs to it, and a set of entries {z > t} that is known ends the search: its threshold solves a
// quadratic equation, and is the row's if it gives that set again, as the sets are nested. So a candidate is written and its
// entries are counted; where the count is another, the search climbs on.
#pragma once

#include "functions.hpp"
#include "simplex.hpp"

namespace sparsegen::SPARSEGEN_ISA {

struct Squares {
  double sum, squares;  // of [x - tau]_+
  int64_t count;        // of x > tau
};

template <class T>
inline void add_squares(const T* x, int64_t steps, Vec<T> t, Total<T>& sum, Total<T>& squares, Mask<T>& count) {
  constexpr int W = kWidth<T>;
  const Vec<T> zero{};
  Mask<T> n0 = count, n1{};
  for (const T* const end = x + steps * kStep<T>; x != end;) {
    Vec<T> s0{}, s1{}, q0{}, q1{}, q2{}, q3{};
    const T* const pause = end - x > kSpan<T> ? x + kSpan<T> : end;
    for (; x != pause; x += kStep<T>) {
      const Vec<T> d0 = vmax(load(x) - t, zero), d1 = vmax(load(x + W) - t, zero);
      const Vec<T> d2 = vmax(load(x + 2 * W) - t, zero), d3 = vmax(load(x + 3 * W) - t, zero);
      s0 += d0, s1 += d1, s0 += d2, s1 += d3;
      q0 = fma(d0, d0, q0), q1 = fma(d1, d1, q1), q2 = fma(d2, d2, q2), q3 = fma(d3, d3, q3);
      n0 += d0 > zero, n1 += d1 > zero, n0 += d2 > zero, n1 += d3 > zero;
    }
    sum.add(lanes_sum(s0 + s1));
    squares.add(lanes_sum((q0 + q1) + (q2 + q3)));
  }
  count = n0 + n1;
}

template <class T>
inline Squares squares_over(const Row<T>& row, T tau) {
  Total<T> sum, squares;
  Mask<T> count{};
  add_squares(row.x, row.full, splat(tau), sum, squares, count);
  if (row.steps > row.full) add_squares(row.tail, 1, splat(tau), sum, squares, count);
  return {sum.value(), squares.value(), -lanes_sum(count)};
}

inline constexpr double kRoot = 2;  // the largest entry is at most so far above the threshold
// How far off a threshold can be, times the sum of what lies above it: what rounding does to squares, 4 in all. An entry so near
// to a threshold may stand on it, and is then no member of its set.
template <class T>
inline constexpr T kRootDoubt = 16 * std::numeric_limits<T>::epsilon();

// A threshold tau + rest. One that is not sure has to give `count` entries.
template <class T>
struct RootCut {
  T tau;
  double rest;
  int64_t count;
  bool sure;
  double doubt = 0;  // how far off it can be
};

// From `tau` towards the threshold; `low` is a lower bound of it, below the largest entry. The first `bold` steps take the
// threshold of their set, which is nearer but may lie beyond; a set that comes again, or a small step, ends the search.
template <class T>
inline RootCut<T> climb_root(const Row<T>& row, T tau, T low, int bold) {
  int64_t last = -1;
  for (int pass = 0; pass < kMostPasses; ++pass) {
    const Squares e = squares_over(row, tau);
    if (e.count == 0) {
      if (!(tau > low)) break;
      tau = low, last = -1;
      continue;
    }
    const double n = double(e.count), over = e.squares - kRoot * kRoot, inside = e.sum * e.sum - n * over;
    const double newton = (e.squares - kRoot * std::sqrt(e.squares)) / e.sum;
    const double step = inside >= 0 ? over / (e.sum + std::sqrt(inside)) : newton;
    const bool near = bold > 0 && std::fabs(step) < kRoot / 256;
    if (inside >= 0 && (e.count == last || near)) return {tau, step, e.count, false, kRootDoubt<T> / e.sum};
    const T next = std::max(add_down(tau, bold > 0 ? step : newton), low);
    if (next == tau) return {tau, step, e.count, true, kRootDoubt<T> / e.sum};
    last = bold > 0 ? -1 : e.count, tau = next, --bold;
  }
  return {low, 0, 0, false};
}

// Where the threshold of K normal scores would be: the c with E[Z - c]_+^2 = share.
template <class T>
inline double guess_root(double share) {
  const double v = log2_about<T>(splat(T(share)))[0];
  if (v < -1) return ((((v * -6.844959e-07 - 5.1586337e-05) * v - 0.0016156982) * v - 0.029205868) * v - 0.47548993) * v - 0.44250705;
  return ((((v * -7.6704728e-05 - 0.00071547326) * v - 0.0057006771) * v - 0.045622487) * v - 0.51140555) * v - 0.47072502;
}

// Writes ((x - tau - rest) / 2)^2 where that is above the rounding error, else 0; returns how many are. `p` may be `x`.
template <bool stream, class T>
inline int64_t write_root(const Row<T>& row, int64_t K, const RootCut<T>& cut, T* p) {
  constexpr int W = kWidth<T>;
  const Vec<T> tau = splat(cut.tau), rest = splat(T(cut.rest));
  const Vec<T> error = splat(T(cut.doubt));
  Mask<T> count{};
  const auto one = [&](const T* x, T* out) {
    const Vec<T> d = (load(x) - tau) - rest, u = d * T(1 / kRoot);
    const Mask<T> in = d > error;
    count += in;
    put<stream>(out, keep<T>(in, u * u));
  };
  const int64_t whole = row.full * kStep<T>;
  for (int64_t i = 0; i < whole; i += W) one(row.x + i, p + i);
  if (whole < K) {
    alignas(kVectorBytes) T last[kStep<T>];
    for (int i = 0; i < kStep<T>; i += W) one(row.tail + i, last + i);
    std::copy_n(last, K - whole, p + whole);
  }
  return -lanes_sum(count);
}

// The plain twin: by sorting, in double. `x` is not written unless it is `p`.
template <class T>
inline void root_sorted(const T* x, int64_t K, T* p) {
  std::vector<double> sorted(x, x + K);
  std::sort(sorted.begin(), sorted.end(), std::greater<double>());
  const double top = sorted[0];
  double mean = 0, squares = 0, tau = -kRoot;  // of the entries so far, from the largest down, less that one
  for (int64_t k = 1; k <= K; ++k) {
    const double u = sorted[k - 1] - top, away = u - mean;
    if (k > 1 && !(u > tau + kRootDoubt<double> / kRoot)) break;
    const double next_mean = mean + away / double(k), next = squares + away * (u - next_mean);
    const double room = (kRoot * kRoot - next) / double(k);
    if (room < 0) break;
    mean = next_mean, squares = next, tau = mean - std::sqrt(room);
  }
  double sum = 0;
  for (int64_t i = 0; i < K; ++i) sum += std::pow(std::max((double(x[i]) - top) - tau, 0.0) / kRoot, 2);
  for (int64_t i = 0; i < K; ++i) p[i] = T(std::pow(std::max((double(x[i]) - top) - tau, 0.0) / kRoot, 2) / sum);
}

// NaN, +inf, or nothing to choose; false for rows with an answer.
template <class T>
inline bool is_odd(const T* x, int64_t K, T top, T* p) {
  bool bad = top == kInf<T> || std::isnan(top);
  for (int64_t i = 0; i < K && !bad; ++i) bad = std::isnan(x[i]);
  if (bad) std::fill_n(p, K, std::numeric_limits<T>::quiet_NaN());
  else if (top == -kInf<T>) std::fill_n(p, K, T(0));
  return bad || top == -kInf<T>;
}

// alpha = 1.5; `x` may be written over, and may be `p`.
template <class T>
inline void root_row(T* x, int64_t K, T* p, const Scratch<T>& s) {
  const Row<T> row(x, K);
  T* const maxima = K < kBlockedFrom ? nullptr : s.maxima;
  Survey<T> all;
  survey<false>(row.x, row.full, maxima ? kBlock : kFold, maxima, all);
  if (row.steps > row.full) survey_tail(row, maxima, all);
  const T top = lanes_max(all.top);
  const double total = lanes_sum(all.sum);
  if (!(std::isfinite(total) && std::fabs(top) < kInf<T>) && is_odd(x, K, top, p)) return;
  if (std::fabs(top) > T(1024 * kRoot)) {  // differences from the largest entry are exact where they matter
    for (int64_t i = 0; i < K; ++i) x[i] -= top;
    return root_row(x, K, p, s);
  }
  const T low = add_down(top, -kRoot);
  const double mean = total / double(K), variance = lanes_sum(all.squares) / double(K) - mean * mean;
  RootCut<T> cut{low, 0, 0, false};
  if (maxima && low > mean) {
    // A subset of the entries bounds the threshold from below; its blocks then hold all that matters.
    const int64_t n = (row.steps + kBlock - 1) / kBlock * kWidth<T>;
    const RootCut<T> bound = climb_root(Row<T>(maxima, n), low, low, 0);
    if (bound.count > 0 && bound.count * 4 <= n) {
      const Row<T> picked(s.picked, pick(row.x, row, maxima, bound.tau, s.picked));
      cut = climb_root(picked, bound.tau, bound.tau, 2);
    }
  }
  if (cut.count == 0) {
    const double spread = std::sqrt(variance), share = kRoot * kRoot / (double(K) * variance);
    const T start = T(mean + spread * guess_root<T>(share));
    cut = climb_root(row, start > low && start < top ? start : low, low, 2);
  }
  const bool late = x == p;  // the entries may be needed once more, so they are not written over yet
  T* const out = late ? s.picked : p;
  const auto write = s.stream && aligned(p) && !late ? write_root<true, T> : write_root<false, T>;
  for (int64_t tries = 0, before = -1; cut.count > 0 && tries < kMostPasses; ++tries) {
    const int64_t wrote = write(row, K, cut, out);
    if (wrote == cut.count || cut.sure) {
      if (late) std::copy_n(out, K, p);
      return;
    }
    if (wrote == before) break;  // entries on the threshold, or next to it
    before = wrote;
    cut = climb_root(row, std::max(add_down(cut.tau, cut.rest < 0 ? cut.rest : 0), low), low, -int(tries));
  }
  root_sorted(x, K, p);
}

}  // namespace sparsegen::SPARSEGEN_ISA
