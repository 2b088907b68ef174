// Rows that look for trouble: all that has ever made a projection slow, wrong or empty.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "exact.hpp"

namespace fuzz {

enum class Kind {
  normal, heavy, power, halves, sorted, constant, two_levels, tiny, offset, ties, crowd, geometric, outlier, huge, harmonic, bits,
  hidden, broken, nothing, count
};

inline double random_bits(Random& random, Storage s) {
  double x;
  do {
    uint64_t b = random.bits();
    if (size_of(s) == 2) x = half_values(s)[uint16_t(b)];
    else {
      uint32_t low = uint32_t(b);
      float f;
      std::memcpy(&f, &low, 4), std::memcpy(&x, &b, 8);
      if (s == Storage::float32) x = f;
    }
  } while (!std::isfinite(x));
  return x;
}

// Entries on the threshold, and a digit above and below it, beside a support that makes it a number of the storage.
inline void crowd(Random& random, Storage s, std::vector<double>& x) {
  const double tau = std::round(random.normal() * 64) / 64, unit = eps_of(s) * std::max(std::fabs(tau), 1.0) / 2;
  for (double& v : x) v = tau + double(random.between(-2, 2)) * unit * random.pick({0.0, 1.0, 1.0, 4.0});
  const int64_t n = random.between(1, std::min<int64_t>(int64_t(x.size()), 8));
  for (int64_t i = 0; i < n; ++i) x[size_t(random.below(int64_t(x.size())))] = tau + 1.0 / double(n);
}

inline void fill(Random& random, Kind kind, Storage s, std::vector<double>& x) {
  const auto each = [&](auto&& f) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = f(double(i));
  };
  const double n = double(x.size()), ratio = random.pick({0.5, 0.75, 0.9, 0.99, 0.999}), low = random.normal();
  switch (kind) {
    case Kind::heavy: return each([&](double) { return std::exp(5 * random.normal()); });
    case Kind::power: return each([&](double) { return std::pow(random.uniform(), 20); });
    case Kind::halves: return each([&](double i) { return std::ldexp(1.0, -int(std::min(i, 160.0))); });
    case Kind::sorted:
      each([&](double) { return random.normal(); });
      return std::sort(x.begin(), x.end());
    case Kind::constant: return each([&](double) { return low; });
    case Kind::two_levels: return each([&](double) { return random.one_in(std::max<int64_t>(1, int64_t(n) / 4)) ? 0 : -0.9; });
    case Kind::tiny: return each([&](double) { return double(random.between(-40, 40)) * tiniest(s); });
    case Kind::offset: return each([&](double) { return random.normal() + low * 1e6; });
    case Kind::ties: return each([&](double) { return double(random.between(-8, 8)) / 8; });
    case Kind::crowd: return crowd(random, s, x);
    case Kind::geometric: return each([&](double i) { return std::pow(ratio, std::min(i, 300.0)); });
    case Kind::outlier:
      each([&](double) { return random.normal(); });
      x[size_t(random.below(int64_t(n)))] = random.magnitude(0, 8);
      return;
    case Kind::huge: return each([&](double) { return (random.uniform() * 2 - 1) * format_of(s).largest; });
    case Kind::harmonic: return each([&](double i) { return 1 / (i + 1); });
    case Kind::bits: return each([&](double) { return random_bits(random, s); });
    case Kind::nothing: return each([&](double) { return -std::numeric_limits<double>::infinity(); });
    default: return each([&](double) { return random.normal(); });
  }
}

// A row as the storage has it.
inline std::vector<double> random_row(Random& random, int64_t K, Storage s) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  std::vector<double> x((size_t(K)));
  const bool plain = random.one_in(4);
  const Kind kind = plain ? Kind::normal : Kind(random.below(int64_t(Kind::count)));
  fill(random, kind, s, x);
  if (!plain && kind != Kind::tiny && kind != Kind::huge && kind != Kind::bits && random.one_in(2)) {
    const double scale = random.one_in(3) ? random.magnitude(-30, 30) : random.magnitude(-3, 3) * random.pick({1.0, -1.0});
    for (double& v : x) v *= scale;
  }
  if (!plain && random.one_in(8)) {
    const double shift = random.normal() * random.magnitude(-2, 9);
    for (double& v : x) v += shift;
  }
  if (random.one_in(2))
    for (size_t i = x.size(); i > 1; --i) std::swap(x[i - 1], x[size_t(random.below(int64_t(i)))]);
  const double most = format_of(s).largest;
  for (double& v : x) v = v == -inf ? v : double(rounded(std::clamp(v, -most, most), s));
  if (kind == Kind::hidden || (!plain && random.one_in(16)))
    for (double& v : x) v = random.one_in(3) ? -inf : v;
  if (kind == Kind::broken && random.one_in(3)) x[size_t(random.below(K))] = random.one_in(2) ? inf : std::nan("");
  return x;
}

// Row lengths on both sides of every limit in the code, for vectors of 16, 32 and 64 bytes.
inline int64_t random_length(Random& random) {
  static const int64_t limits[] = {2, 4, 8, 16, 32, 64, 128, 160, 256, 512, 1024, 2048, 4096, 8192};
  if (random.one_in(3)) return random.between(1, 20);
  if (random.one_in(2)) return random.between(1, 140);
  const int64_t most = random.one_in(40) ? 14 : random.one_in(6) ? 12 : 10;
  const int64_t limit = limits[random.below(most)];
  return std::max<int64_t>(1, limit + random.pick<int64_t>({-1, 0, 0, 1, random.between(-9, 9), random.below(limit)}));
}

// A radius that means something for the row, or one from the ends of what a double holds.
inline double random_radius(Random& random, const std::vector<double>& row, Storage s) {
  if (random.one_in(3)) return 1;
  if (random.one_in(3)) return random.magnitude(-3, 3);
  if (random.one_in(12))
    return random.pick({0.0, std::numeric_limits<double>::infinity(), 1e-300, 5e-324, 1e-45, 1e-38, 1e-20, 0x1p-60, 0x1p60, 1e20,
                        1e38, 1e39, 1e300, 1.7e308, std::nan(""), -1.0, -0.0});
  double low = std::numeric_limits<double>::infinity(), high = -low, sum = 0;
  for (double v : row)
    if (std::isfinite(v)) low = std::min(low, v), high = std::max(high, v), sum += std::min(std::fabs(v), 1e300);
  if (!(low < high)) return random.magnitude(-6, 6);
  if (random.one_in(3)) return sum;
  const double spread = std::min(high - low, 1e300), unit = tiniest(s);
  return std::max(random.one_in(2) ? spread * random.magnitude(-4, 3) : spread * double(row.size()) * random.uniform(), unit);
}

}  // namespace fuzz
