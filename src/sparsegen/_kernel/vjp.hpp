// One row of the vector-Jacobian product of  p = [x - tau]_+ / r.
//
// With s = [p > 0] and w = s o (v - mean_S v):  grad_x = w / r,  grad_r = -(w.p) / r.  Only p is needed, not x.
#pragma once

#include "simplex.hpp"

namespace sparsegen::SPARSEGEN_ISA {

// The support of one row: its size and the sum of v over it.
template <class T>
struct Support {
  Total<T> total;
  Vec<T> sum{};
  Mask<T> count{};
  void add(Mask<T> on, Vec<T> v) { sum += keep<T>(on, v), count -= on; }
  void fold() { total.add(lanes_sum(sum)), sum = Vec<T>{}; }
};

// load() of whole vectors, load_part() of the last one: f(from, load, store).
template <class T, bool stream = false, class F>
inline void each_vector(int64_t K, F&& f) {
  constexpr int W = kWidth<T>;
  int64_t at = 0;
  for (; at + W <= K; at += W)
    f(at, [](const T* x) { return load(x); }, [](T* x, Vec<T> v) { put<stream>(x, v); });
  const int left = int(K - at);
  if (left) f(at, [=](const T* x) { return load_part(x, left); }, [=](T* x, Vec<T> v) { store_part(x, v, left); });
}

// n <= W rows together, of K >= W entries: what follows the first pass, the means, is done for all of them at once.
// Meanwhile those that come next, as a rule W K entries on, are asked for. `v` may be `g`.
template <bool want_along, bool stream, class T>
inline void vjp_together(const T* const* ps, const T* const* vs, int n, int64_t K, const T* scales, T* const* gs, T* along) {
  constexpr int W = kWidth<T>, line = 64 / int(sizeof(T));
  const int64_t whole = K / W * W, next = W * K;
  const Mask<T> tail = last_lanes<T>(int(K - whole));
  const Vec<T> zero{};
  Vec<T> sum[W], count[W], wp[W];
  for (int i = 0; i < W; ++i) {
    Vec<T> s0{}, s1{};
    Mask<T> n0{}, n1{};
    if (i < n) {
      const T *p = ps[i], *v = vs[i];
      int64_t k = 0;
      for (; k + 2 * W <= K; k += 2 * W) {
        const Mask<T> on0 = load(p + k) > zero, on1 = load(p + k + W) > zero;
        s0 += keep<T>(on0, load(v + k)), n0 -= on0;
        s1 += keep<T>(on1, load(v + k + W)), n1 -= on1;
        for (int j = 0; j < 2 * W; j += line) prefetch(p + k + j + next), prefetch(v + k + j + next);
      }
      if (k < whole) {
        const Mask<T> on = load(p + k) > zero;
        s0 += keep<T>(on, load(v + k)), n0 -= on;
      }
      if (whole < K) {
        const Mask<T> on = (load(p + K - W) > zero) & tail;
        s1 += keep<T>(on, load(v + K - W)), n1 -= on;
      }
    }
    sum[i] = s0 + s1, count[i] = __builtin_convertvector(n0 + n1, Vec<T>);
  }
  alignas(kVectorBytes) T means[W];
  store(means, fold_rows<T, Sum>(sum) / vmax(fold_rows<T, Sum>(count), splat(T(1))));
  for (int i = 0; i < n; ++i) {
    const T *p = ps[i], *v = vs[i];
    T* g = gs[i];
    const Vec<T> mean = splat(means[i]), scale = splat(scales[i]);
    const Vec<T> last_p = load(p + K - W), last_v = load(v + K - W);
    Vec<T> w0{}, w1{};
    int64_t k = 0;
    for (; k + W <= K; k += W) {
      const Vec<T> pk = load(p + k), w = keep<T>(pk > zero, load(v + k) - mean);
      if (want_along) w0 += w * pk;
      put<stream>(g + k, w * scale);
      if (!stream && k % line == 0) prefetch_to_write(g + k + next);
    }
    if (whole < K) {  // overlaps the vector before it
      const Vec<T> w = keep<T>(last_p > zero, last_v - mean);
      if (want_along) w1 = keep<T>(tail, w * last_p);
      store(g + K - W, w * scale);
    }
    wp[i] = w0 + w1;
    if (std::isnan(p[0])) std::fill_n(g, K, p[0]), wp[i] = splat(p[0]);  // a row with NaN is NaN throughout
  }
  for (int i = n; want_along && i < W; ++i) wp[i] = zero;
  if (want_along) store(along, fold_rows<T, Sum>(wp));
}

// Longer rows, `R` of them together so that one's sums across lanes do not wait for another's; the next `R`, which follow in
// memory as a rule, are asked for meanwhile.
template <int R, bool want_along, bool stream, class T>
inline void vjp_short(const T* const* ps, const T* const* vs, int64_t K, const T* scales, T* const* gs, T* along) {
  const T *p[R], *v[R];  // copies: the compiler need not fear that writing g changes them
  T* g[R];
  Vec<T> sum[R] = {}, wp[R] = {}, mean[R], scale[R];
  Mask<T> count[R] = {};
  for (int i = 0; i < R; ++i) p[i] = ps[i], v[i] = vs[i], g[i] = gs[i], scale[i] = splat(scales[i]);
  each_vector<T>(K, [&](int64_t at, auto get, auto) {
    for (int i = 0; i < R; ++i) {
      const Mask<T> on = get(p[i] + at) > Vec<T>{};
      sum[i] += keep<T>(on, get(v[i] + at)), count[i] -= on;
    }
  });
  for (int64_t at = R * K; at < 2 * R * K; at += 64 / int64_t(sizeof(T))) {
    prefetch(p[0] + at), prefetch(v[0] + at);
    if (!stream) prefetch_to_write(g[0] + at);
  }
  for (int i = 0; i < R; ++i) mean[i] = splat(lanes_sum(sum[i]) / std::max(T(lanes_sum(count[i])), T(1)));
  each_vector<T, stream>(K, [&](int64_t at, auto get, auto write) {
    for (int i = 0; i < R; ++i) {
      const Vec<T> pi = get(p[i] + at), w = keep<T>(pi > Vec<T>{}, get(v[i] + at) - mean[i]);
      if (want_along) wp[i] += w * pi;
      write(g[i] + at, w * scale[i]);
    }
  });
  for (int i = 0; i < R; ++i) {
    const T first = p[i][0];  // a row with NaN is NaN throughout
    if (want_along) along[i] = std::isnan(first) ? first : lanes_sum(wp[i]);
    if (std::isnan(first)) std::fill_n(g[i], K, first);
  }
}

inline constexpr int64_t kSkipFrom = 1024;  // row length from which steps without support are worth a branch

// Long rows: steps without support are zeroed at once and v is not read there; `touched` lists the others.
template <bool stream, class T>
inline int64_t gather_steps(const T* p, const T* v, int64_t steps, T* g, int32_t* touched, Support<T>& s) {
  constexpr int W = kWidth<T>;
  const Vec<T> zero{};
  int64_t n = 0;
  for (int64_t i = 0; i < steps; ++i, p += kStep<T>, v += kStep<T>, g += kStep<T>) {
    const Mask<T> a = load(p) > zero, b = load(p + W) > zero, c = load(p + 2 * W) > zero, d = load(p + 3 * W) > zero;
    if (!lane_bits<T>((a | b) | (c | d))) {
      for (int j = 0; j < kUnroll; ++j) put<stream>(g + j * W, zero);
      continue;
    }
    s.add(a, load(v)), s.add(b, load(v + W)), s.add(c, load(v + 2 * W)), s.add(d, load(v + 3 * W));
    touched[n++] = int32_t(i);
    if (n % kFold == 0) s.fold();
  }
  return n;
}

// What multiplies w in the gradient: 1 / r, and 0 for the constant map r = 0.
template <class T>
inline T vjp_scale(double r) {
  return r == 0 ? T(0) : T(std::min(1 / r, double(std::numeric_limits<T>::max())));
}

// grad_x = w / r, given 1 / r, and (if wanted) w.p, with w = s o (v - mean_S v), s = [p > 0]; for rows of at least
// kSkipFrom entries.
template <bool want_along, bool stream, class T>
inline double vjp_long(const T* p, const T* v, int64_t K, T one_over_r, T* g, int32_t* touched) {
  constexpr int W = kWidth<T>;
  if (std::isnan(p[0])) {
    std::fill_n(g, K, p[0]);
    return p[0];
  }
  const int64_t full = K / kStep<T>, end = full * kStep<T>, ahead = K <= kSoonLimit ? K : 0;
  Support<T> s;
  const int64_t n = gather_steps<stream>(p, v, full, g, touched, s);
  each_vector<T>(K - end, [&](int64_t at, auto get, auto) { s.add(get(p + end + at) > Vec<T>{}, get(v + end + at)); });
  s.fold();
  const int64_t size = lanes_sum(s.count);
  const Vec<T> mean = splat(size ? T(s.total.value() / double(size)) : T(0)), scale = splat(one_over_r);
  Total<T> along;
  Vec<T> part{};
  const auto centre = [&](Vec<T> p, Vec<T> v) {
    const Vec<T> w = keep<T>(p > Vec<T>{}, v - mean);
    if (want_along) part += w * p;
    return w * scale;
  };
  for (int64_t t = 0; t < n; ++t) {
    const int64_t at = touched[t] * int64_t(kStep<T>);
    for (int64_t i = at; i < at + kStep<T>; i += W) {
      put<stream>(g + i, centre(load(p + i), load(v + i)));
      if (ahead) prefetch_far(p + i + ahead), prefetch_far(v + i + ahead);
    }
    if (want_along && t % kFold == kFold - 1) along.add(lanes_sum(part)), part = Vec<T>{};
  }
  each_vector<T>(K - end, [&](int64_t at, auto get, auto put) {
    put(g + end + at, centre(get(p + end + at), get(v + end + at)));
  });
  along.add(lanes_sum(part));
  return along.value();
}

}  // namespace sparsegen::SPARSEGEN_ISA
