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
inline constexpr int64_t kLaneLimit = 64;          // longest row that is transposed: see docs/decisions/0003
inline constexpr int64_t kFold = 16;               // turns after which a partial sum joins the total
// Longest row that shares a group: its partial sums, in four chains, need no folding.
template <class T>
inline constexpr int64_t kGroupLimit = kFold * kStep<T>;
// Turns, and entries, after which the four chains of a sum are joined. Longer chains round so often that rows of equal entries,
// whose errors all have one sign, miss their sum by more than two units in the last place.
inline constexpr int64_t kSpanTurns = 4;
template <class T>
inline constexpr int64_t kSpan = kSpanTurns * kStep<T>;

// Longest row that is written to a place that lines begin with, and from there past the caches to one that they do not: longer ones
// would crowd the first cache.
template <class T>
inline constexpr int64_t kShiftLimit = 10240 / sizeof(T);

// How far on, in entries, the first pass over a long row asks for what stands there, where the processor does not foresee it.
template <class T>
inline constexpr int64_t kLookAhead = 8192 / sizeof(T);

// load() of whole vectors, load_part() of the last one: f(from, load, store).
template <class T, bool stream = false, class F>
inline void each_vector(int64_t K, F&& f) {
  constexpr int W = kWidth<T>;
  int64_t at = 0;
  for (; at + W <= K; at += W)
    f(at, [](const T* x) { return load(x); }, [](T* x, Vec<T> v) { put<stream>(x, v); });
  const int left = int(K - at);
  if (left) f(at, [=](const T* x) { return load_part(x, left); }, [=](T* x, Vec<T> v) { store_part(x, v, left); });
}

// Zeros, by whole vectors.
template <bool stream, class T>
inline void write_zeros(T* p, int64_t n) {
  for (int64_t i = 0; i < n; i += kWidth<T>) {
    put<stream>(p + i, Vec<T>{});
    if (!stream && i % kLine<T> == 0) ask_ahead(p + i);
  }
}

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

// A place in a row that stands behind a mask, as a pointer is one in a row without.
template <class T>
struct Behind {
  const T* x;
  const uint8_t* mask;
  Behind operator+(int64_t n) const { return {x + n, mask + n}; }
  Behind& operator+=(int64_t n) { return *this = *this + n; }
  bool operator!=(const Behind& other) const { return x != other.x; }
};

// The same for a look that does without squares.
template <class T>
struct Glance {
  const T* x;
  MaskPlace<T> mask;
  Glance operator+(int64_t n) const { return {x + n, mask + n}; }
  Glance& operator+=(int64_t n) { return *this = *this + n; }
  bool operator!=(const Glance& other) const { return x != other.x; }
};

// The same in a row that is read squared.
template <class T>
struct Squared {
  const T* x;
  Squared operator+(int64_t n) const { return {x + n}; }
  Squared& operator+=(int64_t n) { return *this = *this + n; }
  bool operator!=(const Squared& other) const { return x != other.x; }
};

// The same behind a mask where the first look copies what it sees, for the passes after it. With AVX-512 a mask costs one
// instruction whenever it is asked for; where it has to be widened to lanes, that costs more than the copy.
inline constexpr bool kCopiesMasked = kVectorBytes < 64;

template <class T>
struct Copied {
  const T* x;
  MaskPlace<T> mask;
  T* to;
  Copied operator+(int64_t n) const { return {x + n, mask + n, to + n}; }
  Copied& operator+=(int64_t n) { return *this = *this + n; }
  bool operator!=(const Copied& other) const { return x != other.x; }
};

// Does a place stand behind a mask that is asked for whenever it is read?
template <class P>
inline constexpr bool kBehind = false;
template <class T>
inline constexpr bool kBehind<Behind<T>> = true;

// Does the first look at a place ask a mask?
template <class P>
inline constexpr bool kHides = kBehind<P>;
template <class T>
inline constexpr bool kHides<Copied<T>> = true;

template <class T>
using Masked = std::conditional_t<kCopiesMasked, Copied<T>, Behind<T>>;

// Asks for a step so far on; its mask the hardware foresees.
template <class T>
inline void ask_for_step(const T* x) {
  for (int j = 0; j < kStep<T>; j += kLine<T>) prefetch(x + j + kLookAhead<T>);
}
template <template <class> class Place, class T>
inline void ask_for_step(const Place<T>& at) { ask_for_step(at.x); }

// Where a place is in memory, and asks for what stands there.
template <class T>
inline const T* memory_at(const T* x) { return x; }
template <class T>
inline const T* memory_at(Squared<T> at) { return at.x; }
template <class T>
inline const T* memory_at(Behind<T> at) { return at.x; }
template <class T>
inline void ask_at(const T* x) { prefetch_far(x); }
template <class T>
inline void ask_at(Squared<T> at) { prefetch_far(at.x); }
template <class T>
inline void ask_at(Behind<T> at) { prefetch_far(at.x); }

// The entries at a place as they are read; with -inf where the mask does not let them be chosen; and what is made of them, where it
// does, else 0.
template <class T>
inline Vec<T> scores_at(const T* x) { return load(x); }
template <class T>
inline Vec<T> scores_at(Squared<T> at) { return load(at.x) * load(at.x); }
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
inline Vec<T> kept_at(Squared<T>, Vec<T> made) { return made; }
template <class T>
inline Vec<T> kept_at(Behind<T> at, Vec<T> made) { return keep<T>(open_lanes<T>(at.mask), made); }

// One of them, as it is read.
template <class T>
inline T entry_at(const T* x) { return *x; }
template <class T>
inline T entry_at(Behind<T> at) { return *at.x; }

// Of n entries, at places in a row that begins at `x`, those that its mask lets be chosen: they are moved together, and counted.
template <class Place, class T>
inline int leave_open(const Place&, T*, int32_t*, int n) { return n; }
template <class T>
inline int leave_open(const Behind<T>& x, T* entries, int32_t* at, int n) {
  int open = 0;
  for (int i = 0; i < n; ++i) entries[open] = entries[i], at[open] = at[i], open += x.mask[at[i]] != 0;
  return open;
}

// Those of an incomplete step: as they are read, and with -inf where the mask does not let them be chosen.
template <class T>
inline void take_some(const T* x, int64_t n, T* to) { std::copy_n(x, n, to); }
template <class T>
inline void take_some(Squared<T> at, int64_t n, T* to) { std::transform(at.x, at.x + n, to, [](T v) { return v * v; }); }
template <class T>
inline void take_some(Behind<T> at, int64_t n, T* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = at.mask[i] ? at.x[i] : -kInf<T>;
}

// A row cut into steps of kStep entries, which begins at a place; the last, incomplete step stands in `tail`, as it is read and
// filled up with -inf.
template <class T, class Place = const T*>
struct Row {
  Place x;
  int64_t length, full, steps;
  T tail[kStep<T>];

