// The way back of entmax with alpha = 1.5, of rows that are short, W of them together.
//
// With s = sqrt(p):  grad_z = s o (v - s.v / sum(s)).  What is left of p is that s is more than 0: the pass that writes does
// not read it again.
#pragma once

#include "rows.hpp"

namespace sparsegen::SPARSEGEN_ISA {

// Longest row that is transposed: with AVX-512 those that leave part of a vector empty.
inline constexpr int64_t kRootLaneLimit = kVectorBytes < 64 ? 32 : 15;
inline constexpr int64_t kRootLimit = 64;  // longest row that gains by company: of longer ones too few stay in the first cache

// The mean of v, given its sum as the roots weigh it and theirs. A row without a share has no gradient.
template <class T>
inline Vec<T> root_mean(Vec<T> sum, Vec<T> weight) {
  return sum / vmax(weight, splat(std::numeric_limits<T>::min()));
}

// What v has outside the support may be anything.
template <class T>
inline Vec<T> root_gradient(Vec<T> s, Vec<T> v, Vec<T> mean) {
  return s * keep<T>(s > Vec<T>{}, v - mean);
}

// n <= W rows of K >= kTile entries, transposed: a square root is of W entries that all count, and sums need no folding. `lanes`
// has room for 2 K vectors.
template <class T>
inline void root_vjp_lanes(const T* const* p, const T* const* v, int n, int64_t K, T* const* g, T* lanes) {
  constexpr int W = kWidth<T>;
  const T *ps[W], *vs[W];
  for (int i = 0; i < W; ++i) ps[i] = p[i < n ? i : 0], vs[i] = v[i < n ? i : 0];
  T *const roots = lanes, *const lv = lanes + K * W;
  to_lanes(ps, K, roots);
  to_lanes(vs, K, lv);
  const Vec<T> zero{}, nan = load(roots) - load(roots);  // a row with NaN is NaN throughout
  Vec<T> sum[2] = {}, weight[2] = {};
  const auto add = [&](int64_t k, int chain) {
    const Vec<T> s = vsqrt(load(roots + k * W));
    store(roots + k * W, s);
    weight[chain] += s, add_where<T>(s > zero, s * load(lv + k * W), sum[chain]);
  };
  int64_t k = 0;
  for (; k + 2 <= K; k += 2) add(k, 0), add(k + 1, 1);
  if (k < K) add(k, 0);
  const Vec<T> mean = root_mean<T>(sum[0] + sum[1], weight[0] + weight[1]);
  from_lanes<T>(K, g, (1u << n) - 1, [=](int64_t at, bool) { return root_gradient<T>(load(roots + at), load(lv + at), mean) + nan; });
}

// n <= W rows where they stand: see vjp_together(). Their roots are kept in slots of `stride` entries, whole vectors each.
template <bool stream, class T>
inline void root_vjp_together(const T* const* ps, const T* const* vs, int n, int64_t K, T* const* gs, T* slots, int64_t stride) {
  constexpr int W = kWidth<T>;
  const Vec<T> zero{};
  Vec<T> sum[W], weight[W];
  for (int i = n; i < W; ++i) sum[i] = weight[i] = zero;
  for (int i = 0; i < n; ++i) {
    const T *const p = ps[i], *const v = vs[i];
    T* const roots = slots + i * stride;
    Vec<T> all{}, found{};
    each_vector<T>(K, [&](int64_t at, auto get, auto) {
      const Vec<T> s = vsqrt(get(p + at));
      store(roots + at, s);
      all += s, add_where<T>(s > zero, s * get(v + at), found);
    });
    weight[i] = all, sum[i] = found;
  }
  alignas(kVectorBytes) T means[W];
  store(means, root_mean<T>(fold_rows<T, Sum>(sum), fold_rows<T, Sum>(weight)));
  for (int i = 0; i < n; ++i) {
    const T *const v = vs[i], *const roots = slots + i * stride, first = ps[i][0];
    T* const g = gs[i];
    const Vec<T> mean = splat(means[i]);
    each_vector<T, stream>(K, [&](int64_t at, auto get, auto write) {
      write(g + at, root_gradient<T>(load(roots + at), get(v + at), mean));
    });
    if (std::isnan(first)) std::fill_n(g, K, first);
  }
}

// A longer row, alone, which the first cache holds: its roots are kept in `roots`, whole vectors.
template <bool stream, class T>
inline void root_vjp_alone(const T* p, const T* v, int64_t K, T* g, T* roots) {
  const Vec<T> zero{};
  Vec<T> weight{}, sum{};
  const bool asks = !foresees;
  each_vector<T>(K, [&](int64_t at, auto get, auto) {
    if (asks && at % kLine<T> == 0) prefetch(p + at + kBackAhead<T>), prefetch(v + at + kBackAhead<T>);
    const Vec<T> s = vsqrt(get(p + at));
    store(roots + at, s);
    weight += s, add_where<T>(s > zero, s * get(v + at), sum);
  });
  const Vec<T> mean = root_mean<T>(splat(lanes_sum(sum)), splat(lanes_sum(weight)));
  each_vector<T, stream>(K, [&](int64_t at, auto get, auto write) {
    write(g + at, root_gradient<T>(load(roots + at), get(v + at), mean));
  });
}

// Rows of at most kRootLimit entries; g[i] is none of the others.
template <class T>
inline void root_vjp(const T* const* p, const T* const* v, int n, int64_t K, T* const* g, const Scratch<T>& s) {
  constexpr int W = kWidth<T>;
  const bool lanes = K >= kTile<T> && K <= kRootLaneLimit;
  for (int i = 0; i < n; i += W) {
    const int m = std::min(W, n - i);
    if (lanes) {
      root_vjp_lanes<T>(p + i, v + i, m, K, g + i, s.lanes);
      continue;
    }
    const bool stream = s.stream && K % W == 0 && all_aligned(g + i, m);
    const auto f = stream ? root_vjp_together<true, T> : root_vjp_together<false, T>;
    f(p + i, v + i, m, K, g + i, s.rows, s.stride);
  }
}

}  // namespace sparsegen::SPARSEGEN_ISA
