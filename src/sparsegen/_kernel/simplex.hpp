// One row of  project(x, r) = [x - tau]_+ / r,  tau such that the result sums to 1.
//
// tau is the root of  f(t) = sum [x - t]_+ - r,  convex, decreasing and piecewise linear. Newton's method from any
// lower bound of tau climbs monotonically and stops at the root once the set {x > t} no longer shrinks. It ends:
// every pass but the last takes at least one entry out of that set, so there are at most K + 1; and since
// f_next / f + n_next / n <= 1, f * n falls fourfold a pass, so log4(K^2 / eps) passes bring f below the rounding error
// (K = 1e6: 32 in float, 46 in double).
//
// The threshold is kept as two numbers, tau + rest. tau is rounded down, which keeps "x > tau" exact for entries that
// share tau's floating-point grid; rest is what the last pass left over, so that x - tau - rest loses no digits. What then
// lies within its rounding error of the threshold, 2 eps r / n with n the size of the support, counts as on it: not in the
// support.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <type_traits>
#include <vector>

#include "job.hpp"
#include "tiles.hpp"

namespace sparsegen::SPARSEGEN_ISA {

inline constexpr int kUnroll = 4;
template <class T>
inline constexpr int kStep = kUnroll * kWidth<T>;  // entries a loop turn handles
template <class T>
inline constexpr int kLine = 64 / int(sizeof(T));  // entries of a cache line
inline constexpr int64_t kFold = 16;               // turns after which a partial sum joins the total
// Turns, and entries, after which the four chains of a sum are joined. Longer chains round so often that rows of equal entries,
// whose errors all have one sign, miss their sum by more than two units in the last place.
inline constexpr int64_t kSpanTurns = 4;
template <class T>
inline constexpr int64_t kSpan = kSpanTurns * kStep<T>;

// Running total of many partial sums: double for float, compensated for double.
template <class T>
struct Total {
  double sum = 0, low = 0;
  void add(T x) {
    if constexpr (sizeof(T) == 8) {
      double s = sum + x, b = s - sum;
      low += (sum - (s - b)) + (x - b);
      sum = s;
    } else {
      sum += x;
    }
  }
  double value() const { return sum + low; }
};

// A row cut into steps of kStep entries; the last, incomplete step stands in `tail`, filled up with -inf.
template <class T>
struct Row {
  const T* x;
  int64_t full, steps;
  T tail[kStep<T>];

