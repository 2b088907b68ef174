// The backward pass of vjp.hpp for rows whose support a forward pass has kept as bits, 32 entries a word: p, 32 times as long,
// need not be read again, and of v only what is in words with support.
#pragma once

#include "vjp.hpp"

namespace sparsegen::SPARSEGEN_ISA {

inline int64_t support_size(const uint32_t* words, int64_t K) {
  int64_t n = 0;
  for (int64_t i = 0; i < words_of(K); ++i) n += __builtin_popcount(words[i]);
  return n;
}

// A word in every lane, and of its entries those from j on that are in, a lane each.
template <class T>
using Lane = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;

template <class T>
inline Mask<T> spread_word(uint32_t word) {
  return Mask<T>{} + Lane<T>(word);
}

template <class T>
inline Mask<T> in_word(Mask<T> word, int j) {
  struct Table {
    Lane<T> bit[32];
    constexpr Table() : bit{} {
      for (int i = 0; i < 32; ++i) bit[i] = Lane<T>(uint32_t(1) << i);
    }
  };
  static constexpr Table table;
  Mask<T> bit;
  std::memcpy(&bit, table.bit + j, sizeof bit);
  return (word & bit) == bit;
}

// f(at, in, get, put) for each vector of a row: its place, the lanes in the support, and how to load and store it. Words
// without support go to none(at) instead, if `skip`.
template <class T, bool stream, bool skip, class F, class None>
inline void each_chosen(const uint32_t* words, int64_t K, F&& f, None&& none) {
  int64_t k = 0;
  for (; k + 32 <= K; k += 32, ++words) {
    if (skip && !*words) {
      none(k);
      continue;
    }
    const Mask<T> word = spread_word<T>(*words);
    for (int j = 0; j < 32; j += kWidth<T>)
      f(k + j, in_word<T>(word, j), [](const T* x) { return load(x); }, [](T* x, Vec<T> v) { put<stream>(x, v); });
  }
  if (k == K) return;
  const Mask<T> word = spread_word<T>(*words);
  each_vector<T>(K - k, [&](int64_t j, auto get, auto write) { f(k + j, in_word<T>(word, int(j)), get, write); });
}

// grad_x = w / r, given the mean and 1 / r, with a last touch. It asks for the memory `next` entries on; 0: for none.
template <bool stream, bool skip, class T, class F>
inline void write_chosen(const uint32_t* words, const T* v, int64_t K, T mean, T scale, T* g, int64_t next, const F& touch) {
  const Vec<T> m = splat(mean), s = splat(scale);
  each_chosen<T, stream, skip>(words, K, [=](int64_t at, Mask<T> in, auto get, auto write) {
    write(g + at, touch(keep<T>(in, get(v + at) - m) * s, at, get));
    if (!stream && next && at % kLine<T> == 0) prefetch_to_write(g + at + next);
  }, [=](int64_t at) {
    write_zeros<stream>(g + at, 32);
  });
}

inline constexpr int64_t kNearGroup = 8 << 10;  // bytes of a group that the first cache holds beside the next
inline constexpr int64_t kChosenGroupLimit = 512;  // longest row that shares a group: eight of them fit the first cache

// n <= W rows together: their means are found at once, and the rows that come next, as a rule W K entries on, are asked for
// meanwhile. The words of a row follow those of the row before. `v` may be `g`.
template <bool stream, class T>
inline void vjp_chosen(const uint32_t* words, const T* const* v, int n, int64_t K, const T* scale, T* const* g) {
  constexpr int W = kWidth<T>;
  const int64_t step = words_of(K), next = W * K;
  Vec<T> sum[W] = {};
  alignas(kVectorBytes) T mean[W], size[W];
  std::fill_n(size, W, T(1));
  const bool near = W * K * int64_t(sizeof(T)) <= kNearGroup;
  const auto ask = [=](int at) {
    if (near) each_line(v, next, K, at, 2, prefetch);
    else each_line(v, next, K, at, 2, prefetch_far);
  };
  for (int i = 0; i < n; ++i) {
    const T* const from = v[i];
    Vec<T> s{};
    ask(i);
    each_chosen<T, false, false>(words + i * step, K, [&](int64_t at, Mask<T> in, auto get, auto) {
      add_where<T>(in, get(from + at), s);
    }, [](int64_t) {});
    sum[i] = s, size[i] = T(std::max<int64_t>(support_size(words + i * step, K), 1));
  }
  store(mean, fold_rows<T, Sum>(sum) / load(size));
  for (int i = 0; i < n; ++i) {
    ask(n + i);
    write_chosen<stream, false>(words + i * step, v[i], K, mean[i], scale[i], g[i], next, Straight{});
  }
}

#if defined(__AVX512F__)
// Rows of N vectors, the last of which may be incomplete, one after the other: v is held in registers from the sum to the gradient, as
// vjp_held() has it. The words of a row follow those of the row before.
template <int N, bool stream, class T>
inline void vjp_chosen_held(const uint32_t* words, const T* const* v, int n, int64_t K, const T* scale, T* const* g) {
  constexpr int W = kWidth<T>, last = N - 1;
  const int64_t step = words_of(K), next = n * K;
  const unsigned bits = ~0u >> (32 - int(K - last * W));
  for (int i = 0; i < n; ++i, words += step) {
    const char* const in = reinterpret_cast<const char*>(words);
    for (int j = 0; j < N; ++j) prefetch(v[i] + next + j * W);
    if (!stream) for (int j = 0; j < N; ++j) prefetch_to_write(g[i] + next + j * W);
    Vec<T> held[N], sums[2] = {};
    Open<T> on[N];
    for (int j = 0; j < N; ++j) {
      std::memcpy(&on[j], in + j * sizeof on[j], sizeof on[j]);
      held[j] = j < last ? load(v[i] + j * W) : load_bits(v[i] + j * W, bits);
      add_where<T>(on[j], held[j], sums[j % 2]);
    }
    const Vec<T> mean = splat(lanes_sum(sums[0] + sums[1]) / T(std::max<int64_t>(support_size(words, K), 1)));
    for (int j = 0; j < N; ++j) {
      const Vec<T> made = keep<T>(on[j], held[j] - mean) * splat(scale[i]);
      if (stream || j < last) put<stream>(g[i] + j * W, made);
      else store_bits(g[i] + j * W, made, bits);
    }
  }
}

inline constexpr int kChosenVectors = 8;  // of the longest row that is held so

// vjp_chosen_held() of as many vectors as a row of more than half of that number has.
template <bool stream, class T>
inline auto chosen_held_of(int64_t K) {
  constexpr decltype(&vjp_chosen_held<8, stream, T>) of[] = {vjp_chosen_held<5, stream, T>, vjp_chosen_held<6, stream, T>,
                                                              vjp_chosen_held<7, stream, T>, vjp_chosen_held<8, stream, T>};
  return of[(K - 1) / kWidth<T> - kChosenVectors / 2];
}
#endif

// A longer row; words without support are worth a branch.
template <bool stream, class T, class F = Straight>
inline void vjp_chosen_long(const uint32_t* words, const T* v, int64_t K, T scale, T* g, const F& touch = F{}) {
  Total<T> total;
  Vec<T> sum{};
  int64_t n = 0;
  each_chosen<T, false, true>(words, K, [&](int64_t at, Mask<T> in, auto get, auto) {
    add_where<T>(in, get(v + at), sum);
    if (++n % (kFold * kUnroll) == 0) total.add(lanes_sum(sum)), sum = Vec<T>{};
  }, [](int64_t) {});
  total.add(lanes_sum(sum));
  const int64_t size = support_size(words, K);
  write_chosen<stream, true>(words, v, K, size ? T(total.value() / double(size)) : T(0), scale, g, kAskAhead / sizeof(T), touch);
}

// A row whose words were kept, of which one more may be read. It is not NaN.
template <class T>
struct KeptRow {
  const uint32_t* kept;
  template <class Get>
  Open<T> open(int64_t at, Vec<T>, Get&&) const {
    const uint32_t* const from = kept + at / 32;
    const uint32_t bits = uint32_t((uint64_t(from[1]) << 32 | from[0]) >> (at % 32));
#if defined(__AVX512F__)
    return Open<T>(bits);
#else
    return in_word<T>(spread_word<T>(bits), 0);
#endif
  }
  T first() const { return T(0); }
  const uint32_t* words(uint32_t*) const { return kept; }
};

// One of which p is read where it has support.
template <class T>
struct SharesOfWords : KeptRow<T> {
  const T* p;
  template <class Get>
  Vec<T> operator()(int64_t at, Get&& get) const { return get(p + at); }
  template <class F>
  void line(int64_t at, F&& f) const { f(p + at); }
};

// gather_parts() of a row whose words were kept: p, too, is not read in parts without support.
template <bool stream, class T, class S>
inline int64_t gather_kept(const uint32_t* words, const T* p, const T* v, int64_t parts, T* g, int32_t* touched, S& s) {
  constexpr int W = kWidth<T>, part = kPart<T>;
  static_assert(32 % part == 0);
  constexpr uint32_t lowest = ~0u >> (32 - part);
  int64_t n = 0;
  for (int64_t i = 0, at = 0; i < parts; ++i, at += part) {
    if (!(words[at / 32] >> (at % 32) & lowest)) {
      write_zeros<stream>(g + at, part);
      continue;
    }
    for (int j = 0; j < part; j += W) s.add(load(p + at + j) > Vec<T>{}, load(p + at + j), load(v + at + j));
    touched[n++] = int32_t(i);
    if (n % kFold == 0) s.fold();
  }
  return n;
}

// Rows of squares none of which is hidden. See FromShares: with p = (z^2 - tau) / r and w summing to 0, w.p is w.z^2 / r.
template <class T>
struct FromWords {
  static constexpr int kArrays = 0;  // z is that of the last touch
  const uint32_t* const* kept;
  const T* const* z;

