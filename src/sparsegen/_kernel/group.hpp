// Short rows, W of them together, a lane of a vector for what is known of each: Newton's method of simplex.hpp in lockstep.
//
// A step of it is a chain of dependent operations after each pass over a row; for one row alone the processor would wait for
// it. Two passes find a set of entries, the first at the guess, the second where the guess leads when corrected by the
// curvature of f; the third writes the probabilities that set gives, and counts them. Equal counts mean that the set was
// right, as the sets are nested. The few rows for which it was not climb on. Rows are told apart from beginning to end: the
// bits of one do not depend on its neighbours.
//
// The passes see the rows by a Layout: one by one where they stand (ByRow), or transposed, K x W (ByLane in lanes.hpp).
#pragma once

#include "simplex.hpp"

namespace sparsegen::SPARSEGEN_ISA {

// The radii of W rows, 1 where it takes project_any.
template <class T>
struct LaneRadii {
  T r[kWidth<T>], scale[kWidth<T>];
  unsigned plain = 0;
  __attribute__((noinline)) void set(const double* radius, int n) {
    plain = 0;
    for (int i = 0; i < n; ++i) {
      const bool ok = plain_radius<T>(radius[i]);
      r[i] = ok ? T(radius[i]) : T(1), scale[i] = ok ? T(1 / radius[i]) : T(1);
      plain |= unsigned(ok) << i;
    }
  }
};

template <class T>
inline Vec<T> next_below_lanes(Vec<T> v) {
  const Mask<T> bits = (Mask<T>)v, one = Mask<T>{} + 1;
  const Mask<T> positive = v > Vec<T>{}, negative = v < Vec<T>{};
  const Mask<T> moved = bits + (positive & -one) + (negative & one);
  const Vec<T> under_zero = splat(-std::numeric_limits<T>::denorm_min());
  return select<T>(positive | negative, (Vec<T>)moved, under_zero);
}

template <class T>
inline Vec<T> add_down_lanes(Vec<T> tau, Vec<T> step) {
  const Vec<T> next = tau + step, b = next - tau;
  const Vec<T> error = (tau - (next - b)) + (step - b);
  return select<T>(error < Vec<T>{}, next_below_lanes<T>(next), next);
}

// What a layout's first look at its rows finds.
template <class T>
struct Look {
  Vec<T> top, sum, squares;
};

// What a pass over tau finds: the excess over it, the number of entries above it.
template <class T>
struct Above {
  Vec<T> sum, count;
};

// How the probabilities of a set of `count` entries are made: [x - tau - rest]_+ * scale, 0 up to the rounding error.
template <class T>
struct Recipe {
  alignas(kVectorBytes) T tau[kWidth<T>], rest[kWidth<T>], error[kWidth<T>], scale[kWidth<T>], count[kWidth<T>];
  Recipe(Vec<T> t, Vec<T> c, Vec<T> e, Vec<T> s, Vec<T> n) {
    store(tau, t), store(rest, c), store(error, e), store(scale, s), store(count, n);
  }
};

template <class T, class Layout>
class Group {
 public:
  Group(Layout& layout, const LaneRadii<T>& radii, int64_t K)
      : layout_(layout), K_(K), r_(load(radii.r)), scale_(load(radii.scale)), plain_(radii.plain) {}

  // The stages, to be called in this order. Calls for two groups in turn keep the processor busy: while one waits for the
  // end of a pass, the other's is under way.
  void look() {
    Look<T> all;
    Vec<T> start;
    sorted_ = layout_.sorted(r_, all, start, last_);
    if (!sorted_) {
      const Vec<T> size = splat(T(K_));
      all = layout_.look();
      mean_ = all.sum / size, variance_ = all.squares / size - mean_ * mean_;
      const Vec<T> spread = vsqrt(variance_);
      start = guess<T>(mean_, spread, r_ / (spread * size));
    }
    top_ = all.top, low_ = add_down_lanes<T>(top_, -r_);
    const Mask<T> finite = all.sum - all.sum == Vec<T>{}, hidden = (all.sum == splat(-kInf<T>)) & (top_ > splat(-kInf<T>));
    finite_ = lane_bits<T>(finite | hidden);
    tau_ = between(start);
  }

  void first() {
    if (sorted_) return;
    pass(false);
    const Vec<T> one = splat(T(1)), bend = one + step_ * (sum_ / count_ + tau_ - mean_) / (variance_ + variance_);
    tau_ = between(tau_ + step_ * select<T>((bend > splat(T(0.5))) & (bend < splat(T(2))), bend, one));
  }

  void second() {
    pass(true);
    if (Layout::kWrittenTogether && !sorted_) climb();
  }

