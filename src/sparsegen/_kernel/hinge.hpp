// The hinge losses of one row. With labels Y (P of them), the other entries N and a radius r,
//
//   F(z, r) = sum_{i, j in Y} |z_i - z_j| + sum_{i in Y, j in N} [r/P - (z_i - z_j)]_+      (ordered pairs)
//
// is piecewise linear in z and r. Both losses of the paper are this function: of sparsegen F(z, 1 - lam)/(1 - lam), of
// sparsehourglass F(z, r(z)). The kernel gives F and its slopes; the chain rule outside does the rest. At a kink a pair
// counts as inactive, which is a subgradient.
//
// A smoothing s > 0 replaces |d| by Huber's function and [d]_+ by d^2/(2s) up to d = s and d - s/2 beyond: the gradient is
// then continuous, and still a convex combination of subgradients of F, which a solver can turn into a dual bound.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "job.hpp"
#include "storage.hpp"

namespace sparsegen::SPARSEGEN_ISA {

// Up to this many labels every pair is looked at; above, each entry finds its place among the sorted labels. The two are
// equally fast between 12 labels (scores well apart) and 28 (random scores): see docs/decisions/0007.
inline constexpr int64_t kPairsUpTo = 16;

struct Label {
  double u;      // score above the lowest label's
  int64_t at;    // its entry
  double slope;  // dF/dz there
};

inline constexpr size_t kKeptScores = 1 << 18;  // longer rows give their memory back when the call ends

// One thread's memory, O(K).
struct HingeScratch {
  std::vector<double> x;      // scores above the lowest label's; -inf for labels and hidden entries
  std::vector<double> n;      // dF/dz of the entries that are no labels
  std::vector<Label> labels;  // sorted by score
  std::vector<double> t, sum, square, whole, part, weighted;  // P + 1 each: see hinge_sorted
};

// sum over ordered pairs of labels of |u_i - u_j|, by the gaps between neighbours: no term is negative.
inline double label_pairs(std::vector<Label>& labels) {
  const int64_t P = int64_t(labels.size());
  double total = 0;
  for (int64_t from = 0, to; from < P; from = to) {
    for (to = from; to < P && labels[to].u == labels[from].u;) ++to;  // ties pull nowhere
    for (int64_t i = from; i < to; ++i) labels[i].slope = 2 * double(from - (P - to));
    if (to < P) total += 2 * double(to) * double(P - to) * (labels[to].u - labels[from].u);
  }
  return total;
}

// The same, smoothed: pairs at most `s` apart pull in proportion to their distance.
inline double label_pairs_smooth(std::vector<Label>& labels, double s, HingeScratch& w) {
  const int64_t P = int64_t(labels.size());
  double total = 0;
  for (int64_t r = 0; r < P; ++r) labels[r].slope = 0;
  for (int64_t r = 0, low = 0; r < P; ++r) {
    const double u = labels[r].u;
    while (u - labels[low].u >= s && low < r) ++low;
    // Below `low` pairs are a full `s` apart; from there to r they are close.
    const double far = double(low), sum_far = w.sum[low], close = double(r - low);
    const double sum_close = w.sum[r] - w.sum[low], square_close = w.square[r] - w.square[low];
    total += 2 * (far * u - sum_far - far * s / 2);
    total += (close * u * u - 2 * u * sum_close + square_close) / s;
    labels[r].slope += 2 * (far + (close * u - sum_close) / s);
  }
  for (int64_t r = P, high = P; r-- > 0;) {
    const double u = labels[r].u;
    while (high > r + 1 && labels[high - 1].u - u >= s) --high;
    const double far = double(P - high), close = double(high - r - 1);
    labels[r].slope -= 2 * (far + (w.sum[high] - w.sum[r + 1] - close * u) / s);
  }
  return total;
}

// Hinges by looking at every pair, a vector of entries at a time. `x` is padded with -inf to whole vectors. Adds to
// labels' slopes, writes n, and returns the sum; `active` counts (with weights, if smoothed) the pairs.
template <bool smooth>
inline double hinge_pairs(HingeScratch& w, double margin, double s, double& active) {
  using V = Vec<double>;
  constexpr int W = kWidth<double>;
  const int64_t P = int64_t(w.labels.size()), K = int64_t(w.x.size());
  V count[kPairsUpTo], total{};
  for (int64_t i = 0; i < P; ++i) count[i] = V{};
  for (int64_t j = 0; j < K; j += W) {
    const V x = load(&w.x[j]);
    V n{};
    if (lane_bits<double>(x > splat(-margin)))  // the lowest label stands at 0
      for (int64_t i = 0; i < P; ++i) {
        const V d = vmax(x - splat(w.labels[i].u - margin), V{});
        V on;
        if constexpr (smooth) {
          const V share = d / s;
          on = select<double>(share > splat(1.0), splat(1.0), share);
          total += on * (d - on * (s / 2));
        } else {
          on = keep<double>(d > V{}, splat(1.0));
          total += d;
        }
        n += on;
        count[i] += on;
      }
    store(&w.n[j], n);
  }
  double sum = 0;
  for (int i = 0; i < W; ++i) sum += total[i];
  for (int64_t i = 0; i < P; ++i) {
    double a = 0;
    for (int l = 0; l < W; ++l) a += count[i][l];
    w.labels[i].slope -= a;
    active += a;
  }
  return sum;
}

// How many of the first n sorted numbers lie below x (`or_at`: or at it).
template <bool or_at>
inline int64_t rank_of(const double* t, int64_t n, double x) {
  const auto below = [x](double at) { return or_at ? at <= x : at < x; };
  int64_t found = 0;
  for (; n > 1; n -= n / 2) found += below(t[found + n / 2 - 1]) ? n / 2 : 0;
  return found + (n == 1 && below(t[found]));
}

// Hinges by rank: each entry finds how many labels, lowered by the margin, lie below it; prefix sums give the rest.
template <bool smooth>
inline double hinge_sorted(HingeScratch& w, double margin, double s, double& active) {
  const int64_t P = int64_t(w.labels.size()), K = int64_t(w.x.size());
  std::vector<double>&t = w.t, &whole = w.whole, &part = w.part, &weighted = w.weighted;
  t.resize(P);
  for (int64_t i = 0; i < P; ++i) t[i] = w.labels[i].u - margin;
  whole.assign(P + 1, 0), part.assign(P + 1, 0), weighted.assign(P + 1, 0);
  double total = 0;
  for (int64_t j = 0; j < K; ++j) {
    const double x = w.x[j];
    w.n[j] = 0;
    if (!(x > t[0])) continue;
    const int64_t B = rank_of<false>(t.data(), P, x), A = smooth ? rank_of<true>(t.data(), B, x - s) : B;
    const double a = double(A);
    total += a * (x + margin - (smooth ? s / 2 : 0)) - w.sum[A];  // labels' sums stand without the margin
    ++whole[A];
    w.n[j] = a;
    if constexpr (smooth) {
      const double close = double(B - A), y = x + margin, sum = w.sum[B] - w.sum[A];
      total += (close * y * y - 2 * y * sum + (w.square[B] - w.square[A])) / (2 * s);
      w.n[j] += (close * y - sum) / s;
      ++part[A], --part[B], weighted[A] += y, weighted[B] -= y;
    }
  }
  for (int64_t i = P; i-- > 0;) whole[i] += whole[i + 1];  // entries that have at least i labels below
  for (int64_t i = 0; i < P; ++i) {
    double a = whole[i + 1];
    if constexpr (smooth) {
      if (i) part[i] += part[i - 1], weighted[i] += weighted[i - 1];
      a += (weighted[i] - part[i] * w.labels[i].u) / s;
    }
    w.labels[i].slope -= a;
    active += a;
  }
  return total;
}

// Reads a row and its labels into `w`. False if a score is NaN or infinite, or a label is hidden.
template <class S>
inline bool read_row(const HingeJob& job, int64_t row, HingeScratch& w) {
  const int64_t K = job.K;
  const S* z = static_cast<const S*>(job.z) + row * K;
  const uint8_t* mask = job.mask ? job.mask + (job.mask_row ? job.mask_row[row] : row * K) : nullptr;
  constexpr int W = kWidth<double>;
  w.x.resize((K + W - 1) / W * W);
  w.n.resize(w.x.size());
  bool fine = true;
  for (int64_t k = 0; k < K; ++k) {
    const double x = double(widen(z[k]));
    w.x[k] = mask && !mask[k] ? -kInf<double> : x;
    fine &= w.x[k] < kInf<double>;
  }
  std::fill(w.x.begin() + K, w.x.end(), -kInf<double>);
  w.labels.clear();
  for (int64_t i = job.indptr[row]; i < job.indptr[row + 1]; ++i)
    w.labels.push_back({w.x[job.indices[i]], job.indices[i], 0});
  for (const Label& label : w.labels) fine &= label.u > -kInf<double>;
  return fine;
}

// F, and dF/dr; dF/dz is left in w.n and the labels' slopes.
inline double hinge_row(const HingeJob& job, double radius, HingeScratch& w, double& slope) {
  const double P = double(w.labels.size()), s = job.smoothing, margin = radius / P;
  std::sort(w.labels.begin(), w.labels.end(), [](const Label& a, const Label& b) { return a.u < b.u; });
  // Differences from the lowest label keep their digits at any offset.
  const double base = w.labels[0].u;
  for (Label& label : w.labels) w.x[label.at] = -kInf<double>, label.u -= base;
  for (double& x : w.x) x -= base;
  const bool pairs = int64_t(w.labels.size()) <= kPairsUpTo;
  if (!pairs || s > 0) {
    w.sum.assign(1, 0), w.square.assign(1, 0);
    for (const Label& label : w.labels) {
      w.sum.push_back(w.sum.back() + label.u);
      w.square.push_back(w.square.back() + label.u * label.u);
    }
  }
  double total = s > 0 ? label_pairs_smooth(w.labels, s, w) : label_pairs(w.labels), active = 0;
  const auto hinges = pairs ? (s > 0 ? hinge_pairs<true> : hinge_pairs<false>)
                            : (s > 0 ? hinge_sorted<true> : hinge_sorted<false>);
  total += hinges(w, margin, s, active);
  slope = active / P;
  return total;
}

template <class S>
inline void hinge_rows(const HingeJob& job, int64_t begin, int64_t end) {
  using T = typename ComputeIn<S>::type;
  thread_local HingeScratch w;
  for (int64_t row = begin; row < end; ++row) {
    T* grad = job.grad ? static_cast<T*>(job.grad) + row * job.K : nullptr;
    const double radius = job.radius_of(row);
    const bool fine = read_row<S>(job, row, w) && std::isfinite(radius);
    const double empty = fine ? 0 : std::nan("");
    job.value[row] = job.slope[row] = empty;
    if (!fine || w.labels.empty()) {
      if (grad) std::fill_n(grad, job.K, T(empty));
      continue;
    }
    job.value[row] = hinge_row(job, radius, w, job.slope[row]);
    if (!grad) continue;
    for (int64_t k = 0; k < job.K; ++k) grad[k] = T(w.n[k]);
    for (const Label& label : w.labels) grad[label.at] = T(label.slope);
  }
  if (w.x.capacity() > kKeptScores) w = HingeScratch();
}

inline void hinge(const HingeJob& job, int64_t begin, int64_t end) {
  switch (job.storage) {
    case Storage::float32: return hinge_rows<float>(job, begin, end);
    case Storage::float64: return hinge_rows<double>(job, begin, end);
    case Storage::float16: return hinge_rows<Half>(job, begin, end);
    case Storage::bfloat16: return hinge_rows<Bfloat>(job, begin, end);
  }
}

}  // namespace sparsegen::SPARSEGEN_ISA
