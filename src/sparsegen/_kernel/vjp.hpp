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
  void add(Mask<T> on, Vec<T>, Vec<T> v) { add_where<T>(on, v, sum), count_where<T>(on, count); }
  void fold() { total.add(lanes_sum(sum)), sum = Vec<T>{}; }
};

// What whole vectors leave of a row of W entries or more, read and written with entries before it: `fresh` are the lanes that are
// not those.
template <class T>
struct Remainder {
  int64_t from;
  int size;
  Mask<T> fresh;

  explicit Remainder(int64_t K) : from(K - kWidth<T>), size(int(K % kWidth<T>)), fresh(last_lanes<T>(size)) {}
  Vec<T> get(const T* x) const { return load(x + from); }
  void put(T* p, Vec<T> v) const { store(p + from, v); }
};

// When w.p is found: not at all; while the gradient is written; or before that, where every entry has a share of it.
enum class Along { none, after, before };

// What the gradients of rows are made of: each w times `scale` and, if w.p is found before, w.p times `each` in every entry.
// Where w.p goes may be null. `scale` and `each` have room for a vector from every row on.
template <class T>
struct Factors {
  const T *scale, *each;
  T* along;
  Factors from(int i) const { return {scale + i, each ? each + i : nullptr, along ? along + i : nullptr}; }
};

// The last touch on a gradient x of points, `at` entries into a row: none, as the points are the scores. See map_vjp.hpp.
struct Straight {
  static constexpr int kArrays = 0;  // that are read for it
  Straight from(int) const { return {}; }  // of the rows from the i-th on
  template <class G>
  void lines(G&&) const {}
  template <class G>
  void line(int64_t, G&&) const {}
  Straight row(int) const { return {}; }
  template <class V, class Get>
  V operator()(V x, int64_t, Get&&) const { return x; }
};

// Where the support of rows is read, and the numbers x with which w.p is w.x: off their probabilities. See also FromWords of
// support.hpp.
template <class T>
struct FromShares {
  static constexpr int kArrays = 1;
  const T* const* p;

  struct Row {
    const T* p;
    template <class Get>
    Vec<T> operator()(int64_t at, Get&& get) const { return get(p + at); }
    // The lanes in the support of the vector at a place, whose x is known.
    template <class Get>
    Open<T> open(int64_t, Vec<T> x, Get&&) const { return open_above<T>(x, Vec<T>{}); }
    T first() const { return p[0]; }  // a row with NaN is NaN throughout
    // f(line of p), to ask for it.
    template <class F>
    void line(int64_t at, F&& f) const { f(p + at); }
    uint32_t* words(uint32_t* room) const { return room; }  // where it is, or will be, as bits
  };

  FromShares from(int i) const { return {p + i}; }
  Row row(int i) const { return {p[i]}; }
  // f(lines of p), to ask for them.
  template <class F>
  void lines(F&& f) const { f(p); }
};

// Of a row's support: the sum of v and the size and, with `along`, the sums of v p and of p, such that w.p is v.p - mean sum(p).
// What rounding leaves of it is in proportion to v, as what it took from v is.
template <class T, bool with_along>
struct Moments {
  Vec<T> sum{}, along{}, all{};
  Count<T> count{};
  // The vector at a place of a row; returns its lanes in the support.
  template <class R, class Get>
  Open<T> add(const R& row, int64_t at, const T* v, Get&& get) {
    const Vec<T> x = row(at, get);
    const Open<T> on = row.open(at, x, get);
    add(on, x, get(v + at));
    return on;
  }
  void add(Open<T> on, Vec<T> p, Vec<T> v) {
    add_where<T>(on, v, sum), count_open<T>(on, count);
    if constexpr (with_along) add_product_where<T>(on, v, p, along), add_where<T>(on, p, all);
  }
  Moments operator+(const Moments& other) const {
    return {sum + other.sum, along + other.along, all + other.all, count + other.count};
  }
};

// Those of W rows, lanes not yet folded, and what follows from them, a number for each row: the mean of v and, if w.p is found
// before the gradient is written, what every entry has of it. Later on `along` has what makes w.p, if that is found then.
template <Along when, class T>
struct GroupMoments {
  static constexpr int W = kWidth<T>;
  Vec<T> sum[W], along[W], all[W];
  Count<T> count[W];
  alignas(kVectorBytes) T mean[W], shared[W];