  Row(Place data, int64_t n) : x(data), length(n), full(n / kStep<T>), steps(full) {
    const int64_t left = n - full * kStep<T>;
    if (left == 0) return;
    std::fill_n(tail, kStep<T>, -kInf<T>);
    take_some(x + full * kStep<T>, left, tail);
    ++steps;
  }
  const T* at(int64_t i) const { return i < full ? x + i * kStep<T> : tail; }
};

// What the squares of [x - tau]_+ are to sum to, of entmax with alpha = 1.5. Their sums start from minus that, so that their last
// digits are those of the difference.
inline constexpr double kSquares = 4;

struct Excess {
  double sum;       // of [x - tau]_+
  int64_t count;    // of x > tau
  double over = 0;  // what the squares of [x - tau]_+ exceed kSquares by, if they are asked for
};

// Adds what is negative of `d` as add_negative() does, and its squares if they are asked for.
template <bool squared, class T>
inline void add_below(Vec<T> d, Vec<T>& sum, [[maybe_unused]] Vec<T>& squares, Mask<T>& n) {
#if defined(__AVX512F__)
  if constexpr (squared) squares = d < Vec<T>{} ? fma(d, d, squares) : squares;
  add_negative<T>(d, sum, n);
#else
  if constexpr (squared) {
    const Vec<T> under = vmin(d, Vec<T>{});
    sum += under, squares = fma(under, under, squares), count_where<T>(d < Vec<T>{}, n);
  } else {
    add_negative<T>(d, sum, n);
  }
#endif
}

// The same of what is made of the entries at a place.
template <bool squared, class T>
inline void add_below_at(const T*, Vec<T> d, Vec<T>& sum, Vec<T>& squares, Mask<T>& n) {
  add_below<squared, T>(d, sum, squares, n);
}
template <bool squared, class T>
inline void add_below_at(Behind<T> at, Vec<T> d, Vec<T>& sum, Vec<T>&, Mask<T>& n) {
  static_assert(!squared, "rows of entmax are not read behind their masks");
  add_negative<T>(open_lanes<T>(at.mask), d, sum, n);
}

// Adds to a sum, and what rounding takes from it to `lost`: squares of equal entries are all rounded the same way.
template <class V>
inline void add_exactly(V more, V& sum, V& lost) {
  const V next = sum + more, part = next - sum;
  lost += (sum - (next - part)) + (more - part), sum = next;
}

// `steps` steps from `x`: excess over `t` added to `total`, its squares to `squares` if they are asked for, and minus the number of
// entries above to `count`. The excess is summed as min(t - x, 0), which takes x from memory without an instruction to load it.
// With `ahead` it asks for the entries that many on: the row that comes next.
template <bool ahead, bool squared, class Place, class T>
inline void add_excess(Place x, int64_t steps, Vec<T> t, Total<T>& total, Total<T>& squares, Mask<T>& count, int64_t on = 0) {
  constexpr int W = kWidth<T>;
  Mask<T> n0 = count, n1{}, n2{}, n3{};
  const auto below = [=](Place at) { return kept_at(at, t - scores_at(at)); };
  while (steps > 0) {
    int64_t turns = std::min(steps, kFold);
    steps -= turns;
    Vec<T> sum{}, square{}, lost{};
    for (; turns > 0; turns -= kSpanTurns) {
      Vec<T> s0{}, s1{}, s2{}, s3{}, q0{}, q1{}, q2{}, q3{};
      for (const Place pause = x + std::min(turns, kSpanTurns) * kStep<T>; x != pause; x += kStep<T>) {
        const Vec<T> d0 = below(x), d1 = below(x + W), d2 = below(x + 2 * W), d3 = below(x + 3 * W);
        add_below<squared, T>(d0, s0, q0, n0);
        add_below<squared, T>(d1, s1, q1, n1);
        add_below<squared, T>(d2, s2, q2, n2);
        add_below<squared, T>(d3, s3, q3, n3);
        for (int j = 0; ahead && j < kStep<T>; j += kLine<T>) ask_at(x + (j + on));
      }
      sum += (s0 + s1) + (s2 + s3);
      if constexpr (squared) add_exactly((q0 + q1) + (q2 + q3), square, lost);
    }
    total.add(-lanes_sum(sum));
    if constexpr (squared) squares.add(lanes_sum(square + lost));
  }
  count = (n0 + n1) + (n2 + n3);
}