  struct Row : KeptRow<T> {
    const T* z;
    template <class Get>
    Vec<T> operator()(int64_t at, Get&& get) const { return get(z + at) * get(z + at); }
    template <class F>
    void line(int64_t, F&&) const {}
  };

  FromWords from(int i) const { return {kept + i, z + i}; }
  Row row(int i) const { return {{kept[i]}, z[i]}; }
  template <class F>
  void lines(F&&) const {}
};

// The same where no words were kept: the gradients have the same bits.
template <class T>
struct FromSquares {
  static constexpr int kArrays = 1;
  const T *const *p, *const *z;

  struct Row : FromShares<T>::Row {
    const T* z;
    template <class Get>
    Vec<T> operator()(int64_t at, Get&& get) const { return get(z + at) * get(z + at); }
    template <class Get>
    Open<T> open(int64_t at, Vec<T>, Get&& get) const { return open_above<T>(get(this->p + at), Vec<T>{}); }
  };

  FromSquares from(int i) const { return {p + i, z + i}; }
  Row row(int i) const { return {{p[i]}, z[i]}; }
  template <class F>
  void lines(F&& f) const { f(p); }
};

// The words of a row, from entry k on: found and kept in passing, or kept before.
template <class T>
inline uint32_t word_at(const typename FromShares<T>::Row& row, uint32_t* words, int64_t k) {
  uint32_t word = 0;
  for (int j = 0; j < 32; j += kWidth<T>) word |= uint32_t(bits_above<T>(load(row.p + k + j), Vec<T>{})) << j;
  return words[k / 32] = word;
}
template <class T>
inline uint32_t word_at(const KeptRow<T>&, const uint32_t* words, int64_t k) { return words[k / 32]; }

// The last one, of which there are only some entries.
template <class T>
inline void last_word(const typename FromShares<T>::Row& row, uint32_t* words, int64_t k, int64_t n) {
  words[k / 32] = 0;
  each_vector<T>(n, [&](int64_t j, auto get, auto) { words[k / 32] |= uint32_t(bits_above<T>(get(row.p + k + j), Vec<T>{})) << j; });
}
template <class T>
inline void last_word(const KeptRow<T>&, const uint32_t*, int64_t, int64_t) {}

// The words of a row: [p > 0].
template <class T>
inline void find_support(const T* p, int64_t K, uint32_t* words) {
  const typename FromShares<T>::Row row{p};
  int64_t k = 0;
  for (; k + 32 <= K; k += 32) word_at<T>(row, words, k);
  if (k < K) last_word<T>(row, words, k, K - k);
}

// What the first pass over a row with w.p finds: its support as bits, unless it was kept, and the sums of Moments.
template <class T, class P, class F>
class Spread {
  using Words = decltype(std::declval<P>().words(nullptr));
  static constexpr int W = kWidth<T>;
  static constexpr bool kReadsAll = !std::is_base_of_v<SharesOfWords<T>, P>;  // of p and what the touch reads, to find support
  static constexpr int64_t kOften = 2 * W;  // words after which sums are folded: each of two chains has added 32 numbers to a lane
  // Where less than one word in kFew has support, v is read for those alone; else a branch that nobody foresees costs more. Each
  // chunk goes by the one before.
  static constexpr int64_t kFew = 4, kFirst = 64 * W, kChunk = 512 * W;