  // Writes the rows `left`, one bit each, and returns those left undone: they need project_any, or more patience.
  template <bool stream>
  unsigned write(unsigned left, T* const* dst, double* threshold) {
    for (int turn = 0;; ++turn) {
      const unsigned sure = lane_bits<T>(count_ == last_), hope = left & plain_ & finite_;
      // Where the number below the largest entry is more than r away, that entry is alone.
      const Mask<T> far = sum_ > r_ + r_, alone = far & (count_ == splat(T(1))) & (tau_ == low_);
      const unsigned near = hope & lane_bits<T>(~far | alone);
      const Recipe<T> recipe(tau_, select<T>(alone, Vec<T>{}, step_), r_ * kRounding<T> / count_,
                             select<T>(alone, splat(T(1)) / sum_, scale_), count_);
      const unsigned done = near ? near & layout_.template write<stream>(near, sure, recipe, dst) : 0;
      for (int i = 0; threshold && i < kWidth<T>; ++i)
        if (done >> i & 1) threshold[i] = alone[i] ? double(top_[i]) - double(r_[i]) : double(tau_[i]) + double(step_[i]);
      left &= ~done, hope_ = hope & ~done & ~sure;
      if (!hope_ || turn == kTurns) return left;
      climb();
    }
  }

 private:
  static constexpr int kTurns = 24;  // climbs before a row is given up

  Vec<T> between(Vec<T> t) const { return select<T>((t > low_) & (t < top_), t, low_); }

  void climb() {
    last_ = count_;
    tau_ = between(add_down_lanes<T>(tau_, step_));
    pass(false);
  }

  void pass(bool ahead) {
    const Above<T> found = layout_.above(tau_, hope_, ahead);
    sum_ = found.sum, count_ = found.count;
    step_ = (sum_ - r_) / count_;
  }

  Layout& layout_;
  int64_t K_;
  Vec<T> r_, scale_, mean_, variance_, top_, low_, tau_, sum_, count_, step_;
  Vec<T> last_ = splat(T(-1));  // size of the set whose Newton step led to tau_: found again, it is the right one
  unsigned plain_, finite_ = 0, hope_ = ~0u;
  bool sorted_ = false;
};

// n <= W rows where they stand, of at least W entries.
template <class T>
class ByRow {
  static constexpr int W = kWidth<T>;

 public:
  static constexpr bool kWrittenTogether = false;

  // `n` rows; those that come next stand `ahead` entries on, and are asked for in time.
  ByRow(const T* const* rows, int n, int64_t K, int64_t ahead)
      : rows_(rows), n_(n), K_(K), whole_(K / W * W), ahead_(ahead), far_(K > kNear), tail_(last_lanes<T>(int(K - whole_))) {
    for (int i = n; i < W; ++i) top_[i] = sum_[i] = squares_[i] = count_[i] = Vec<T>{};
  }

  Look<T> look() {
    for (int i = 0; i < n_; ++i) look_at(rows_[i], i);
    return {fold_rows<T, Larger>(top_), fold_rows<T, Sum>(sum_), fold_rows<T, Sum>(squares_)};
  }

  bool sorted(Vec<T>, Look<T>&, Vec<T>&, Vec<T>&) { return false; }

  Above<T> above(Vec<T> tau, unsigned rows, bool ahead) {
    alignas(kVectorBytes) T at[W];
    store(at, tau);
    for (int i = 0; i < n_; ++i) {
      if (!(rows >> i & 1)) continue;
      if (!ahead) sum_over<false, false>(rows_[i], at[i], i);
      else if (far_) sum_over<true, true>(rows_[i], at[i], i);
      else sum_over<true, false>(rows_[i], at[i], i);
    }
    return {fold_rows<T, Sum>(sum_), fold_rows<T, Sum>(count_)};
  }

  // Returns the rows that are done: those with as many probabilities as the set has entries, and the `sure` ones.
  template <bool stream>
  unsigned write(unsigned rows, unsigned sure, const Recipe<T>& recipe, T* const* dst) {
    unsigned done = sure;
    for (int i = 0; i < n_; ++i) {
      if (!(rows >> i & 1)) continue;
      const T* x = rows_[i];
      const T tau = recipe.tau[i], rest = recipe.rest[i], error = recipe.error[i];
      // A row that is written over itself must be right the first time.
      if (x == dst[i] && !(sure >> i & 1) && T(count_of(x, tau, rest, error)) != recipe.count[i]) continue;
      const int64_t n = write_row<stream>(x, tau, rest, error, recipe.scale[i], dst[i]);
      done |= unsigned(T(n) == recipe.count[i]) << i;
    }
    return done;
  }

 private:
  static constexpr int64_t kNear = 128;  // longer rows fill the first cache: what comes next is brought to the second

