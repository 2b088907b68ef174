// project(x, r) by another algorithm: sorting, in long double, with sums that carry their own rounding errors.
//
// Differences from the largest entry are rounded in their 64th digit, and the residual of the threshold is summed over terms
// that add up to r, so p is right to 2^-62 (p + 1/n): a thousandth of what the kernel is allowed in double. On machines where
// long double is no wider than double only the narrower storages are worth testing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cells.hpp"

namespace fuzz {

using Real = long double;

// Neumaier's sum.
struct Sum {
  Real high = 0, low = 0;
  void add(Real x) {
    const Real s = high + x;
    low += std::fabs(high) >= std::fabs(x) ? (high - s) + x : (x - s) + high;
    high = s;
  }
  Real value() const { return std::isfinite(high) ? high + low : high; }
};

struct Answer {
  enum Kind { numbers, nothing, nan } kind = numbers;
  std::vector<Real> p;
  int64_t size = 0, firm = 1;  // of the support: in all, and of what is clearly above the threshold
  Real tau = std::numeric_limits<Real>::quiet_NaN();
};

template <class X>
inline Answer uniform(const X* x, int64_t K, X from, Real tau) {
  Answer a;
  a.tau = tau;
  a.size = a.firm = std::count_if(x, x + K, [=](X v) { return v >= from; });
  for (int64_t k = 0; k < K; ++k) a.p.push_back(x[k] >= from ? Real(1) / Real(a.size) : Real(0));
  return a;
}

// What lies within its rounding error of the threshold, 2 eps r / n, counts as on it (docs/decisions/0002), and is not one of
// the n: `firm` is the largest n whose n-th probability is above 2 eps / n. Points may be long doubles themselves.
template <class X>
inline Answer project_exact(const X* x, int64_t K, Real r, double eps) {
  constexpr X inf = std::numeric_limits<X>::infinity();
  X top = -inf;
  bool bad = !(r >= 0);
  for (int64_t k = 0; k < K; ++k) bad |= !(x[k] < inf), top = std::max(top, x[k]);
  Answer a;
  if (bad || top == -inf) {
    a.kind = bad ? Answer::nan : Answer::nothing;
    a.p.assign(size_t(K), bad ? std::numeric_limits<Real>::quiet_NaN() : Real(0));
    return a;
  }
  if (r == 0) return uniform(x, K, top, Real(top));
  if (r == inf) return uniform(x, K, std::numeric_limits<X>::lowest(), -Real(inf));
  thread_local std::vector<X> near;
  near.clear();
  for (int64_t k = 0; k < K; ++k)
    if (Real(x[k]) - Real(top) > -r) near.push_back(x[k]);
  std::sort(near.begin(), near.end(), [](X u, X v) { return u > v; });
  // Entry k is in while the radius exceeds what it costs to lift all larger ones over it.
  Sum larger;
  int64_t n = 0;
  for (; n < int64_t(near.size()); ++n) {
    const Real u = Real(near[size_t(n)]) - top;
    if (n && !(larger.value() - Real(n) * u < r)) break;
    larger.add(u);
  }
  const Real start = (larger.value() - r) / Real(n);
  Sum left;
  for (int64_t k = 0; k < n; ++k) left.add((Real(near[size_t(k)]) - top) - start);
  left.add(-r);
  const Real rest = left.value() / Real(n);
  a.size = n, a.tau = Real(top) + (start + rest);
  const auto p = [&](X v) { return std::max(((Real(v) - top) - start) - rest, Real(0)) / r; };
  for (a.firm = n; a.firm > 1 && !(p(near[size_t(a.firm - 1)]) * Real(a.firm) > 2 * Real(eps));) --a.firm;
  a.p.resize(size_t(K));
  for (int64_t k = 0; k < K; ++k) a.p[size_t(k)] = p(x[k]);
  return a;
}

// What is promised of each probability, before it is stored: 4 eps of itself and of an even share of the row.
inline Real slack(const Answer& a, Real p, Storage s) {
  return 4 * Real(eps_of(wide(s))) * (p + Real(1) / Real(a.firm));
}

// A probability stored: rounded to nearest, but never to 0.
inline Real stored(Real p, Storage s) {
  if (size_of(s) > 2) return p;
  return p > 0 ? std::max(rounded(p, s), Real(tiniest(s))) : Real(0);
}

inline bool near(double p, const Answer& a, int64_t k, Storage s, Real blur = 0) {
  if (a.kind != Answer::numbers) return same(p, a.kind == Answer::nan ? std::nan("") : 0.0);
  const Real want = a.p[size_t(k)], allowed = slack(a, want, s) + blur;
  return Real(p) >= stored(std::max(want - allowed, Real(0)), s) && Real(p) <= stored(want + allowed, s);
}

}  // namespace fuzz
