// Vectors of W lanes for the instruction set this translation unit is compiled for.
//
// Arithmetic and comparisons use the compilers' vector extension (GCC, Clang); intrinsics stand only where the
// extension has no word for the instruction (max, movemask, permutations). Each isa_*.cpp compiles this file under a
// namespace of its own, SPARSEGEN_ISA, so that no two builds of a function share a symbol.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#define SPARSEGEN_NEON
#endif

namespace sparsegen::SPARSEGEN_ISA {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

template <class T>
struct Lanes;

template <>
struct Lanes<float> {
  typedef float V __attribute__((vector_size(kVectorBytes)));
  typedef int32_t M __attribute__((vector_size(kVectorBytes)));
  static constexpr int W = kVectorBytes / 4;
};

template <>
struct Lanes<double> {
  typedef double V __attribute__((vector_size(kVectorBytes)));
  typedef int64_t M __attribute__((vector_size(kVectorBytes)));
  static constexpr int W = kVectorBytes / 8;
};

template <class T>
using Vec = typename Lanes<T>::V;
template <class T>
using Mask = typename Lanes<T>::M;  // each lane 0 or -1
template <class T>
inline constexpr int kWidth = Lanes<T>::W;
template <class T>
inline constexpr T kInf = std::numeric_limits<T>::infinity();

// Hints, harmless for any address. Rows are short streams, and the hardware's own prefetching starts anew with each. The empty
// statement is for GCC, which takes a function that does nothing but hint for one without effect, and leaves out its calls.
#define SPARSEGEN_HINT(name, ...) \
  inline void name(const void* x) { asm volatile(""); __builtin_prefetch(x, __VA_ARGS__); }
SPARSEGEN_HINT(prefetch, 0)
SPARSEGEN_HINT(prefetch_far, 0, 2)  // into the second cache: long rows fill the first
SPARSEGEN_HINT(prefetch_to_write, 1)
SPARSEGEN_HINT(prefetch_far_to_write, 1, 2)
#undef SPARSEGEN_HINT

// A hint for each line of memory of one of the equal parts of n entries.
template <class T, class F>
inline void each_line(const T* x, int64_t n, int part, int parts, F&& hint) {
  const int64_t bytes = n * int64_t(sizeof(T)) / parts;
  const char* at = reinterpret_cast<const char*>(x) + part * bytes;
  for (const char* const end = at + bytes; at < end; at += 64) hint(at);
}

// The same of rows `ahead` entries on, each in `parts` parts, which are counted through.
template <class T, class F>
inline void each_line(const T* const* rows, int64_t ahead, int64_t K, int at, int parts, F&& hint) {
  each_line(rows[at / parts] + ahead, K, at % parts, parts, hint);
}

template <class T>
inline Vec<T> load(const T* x) {
  Vec<T> v;
  std::memcpy(&v, x, sizeof v);
  return v;
}

template <class T>
inline void store(T* p, Vec<T> v) {
  std::memcpy(p, &v, sizeof v);
}

// Numbers in double, as T has them.
template <class T>
inline void store_narrow(T* p, Vec<double> v) {
  typedef T Part __attribute__((vector_size(kWidth<double> * sizeof(T))));
  const Part part = __builtin_convertvector(v, Part);
  std::memcpy(p, &part, sizeof part);
}

// Asks for the line of memory that is written next but a few: where results go through the caches, a store waits for its line. That is
// for long rows; short ones ask in parts for the rows that come next.
inline constexpr int kAskAhead = 2048;  // bytes
template <class T>
inline void ask_ahead(const T* p) { prefetch_to_write(reinterpret_cast<const char*>(p) + kAskAhead); }

inline bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % kVectorBytes == 0; }

// Rows need not follow each other: that one is aligned says nothing of the next.
template <class P>
inline bool all_aligned(const P* rows, int n) {
  bool found = true;
  for (int i = 0; i < n; ++i) found &= aligned(rows[i]);
  return found;
}

// store(), or (`stream`) a write past the caches to an aligned address; finish_streams() makes those visible.
template <bool stream, class T>
inline void put(T* p, Vec<T> v) {
#if defined(__AVX512F__)
  if constexpr (stream) return _mm512_stream_si512((__m512i*)p, (__m512i)v);
#elif defined(__AVX2__)
  if constexpr (stream) return _mm256_stream_si256((__m256i*)p, (__m256i)v);
#elif defined(__SSE2__)
  if constexpr (stream) return _mm_stream_si128((__m128i*)p, (__m128i)v);
#endif
  store(p, v);
}

