// Moving lanes: sums of many vectors at once, packing, and tiles that turn rows into lanes and back.
#pragma once

#include <algorithm>

#include "simd.hpp"

namespace sparsegen::SPARSEGEN_ISA {

struct Sum {
  template <class V>
  static V of(V a, V b) { return a + b; }
};

struct Max {  // of numbers: what it does with NaN depends on the lanes it stands in
  template <class V>
  static V of(V a, V b) {
    if constexpr (std::is_arithmetic_v<V>) return std::max(a, b);
    else return vmax(a, b);
  }
};

#if defined(SPARSEGEN_NEON)
// The sums of neighbouring lanes, of `a` and then of `b`.
inline Vec<float> add_pairs(Vec<float> a, Vec<float> b) { return (Vec<float>)vpaddq_f32((float32x4_t)a, (float32x4_t)b); }
inline Vec<double> add_pairs(Vec<double> a, Vec<double> b) { return (Vec<double>)vpaddq_f64((float64x2_t)a, (float64x2_t)b); }
inline Mask<float> add_pairs(Mask<float> a, Mask<float> b) { return (Mask<float>)vpaddq_s32((int32x4_t)a, (int32x4_t)b); }
inline Mask<double> add_pairs(Mask<double> a, Mask<double> b) { return (Mask<double>)vpaddq_s64((int64x2_t)a, (int64x2_t)b); }
#endif

// Folds each of W vectors, of numbers or of masks, into one lane of the result.
template <class T, class Op, class V>
inline V fold_rows(const V* rows) {
#if defined(__AVX512F__)
  // By pairs within 128 bits, each then four rows of floats or two of doubles, and by pairs of these parts.
  const auto halves = [](V a, V b) {
    const __m512i even = _mm512_shuffle_i32x4((__m512i)a, (__m512i)b, 0x88), odd = _mm512_shuffle_i32x4((__m512i)a, (__m512i)b, 0xDD);
    return Op::of((V)even, (V)odd);
  };
  V part[4];
  if constexpr (sizeof(T) == 4) {
    const auto pair = [](V a, V b) {
      const __m512 even = _mm512_shuffle_ps((__m512)a, (__m512)b, 0x88), odd = _mm512_shuffle_ps((__m512)a, (__m512)b, 0xDD);
      return Op::of((V)even, (V)odd);
    };
    for (int i = 0; i < 4; ++i)
      part[i] = pair(pair(rows[4 * i], rows[4 * i + 1]), pair(rows[4 * i + 2], rows[4 * i + 3]));
  } else {
    const auto pair = [](V a, V b) {
      const __m512d even = _mm512_unpacklo_pd((__m512d)a, (__m512d)b), odd = _mm512_unpackhi_pd((__m512d)a, (__m512d)b);
      return Op::of((V)even, (V)odd);
    };
    for (int i = 0; i < 4; ++i) part[i] = pair(rows[2 * i], rows[2 * i + 1]);
  }
  return halves(halves(part[0], part[1]), halves(part[2], part[3]));
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4) {
    const auto pair = [](V a, V b) {
      const __m256 even = _mm256_shuffle_ps((__m256)a, (__m256)b, 0x88), odd = _mm256_shuffle_ps((__m256)a, (__m256)b, 0xDD);
      return Op::of((V)even, (V)odd);
    };
    const V a = pair(pair(rows[0], rows[1]), pair(rows[2], rows[3]));
    const V b = pair(pair(rows[4], rows[5]), pair(rows[6], rows[7]));
    return Op::of((V)_mm256_permute2f128_ps((__m256)a, (__m256)b, 0x20),
                  (V)_mm256_permute2f128_ps((__m256)a, (__m256)b, 0x31));
  } else {
    const auto pair = [](V a, V b) {
      const __m256d even = _mm256_unpacklo_pd((__m256d)a, (__m256d)b), odd = _mm256_unpackhi_pd((__m256d)a, (__m256d)b);
      return Op::of((V)even, (V)odd);
    };
    const V a = pair(rows[0], rows[1]), b = pair(rows[2], rows[3]);
    return Op::of((V)_mm256_permute2f128_pd((__m256d)a, (__m256d)b, 0x20),
                  (V)_mm256_permute2f128_pd((__m256d)a, (__m256d)b, 0x31));
  }
#elif defined(SPARSEGEN_NEON)
  if constexpr (std::is_same_v<Op, Sum>) {
    if constexpr (sizeof(T) == 4) return add_pairs(add_pairs(rows[0], rows[1]), add_pairs(rows[2], rows[3]));
    else return add_pairs(rows[0], rows[1]);
  } else {
    V found;
    for (int i = 0; i < kWidth<T>; ++i) {
      found[i] = rows[i][0];
      for (int j = 1; j < kWidth<T>; ++j) found[i] = std::max(found[i], rows[i][j]);
    }
    return found;
  }
#else
  V found{};
  for (int i = 0; i < kWidth<T>; ++i) {
    typename std::remove_reference<decltype(found[0])>::type lanes[kWidth<T>];
    std::memcpy(lanes, &rows[i], sizeof lanes);
    for (int w = kWidth<T> / 2; w > 0; w /= 2)
      for (int j = 0; j < w; ++j) lanes[j] = Op::of(lanes[j], lanes[j + w]);
    found[i] = lanes[0];
  }
  return found;
#endif
}

