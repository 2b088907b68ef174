// The AVX-512 instructions that the kernel names, in the compilers' vector extension: with this header put before everything
// else (-include) the AVX-512 build runs on any machine that has AVX2. Rounding and order are those of the instructions.
#pragma once

#include <immintrin.h>  // first: from here on the compiler's own header must not see the macro below

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#define __AVX512F__ 1

namespace emulate512 {

template <class V>
using Lane = std::remove_reference_t<decltype(V{}[0])>;
template <class V>
constexpr int kLanes = sizeof(V) / sizeof(Lane<V>);

typedef int16_t Int32 __attribute__((vector_size(64)));
typedef int32_t Int16 __attribute__((vector_size(64)));
typedef int64_t Int8 __attribute__((vector_size(64)));

// What follows is called, not inlined: the build would take minutes.
#define SPARSEGEN_CALLED template <class V> __attribute__((noinline))

// The instructions take the second operand where either is NaN.
template <class V>
inline V max(V a, V b) { return a > b ? a : b; }
template <class V>
inline V min(V a, V b) { return a < b ? a : b; }

inline __m256 half_fmadd(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
inline __m256d half_fmadd(__m256d a, __m256d b, __m256d c) { return _mm256_fmadd_pd(a, b, c); }
inline __m256 half_root(__m256 v) { return _mm256_sqrt_ps(v); }
inline __m256d half_root(__m256d v) { return _mm256_sqrt_pd(v); }
inline unsigned half_signs(__m256 v) { return unsigned(_mm256_movemask_ps(v)); }
inline unsigned half_signs(__m256d v) { return unsigned(_mm256_movemask_pd(v)); }

template <class V>
using Half = std::conditional_t<sizeof(Lane<V>) == 4, __m256, __m256d>;

template <class V>
struct Halves {
  Half<V> half[2];
  explicit Halves(V v) { std::memcpy(this, &v, sizeof v); }
  V whole() const {
    V v;
    std::memcpy(&v, this, sizeof v);
    return v;
  }
};

template <class V>
inline V fmadd(V a, V b, V c) {
  const Halves<V> x(a), y(b);
  Halves<V> z(c);
  for (int i = 0; i < 2; ++i) z.half[i] = half_fmadd(x.half[i], y.half[i], z.half[i]);
  return z.whole();
}

template <class V>
inline V root(V v) {
  Halves<V> x(v);
  for (auto& half : x.half) half = half_root(half);
  return x.whole();
}

template <class V>
inline unsigned signs(V v) {
  const Halves<V> x(v);
  return half_signs(x.half[0]) | half_signs(x.half[1]) << kLanes<V> / 2;
}

SPARSEGEN_CALLED V load(unsigned bits, const void* from) {
  V v{};
  for (int i = 0; i < kLanes<V>; ++i)
    if (bits >> i & 1) {
      Lane<V> x;
      std::memcpy(&x, static_cast<const char*>(from) + i * sizeof x, sizeof x);
      v[i] = x;
    }
  return v;
}

SPARSEGEN_CALLED void store(void* to, unsigned bits, V v) {
  for (int i = 0; i < kLanes<V>; ++i)
    if (bits >> i & 1) {
      const Lane<V> x = v[i];
      std::memcpy(static_cast<char*>(to) + i * sizeof x, &x, sizeof x);
    }
}

template <class V>
inline void store_all(void* to, V v) { std::memcpy(to, &v, sizeof v); }

// A streaming store to an address that is not aligned is a crash.
template <class V>
inline void stream(void* to, V v) {
  if (reinterpret_cast<uintptr_t>(to) % 64) std::abort();
  std::memcpy(to, &v, sizeof v);
}

SPARSEGEN_CALLED V compress(unsigned bits, V v) {
  V found{};
  int n = 0;
  for (int i = 0; i < kLanes<V>; ++i)
    if (bits >> i & 1) found[n++] = v[i];
  return found;
}

SPARSEGEN_CALLED V expand(unsigned bits, V v) {
  V found{};
  int n = 0;
  for (int i = 0; i < kLanes<V>; ++i)
    if (bits >> i & 1) found[i] = v[n++];
  return found;
}

// By halves, the upper one first.
SPARSEGEN_CALLED Lane<V> sum(V v) {
  for (int n = kLanes<V> / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) v[i] = v[i + n] + v[i];
  return v[0];
}

SPARSEGEN_CALLED Lane<V> largest(V v) {
  for (int n = kLanes<V> / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) v[i] = v[i + n] > v[i] ? v[i + n] : v[i];
  return v[0];
}

// Where a lane of a is above that of b, or is another number, or either is none: the comparisons that are asked for.
template <class V>
inline unsigned compared(V a, V b, int how) {
  using Int = std::conditional_t<sizeof(Lane<V>) == 4, Int16, Int8>;
  if (how != _CMP_GT_OQ && how != _CMP_NEQ_UQ) std::abort();
  return how == _CMP_GT_OQ ? signs((Int)(a > b)) : signs((Int)(a != b));
}

template <class V>
inline unsigned compared_where(unsigned bits, V a, V b, int how) { return bits & compared(a, b, how); }

SPARSEGEN_CALLED V blend(unsigned bits, V no, V yes) {
  for (int i = 0; i < kLanes<V>; ++i)
    if (bits >> i & 1) no[i] = yes[i];
  return no;
}

template <class V>
inline V fmadd_where(V a, V b, V c, unsigned bits) { return blend(bits, c, fmadd(a, b, c)); }

template <class V>
inline V keep(unsigned bits, V v) { return blend(bits, V{}, v); }

template <class V>
inline __m512i subtract_where(__m512i from, unsigned bits, __m512i a, __m512i b) {
  return (__m512i)blend(bits, (V)from, (V)a - (V)b);
}

// Lane i of one of two vectors. (Of a choice between vectors UBSan's builds take the lane from elsewhere.)
template <class V>
inline Lane<V> lane_of(bool second, V a, V b, int i) { return second ? b[i] : a[i]; }

// Pairs of lanes, or (shuffles) any two of a and two of b, within each 128 bits.
template <int first, class V>
inline V unpack(V a, V b) {
  constexpr int n = 16 / sizeof(Lane<V>);
  V v;
  for (int i = 0; i < kLanes<V>; i += n)
    for (int j = 0; j < n; ++j) v[i + j] = lane_of(j % 2, a, b, i + first * n / 2 + j / 2);
  return v;
}

SPARSEGEN_CALLED V shuffle(V a, V b, int how) {
  V v;
  for (int i = 0; i < kLanes<V>; ++i) v[i] = lane_of(i % 4 >= 2, a, b, i / 4 * 4 + (how >> i % 4 * 2 & 3));
  return v;
}

// The same of whole parts of 128 bits.
SPARSEGEN_CALLED V shuffle_parts(V a, V b, int how) {
  V v;
  for (int i = 0; i < 8; ++i) v[i] = lane_of(i >= 4, a, b, (how >> i / 2 * 2 & 3) * 2 + i % 2);
  return v;
}

SPARSEGEN_CALLED V permute(V a, V which, V b) {
  V v;
  for (int i = 0; i < 8; ++i) v[i] = lane_of((which[i] & 8) != 0, a, b, int(which[i] & 7));
  return v;
}

inline unsigned other_bytes(__m128i a, __m128i b) { return unsigned(~_mm_movemask_epi8(_mm_cmpeq_epi8(a, b))) & 0xFFFF; }

inline __m128i load_bytes(unsigned bits, const void* from) {
  uint8_t bytes[16] = {};
  for (int i = 0; i < 16; ++i)
    if (bits >> i & 1) bytes[i] = static_cast<const uint8_t*>(from)[i];
  __m128i v;
  std::memcpy(&v, bytes, sizeof v);
  return v;
}

// a 2^b, b rounded down.
SPARSEGEN_CALLED V scaled(V a, V b) {
  V v;
  for (int i = 0; i < kLanes<V>; ++i) {
    const Lane<V> most = 5000, power = std::min(std::max(std::floor(b[i]), -most), most);  // beyond what makes 0 or infinity
    v[i] = b[i] != b[i] ? b[i] : std::ldexp(a[i], int(power));
  }
  return v;
}

inline __m512i load_all(const void* from) {
  __m512i v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline unsigned other_bytes(__m256i a, __m256i b) { return ~unsigned(_mm256_movemask_epi8(_mm256_cmpeq_epi8(a, b))); }

inline uint64_t other_bytes(__m512i a, __m512i b) {
  __m256i x[2], y[2];
  std::memcpy(x, &a, sizeof x), std::memcpy(y, &b, sizeof y);
  return other_bytes(x[0], y[0]) | uint64_t(other_bytes(x[1], y[1])) << 32;
}

inline __m512 widened_halves(__m256i h) {
  __m128i part[2];
  std::memcpy(part, &h, sizeof part);
  const __m256 wide[2] = {_mm256_cvtph_ps(part[0]), _mm256_cvtph_ps(part[1])};
  __m512 v;
  std::memcpy(&v, wide, sizeof v);
  return v;
}

inline __m256i narrowed_halves(__m512 v, int) {
  const Halves<__m512> x(v);
  const __m128i part[2] = {_mm256_cvtps_ph(x.half[0], _MM_FROUND_TO_NEAREST_INT), _mm256_cvtps_ph(x.half[1], _MM_FROUND_TO_NEAREST_INT)};
  __m256i h;
  std::memcpy(&h, part, sizeof h);
  return h;
}

inline __m256i shorts_where(unsigned bits, int16_t x) {
  int16_t all[16];
  for (int i = 0; i < 16; ++i) all[i] = bits >> i & 1 ? x : int16_t(0);
  __m256i v;
  std::memcpy(&v, all, sizeof v);
  return v;
}

inline __m512i widened(__m256i low) {
  __m512i v{};
  std::memcpy(&v, &low, sizeof low);
  return v;
}

inline __m512i inserted(__m512i v, __m256i half, int at) {
  std::memcpy((char*)&v + at * sizeof half, &half, sizeof half);
  return v;
}

inline __m256i extracted(__m512i v, int at) {
  __m256i half;
  std::memcpy(&half, (const char*)&v + at * sizeof half, sizeof half);
  return half;
}

}  // namespace emulate512

#define _mm512_max_ps emulate512::max<__m512>
#define _mm512_max_pd emulate512::max<__m512d>
#define _mm512_min_ps emulate512::min<__m512>
#define _mm512_min_pd emulate512::min<__m512d>
#define _mm512_fmadd_ps emulate512::fmadd<__m512>
#define _mm512_fmadd_pd emulate512::fmadd<__m512d>
#define _mm512_sqrt_ps emulate512::root<__m512>
#define _mm512_sqrt_pd emulate512::root<__m512d>
#define _mm512_maskz_loadu_ps emulate512::load<__m512>
#define _mm512_maskz_loadu_pd emulate512::load<__m512d>
#define _mm512_mask_storeu_ps emulate512::store<__m512>
#define _mm512_mask_storeu_pd emulate512::store<__m512d>
#define _mm512_storeu_ps emulate512::store_all<__m512>
#define _mm512_storeu_pd emulate512::store_all<__m512d>
#define _mm512_stream_si512 emulate512::stream<__m512i>
#define _mm512_maskz_compress_ps emulate512::compress<__m512>
#define _mm512_maskz_compress_pd emulate512::compress<__m512d>
#define _mm512_maskz_expand_ps emulate512::expand<__m512>
#define _mm512_maskz_expand_pd emulate512::expand<__m512d>
#define _mm512_movepi32_mask(v) emulate512::signs((emulate512::Int16)(v))
#define _mm512_movepi64_mask(v) emulate512::signs((emulate512::Int8)(v))
#define _mm512_reduce_max_ps emulate512::largest<__m512>
#define _mm512_reduce_max_pd emulate512::largest<__m512d>
#define _mm512_reduce_add_ps emulate512::sum<__m512>
#define _mm512_reduce_add_pd emulate512::sum<__m512d>
#define _mm512_reduce_add_epi32(v) emulate512::sum((emulate512::Int16)(v))
#define _mm512_reduce_add_epi64(v) emulate512::sum((emulate512::Int8)(v))
// Without optimization these are macros of the compiler's.
#undef _mm512_cmp_ps_mask
#undef _mm512_cmp_pd_mask
#undef _mm512_shuffle_ps
#undef _mm512_shuffle_i32x4
#undef _mm512_inserti64x4
#undef _mm512_extracti64x4_epi64
#define _mm512_cmp_ps_mask emulate512::compared<__m512>
#define _mm512_cmp_pd_mask emulate512::compared<__m512d>
#undef _mm512_mask_cmp_ps_mask
#undef _mm512_mask_cmp_pd_mask
#define _mm512_mask_cmp_ps_mask emulate512::compared_where<__m512>
#define _mm512_mask_cmp_pd_mask emulate512::compared_where<__m512d>
#define _mm512_mask_blend_ps emulate512::blend<__m512>
#define _mm512_mask_blend_pd emulate512::blend<__m512d>
#define _mm512_maskz_mov_ps emulate512::keep<__m512>
#define _mm512_maskz_mov_pd emulate512::keep<__m512d>
#define _mm512_mask_sub_epi32 emulate512::subtract_where<emulate512::Int16>
#define _mm512_mask_sub_epi64 emulate512::subtract_where<emulate512::Int8>
#define _mm512_unpacklo_ps (emulate512::unpack<0, __m512>)
#define _mm512_unpackhi_ps (emulate512::unpack<1, __m512>)
#define _mm512_unpacklo_pd (emulate512::unpack<0, __m512d>)
#define _mm512_unpackhi_pd (emulate512::unpack<1, __m512d>)
#define _mm512_shuffle_ps emulate512::shuffle<__m512>
#define _mm512_shuffle_i32x4 emulate512::shuffle_parts<__m512i>
#define _mm512_permutex2var_epi64 emulate512::permute<__m512i>
#undef _mm512_setr_epi64
#define _mm512_setr_epi64(...) ((__m512i)emulate512::Int8{__VA_ARGS__})
#define _mm_maskz_loadu_epi8 emulate512::load_bytes
#undef _mm_cmpneq_epi8_mask
#define _mm_cmpneq_epi8_mask emulate512::other_bytes
#define _mm512_castsi256_si512 emulate512::widened
#define _mm512_castsi512_si256(v) emulate512::extracted(v, 0)
#define _mm512_inserti64x4 emulate512::inserted
#define _mm512_extracti64x4_epi64 emulate512::extracted
#define _mm512_mask_add_ps(no, bits, a, b) emulate512::blend<__m512>(bits, no, (a) + (b))
#define _mm512_mask_add_pd(no, bits, a, b) emulate512::blend<__m512d>(bits, no, (a) + (b))
#define _mm512_mask3_fmadd_ps(a, b, c, bits) emulate512::fmadd_where<__m512>(a, b, c, bits)
#define _mm512_mask3_fmadd_pd(a, b, c, bits) emulate512::fmadd_where<__m512d>(a, b, c, bits)
#undef _mm512_scalef_ps
#undef _mm512_scalef_pd
#define _mm512_scalef_ps emulate512::scaled<__m512>
#define _mm512_scalef_pd emulate512::scaled<__m512d>
#define _mm512_setzero_si512() (__m512i{})
#define _mm512_loadu_si512 emulate512::load_all
#define _mm512_storeu_si512 emulate512::store_all<__m512i>
#define _mm512_and_si512(a, b) ((a) & (b))
#define _mm512_set1_epi32(x) ((__m512i)(emulate512::Int16{} + (x)))
#undef _mm512_slli_epi32
#define _mm512_slli_epi32(v, n) ((__m512i)((emulate512::Int16)(v) << (n)))
#undef _mm512_cmpneq_epi8_mask
#undef _mm256_cmpneq_epi8_mask
#define _mm512_cmpneq_epi8_mask emulate512::other_bytes
#define _mm256_cmpneq_epi8_mask emulate512::other_bytes
#define _mm512_maskz_loadu_epi16(bits, from) ((__m512i)emulate512::load<emulate512::Int32>(bits, from))
#define _mm512_mask_storeu_epi16(to, bits, v) emulate512::store(to, bits, (emulate512::Int32)(v))
#define _mm512_mask_mov_epi16(no, bits, yes) ((__m512i)emulate512::blend(bits, (emulate512::Int32)(no), (emulate512::Int32)(yes)))
#define _cvtu32_mask32(bits) (bits)
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph emulate512::narrowed_halves
#define _mm512_cvtph_ps emulate512::widened_halves
#define _mm256_maskz_set1_epi16 emulate512::shorts_where