// n entries past the caches to any address, but for those that do not fill a line.
template <class T>
inline void put_row(const T* from, int64_t n, T* to) {
  constexpr int64_t W = kWidth<T>;
  const int64_t head = std::min<int64_t>(n, (-reinterpret_cast<uintptr_t>(to) % kVectorBytes) / sizeof(T));
  std::copy_n(from, head, to);
  int64_t i = head;
  for (; i + W <= n; i += W) put<true>(to + i, load(from + i));
  std::copy_n(from + i, n - i, to + i);
}

inline void finish_streams() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

#if defined(__AVX512F__)
// The lanes whose bit is set, others 0 or left alone: the memory of those is not touched.
template <class T>
inline Vec<T> load_bits(const T* x, unsigned bits) {
  if constexpr (sizeof(T) == 4) return (Vec<T>)_mm512_maskz_loadu_ps((__mmask16)bits, x);
  else return (Vec<T>)_mm512_maskz_loadu_pd((__mmask8)bits, x);
}

template <class T>
inline void store_bits(T* p, Vec<T> v, unsigned bits) {
  if constexpr (sizeof(T) == 4) _mm512_mask_storeu_ps(p, (__mmask16)bits, (__m512)v);
  else _mm512_mask_storeu_pd(p, (__mmask8)bits, (__m512d)v);
}
#endif

// The first n < W entries; the lanes beyond them are 0 and their memory is not touched.
template <class T>
inline Vec<T> load_part(const T* x, int n) {
#if defined(__AVX512F__)
  return load_bits(x, (1u << n) - 1);
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (Vec<T>)_mm256_maskload_ps(x, _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane));
  } else {
    const __m256i lane = _mm256_setr_epi64x(0, 1, 2, 3);
    return (Vec<T>)_mm256_maskload_pd(x, _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), lane));
  }
#else
  Vec<T> v{};
  std::memcpy(&v, x, n * sizeof(T));
  return v;
#endif
}

template <class T>
inline void store_part(T* p, Vec<T> v, int n) {
#if defined(__AVX512F__)
  store_bits(p, v, (1u << n) - 1);
#elif defined(__AVX2__)
  // By halves: masked stores are slow on some processors, and n is the same for row after row.
  if constexpr (sizeof(T) == 4) {
    __m128 part = _mm256_castps256_ps128((__m256)v);
    if (n & 4) _mm_storeu_ps(p, part), p += 4, part = _mm256_extractf128_ps((__m256)v, 1);
    if (n & 2) _mm_storel_pi((__m64*)p, part), p += 2, part = _mm_movehl_ps(part, part);
    if (n & 1) _mm_store_ss(p, part);
  } else {
    __m128d part = _mm256_castpd256_pd128((__m256d)v);
    if (n & 2) _mm_storeu_pd(p, part), p += 2, part = _mm256_extractf128_pd((__m256d)v, 1);
    if (n & 1) _mm_store_sd(p, part);
  }
#else
  std::memcpy(p, &v, n * sizeof(T));
#endif
}

// The lanes that a mask leaves open: those whose byte is not 0. With AVX-512 a bit each, which comparing bytes gives at once; else
// a mask of lanes. (The extension has a word for widening bytes that GCC makes a scalar of for each lane.)
#if defined(__AVX512F__)
template <class T>
using Open = std::conditional_t<sizeof(T) == 4, __mmask16, __mmask8>;

template <class T>
inline Open<T> open_lanes(const uint8_t* bytes) {
  const __m128i found = sizeof(T) == 4 ? _mm_loadu_si128((const __m128i*)bytes) : _mm_loadl_epi64((const __m128i*)bytes);
  return Open<T>(_mm_cmpneq_epi8_mask(_mm_setzero_si128(), found));
}

// The same of the first n < W bytes; the others are not touched.
template <class T>
inline Open<T> open_lanes(const uint8_t* bytes, int n) {
  return Open<T>(_mm_cmpneq_epi8_mask(_mm_maskz_loadu_epi8((__mmask16)((1u << n) - 1), bytes), _mm_setzero_si128()));
}
#else
template <class T>
using Open = Mask<T>;

