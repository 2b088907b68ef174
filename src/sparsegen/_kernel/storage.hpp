// float16 and bfloat16 are storage: rows are widened to float, computed there, and rounded once on the way out.
#pragma once

#include "simd.hpp"

namespace sparsegen::SPARSEGEN_ISA {

struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

inline uint32_t bits_of(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}

inline float float_of(uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

inline float widen(float x) { return x; }
inline double widen(double x) { return x; }
inline float widen(Bfloat x) { return float_of(uint32_t(x.bits) << 16); }

inline float widen(Half h) {
  const uint32_t sign = uint32_t(h.bits & 0x8000) << 16, rest = h.bits & 0x7FFF;
  if (rest >= 0x7C00) return float_of(sign | 0x7F800000 | (rest & 0x3FF) << 13);
  // No step of it is a subnormal float, which a caller's processor may be set to flush.
  if (rest < 0x400) return float_of(sign | bits_of(float(rest) * 0x1p-24f));
  return float_of(sign | ((rest << 13) + (112u << 23)));
}

inline void narrow(float x, float& out) { out = x; }
inline void narrow(double x, double& out) { out = x; }

inline void narrow(float x, Bfloat& out) {
  const uint32_t u = bits_of(x);
  if (x != x) out.bits = uint16_t(u >> 16 | 0x40);
  else out.bits = uint16_t((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

inline void narrow(float x, Half& out) {
  const uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, rest = u & 0x7FFFFFFF;
  if (rest > 0x7F800000) out.bits = uint16_t(sign | 0x7E00);
  else if (rest >= 0x477FF000) out.bits = uint16_t(sign | 0x7C00);
  else if (rest < 0x38800000)  // subnormal: adding 0.5 rounds to a multiple of 2^-24
    out.bits = uint16_t(sign | (bits_of(float_of(rest) + 0.5f) - 0x3F000000));
  else out.bits = uint16_t(sign | (rest - 0x38000000 + 0xFFF + (rest >> 13 & 1)) >> 13);
}

// A probability: one that is positive stays positive, so that the support can be read off p.
template <class S, class T>
inline void narrow_probability(T x, S& out) {
  narrow(x, out);
  if constexpr (sizeof(S) == 2)
    if (x > 0 && out.bits == 0) out.bits = 1;
}

template <class S>
struct ComputeIn {
  using type = float;
};
template <>
struct ComputeIn<double> {
  using type = double;
};

// f(i) for parts of `size` entries of a row of n; the last part overlaps the one before. Returns how many entries have been seen:
// n, or 0 of a row that is less than a part.
template <int size, class F>
inline int64_t each_part(int64_t n, F&& f) {
  if (n < size) return 0;
  int64_t i = 0;
  for (; i + size <= n; i += size) f(i);
  if (i < n) f(n - size);
  return n;
}

#if defined(__AVX512F__)
typedef uint16_t Halves16 __attribute__((vector_size(32)));
typedef uint32_t Words16 __attribute__((vector_size(64)));

inline Vec<float> widen16(Halves16 h, Half) { return (Vec<float>)_mm512_cvtph_ps((__m256i)h); }
inline Vec<float> widen16(Halves16 h, Bfloat) { return (Vec<float>)(__builtin_convertvector(h, Words16) << 16); }
template <class S>
inline Vec<float> widen16(const S* x) {
  Halves16 h;
  std::memcpy(&h, x, sizeof h);
  return widen16(h, S{});
}
#endif

template <class S, class T>
inline void widen_row(const S* x, int64_t n, T* out) {
  int64_t i = 0;
#if defined(__AVX512F__)
  if constexpr (sizeof(S) == 2) i = each_part<16>(n, [=](int64_t at) { store(out + at, widen16(x + at)); });
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(S) == 2)
    if (i < n) i = each_part<8>(n, [=](int64_t at) {
      const __m128i h = _mm_loadu_si128((const __m128i*)(x + at));
      if constexpr (std::is_same_v<S, Half>) _mm256_storeu_ps(out + at, _mm256_cvtph_ps(h));
      else _mm256_storeu_si256((__m256i*)(out + at), _mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
    });
#elif defined(SPARSEGEN_NEON)
  if constexpr (sizeof(S) == 2)
    for (; i + 4 <= n; i += 4) {
      const uint16x4_t h = vld1_u16(&x[i].bits);
      if constexpr (std::is_same_v<S, Half>) vst1q_f32(out + i, vcvt_f32_f16((float16x4_t)h));
      else vst1q_f32(out + i, (float32x4_t)vshll_n_u16(h, 16));
    }
#endif
  for (; i < n; ++i) out[i] = widen(x[i]);
}

#if defined(__AVX512F__)
inline Halves16 narrow16(Vec<float> v, Half) { return (Halves16)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT); }
inline Halves16 narrow16(Vec<float> v, Bfloat) {
  const Words16 u = (Words16)v, up = (u + 0x7FFF + (u >> 16 & 1)) >> 16;
  return __builtin_convertvector(v != v ? u >> 16 | 0x40 : up, Halves16);
}
#endif
#if defined(__AVX2__)
inline __m128i narrow8(__m256 v, Half) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
inline __m128i narrow8(__m256 v, Bfloat) {
  const __m256i u = (__m256i)v, odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7FFF)), odd), 16);
  const __m256i nan = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
  const __m256i r = _mm256_blendv_epi8(up, nan, (__m256i)_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}
#elif defined(SPARSEGEN_NEON)
inline uint16x4_t narrow4(float32x4_t v, Half) { return (uint16x4_t)vcvt_f16_f32(v); }
inline uint16x4_t narrow4(float32x4_t v, Bfloat) {
  const uint32x4_t u = (uint32x4_t)v, odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  const uint32x4_t up = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7FFF)), odd), nan = vorrq_u32(u, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), up, nan), 16);
}
#endif

