// What the maps project: rows of scores made into points, in place. A transform measures its points in units such that nothing
// overflows and ties stay ties (docs/math.md, 5): projecting them onto radius * unit is projecting g(z) onto the radius.
#pragma once

#include <cmath>

#include "functions.hpp"
#include "vjp.hpp"

namespace sparsegen::SPARSEGEN_ISA {

// Makes x[i] = f(z[i]), vector by vector, and returns the sum of what is positive of it, as exact as excess(). `x`, which may be
// `z`, has room for whole vectors; the last is filled up with -inf.
template <bool want_sum, class T, class F>
inline double make_row(const T* z, T* x, int64_t K, F&& f) {
  constexpr int W = kWidth<T>;
  const Vec<T> zero{};
  Total<T> total;
  Vec<T> sum{};
  const auto one = [&](int64_t at, Vec<T>& s) {
    const Vec<T> made = f(load(z + at));
    store(x + at, made);
    if constexpr (want_sum) s += vmax(zero, made);  // NaN comes through
  };
  int64_t i = 0;
  for (const int64_t steps = K / kStep<T> * kStep<T>; i < steps;) {
    Vec<T> s0{}, s1{}, s2{}, s3{};
    for (const int64_t end = std::min(steps, i + kSpan<T>); i < end; i += kStep<T>)
      one(i, s0), one(i + W, s1), one(i + 2 * W, s2), one(i + 3 * W, s3);
    if constexpr (want_sum) total.add(lanes_sum((s0 + s1) + (s2 + s3)));
  }
  for (; i + W <= K; i += W) one(i, sum);
  if (i < K) {
    const Vec<T> made = f(load_closed(z + i, int(K - i)));
    store(x + i, made);
    if constexpr (want_sum) sum += vmax(zero, made);
  }
  if constexpr (want_sum) total.add(lanes_sum(sum));
  return total.value();
}

// The largest entry, or size, but for NaN; -inf where nothing may be chosen.
template <bool size, class T>
inline T top_of(const T* x, int64_t K) {
  constexpr int W = kWidth<T>;
  const Vec<T> hidden = splat(-kInf<T>);
  Vec<T> t0 = hidden, t1 = t0, t2 = t0, t3 = t0, l0{}, l1{};
  const auto look = [=](Vec<T> v, Vec<T>& top, [[maybe_unused]] Vec<T>& low) {
    top = vmax(v, top);
    if constexpr (size) low = vmin(keep<T>(v != hidden, v), low);
  };
  int64_t i = 0;
  for (; i + 4 * W <= K; i += 4 * W) {
    look(load(x + i), t0, l0), look(load(x + i + W), t1, l1);
    look(load(x + i + 2 * W), t2, l0), look(load(x + i + 3 * W), t3, l1);
  }
  for (; i + W <= K; i += W) look(load(x + i), t0, l0);
  if (i < K) look(load_closed(x + i, int(K - i)), t1, l1);
  const Vec<T> top = vmax(vmax(t0, t1), vmax(t2, t3));
  const bool open = size && lane_bits<T>(top > hidden);
  return lanes_max(open ? vmax(top, -vmin(l0, l1)) : top);
}

// The largest size of a number in each of W rows, but for NaN; inf where an entry is hidden.
template <class T>
inline Vec<T> sizes_of(const T* const* rows, int64_t K) {
  constexpr int W = kWidth<T>;
  const auto look = [](Vec<T> v, Vec<T>& top, Vec<T>& low) { top = vmax(v, top), low = vmin(v, low); };
  Vec<T> tops[W];
  for (int i = 0; i < W; ++i) {
    const T* const x = rows[i];
    Vec<T> t0{}, t1{}, l0{}, l1{};
    int64_t k = 0;
    for (; k + 2 * W <= K; k += 2 * W) look(load(x + k), t0, l0), look(load(x + k + W), t1, l1);
    if (k + W <= K) look(load(x + k), t0, l0), k += W;
    if (k < K) look(load_part(x + k, int(K - k)), t1, l1);
    tops[i] = vmax(vmax(t0, t1), -vmin(l0, l1));
  }
  return fold_rows<T, Max>(tops);
}

// A power of two that brings `top` near 1 without losing anything.
template <class T>
inline T near_one(T top) {
  constexpr Bits<T> most = std::numeric_limits<T>::max_exponent - 2;
  if (!(top > 0)) return T(1);
  Bits<T> bits;
  std::memcpy(&bits, &top, sizeof bits);
  const Bits<T> power = std::clamp(Parts<T>::bias - (bits >> Parts<T>::digits), -most, most);  // of subnormals: as large as may be
  bits = (power + Parts<T>::bias) << Parts<T>::digits;
  T found;
  std::memcpy(&found, &bits, sizeof found);
  return found;
}

// How a row goes on: it is projected; its threshold is 0 and the radius its sum; or it is entmax of alpha = 1.5.
enum class Way { project, shares, root };

// What has become of a row: the radius to project it on, and what the way back needs to know.
struct Prepared {
  double radius = 1;
  double base = 0;  // the largest score; of squares and shares what the scores were multiplied by
  Way way = Way::project;
  bool outside = false;  // the domain
  bool plain = false;    // the scores are as they are given, none of them hidden: see Sums
  bool open = plain;     // none of them is hidden, as far as it is known
};

inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();  // a radius that makes the row NaN

inline double scaled(double radius, double unit) {
  return std::isinf(radius) ? radius : std::isinf(unit) ? unit : radius * unit;
}

template <class T>
inline Squaring<T> squaring(const T* z, T top, bool open) {
  const T unit = near_one(top);
  return {z, unit, top * unit, open};
}

template <class T>
inline Prepared of_squares(const Squaring<T>& squares, double radius) {
  const double unit = double(squares.unit);
  return {scaled(radius, unit * unit), unit, Way::project, false, false, squares.open};
}

// g(z) to `x`, for a radius that is given. The `size` of the largest score may be known.
template <class T>
inline Prepared make_points(Transform transform, const T* z, T* x, int64_t K, double radius, T size = kInf<T>) {
  const Vec<T> hidden = splat(-kInf<T>), zero{};
  if (transform == Transform::log) {
    Mask<T> wrong{};
    make_row<false>(z, x, K, [&](Vec<T> v) {
      wrong |= (v <= zero) & (v > hidden);
      return select<T>(v == hidden, v, vlog<T>(v) + (v - v));  // NaN for NaN and +inf
    });
    const bool outside = lane_bits<T>(wrong) != 0;
    return {outside ? kNone : radius, 0, Way::project, outside};
  }
  const bool exponential = transform == Transform::exp;
  const T top = exponential ? top_of<false>(z, K) : size < kInf<T> ? size : top_of<true>(z, K);
  if (!(std::fabs(top) < kInf<T>)) {  // +inf, or nothing to choose: project_any knows
    if (x != z) std::copy_n(z, K, x);
    return {radius, double(top)};
  }
  if (exponential) {
    const Vec<T> most = splat(top);
    make_row<false>(z, x, K, [=](Vec<T> v) { return select<T>(v == hidden, v, vexpm1<T>(v - most)); });
    return {radius, double(top)};  // in units of e^-top: see scale_exponentials()
  }
  const Squaring<T> squares = squaring(z, top, size < kInf<T>);
  if (squares.open) make_row<false>(z, x, K, [=](Vec<T> v) { return squares.template of<true>(v); });
  else make_row<false>(z, x, K, [=](Vec<T> v) { return squares.template of<false>(v); });
  if (squares.open && K % kWidth<T>) std::fill_n(x + K, kWidth<T> - K % kWidth<T>, -kInf<T>);  // the square of what fills it up is not
  return of_squares(squares, radius);
}

// The radii of rows of exponentials, in their units: those of several rows together.
inline void scale_exponentials(Prepared* made, int n) {
  constexpr int W = kWidth<double>;
  for (int i = 0; i < n; i += W) {
    const int rows = std::min(W, n - i);
    alignas(kVectorBytes) double unit[W] = {};
    for (int j = 0; j < rows; ++j) unit[j] = -made[i + j].base;
    store(unit, vexp<double>(load(unit)));
    for (int j = 0; j < rows; ++j)
      if (std::isfinite(made[i + j].base)) made[i + j].radius = scaled(made[i + j].radius, unit[j]);
  }
}

// Shares of a sum: weights that are not negative. `keep` of the sum is the radius; all of it makes the threshold 0, and hidden
// entries are then 0 at once. With `fused` operations an engine has digits of its own; no
// entry of an `open` row is hidden.
template <class T, bool fused = false, bool open = false>
inline Prepared make_shares(Transform transform, const T* z, T* x, int64_t K, double keep, double temperature) {
  const bool squares = transform == Transform::sq;
  const Vec<T> hidden = splat(-kInf<T>), zero{}, none = keep == 1 ? zero : hidden;
  const T top = squares ? top_of<true>(z, K) : top_of<false>(z, K);
  if (!(std::fabs(top) < kInf<T>)) {
    if (x != z) std::copy_n(z, K, x);
    return {keep, double(top)};
  }
  Mask<T> wrong{};
  double sum;
  T base = top;
  if (transform == Transform::exp) {
    // A temperature below the smallest number is that number: the limit is the same.
    const Vec<T> most = splat(top), by = splat(std::max(T(temperature), std::numeric_limits<T>::min()));
    const auto weight = [=](Vec<T> v, Vec<T> below) {
      const Vec<T> made = vexp<T, fused>(below);
      return open ? made : select<T>(v == hidden, none, made);
    };
    if (temperature == 1) sum = make_row<true>(z, x, K, [=](Vec<T> v) { return weight(v, v - most); });
    else sum = make_row<true>(z, x, K, [=](Vec<T> v) { return weight(v, (v - most) / by); });
  } else {
    const Vec<T> scale = splat(base = near_one(top));
    sum = make_row<true>(z, x, K, [&](Vec<T> v) {
      const Vec<T> w = v * scale;
      if (!squares) wrong |= (v < zero) & (v > hidden);
      return select<T>(v == hidden, none, squares ? w * w : w);
    });
  }
  const bool outside = lane_bits<T>(wrong) || sum == 0;
  if (outside || std::isnan(sum)) return {kNone, double(base), Way::project, outside};
  return {keep == 1 ? sum : scaled(keep, sum), double(base), keep == 1 ? Way::shares : Way::project};
}

// What is found besides the sum and whether a score is negative: the least score; this and the excess over a place; or the squares
// are kept.
enum class Also { nothing, least, excess, squares };

// The sum of a row's scores, or of their squares, as they are: scores are multiplied by powers of two only where that keeps the
// sum, and what is divided by it, from overflow and from losing digits.
template <class T>
struct Sums {
  Vec<T> sum{}, low = splat(kInf<T>);  // lanes not yet folded; the least score tells negative and hidden ones
  Vec<T> over{};                       // minus the excess over a place
  Mask<T> count{};                     // minus the number of points above it
  bool asks = false;                   // for what stands further on: see foresees