template <class T>
inline Open<T> open_lanes(const uint8_t* bytes) {
#if defined(__AVX2__)
  [[maybe_unused]] int64_t eight;
  [[maybe_unused]] int32_t four;
  if constexpr (sizeof(T) == 4) {
    std::memcpy(&eight, bytes, sizeof eight);
    return (Mask<T>)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(eight)) != Mask<T>{};
  } else {
    std::memcpy(&four, bytes, sizeof four);
    return (Mask<T>)_mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four)) != Mask<T>{};
  }
#elif defined(__SSE2__)
  int32_t few = 0;
  std::memcpy(&few, bytes, kWidth<T>);
  const __m128i zero = _mm_setzero_si128(), words = _mm_unpacklo_epi8(_mm_cvtsi32_si128(few), zero);
  const __m128i open = _mm_cmpgt_epi32(_mm_unpacklo_epi16(words, zero), zero);
  return (Mask<T>)(sizeof(T) == 4 ? open : _mm_unpacklo_epi32(open, open));
#else
  Mask<T> mask;
  for (int i = 0; i < kWidth<T>; ++i) mask[i] = bytes[i] ? -1 : 0;
  return mask;
#endif
}
#endif

template <class T>
inline Vec<T> splat(T value) {
  return value - Vec<T>{};
}

// Where part of a mask is asked for. With AVX-512 that is the bits of it, which are made of all its bytes before the scores beside them
// are read: in turns the two would keep each other from being foreseen (docs/decisions/0029). Else it is the mask itself.
#if defined(__AVX512F__)
template <class T>
struct MaskPlace {
  const char* bits;
  MaskPlace operator+(int64_t n) const { return {bits + n / 8}; }  // n is a multiple of 8
};

template <class T>
inline Open<T> open_lanes(MaskPlace<T> at) {
  Open<T> open;
  std::memcpy(&open, at.bits, sizeof open);
  return open;
}

// Of n bytes, a multiple of 32.
inline void read_mask(const uint8_t* mask, int64_t n, char* bits) {
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __mmask64 open = _mm512_cmpneq_epi8_mask(_mm512_setzero_si512(), _mm512_loadu_si512(mask + i));
    std::memcpy(bits + i / 8, &open, sizeof open);
  }
  if (i == n) return;
  const __mmask32 open = _mm256_cmpneq_epi8_mask(_mm256_setzero_si256(), _mm256_loadu_si256((const __m256i*)(mask + i)));
  std::memcpy(bits + i / 8, &open, sizeof open);
}
#else
template <class T>
using MaskPlace = const uint8_t*;
#endif

// Where either is NaN the result is `b`, as x86 has it, so that NaN of `b` stays. (ARM's own maximum of numbers would lose it.)
inline Vec<float> vmax(Vec<float> a, Vec<float> b) {
#if defined(__AVX512F__)
  return (Vec<float>)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Vec<float>)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
  return (Vec<float>)_mm_max_ps((__m128)a, (__m128)b);
#else
  return a > b ? a : b;
#endif
}

inline Vec<double> vmax(Vec<double> a, Vec<double> b) {
#if defined(__AVX512F__)
  return (Vec<double>)_mm512_max_pd((__m512d)a, (__m512d)b);
#elif defined(__AVX2__)
  return (Vec<double>)_mm256_max_pd((__m256d)a, (__m256d)b);
#elif defined(__SSE2__)
  return (Vec<double>)_mm_max_pd((__m128d)a, (__m128d)b);
#else
  return a > b ? a : b;
#endif
}

#if defined(__AVX512F__)
// The larger of lanes i and i + W / 2, for each of the lower half.
inline void store_half_max(float* p, Vec<float> v) {
  const __m512i u = (__m512i)v;
  _mm256_storeu_ps(p, _mm256_max_ps((__m256)_mm512_castsi512_si256(u), (__m256)_mm512_extracti64x4_epi64(u, 1)));
}
#endif

inline Vec<float> vmin(Vec<float> a, Vec<float> b) {
#if defined(__AVX512F__)
  return (Vec<float>)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Vec<float>)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
  return (Vec<float>)_mm_min_ps((__m128)a, (__m128)b);
#else
  return a < b ? a : b;
#endif
}

inline Vec<double> vmin(Vec<double> a, Vec<double> b) {
#if defined(__AVX512F__)
  return (Vec<double>)_mm512_min_pd((__m512d)a, (__m512d)b);
#elif defined(__AVX2__)
  return (Vec<double>)_mm256_min_pd((__m256d)a, (__m256d)b);
#elif defined(__SSE2__)
  return (Vec<double>)_mm_min_pd((__m128d)a, (__m128d)b);
#else
  return a < b ? a : b;
#endif
}

