// Exponentials and logarithms of vectors, to about an ulp. The same operations on every instruction set, none of them fused
// unless asked for: an entry has the same bits wherever it is computed.
#pragma once

#include "simd.hpp"

namespace sparsegen::SPARSEGEN_ISA {

template <class T>
using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;

// Parts of numbers: bits of the fraction, bias of the exponent, ln 2 in two numbers of which the first has zeros at its end:
// its product with any exponent is exact.
template <class T>
struct Parts {
  static constexpr int digits = std::numeric_limits<T>::digits - 1;
  static constexpr Bits<T> bias = std::numeric_limits<T>::max_exponent - 1;
  static constexpr T whole = sizeof(T) == 4 ? T(0x1.8p23) : T(0x1.8p52);  // added, it rounds to a whole number
  static constexpr T ln2_high = sizeof(T) == 4 ? T(0x1.62ep-1) : T(0x1.62e42feep-1);
  static constexpr T ln2_low = sizeof(T) == 4 ? T(0x1.62e42fefa39efp-1 - 0x1.62ep-1) : T(0x1.a39ef35793c76p-33);
  static constexpr T least = sizeof(T) == 4 ? T(-104) : T(-746);  // e^x rounds to 0, and below
  static constexpr T most = sizeof(T) == 4 ? T(89) : T(710);
};

// 2^n for n in the range of normal numbers.
template <class T>
inline Vec<T> two_to(Mask<T> n) {
  return (Vec<T>)((n + Parts<T>::bias) << Parts<T>::digits);
}

// e^x = (1 + q) 2^n; NaN comes through in q.
template <class T>
struct Exponential {
  Vec<T> q, up;  // up: n on top of Parts::whole, whose last bits it is
  Vec<T> number() const { return up - Parts<T>::whole; }
  Mask<T> n() const { return (Mask<T>)up - (Mask<T>)splat(Parts<T>::whole); }
};

// x 2^n of a whole number n, rounded once, also where that is subnormal.
template <class T>
inline Vec<T> shift(Vec<T> x, const Exponential<T>& e) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return (Vec<T>)_mm512_scalef_ps((__m512)x, (__m512)e.number());
  else return (Vec<T>)_mm512_scalef_pd((__m512d)x, (__m512d)e.number());
#else
  const Mask<T> n = e.n(), half = n >> 1;  // in two steps, as 2^n may be subnormal; the first is exact
  return x * two_to<T>(half) * two_to<T>(n - half);
#endif
}

// a b + c
template <bool fused, class T>
inline Vec<T> add_product(Vec<T> a, Vec<T> b, Vec<T> c) {
  if constexpr (fused) return fma(a, b, c);
  else return a * b + c;
}

template <class T, bool fused = false>
inline Exponential<T> split_exp(Vec<T> x) {
  const auto add = [](Vec<T> a, Vec<T> b, Vec<T> c) { return add_product<fused, T>(a, b, c); };
  const Vec<T> least = splat(Parts<T>::least), most = splat(Parts<T>::most);
  const Vec<T> y = vmin(most, vmax(least, x));  // NaN of x stays
  const Vec<T> up = add(y, splat(T(1.4426950408889634074)), splat(Parts<T>::whole)), n = Parts<T>::whole - up;
  const Vec<T> r = add(n, splat(Parts<T>::ln2_low), add(n, splat(Parts<T>::ln2_high), y));
  // (e^r - 1 - r) / r^2, in pairs and pairs of pairs: a polynomial term by term would wait for each one before.
  const auto two = [=](double low, double high) { return add(r, splat(T(high)), splat(T(low))); };
  const Vec<T> r2 = r * r, r4 = r2 * r2, first = add(two(1. / 24, 1. / 120), r2, two(1. / 2, 1. / 6));
  Vec<T> s;
  if constexpr (sizeof(T) == 4) {
    s = add(two(1. / 720, 1. / 5040), r4, first);
  } else {
    const Vec<T> second = add(two(1. / 40320, 1. / 362880), r2, two(1. / 720, 1. / 5040));
    const Vec<T> third = add(two(1. / 479001600, 1. / 6227020800), r2, two(1. / 3628800, 1. / 39916800));
    s = add(add(third, r4, second), r4, first);
  }
  return {add(r2, s, r), up};
}

// For x from -inf, where it is 0 as it is for Parts::least, to where e^x overflows.
template <class T, bool fused = false>
inline Vec<T> vexp(Vec<T> x) {
  const Exponential<T> e = split_exp<T, fused>(x);
  return shift<T>(e.q + T(1), e);
}

// e^x - 1 for x <= 0 (and a little above).
template <class T>
inline Vec<T> vexpm1(Vec<T> x) {
  const Vec<T> y = vmax(splat(T(-60)), x);  // e^-60 is nothing beside 1; NaN of x stays
  const Exponential<T> e = split_exp<T>(y);
  const Vec<T> scale = two_to<T>(e.n());
  return e.q * scale + (scale - T(1));
}

// For positive, finite x.
template <class T, bool fused = false>
inline Vec<T> vlog(Vec<T> x) {
  const auto add = [](Vec<T> a, Vec<T> b, Vec<T> c) { return add_product<fused, T>(a, b, c); };
  constexpr T lift = sizeof(T) == 4 ? T(0x1p25) : T(0x1p54);
  const Mask<T> small = x < splat(std::numeric_limits<T>::min());
  const Vec<T> y = select<T>(small, x * lift, x);
  // Bits without a sign: of what is not positive nobody wants the logarithm, but it may wrap.
  typedef std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t> Plain __attribute__((vector_size(sizeof(Vec<T>))));
  const Plain bits = (Plain)y, root = (Plain)splat(T(0.70710678118654752440));
  const Mask<T> n = (Mask<T>)(bits - root) >> Parts<T>::digits;  // such that y / 2^n lies between the root of 1/2 and that of 2
  const Vec<T> m = (Vec<T>)(bits - ((Plain)n << Parts<T>::digits));
  const Vec<T> count = (Vec<T>)(n + (Mask<T>)splat(Parts<T>::whole)) - Parts<T>::whole -
                       select<T>(small, splat(sizeof(T) == 4 ? T(25) : T(54)), Vec<T>{});
  const Vec<T> f = m - T(1), s = f / (m + T(1)), t = s * s;
  const auto two = [=](double low, double high) { return add(t, splat(T(high)), splat(T(low))); };
  const Vec<T> t2 = t * t, first = add(two(2. / 7, 2. / 9), t2, two(2. / 3, 2. / 5));
  Vec<T> g;
  if constexpr (sizeof(T) == 4) {
    g = add(splat(T(2. / 11)), t2 * t2, first);
  } else {
    const Vec<T> t4 = t2 * t2, second = add(two(2. / 15, 2. / 17), t2, two(2. / 11, 2. / 13));
    const Vec<T> third = add(splat(T(2. / 23)), t2, two(2. / 19, 2. / 21));
    g = add(add(third, t4, second), t4, first);
  }
  // log m = 2 s + s t g, and 2 s = f - s f: f is exact, so what is added to it may round.
  const Vec<T> rest = s * add(t, g, -f);
  return add(count, splat(Parts<T>::ln2_high), f + add(count, splat(Parts<T>::ln2_low), rest));
}

}  // namespace sparsegen::SPARSEGEN_ISA