  // Adds no more than kGroupLimit entries, as exactly as excess() does. The squares go to `x`, by whole vectors, if they are kept.
  template <bool squares, Also also = Also::nothing>
  void add(const T* z, int64_t K, [[maybe_unused]] T* x = nullptr, [[maybe_unused]] Vec<T> tau = Vec<T>{}) {
    constexpr int W = kWidth<T>;
    const auto one = [&](Vec<T> v, Vec<T>& s, [[maybe_unused]] Vec<T>& o, [[maybe_unused]] Vec<T>& l) {
      if constexpr (squares) s += v *= v;
      else s += v, l = vmin(v, l);
      if constexpr (also == Also::squares) store(x, v), x += W;
      if constexpr (also == Also::excess) add_negative<T>(tau - v, o, count);
    };
    Vec<T> l0 = low, l1 = low;
    const bool ahead = asks;
    int64_t i = 0;
    while (i + kStep<T> <= K) {
      Vec<T> s0{}, s1{}, s2{}, s3{}, o0{}, o1{}, o2{}, o3{};
      for (const int64_t end = std::min(K, i + kSpan<T>); i + kStep<T> <= end; i += kStep<T>) {
        if (ahead) ask_for_step(z + i);
        one(load(z + i), s0, o0, l0), one(load(z + i + W), s1, o1, l1);
        one(load(z + i + 2 * W), s2, o2, l0), one(load(z + i + 3 * W), s3, o3, l1);
      }
      sum += (s0 + s1) + (s2 + s3), over += (o0 + o1) + (o2 + o3);
    }
    Vec<T> rest{}, last = splat(kInf<T>);
    for (; i + W <= K; i += W) one(load(z + i), rest, over, l0);
    if (i < K) {
      one(load_part(z + i, int(K - i)), rest, over, last);
      if constexpr (also != Also::nothing) last = select<T>(last_lanes<T>(W - int(K - i)), splat(kInf<T>), last);
    }
    sum += rest, low = vmin(vmin(l0, l1), last);
  }

