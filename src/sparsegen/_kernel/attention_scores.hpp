// Scores of queries and keys: many queries by tiles over packed keys, few of them straight from the keys' own rows.
#pragma once

#include <memory>

#include "attention_rows.hpp"
#include "functions.hpp"
#include "tiles.hpp"

// Dot products of pairs of bfloat16, where the compiler can be asked for them function by function.
#if defined(__AVX512BW__) && (defined(__clang__) || __GNUC__ >= 10)
#define SPARSEGEN_PAIRS
#endif

namespace sparsegen::SPARSEGEN_ISA {

#if defined(SPARSEGEN_PAIRS)
inline constexpr bool kPairs = true;
#else
inline constexpr bool kPairs = false;
#endif

template <class T>
inline constexpr int kPanel = 2 * kWidth<T>;  // keys scored together

template <class S>
inline const S* row_of(const Heads& m, int64_t head, int64_t i) {
  return static_cast<const S*>(m.data) + m.at[head] + i * m.row;
}

// The largest |x| of a row joins `top`, compared as integers: NaN is above infinity, and both above all numbers. Returns
// whether an entry is subnormal, which only halves are asked.
template <class S>
inline bool widen_range(const S* x, int64_t n, Mask<Wide<S>>& top) {
  using T = Wide<S>;
  Mask<T> tiny{};
  each_read<S>(n, [&](int64_t at, auto get) {
    const Mask<T> size = (Mask<T>)get(x + at) & std::numeric_limits<Bits<T>>::max();
    top = size > top ? size : top;
    if constexpr (sizeof(S) == 2) tiny |= (size > 0) & (size < (1 << 23));
  });
  return sizeof(S) == 2 && lane_bits<T>(tiny);
}

template <class T>
inline T range(Mask<T> top) {
  Bits<T> most = 0;
  for (int i = 0; i < kWidth<T>; ++i) most = std::max<Bits<T>>(most, top[i]);
  T largest;
  std::memcpy(&largest, &most, sizeof largest);
  return largest;
}

// Numbers of 32 or 64 bits, panel by panel, entry by entry, key by key: a tile reads them in order. `from` are P rows of E
// entries; those from n on are zeros.
template <class T>
inline void pack_panel(const T* from, int64_t stride, int64_t n, int64_t E, T* to) {
  constexpr int P = kPanel<T>, N = kTile<T>;
  int64_t e = 0;
  for (; n == P && e + N <= E; e += N)
    for (int j = 0; j < P; j += N) {
      Tile<T> tile;
      for (int i = 0; i < N; ++i) tile.load(i, from + (j + i) * stride + e);
      tile.transpose();
      for (int i = 0; i < N; ++i) tile.store(i, to + (e + i) * P + j);
    }
  for (; e < E; ++e)
    for (int j = 0; j < P; ++j) {
      // Moved, not read: a pair of halves may look like a number that is not one.
      if (j < n) std::memcpy(to + e * P + j, from + j * stride + e, sizeof(T));
      else to[e * P + j] = T(0);
    }
}

// The keys of one head, packed as far as needed: widened, or (`pairs`) halves two by two.
template <class S>
class PackedKeys {
  using T = Wide<S>;

 public:
  PackedKeys(const AttentionJob& job, bool pairs)
      : job_(job), width_(pairs ? job.width / 2 : job.width), pairs_(pairs),
        data_(new T[(job.keys + kPanel<T>) * width_ + kPanel<T>]), tops_(new T[job.keys / kPanel<T> + 1]),
        rows_(sizeof(S) == 2 && !pairs ? new T[kPanel<T> * job.width] : nullptr) {}

  void use(int64_t head, int64_t keys) {
    if (head != head_) head_ = head, done_ = 0, top_ = Mask<T>{}, tiny_ = job_.keys;
    for (; done_ < keys; done_ += kPanel<T>) pack(done_);
  }
  const T* panel(int64_t key) const { return data_.get() + key * width_; }
  // Of the keys below `high`, whatever else was packed: other keys must not change the way a row takes.
  T largest(int64_t high) const { return tops_[(high - 1) / kPanel<T>]; }
  bool tiny(int64_t high) const { return tiny_ < high; }