  explicit GroupMoments(int n) {
    for (int i = n; i < W; ++i) sum[i] = along[i] = all[i] = Vec<T>{}, count[i] = Count<T>{};
  }
  void set(int i, const Moments<T, when == Along::before>& row) {
    sum[i] = row.sum, count[i] = row.count;
    if (when == Along::before) along[i] = row.along, all[i] = row.all;
  }
  void fold(const Factors<T>& by) {
    const Vec<T> means = fold_rows<T, Sum>(sum) / vmax(counts_of<T>(count), splat(T(1)));
    store(mean, means);
    if constexpr (when == Along::before) {
      const Vec<T> wp = fold_rows<T, Sum>(along) - means * fold_rows<T, Sum>(all);
      store(shared, wp * load(by.each));
      if (by.along) store(by.along, wp);
    }
  }
  void fold_along(const Factors<T>& by) const {
    if (when == Along::after && by.along) store(by.along, fold_rows<T, Sum>(along));
  }
};

// What the first pass over a row has seen of its support, vector by vector, for the second, which then need not read p for it. Only
// where a mask is a few bits: else reading p again costs less.
template <class T, int64_t most>
struct Seen {
  static constexpr bool kKept = kVectorBytes == 64;
  Open<T> in[kKept ? most / kWidth<T> + 1 : 1];
  void keep(int64_t vector, Open<T> on) {
    if constexpr (kKept) in[vector] = on;
  }
  // Of the vector at a place of a row.
  template <class R, class Get>
  Open<T> at(int64_t vector, const R& row, int64_t at, Get&& get) const {
    if constexpr (kKept) return in[vector];
    else return row.open(at, row(at, get), get);
  }
};

// Is memory asked for in advance? Where more is read than p and v the hardware foresees it, and asking takes time: 0026.
template <class F>
inline constexpr bool kAsks = std::is_same_v<F, Straight>;

inline constexpr int64_t kVjpGroupLimit = 160;  // longest row that is worked in company
inline constexpr int64_t kSkipFrom = 1024;  // row length from which steps without support are worth a branch

// n <= W rows together: what follows the first pass, the means, is done for all of them at once. Meanwhile those that come
// next, as a rule W K entries on, are asked for. `v` may be `g`.
template <Along when, bool stream, class T, class P, class F>
inline void vjp_together(const P& ps, const T* const* vs, int n, int64_t K, Factors<T> by, T* const* gs, const F& steep,
                         bool asks) {
  constexpr int W = kWidth<T>;
  const int64_t whole = K / W * W, next = n * K;
  const Remainder<T> rest(K);
  const Vec<T> zero{};
  const auto whole_vector = [](const T* x) { return load(x); };
  GroupMoments<when, T> found(n);
  Seen<T, kVjpGroupLimit + W> seen[W];
  // Half of what comes next in each pass: see Turn in layouts.hpp.
  const auto ask = [=](int pass, int i) {
    const int at = pass * n + i;
    if (!kAsks<F> || !asks || K < 2 * W) return;
    ps.lines([=](const T* const* p) { each_line(p, next, K, at, 2, prefetch); });
    each_line(vs, next, K, at, 2, prefetch);
  };
  for (int i = 0; i < n; ++i) {
    Moments<T, when == Along::before> even, odd;
    const auto p = ps.row(i);
    const T* v = vs[i];
    int64_t k = 0;
    ask(0, i);
    for (; k + 2 * W <= K; k += 2 * W) {
      seen[i].keep(k / W, even.add(p, k, v, whole_vector));
      seen[i].keep(k / W + 1, odd.add(p, k + W, v, whole_vector));
    }
    if (k < whole) seen[i].keep(k / W, even.add(p, k, v, whole_vector));
    if (rest.size) {
      const Vec<T> last = p(rest.from, whole_vector);
      const Open<T> on = p.open(rest.from, last, whole_vector);
      odd.add(open_among<T>(on, rest.fresh), last, rest.get(v));
      seen[i].keep(whole / W, on);
    }
    found.set(i, even + odd);
  }
  found.fold(by);
  for (int i = 0; i < n; ++i) {
    const auto p = ps.row(i);
    const T *v = vs[i], first = p.first();
    T* g = gs[i];
    const Vec<T> mean = splat(found.mean[i]), scale = splat(by.scale[i]);
    const Vec<T> more = when == Along::before ? splat(found.shared[i]) : zero;
    const auto touch = steep.row(i);
    const auto made = [&](Vec<T> w, int64_t at, auto get) {
      return touch(when == Along::before ? fma(w, scale, more) : w * scale, at, get);
    };
    Vec<T> w0{}, w1{}, last_p{}, last_v{};
    Open<T> last_on{};
    ask(1, i);
    if (rest.size) {
      last_v = rest.get(v), last_on = seen[i].at(whole / W, p, rest.from, whole_vector);
      if (when == Along::after) last_p = p(rest.from, whole_vector);
    }
    for (int64_t k = 0; k < whole; k += W) {
      const Vec<T> w = keep<T>(seen[i].at(k / W, p, k, whole_vector), load(v + k) - mean);
      if (when == Along::after) w0 += w * p(k, whole_vector);
      put<stream>(g + k, made(w, k, whole_vector));
      if (kAsks<F> && asks && !stream && k % kLine<T> == 0) prefetch_to_write(g + k + next);
    }
    if (rest.size) {
      const Vec<T> w = keep<T>(last_on, last_v - mean);
      if (when == Along::after) w1 = keep<T>(rest.fresh, w * last_p);
      rest.put(g, made(w, 0, [&](const T* x) { return rest.get(x); }));
    }
    if (when == Along::after) found.along[i] = w0 + w1;
    if (std::isnan(first)) std::fill_n(g, K, first), found.along[i] = splat(first);  // a row with NaN is NaN throughout
  }
  found.fold_along(by);
}