// Narrows a row of probabilities, or (`probability` false) of gradients.
template <bool probability, class S, class T>
inline void narrow_row(const T* x, int64_t n, S* out) {
  int64_t i = 0;
#if defined(__AVX512F__)
  if constexpr (sizeof(S) == 2)
    i = each_part<16>(n, [=](int64_t at) {
      const Vec<float> v = load(x + at);
      Halves16 h = narrow16(v, S{});
      if constexpr (probability) {
        const Halves16 one = (Halves16)_mm256_maskz_set1_epi16(open_above<float>(v, Vec<float>{}), 1);  // for what may be lost
        h = h > one ? h : one;
      }
      std::memcpy(out + at, &h, sizeof h);
    });
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(S) == 2)
    if (i < n) i = each_part<8>(n, [=](int64_t at) {
      const __m256 v = _mm256_loadu_ps(x + at);
      __m128i h = narrow8(v, S{});
      if constexpr (probability) {
        const __m256i on = (__m256i)_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_GT_OQ);
        const __m128i on16 = _mm_packs_epi32(_mm256_castsi256_si128(on), _mm256_extracti128_si256(on, 1));
        h = _mm_max_epu16(h, _mm_srli_epi16(on16, 15));
      }
      _mm_storeu_si128((__m128i*)(out + at), h);
    });
#elif defined(SPARSEGEN_NEON)
  if constexpr (sizeof(S) == 2)
    for (; i + 4 <= n; i += 4) {
      const float32x4_t v = vld1q_f32(x + i);
      uint16x4_t h = narrow4(v, S{});
      if constexpr (probability) h = vmax_u16(h, vshr_n_u16(vmovn_u32(vcgtzq_f32(v)), 15));
      vst1_u16(&out[i].bits, h);
    }
#endif
  for (; i < n; ++i) {
    if constexpr (probability) narrow_probability(x[i], out[i]);
    else narrow(x[i], out[i]);
  }
}

}  // namespace sparsegen::SPARSEGEN_ISA
