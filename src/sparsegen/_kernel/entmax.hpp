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

inline constexpr double kRoot = 2;  // the largest entry is at most so far above the threshold: the root of kSquares
// How far off a threshold can be, times the sum of what lies above it: what rounding does to squares, 4 in all. An entry so near
// to a threshold may stand on it, and is then no member of its set.
template <class T>
inline constexpr T kRootDoubt = 16 * std::numeric_limits<T>::epsilon();

// The share of an entry is the square of half of what it lies above the threshold: tau and rest are halved before.
struct Squarely {
  template <class V>
  static V below(V tau, V v, V rest) { return fma(v, V{} - 0.5f, tau) + rest; }
  template <class V>
  static V share(V d, V) { return d * d; }
};

// A threshold tau + rest. One that is not sure has to give `count` entries.
template <class T>
struct RootCut {
  using How = Squarely;
  T tau;
  double rest;
  int64_t count;
  bool sure;
  double doubt = 0;  // how far off it can be

  T bound() const { return rest < 0 ? add_down(tau, rest) : tau; }
  RowRecipe<T> recipe(double r) const { return {T(tau / r), T(rest / r), -T(doubt / r), T(1), bound()}; }
};

// Where the entries above tau lead: to the threshold of their set, if they are not too far apart to have one (`real`), and by
// Newton's method, which does not lead beyond the row's.
struct RootStep {
  double set, newton;
  bool real;
  explicit RootStep(const Excess& e) {
    const double squares = e.over + kSquares, inside = e.sum * e.sum - double(e.count) * e.over;
    newton = (squares - kRoot * std::sqrt(squares)) / e.sum;
    real = inside >= 0, set = real ? e.over / (e.sum + std::sqrt(inside)) : newton;
  }
};

inline constexpr int kBold = 3;  // as many steps find the set of most rows

// From `tau` towards the threshold; `low` is a lower bound of it, below the largest entry. The first `bold` steps take the
// threshold of their set, which is nearer but may lie beyond; a set that comes again ends the search.
template <class T>
inline RootCut<T> climb_root(const Row<T>& row, T tau, T low, int bold) {
  int64_t last = -1;
  for (int pass = 0; pass < kMostPasses; ++pass, --bold) {
    const Excess e = excess<true>(row, tau);
    if (e.count == 0) break;  // by rounding
    const RootStep step(e);
    const double doubt = kRootDoubt<T> / e.sum;
    if (step.real && e.count == last) return {tau, step.set, e.count, false, doubt};
    const T next = std::max(add_down(tau, bold > 0 ? step.set : step.newton), low);
    if (next == tau) return {tau, step.set, e.count, true, doubt};
    last = e.count, tau = next;
  }
  return {low, 0, 0, false};
}

// Two passes from a guess below the largest entry. The squares over t have the third derivative -2 density, and the density that
// normal scores have at a threshold is known from sums over it: the second pass is where that leads. The set it finds is right for
// more than nine rows in ten, which shows when it is written.
template <class T>
inline RootCut<T> draft_root(const Row<T>& row, T start, T low, double mean, double variance, int64_t ahead) {
  const Excess e = excess<true>(row, start, ahead);
  const RootStep step(e);
  const double n = double(e.count), density = std::max((e.sum + (start - mean) * n) / variance, 0.0);
  const double bend = density * step.set * step.set, bent = step.set - step.set * bend / (3 * (bend + 2 * (e.sum - n * step.set)));
  const T tau = std::max(T(start + (step.real && std::isfinite(bent) ? bent : step.newton)), low);
  const Excess f = excess<true>(row, tau);
  const RootStep rest(f);
  // Squares far larger than 4 have too few digits of what they exceed it by.
  if (!(f.count > 0 && rest.real && f.over <= kSquares)) return climb_root(row, low, low, kBold);
  return {tau, rest.set, f.count, false, kRootDoubt<T> / f.sum};
}

// Where the threshold of K normal scores of this mean and spread would be: the c with E[Z - c]_+^2 = share, share = 4 / (K
// spread^2).
template <class T>
inline Vec<T> guess_root(Vec<T> mean, Vec<T> spread, Vec<T> share) {
  const Vec<T> v = log2_about<T>(share);
  const auto polynomial = [=](double a, double b, double c, double d, double e, double f) {
    return ((((v * T(a) + T(b)) * v + T(c)) * v + T(d)) * v + T(e)) * v + T(f);
  };
  const Vec<T> right = polynomial(-6.844959e-07, -5.1586337e-05, -0.0016156982, -0.029205868, -0.47548993, -0.44250705);
  const Vec<T> left = polynomial(-7.6704728e-05, -0.00071547326, -0.0057006771, -0.045622487, -0.51140555, -0.47072502);
  return mean + spread * select<T>(v < splat(T(-1)), right, left);
}