#if defined(__AVX512F__)
// The same of rows that are less than a vector: there is one of each, and nothing to be asked for in parts.
template <Along when, class T, class P, class F>
inline void vjp_tiny(const P& ps, const T* const* vs, int n, int64_t K, Factors<T> by, T* const* gs, const F& steep) {
  constexpr int W = kWidth<T>;
  const unsigned entries = (1u << K) - 1;
  const auto get = [=](const T* x) { return load_bits(x, entries); };
  GroupMoments<when, T> found(n);
  Open<T> in[W];
  for (int i = 0; i < n; ++i) {
    Moments<T, when == Along::before> row;
    in[i] = row.add(ps.row(i), 0, vs[i], get);
    found.set(i, row);
  }
  found.fold(by);
  for (int i = 0; i < n; ++i) {
    const auto p = ps.row(i);
    const T first = p.first();
    const Vec<T> w = keep<T>(in[i], get(vs[i]) - splat(found.mean[i])), scale = splat(by.scale[i]);
    const Vec<T> made = when == Along::before ? fma(w, scale, splat(found.shared[i])) : w * scale;
    if (when == Along::after) found.along[i] = w * p(0, get);
    store_bits(gs[i], steep.row(i)(made, 0, get), entries);
    if (std::isnan(first)) std::fill_n(gs[i], K, first), found.along[i] = splat(first);  // a row with NaN is NaN throughout
  }
  found.fold_along(by);
}

