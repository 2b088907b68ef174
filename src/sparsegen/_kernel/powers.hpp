// Entmax of any alpha but those with a way of their own, for the rows of a block together.
//
// With a = alpha - 1 a share is  p = [t - a (top - x)]_+ ^ (1/a),  where t, the power a of the largest share, is the unknown.
// Newton's method on the power a of their sum, convex for a <= 1, falls from any t at which the sum is too large, and who is
// without a share then stays without:
//   - the largest entries of some parts of the row give a first t, as fewer entries have a smaller sum;
//   - entries with a share at that t are packed, and searched in T's vectors, losing those that lose their share;
//   - what is left of them, a little more than the support, is settled in double, and its shares go back to their places.
// The rows of a block go pass by pass together: none waits for its own sums, and their steps share a vector. What becomes of a
// row does not depend on the others.
#pragma once

#include "entmax.hpp"
#include "rows.hpp"

namespace sparsegen::SPARSEGEN_ISA {

inline constexpr int kPowerSlots = 4;  // places that a row takes: its own, one for what is packed of it, two for doubles

// Sums of shares p, of p / u and of p / u^2, where u is the power a of p.
struct PowerSums {
  double shares, slope, bend;
};

template <class T>
struct PowerRow {
  const T* x;
  T *p, *kept;        // where its entries are packed
  double* shares;     // and the shares of those; in the end as T, from the same place
  double a, one_over_a;
  T top, cut;      // the entries above cut are packed
  T bound;         // those at or below it have no share
  int64_t n;       // so many are packed
  double t, rest;  // t + rest is the unknown: for small a the digits of the shares lie in 1 - t
  PowerSums sums;
  double off;  // how far from 1 the sum was
  bool open;   // to more passes
};

// A vector of as many entries of T as C has lanes.
template <class C, class T>
inline Vec<C> load_as(const T* x) {
  typedef T Part __attribute__((vector_size(kWidth<C> * sizeof(T))));
  Part v;
  std::memcpy(&v, x, sizeof v);
  return __builtin_convertvector(v, Vec<C>);
}

template <class C, class T>
inline void store_as(T* p, Vec<C> v) {
  typedef T Part __attribute__((vector_size(kWidth<C> * sizeof(T))));
  const Part part = __builtin_convertvector(v, Part);
  std::memcpy(p, &part, sizeof part);
}

// Shares of entries at a row's t.
template <class C>
struct Shares {
  Vec<C> top, a, one_over_a, t, rest;

  template <class T>
  explicit Shares(const PowerRow<T>& row)
      : top(splat(C(row.top))), a(splat(C(row.a))), one_over_a(splat(C(row.one_over_a))), t(splat(C(row.t))),
        rest(splat(C((row.t - double(C(row.t))) + row.rest))) {}

  // Also 1 / u, u the power a of a share; 1 where there is none.
  Vec<C> of(Vec<C> x, Vec<C>& steep) const {
    const Vec<C> q = (top - x) * a, d = t - q;
    const Mask<C> in = d > Vec<C>{};
    const Vec<C> u = select<C>(in, d, splat(C(1))), lost = ((u - t) + q) - rest;
    steep = C(1) / u;
    return keep<C>(in, vexp<C, true>((vlog<C, true>(u) - lost * steep) * one_over_a));
  }
};

// The sums at a row's t, computed in C. With `write` the shares are stored; else entries at or below its bound are dropped.
template <class C, bool write, class T>
inline void power_pass(PowerRow<T>& row) {
  constexpr int W = kWidth<C>;
  const Shares<C> at(row);
  const Vec<T> bound = splat(row.bound);
  const bool drop = !write && row.n > W;  // one vector is not made shorter
  Total<C> shares, slope;
  double bend = 0;
  int64_t kept = 0;
  for (int64_t i = 0; i < row.n;) {
    Vec<C> sum{}, steeps{}, bends{};
    for (const int64_t end = std::min(row.n, i + kSpanTurns * W); i < end; i += W) {
      const Vec<C> x = load_as<C>(row.kept + i);
      Vec<C> steep;
      const Vec<C> share = at.of(x, steep);
      const Vec<C> slant = share * steep;
      sum += share, steeps += slant;
      if constexpr (write) {
        bends = fma(slant, steep, bends);
        store(row.shares + i, share);
      } else if (drop) {
        kept += pack(row.kept + kept, x, bits_above<T>(x, bound));
      }
    }
    shares.add(lanes_sum(sum)), slope.add(lanes_sum(steeps));
    if constexpr (write) bend += lanes_sum(bends);
  }
  if (drop) row.n = kept, row.cut = row.bound, store(row.kept + kept, splat(-kInf<T>));
  row.sums = {shares.value(), slope.value(), bend};
}

// The shares at a row's t, from those a step `before` it: by their series where the step is small beside the power a of a share,
// else anew. They are left as T, where a positive share stays positive. Returns their sum.
template <class T>
inline double correct_shares(const PowerRow<T>& row, double before, double step) {
  constexpr int W = kWidth<double>;
  constexpr double limit = sizeof(T) == 4 ? 0x1p-8 : 0x1p-14, least = std::numeric_limits<T>::denorm_min();
  const Shares<double> at(row);
  const Vec<double> zero{}, one = splat(1.0), on = splat(step), first = splat(step * row.one_over_a);
  const Vec<double> second = splat((1 - row.a) / 2), third = splat((1 - 2 * row.a) / 3);
  T* const out = reinterpret_cast<T*>(row.shares);
  Total<double> total;
  for (int64_t i = 0; i < row.n;) {
    Vec<double> sum{};
    for (const int64_t end = std::min(row.n, i + kSpanTurns * W); i < end; i += W) {
      const Vec<double> x = load_as<double>(row.kept + i), old = load(row.shares + i), d = before - (at.top - x) * at.a;
      const Vec<double> e = first / select<double>(d > zero, d, one);
      Vec<double> share = old * fma(e, fma(second * e, fma(third, e, one), one), one);
      const Mask<double> far = (vmax(e, -e) > splat(limit)) | ((d <= zero) & (d + on > zero));
      if (lane_bits<double>(far)) {
        Vec<double> steep;
        share = select<double>(far, at.of(x, steep), share);
      }
      sum += share;
      store_as<double>(out + i, select<double>(share > zero, vmax(share, splat(least)), share));
    }
    total.add(lanes_sum(sum));
  }
  return total.value();
}

template <class T>
class PowerRows {
  static constexpr int W = kWidth<T>;
  static constexpr int kSample = 4 * W;              // so many maxima of parts of a row
  static constexpr int kSampled = 2 * kSample;       // longest row that is not worth them
  static constexpr double kFirst = 0x1p-3;           // what their sum may be off by
  static constexpr double kNear = 0x1p-6;            // the same of the sum of the row, before its last step in T
  // And of the shares that are written: those near the threshold are as far off, over their power a.
  static constexpr double kRight = sizeof(T) == 4 ? 0x1p-40 : 0x1p-51, kRounded = 0x1p-44;
  static constexpr double kMargin = 0x1p-14;         // more than rounding in T makes of a step, beside t