// The same of masks that count down: how many each has counted.
template <class T>
inline Vec<T> fold_counts(const Mask<T>* rows) {
  return __builtin_convertvector(-fold_rows<T, Sum>(rows), Vec<T>);
}

// The same of what count_open() has counted, W rows or one.
template <class T>
inline Vec<T> counts_of(const Count<T>* rows) {
#if defined(__AVX512F__)
  alignas(kVectorBytes) T n[kWidth<T>];
  for (int i = 0; i < kWidth<T>; ++i) n[i] = T(rows[i]);
  return load(n);
#else
  return fold_counts<T>(rows);
#endif
}

template <class T>
inline int64_t count_of(Count<T> row) {
#if defined(__AVX512F__)
  return row;
#else
  return -lanes_sum(row);
#endif
}

#if defined(__AVX2__)
// kPack[bits] moves the chosen ones of eight 32-bit lanes to the front, in order.
struct PackTable {
  alignas(32) int32_t row[256][8];
  constexpr PackTable() : row{} {
    for (int bits = 0; bits < 256; ++bits) {
      int n = 0;
      for (int i = 0; i < 8; ++i)
        if (bits >> i & 1) row[bits][n++] = i;
    }
  }
};
inline constexpr PackTable kPack{};

// kUnpack[bits] moves the first of eight lanes, in order, to the chosen ones.
struct UnpackTable {
  alignas(32) int32_t row[256][8];
  constexpr UnpackTable() : row{} {
    for (int bits = 0; bits < 256; ++bits) {
      int n = 0;
      for (int i = 0; i < 8; ++i) row[bits][i] = n, n += bits >> i & 1;
    }
  }
};
inline constexpr UnpackTable kUnpack{};

// Eight 32-bit lanes of W: a 64-bit lane is two of them.
template <class T>
inline unsigned eight_bits(unsigned bits) {
  return sizeof(T) == 4 ? bits : (bits & 1) * 3 | (bits & 2) * 6 | (bits & 4) * 12 | (bits & 8) * 24;
}
#elif defined(SPARSEGEN_NEON)
// The same of four, as places of bytes.
struct PackTable {
  alignas(16) uint8_t row[16][16];
  constexpr PackTable() : row{} {
    for (int bits = 0; bits < 16; ++bits) {
      int n = 0;
      for (int i = 0; i < 16; ++i)
        if (bits >> i / 4 & 1) row[bits][n++] = uint8_t(i);
    }
  }
};
inline constexpr PackTable kPack{};
#endif

// Writes the lanes of `v` whose bit is set to `out`, in order, and returns how many. Writes up to W entries.
template <class T>
inline int pack(T* out, Vec<T> v, unsigned bits) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    _mm512_storeu_ps(out, _mm512_maskz_compress_ps((__mmask16)bits, (__m512)v));
  else
    _mm512_storeu_pd(out, _mm512_maskz_compress_pd((__mmask8)bits, (__m512d)v));
  return __builtin_popcount(bits);
