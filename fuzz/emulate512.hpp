// The AVX-512 instructions that the kernel names, in the compilers' vector extension: with this header put before everything
// else (-include) the AVX-512 build runs on any machine that has AVX2. Rounding and order are those of the instructions.
#pragma once

#include <immintrin.h>  // first: from here on the compiler's own header must not see the macro below

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define __AVX512F__ 1

namespace emulate512 {

template <class V>
using Lane = std::remove_reference_t<decltype(V{}[0])>;
template <class V>
constexpr int kLanes = sizeof(V) / sizeof(Lane<V>);

typedef int32_t Int16 __attribute__((vector_size(64)));
typedef int64_t Int8 __attribute__((vector_size(64)));

// The instructions take the second operand where either is NaN.
template <class V>
inline V max(V a, V b) { return a > b ? a : b; }
template <class V>
inline V min(V a, V b) { return a < b ? a : b; }

template <class V>
inline V fmadd(V a, V b, V c) {
  for (int i = 0; i < kLanes<V>; ++i) c[i] = std::fma(a[i], b[i], c[i]);
  return c;
}

template <class V>
inline V root(V v) {
  for (int i = 0; i < kLanes<V>; ++i) v[i] = std::sqrt(v[i]);
  return v;
}

template <class V>
inline V load(unsigned bits, const void* from) {
  V v{};
  for (int i = 0; i < kLanes<V>; ++i)
    if (bits >> i & 1) {
      Lane<V> x;
      std::memcpy(&x, static_cast<const char*>(from) + i * sizeof x, sizeof x);
      v[i] = x;
    }
  return v;
}

template <class V>
inline void store(void* to, unsigned bits, V v) {
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

template <class V>
inline V compress(unsigned bits, V v) {
  V found{};
  int n = 0;
  for (int i = 0; i < kLanes<V>; ++i)
    if (bits >> i & 1) found[n++] = v[i];
  return found;
}

template <class V>
inline unsigned signs(V v) {
  unsigned bits = 0;
  for (int i = 0; i < kLanes<V>; ++i) bits |= unsigned(v[i] < 0) << i;
  return bits;
}

// By halves, the upper one first.
template <class V, class F>
inline Lane<V> reduce(V v, F f) {
  for (int n = kLanes<V> / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) v[i] = f(v[i + n], v[i]);
  return v[0];
}

template <class V>
inline Lane<V> sum(V v) {
  return reduce(v, [](auto a, auto b) { return a + b; });
}

template <class V>
inline Lane<V> largest(V v) {
  return reduce(v, [](auto a, auto b) { return a > b ? a : b; });
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
#define _mm512_movepi32_mask(v) emulate512::signs((emulate512::Int16)(v))
#define _mm512_movepi64_mask(v) emulate512::signs((emulate512::Int8)(v))
#define _mm512_reduce_max_ps emulate512::largest<__m512>
#define _mm512_reduce_max_pd emulate512::largest<__m512d>
#define _mm512_reduce_add_ps emulate512::sum<__m512>
#define _mm512_reduce_add_pd emulate512::sum<__m512d>
#define _mm512_reduce_add_epi32(v) emulate512::sum((emulate512::Int16)(v))
#define _mm512_reduce_add_epi64(v) emulate512::sum((emulate512::Int8)(v))