// Rows of N vectors, the last of which may be incomplete, one after the other: v is held in registers from the sums to the gradient,
// and as little is done for a row, the next is under way before its sums are. (`stream` is for whole vectors.)
template <int N, Along when, bool stream, class T, class P, class F>
inline void vjp_held(const P& ps, const T* const* vs, int n, int64_t K, Factors<T> by, T* const* gs, const F& steep, bool asks) {
  constexpr int W = kWidth<T>, last = N - 1;
  const int64_t next = n * K;
  const unsigned bits = ~0u >> (32 - int(K - last * W));
  const auto whole = [](const T* x) { return load(x); };
  const auto part = [=](const T* x) { return load_bits(x, bits); };
  const auto ask = [=](const T* x, auto hint) {
    for (int j = 0; j < N; ++j) hint(x + next + j * W);
  };
  for (int i = 0; i < n; ++i) {
    const auto p = ps.row(i);
    const auto touch = steep.row(i);
    const T* const v = vs[i];
    T* const g = gs[i];
    if (kAsks<F> && asks) {
      ps.lines([=](const T* const* p) { ask(p[i], prefetch); });
      ask(v, prefetch);
      if (!stream) ask(g, prefetch_to_write);
    }
    Vec<T> x[N], held[N], sums[2] = {}, along[2] = {}, all[2] = {};
    Open<T> on[N];
    Count<T> count{};
    for (int j = 0; j < N; ++j) {
      x[j] = j < last ? p(j * W, whole) : p(j * W, part), held[j] = j < last ? load(v + j * W) : part(v + j * W);
      on[j] = j < last ? p.open(j * W, x[j], whole) : Open<T>(p.open(j * W, x[j], part) & bits);
      add_where<T>(on[j], held[j], sums[j % 2]), count_open<T>(on[j], count);
      if (when == Along::before) add_product_where<T>(on[j], held[j], x[j], along[j % 2]), add_where<T>(on[j], x[j], all[j % 2]);
    }
    const T mean = lanes_sum(sums[0] + sums[1]) / T(std::max<int64_t>(count, 1));
    T wp{};
    if (when == Along::before) wp = lanes_sum(along[0] + along[1]) - mean * lanes_sum(all[0] + all[1]);
    const Vec<T> means = splat(mean), scale = splat(by.scale[i]);
    const Vec<T> more = when == Along::before ? splat(wp * by.each[i]) : Vec<T>{};
    Vec<T> found{};
    for (int j = 0; j < N; ++j) {
      const Vec<T> w = keep<T>(on[j], held[j] - means);
      if (when == Along::after) found += w * x[j];
      const Vec<T> made = when == Along::before ? fma(w, scale, more) : w * scale;
      if (stream || j < last) put<stream>(g + j * W, touch(made, j * W, whole));
      else store_bits(g + j * W, touch(made, j * W, part), bits);
    }
    if (when == Along::after) wp = lanes_sum(found);
    const T first = p.first();
    if (std::isnan(first)) std::fill_n(g, K, first), wp = first;  // a row with NaN is NaN throughout
    if (when != Along::none && by.along) by.along[i] = wp;
  }
}
#endif

// How far ahead a processor that does not foresee them is asked for the entries of longer rows; and the longest row that is read faster
// without, if it is read from three arrays.
template <class T>
inline constexpr int64_t kBackAhead = 4096 / sizeof(T);
inline constexpr int64_t kAllFrom = 256;

// Longer rows, `R` of them together so that one's sums across lanes do not wait for another's; the next `R`, which follow in
// memory as a rule, are asked for meanwhile, p in the first pass and v in the second.
template <int R, Along when, bool stream, class T, class P, class F>
inline void vjp_short(const P& ps, const T* const* vs, int64_t K, Factors<T> by, T* const* gs, const F& steep) {
  constexpr int W = kWidth<T>;
  static_assert(R <= 2);
  const decltype(ps.row(0)) p[2] = {ps.row(0), ps.row(R - 1)};  // copies: the compiler need not fear that writing g changes them
  const T* v[R];
  T* g[R];
  Moments<T, when == Along::before> found[R];
  Seen<T, kSkipFrom> seen[R];
  Vec<T> wp[R] = {}, mean[R], scale[R], more[R] = {};
  const decltype(steep.row(0)) touch[2] = {steep.row(0), steep.row(R - 1)};
  for (int i = 0; i < R; ++i) v[i] = vs[i], g[i] = gs[i], scale[i] = splat(by.scale[i]);
  constexpr int arrays = P::kArrays + F::kArrays + 1;
  const bool all = !foresees && (arrays <= 2 || K > kAllFrom);
  const auto ask = [&](const T* const* rows, int64_t at) {
    for (int i = 0; at % kLine<T> == 0 && i < R; ++i) {
      if (all) prefetch(rows[i] + at + kBackAhead<T>);
      else if (kAsks<F>) prefetch_far(rows[i] + at + R * K);
    }
  };
  each_vector<T>(K, [&](int64_t at, auto get, auto) {
    ps.lines([&](const T* const* rows) { ask(rows, at); });
    if (all) steep.lines([&](const T* const* rows) { ask(rows, at); }), ask(vs, at);
    for (int i = 0; i < R; ++i) seen[i].keep(at / W, found[i].add(p[i], at, v[i], get));
  });
  for (int64_t at = R * K; kAsks<F> && !stream && at < 2 * R * K; at += kLine<T>) prefetch_to_write(g[0] + at);
  for (int i = 0; i < R; ++i) {
    const T one = lanes_sum(found[i].sum) / std::max(T(count_of<T>(found[i].count)), T(1));
    mean[i] = splat(one);
    if constexpr (when == Along::before) {
      const T along = lanes_sum(found[i].along) - one * lanes_sum(found[i].all);
      more[i] = splat(along * by.each[i]);
      if (by.along) by.along[i] = along;
    }
  }
  each_vector<T, stream>(K, [&](int64_t at, auto get, auto write) {
    if (!all) ask(v, at);
    for (int i = 0; i < R; ++i) {
      const Vec<T> w = keep<T>(seen[i].at(at / W, p[i], at, get), get(v[i] + at) - mean[i]);
      if (when == Along::after) wp[i] += w * p[i](at, get);
      write(g[i] + at, touch[i](when == Along::before ? fma(w, scale[i], more[i]) : w * scale[i], at, get));
    }
  });
  for (int i = 0; i < R; ++i) {
    const T first = p[i].first();  // a row with NaN is NaN throughout
    if (when == Along::after && by.along) by.along[i] = std::isnan(first) ? first : lanes_sum(wp[i]);
    if (std::isnan(first)) std::fill_n(g[i], K, first);
  }
}