#elif defined(__AVX2__)
  __m256i order = _mm256_load_si256((const __m256i*)kPack.row[eight_bits<T>(bits)]);
  _mm256_storeu_si256((__m256i*)out, _mm256_permutevar8x32_epi32((__m256i)v, order));
  return __builtin_popcount(bits);
#else
#if defined(SPARSEGEN_NEON)
  if constexpr (sizeof(T) == 4) {
    vst1q_u8((uint8_t*)out, vqtbl1q_u8((uint8x16_t)v, vld1q_u8(kPack.row[bits])));
    return __builtin_popcount(bits);
  }
#endif
  int n = 0;
  for (int i = 0; i < kWidth<T>; ++i) {
    out[n] = v[i];
    n += bits >> i & 1;
  }
  return n;
#endif
}

// The other way round: the lanes whose bit is set, in order, from `from`, and 0 in others. Reads up to W entries.
template <class T>
inline Vec<T> unpack(const T* from, unsigned bits) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return (Vec<T>)_mm512_maskz_expand_ps((__mmask16)bits, (__m512)load(from));
  else return (Vec<T>)_mm512_maskz_expand_pd((__mmask8)bits, (__m512d)load(from));
#elif defined(__AVX2__)
  const unsigned row = eight_bits<T>(bits);
  const __m256i order = _mm256_load_si256((const __m256i*)kUnpack.row[row]), each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i on = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int(row)), each), each);
  return (Vec<T>)_mm256_and_si256(_mm256_permutevar8x32_epi32((__m256i)load(from), order), on);
#else
  Vec<T> v{};
  for (int i = 0; i < kWidth<T>; ++i)
    if (bits >> i & 1) v[i] = *from++;
  return v;
#endif
}

// Half a tile: four entries of each of eight rows, for the last of a row.
template <class T>
struct HalfTile;

// Square tiles of kTile rows by kTile columns, for moving between rows and lanes.
#if defined(__AVX2__)
template <class T>
inline constexpr int kTile = 32 / sizeof(T);

template <class T>
struct Tile;