 private:
  void pack(int64_t key) {
    const int64_t E = job_.width, n = std::min<int64_t>(kPanel<T>, job_.keys - key), step = job_.k.row;
    const S* from = row_of<S>(job_.k, head_, key);
    T* to = data_.get() + key * width_;
    for (int64_t j = 0; j < n; ++j)
      if (widen_range(from + j * step, E, top_)) tiny_ = std::min(tiny_, key);
    tops_[key / kPanel<T>] = range<T>(top_);
    if constexpr (sizeof(S) > 2) {
      pack_panel(from, step, n, E, to);
    } else if (pairs_) {
      pack_panel(reinterpret_cast<const T*>(from), step / 2, n, width_, to);
    } else {
      for (int64_t j = 0; j < n; ++j) widen_row(from + j * step, E, rows_.get() + j * E);
      pack_panel(rows_.get(), E, n, E, to);
    }
  }
  const AttentionJob& job_;
  int64_t width_;
  bool pairs_;
  std::unique_ptr<T[]> data_, tops_, rows_;  // `tops_`: the largest |entry| up to the end of each panel
  int64_t head_ = -1, done_ = 0, tiny_ = 0;   // `tiny_`: the panel with the first subnormal entry
  Mask<T> top_{};
};

// A scale of at most 1 is multiplied into the queries and a larger one into the scores: no part of a score is then larger
// than the score, and none overflows that it need not.
template <class T>
struct Scale {
  T before, after;
  explicit Scale(double scale) : before(std::fabs(scale) <= 1 ? T(scale) : T(1)), after(std::fabs(scale) <= 1 ? T(1) : T(scale)) {}
};

// The scores of R queries (entry by entry, query by query) and one panel, and the larger of each score and the one W on.
template <int R, class T>
inline void score_tile(const T* q, const T* k, int64_t E, T scale, T* s, T* maxima, int64_t stride) {
  constexpr int W = kWidth<T>;
  Vec<T> a[R], b[R];  // registers, once all loops over them are unrolled
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) a[i] = b[i] = Vec<T>{};
  for (int64_t e = 0; e < E; ++e, q += R, k += 2 * W) {
    const Vec<T> k0 = load(k), k1 = load(k + W);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Vec<T> qi = splat(q[i]);
      a[i] = fma(qi, k0, a[i]), b[i] = fma(qi, k1, b[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    const Vec<T> x = a[i] * splat(scale), y = b[i] * splat(scale);
    store(s + i * stride, x), store(s + i * stride + W, y);
    store(maxima + i * stride / 2, vmax(x, y));
  }
}

#if defined(SPARSEGEN_PAIRS)
// The same of pairs of bfloat16: products are exact and sums are float's, so only the order of the sum is another. The
// instruction takes subnormal numbers for 0, so they must not be among the entries.
template <int R>
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16"))) inline void score_pairs(
    const float* q, const float* k, int64_t E, float scale, float* s, float* maxima, int64_t stride) {
  __m512 a[R], b[R];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) a[i] = b[i] = _mm512_setzero_ps();
  for (int64_t e = 0; e < E; ++e, q += R, k += 32) {
    const __m512bh k0 = (__m512bh)_mm512_loadu_si512(k), k1 = (__m512bh)_mm512_loadu_si512(k + 16);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      int pair;
      std::memcpy(&pair, q + i, 4);
      const __m512bh qi = (__m512bh)_mm512_set1_epi32(pair);
      a[i] = _mm512_dpbf16_ps(a[i], qi, k0), b[i] = _mm512_dpbf16_ps(b[i], qi, k1);
    }
  }
  const __m512 by = _mm512_set1_ps(scale);
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    const __m512 x = _mm512_mul_ps(a[i], by), y = _mm512_mul_ps(b[i], by);
    _mm512_storeu_ps(s + i * stride, x), _mm512_storeu_ps(s + i * stride + 16, y);
    _mm512_storeu_ps(maxima + i * stride / 2, _mm512_max_ps(x, y));
  }
}
#endif

template <class T>
using ScoreTile = void (*)(const T* q, const T* k, int64_t E, T scale, T* s, T* maxima, int64_t stride);

// The tile for so many rows.
template <class T>
inline ScoreTile<T> tile_of(int rows, [[maybe_unused]] bool pairs) {
#if defined(SPARSEGEN_PAIRS)
  if constexpr (sizeof(T) == 4) {
    static constexpr ScoreTile<T> paired[] = {score_pairs<1>, score_pairs<2>, score_pairs<3>,
                                              score_pairs<4>, score_pairs<5>, score_pairs<6>};
    if (pairs) return paired[rows - 1];
  }
#endif
  static constexpr ScoreTile<T> tiles[] = {score_tile<1, T>, score_tile<2, T>, score_tile<3, T>,
                                           score_tile<4, T>, score_tile<5, T>, score_tile<6, T>};
  return tiles[rows - 1];
}

// Scores of one query, widened, and n keys as they lie, times `scale`. `s` has room for whole vectors.
template <class S, class T>
inline void score_keys(const T* q, const S* k, int64_t stride, int64_t E, int64_t n, T scale, T* s) {
  constexpr int W = kWidth<T>, M = W < 4 ? W : 4;  // M keys share each read of the query
  const int64_t whole = E / W * W;
  const int left = int(E - whole);
  const Vec<T> last = left ? load_part(q + whole, left) : Vec<T>{};
  for (int64_t j = 0; j < n; j += W) {
    Vec<T> sum[W];
    for (int i = 0; i < W; i += M) {
      const S* row[M];
      Vec<T> a[M];
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) row[m] = k + std::min(j + i + m, n - 1) * stride, a[m] = Vec<T>{};
      for (int64_t e = 0; e < whole; e += W) {
        const Vec<T> qe = load(q + e);
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) a[m] = fma(qe, read(row[m] + e), a[m]);
      }
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) sum[i + m] = left ? fma(last, read_part(row[m] + whole, left), a[m]) : a[m];
    }
    store(s + j, fold_rows<T, Sum>(sum) * splat(scale));
  }
}

}  // namespace sparsegen::SPARSEGEN_ISA