  bool negative() const { return lane_bits<T>(low < Vec<T>{}) != 0; }
};

// Between these a sum of squares or of scores that are not negative neither overflows nor is lost, nor is a share of it.
template <class T>
inline double least_plain_sum(bool squares) {
  return squares ? sizeof(T) == 4 ? 0x1p-16 : 0x1p-100 : 1 / double(kBigRadius<T>);
}

template <class T>
inline bool plain_sum(double sum, bool squares) {
  return sum >= least_plain_sum<T>(squares) && sum <= kBigRadius<T>;
}

// x = z^2
template <class T>
inline void square_row(const T* z, T* x, int64_t K) {
  each_vector<T>(K, [=](int64_t at, auto get, auto write) { write(x + at, get(z + at) * get(z + at)); });
}

// p = x / sum or, of `squares`, x^2 / sum.
template <bool squares, bool stream, class T>
inline void write_shares(const T* x, int64_t K, double sum, T* p) {
  const Vec<T> scale = splat(T(1 / sum));
  const bool asks = !stream && (K >= kSkipFrom || !foresees);
  each_vector<T, stream>(K, [=](int64_t at, auto get, auto write) {
    const Vec<T> v = get(x + at), share = v * scale;
    if (asks && at % kLine<T> == 0) ask_ahead(p + at);
    write(p + at, squares ? v * share : share);  // the square alone could lose digits that its share has
  });
}

}  // namespace sparsegen::SPARSEGEN_ISA