template <>
struct Tile<float> {
  __m256 row[8];
  void load(int i, const float* x) { row[i] = _mm256_loadu_ps(x); }
  template <class V>
  void set(int i, V v) { row[i] = (__m256)v; }
  void store(int i, float* p) const { _mm256_storeu_ps(p, row[i]); }
  void transpose() {
    __m256 a[8], b[8];
    for (int i = 0; i < 4; ++i) {
      a[2 * i] = _mm256_unpacklo_ps(row[2 * i], row[2 * i + 1]);
      a[2 * i + 1] = _mm256_unpackhi_ps(row[2 * i], row[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
      b[4 * i] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
      b[4 * i + 1] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0xEE);
      b[4 * i + 2] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
      b[4 * i + 3] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xEE);
    }
    for (int i = 0; i < 4; ++i) {
      row[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
      row[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
  }
};

template <>
struct HalfTile<float> {
  static constexpr int B = 4;
  __m256 row[4];
  void load(int i, const float* const* x, int64_t from) {
    row[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(x[i] + from)), _mm_loadu_ps(x[i + 4] + from), 1);
  }
  template <class V>
  void set(int i, V v) { row[i] = (__m256)v; }
  __m128 part(int i) const { return i < 4 ? _mm256_castps256_ps128(row[i]) : _mm256_extractf128_ps(row[i - 4], 1); }
  void store(int i, float* p) const { _mm_storeu_ps(p, part(i)); }
  void transpose() {
    const __m256 a = _mm256_unpacklo_ps(row[0], row[1]), b = _mm256_unpackhi_ps(row[0], row[1]);
    const __m256 c = _mm256_unpacklo_ps(row[2], row[3]), d = _mm256_unpackhi_ps(row[2], row[3]);
    row[0] = _mm256_shuffle_ps(a, c, 0x44), row[1] = _mm256_shuffle_ps(a, c, 0xEE);
    row[2] = _mm256_shuffle_ps(b, d, 0x44), row[3] = _mm256_shuffle_ps(b, d, 0xEE);
  }
};

template <>
struct Tile<double> {
  __m256d row[4];
  void load(int i, const double* x) { row[i] = _mm256_loadu_pd(x); }
  template <class V>
  void set(int i, V v) { row[i] = (__m256d)v; }
  void store(int i, double* p) const { _mm256_storeu_pd(p, row[i]); }
  void transpose() {
    __m256d a[4];
    for (int i = 0; i < 2; ++i) {
      a[2 * i] = _mm256_unpacklo_pd(row[2 * i], row[2 * i + 1]);
      a[2 * i + 1] = _mm256_unpackhi_pd(row[2 * i], row[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
      row[i] = _mm256_permute2f128_pd(a[i], a[i + 2], 0x20);
      row[i + 2] = _mm256_permute2f128_pd(a[i], a[i + 2], 0x31);
    }
  }
};
#elif defined(SPARSEGEN_NEON)
template <class T>
inline constexpr int kTile = 16 / sizeof(T);

template <class T>
struct Tile {
  Vec<T> row[kTile<T>];
  void load(int i, const T* x) { row[i] = SPARSEGEN_ISA::load(x); }
  void set(int i, Vec<T> v) { row[i] = v; }
  void store(int i, T* p) const { SPARSEGEN_ISA::store(p, row[i]); }
  void transpose() {
    if constexpr (sizeof(T) == 4) {
      const float32x4_t r0 = (float32x4_t)row[0], r1 = (float32x4_t)row[1], r2 = (float32x4_t)row[2], r3 = (float32x4_t)row[3];
      const float32x4_t a = vzip1q_f32(r0, r2), b = vzip1q_f32(r1, r3), c = vzip2q_f32(r0, r2), d = vzip2q_f32(r1, r3);
      row[0] = (Vec<T>)vzip1q_f32(a, b), row[1] = (Vec<T>)vzip2q_f32(a, b);
      row[2] = (Vec<T>)vzip1q_f32(c, d), row[3] = (Vec<T>)vzip2q_f32(c, d);
    } else {
      const float64x2_t a = (float64x2_t)row[0], b = (float64x2_t)row[1];
      row[0] = (Vec<T>)vzip1q_f64(a, b), row[1] = (Vec<T>)vzip2q_f64(a, b);
    }
  }
};
#else
template <class T>
inline constexpr int kTile = 16 / sizeof(T);

template <class T>
struct Tile {
  T row[kTile<T>][kTile<T>];
  void load(int i, const T* x) { std::memcpy(row[i], x, sizeof row[i]); }
  void set(int i, Vec<T> v) { SPARSEGEN_ISA::store(row[i], v); }
  void store(int i, T* p) const { std::memcpy(p, row[i], sizeof row[i]); }
  void transpose() {
    for (int i = 0; i < kTile<T>; ++i)
      for (int j = 0; j < i; ++j) {
        T t = row[i][j];
        row[i][j] = row[j][i];
        row[j][i] = t;
      }
  }
};
#endif

// A strip of W rows by kStrip columns, for moving between rows and lanes: rows to load and store, lanes to get and set.
#if defined(__AVX512F__)
template <class T>
inline constexpr int kStrip = 32 / sizeof(T);

// Transposes within 128 bits: four vectors of floats, two of doubles.
template <class T>
inline void transpose_within(Vec<T>* v) {
  if constexpr (sizeof(T) == 4) {
    const __m512 a = _mm512_unpacklo_ps((__m512)v[0], (__m512)v[1]), b = _mm512_unpackhi_ps((__m512)v[0], (__m512)v[1]);
    const __m512 c = _mm512_unpacklo_ps((__m512)v[2], (__m512)v[3]), d = _mm512_unpackhi_ps((__m512)v[2], (__m512)v[3]);
    v[0] = (Vec<T>)_mm512_shuffle_ps(a, c, 0x44), v[1] = (Vec<T>)_mm512_shuffle_ps(a, c, 0xEE);
    v[2] = (Vec<T>)_mm512_shuffle_ps(b, d, 0x44), v[3] = (Vec<T>)_mm512_shuffle_ps(b, d, 0xEE);
  } else {
    const __m512d a = _mm512_unpacklo_pd((__m512d)v[0], (__m512d)v[1]), b = _mm512_unpackhi_pd((__m512d)v[0], (__m512d)v[1]);
    v[0] = (Vec<T>)a, v[1] = (Vec<T>)b;
  }
}

// A vector has a column's part of four rows, 128 bits each, in the end all of it; 256 bits of two rows in the beginning.
template <class T>
struct Strip {
  static constexpr int B = kStrip<T>, H = B / 2;  // vector i < H has rows i and i + H; vector H + i those 2 H further on
  Vec<T> row[B];

  void load(const T* const* x, int64_t from) {
    for (int i = 0; i < B; ++i) {
      const int at = i < H ? i : i + H;
      const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)(x[at] + from)));
      row[i] = (Vec<T>)_mm512_inserti64x4(low, _mm256_loadu_si256((const __m256i*)(x[at + H] + from)), 1);
    }
  }
  // With -inf where the masks of the rows do not let an entry be chosen.
  void hide(const uint8_t* const* masks, int64_t from) {
    for (int i = 0; i < B; ++i) {
      const int at = i < H ? i : i + H;
      uint8_t bytes[2 * B];
      std::memcpy(bytes, masks[at] + from, B), std::memcpy(bytes + B, masks[at + H] + from, B);
      row[i] = hide_vector<T>(row[i], bytes);
    }
  }
  void store(int i, T* p) const {
    const int at = i < 2 * H ? i % H : H + i % H;
    const __m512i v = (__m512i)row[at];
    _mm256_storeu_si256((__m256i*)p, i / H % 2 ? _mm512_extracti64x4_epi64(v, 1) : _mm512_castsi512_si256(v));
  }
  Vec<T> get(int i) const { return row[i]; }
  void set(int i, Vec<T> v) { row[i] = v; }

  void to_lanes() {
    transpose_within<T>(row), transpose_within<T>(row + H);
    for (int i = 0; i < H; ++i) {
      const __m512i a = (__m512i)row[i], b = (__m512i)row[i + H];
      row[i] = (Vec<T>)_mm512_shuffle_i32x4(a, b, 0x88), row[i + H] = (Vec<T>)_mm512_shuffle_i32x4(a, b, 0xDD);
    }
  }
  void to_rows() {
    // Column i beside column i + H, for rows of the lower half and of the upper.
    for (int i = 0; i < H; ++i) {
      const __m512i a = (__m512i)row[i], b = (__m512i)row[i + H];
      const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
      row[i] = (Vec<T>)_mm512_permutex2var_epi64(a, low, b), row[i + H] = (Vec<T>)_mm512_permutex2var_epi64(a, high, b);
    }
    transpose_within<T>(row), transpose_within<T>(row + H);
  }
};

// 128 bits of each row: vector i has rows i, i + B, i + 2 B and i + 3 B, and in the end column i.
template <class T>
struct HalfStrip {
  static constexpr int B = kStrip<T> / 2;
  Vec<T> row[B];