 public:
  // `room` has three places for each row, of `stride` entries: K and two vectors.
  PowerRows(int64_t K, T* room, int64_t stride) : K_(K), room_(room), stride_(stride) {}

  // Rows without an answer are done at once.
  void add(const T* x, T* p, double alpha) {
    PowerRow<T> row{x, p, room_ + 3 * m_ * stride_, doubles(room_ + (3 * m_ + 1) * stride_), alpha - 1, 1 / (alpha - 1), -kInf<T>,
                    -kInf<T>, -kInf<T>, 0, 1, 0, {1, 1, 0}, kInf<double>, true};
    if (!(alpha >= 1 && alpha < kInf<double>)) return void(std::fill_n(p, K_, std::numeric_limits<T>::quiet_NaN()));
    if (!look(row)) return;
    rows_[m_++] = row;
  }

  void run(bool stream) {
    if (K_ > kSampled) {
      search(kFirst);
      for (int i = 0; i < m_; ++i) pick(rows_[i]);
    }
    search(kNear);
    settle();
    for (int i = 0; i < m_; ++i) stream && aligned(rows_[i].p) ? put_back<true>(rows_[i]) : put_back<false>(rows_[i]);
  }

 private:
  // Each vector of a row, with what it does not fill at -inf.
  template <class F>
  void each(const T* x, F&& f) const {
    int64_t i = 0;
    for (; i + W <= K_; i += W) f(i, load(x + i));
    if (i < K_) f(i, load_closed(x + i, int(K_ - i)));
  }

  // The largest entry, and the entries to begin with.
  bool look(PowerRow<T>& row) const {
    Vec<T> top[4] = {splat(-kInf<T>), splat(-kInf<T>), splat(-kInf<T>), splat(-kInf<T>)};
    Mask<T> bad{};
    int64_t i = 0;
    const auto one = [&](Vec<T> v, Vec<T>& most) { bad |= v != v, most = vmax(v, most); };
    for (; i + kSample <= K_; i += kSample)
      for (int j = 0; j < 4; ++j) one(load(row.x + i + j * W), top[j]);
    for (int j = 0; i < K_; i += W, ++j) one(i + W <= K_ ? load(row.x + i) : load_closed(row.x + i, int(K_ - i)), top[j]);
    row.top = lanes_max(vmax(vmax(top[0], top[1]), vmax(top[2], top[3])));
    if (lane_bits<T>(bad) || row.top == kInf<T>) return std::fill_n(row.p, K_, std::numeric_limits<T>::quiet_NaN()), false;
    if (row.top == -kInf<T>) return std::fill_n(row.p, K_, T(0)), false;
    set_bound(row, 1);
    if (K_ <= kSampled || row.a > 1) return pick(row), true;
    for (int j = 0; j < 4; ++j) store(row.kept + j * W, top[j]);
    store(row.kept + kSample, splat(-kInf<T>));
    row.n = kSample;
    return true;
  }

