// Memory as the kernel sees it: cells of any storage at any strides, with everything around them watched.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "job.hpp"
#include "random.hpp"

namespace fuzz {

using sparsegen::Storage;
using sparsegen::Strides;

inline const char* name_of(Storage s) {
  static const char* const names[] = {"float32", "float64", "float16", "bfloat16"};
  return names[int(s)];
}

inline int64_t size_of(Storage s) { return s == Storage::float64 ? 8 : s == Storage::float32 ? 4 : 2; }

// Digits after the first, and the exponent of the smallest normal number.
struct Format {
  int digits, lowest;
  double largest;
};

inline Format format_of(Storage s) {
  switch (s) {
    case Storage::float64: return {52, -1022, std::numeric_limits<double>::max()};
    case Storage::float32: return {23, -126, std::numeric_limits<float>::max()};
    case Storage::float16: return {10, -14, 65504};
    default: return {7, -126, 0x1.FEp127};
  }
}

// The storage arithmetic is done in: halves are widened to float.
inline Storage wide(Storage s) { return s == Storage::float64 ? s : Storage::float32; }
inline double eps_of(Storage s) { return std::ldexp(1.0, -format_of(s).digits); }
inline double tiniest(Storage s) { return std::ldexp(1.0, format_of(s).lowest - format_of(s).digits); }

// The nearest number a storage has: of halves by the definition of rounding, as the kernel's own conversions shift bits.
inline long double rounded(long double x, Storage s) {
  if (s == Storage::float64) return double(x);
  if (s == Storage::float32) return float(x);
  const Format f = format_of(s);
  if (!std::isfinite(x) || x == 0) return x;
  const int unit = std::max(std::ilogb(x), f.lowest) - f.digits;
  const long double near = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
  return std::fabs(near) > f.largest ? std::copysign(std::numeric_limits<long double>::infinity(), x) : near;
}

// The bits of a number that `s`, a half, has.
inline uint16_t half_bits(double x, Storage s) {
  const Format f = format_of(s);
  const int bias = 1 - f.lowest;
  const uint32_t sign = std::signbit(x) ? 0x8000 : 0, top = uint32_t(2 * bias + 1) << f.digits;
  if (std::isnan(x)) return uint16_t(sign | top | 1u << (f.digits - 1));
  if (std::isinf(x)) return uint16_t(sign | top);
  if (x == 0) return uint16_t(sign);
  if (s == Storage::bfloat16) {
    const float narrow = float(x);
    uint32_t bits;
    std::memcpy(&bits, &narrow, 4);
    return uint16_t(bits >> 16);
  }
  const int exponent = std::max(std::ilogb(x), f.lowest);
  const auto m = uint32_t(std::ldexp(std::fabs(x), f.digits - exponent));
  return uint16_t(sign | (m >> f.digits ? (uint32_t(exponent + bias) << f.digits) + m - (1u << f.digits) : m));
}

inline double half_value(uint16_t bits, Storage s) {
  const Format f = format_of(s);
  const int exponent = bits >> f.digits & ((1 << (15 - f.digits)) - 1), m = bits & ((1 << f.digits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << (15 - f.digits)) - 1) return m ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(double(m), f.lowest - f.digits);
  return sign * std::ldexp(double(m + (1 << f.digits)), exponent - 1 + f.lowest - f.digits);
}

// The same from a table: most of the time would go there.
inline const double* half_values(Storage s) {
  const auto made = [](Storage of) {
    std::vector<double> all;
    for (int i = 0; i < 1 << 16; ++i) all.push_back(half_value(uint16_t(i), of));
    return all;
  };
  static const std::vector<double> halves = made(Storage::float16), bfloats = made(Storage::bfloat16);
  return (s == Storage::float16 ? halves : bfloats).data();
}

inline void put(void* at, Storage s, double x) {
  const float narrow = float(x);
  const uint16_t half = size_of(s) == 2 ? half_bits(x, s) : uint16_t(0);
  if (s == Storage::float64) std::memcpy(at, &x, 8);
  else if (s == Storage::float32) std::memcpy(at, &narrow, 4);
  else std::memcpy(at, &half, 2);
}

inline double get(const void* at, Storage s) {
  double x;
  float narrow;
  uint16_t half;
  if (s == Storage::float64) return std::memcpy(&x, at, 8), x;
  if (s == Storage::float32) return std::memcpy(&narrow, at, 4), double(narrow);
  return std::memcpy(&half, at, 2), half_values(s)[half];
}

// How the rows (outer, K, inner) of an array lie: the axes from the innermost out, the step of the first, gaps between the
// others, axes walked backwards, and how many cells stand before it all.
struct Layout {
  int axis[3] = {2, 1, 0};
  int64_t step = 1, gap[2] = {0, 0};
  bool back[3] = {false, false, false};
  int64_t shift = 0;
  bool repeated = false;  // inputs only: every `outer` is the same memory