  void look_at(const T* x, int i) {
    Vec<T> t0 = splat(-kInf<T>), t1 = t0, s0{}, s1{}, q0{}, q1{};
    const T *const end = x + whole_, *const last = x + K_ - W;
    for (const T* stop = x + whole_ / (4 * W) * (4 * W); x != stop; x += 4 * W)
      for (int j = 0; j < 4 * W; j += 2 * W) {
        const Vec<T> v0 = load(x + j), v1 = load(x + j + W);
        t0 = vmax(v0, t0), s0 += v0, q0 = fma(v0, v0, q0);
        t1 = vmax(v1, t1), s1 += v1, q1 = fma(v1, v1, q1);
      }
    for (; x != end; x += W) {
      const Vec<T> v = load(x);
      t0 = vmax(v, t0), s0 += v, q0 = fma(v, v, q0);
    }
    if (whole_ < K_) {
      const Vec<T> v = load(last), part = keep<T>(tail_, v);
      t1 = vmax(v, t1), s1 += part, q1 = fma(part, part, q1);
    }
    top_[i] = vmax(t0, t1), sum_[i] = s0 + s1, squares_[i] = q0 + q1;
  }

  // The excess is summed as min(tau - x, 0), which takes x from memory without an instruction to load it.
  template <bool ahead, bool far>
  void sum_over(const T* x, T tau, int i) {
    const Vec<T> t = splat(tau), zero{};
    Vec<T> s0{}, s1{}, s2{}, s3{};
    Mask<T> n0{}, n1{};
    const T *const end = x + whole_, *const last = x + K_ - W;
    const int64_t next = ahead_;
    for (const T* stop = x + whole_ / (4 * W) * (4 * W); x != stop; x += 4 * W) {
      const Vec<T> d0 = t - load(x), d1 = t - load(x + W), d2 = t - load(x + 2 * W), d3 = t - load(x + 3 * W);
      s0 += vmin(d0, zero), n0 += d0 < zero;
      s1 += vmin(d1, zero), n1 += d1 < zero;
      s2 += vmin(d2, zero), n0 += d2 < zero;
      s3 += vmin(d3, zero), n1 += d3 < zero;
      for (int j = 0; ahead && j < 4 * W; j += kLine<T>) far ? prefetch_far(x + j + next) : prefetch(x + j + next);
    }
    for (; x != end; x += W) {
      const Vec<T> d = t - load(x);
      s0 += vmin(d, zero), n0 += d < zero;
    }
    if (whole_ < K_) {
      const Vec<T> d = keep<T>(tail_, t - load(last));
      s1 += vmin(d, zero), n1 += d < zero;
    }
    sum_[i] = -((s0 + s1) + (s2 + s3)), count_[i] = __builtin_convertvector(-(n0 + n1), Vec<T>);
  }

  template <bool stream>
  int64_t write_row(const T* x, T tau, T rest, T error, T scale, T* p) const {
    const Vec<T> t = splat(tau), c = splat(rest), e = splat(-error), s = splat(-scale), last = load(x + K_ - W);
    Mask<T> n0{}, n1{};
    const T* const end = x + whole_;
    T* const last_p = p + K_ - W;
    const int64_t next = ahead_;
    const auto one = [&](const T* x, T* p, Mask<T>& n) {
      const Vec<T> d = (t - load(x)) + c;
      const Mask<T> on = d < e;
      n += on, put<stream>(p, keep<T>(on, d * s));
    };
    for (const T* stop = x + whole_ / (4 * W) * (4 * W); x != stop; x += 4 * W, p += 4 * W) {
      one(x, p, n0), one(x + W, p + W, n1), one(x + 2 * W, p + 2 * W, n0), one(x + 3 * W, p + 3 * W, n1);
      for (int j = 0; !stream && j < 4 * W; j += kLine<T>) prefetch_to_write(p + j + next);
    }
    for (; x != end; x += W, p += W) one(x, p, n0);
    if (whole_ < K_) {  // overlaps the vector before it
      const Vec<T> d = (t - last) + c;
      const Mask<T> on = d < e;
      n1 += on & tail_, store(last_p, keep<T>(on, d * s));
    }
    return -lanes_sum(n0 + n1);
  }

  int64_t count_of(const T* x, T tau, T rest, T error) const {
    const Vec<T> t = splat(tau), c = splat(rest), e = splat(error);
    Mask<T> n{};
    for (int64_t k = 0; k < whole_; k += W) n -= ((load(x + k) - t) - c) > e;
    if (whole_ < K_) n -= (((load(x + K_ - W) - t) - c) > e) & tail_;
    return lanes_sum(n);
  }

  const T* const* rows_;
  int n_;
  int64_t K_, whole_, ahead_;
  bool far_;
  Mask<T> tail_;  // the lanes of the last W entries that whole vectors have not covered
  Vec<T> top_[W], sum_[W], squares_[W], count_[W];  // of each row, lanes not yet folded
};

}  // namespace sparsegen::SPARSEGEN_ISA