  Row(const T* data, int64_t n) : x(data), full(n / kStep<T>), steps(full) {
    const int64_t left = n - full * kStep<T>;
    if (left == 0) return;
    std::fill_n(tail, kStep<T>, -kInf<T>);
    std::copy_n(x + full * kStep<T>, left, tail);
    ++steps;
  }
  // The same behind a mask, for passes that read it Behind: only the padded step is a copy.
  Row(const T* data, int64_t n, const uint8_t* mask) : Row(data, n) {
    for (int64_t i = full * kStep<T>; i < n; ++i)
      if (!mask[i]) tail[i - full * kStep<T>] = -kInf<T>;
  }
  const T* at(int64_t i) const { return i < full ? x + i * kStep<T> : tail; }
};

// A place in a row that stands behind a mask, as a pointer is one in a row without.
template <class T>
struct Behind {
  const T* x;
  const uint8_t* mask;
  Behind operator+(int64_t n) const { return {x + n, mask + n}; }
  Behind& operator+=(int64_t n) { return *this = *this + n; }
  bool operator!=(const Behind& other) const { return x != other.x; }
};

// The same where the first look copies what it sees, for the passes after it. With AVX-512 a mask costs one instruction whenever it
// is asked for; where it has to be widened to lanes, that costs more than the copy.
inline constexpr bool kCopiesMasked = kVectorBytes < 64;

template <class T>
struct Copied {
  const T* x;
  const uint8_t* mask;
  T* to;
  Copied operator+(int64_t n) const { return {x + n, mask + n, to + n}; }
  Copied& operator+=(int64_t n) { return *this = *this + n; }
  bool operator!=(const Copied& other) const { return x != other.x; }
};

template <class T>
using Masked = std::conditional_t<kCopiesMasked, Copied<T>, Behind<T>>;

// Asks for what stands there.
template <class T>
inline void ask_at(const T* x) { prefetch_far(x); }
template <class T>
inline void ask_at(Behind<T> at) { prefetch_far(at.x), prefetch_far(at.mask); }

// The entries at a place as they stand; with -inf where the mask does not let them be chosen; and what is made of them, where it
// does, else 0.
template <class T>
inline Vec<T> scores_at(const T* x) { return load(x); }
template <class T>
inline Vec<T> scores_at(Behind<T> at) { return load(at.x); }
template <class T>
inline Vec<T> chosen_at(const T* x) { return load(x); }
template <class T>
inline Vec<T> chosen_at(Behind<T> at) { return hide_vector<T>(load(at.x), at.mask); }
template <class T>
inline Vec<T> chosen_at(Copied<T> at) {
  const Vec<T> v = hide_vector<T>(load(at.x), at.mask);
  store(at.to, v);
  return v;
}
template <class T>
inline Vec<T> kept_at(const T*, Vec<T> made) { return made; }
template <class T>
inline Vec<T> kept_at(Behind<T> at, Vec<T> made) { return keep<T>(open_lanes<T>(at.mask), made); }

// add_negative() of what is made of the entries at a place.
template <class T>
inline void add_negative_at(const T*, Vec<T> d, Vec<T>& sum, Mask<T>& n) { add_negative<T>(d, sum, n); }
template <class T>
inline void add_negative_at(Behind<T> at, Vec<T> d, Vec<T>& sum, Mask<T>& n) { add_negative<T>(open_lanes<T>(at.mask), d, sum, n); }

struct Excess {
  double sum;     // of [x - tau]_+
  int64_t count;  // of x > tau
};

// `steps` steps from `x`: excess over `t` added to `total`, and minus the number of entries above it to `count`. The excess is
// summed as min(t - x, 0), which takes x from memory without an instruction to load it.
// With `ahead` it asks for the entries that many on: the row that comes next.
template <bool ahead, class T>
inline void add_excess(const T* x, int64_t steps, Vec<T> t, Total<T>& total, Mask<T>& count, int64_t on = 0) {
  constexpr int W = kWidth<T>;
  Mask<T> n0 = count, n1{}, n2{}, n3{};
  while (steps > 0) {
    const int64_t turns = std::min(steps, kFold);
    steps -= turns;
    Vec<T> sum{};
    for (const T* const end = x + turns * kStep<T>; x != end;) {
      Vec<T> s0{}, s1{}, s2{}, s3{};
      for (const T* const pause = end - x > kSpan<T> ? x + kSpan<T> : end; x != pause; x += kStep<T>) {
        const Vec<T> d0 = t - load(x), d1 = t - load(x + W), d2 = t - load(x + 2 * W), d3 = t - load(x + 3 * W);
        add_negative<T>(d0, s0, n0);
        add_negative<T>(d1, s1, n1);
        add_negative<T>(d2, s2, n2);
        add_negative<T>(d3, s3, n3);
        for (int j = 0; ahead && j < kStep<T>; j += kLine<T>) prefetch_far(x + j + on);
      }
      sum += (s0 + s1) + (s2 + s3);
    }
    total.add(-lanes_sum(sum));
  }
  count = (n0 + n1) + (n2 + n3);
}

template <class T>
inline Excess excess(const Row<T>& row, T tau, int64_t ahead = 0) {
  Total<T> total;
  Mask<T> count{};
  if (ahead) add_excess<true>(row.x, row.full, splat(tau), total, count, ahead);
  else add_excess<false>(row.x, row.full, splat(tau), total, count);
  if (row.steps > row.full) add_excess<false>(row.tail, 1, splat(tau), total, count);
  return {total.value(), -lanes_sum(count)};
}

template <class T>
inline T next_below(T x) {
  using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  if (!(std::fabs(x) > 0)) return -std::numeric_limits<T>::denorm_min();
  Bits bits;
  std::memcpy(&bits, &x, sizeof x);
  bits += x > 0 ? -1 : 1;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// tau + step, rounded down.
template <class T>
inline T add_down(T tau, double step) {
  const double sum = tau + step, b = sum - tau;
  const T next = T(sum);
  const double error = (sum - next) + ((tau - (sum - b)) + (step - b));  // of float and of double
  return error < 0 ? next_below(next) : next;
}

template <class T>
struct Cut {
  T tau;
  double rest;    // p = [x - tau - rest]_+ / r
  double sum;     // excess over tau of the entries counted
  int64_t count;
  bool sure = true;  // else the set may be wrong: it is if there are not `count` probabilities
};

// Base-2 logarithm of positive, normal numbers, to three digits.
template <class T>
inline Vec<T> log2_about(Vec<T> x) {
  using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  constexpr int digits = std::numeric_limits<T>::digits - 1;
  constexpr Bits bias = std::numeric_limits<T>::max_exponent - 1, fraction = (Bits(1) << digits) - 1;
  const Mask<T> bits = (Mask<T>)x;
  const Vec<T> m = (Vec<T>)((bits & fraction) | (bias << digits));
  const Vec<T> log2_m = ((m * T(0.1582528) - T(1.0519088)) * m + T(3.0479569)) * m - T(2.1536667);
  return __builtin_convertvector((bits >> digits) - bias, Vec<T>) + log2_m;
}

// Where the threshold of K normal scores of this mean and spread would be, to within a hundredth of the spread: the c with
// E[Z - c]_+ = share, share = r / (K spread). Only a place to start from: a wrong guess costs passes, never digits.
template <class T>
inline Vec<T> guess(Vec<T> mean, Vec<T> spread, Vec<T> share) {
  const Vec<T> over = share - T(0.4), u = vsqrt(vmax(log2_about<T>(share) * T(-2 * 0.6931472), Vec<T>{}));
  const Vec<T> right = ((u * T(-0.00249084) + T(0.01643293)) * u + T(1.12002204)) * u - T(1.54857073);
  const Vec<T> left = T(0.3989) / (T(1) + over * (T(3.0085) + over * (over * T(7.8535) - T(1.3249)))) - share;
  return mean + spread * select<T>(over < Vec<T>{}, right, left);
}

// More than Newton's method takes, see above. A row that did not settle until then would be projected by sorting.
inline constexpr int kMostPasses = 100;

// Is a step of Newton's no more than the grid that tau stands on and the rounding of f, a sum of `count` entries, make of 0?
// Entries too small to be felt in that sum then come and go from pass to pass (29, 53, 29 of the powers 2^0 ... 2^-52), and
// no set is better than another.
template <class T>
inline constexpr T kGrid = 2 * std::numeric_limits<T>::epsilon();
template <class T>
inline constexpr T kBlur = 16 * std::numeric_limits<T>::epsilon();

template <class T>
inline bool is_rounding(double step, T tau, double r, int64_t count) {
  return std::fabs(step) <= std::fabs(double(tau)) * double(kGrid<T>) + r * double(kBlur<T>) / double(count);
}

// From `tau`, any guess, to the threshold; `low` is a lower bound of it, below the row's maximum. f is convex, so the
// first step lands below the threshold from either side; from there the steps climb and the counts fall. Equal counts
// mean equal sets, as the sets {x > tau} are nested; `last` is the size of the set whose step led to `tau`, if one did.
// An empty cut says that no set was found.
template <class T>
inline Cut<T> newton(const Row<T>& row, T tau, T low, double r, int64_t last = -1) {
  Cut<T> cut{low, 0, 0, 0};
  for (int pass = 0, steps = 0; pass < kMostPasses; ++pass) {
    const Excess e = excess(row, tau);
    if (e.count == 0) {
      if (steps > 0) return cut;  // the radius is lost in the rounding of a step between the largest numbers of the row
      if (!(tau > low)) break;
      tau = low, last = -1;
      continue;
    }
    const double step = (e.sum - r) / double(e.count);
    const T next = add_down(tau, step);
    cut = {tau, step, e.sum, e.count};
    if (e.count == last || next == tau || (steps > 1 && e.count > last && is_rounding(step, tau, r, e.count))) return cut;
    last = e.count, ++steps;
    tau = std::max(next, low);
  }
  return {low, 0, 0, 0};
}

// The threshold of a cut whose set was not the right one.
template <class T>
inline Cut<T> climb(const Row<T>& row, const Cut<T>& from, T low, double r) {
  return newton(row, std::max(add_down(from.tau, from.rest), low), low, r, from.count);
}

inline constexpr int64_t kAheadLimit = 49152;  // longest row that is asked for in advance: two of them fill a second cache
inline constexpr int64_t kSoonLimit = 8192;    // the same, of rows that are asked for while the one before is written

// Two passes from a guess, the second where it leads when corrected by the curvature normal scores would have there. The set
// that gives is right for more than nine rows in ten: a cut that is not sure shows when it is written.
template <class T>
inline Cut<T> draft(const Row<T>& row, T start, T low, double r, double mean, double variance, int64_t ahead) {
  const Excess e = excess(row, start, ahead);
  const double step = (e.sum - r) / double(e.count);
  const double bend = 1 + step * (e.sum / double(e.count) + start - mean) / (2 * variance);
  if (e.count == 0) return newton(row, low, low, r);
  if (!(bend > 0.5 && bend < 2)) return climb(row, {start, step, e.sum, e.count}, low, r);
  const T tau = std::max(T(start + step * bend), low);
  // Of long rows not every one of so many requests is heard the first time.
  const Excess f = excess(row, tau, ahead > kSoonLimit ? ahead : 0);
  if (f.count == 0) return newton(row, low, low, r);
  const Cut<T> cut{tau, (f.sum - r) / double(f.count), f.sum, f.count, false};
  return f.sum <= 2 * r ? cut : climb(row, cut, low, r);
}

// Adds the lanes of `v` that are open, and their squares, to sums, and counts them downwards.
template <class T, class M>
inline void add_open(M open, Vec<T> v, Vec<T>& sum, Vec<T>& squares, Mask<T>& n) {
  count_where<T>(open, n);
#if defined(__AVX512F__)
  sum = select<T>(open, sum + v, sum), squares = select<T>(open, fma(v, v, squares), squares);
#else
  const Vec<T> u = keep<T>(open, v);
  sum += u, squares = fma(u, u, squares);
#endif
}

// Adds `v` and its squares to sums. If some lanes are `hidden` they are left out, and the others are counted downwards.
template <bool hidden, class T>
inline void add_moments(Vec<T> v, Vec<T>& sum, Vec<T>& squares, [[maybe_unused]] Mask<T>& n) {
  if constexpr (hidden) add_open<T>(v != splat(-kInf<T>), v, sum, squares, n);  // NaN is open
  else sum += v, squares = fma(v, v, squares);
}

// The first look at the W entries at a place: the largest of each lane goes to `top`, and the moments are added to. What the mask
// does not let be chosen is left out; unless more is known to be `hidden`, -inf among the others shows in the sum.
template <bool hidden, class T>
inline void look_at_vector(const T* at, Vec<T>& top, Vec<T>& sum, Vec<T>& squares, Mask<T>& n) {
  const Vec<T> v = load(at);
  top = vmax(v, top), add_moments<hidden, T>(v, sum, squares, n);
}

template <bool hidden, template <class> class Place, class T>
inline void look_at_vector(Place<T> at, Vec<T>& top, Vec<T>& sum, Vec<T>& squares, Mask<T>& n) {
  const Open<T> open = open_lanes<T>(at.mask);
  if constexpr (hidden || std::is_same_v<Place<T>, Copied<T>>) {
    const Vec<T> v = chosen_at(at);
    top = vmax(v, top);
    if constexpr (hidden) add_moments<true, T>(v, sum, squares, n);
    else add_open<T>(open, v, sum, squares, n);
  } else {
    const Vec<T> v = load(at.x);
    top = select<T>(open, vmax(v, top), top), add_open<T>(open, v, sum, squares, n);
  }
}

inline constexpr int64_t kBlock = 4;           // steps in a block whose maxima are kept
inline constexpr int64_t kBlockedFrom = 2048;  // row length from which they pay

template <class T>
struct Survey {
  Vec<T> top = splat(-kInf<T>), sum{}, squares{};
  Mask<T> open{};  // minus the number of entries that are not hidden, if asked for
};

// Adds steps to a survey, in blocks of `R` steps; the maxima of each block, lane by lane, go to `maxima` unless null. If some
// entries are `hidden`, the sums are of the others.
template <bool hidden, class Place, class T>
inline void survey(Place x, int64_t steps, int64_t R, T* maxima, Survey<T>& all) {
  constexpr int W = kWidth<T>;
  Vec<T> top = all.top, sum = all.sum, squares = all.squares;
  Mask<T> n = all.open;
  while (steps > 0) {
    const int64_t turns = std::min(steps, R);
    steps -= turns;
    Vec<T> m0 = splat(-kInf<T>), m1 = m0, s0{}, s1{}, q0{}, q1{};
    for (const Place end = x + turns * kStep<T>; x != end; x += kStep<T>)
      for (int j = 0; j < kStep<T>; j += 2 * W) {
        look_at_vector<hidden>(x + j, m0, s0, q0, n);
        look_at_vector<hidden>(x + (j + W), m1, s1, q1, n);
      }
    m0 = vmax(m0, m1);
    if (maxima) store(maxima, m0), maxima += W;
    top = vmax(m0, top), sum += s0 + s1, squares += q0 + q1;
  }
  all = {top, sum, squares, n};
}

// The padded last step: joins the block before it where that is not full, and its -inf counts for nothing in the sums.
template <class T>
inline void survey_tail(const Row<T>& row, T* maxima, Survey<T>& all) {
  Vec<T> top = splat(-kInf<T>);
  for (int j = 0; j < kUnroll; ++j) {
    const Vec<T> v = load(row.tail + j * kWidth<T>);
    top = vmax(v, top);
    add_moments<true, T>(v, all.sum, all.squares, all.open);
  }
  all.top = vmax(top, all.top);
  if (!maxima) return;
  T* block = maxima + row.full / kBlock * kWidth<T>;
  store(block, row.full % kBlock ? vmax(load(block), top) : top);
}

// Where rows are read that come next: row i of them from `x + i * step`. Null: where the rows at hand go on.
template <class T>
struct Next {
  const T* x = nullptr;
  int64_t step = 0;
  Next from(int i) const { return {x ? x + i * step : nullptr, step}; }
  // Entries from `row`, the i-th at hand, to its successor: `usual` if they stand in one array.
  int64_t ahead(const T* row, int i, int64_t usual) const {
    return x ? int64_t(reinterpret_cast<intptr_t>(x + i * step) - reinterpret_cast<intptr_t>(row)) / int64_t(sizeof(T)) : usual;
  }
};

template <class T>
struct Scratch {
  T* maxima = nullptr;  // a vector for each block
  T* picked = nullptr;  // K and padding
  T* lanes = nullptr;   // small K only: K x W
  T* rows = nullptr;    // `slots` rows of `stride` entries
  int slots = 0;
  int32_t* touched = nullptr;
  int64_t stride = 0;
  bool stream = false;  // the output is larger than the caches: write past them
  const uint8_t* const* masks = nullptr;  // of the rows at hand, which are read behind them; null: there are none
  mutable bool hidden = false;  // were there -inf in the rows before? A wrong guess costs a second look, and no bit
  Next<T> next;
};

// Entries above `bound`, from the blocks that hold any, and -inf to fill the last step. `out` has room for K entries and two
// steps. The row begins at `place`. Returns their number with the filling.
template <class Place, class T>
inline int64_t pick(Place place, const Row<T>& row, const T* maxima, T bound, T* out) {
  const Vec<T> b = splat(bound);
  int64_t n = 0;
  for (int64_t from = 0; from < row.steps; from += kBlock, maxima += kWidth<T>) {
    if (!bits_above<T>(load(maxima), b)) continue;
    for (int64_t i = from; i < std::min(from + kBlock, row.steps); ++i) {
      for (int j = 0; j < kStep<T>; j += kWidth<T>) {
        const Vec<T> v = i < row.full ? chosen_at(place + (i * kStep<T> + j)) : load(row.tail + j);
        n += pack(out + n, v, bits_above<T>(v, b));
      }
    }
  }
  const int64_t end = (n + kStep<T> - 1) / kStep<T> * kStep<T>;
  for (int64_t i = n; i < end; i += kWidth<T>) store(out + i, splat(-kInf<T>));
  return end;
}

template <class T>
inline constexpr T kRounding = 2 * std::numeric_limits<T>::epsilon();

// Writes the probabilities of `steps` steps: x - tau - rest over r where that is above the rounding error, else 0. Takes the
// number of those above from `count`. `p` may be `x` itself. With `ahead` it asks for the memory that many entries on.
template <bool stream, bool ahead, class Place, class T>
inline void write_steps(Place x, int64_t steps, const Cut<T>& cut, double r, T* p, Mask<T>& count, int64_t on = 0) {
  constexpr int W = kWidth<T>;
  const Vec<T> tau = splat(cut.tau), rest = splat(T(cut.rest)), scale = splat(T(-1 / r));
  const Vec<T> error = splat(-T(kRounding<T> * r / double(cut.count)));
  Mask<T> n0 = count, n1{};
  const auto one = [&](int at, Mask<T>& n) {
    const Vec<T> d = kept_at(x + at, (tau - scores_at(x + at)) + rest);
    const Mask<T> in = d < error;
    count_where<T>(in, n), put<stream>(p + at, keep<T>(in, d * scale));
  };
  for (const Place end = x + steps * kStep<T>; x != end; x += kStep<T>, p += kStep<T>) {
    one(0, n0), one(W, n1), one(2 * W, n0), one(3 * W, n1);
    for (int j = 0; ahead && !stream && j < kStep<T>; j += kLine<T>) prefetch_to_write(p + j + on);
  }
  count = n0 + n1;
}

// The whole row, which begins at `x`; with `maxima`, blocks without an entry above tau are zeroed and not read. Returns the number
// of entries that are not 0.
template <bool stream, class Place, class T>
inline int64_t write_row(Place x, const Row<T>& row, int64_t K, const T* maxima, const Cut<T>& cut, double r, T* p, int64_t ahead) {
  Mask<T> count{};
  if (!maxima) {
    write_steps<stream, true>(x, row.full, cut, r, p, count, K);
  } else {
    constexpr int64_t block = kBlock * kStep<T>;
    const Vec<T> bound = splat(cut.rest < 0 ? -kInf<T> : cut.tau);
    const bool soon = K <= kSoonLimit;
    T* out = p;
    for (const Place end = x + row.full / kBlock * block; x != end; x += block, out += block, maxima += kWidth<T>) {
      if (bits_above<T>(load(maxima), bound)) write_steps<stream, false>(x, kBlock, cut, r, out, count);
      else
        for (int i = 0; i < block; i += kWidth<T>) put<stream>(out + i, Vec<T>{});
      for (int i = 0; soon && i < block; i += kLine<T>) ask_at(x + (i + ahead));
    }
    write_steps<stream, false>(x, row.full % kBlock, cut, r, out, count);
  }
  if (row.steps > row.full) {
    T last[kStep<T>];
    write_steps<false, false>(row.tail, 1, cut, r, last, count);
    std::copy_n(last, K - row.full * kStep<T>, p + row.full * kStep<T>);
  }
  return -lanes_sum(count);
}

// Radii between which arithmetic in T neither overflows nor loses digits to underflow.
template <class T>
inline constexpr double kBigRadius = sizeof(T) == 4 ? 0x1p60 : 0x1p500;
template <class T>
inline bool plain_radius(double r) {
  return r >= 1 / kBigRadius<T> && r <= kBigRadius<T>;
}

// The cut of a row few of whose entries matter; false where they are many. A subset of the entries, their blocks' maxima, bounds tau
// from below; the blocks above that bound then hold all that matters.
template <class Place, class T>
inline bool find_sparse(Place x, const Row<T>& row, const T* maxima, T low, double r, T* picked, Cut<T>& cut) {
  const int64_t blocks = (row.steps + kBlock - 1) / kBlock * kWidth<T>;
  const Cut<T> bound = newton(Row<T>(maxima, blocks), low, low, r);
  if (!(bound.count > 0 && bound.count * 4 <= blocks)) return false;
  cut = newton(Row<T>(picked, pick(x, row, maxima, bound.tau, picked)), bound.tau, bound.tau, r);
  return true;
}

// `open` is the number of entries that the survey's sums are of; 0: all of them.
template <class T>
inline Cut<T> find_cut(const Row<T>& row, int64_t K, const T* maxima, const Survey<T>& all, double r, T* picked,
                       bool drafted = false, double open = 0, int64_t ahead = 0) {
  const double n = open > 0 ? open : double(K);
  const T top = lanes_max(all.top), low = add_down(top, -r);
  const double mean = lanes_sum(all.sum) / n, square = lanes_sum(all.squares) / n;
  Cut<T> cut;
  if (maxima && low > mean && find_sparse(row.x, row, maxima, low, r, picked, cut)) return cut;
  const double spread = std::sqrt(square - mean * mean);
  const T start = guess<T>(splat(T(mean)), splat(T(spread)), splat(T(r / (n * spread))))[0];
  if (!(start > low && start < top)) return newton(row, low, low, r);
  return drafted ? draft(row, start, low, r, mean, spread * spread, K <= kAheadLimit ? ahead : 0) : newton(row, start, low, r);
}

// What a row is divided by, given its cut; NaN where entries far from 0 stand beside a small radius: tau's grid is too coarse, and
// x - max must come first.
template <class T>
inline double settle(Cut<T>& cut, T top, double r, double& threshold) {
  threshold = double(cut.tau) + cut.rest;
  if (cut.count == 1 && cut.sum > 2 * r && cut.sum < kInf<double>) {  // the next lower number is more than r away: the largest entry is alone
    threshold = double(top) - r;
    cut.rest = 0;
    return cut.sum;
  }
  return cut.count > 0 && cut.sum <= 2 * r ? r : std::numeric_limits<double>::quiet_NaN();
}

// A long row behind a mask, few of whose entries matter: nothing of it is copied. False where that is not so, and where
// project_direct() would say so, which can then go on from the survey `all`.
template <class T>
inline bool project_behind(const T* x, const uint8_t* mask, int64_t K, double r, T* p, const Scratch<T>& s, double& threshold,
                           Survey<T>& all) {
  if (!plain_radius<T>(r)) return false;
  const Row<T> row(x, K, mask);
  const Behind<T> place{x, mask};
  const auto look = [&](auto&& over) {
    over(place, row.full, kBlock, s.maxima, all);
    if (row.steps > row.full) survey_tail(row, s.maxima, all);
  };
  look(survey<false, Behind<T>, T>);
  if (!(lanes_sum(all.sum) > -kInf<T>)) all = {}, look(survey<true, Behind<T>, T>);  // the scores have -inf themselves
  const T top = lanes_max(all.top), low = add_down(top, -r);
  const double mean = lanes_sum(all.sum) / -double(lanes_sum(all.open));
  Cut<T> cut;
  if (!(std::fabs(top) < kInf<T> && low > mean) || !find_sparse(place, row, s.maxima, low, r, s.picked, cut)) return false;
  const double scale = settle(cut, top, r, threshold);
  if (std::isnan(scale)) return false;
  const auto write = s.stream && aligned(p) ? write_row<true, Behind<T>, T> : write_row<false, Behind<T>, T>;
  write(place, row, K, s.maxima, cut, scale, p, K);
  return true;
}

// False where the row needs project_any: NaN, +inf, nothing to choose, a radius or entries out of proportion. `seen` is the survey of
// a row that has been looked at, whose blocks' maxima stand in their place.
template <class T>
inline bool project_direct(const T* x, int64_t K, double r, T* p, const Scratch<T>& s, double& threshold,
                           const Survey<T>* seen = nullptr) {
  if (!plain_radius<T>(r)) return false;
  const Row<T> row(x, K);
  T* maxima = K < kBlockedFrom ? nullptr : s.maxima;
  Survey<T> all = seen ? *seen : Survey<T>();
  bool hidden = seen || s.hidden;
  const auto look = [&](auto&& over) {
    over(row.x, row.full, maxima ? kBlock : kFold, maxima, all);
    if (row.steps > row.full) survey_tail(row, maxima, all);
  };
  if (!seen) look(hidden ? survey<true, const T*, T> : survey<false, const T*, T>);
  const T top = lanes_max(all.top);
  if (!(std::fabs(top) < kInf<T>)) return false;
  // Hidden entries show in the sum, as -inf, or as NaN where others overflow.
  if (!hidden && !(lanes_sum(all.sum) > -kInf<T>)) hidden = true, all = {}, look(survey<true, const T*, T>);
  if (std::isnan(lanes_sum(all.sum))) return false;
  const int64_t full = hidden ? 0 : row.full * kStep<T>;  // the last step counts for itself, and nothing fills it up
  const double open = hidden || row.steps > row.full ? double(full - lanes_sum(all.open)) : 0;
  s.hidden = hidden && open < double(K);
  const int64_t ahead = s.next.ahead(x, 0, K);
  Cut<T> cut = find_cut(row, K, maxima, all, r, s.picked, true, open, ahead);
  const double scale = settle(cut, top, r, threshold);
  if (std::isnan(scale)) return false;
  const bool late = !cut.sure && x == p;  // the entries may be needed once more, so they are not written over yet
  const auto write = s.stream && aligned(p) && !late ? write_row<true, const T*, T> : write_row<false, const T*, T>;
  T* const out = late ? s.picked : p;
  if (write(x, row, K, maxima, cut, scale, out, ahead) == cut.count || cut.sure) {
    if (late) std::copy_n(out, K, p);
    return true;
  }
  cut = climb(row, cut, add_down(top, -r), r);
  if (!(cut.count > 0 && cut.sum <= 2 * r)) return false;
  write(x, row, K, maxima, cut, r, p, ahead);
  threshold = double(cut.tau) + cut.rest;
  return true;
}

// A radius of 0: uniform on the maximal entries. False where the row needs project_any.
template <class T>
inline bool project_top(const T* x, int64_t K, T* p, double& threshold) {
  constexpr int W = kWidth<T>;
  Vec<T> t0 = splat(-kInf<T>), t1 = t0;
  Mask<T> bad{}, n{};
  const auto look = [&](Vec<T> v, Vec<T>& top) { bad |= v != v, top = vmax(v, top); };
  const auto tail = [=](int64_t from) { return load_closed(x + from, int(K - from)); };
  int64_t i = 0;
  for (; i + 2 * W <= K; i += 2 * W) look(load(x + i), t0), look(load(x + i + W), t1);
  if (i + W <= K) look(load(x + i), t0), i += W;
  if (i < K) look(tail(i), t1);
  const T top = lanes_max(vmax(t0, t1));
  if (lane_bits<T>(bad) || !(std::fabs(top) < kInf<T>)) return false;
  const Vec<T> most = splat(top);
  for (i = 0; i + W <= K; i += W) n -= load(x + i) == most;
  if (i < K) n -= tail(i) == most;
  const Vec<T> share = splat(T(1 / double(lanes_sum(n))));
  for (i = 0; i + W <= K; i += W) store(p + i, keep<T>(load(x + i) == most, share));
  if (i < K) store_part(p + i, keep<T>(tail(i) == most, share), int(K - i));
  threshold = double(top) + 0.0;  // the zeros of a row may have either sign
  return true;
}

// r -> 0: uniform on the maximal entries. r -> inf: uniform on all that may be chosen.
template <class T>
inline void uniform_row(const T* x, int64_t K, T above, T* p) {
  const int64_t n = std::count_if(x, x + K, [=](T v) { return v > above; });
  const T share = T(1.0 / double(n));
  for (int64_t i = 0; i < K; ++i) p[i] = x[i] > above ? share : T(0);
}

// A number and what rounding left of it: 106 bits.
struct Twice {
  double high, low;
  Twice plus(Twice b) const {
    const double sum = high + b.high, part = sum - high;
    const double error = ((high - (sum - part)) + (b.high - part)) + (low + b.low);
    return {sum + error, error - ((sum + error) - sum)};
  }
  Twice over(double n) const {
    const double share = high / n;
    return {share, (std::fma(-share, n, high) + low) / n};
  }
  double value() const { return high + low; }
};

// The plain twin of project_direct(), by sorting, in twice double precision: for rows on which that gives up. It needs the
// largest entry to be a number, and r > 0. `p` may be `x`. Returns the threshold.
template <class T>
inline double project_sorted(const T* x, int64_t K, double r, T* p) {
  std::vector<double> sorted(x, x + K);
  std::sort(sorted.begin(), sorted.end(), std::greater<double>());
  const double top = sorted[0];
  const auto below = [=](double v) { return Twice{v, 0}.plus({-top, 0}); };  // exact
  Twice sum{0, 0}, tau{-r, 0};
  for (int64_t k = 1; k <= K && below(sorted[k - 1]).high > -r; ++k) {
    const Twice u = below(sorted[k - 1]);
    // Entry k is in while it lies above the threshold of those before it.
    if (k > 1 && !(u.plus({-tau.high, -tau.low}).value() > 0)) break;
    sum = sum.plus(u);
    tau = sum.plus({-r, 0}).over(double(k));
  }
  for (int64_t i = 0; i < K; ++i) {
    const double d = x[i] > -kInf<T> ? below(double(x[i])).plus({-tau.high, -tau.low}).value() : 0;
    p[i] = d > 0 ? T(d / r) : T(0);
  }
  return top + tau.value();
}

// Any row and radius: brings the radius near 1 by a power of two where that is needed. Where the radius is small beside the
// largest entry, that entry is taken off first, and no digit of those near it is lost; where it is not, digits of the others
// would be. `x` is overwritten and may be `p`.
template <class T>
inline void project_any(T* x, int64_t K, double r, T* p, const Scratch<T>& s, double& threshold) {
  T top = -kInf<T>;
  bool bad = std::isnan(r) || r < 0;
  for (int64_t i = 0; i < K; ++i) {
    bad |= std::isnan(x[i]) || x[i] == kInf<T>;
    top = std::max(top, x[i]);
  }
  threshold = std::numeric_limits<double>::quiet_NaN();
  if (bad) return void(std::fill_n(p, K, std::numeric_limits<T>::quiet_NaN()));
  if (top == -kInf<T>) return void(std::fill_n(p, K, T(0)));
  threshold = r == 0 ? double(top) + 0.0 : -std::numeric_limits<double>::infinity();
  if (r == 0) return uniform_row(x, K, std::nextafter(top, -kInf<T>), p);
  if (std::isinf(r)) return uniform_row(x, K, -kInf<T>, p);

  const double base = std::fabs(double(top)) >= 2 * r ? double(top) : 0;
  const int power = plain_radius<T>(r) ? 0 : -std::ilogb(r);
  const double half = std::ldexp(1.0, power / 2), rest = std::ldexp(1.0, power - power / 2);
  for (int64_t i = 0; i < K; ++i) x[i] = T((double(x[i]) - base) * half * rest);
  const double scaled = std::ldexp(r, power);
  double shifted = 0;
  if (!project_direct(x, K, scaled, p, s, shifted)) shifted = project_sorted(x, K, scaled, p);
  threshold = base + std::ldexp(shifted, -power);
}

// The sum of N numbers, each half onto the other.
template <int N, class T>
inline T fold_halves(const void* from) {
  if constexpr (N == 1) {
    T one;
    std::memcpy(&one, from, sizeof one);
    return one;
  } else {
    typedef T Half __attribute__((vector_size(N / 2 * sizeof(T))));
    Half a, b;
    std::memcpy(&a, from, sizeof a), std::memcpy(&b, static_cast<const char*>(from) + sizeof a, sizeof b);
    a += b;
    return fold_halves<N / 2, T>(&a);
  }
}

// Sixteen sums of a row on every instruction set: a mean has the same bits on all of them. As many vectors as they need, each a
// variable of its own: wider ones than the machine's would be kept in memory. Hidden entries are left out and counted, unless
// there are none (`open`): then -inf shows in the sum.
template <bool open, class T>
inline double sum_row(const T* x, int64_t K, [[maybe_unused]] double& count) {
  constexpr int lanes = 16, W = kWidth<T>, D = kWidth<double>, parts = lanes / D;
  typedef T Part __attribute__((vector_size(D * sizeof(T))));
  typedef std::conditional_t<sizeof(T) == 4, int32_t, int64_t> Word;
  typedef Word Words __attribute__((vector_size(D * sizeof(T))));
  Vec<double> sums[parts] = {};
  [[maybe_unused]] Vec<double> lost[parts] = {};
  [[maybe_unused]] Words closed[parts] = {};
  const int left = int(K % lanes);
  const auto add = [&](const T* entries) {
    for (int j = 0; j < parts; ++j) {
      Part v;
      std::memcpy(&v, entries + j * D, sizeof v);
      if constexpr (!open) {
        const Words hidden = v == -kInf<T>;
        v = (Part)((Words)v & ~hidden), closed[j] += hidden;  // -1 where it is
      }
      const Vec<double> seen = __builtin_convertvector(v, Vec<double>);
      if constexpr (sizeof(T) == 8) {  // of floats a sum of doubles has its digits as it is
        const Vec<double> total = sums[j] + seen, part = total - sums[j];
        lost[j] += (sums[j] - (total - part)) + (seen - part), sums[j] = total;
      } else {
        sums[j] += seen;
      }
    }
  };
  for (const T* const end = x + (K - left); x != end; x += lanes) add(x);
  if (left) {
    T last[lanes];  // stored by vectors: a wide load of what was stored in pieces waits for them
    for (int j = 0; j < lanes; j += W) {
      const auto part = [=] { return open ? load_part(x + j, left - j) : load_closed(x + j, left - j); };
      store(last + j, left >= j + W ? load(x + j) : left > j ? part() : splat(open ? T(0) : -kInf<T>));
    }
    add(last);
  }
  if constexpr (!open) count = double(K + int64_t(fold_halves<lanes, Word>(closed)) + (left ? lanes - left : 0));
  if constexpr (sizeof(T) == 4) return fold_halves<lanes, double>(sums);
  Twice all{0, 0};
  for (int j = 0; j < lanes; ++j) all = all.plus({sums[j / D][j % D], lost[j / D][j % D]});
  return all.value();
}

// Mean over the entries that are not -inf, and their number. NaN and +inf come through. Is it likely that none is hidden?
template <class T>
inline double mean_row(const T* x, int64_t K, double& count, bool open = true) {
  open = open && K > 0;  // attention leaves out what is hidden at the ends of a row, which may be all of it
  double sum = open ? sum_row<true>(x, K, count = double(K)) : 0;
  if (open && std::isfinite(sum)) return sum / count;
  sum = sum_row<false>(x, K, count);
  if (count == 0) return 0;
  if (std::isfinite(sum)) return sum / count;
  double mean = 0;  // the sum overflowed, or an entry is not finite
  bool finite = true;
  for (int64_t i = 0; i < K; ++i) mean += x[i] == -kInf<T> ? 0.0 : double(x[i]) / count, finite &= x[i] < kInf<T>;
  constexpr double most = std::numeric_limits<double>::max();  // which rounding can exceed
  return finite ? std::clamp(mean, -most, most) : mean;
}

// The radius of Rule::cone and Rule::hourglass; NaN outside the cone's domain, 1 where nothing may be chosen.
inline double mean_radius(Rule rule, double mean, double n, double q) {
  if (n == 0) return 1;
  const double height = rule == Rule::hourglass ? std::fabs(mean) : mean;
  const double sum = height + q, width = 1 / n + q;
  const double r = std::isinf(q) ? 1 + 0 * height : std::isinf(sum) ? height / width + q / width : sum / width;
  return rule == Rule::cone && !(r > 0) ? std::numeric_limits<double>::quiet_NaN() : r;
}

}  // namespace sparsegen::SPARSEGEN_ISA