 public:
  Spread(const P& p, const T* v, const F& touch, Words words) : p_(p), v_(v), touch_(touch), words_(words) {}

  void add_all(int64_t K) {
    int64_t with = 0;
    for (int64_t from = 0, end = std::min(kFirst, K); from < K; from = end, end = std::min(end + kChunk, K)) {
      const int64_t seen = sparse_ ? add<true>(from, end) : add<false>(from, end);
      sparse_ = seen * kFew * 32 < end - from, with += seen;
    }
    sparse_ = with * kFew * 32 < K;
  }

  double mean() const { return sum_.value() / double(std::max<int64_t>(size_, 1)); }
  double along() const { return along_.value() - mean() * all_.value(); }
  bool sparse() const { return sparse_; }

 private:
  // The entries [from, end); returns how many words have support. With `skip` v is read for those alone.
  template <bool skip>
  int64_t add(int64_t from, int64_t end) {
    const P p = p_;
    const T* const v = v_;
    const Words words = words_;
    const auto get = [](const T* x) { return load(x); };
    Moments<T, true> even, odd;
    const auto fold = [&] {
      sum_.add(lanes_sum(even.sum + odd.sum)), all_.add(lanes_sum(even.all + odd.all));
      along_.add(lanes_sum(even.along + odd.along));
      even.sum = odd.sum = even.along = odd.along = even.all = odd.all = Vec<T>{};
    };
    int64_t k = from, seen = 0, added = 0;
    const bool asks = !foresees;
    for (; k + 32 <= end; k += 32) {
      if (asks) ask<!skip>(k);
      const uint32_t word = word_at<T>(p, words, k);
      seen += word != 0;
      if (skip && !word) continue;
      for (int j = 0; j < 32; j += 2 * W) even.add(p, k + j, v, get), odd.add(p, k + j + W, v, get);
      if (++added % kOften == 0) fold();
    }
    if (k < end) last_word<T>(p, words, k, end - k);
    each_vector<T>(end - k, [&](int64_t j, auto get, auto) { even.add(p, k + j, v, get); });
    fold();
    size_ += count_of<T>(even.count + odd.count);
    return seen;
  }