  void load(const T* const* x, int64_t from) {
    for (int i = 0; i < B; ++i) {
      const auto part = [&](int at) { return _mm_loadu_si128((const __m128i*)(x[i + at * B] + from)); };
      const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(part(0)), part(1), 1);
      const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(part(2)), part(3), 1);
      row[i] = (Vec<T>)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
  }
  void hide(const uint8_t* const* masks, int64_t from) {
    for (int i = 0; i < B; ++i) {
      uint8_t bytes[4 * B];
      for (int j = 0; j < 4; ++j) std::memcpy(bytes + j * B, masks[i + j * B] + from, B);
      row[i] = hide_vector<T>(row[i], bytes);
    }
  }
  void store(int i, T* p) const {
    const __m512i v = (__m512i)row[i % B];
    const __m256i half = i / B < 2 ? _mm512_castsi512_si256(v) : _mm512_extracti64x4_epi64(v, 1);
    _mm_storeu_si128((__m128i*)p, i / B % 2 ? _mm256_extracti128_si256(half, 1) : _mm256_castsi256_si128(half));
  }
  Vec<T> get(int i) const { return row[i]; }
  void set(int i, Vec<T> v) { row[i] = v; }
  void to_lanes() { transpose_within<T>(row); }
  void to_rows() { transpose_within<T>(row); }
};
#endif

}  // namespace sparsegen::SPARSEGEN_ISA