// Entries a branch is about: no more than two lines of v are read for one that is in the support.
template <class T>
inline constexpr int kPart = std::min(kStep<T>, 2 * kLine<T>);
inline constexpr int64_t kStreamAhead = 2048;  // bytes: the hardware asks too late for what is read once, between such writes

// Long rows: v is not read in parts without support, which are zeroed at once; `touched` lists the others.
template <bool stream, class T, class S>
inline int64_t gather_parts(const T* p, const T* v, int64_t parts, T* g, int32_t* touched, S& s) {
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
      write_zeros<stream>(g, kPart<T>);
      continue;
    }
    for (int j = 0; j < N; ++j) s.add(on[j], load(p + j * W), load(v + j * W));
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

// grad_x = w / r, given 1 / r, and (if wanted) w.p, with w = s o (v - mean_S v), s = [p > 0]; for a row of at least
// kSkipFrom entries. Where w.p is wanted before, see vjp_spread() of support.hpp.
template <Along when, bool stream, class T, class F>
inline void vjp_long(const T* p, const T* v, int64_t K, Factors<T> by, T* g, int32_t* touched, const F& steep) {
  constexpr int W = kWidth<T>;
  static_assert(when != Along::before);
  if (std::isnan(p[0])) {
    std::fill_n(g, K, p[0]);
    if (by.along) *by.along = p[0];
    return;
  }
  const int64_t full = K / kPart<T>, end = full * kPart<T>, ahead = K <= kSoonLimit ? K : 0;
  Support<T> s;
  const int64_t n = gather_parts<stream>(p, v, full, g, touched, s);
  each_vector<T>(K - end, [&](int64_t at, auto get, auto) {
    const Vec<T> pi = get(p + end + at);
    s.add(pi > Vec<T>{}, pi, get(v + end + at));
  });
  s.fold();
  const int64_t size = -lanes_sum(s.count);
  const Vec<T> mean = splat(size ? T(s.total.value() / double(size)) : T(0)), scale = splat(*by.scale);
  const auto centred = [=](Vec<T> p, Vec<T> v) { return keep<T>(p > Vec<T>{}, v - mean); };
  const auto whole = [](const T* x) { return load(x); };
  const auto touch = steep.row(0);
  Total<T> along;
  Vec<T> part{};
  const auto made = [&](Vec<T> p, Vec<T> v, int64_t at, auto get) {
    const Vec<T> w = centred(p, v);
    if (when == Along::after) part += w * p;
    return touch(w * scale, at, get);
  };
  for (int64_t t = 0; t < n; ++t) {
    const int64_t at = touched[t] * int64_t(kPart<T>);
    for (int64_t i = at; i < at + kPart<T>; i += W) {
      put<stream>(g + i, made(load(p + i), load(v + i), i, whole));
      if (!stream && i % kLine<T> == 0) ask_ahead(g + i);
      if (ahead) prefetch_far(p + i + ahead), prefetch_far(v + i + ahead);
    }
    if (when == Along::after && t % kFold == kFold - 1) along.add(lanes_sum(part)), part = Vec<T>{};
  }
  each_vector<T>(K - end, [&](int64_t at, auto get, auto put) {
    put(g + end + at, made(get(p + end + at), get(v + end + at), end + at, get));
  });
  if (when == Along::after) along.add(lanes_sum(part));
  if (by.along) *by.along = T(along.value());
}

}  // namespace sparsegen::SPARSEGEN_ISA
