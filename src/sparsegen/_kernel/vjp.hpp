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
  void add(Mask<T> on, Vec<T> v) { add_where<T>(on, v, sum), count_where<T>(on, count); }
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

// What whole vectors leave of a row, read and written with entries before it: `fresh` are the lanes that are not those. With
// AVX-512 a row of fewer than W entries is read and written alone, 0 in the lanes beyond it.
template <class T>
struct Remainder {
  static constexpr bool kAnyLength = kVectorBytes == 64;  // else the row has W entries or more
  int64_t from;
  int size;
  bool alone;
  Mask<T> fresh;

  explicit Remainder(int64_t K)
      : from(K - kWidth<T>), size(int(K % kWidth<T>)), alone(kAnyLength && from < 0), fresh(last_lanes<T>(alone ? 0 : size)) {
    if (alone) from = 0, fresh = ~fresh;
  }
  Vec<T> get(const T* x) const { return alone ? load_part(x, size) : load(x + from); }
  void put(T* p, Vec<T> v) const { alone ? store_part(p, v, size) : store(p + from, v); }
};

// n <= W rows together: what follows the first pass, the means, is done for all of them at once. Meanwhile those that come
// next, as a rule W K entries on, are asked for. `v` may be `g`.
template <bool want_along, bool stream, class T>
inline void vjp_together(const T* const* ps, const T* const* vs, int n, int64_t K, const T* scales, T* const* gs, T* along) {
  constexpr int W = kWidth<T>;
  const int64_t whole = K / W * W, next = n * K;
  const Remainder<T> rest(K);
  const Vec<T> zero{};
  Vec<T> sum[W], wp[W];
  Mask<T> count[W];
  // Half of what comes next in each pass: see Turn in layouts.hpp.
  const auto ask = [=](int pass, int i) {
    const int at = pass * n + i;
    if (K < 2 * W) return;
    each_line(ps, next, K, at, 2, prefetch), each_line(vs, next, K, at, 2, prefetch);
  };
  for (int i = n; i < W; ++i) sum[i] = wp[i] = zero, count[i] = Mask<T>{};
  for (int i = 0; i < n; ++i) {
    Vec<T> s0{}, s1{};
    Mask<T> n0{}, n1{};
    const auto add = [&](Vec<T> p, Vec<T> v, Mask<T> among, Vec<T>& s, Mask<T>& count) {
      const Mask<T> on = (p > zero) & among;
      add_where<T>(on, v, s), count_where<T>(on, count);
    };
    const T *p = ps[i], *v = vs[i];
    int64_t k = 0;
    ask(0, i);
    for (; k + 2 * W <= K; k += 2 * W)
      add(load(p + k), load(v + k), ~Mask<T>{}, s0, n0), add(load(p + k + W), load(v + k + W), ~Mask<T>{}, s1, n1);
    if (k < whole) add(load(p + k), load(v + k), ~Mask<T>{}, s0, n0);
    if (rest.size) add(rest.get(p), rest.get(v), rest.fresh, s1, n1);
    sum[i] = s0 + s1, count[i] = n0 + n1;
  }
  alignas(kVectorBytes) T means[W];
  store(means, fold_rows<T, Sum>(sum) / vmax(fold_counts<T>(count), splat(T(1))));
  for (int i = 0; i < n; ++i) {
    const T *p = ps[i], *v = vs[i], first = p[0];
    T* g = gs[i];
    const Vec<T> mean = splat(means[i]), scale = splat(scales[i]);
    Vec<T> w0{}, w1{}, last_p{}, last_v{};
    ask(1, i);
    if (rest.size) last_p = rest.get(p), last_v = rest.get(v);
    for (int64_t k = 0; k < whole; k += W) {
      const Vec<T> pk = load(p + k), w = keep<T>(pk > zero, load(v + k) - mean);
      if (want_along) w0 += w * pk;
      put<stream>(g + k, w * scale);
      if (!stream && k % kLine<T> == 0) prefetch_to_write(g + k + next);
    }
    if (rest.size) {
      const Vec<T> w = keep<T>(last_p > zero, last_v - mean);
      if (want_along) w1 = keep<T>(rest.fresh, w * last_p);
      rest.put(g, w * scale);
    }
    wp[i] = w0 + w1;
    if (std::isnan(first)) std::fill_n(g, K, first), wp[i] = splat(first);  // a row with NaN is NaN throughout
  }
  if (want_along) store(along, fold_rows<T, Sum>(wp));
}

