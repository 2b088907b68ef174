// Random numbers that a seed and a number of a case give again on every machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace fuzz {

// splitmix64: any two seeds are far apart.
class Random {
 public:
  Random(uint64_t seed, uint64_t stream, uint64_t number) {
    for (uint64_t x : {seed, stream, number}) state_ = bits() ^ (x * 0xD1342543DE82EF95u + 1);
  }
  uint64_t bits() {
    uint64_t h = state_ += 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9u;
    h = (h ^ h >> 27) * 0x94D049BB133111EBu;
    return h ^ h >> 31;
  }
  int64_t below(int64_t n) { return int64_t(bits() % uint64_t(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool one_in(int64_t n) { return below(n) == 0; }
  double uniform() { return double(bits() >> 11) * 0x1p-53; }
  // The sum of a few uniform numbers: near enough to normal, and cheap.
  double normal() {
    double sum = -3;
    for (int i = 0; i < 6; ++i) sum += uniform();
    return sum * 1.4142135623730951;
  }
  // Of any size between two powers of ten.
  double magnitude(double low, double high) { return std::pow(10.0, low + (high - low) * uniform()); }
  template <class T>
  T pick(std::initializer_list<T> from) {
    return from.begin()[below(int64_t(from.size()))];
  }

 private:
  uint64_t state_ = 0;
};

}  // namespace fuzz