// a * b + c, rounded once where the instruction set can.
inline Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) {
#if defined(__AVX512F__)
  return (Vec<float>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
  return (Vec<float>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(SPARSEGEN_NEON)
  return (Vec<float>)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

inline Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) {
#if defined(__AVX512F__)
  return (Vec<double>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__) && defined(__FMA__)
  return (Vec<double>)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(SPARSEGEN_NEON)
  return (Vec<double>)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
  return a * b + c;
#endif
}

inline Vec<float> vsqrt(Vec<float> v) {
#if defined(__AVX512F__)
  return (Vec<float>)_mm512_sqrt_ps((__m512)v);
#elif defined(__AVX2__)
  return (Vec<float>)_mm256_sqrt_ps((__m256)v);
#elif defined(SPARSEGEN_NEON)
  return (Vec<float>)vsqrtq_f32((float32x4_t)v);
#else
  for (int i = 0; i < kWidth<float>; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
#endif
}

inline Vec<double> vsqrt(Vec<double> v) {
#if defined(__AVX512F__)
  return (Vec<double>)_mm512_sqrt_pd((__m512d)v);
#elif defined(__AVX2__)
  return (Vec<double>)_mm256_sqrt_pd((__m256d)v);
#elif defined(SPARSEGEN_NEON)
  return (Vec<double>)vsqrtq_f64((float64x2_t)v);
#else
  for (int i = 0; i < kWidth<double>; ++i) v[i] = __builtin_sqrt(v[i]);
  return v;
#endif
}

template <class T>
inline Vec<T> select(Mask<T> mask, Vec<T> yes, Vec<T> no) {
  return mask ? yes : no;
}

// The lanes of `mask`, others 0. With AVX-512 a comparison is a register of bits, which an operation takes as its own
// condition: written as choices, these cost no instruction beside the addition, or the product that `v` is.
template <class T>
inline Vec<T> keep(Mask<T> mask, Vec<T> v) {
#if defined(__AVX512F__)
  return mask ? v : Vec<T>{};
#else
  return (Vec<T>)((Mask<T>)v & mask);
#endif
}

template <class T>
inline void add_where(Mask<T> mask, Vec<T> v, Vec<T>& sum) {
#if defined(__AVX512F__)
  sum = mask ? sum + v : sum;
#else
  sum += keep<T>(mask, v);
#endif
}

// Counts lanes downwards, as a mask is -1.
template <class T>
inline void count_where(Mask<T> mask, Mask<T>& n) {
#if defined(__AVX512F__)
  n = mask ? n - 1 : n;
#else
  n += mask;
#endif
}

#if defined(__AVX512F__)
// The same of bits.
template <class T>
inline Vec<T> select(Open<T> open, Vec<T> yes, Vec<T> no) {
  if constexpr (sizeof(T) == 4) return (Vec<T>)_mm512_mask_blend_ps(open, (__m512)no, (__m512)yes);
  else return (Vec<T>)_mm512_mask_blend_pd(open, (__m512d)no, (__m512d)yes);
}

template <class T>
inline Vec<T> keep(Open<T> open, Vec<T> v) {
  if constexpr (sizeof(T) == 4) return (Vec<T>)_mm512_maskz_mov_ps(open, (__m512)v);
  else return (Vec<T>)_mm512_maskz_mov_pd(open, (__m512d)v);
}

template <class T>
inline void count_where(Open<T> open, Mask<T>& n) {
  const __m512i u = (__m512i)n, one = (__m512i)(Mask<T>{} + 1);
  if constexpr (sizeof(T) == 4) n = (Mask<T>)_mm512_mask_sub_epi32(u, open, u, one);
  else n = (Mask<T>)_mm512_mask_sub_epi64(u, open, u, one);
}
#endif

#if defined(__AVX512F__)
template <class T>
inline void add_where(Open<T> open, Vec<T> v, Vec<T>& sum) {
  if constexpr (sizeof(T) == 4) sum = (Vec<T>)_mm512_mask_add_ps((__m512)sum, open, (__m512)sum, (__m512)v);
  else sum = (Vec<T>)_mm512_mask_add_pd((__m512d)sum, open, (__m512d)sum, (__m512d)v);
}
#endif

// Adds a * b in the lanes of `open`, rounded once where the instruction set can.
template <class T>
inline void add_product_where(Open<T> open, Vec<T> a, Vec<T> b, Vec<T>& sum) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) sum = (Vec<T>)_mm512_mask3_fmadd_ps((__m512)a, (__m512)b, (__m512)sum, open);
  else sum = (Vec<T>)_mm512_mask3_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)sum, open);
