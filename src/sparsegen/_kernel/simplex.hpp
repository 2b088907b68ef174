// One row of  project(x, r) = [x - tau]_+ / r,  tau such that the result sums to 1, and its vector-Jacobian product.
//
// tau is the root of  f(t) = sum [x - t]_+ - r,  convex, decreasing and piecewise linear. Newton's method from any
// lower bound of tau climbs monotonically and stops at the root once the set {x > t} no longer shrinks. It ends:
// every pass but the last takes at least one entry out of that set, so there are at most K + 1; and since
// f_next / f + n_next / n <= 1, f * n falls fourfold a pass, so log4(K^2 / eps) passes bring f below the rounding error
// (K = 1e6: 32 in float, 46 in double).
//
// The threshold is kept as two numbers, tau + rest. tau is rounded down, which keeps "x > tau" exact for entries that
// share tau's floating-point grid; rest is what the last pass left over, so that x - tau - rest loses no digits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "simd.hpp"

namespace sparsegen::SPARSEGEN_ISA {

inline constexpr int kUnroll = 4;
template <class T>
inline constexpr int kStep = kUnroll * kWidth<T>;  // entries a loop turn handles
inline constexpr int64_t kFold = 16;               // turns after which a partial sum joins the total

// Running total of many partial sums: double for float, compensated for double.
template <class T>
struct Total {
  double sum = 0, low = 0;
  void add(T x) {
    if constexpr (sizeof(T) == 8) {
      double s = sum + x, b = s - sum;
      low += (sum - (s - b)) + (x - b);
      sum = s;
    } else {
      sum += x;
    }
  }
  double value() const { return sum + low; }
};

// A row cut into steps of kStep entries; the last, incomplete step stands in `tail`, filled up with -inf.
template <class T>
struct Row {
  const T* x;
  int64_t full, steps;
  T tail[kStep<T>];

