// Exponentials and logarithms of vectors, to about an ulp. The same operations on every instruction set, none of them fused:
// an entry has the same bits wherever it is computed.
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
  static constexpr T least = sizeof(T) == 4 ? T(-104) : T(-746);  // below, e^x is 0
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
  Vec<T> q;
  Mask<T> n;
};

template <class T>
inline Exponential<T> split_exp(Vec<T> x) {
  const Vec<T> least = splat(Parts<T>::least), most = splat(Parts<T>::most);
  const Vec<T> y = vmin(most, vmax(least, x));  // NaN of x stays
  const Vec<T> up = y * T(1.4426950408889634074) + Parts<T>::whole, n = up - Parts<T>::whole;
  const Vec<T> r = (y - n * Parts<T>::ln2_high) - n * Parts<T>::ln2_low;
  Vec<T> s;
  if constexpr (sizeof(T) == 4) {
    s = ((((r * T(1. / 5040) + T(1. / 720)) * r + T(1. / 120)) * r + T(1. / 24)) * r + T(1. / 6)) * r + T(0.5);
  } else {
    s = r * T(1. / 6227020800) + T(1. / 479001600);
    s = (s * r + T(1. / 39916800)) * r + T(1. / 3628800);
    s = (s * r + T(1. / 362880)) * r + T(1. / 40320);
    s = (s * r + T(1. / 5040)) * r + T(1. / 720);
    s = (s * r + T(1. / 120)) * r + T(1. / 24);
    s = (s * r + T(1. / 6)) * r + T(0.5);
  }
  return {r + (r * r) * s, (Mask<T>)up - (Mask<T>)splat(Parts<T>::whole)};
}

// For x from -inf to where e^x overflows.
template <class T>
inline Vec<T> vexp(Vec<T> x) {
  const Exponential<T> e = split_exp<T>(x);
  const Mask<T> half = e.n >> 1;  // in two steps, as 2^n may be subnormal
  const Vec<T> found = (e.q + T(1)) * two_to<T>(half) * two_to<T>(e.n - half);
  return select<T>(x < splat(Parts<T>::least), Vec<T>{}, found);
}

// e^x - 1 for x <= 0 (and a little above).
template <class T>
inline Vec<T> vexpm1(Vec<T> x) {
  const Vec<T> y = vmax(splat(T(-60)), x);  // e^-60 is nothing beside 1; NaN of x stays
  const Exponential<T> e = split_exp<T>(y);
  const Vec<T> scale = two_to<T>(e.n);
  return e.q * scale + (scale - T(1));
}

// For positive, finite x.
template <class T>
inline Vec<T> vlog(Vec<T> x) {
  constexpr T lift = sizeof(T) == 4 ? T(0x1p25) : T(0x1p54);
  const Mask<T> small = x < splat(std::numeric_limits<T>::min());
  const Vec<T> y = select<T>(small, x * lift, x);
  const Mask<T> bits = (Mask<T>)y, root = (Mask<T>)splat(T(0.70710678118654752440));
  const Mask<T> n = (bits - root) >> Parts<T>::digits;  // such that y / 2^n lies between the root of 1/2 and that of 2
  const Vec<T> m = (Vec<T>)(bits - (n << Parts<T>::digits));
  const Vec<T> count = (Vec<T>)(n + (Mask<T>)splat(Parts<T>::whole)) - Parts<T>::whole -
                       select<T>(small, splat(sizeof(T) == 4 ? T(25) : T(54)), Vec<T>{});
  const Vec<T> f = m - T(1), s = f / (m + T(1)), t = s * s;
  Vec<T> g;
  if constexpr (sizeof(T) == 4) {
    g = (((t * T(2. / 11) + T(2. / 9)) * t + T(2. / 7)) * t + T(2. / 5)) * t + T(2. / 3);
  } else {
    g = t * T(2. / 23) + T(2. / 21);
    g = (g * t + T(2. / 19)) * t + T(2. / 17);
    g = (g * t + T(2. / 15)) * t + T(2. / 13);
    g = (g * t + T(2. / 11)) * t + T(2. / 9);
    g = (g * t + T(2. / 7)) * t + T(2. / 5);
    g = g * t + T(2. / 3);
  }
  // log m = 2 s + s t g, and 2 s = f - s f: f is exact, so what is added to it may round.
  const Vec<T> rest = s * (t * g - f);
  return count * Parts<T>::ln2_high + (f + (rest + count * Parts<T>::ln2_low));
}

}  // namespace sparsegen::SPARSEGEN_ISA