#else
  sum = fma(keep<T>(open, a), b, sum);
#endif
}

// `v`, with -inf where the mask does not let an entry be chosen.
template <class T, class M>
inline Vec<T> hide_vector(Vec<T> v, M mask) {
  return select<T>(open_lanes<T>(mask), v, splat(-kInf<T>));
}

// Adds what is negative of `d` to `sum`, and counts it downwards.
template <class T>
inline void add_negative(Vec<T> d, Vec<T>& sum, Mask<T>& n) {
  const Mask<T> on = d < Vec<T>{};
#if defined(__AVX512F__)
  add_where<T>(on, d, sum);
#else
  sum += vmin(d, Vec<T>{});
#endif
  count_where<T>(on, n);
}

// One bit per lane. `lane_bits<T>` names the element type; Mask<float> and Mask<double> may coincide in size.
template <class T>
inline unsigned lane_bits(Mask<T> mask) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return _mm512_movepi32_mask((__m512i)mask);
  else return _mm512_movepi64_mask((__m512i)mask);
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4) return _mm256_movemask_ps((__m256)mask);
  else return _mm256_movemask_pd((__m256d)mask);
#elif defined(__SSE2__)
  if constexpr (sizeof(T) == 4) return _mm_movemask_ps((__m128)mask);
  else return _mm_movemask_pd((__m128d)mask);
#elif defined(SPARSEGEN_NEON)
  if constexpr (sizeof(T) == 4) return vaddvq_u32(vandq_u32((uint32x4_t)mask, uint32x4_t{1, 2, 4, 8}));
  else return unsigned(vaddvq_u64(vandq_u64((uint64x2_t)mask, uint64x2_t{1, 2})));
#else
  unsigned bits = 0;
  for (int i = 0; i < kWidth<T>; ++i) bits |= (mask[i] ? 1u : 0u) << i;
  return bits;
#endif
}

// One bit per lane where a > b. (Of a comparison in GCC's words it makes a mask, and bits of that.)
template <class T>
inline unsigned bits_above(Vec<T> a, Vec<T> b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ);
  else return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_GT_OQ);
#else
  return lane_bits<T>(a > b);
#endif
}

// The same as a mask.
template <class T>
inline Open<T> open_above(Vec<T> a, Vec<T> b) {
#if defined(__AVX512F__)
  return Open<T>(bits_above<T>(a, b));
#else
  return a > b;
#endif
}

#if defined(__AVX512F__)
// The same of the lanes that are open. (Compared under the mask, which is then waited for last.)
template <class T>
inline Open<T> open_above(Open<T> open, Vec<T> a, Vec<T> b) {
  if constexpr (sizeof(T) == 4) return _mm512_mask_cmp_ps_mask(open, (__m512)a, (__m512)b, _CMP_GT_OQ);
  else return _mm512_mask_cmp_pd_mask(open, (__m512d)a, (__m512d)b, _CMP_GT_OQ);
}

// The lanes where a != b or either is NaN.
template <class T>
inline Open<T> open_other(Vec<T> a, Vec<T> b) {
  if constexpr (sizeof(T) == 4) return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_NEQ_UQ);
  else return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_NEQ_UQ);
}
#endif

// Adds what is negative of `d` in the lanes that are open, and counts it downwards.
template <class T>
inline void add_negative(Open<T> open, Vec<T> d, Vec<T>& sum, Mask<T>& n) {
#if defined(__AVX512F__)
  const Open<T> on = open_above<T>(open, Vec<T>{}, d);
  sum = select<T>(on, sum + d, sum), count_where<T>(on, n);
#else
  add_negative<T>(keep<T>(open, d), sum, n);
#endif
}

// The lanes of `mask` among those that are open.
template <class T>
inline Open<T> open_among(Open<T> open, Mask<T> mask) {
#if defined(__AVX512F__)
  return Open<T>(open & lane_bits<T>(mask));
#else
  return open & mask;
#endif
}

