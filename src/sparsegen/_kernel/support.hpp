// The backward pass of vjp.hpp for rows whose support a forward pass has kept as bits, 32 entries a word: p, 32 times as long,
// need not be read again, and of v only what is in words with support.
#pragma once

#include "vjp.hpp"

namespace sparsegen::SPARSEGEN_ISA {

inline int64_t words_of(int64_t K) { return (K + 31) / 32; }

// The words of a row: [p > 0].
template <class T>
inline void find_support(const T* p, int64_t K, uint32_t* words) {
  constexpr int W = kWidth<T>;
  const Vec<T> zero{};
  for (const T* const end = p + K / 32 * 32; p != end; p += 32) {
    uint32_t word = 0;
    for (int j = 0; j < 32; j += W) word |= uint32_t(bits_above<T>(load(p + j), zero)) << j;
    *words++ = word;
  }
  if (K % 32) *words = 0;
  each_vector<T>(K % 32, [&](int64_t j, auto get, auto) { *words |= uint32_t(bits_above<T>(get(p + j), zero)) << j; });
}

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

// grad_x = w / r, given the mean and 1 / r. It asks for the memory `next` entries on; 0: for none.
template <bool stream, bool skip, class T>
inline void write_chosen(const uint32_t* words, const T* v, int64_t K, T mean, T scale, T* g, int64_t next) {
  const Vec<T> m = splat(mean), s = splat(scale);
  each_chosen<T, stream, skip>(words, K, [=](int64_t at, Mask<T> in, auto get, auto write) {
    write(g + at, keep<T>(in, get(v + at) - m) * s);
    if (!stream && next && at % kLine<T> == 0) prefetch_to_write(g + at + next);
  }, [=](int64_t at) {
    for (int j = 0; j < 32; j += kWidth<T>) put<stream>(g + at + j, Vec<T>{});
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
    write_chosen<stream, false>(words + i * step, v[i], K, mean[i], scale[i], g[i], next);
  }
}

// A longer row; words without support are worth a branch.
template <bool stream, class T>
inline void vjp_chosen_long(const uint32_t* words, const T* v, int64_t K, T scale, T* g) {
  Total<T> total;
  Vec<T> sum{};
  int64_t n = 0;
  each_chosen<T, false, true>(words, K, [&](int64_t at, Mask<T> in, auto get, auto) {
    add_where<T>(in, get(v + at), sum);
    if (++n % (kFold * kUnroll) == 0) total.add(lanes_sum(sum)), sum = Vec<T>{};
  }, [](int64_t) {});
  total.add(lanes_sum(sum));
  const int64_t size = support_size(words, K);
  write_chosen<stream, true>(words, v, K, size ? T(total.value() / double(size)) : T(0), scale, g, 0);
}

}  // namespace sparsegen::SPARSEGEN_ISA