  // Asks for what a word's entries and those behind them are made of, 4 KB on; v may not be read.
  template <bool with_v>
  void ask(int64_t k) const {
    for (int64_t at = k + kBackAhead<T>, end = at + 32; at < end; at += kLine<T>) {
      if (with_v || kReadsAll) p_.line(at, prefetch), touch_.line(at, prefetch);
      if (with_v) prefetch(v_ + at);
    }
  }

  P p_;
  const T* v_;
  F touch_;
  Words words_;
  Total<T> sum_, along_, all_;
  int64_t size_ = 0;
  bool sparse_ = true;  // do few words have support?
};

// A row of at least kSkipFrom entries of which w.p is found before its gradient is written, as every entry has a share of it. The
// second pass reads the support off `words`, which the first makes in the `room` for them unless they are kept, and not p again.
// Nothing is asked for in advance where the hardware reads such rows faster than requests do.
template <bool stream, class T, class P, class F>
inline void vjp_spread(const P& p, const T* v, int64_t K, Factors<T> by, T* g, uint32_t* room, const F& steep) {
  const auto touch = steep.row(0);
  const auto words = p.words(room);
  Spread<T, P, decltype(steep.row(0))> all(p, v, touch, words);
  all.add_all(K);
  const Vec<T> mean = splat(T(all.mean())), scale = splat(*by.scale), more = splat(T(all.along() * double(*by.each)));
  const auto one = [=](int64_t at, Mask<T> in, auto get, auto write) {
    write(g + at, touch(keep<T>(in, get(v + at) - mean) * scale + more, at, get));
    if (!stream && at % kLine<T> == 0) ask_ahead(g + at);
  };
  const auto none = [=](int64_t at) {
    for (int j = 0; !stream && j < 32; j += kLine<T>) ask_ahead(g + at + j);
    for (int64_t j = at; j < at + 32; j += kWidth<T>) put<stream>(g + j, touch(more, j, [](const T* x) { return load(x); }));
  };
  if (all.sparse()) each_chosen<T, stream, true>(words, K, one, none);
  else each_chosen<T, stream, false>(words, K, one, none);
  const T first = p.first();
  if (by.along) *by.along = std::isnan(first) ? first : T(all.along());
  if (std::isnan(first)) std::fill_n(g, K, first);  // a row with NaN is NaN throughout
}

}  // namespace sparsegen::SPARSEGEN_ISA