  Row(const T* data, int64_t n) : x(data), full(n / kStep<T>), steps(full) {
    const int64_t left = n - full * kStep<T>;
    if (left == 0) return;
    std::fill_n(tail, kStep<T>, -kInf<T>);
    std::copy_n(x + full * kStep<T>, left, tail);
    ++steps;
  }
  const T* at(int64_t i) const { return i < full ? x + i * kStep<T> : tail; }
};

struct Excess {
  double sum;     // of [x - tau]_+
  int64_t count;  // of x > tau
};

template <class T>
inline Excess excess(const Row<T>& row, T tau) {
  const Vec<T> t = splat(tau), zero{};
  Total<T> total;
  Mask<T> count[kUnroll] = {};
  for (int64_t from = 0; from < row.steps; from += kFold) {
    Vec<T> sum[kUnroll] = {};
    for (int64_t i = from; i < std::min(from + kFold, row.steps); ++i) {
      const T* x = row.at(i);
      for (int j = 0; j < kUnroll; ++j) {
        Vec<T> d = load(x + j * kWidth<T>) - t;
        sum[j] += vmax(d, zero);
        count[j] -= d > zero;
      }
    }
    total.add(lanes_sum<T>((sum[0] + sum[1]) + (sum[2] + sum[3])));
  }
  return {total.value(), lanes_count<T>((count[0] + count[1]) + (count[2] + count[3]))};
}

// tau + step, rounded down.
template <class T>
inline T add_down(T tau, double step) {
  T next = T(tau + step);
  double b = double(next) - tau;
  double error = (tau - (next - b)) + (step - b);  // exact for double; for float the sum above is exact enough
  if (sizeof(T) == 4) error = (double(tau) + step) - next;
  return error < 0 ? std::nextafter(next, -kInf<T>) : next;
}

template <class T>
struct Cut {
  T tau;
  double rest;    // p = [x - tau - rest]_+ / r
  double sum;     // excess over tau of the entries counted
  int64_t count;
};

// From `tau`, below the row's maximum, to the threshold. A start above the threshold costs one pass: f is convex, so the
// first step lands below it.
template <class T>
inline Cut<T> newton(const Row<T>& row, T tau, double r) {
  constexpr int64_t none = std::numeric_limits<int64_t>::max();
  int64_t last = none;
  for (bool first = true;; first = false) {
    const Excess e = excess(row, tau);
    const double step = (e.sum - r) / double(e.count);
    const T next = add_down(tau, step);
    if (e.count >= last || e.count == 0 || next == tau) return {tau, step, e.sum, e.count};
    last = first && step < 0 ? none : e.count;
    tau = next;
  }
}

// What one pass over the row tells: its maximum, its sum, and per lane the maxima of blocks of `R` steps.
template <class T, int R>
inline void survey(const Row<T>& row, T* maxima, T& top, double& sum) {
  Vec<T> most = splat(-kInf<T>), total{};
  for (int64_t from = 0; from < row.steps; from += R) {
    Vec<T> block = splat(-kInf<T>), part[kUnroll] = {};
    for (int64_t i = from; i < std::min<int64_t>(from + R, row.steps); ++i) {
      const T* x = row.at(i);
      const bool padded = i >= row.full;
      Vec<T> v[kUnroll];
      for (int j = 0; j < kUnroll; ++j) v[j] = load(x + j * kWidth<T>);
      block = vmax(vmax(vmax(v[0], v[1]), vmax(v[2], v[3])), block);
      for (int j = 0; j < kUnroll; ++j)
        part[j] += padded ? select<T>(v[j] == splat(-kInf<T>), Vec<T>{}, v[j]) : v[j];
    }
    store(maxima + from / R * kWidth<T>, block);
    most = vmax(block, most);
    total += (part[0] + part[1]) + (part[2] + part[3]);
  }
  top = lanes_max<T>(most);
  sum = lanes_sum<T>(total);
}

template <class T>
struct Scratch {
  T* maxima = nullptr;  // K / 4 and padding
  T* picked = nullptr;  // K and padding
  T* lanes = nullptr;   // small K only: K x W
  T* rows = nullptr;    // kGroup rows of `stride` entries
  int32_t* touched = nullptr;
  int64_t stride = 0;
};

// Entries above `bound`, from the blocks that hold any. `out` has room for K entries and a padding step.
template <class T, int R>
inline int64_t pick(const Row<T>& row, const T* maxima, T bound, T* out) {
  const Vec<T> b = splat(bound);
  int64_t n = 0;
  for (int64_t from = 0; from < row.steps; from += R) {
    if (!lane_bits<T>(load(maxima + from / R * kWidth<T>) > b)) continue;
    for (int64_t i = from; i < std::min<int64_t>(from + R, row.steps); ++i) {
      const T* x = row.at(i);
      for (int j = 0; j < kUnroll; ++j) {
        Vec<T> v = load(x + j * kWidth<T>);
        unsigned bits = lane_bits<T>(v > b);
        if (bits) n += pack(out + n, v, bits);
      }
    }
  }
  const int64_t end = (n + kStep<T> - 1) / kStep<T> * kStep<T>;
  std::fill(out + n, out + end, -kInf<T>);
  return n;
}

// Writes p, skipping the arithmetic for blocks without an entry above tau. `p` may be `x` itself.
template <class T, int R>
inline void write_row(const Row<T>& row, int64_t K, const T* maxima, const Cut<T>& cut, double r, T* p) {
  const Vec<T> tau = splat(cut.tau), rest = splat(T(cut.rest)), scale = splat(T(1 / r)), zero{};
  const Vec<T> bound = splat(T(cut.rest) < 0 ? -kInf<T> : cut.tau);
  for (int64_t from = 0; from < row.steps; from += R) {
    const bool any = lane_bits<T>(load(maxima + from / R * kWidth<T>) > bound);
    for (int64_t i = from; i < std::min<int64_t>(from + R, row.steps); ++i) {
      T last[kStep<T>];
      const T* x = row.at(i);
      T* out = i < row.full ? p + i * kStep<T> : last;
      for (int j = 0; j < kUnroll; ++j) {
        Vec<T> v = zero;
        if (any) v = vmax((load(x + j * kWidth<T>) - tau) - rest, zero) * scale;
        store(out + j * kWidth<T>, v);
      }
      if (i >= row.full) std::copy_n(last, K - row.full * kStep<T>, p + row.full * kStep<T>);
    }
  }
}

// Radii between which float arithmetic neither overflows nor loses digits to underflow.
template <class T>
inline bool plain_radius(double r) {
  constexpr double big = sizeof(T) == 4 ? 0x1p60 : 0x1p500;
  return r >= 1 / big && r <= big;
}

template <class T, int R>
inline bool project_plain_radius(const T* x, int64_t K, double r, T* p, const Scratch<T>& s, double& threshold) {
  const Row<T> row(x, K);
  T top;
  double sum;
  survey<T, R>(row, s.maxima, top, sum);
  // NaN, +inf and nothing to choose are left to the caller, as is a sum that overflowed.
  if (!(std::fabs(top) < kInf<T>) || std::isnan(sum)) return false;

  const int64_t blocks = (row.steps + R - 1) / R * kWidth<T>;
  Cut<T> cut = newton(Row<T>(s.maxima, blocks), add_down(top, -r), r);  // a subset of the entries bounds tau from below
  if (cut.count * 4 <= blocks) {
    const int64_t n = pick<T, R>(row, s.maxima, cut.tau, s.picked);
    cut = newton(Row<T>(s.picked, n), cut.tau, r);
  } else {
    const T mean = T((sum - r) / double(K));  // the whole row as the support
    cut = newton(row, mean > cut.tau && mean < top ? mean : cut.tau, r);
  }
  // Entries far from 0 beside a small radius: tau's grid is too coarse, and x - max must come first.
  if (!(cut.count > 0 && cut.sum <= 2 * r)) return false;
  write_row<T, R>(row, K, s.maxima, cut, r, p);
  threshold = double(cut.tau) + cut.rest;
  return true;
}

template <class T>
inline bool project_direct(const T* x, int64_t K, double r, T* p, const Scratch<T>& s, double& threshold) {
  if (!plain_radius<T>(r)) return false;
  if (K < 4096) return project_plain_radius<T, 1>(x, K, r, p, s, threshold);
  return project_plain_radius<T, 4>(x, K, r, p, s, threshold);
}

// r -> 0: uniform on the maximal entries. r -> inf: uniform on all that may be chosen.
template <class T>
inline void uniform_row(const T* x, int64_t K, T above, T* p) {
  const int64_t n = std::count_if(x, x + K, [=](T v) { return v > above; });
  const T share = T(1.0 / double(n));
  for (int64_t i = 0; i < K; ++i) p[i] = x[i] > above ? share : T(0);
}

// Any row and radius: shifts by the maximum and brings the radius near 1 by a power of two where that is needed.
// `x` is overwritten and may be `p`.
template <class T>
inline void project_any(T* x, int64_t K, double r, T* p, const Scratch<T>& s, double& threshold) {
  T top = -kInf<T>;
  bool bad = std::isnan(r) || r < 0;
  for (int64_t i = 0; i < K; ++i) {
    bad |= std::isnan(x[i]) || x[i] == kInf<T>;
    top = std::max(top, x[i]);
  }
  threshold = std::numeric_limits<double>::quiet_NaN();
  if (bad) return void(std::fill_n(p, K, std::numeric_limits<T>::quiet_NaN()));
  if (top == -kInf<T>) return void(std::fill_n(p, K, T(0)));
  threshold = r == 0 ? double(top) : -std::numeric_limits<double>::infinity();
  if (r == 0) return uniform_row(x, K, std::nextafter(top, -kInf<T>), p);
  if (std::isinf(r)) return uniform_row(x, K, -kInf<T>, p);

  const int power = plain_radius<T>(r) ? 0 : -std::ilogb(r);
  const T half = T(std::ldexp(1.0, power / 2)), rest = T(std::ldexp(1.0, power - power / 2));
  for (int64_t i = 0; i < K; ++i) x[i] = (x[i] - top) * half * rest;
  double shifted = 0;
  if (!project_direct(x, K, std::ldexp(r, power), p, s, shifted)) {
    // Not reached: the shifted maximum is 0 and the radius lies in [1, 2) or in the plain range.
    std::fill_n(p, K, std::numeric_limits<T>::quiet_NaN());
    return;
  }
  threshold = double(top) + std::ldexp(shifted, -power);
}

// Mean over the entries that are not -inf, and their number. NaN and +inf come through.
template <class T>
inline double mean_row(const T* x, int64_t K, double& count) {
  constexpr int lanes = 16;
  double sum[lanes] = {}, n[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= K; i += lanes)
    for (int j = 0; j < lanes; ++j) {
      sum[j] += x[i + j] == -kInf<T> ? 0.0 : double(x[i + j]);
      n[j] += x[i + j] == -kInf<T> ? 0.0 : 1.0;
    }
  for (; i < K; ++i) {
    sum[0] += x[i] == -kInf<T> ? 0.0 : double(x[i]);
    n[0] += x[i] == -kInf<T> ? 0.0 : 1.0;
  }
  for (int w = lanes / 2; w > 0; w /= 2)
    for (int j = 0; j < w; ++j) sum[j] += sum[j + w], n[j] += n[j + w];
  count = n[0];
  if (count == 0) return 0;
  if (std::isfinite(sum[0])) return sum[0] / count;
  double mean = 0;  // the sum overflowed, or an entry is not finite
  for (i = 0; i < K; ++i) mean += x[i] == -kInf<T> ? 0.0 : double(x[i]) / count;
  return mean;
}

// grad_x = s o (v - mean_S v) / r  and  w.p  with w = s o (v - mean_S v), s = [p > 0]; reads v on the support only.
template <class T>
inline double vjp_row(const T* p, const T* v, int64_t K, double r, T* g, int32_t* touched) {
  const T nan = std::numeric_limits<T>::quiet_NaN();
  if (K == 0) return 0;
  if (std::isnan(p[0])) {
    std::fill_n(g, K, nan);
    return nan;
  }
  constexpr int W = kWidth<T>;
  const int64_t full = K / kStep<T>;
  const Vec<T> zero{};
  Total<T> total;
  Mask<T> count[kUnroll] = {};
  Vec<T> sum[kUnroll] = {};
  int64_t n = 0, folded = 0;
  for (int64_t i = 0; i < full; ++i) {
    Mask<T> on[kUnroll];
    for (int j = 0; j < kUnroll; ++j) on[j] = load(p + i * kStep<T> + j * W) > zero;
    if (!lane_bits<T>((on[0] | on[1]) | (on[2] | on[3]))) {
      for (int j = 0; j < kUnroll; ++j) store(g + i * kStep<T> + j * W, zero);
      continue;
    }
    touched[n++] = int32_t(i);
    for (int j = 0; j < kUnroll; ++j) {
      sum[j] += keep<T>(on[j], load(v + i * kStep<T> + j * W));
      count[j] -= on[j];
    }
    if (n - folded == kFold) {
      total.add(lanes_sum<T>((sum[0] + sum[1]) + (sum[2] + sum[3])));
      for (auto& part : sum) part = zero;
      folded = n;
    }
  }
  total.add(lanes_sum<T>((sum[0] + sum[1]) + (sum[2] + sum[3])));
  int64_t support = lanes_count<T>((count[0] + count[1]) + (count[2] + count[3]));
  for (int64_t i = full * kStep<T>; i < K; ++i) {
    if (!(p[i] > 0)) continue;
    total.add(v[i]);
    ++support;
  }
  const T mean = support ? T(total.value() / double(support)) : T(0);
  const T scale = r == 0 ? T(0) : std::min(T(1 / r), std::numeric_limits<T>::max());
  Total<T> along;  // w.p
  for (int64_t t = 0; t < n; ++t) {
    const int64_t at = touched[t] * int64_t(kStep<T>);
    Vec<T> part = zero;
    for (int j = 0; j < kUnroll; ++j) {
      const Vec<T> pj = load(p + at + j * W);
      const Vec<T> w = keep<T>(pj > zero, load(v + at + j * W) - splat(mean));
      store(g + at + j * W, w * splat(scale));
      part += keep<T>(pj > zero, w * pj);
    }
    along.add(lanes_sum<T>(part));
  }
  for (int64_t i = full * kStep<T>; i < K; ++i) {
    const T w = p[i] > 0 ? v[i] - mean : T(0);
    g[i] = w * scale;
    along.add(w * p[i]);
  }
  return along.value();
}

}  // namespace sparsegen::SPARSEGEN_ISA