// Counts lanes: with AVX-512 as a number, which the units for integers do beside the others; else for each lane, downwards.
#if defined(__AVX512F__)
template <class T>
using Count = int64_t;
template <class T>
inline void count_open(Open<T> open, Count<T>& n) { n += __builtin_popcount(open); }
#else
template <class T>
using Count = Mask<T>;
template <class T>
inline void count_open(Open<T> open, Count<T>& n) { n += open; }
#endif

// Sums across lanes go by halves, so that the rounding error grows with log2(W).
#if defined(__AVX512F__)
inline float lanes_max(Vec<float> v) { return _mm512_reduce_max_ps((__m512)v); }
inline double lanes_max(Vec<double> v) { return _mm512_reduce_max_pd((__m512d)v); }
inline float lanes_sum(Vec<float> v) { return _mm512_reduce_add_ps((__m512)v); }
inline double lanes_sum(Vec<double> v) { return _mm512_reduce_add_pd((__m512d)v); }
inline int64_t lanes_sum(Mask<float> v) { return _mm512_reduce_add_epi32((__m512i)v); }
inline int64_t lanes_sum(Mask<double> v) { return _mm512_reduce_add_epi64((__m512i)v); }
#elif defined(__AVX2__)
inline float lanes_max(Vec<float> v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
inline double lanes_max(Vec<double> v) {
  __m128d m = _mm_max_pd(_mm256_castpd256_pd128((__m256d)v), _mm256_extractf128_pd((__m256d)v, 1));
  return _mm_cvtsd_f64(_mm_max_sd(m, _mm_unpackhi_pd(m, m)));
}
inline float lanes_sum(Vec<float> v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline double lanes_sum(Vec<double> v) {
  __m128d s = _mm_add_pd(_mm256_castpd256_pd128((__m256d)v), _mm256_extractf128_pd((__m256d)v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
}
inline int64_t lanes_sum(Mask<float> v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}
inline int64_t lanes_sum(Mask<double> v) { return (v[0] + v[1]) + (v[2] + v[3]); }
#elif defined(SPARSEGEN_NEON)
inline float lanes_max(Vec<float> v) { return vmaxnmvq_f32((float32x4_t)v); }
inline double lanes_max(Vec<double> v) { return vmaxnmvq_f64((float64x2_t)v); }
inline float lanes_sum(Vec<float> v) { return vaddvq_f32((float32x4_t)v); }
inline double lanes_sum(Vec<double> v) { return vaddvq_f64((float64x2_t)v); }
inline int64_t lanes_sum(Mask<float> v) { return vaddvq_s32((int32x4_t)v); }
inline int64_t lanes_sum(Mask<double> v) { return vaddvq_s64((int64x2_t)v); }
#else
template <class V>
inline auto lanes_fold(V v, bool larger) {
  constexpr int W = sizeof(V) / sizeof(v[0]);
  for (int w = W / 2; w > 0; w /= 2)
    for (int i = 0; i < w; ++i) v[i] = larger ? (v[i] > v[i + w] ? v[i] : v[i + w]) : v[i] + v[i + w];
  return v[0];
}
inline float lanes_max(Vec<float> v) { return lanes_fold(v, true); }
inline double lanes_max(Vec<double> v) { return lanes_fold(v, true); }
inline float lanes_sum(Vec<float> v) { return lanes_fold(v, false); }
inline double lanes_sum(Vec<double> v) { return lanes_fold(v, false); }
inline int64_t lanes_sum(Mask<float> v) { return lanes_fold(v, false); }
inline int64_t lanes_sum(Mask<double> v) { return lanes_fold(v, false); }
#endif

// The last n < W lanes.
template <class T>
inline Mask<T> last_lanes(int n) {
  struct Table {
    typename std::conditional<sizeof(T) == 4, int32_t, int64_t>::type lane[2 * kWidth<T>];
    constexpr Table() : lane{} {
      for (int i = kWidth<T>; i < 2 * kWidth<T>; ++i) lane[i] = -1;
    }
  };
  static constexpr Table table;
  Mask<T> mask;
  std::memcpy(&mask, table.lane + n, sizeof mask);
  return mask;
}

// The first n < W entries, and -inf in the lanes beyond them.
template <class T>
inline Vec<T> load_closed(const T* x, int n) {
  return select<T>(last_lanes<T>(kWidth<T> - n), splat(-kInf<T>), load_part(x, n));
}

}  // namespace sparsegen::SPARSEGEN_ISA
