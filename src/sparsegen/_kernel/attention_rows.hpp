// Rows of queries, keys and values as attention reads them: widened in registers, summed by weights, multiplied.
#pragma once

#include "storage.hpp"
#include "vjp.hpp"

namespace sparsegen::SPARSEGEN_ISA {

inline constexpr int kTileRows = 6;  // of queries scored together: 6 x 2 vectors of sums, 2 of keys, one of a query: 15 of 16 registers
#if defined(__AVX512F__)
inline constexpr int kWideTile = 4;  // vectors of values summed together: 6 x 4 of sums, 4 of values, one of a weight: 29 of 32
#else
inline constexpr int kWideTile = 2;
#endif

template <class S>
using Wide = typename ComputeIn<S>::type;

// W entries in the type of the arithmetic.
template <class S>
inline Vec<Wide<S>> read(const S* x) {
  if constexpr (sizeof(S) > 2) {
    return load(x);
  } else {
#if defined(__AVX512BW__)
    const __m256i h = _mm256_loadu_si256((const __m256i*)x);
    if constexpr (std::is_same_v<S, Half>) return (Vec<float>)_mm512_cvtph_ps(h);
    else return (Vec<float>)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    const __m128i h = _mm_loadu_si128((const __m128i*)x);
    if constexpr (std::is_same_v<S, Half>) return (Vec<float>)_mm256_cvtph_ps(h);
    else return (Vec<float>)_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16);
#else
    float lanes[kWidth<float>];
    for (int i = 0; i < kWidth<float>; ++i) lanes[i] = widen(x[i]);
    return load(lanes);
#endif
  }
}

// The first n < W entries, and zeros; what lies behind them is not touched.
template <class S>
inline Vec<Wide<S>> read_part(const S* x, int n) {
  if constexpr (sizeof(S) > 2) {
    return load_part(x, n);
  } else {
    S copy[kWidth<float>] = {};
    std::memcpy(copy, x, size_t(n) * sizeof(S));
    return read(copy);
  }
}

// f(from, read) of every vector of E entries.
template <class S, class F>
inline void each_read(int64_t E, F&& f) {
  constexpr int W = kWidth<Wide<S>>;
  int64_t e = 0;
  for (; e + W <= E; e += W) f(e, [](const S* x) { return read(x); });
  const int left = int(E - e);
  if (left) f(e, [=](const S* x) { return read_part(x, left); });
}

// sum_j w[j] * row at[j] of a matrix, to `out`.
template <int N, class S, class T>
inline void combine_vectors(const S* m, int64_t stride, const int32_t* at, const T* w, int64_t n, T* out) {
  constexpr int W = kWidth<T>;
  Vec<T> sum[N];
#pragma GCC unroll 8
  for (int v = 0; v < N; ++v) sum[v] = Vec<T>{};
  for (int64_t j = 0; j < n; ++j) {
    const S* row = m + at[j] * stride;
    const Vec<T> wj = splat(w[j]);
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) sum[v] = fma(wj, read(row + v * W), sum[v]);
  }
#pragma GCC unroll 8
  for (int v = 0; v < N; ++v) store(out + v * W, sum[v]);
}

template <class S, class T>
inline void combine(const S* m, int64_t stride, int64_t E, const int32_t* at, const T* w, int64_t n, T* out) {
  constexpr int W = kWidth<T>;
  int64_t e = 0;
  for (; e + 8 * W <= E; e += 8 * W) combine_vectors<8>(m + e, stride, at, w, n, out + e);
  for (; e + 4 * W <= E; e += 4 * W) combine_vectors<4>(m + e, stride, at, w, n, out + e);
  for (; e + W <= E; e += W) combine_vectors<1>(m + e, stride, at, w, n, out + e);
  const int left = int(E - e);
  if (!left) return;
  Vec<T> sum{};
  for (int64_t j = 0; j < n; ++j) sum = fma(splat(w[j]), read_part(m + at[j] * stride + e, left), sum);
  store_part(out + e, sum, left);
}

// Rows of weights, each with its own place and its own sum.
template <class T>
struct Weighed {
  const T* w[kTileRows];
  T* out[kTileRows];
};

// Goes on with the sums of combine() for R rows of n weights that stand side by side, zeros among them: N vectors of each row
// of `m` are read once for all of them. The same additions in the same order, and a zero adds nothing to a number.
template <int R, int N, class S, class T>
inline void combine_tile(const S* m, int64_t stride, int64_t n, const Weighed<T>& rows, int64_t at) {
  constexpr int W = kWidth<T>;
  Vec<T> sum[R][N];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) sum[i][v] = load(rows.out[i] + at + v * W);
  const T* w[R];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) w[i] = rows.w[i];
  const S* row = m + at;
  for (int64_t j = 0; j < n; ++j, row += stride) {
    Vec<T> x[N];
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) x[v] = read(row + v * W);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Vec<T> wj = splat(w[i][j]);
#pragma GCC unroll 8
      for (int v = 0; v < N; ++v) sum[i][v] = fma(wj, x[v], sum[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) store(rows.out[i] + at + v * W, sum[i][v]);
}

// All E entries of R rows: as many vectors together as there are registers for, then one, then a part of one.
template <int R, class S, class T>
inline void combine_rows(const S* m, int64_t stride, int64_t E, int64_t n, const Weighed<T>& rows) {
  constexpr int W = kWidth<T>, N = kWideTile;
  int64_t e = 0;
  for (; e + N * W <= E; e += N * W) combine_tile<R, N>(m, stride, n, rows, e);
  for (; e + W <= E; e += W) combine_tile<R, 1>(m, stride, n, rows, e);
  const int left = int(E - e);
  for (int i = 0; left && i < R; ++i) {
    Vec<T> sum = load_part(rows.out[i] + e, left);
    for (int64_t j = 0; j < n; ++j) sum = fma(splat(rows.w[i][j]), read_part(m + j * stride + e, left), sum);
    store_part(rows.out[i] + e, sum, left);
  }
}

template <class T>
inline bool has_nan(const T* x, int64_t n) {
  bool found = false;  // all are looked at: a loop that may end early is not made of vectors
  for (int64_t i = 0; i < n; ++i) found |= x[i] != x[i];
  return found;
}

// out += w * x
template <class S, class T>
inline void add_multiple(T w, const S* x, int64_t E, T* out) {
  constexpr int W = kWidth<T>;
  int64_t e = 0;
  for (; e + W <= E; e += W) store(out + e, fma(splat(w), read(x + e), load(out + e)));
  const int left = int(E - e);
  if (left) store_part(out + e, fma(splat(w), read_part(x + e, left), load_part(out + e, left)), left);
}

template <class S, class T>
inline T dot(const T* x, const S* y, int64_t E) {
  constexpr int W = kWidth<T>;
  Vec<T> a{}, b{}, c{}, d{};
  int64_t e = 0;
  for (; e + 4 * W <= E; e += 4 * W) {
    a = fma(load(x + e), read(y + e), a), b = fma(load(x + e + W), read(y + e + W), b);
    c = fma(load(x + e + 2 * W), read(y + e + 2 * W), c), d = fma(load(x + e + 3 * W), read(y + e + 3 * W), d);
  }
  for (; e + W <= E; e += W) a = fma(load(x + e), read(y + e), a);
  const int left = int(E - e);
  if (left) a = fma(load_part(x + e, left), read_part(y + e, left), a);
  return lanes_sum((a + b) + (c + d));
}

}  // namespace sparsegen::SPARSEGEN_ISA