  bool plain() const {
    return axis[0] == 2 && axis[1] == 1 && step == 1 && !gap[0] && !gap[1] && !back[0] && !back[1] && !back[2] && !repeated;
  }
};

struct Place {
  Strides strides;
  int64_t first, extent;  // where entry (0, 0, 0) stands, and the cells from the lowest to the highest

  int64_t at(int64_t o, int64_t k, int64_t i) const {
    return first + o * strides.outer + k * strides.entry + i * strides.inner;
  }
};

inline Place place(const Layout& lay, int64_t outer, int64_t K, int64_t inner) {
  const int64_t n[3] = {lay.repeated ? 1 : outer, K, inner};
  int64_t stride[3], step = lay.step, first = 0, extent = 1;
  for (int j = 0; j < 3; ++j) {
    const int a = lay.axis[j];
    stride[a] = lay.back[a] ? -step : step;
    extent += (n[a] - 1) * step;
    if (lay.back[a]) first += (n[a] - 1) * step;
    step = n[a] * step + (j < 2 ? lay.gap[j] : 0);
  }
  if (lay.repeated) stride[0] = 0;
  return {{stride[0], stride[1], stride[2]}, first, extent};
}

inline Layout random_layout(Random& random, bool input) {
  Layout lay;
  lay.shift = random.one_in(2) ? 0 : random.below(16);
  if (random.one_in(2)) return lay;
  for (int j = 2; j > 0; --j) std::swap(lay.axis[j], lay.axis[random.below(j + 1)]);
  lay.step = random.one_in(3) ? random.between(2, 3) : 1;
  for (int64_t& gap : lay.gap) gap = random.one_in(3) ? random.below(20) : 0;
  for (bool& back : lay.back) back = random.one_in(4);
  lay.repeated = input && random.one_in(16);
  return lay;
}

// A stretch of memory of exactly the size asked for, so that a sanitizer sees one step too far. Starts as a pattern.
class Cells {
 public:
  Cells(Storage storage, int64_t n, int64_t shift = 0)
      : storage_(storage), bytes_((n + shift) * size_of(storage)), shift_(shift) {
    void* at = nullptr;
    if (posix_memalign(&at, 64, size_t(std::max<int64_t>(bytes_, 1)))) throw std::bad_alloc();
    data_.reset(static_cast<uint8_t*>(at));
    std::memset(at, 0xA5, size_t(bytes_));
  }
  void* at(int64_t i) { return data_.get() + (shift_ + i) * size_of(storage_); }
  void set(int64_t i, double x) { put(at(i), storage_, x); }
  double operator[](int64_t i) { return get(at(i), storage_); }
  std::vector<uint8_t> copy() const { return {data_.get(), data_.get() + bytes_}; }
  // Is every cell as `before`, but for the `written`?
  bool kept(const std::vector<uint8_t>& before, const std::vector<uint8_t>& written) const {
    const int64_t size = size_of(storage_), cells = bytes_ / size;
    if (!std::memcmp(data_.get(), before.data(), size_t(bytes_))) return true;
    if (cells == int64_t(written.size()) && !std::memchr(written.data(), 0, written.size())) return true;
    for (int64_t i = 0; i < cells; ++i) {
      if (i >= shift_ && i - shift_ < int64_t(written.size()) && written[size_t(i - shift_)]) continue;
      if (std::memcmp(data_.get() + i * size, before.data() + i * size, size_t(size))) return false;
    }
    return true;
  }

 private:
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  Storage storage_;
  int64_t bytes_, shift_;
  std::unique_ptr<uint8_t[], Free> data_;
};

// Equal to the bit, or both NaN.
inline bool same(double a, double b) { return std::memcmp(&a, &b, 8) == 0 || (std::isnan(a) && std::isnan(b)); }

}  // namespace fuzz