  static void set_bound(PowerRow<T>& row, double t) { row.bound = std::max(row.bound, add_down(row.top, -t * row.one_over_a)); }

  void pick(PowerRow<T>& row) const {
    const Vec<T> cut = splat(row.cut = row.bound);
    row.n = 0;
    each(row.x, [&](int64_t, Vec<T> v) { row.n += pack(row.kept + row.n, v, bits_above<T>(v, cut)); });
    store(row.kept + row.n, splat(-kInf<T>));
    row.open = row.a <= 1;
  }

  // Newton's method in T, until each sum is `near` 1 and a step on.
  void search(double near) {
    for (int pass = 0, open = 1; open && pass < kMostPasses; ++pass) {
      open = 0;
      for (int i = 0; i < m_; ++i) {
        if (rows_[i].open) power_pass<T, false>(rows_[i]);
        shares_[i] = T(rows_[i].sums.shares), slopes_[i] = T(rows_[i].sums.slope), a_[i] = T(rows_[i].a);
      }
      for (int i = 0; i < m_; i += W) {
        const Vec<T> shares = load(shares_ + i);
        store(steps_ + i, vexpm1<T>(load(a_ + i) * -vlog<T>(shares)) * shares / load(slopes_ + i));
      }
      for (int i = 0; i < m_; ++i) {
        PowerRow<T>& row = rows_[i];
        if (!row.open) continue;
        const double before = row.t;
        row.t = std::max(before + steps_[i], before * 0x1p-10);
        set_bound(row, row.t + before * kMargin);
        row.open = std::fabs(row.sums.shares - 1) > near;
        open += row.open;
      }
    }
  }

  static double* doubles(T* room) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(room), size = sizeof(double);
    return reinterpret_cast<double*>((at + size - 1) / size * size);
  }

  // In double: sums, a step, and the shares after it. Those whose sum is right are the row's.
  void settle() {
    for (int i = 0; i < m_; ++i) (rows_[i].open = rows_[i].a <= 1) ? void() : level(rows_[i]);
    for (int pass = 0, open = 1; open && pass < kMostPasses; ++pass) {
      open = 0;
      for (int i = 0; i < m_; ++i)
        if (rows_[i].open) power_pass<double, true>(rows_[i]);
      for (int i = 0; i < m_; ++i)
        if (rows_[i].open) open += rows_[i].open = !move_on(rows_[i]);
    }
  }

  // A step, to the third order; true where the sum is right then, or as near as rounding lets it come.
  static bool move_on(PowerRow<T>& row) {
    const PowerSums& sums = row.sums;
    const double newton = -row.a * (sums.shares - 1) / sums.slope, before = row.t;
    const double curve = (1 - row.a) * row.one_over_a / 2 * newton * sums.bend / sums.slope;
    const double step = std::max(newton * (1 - std::clamp(curve, -0.25, 0.25)), before * (0x1p-10 - 1));
    row.t = before + step;
    const double part = row.t - before;
    row.rest += (before - (row.t - part)) + (step - part);
    row.sums.shares = correct_shares(row, before, step);
    const double off = std::fabs(row.sums.shares - 1);
    if (off <= kRight || (off <= kRounded && off >= row.off)) return true;
    row.off = off;
    return false;
  }

  // a > 1: the sum rises with t, but not evenly. Newton's steps within a bracket that is halved, in ratio, every fourth time.
  static void level(PowerRow<T>& row) {
    const double a = row.a;
    double low = std::max(std::exp(-a * std::log(double(row.n))), std::numeric_limits<double>::min()), high = 1;
    row.t = low;
    for (int pass = 1; pass < 2 * kMostPasses && high - low > 0x1p-52 * high; ++pass) {
      power_pass<double, true>(row);
      (row.sums.shares < 1 ? low : high) = row.t;
      const double next = row.t + (1 - row.sums.shares) * a / row.sums.slope;
      row.t = next > low && next < high && pass % 4 ? next : std::sqrt(low) * std::sqrt(high);
      if (!(row.t > low && row.t < high)) break;
    }
    row.t = high;
    power_pass<double, true>(row);
    row.sums.shares = correct_shares(row, high, 0);
  }

  // The shares to the places of their entries, 0 to others. `p` may be `x`.
  template <bool stream>
  void put_back(const PowerRow<T>& row) const {
    const Vec<T> cut = splat(row.cut), scale = splat(T(1 / row.sums.shares));
    const T* from = reinterpret_cast<const T*>(row.shares);
    each(row.x, [&](int64_t at, Vec<T> v) {
      const unsigned bits = bits_above<T>(v, cut);
      const Vec<T> p = unpack(from, bits) * scale;
      from += __builtin_popcount(bits);
      if (at + W <= K_) put<stream>(row.p + at, p);
      else store_part(row.p + at, p, int(K_ - at));
    });
  }

  int64_t K_;
  T* room_;
  int64_t stride_;
  int m_ = 0;
  PowerRow<T> rows_[kGroup];
  T shares_[kGroup], slopes_[kGroup], a_[kGroup], steps_[kGroup];
};

}  // namespace sparsegen::SPARSEGEN_ISA