// Longer rows, `R` of them together so that one's sums across lanes do not wait for another's; the next `R`, which follow in
// memory as a rule, are asked for meanwhile, p in the first pass and v in the second.
template <int R, bool want_along, bool stream, class T>
inline void vjp_short(const T* const* ps, const T* const* vs, int64_t K, const T* scales, T* const* gs, T* along) {
  const T *p[R], *v[R];  // copies: the compiler need not fear that writing g changes them
  T* g[R];
  Vec<T> sum[R] = {}, wp[R] = {}, mean[R], scale[R];
  Mask<T> count[R] = {};
  for (int i = 0; i < R; ++i) p[i] = ps[i], v[i] = vs[i], g[i] = gs[i], scale[i] = splat(scales[i]);
  const auto ask = [&](const T* const* rows, int64_t at) {
    for (int i = 0; at % kLine<T> == 0 && i < R; ++i) prefetch_far(rows[i] + at + R * K);
  };
  each_vector<T>(K, [&](int64_t at, auto get, auto) {
    ask(p, at);
    for (int i = 0; i < R; ++i) {
      const Mask<T> on = get(p[i] + at) > Vec<T>{};
      add_where<T>(on, get(v[i] + at), sum[i]), count_where<T>(on, count[i]);
    }
  });
  for (int64_t at = R * K; !stream && at < 2 * R * K; at += kLine<T>) prefetch_to_write(g[0] + at);
  for (int i = 0; i < R; ++i) mean[i] = splat(lanes_sum(sum[i]) / std::max(T(-lanes_sum(count[i])), T(1)));
  each_vector<T, stream>(K, [&](int64_t at, auto get, auto write) {
    ask(v, at);
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

// Entries a branch is about: no more than two lines of v are read for one that is in the support.
template <class T>
inline constexpr int kPart = std::min(kStep<T>, 2 * kLine<T>);
inline constexpr int64_t kStreamAhead = 2048;  // bytes: the hardware asks too late for what is read once, between such writes

// Long rows: parts without support are zeroed at once and v is not read there; `touched` lists the others.
template <bool stream, class T>
inline int64_t gather_parts(const T* p, const T* v, int64_t parts, T* g, int32_t* touched, Support<T>& s) {
  constexpr int W = kWidth<T>, N = kPart<T> / W;
  const Vec<T> zero{};
  int64_t n = 0;
  for (int64_t i = 0; i < parts; ++i, p += kPart<T>, v += kPart<T>, g += kPart<T>) {
    Mask<T> on[N], any{};
    unsigned bits = 0;
    for (int j = 0; j < N; ++j) on[j] = load(p + j * W) > zero, any |= on[j], bits |= bits_above<T>(load(p + j * W), zero);
    if (kVectorBytes < 64) bits = lane_bits<T>(any);
    for (int j = 0; stream && j < kPart<T>; j += kLine<T>) prefetch(p + j + kStreamAhead / sizeof(T));
    if (!bits) {
      for (int j = 0; j < N; ++j) put<stream>(g + j * W, zero);
      continue;
    }
    for (int j = 0; j < N; ++j) s.add(on[j], load(v + j * W));
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
  const int64_t full = K / kPart<T>, end = full * kPart<T>, ahead = K <= kSoonLimit ? K : 0;
  Support<T> s;
  const int64_t n = gather_parts<stream>(p, v, full, g, touched, s);
  each_vector<T>(K - end, [&](int64_t at, auto get, auto) { s.add(get(p + end + at) > Vec<T>{}, get(v + end + at)); });
  s.fold();
  const int64_t size = -lanes_sum(s.count);
  const Vec<T> mean = splat(size ? T(s.total.value() / double(size)) : T(0)), scale = splat(one_over_r);
  Total<T> along;
  Vec<T> part{};
  const auto centre = [&](Vec<T> p, Vec<T> v) {
    const Vec<T> w = keep<T>(p > Vec<T>{}, v - mean);
    if (want_along) part += w * p;
    return w * scale;
  };
  for (int64_t t = 0; t < n; ++t) {
    const int64_t at = touched[t] * int64_t(kPart<T>);
    for (int64_t i = at; i < at + kPart<T>; i += W) {
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