// The plain twin: by sorting, in double. `x` is not written unless it is `p`.
template <class T>
inline void root_sorted(const T* x, int64_t K, T* p) {
  std::vector<double> sorted(x, x + K);
  std::sort(sorted.begin(), sorted.end(), std::greater<double>());
  const double top = sorted[0];
  constexpr double doubt = kRootDoubt<double> / kRoot;
  double mean = 0, squares = 0, tau = -kRoot;  // of the entries so far, from the largest down, less that one
  for (int64_t k = 1; k <= K; ++k) {
    const double u = sorted[k - 1] - top, away = u - mean;
    if (k > 1 && !(u > tau + doubt)) break;
    const double next_mean = mean + away / double(k), next = squares + away * (u - next_mean);
    const double room = (kSquares - next) / double(k);
    if (room < 0) break;
    mean = next_mean, squares = next, tau = mean - std::sqrt(room);
  }
  double sum = 0;
  const auto share = [=](T v) {
    const double d = (double(v) - top) - tau;
    return d > doubt ? d * d / kSquares : 0.0;
  };
  for (int64_t i = 0; i < K; ++i) sum += share(x[i]);
  for (int64_t i = 0; i < K; ++i) p[i] = T(share(x[i]) / sum);
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

// The cut of a row few of whose entries matter, as find_sparse() has it.
template <class T>
inline bool find_sparse_root(const Row<T>& row, const T* maxima, T start, T low, T* picked, RootCut<T>& cut) {
  const int64_t blocks = (row.steps + kBlock - 1) / kBlock * kWidth<T>;
  const RootCut<T> of_maxima = climb_root(Row<T>(maxima, blocks), start, low, kBold);
  if (!(of_maxima.count > 0 && of_maxima.count * 4 <= blocks)) return false;
  const T bound = of_maxima.bound();
  cut = climb_root(Row<T>(picked, pick(row, maxima, bound, picked)), bound, bound, kBold);
  return cut.count > 0;
}

// alpha = 1.5. `spare` has room for the row, and may be `x` or `p`, as `x` may be `p`; `ahead` entries on is the row that comes
// next. Its support goes to `words` unless null, and whether it did is returned.
template <class T>
inline bool root_row(const T* x, int64_t K, T* p, const Scratch<T>& s, T* spare, int64_t ahead = 0, uint32_t* words = nullptr) {
  const Row<T> row(x, K);
  T* const maxima = K < kBlockedFrom ? nullptr : s.maxima;
  Survey<T> all;
  const double open = survey_row(row, K, maxima, s.hidden, false, all), n = open > 0 ? open : double(K);
  const T top = lanes_max(all.top);
  const double mean = lanes_sum(all.sum) / n, variance = lanes_sum(all.squares) / n - mean * mean;
  if (!(std::isfinite(mean) && std::fabs(top) < kInf<T>) && is_odd(x, K, top, p)) return false;
  if (std::fabs(top) > T(1024 * kRoot)) {  // differences from the largest entry are exact where they matter
    for (int64_t i = 0; i < K; ++i) spare[i] = x[i] - top;
    return root_row(spare, K, p, s, spare, 0, words);
  }
  const T low = add_down(top, -kRoot), share = T(kSquares / (n * variance));
  const T guess = guess_root<T>(splat(T(mean)), splat(T(std::sqrt(variance))), splat(share))[0];
  const bool likely = guess > low && guess < top;
  const T start = likely ? guess : low;
  RootCut<T> cut{low, 0, 0, false};
  if (!(maxima && low > mean && find_sparse_root(row, maxima, start, low, s.picked, cut)))
    cut = likely ? draft_root(row, start, low, mean, variance, K <= soon_limit() ? ahead : 0) : climb_root(row, low, low, kBold);
  const bool late = x == p;  // the entries may be needed once more, so they are not written over yet
  T* const out = late ? s.picked : p;
  const bool stream = s.stream && aligned(p) && !late;
  const auto write = stream ? write_row<true, T, const T*, RootCut<T>> : write_row<false, T, const T*, RootCut<T>>;
  for (int64_t tries = 0, before = -1; cut.count > 0 && tries < kMostPasses; ++tries) {
    const int64_t wrote = write(row, K, maxima, cut, kRoot, out, words);
    if (wrote == cut.count || cut.sure) {
      if (late) std::copy_n(out, K, p);
      return words != nullptr;
    }
    if (wrote == before) break;  // entries on the threshold, or next to it
    before = wrote;
    cut = climb_root(row, std::max(add_down(cut.tau, cut.rest < 0 ? cut.rest : 0), low), low, -int(tries));
  }
  root_sorted(x, K, p);
  return false;
}

}  // namespace sparsegen::SPARSEGEN_ISA