template <bool squared = false, class T, class Place>
inline Excess excess(const Row<T, Place>& row, T tau, int64_t ahead = 0) {
  Total<T> total, squares;
  Mask<T> count{};
  squares.add(T(-kSquares));
  if (ahead) add_excess<true, squared>(row.x, row.full, splat(tau), total, squares, count, ahead);
  else add_excess<false, squared>(row.x, row.full, splat(tau), total, squares, count);
  if (row.steps > row.full) add_excess<false, squared>(row.tail, 1, splat(tau), total, squares, count);
  return {total.value(), -lanes_sum(count), squares.value()};
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

// What becomes of an entry v, given how probabilities are made: `below` is negative where v has one, and `share` is it.
struct Straightly {
  template <class V>
  static V below(V tau, V v, V rest) { return (tau - v) + rest; }
  template <class V>
  static V share(V d, V scale) { return d * scale; }
};

// How the probabilities of a row are made; entries up to `bound` have none.
template <class T>
struct RowRecipe {
  T tau, rest, error, scale, bound;
};

template <class T>
inline constexpr T kRounding = 2 * std::numeric_limits<T>::epsilon();

template <class T>
struct Cut {
  using How = Straightly;
  T tau;
  double rest;    // p = [x - tau - rest]_+ / r
  double sum;     // excess over tau of the entries counted
  int64_t count;
  bool sure = true;  // else the set may be wrong: it is if there are not `count` probabilities
  int few = 0;       // how many entries pick_few() has found that may have one, unless 0

  RowRecipe<T> recipe(double r) const {
    return {tau, T(rest), -T(kRounding<T> * r / double(count)), T(-1 / r), rest < 0 ? -kInf<T> : tau};
  }
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
template <class T, class Place>
inline Cut<T> newton(const Row<T, Place>& row, T tau, T low, double r, int64_t last = -1) {
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
template <class T, class Place>
inline Cut<T> climb(const Row<T, Place>& row, const Cut<T>& from, T low, double r) {
  return newton(row, std::max(add_down(from.tau, from.rest), low), low, r, from.count);
}

inline constexpr int64_t kSoonLimit = 8192;  // longest row that is asked for in advance: the hardware foresees longer ones better

// The longest row whose successor is asked for in its later passes: none where the first one asks.
inline int64_t soon_limit() { return foresees ? kSoonLimit : 0; }

// Two passes from a guess, the second where it leads when corrected by the curvature that normal scores would have there, or an
// exponential tail if that is less. The set it gives is right for more than nine rows in ten: a cut that is not sure shows when
// it is written.
template <class T>
inline Cut<T> draft(const Row<T>& row, T start, T low, double r, double mean, double variance, int64_t ahead) {
  const Excess e = excess(row, start, ahead);
  const double step = (e.sum - r) / double(e.count);
  const double over = e.sum / double(e.count), bend = 1 + step * std::min((over + start - mean) / variance, 1 / over) / 2;
  if (e.count == 0) return newton(row, low, low, r);
  if (!(bend > 0.5 && bend < 2)) return climb(row, {start, step, e.sum, e.count}, low, r);
  const T tau = std::max(T(start + step * bend), low);
  const Excess f = excess(row, tau);
  if (f.count == 0) return newton(row, low, low, r);
  const Cut<T> cut{tau, (f.sum - r) / double(f.count), f.sum, f.count, false};
  return f.sum <= 2 * r ? cut : climb(row, cut, low, r);
}

// How many of Newton's steps from `start` lead to the threshold of a row without negative entries, of which `below` are not above
// `start` and lack `lack` of it in all. It is as if the number of entries below t were a power of t; to the third order.
template <class T, class V>
inline V bend_of_share(V start, V step, V count, V below, V lack) {
  const V power = below * start / lack - T(1), part = power * below * step / (count * start * T(2));
  return T(1) + part * (T(1) + part * T(2) + (power - T(1)) * step / (start * T(3)));
}

// What is known of K entries that are not negative before their threshold is: their sum, the least of them, and the excess over a
// place to start from (no entry above it: not known).
template <class T>
struct Known {
  double sum = 0;
  T least = 0, start = 0;
  Excess over{0, 0};
};

// draft() onto the larger part of the sum. Newton's first step, from 0, needs no pass, and where it leaves every entry above it
// there is nothing more to find.
template <class T, class Place>
inline Cut<T> draft_share(const Row<T, Place>& row, double K, Known<T> all, T low, double r, int64_t ahead) {
  const T first = add_down(T(0), (all.sum - r) / K);
  const auto cut_at = [=](T tau, Excess e, bool sure) {
    return Cut<T>{tau, (e.sum - r) / double(e.count), e.sum, e.count, sure};
  };
  if (all.least > first) return cut_at(first, {all.sum - K * double(first), int64_t(K)}, true);
  if (all.over.count == 0) {
    all.start = first, all.over = excess(row, first, ahead);
    if (double(all.over.count) == K) return cut_at(first, all.over, true);
  }
  const Cut<T> cut = cut_at(all.start, all.over, true);
  const double tau = double(cut.tau), count = double(cut.count);
  const double bend = bend_of_share<double>(tau, cut.rest, count, K - count, cut.sum - (all.sum - K * tau));
  if (!(bend > 0.5 && bend < 2)) return climb(row, cut, low, r);
  const T next = T(tau + cut.rest * bend);
  const Excess e = excess(row, next, ahead);
  return e.count > 0 ? cut_at(next, e, false) : climb(row, cut, low, r);
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

// The same without squares and numbers: enough to see that few of its entries matter, by as few operations as a row without a mask
// takes, for where rows come from memory each of them keeps a line from being asked for.
template <bool hidden, class T>
inline void look_at_vector(Glance<T> at, Vec<T>& top, Vec<T>& sum, Vec<T>&, Mask<T>&) {
  const Open<T> open = open_lanes<T>(at.mask);
  if constexpr (hidden) {
    const Vec<T> v = hide_vector<T>(load(at.x), at.mask);
    top = vmax(v, top), add_where<T>(v != splat(-kInf<T>), v, sum);  // NaN is open
  } else {
    const Vec<T> v = load(at.x);
#if defined(__AVX512F__)
    top = select<T>(open, vmax(v, top), top), sum = select<T>(open, sum + v, sum);
#else
    top = vmax(select<T>(open, v, splat(-kInf<T>)), top), sum += keep<T>(open, v);
#endif
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
  const bool asks = !foresees;
  while (steps > 0) {
    const int64_t turns = std::min(steps, R);
    steps -= turns;
    Vec<T> m0 = splat(-kInf<T>), m1 = m0, s0{}, s1{}, q0{}, q1{};
    for (const Place end = x + turns * kStep<T>; x != end; x += kStep<T>) {
      if (asks) ask_for_step(x);
      for (int j = 0; j < kStep<T>; j += 2 * W) {
        look_at_vector<hidden>(x + j, m0, s0, q0, n);
        look_at_vector<hidden>(x + (j + W), m1, s1, q1, n);
      }
    }
    m0 = vmax(m0, m1);
    if (maxima) store(maxima, m0), maxima += W;
    top = vmax(m0, top), sum += s0 + s1, squares += q0 + q1;
  }
  all = {top, sum, squares, n};
}

// The padded last step: joins the block before it where that is not full, and its -inf counts for nothing in the sums.
template <class T, class Place>
inline void survey_tail(const Row<T, Place>& row, T* maxima, Survey<T>& all) {
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

// A survey of a row, unless it has been `seen`, counting what is open, and once more if entries turn out to be hidden, contrary to
// what is `likely`: what the row is like is likely of the next. Returns how many entries the sums are of; 0: all of them.
template <class T>
inline double survey_row(const Row<T>& row, int64_t K, T* maxima, bool& likely, bool seen, Survey<T>& all) {
  bool hidden = seen || likely;
  const auto look = [&](auto&& over) {
    all = {}, over(row.x, row.full, maxima ? kBlock : kFold, maxima, all);
    if (row.steps > row.full) survey_tail(row, maxima, all);
  };
  if (!seen) look(hidden ? survey<true, const T*, T> : survey<false, const T*, T>);
  // Hidden entries show in the sum, as -inf, or as NaN where others overflow.
  const bool shows = !(lanes_sum(all.sum) > -kInf<T>) && std::fabs(lanes_max(all.top)) < kInf<T>;
  if (!hidden && shows) hidden = true, look(survey<true, const T*, T>);
  const int64_t full = hidden ? 0 : row.full * kStep<T>;  // the last step counts for itself, and nothing fills it up
  const double open = hidden || row.steps > row.full ? double(full - lanes_sum(all.open)) : 0;
  likely = hidden && open < double(K);
  return open;
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

// A row of z^2 - top^2, in units that keep it near 1: a product of what does not cancel.
template <class T>
struct Squaring {
  const T* z;
  T unit, most;  // near_one(top), top in that unit
  bool open;     // is it known that none is hidden?

  template <bool known>
  Vec<T> of(Vec<T> v) const {
    const Vec<T> a = v * unit, made = (a - most) * (a + most);  // of either sign
    return known ? made : select<T>(v == splat(-kInf<T>), v, made);
  }
};

// A place in such a row, of which what is read is made.
template <class T>
struct Made {
  const T* x;
  Squaring<T> made;
  Made operator+(int64_t n) const { return {x + n, made}; }
  Made& operator+=(int64_t n) {
    x += n;
    return *this;
  }
  bool operator!=(const Made& other) const { return x != other.x; }
};

template <class T>
inline const T* memory_at(const Made<T>& at) { return at.x; }
template <class T>
inline Vec<T> scores_at(const Made<T>& at) { return at.made.template of<true>(load(at.x)); }
template <class T>
inline Vec<T> chosen_at(const Made<T>& at) { return scores_at(at); }
template <class T>
inline Vec<T> kept_at(const Made<T>&, Vec<T> made) { return made; }
template <class T>
inline T entry_at(const Made<T>& at) {
  const T a = *at.x * at.made.unit;
  return (a - at.made.most) * (a + at.made.most);
}
template <class T>
inline void ask_at(const Made<T>& at) { prefetch_far(at.x); }
template <class T>
inline void take_some(const Made<T>& at, int64_t n, T* to) {
  each_vector<T>(n, [=](int64_t j, auto get, auto write) { write(to + j, at.made.template of<true>(get(at.x + j))); });
}

// A place in a row whose sizes are looked at, to be squared later, and the sum of whose squares is found.
template <class T>
struct Sized {
  const T* x;
  Sized operator+(int64_t n) const { return {x + n}; }
  Sized& operator+=(int64_t n) { return *this = *this + n; }
  bool operator!=(const Sized& other) const { return x != other.x; }
};

template <bool hidden, class T>
inline void look_at_vector(Sized<T> at, Vec<T>& top, Vec<T>&, Vec<T>& squares, Mask<T>&) {
  const Vec<T> v = load(at.x);
  top = vmax(vmax(v, -v), top), squares = fma(v, v, squares);
}
template <class T>
inline void take_some(Sized<T> at, int64_t n, T* to) { std::transform(at.x, at.x + n, to, [](T v) { return std::fabs(v); }); }

// A place in such a row, which the first look at it makes.
template <class T, bool open>
struct Making {
  static constexpr bool kOpen = open;
  const T* x;
  T* slot;
  Squaring<T> made;
  Making operator+(int64_t n) const { return {x + n, slot + n, made}; }
  Making& operator+=(int64_t n) {
    x += n, slot += n;
    return *this;
  }
  bool operator!=(const Making& other) const { return x != other.x; }
};

template <class P>
inline constexpr bool kMade = false;
template <class T, bool open>
inline constexpr bool kMade<Making<T, open>> = true;

template <class T, bool open>
inline const T* memory_at(const Making<T, open>& at) { return at.x; }
template <class T, bool open>
inline Vec<T> chosen_at(const Making<T, open>& at) {
  const Vec<T> v = at.made.template of<open>(load(at.x));
  store(at.slot, v);
  return v;
}

template <bool hidden, class T, bool open>
inline void look_at_vector(Making<T, open> at, Vec<T>& top, Vec<T>& sum, Vec<T>& squares, Mask<T>& n) {
  const Vec<T> v = chosen_at(at);
  top = vmax(v, top), add_moments<hidden, T>(v, sum, squares, n);
}

// Fewer entries than that are kept with their places.
inline constexpr int kFew = 64;

template <class T>
struct Scratch {
  T* maxima = nullptr;  // a vector for each block
  T* picked = nullptr;  // K and padding
  T* lanes = nullptr;   // small K only: K x W
  T* rows = nullptr;    // `slots` rows of `stride` entries
  int slots = 0;
  int32_t* touched = nullptr;  // parts of a row with support, or the places of kFew entries; the same memory as
  uint32_t* words = nullptr;   // its support as bits
  int64_t stride = 0;
  bool stream = false;  // the output is larger than the caches: write past them
  bool asks = true;     // gradients: is memory far enough to be asked for in advance?
  const uint8_t* const* masks = nullptr;  // of the rows at hand, which are read behind them; null: there are none
  mutable bool hidden = false;  // were there -inf in the rows before? A wrong guess costs a second look, and no bit
  mutable bool copies = false;  // did many entries matter of the row behind a mask that came before? Such a guess as `hidden`
  uint32_t* const* kept = nullptr;  // where the support of the rows at hand is kept as bits; null: nowhere
  mutable unsigned has_words = 0;   // the rows of which that was done while they were written, one bit each
  Next<T> next;
  const Squaring<T>* squares = nullptr;  // rows that are still to be made, of squares, in their slots: the first look does
  const double* sums = nullptr;  // of rows without negative entries, of which the radius is the larger part; null: not known
};

// Entries above `bound`, from the blocks that hold any, and -inf to fill the last step. `out` has room for K entries and two
// steps. Returns their number with the filling.
template <class T, class Place>
inline int64_t pick(const Row<T, Place>& row, const T* maxima, T bound, T* out) {
  const Vec<T> b = splat(bound);
  int64_t n = 0;
  for (int64_t from = 0; from < row.steps; from += kBlock, maxima += kWidth<T>) {
    if (!bits_above<T>(load(maxima), b)) continue;
    for (int64_t i = from; i < std::min(from + kBlock, row.steps); ++i) {
      for (int j = 0; j < kStep<T>; j += kWidth<T>) {
        const Vec<T> v = i < row.full ? chosen_at(row.x + (i * kStep<T> + j)) : load(row.tail + j);
        n += pack(out + n, v, bits_above<T>(v, b));
      }
    }
  }
  const int64_t end = (n + kStep<T> - 1) / kStep<T> * kStep<T>;
  for (int64_t i = n; i < end; i += kWidth<T>) store(out + i, splat(-kInf<T>));
  return end;
}

// pick() of few entries, with their places: a lane of a block's maxima says which sixteen of its entries to look at, one by one,
// for branches on them would be guesses. Returns their number without the filling; 0 where they may be too many.
template <class T, class Place>
inline int pick_few(const Row<T, Place>& row, const T* maxima, T bound, T* out, int32_t* at) {
  constexpr int W = kWidth<T>, turns = kBlock * kUnroll;
  int n = 0;
  const auto look = [&](int64_t place, T v) { out[n] = v, at[n] = int32_t(place), n += v > bound; };
  for (int64_t from = 0; from < row.steps; from += kBlock, maxima += W) {
    for (unsigned lanes = bits_above<T>(load(maxima), splat(bound)); lanes; lanes &= lanes - 1) {
      if (n + turns > kFew) return 0;
      const int64_t first = from * kStep<T> + __builtin_ctz(lanes), whole = row.full * kStep<T>;
      const int before = n;
      if (from + kBlock <= row.full) {
        for (int j = 0; j < turns; ++j) look(first + j * W, entry_at(row.x + (first + j * W)));
        n = before + leave_open(row.x, out + before, at + before, n - before);
        continue;
      }
      for (int64_t k = first; k < row.steps * kStep<T>; k += W) look(k, k < whole ? entry_at(row.x + k) : row.tail[k - whole]);
      n = before + leave_open(row.x, out + before, at + before, n - before);
    }
  }
  for (int i = n; i < (n + kStep<T> - 1) / kStep<T> * kStep<T>; ++i) out[i] = -kInf<T>;
  return n;
}

// Writes the probabilities of `steps` steps: what lies above the threshold by more than the rounding error has one, others 0. Takes
// the number of those above from `count`. `p` may be `x` itself. With `ahead` it asks for the memory that many entries on. With
// `kept` it keeps those above as bits there, the first entries in the lowest.
template <bool stream, bool ahead, class How, bool kept = false, class Place, class T>
inline void write_steps(Place x, int64_t steps, const RowRecipe<T>& made, T* p, Mask<T>& count, int64_t on = 0,
                        [[maybe_unused]] char* bits = nullptr) {
  constexpr int W = kWidth<T>;
  const Vec<T> tau = splat(made.tau), rest = splat(made.rest), scale = splat(made.scale), error = splat(made.error);
  Mask<T> n0 = count, n1{};
  const auto one = [&](int at, Mask<T>& n) {
    const Vec<T> d = kept_at(x + at, How::below(tau, scores_at(x + at), rest));
    const Mask<T> in = d < error;
    count_where<T>(in, n), put<stream>(p + at, keep<T>(in, How::share(d, scale)));
    return in;
  };
  for (const Place end = x + steps * kStep<T>; x != end; x += kStep<T>, p += kStep<T>) {
    const Mask<T> in[kUnroll] = {one(0, n0), one(W, n1), one(2 * W, n0), one(3 * W, n1)};
    if constexpr (kept) {
      uint64_t all = 0;
      for (int j = 0; j < kUnroll; ++j) all |= uint64_t(lane_bits<T>(in[j])) << (j * W);
      std::memcpy(bits, &all, kStep<T> / 8), bits += kStep<T> / 8;  // of the lowest bytes, on machines that have them first
    }
    for (int j = 0; ahead && !stream && j < kStep<T>; j += kLine<T>) prefetch_to_write(p + j + on);
  }
  count = n0 + n1;
}

// The words of a row from entry `from` on, a multiple of 8, of which all that are in are the lowest bits of `in`.
inline void fill_words(uint32_t* words, int64_t K, int64_t from, uint64_t in) {
  char* const bits = reinterpret_cast<char*>(words);
  const int64_t end = (K + 31) / 32 * 4;
  for (int64_t i = from / 8; i < end; ++i, in >>= 8) bits[i] = char(in);
}

// Blocks of a row, those without an entry above the threshold by its `maxima` zeroed and not read; with `kept` their support goes to
// `bits`, and what comes after it is returned.
template <bool stream, bool kept, class How, class Place, class T>
inline char* write_blocks(Place x, int64_t blocks, const T* maxima, const RowRecipe<T>& made, T* p, Mask<T>& count,
                          [[maybe_unused]] char* bits) {
  constexpr int64_t block = kBlock * kStep<T>, near = kAskAhead / sizeof(T);
  const Vec<T> bound = splat(made.bound);
  for (const Place end = x + blocks * block; x != end; x += block, p += block, maxima += kWidth<T>) {
    const bool some = bits_above<T>(load(maxima), bound);
    if (some) write_steps<stream, true, How, kept>(x, kBlock, made, p, count, near, bits);
    else write_zeros<stream>(p, block);
    if (kept && !some) std::memset(bits, 0, block / 8);
    if (kept) bits += block / 8;
  }
  return bits;
}

// The whole row; with `maxima`, blocks without an entry above tau are zeroed and not read. Returns the number of entries that
// are not 0. The support goes to `words` unless null: see support.hpp.
template <bool stream, class T, class Place = const T*, class C = Cut<T>>
inline int64_t write_row(const Row<T, Place>& row, int64_t K, const T* maxima, const C& cut, double r, T* p,
                         uint32_t* words = nullptr) {
  using How = typename C::How;
  constexpr int64_t kNear = kAskAhead / sizeof(T);
  const RowRecipe<T> made = cut.recipe(r);
  const Place x = row.x;
  Mask<T> count{};
  char* const bits = reinterpret_cast<char*>(words);
  if (!maxima && words) {
    write_steps<stream, true, How, true>(x, row.full, made, p, count, K > kSoonLimit ? kNear : K, bits);
  } else if (!maxima) {
    write_steps<stream, true, How>(x, row.full, made, p, count, K > kSoonLimit ? kNear : K);
  } else {
    const int64_t blocks = row.full / kBlock, whole = blocks * kBlock * kStep<T>, rest = row.full % kBlock;
    if (words) {
      char* const next = write_blocks<stream, true, How>(x, blocks, maxima, made, p, count, bits);
      write_steps<stream, false, How, true>(x + whole, rest, made, p + whole, count, 0, next);
    } else {
      write_blocks<stream, false, How>(x, blocks, maxima, made, p, count, bits);
      write_steps<stream, false, How>(x + whole, rest, made, p + whole, count);
    }
  }
  if (row.steps > row.full) {
    T last[kStep<T>];
    uint64_t in = 0;
    write_steps<false, false, How, true>(row.tail, 1, made, last, count, 0, reinterpret_cast<char*>(&in));
    std::copy_n(last, K - row.full * kStep<T>, p + row.full * kStep<T>);
    if (words) fill_words(words, K, row.full * kStep<T>, in);
  } else if (words) {
    fill_words(words, K, K, 0);
  }
  return -lanes_sum(count);
}

// The same of a row of which pick_few() has found `values` and their places; `p` may be where the row stands.
template <class T, class C>
inline void write_few(int64_t K, const T* values, const int32_t* at, const C& cut, double r, T* p) {
  constexpr int W = kWidth<T>;
  using How = typename C::How;
  const RowRecipe<T> made = cut.recipe(r);
  const int64_t whole = K / W * W;
  alignas(kVectorBytes) T shares[kFew];
  for (int i = 0; i < cut.few; i += W) {
    const Vec<T> d = How::below(splat(made.tau), load(values + i), splat(made.rest));
    store(shares + i, keep<T>(d < splat(made.error), How::share(d, splat(made.scale))));
  }
  write_zeros<false>(p, whole);
  std::fill(p + whole, p + K, T(0));
  for (int i = 0; i < cut.few; ++i) p[at[i]] = shares[i];
}

// Radii between which arithmetic in T neither overflows nor loses digits to underflow.
template <class T>
inline constexpr double kBigRadius = sizeof(T) == 4 ? 0x1p60 : 0x1p500;
template <class T>
inline bool plain_radius(double r) {
  return r >= 1 / kBigRadius<T> && r <= kBigRadius<T>;
}

// A lower bound of the threshold of a row, from its `tops`, W entries the largest of which is `top`; `low` where more than a few of
// them are above it, as it would not be close. None waits for another: the entry v is in while all larger ones exceed it by less
// than r, and for any set at all (sum - r) / count is no more than the threshold, so that a rounding error can do no harm.
template <class T>
inline T bound_of_tops(Vec<T> tops, T top, T low, T r) {
  constexpr int W = kWidth<T>;
  alignas(kVectorBytes) T each[W];
  const Vec<T> under = tops - top;
  Vec<T> cost[4] = {};
  store(each, under);
  for (int i = 0; i < W; ++i) cost[i % 4] += vmin(under - each[i], Vec<T>{});
  const Mask<T> in = -((cost[0] + cost[1]) + (cost[2] + cost[3])) < splat(r);
  const int count = __builtin_popcount(lane_bits<T>(in));
  if (count * 4 > W * 3) return low;
  const double step = (double(lanes_sum(keep<T>(in, under))) - double(r)) / count;
  return std::max(low, add_down(top, step - 16 * double(std::numeric_limits<T>::epsilon()) * double(r)));
}

// Asks for the beginning of the next row before the threshold of a long one is sought, where results go through the caches: nothing
// else would be on its way meanwhile. More of it would take the places of what this row writes.
template <class T, class Place>
inline void ask_for_beginning(const Row<T, Place>& row, int64_t ahead, const Scratch<T>& s) {
  constexpr int64_t some = 4096 / sizeof(T);
  if (!s.stream && !past_caches && row.length <= kSoonLimit) each_line(memory_at(row.x) + ahead, some, 0, 1, prefetch_far);
}

// The cut of a row few of whose entries matter; false where they are many. A subset of the entries, the largest in each lane or their
// blocks' maxima, bounds tau from below; the blocks above that bound then hold all that matters.
template <class T, class Place>
inline bool find_sparse(const Row<T, Place>& row, const T* maxima, Vec<T> tops, T top, double r, const Scratch<T>& s, Cut<T>& cut) {
  const int64_t blocks = (row.steps + kBlock - 1) / kBlock * kWidth<T>;
  const T low = add_down(top, -r);
  T bound = bound_of_tops(tops, top, low, T(r));
  if (bound == low) {
    const Cut<T> of_maxima = newton(Row<T>(maxima, blocks), low, low, r);
    if (!(of_maxima.count > 0 && of_maxima.count * 4 <= blocks)) return false;
    bound = of_maxima.tau;
  }
  const int few = pick_few(row, maxima, bound, s.picked, s.touched);
  const int64_t picked = few ? (few + kStep<T> - 1) / kStep<T> * kStep<T> : pick(row, maxima, bound, s.picked);
  cut = newton(Row<T>(s.picked, picked), bound, bound, r);
  // A rest below 0 would give entries of the threshold's own grid a probability, which need not be among them.
  cut.few = cut.rest < 0 ? 0 : few;
  return true;
}

// Share of the spread, r / (K spread), below which one in a hundred normal scores is above the threshold, or fewer.
inline constexpr double kSparse = 0.0025;

// `open` is the number of entries that the survey's sums are of; 0: all of them.
template <class T>
inline Cut<T> find_cut(const Row<T>& row, int64_t K, const T* maxima, const Survey<T>& all, double r, const Scratch<T>& s,
                       bool drafted = false, double open = 0, int64_t ahead = 0) {
  const double n = open > 0 ? open : double(K);
  const T top = lanes_max(all.top), low = add_down(top, -r);
  const double mean = lanes_sum(all.sum) / n, square = lanes_sum(all.squares) / n, spread = std::sqrt(square - mean * mean);
  Cut<T> cut;
  const bool sparse = low > mean || r < kSparse * n * spread;
  if (maxima && sparse) {
    if (ahead) ask_for_beginning(row, ahead, s);
    if (find_sparse(row, maxima, all.top, top, r, s, cut)) return cut;
  }
  const T start = guess<T>(splat(T(mean)), splat(T(spread)), splat(T(r / (n * spread))))[0];
  if (!(start > low && start < top)) return newton(row, low, low, r);
  return drafted ? draft(row, start, low, r, mean, spread * spread, K <= soon_limit() ? ahead : 0) : newton(row, start, low, r);
}

// What a row is divided by, given its cut; NaN where entries far from 0 stand beside a small radius: tau's grid is too coarse, and
// x - max must come first.
template <class T>
inline double settle(Cut<T>& cut, T top, double r, double& threshold) {
  threshold = double(cut.tau) + cut.rest;
  if (cut.count == 1 && cut.sum > 2 * r && cut.sum < kInf<double>) {  // the next lower number is more than r away: the top is alone
    threshold = double(top) - r;
    cut.rest = 0;
    return cut.sum;
  }
  return cut.count > 0 && cut.sum <= 2 * r ? r : std::numeric_limits<double>::quiet_NaN();
}

// Projects a row by the maxima of its lanes and of its blocks; false where many entries matter, and where project_direct() would say so.
// The support goes to `words` unless null.
template <class T, class Place>
inline bool write_sparse(const Row<T, Place>& row, int64_t K, Vec<T> tops, T top, double r, T* p, const Scratch<T>& s,
                         double& threshold, uint32_t* words = nullptr) {
  Cut<T> cut;
  ask_for_beginning(row, K, s);
  if (!find_sparse(row, s.maxima, tops, top, r, s, cut)) return false;
  const double scale = settle(cut, top, r, threshold);
  if (std::isnan(scale)) return false;
  if (cut.few && !s.stream && !words) return write_few(K, s.picked, s.touched, cut, scale, p), true;
  const auto write = s.stream && aligned(p) ? write_row<true, T, Place> : write_row<false, T, Place>;
  write(row, K, s.maxima, cut, scale, p, words);
  return true;
}

// Are nearly all of n numbers, whole vectors, above `low`? Where `low` is a radius less than the largest entry of a row, and these are
// the largest of its parts, many of its entries matter then.
template <class T>
inline bool most_above(const T* maxima, int64_t n, T low) {
  Mask<T> above{};
  for (int64_t i = 0; i < n; i += kWidth<T>) count_where<T>(load(maxima + i) > splat(low), above);
  return -int64_t(lanes_sum(above)) * 16 > n * 15;
}

// Adds the steps of a long row behind a mask to a survey; place(at, mask) is what a look reads from an entry on, and its mask there.
template <bool hidden, class T, class Place>
inline void survey_behind(const uint8_t* mask, int64_t steps, T* maxima, Survey<T>& all, Place&& place) {
#if defined(__AVX512F__)
  constexpr int64_t part = 1024, block = kBlock * kStep<T>;
  static_assert(part % block == 0);
  alignas(kVectorBytes) char bits[part / 8];
  for (int64_t from = 0, end = steps * kStep<T>; from < end; from += part) {
    const int64_t n = std::min(part, end - from);
    read_mask(mask + from, n, bits);
    survey<hidden>(place(from, MaskPlace<T>{bits}), n / kStep<T>, kBlock, maxima + from / block * kWidth<T>, all);
  }
#else
  survey<hidden>(place(0, mask), steps, kBlock, maxima, all);
#endif
}

// A long row behind a mask, few of whose entries matter: nothing of it is copied. False where that is not so, and where
// project_direct() would say so.
template <class T>
inline bool project_behind(const T* x, const uint8_t* mask, int64_t K, double r, T* p, const Scratch<T>& s, double& threshold) {
  if (!plain_radius<T>(r)) return false;
  const Row<T, Behind<T>> row({x, mask}, K);
  Survey<T> all;
  const auto look = [&](auto hidden) {
    all = {};
    survey_behind<hidden.value>(mask, row.full, s.maxima, all, [=](int64_t at, MaskPlace<T> m) { return Glance<T>{x + at, m}; });
    if (row.steps > row.full) survey_tail(row, s.maxima, all);
  };
  look(std::false_type());
  if (!(lanes_sum(all.sum) > -kInf<T>)) look(std::true_type());  // the scores have -inf themselves
  const T top = lanes_max(all.top), low = add_down(top, -r);
  if (!(std::fabs(top) < kInf<T> && std::isfinite(lanes_sum(all.sum)))) return false;
  const int64_t blocks = (row.steps + kBlock - 1) / kBlock * kWidth<T>;
  return !most_above(s.maxima, blocks, low) && write_sparse(row, K, all.top, top, r, p, s, threshold);
}

// Copies a long row from behind its mask, with -inf for what is hidden; the survey is project_direct()'s of the copy.
template <class T>
inline Survey<T> copy_behind(const T* x, const uint8_t* mask, int64_t K, T* to, T* maxima) {
  Survey<T> all;
  const Row<T, Behind<T>> row({x, mask}, K);
  survey_behind<true>(mask, row.full, maxima, all, [=](int64_t at, MaskPlace<T> m) { return Copied<T>{x + at, m, to + at}; });
  if (row.steps > row.full) {
    std::copy_n(row.tail, K - row.full * kStep<T>, to + row.full * kStep<T>);
    survey_tail(row, maxima, all);
  }
  return all;
}

// Can few entries of a row matter, by its survey? As project_behind() sees it.
template <class T>
inline bool may_be_sparse(const Survey<T>& all, double r) {
  return add_down(lanes_max(all.top), -r) > lanes_sum(all.sum) / -double(lanes_sum(all.open));
}

// Writes a row, and once more if the set of its cut was not right. False where the row needs project_any. `top` is its largest
// entry, or less.
template <class T, class Place>
inline bool write_cut(const Row<T, Place>& row, int64_t K, const T* maxima, Cut<T>& cut, T top, double r, T* p,
                      const Scratch<T>& s, double& threshold, uint32_t* words = nullptr) {
  const double scale = settle(cut, top, r, threshold);
  if (std::isnan(scale)) return false;
  if (cut.few && !s.stream && !words) return write_few(K, s.picked, s.touched, cut, scale, p), true;
  const bool late = !cut.sure && memory_at(row.x) == p;  // the entries may be needed once more, so they are not written over yet
  const bool shifted = s.stream && !aligned(p) && K <= kShiftLimit<T>;  // first written where lines begin
  const auto write = s.stream && aligned(p) && !late ? write_row<true, T, Place> : write_row<false, T, Place>;
  T* const out = late || shifted ? s.picked : p;
  if (write(row, K, maxima, cut, scale, out, words) == cut.count || cut.sure) {
    if (shifted) put_row(out, K, p);
    else if (late) std::copy_n(out, K, p);
    return true;
  }
  cut = climb(row, cut, add_down(top, -r), r);
  if (!(cut.count > 0 && cut.sum <= 2 * r)) return false;
  write(row, K, maxima, cut, r, p, words);
  threshold = double(cut.tau) + cut.rest;
  return true;
}

// False where the row needs project_any: NaN, +inf, nothing to choose, a radius or entries out of proportion. `seen` is the survey of
// a row that has been looked at, whose blocks' maxima stand in their place. The support goes to `words` unless null.
template <class T>
inline bool project_direct(const T* x, int64_t K, double r, T* p, const Scratch<T>& s, double& threshold,
                           const Survey<T>* seen = nullptr, uint32_t* words = nullptr) {
  if (!plain_radius<T>(r)) return false;
  const Row<T> row(x, K);
  T* maxima = K < kBlockedFrom ? nullptr : s.maxima;
  Survey<T> all = seen ? *seen : Survey<T>();
  const double open = survey_row(row, K, maxima, s.hidden, seen != nullptr, all);
  const T top = lanes_max(all.top);
  if (!(std::fabs(top) < kInf<T>) || std::isnan(lanes_sum(all.sum))) return false;
  const int64_t ahead = s.next.ahead(x, 0, K);
  Cut<T> cut = find_cut(row, K, maxima, all, r, s, true, open, ahead);
  return write_cut(row, K, maxima, cut, top, r, p, s, threshold, words);
}

// A row without negative entries, whose radius is the larger part of their sum; false where it needs project_any. Its support goes
// to `words` unless null.
template <class T, class Place>
inline bool project_share(Place x, int64_t K, const Known<T>& all, double r, T* p, const Scratch<T>& s, double& threshold,
                          uint32_t* words = nullptr) {
  if (!plain_radius<T>(r)) return false;
  const Row<T, Place> row(x, K);
  // The largest entry is not known, but that it is not negative.
  Cut<T> cut = draft_share(row, double(K), all, add_down(T(0), -r), r, K <= soon_limit() ? K : 0);
  return write_cut(row, K, static_cast<const T*>(nullptr), cut, T(0), r, p, s, threshold, words);
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

// `share` where x is `top` and 0 elsewhere. Blocks whose maxima are less are not read.
template <bool stream, class T>
inline void write_top(const Row<T>& row, int64_t K, const T* maxima, T top, T share, T* p) {
  constexpr int64_t block = kBlock * kStep<T>;
  const Vec<T> most = splat(top), one = splat(share);
  const int64_t full = row.full * kStep<T>;
  for (int64_t from = 0; from < full; from += block, maxima += kWidth<T>) {
    const int64_t end = std::min(from + block, full);
    if (lane_bits<T>(load(maxima) == most))
      for (int64_t i = from; i < end; i += kWidth<T>) put<stream>(p + i, keep<T>(load(row.x + i) == most, one));
    else
      write_zeros<stream>(p + from, end - from);
  }
  for (int64_t i = full; i < K; ++i) p[i] = row.tail[i - full] == top ? share : T(0);
}

// The same of a row of at least kBlockedFrom entries.
template <class T>
inline bool project_top_long(const T* x, int64_t K, T* p, const Scratch<T>& s, double& threshold) {
  const Row<T> row(x, K);
  Survey<T> all;
  survey<false>(row.x, row.full, kBlock, s.maxima, all);
  if (row.steps > row.full) survey_tail(row, s.maxima, all);
  const T top = lanes_max(all.top);
  if (std::isnan(lanes_sum(all.sum)) || !(std::fabs(top) < kInf<T>)) return false;
  const Vec<T> most = splat(top);
  Mask<T> n{};
  const T* maxima = s.maxima;
  for (int64_t from = 0; from < row.steps; from += kBlock, maxima += kWidth<T>) {
    if (!lane_bits<T>(load(maxima) == most)) continue;
    for (int64_t i = from; i < std::min(from + kBlock, row.steps); ++i)
      for (int j = 0; j < kStep<T>; j += kWidth<T>) n -= load(row.at(i) + j) == most;
  }
  const auto write = s.stream && aligned(p) ? write_top<true, T> : write_top<false, T>;
  write(row, K, s.maxima, top, T(1 / double(lanes_sum(n))), p);
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
// variable of its own: wider ones than the machine's would be kept in memory. Rows of floats that are too long to be transposed have
// them twice, so that an addition need not wait for the one before. Hidden entries are left out and counted, unless there are none
// (`open`): then -inf shows in the sum. With `low` the least entry is found too.
template <class T, bool open, bool low = false>
class RowSum {
  static constexpr int lanes = 16, W = kWidth<T>, D = kWidth<double>, parts = lanes / D;
  typedef T Part __attribute__((vector_size(D * sizeof(T))));
  typedef std::conditional_t<sizeof(T) == 4, int32_t, int64_t> Word;
  typedef Word Words __attribute__((vector_size(D * sizeof(T))));

 public:
  static constexpr bool twice = sizeof(T) == 4;
  static constexpr int64_t turn = twice ? 2 * lanes : lanes;

  RowSum() {
    for (int j = 0; low && j < parts; ++j) lows_[j] = kInf<T> - Part{};
  }

  // Whole turns of a row that has its sums twice if others do, from `x` to `end`.
  __attribute__((always_inline)) void add_turns(const T* x, const T* end, bool asks) {
    for (; x != end; x += turn) {
      for (int j = 0; asks && j < turn; j += lanes) prefetch(x + j + kLookAhead<T>);
      add(x, sums_);
      if (twice) add(x + lanes, more_);
    }
  }

  // The last n of K entries, and the sum of all.
  __attribute__((always_inline)) double finish(const T* x, int64_t n, int64_t K, [[maybe_unused]] double& count, bool asks,
                                               [[maybe_unused]] T* least = nullptr) {
    const int left = int(n % lanes);
    for (int j = 0; twice && j < parts; ++j) sums_[j] += more_[j];
    for (const T* const end = x + (n - left); x != end; x += lanes) {
      if (asks) prefetch(x + kLookAhead<T>);
      add(x, sums_);
    }
    if constexpr (low) {  // before the last entries are filled up
      *least = kInf<T>;
      for (int j = 0; j < lanes; ++j) *least = std::min(*least, T(lows_[j / D][j % D]));
      for (int j = 0; j < left; ++j) *least = std::min(*least, x[j]);
    }
    if (left) {
      T last[lanes];  // stored by vectors: a wide load of what was stored in pieces waits for them
      for (int j = 0; j < lanes; j += W) {
        const auto part = [=] { return open ? load_part(x + j, left - j) : load_closed(x + j, left - j); };
        store(last + j, left >= j + W ? load(x + j) : left > j ? part() : splat(open ? T(0) : -kInf<T>));
      }
      add(last, sums_);
    }
    if constexpr (!open) count = double(K + int64_t(fold_halves<lanes, Word>(closed_)) + (left ? lanes - left : 0));
    if constexpr (sizeof(T) == 4) return fold_halves<lanes, double>(sums_);
    Twice all{0, 0};
    for (int j = 0; j < lanes; ++j) all = all.plus({sums_[j / D][j % D], lost_[j / D][j % D]});
    return all.value();
  }

 private:
  __attribute__((always_inline)) void add(const T* entries, Vec<double>* sums) {
    for (int j = 0; j < parts; ++j) {
      Part v;
      std::memcpy(&v, entries + j * D, sizeof v);
      if constexpr (!open) {
        const Words hidden = v == -kInf<T>;
        v = (Part)((Words)v & ~hidden), closed_[j] += hidden;  // -1 where it is
      }
      if constexpr (low) lows_[j] = v < lows_[j] ? v : lows_[j];
      const Vec<double> seen = __builtin_convertvector(v, Vec<double>);
      if constexpr (sizeof(T) == 8) {  // of floats a sum of doubles has its digits as it is
        const Vec<double> total = sums[j] + seen, part = total - sums[j];
        lost_[j] += (sums[j] - (total - part)) + (seen - part), sums[j] = total;
      } else {
        sums[j] += seen;
      }
    }
  }

  Vec<double> sums_[parts] = {}, more_[parts] = {};
  [[maybe_unused]] Vec<double> lost_[parts] = {};
  [[maybe_unused]] Words closed_[parts] = {};
  [[maybe_unused]] Part lows_[parts];
};

template <bool open, bool low = false, class T>
inline double sum_row(const T* x, int64_t K, [[maybe_unused]] double& count, [[maybe_unused]] T* least = nullptr) {
  RowSum<T, open, low> sum;
  const bool asks = !foresees && K > kGroupLimit<T>;
  const int64_t turns = sum.twice && K <= kLaneLimit ? 0 : K / sum.turn * sum.turn;
  sum.add_turns(x, x + turns, asks);
  return sum.finish(x + turns, K - turns, K, count, asks, least);
}

// The sum of a long row and its survey, each part of it while it is in the first cache. Says whether all entries are finite.
template <class T>
inline bool survey_with_sum(const T* x, int64_t K, T* maxima, Survey<T>& all, double& sum) {
  using Sum = RowSum<T, true>;
  constexpr int64_t part = 1024, block = kBlock * kStep<T>;
  static_assert(part % block == 0 && part % Sum::turn == 0);
  const Row<T> row(x, K);
  Sum of;
  double none;
  const int64_t full = row.full * kStep<T>, turns = K / Sum::turn * Sum::turn;
  int64_t summed = 0;
  const auto sum_to = [&](int64_t end) { of.add_turns(x + summed, x + end, !foresees), summed = end; };
  for (int64_t at = 0; at < full; at += part) {
    sum_to(std::min(at + part, turns));
    survey<false>(x + at, std::min(part, full - at) / kStep<T>, kBlock, maxima + at / block * kWidth<T>, all);
  }
  sum_to(turns);
  sum = of.finish(x + turns, K - turns, K, none, false);
  if (row.steps > row.full) survey_tail(row, maxima, all);
  using Count = std::decay_t<decltype(all.open[0])>;
  const Count open[kWidth<T>] = {Count(-K)};  // a sum of lanes: none is hidden, if the sum is finite
  std::memcpy(&all.open, open, sizeof open);
  return std::isfinite(sum);
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
