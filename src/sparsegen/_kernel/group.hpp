// Short rows, W of them together, a lane of a vector for what is known of each: Newton's method of simplex.hpp in lockstep.
//
// A step of it is a chain of dependent operations after each pass over a row; for one row alone the processor would wait for
// it. Two passes find a set of entries, the first at the guess, the second where the guess leads when corrected by the
// curvature of f; the third writes the probabilities that set gives, and counts them. Equal counts mean that the set was
// right, as the sets are nested. The few rows for which it was not climb on. Rows are told apart from beginning to end: the
// bits of one do not depend on its neighbours.
//
// The passes see the rows by a Layout of layouts.hpp.
#pragma once

#include "layouts.hpp"

namespace sparsegen::SPARSEGEN_ISA {

// The radii of W rows, 1 where it takes project_any.
template <class T>
struct LaneRadii {
  T r[kWidth<T>], scale[kWidth<T>];
  unsigned plain = 0;
  // `radius` has room for W, whatever n is.
  __attribute__((noinline)) void set(const double* radius, int n) {
    constexpr int D = kWidth<double>;
    constexpr double big = kBigRadius<T>;
    const Vec<double> one = splat(1.0);
    plain = 0;
    for (int i = 0; i < n; i += D) {
      const Vec<double> given = load(radius + i);
      const Mask<double> ok = (given >= splat(1 / big)) & (given <= splat(big));
      const Vec<double> kept = select<double>(ok, given, one);
      store_narrow(r + i, kept), store_narrow(scale + i, one / kept);
      plain |= lane_bits<double>(ok) << i;
    }
    plain &= n < 32 ? (1u << n) - 1 : ~0u;
  }
};

// A layout's first look at its rows, of which entries may be known to be `hidden`. The sums are of the `size` others, so that rows
// with hidden entries start from a mean and spread as good as other rows'. Says whether -inf were `found` among the scores.
template <bool hidden, class T, class Layout>
__attribute__((always_inline)) inline Look<T> look_past_hidden(Layout& layout, Vec<T>& size, bool& found) {
  const Vec<T> most = size;
  Look<T> all = layout.template look<hidden>(size);
  const Mask<T> some = (all.sum == splat(-kInf<T>)) & (all.top > splat(-kInf<T>));
  if (lane_bits<T>(some)) {
    Vec<T> count;
    const Look<T> open = layout.look_again(lane_bits<T>(some), count);
    all.sum = select<T>(some, open.sum, all.sum), all.squares = select<T>(some, open.squares, all.squares);
    size = select<T>(some, count, size);
  }
  found = Layout::kMasked ? hidden || lane_bits<T>(some) : lane_bits<T>(size < most) != 0;
  const Mask<T> any = all.top > splat(-kInf<T>);  // else there is nothing to choose
  if (hidden || Layout::kMasked) all.sum = select<T>(any, all.sum, splat(-kInf<T>));
  return all;
}

template <class T, class Layout>
class Group {
 public:
  Group(Layout& layout, const LaneRadii<T>& radii, int64_t K)
      : layout_(layout), K_(K), r_(load(radii.r)), scale_(load(radii.scale)), plain_(radii.plain) {}

  // The rows whose radii are within the range of groups, one bit each.
  unsigned plain() const { return plain_; }

  // The stages, to be called in this order; rows that look() has sorted need no first(). Are -inf among the scores likely? A wrong
  // guess costs a second look, and changes no bit.
  template <bool hidden>
  __attribute__((noinline)) void look() {
    Look<T> all;
    Vec<T> start;
    sorted_ = layout_.sorted(all, [&](auto n, Vec<T>* v) { sorted_cut<n.value, T>(v, r_, start, last_); });
    steps_ = sorted_;  // the threshold of a set lies below the row's, as a step's end does
    if (!sorted_) {
      Vec<T> size = splat(T(K_));
      all = look_past_hidden<hidden, T>(layout_, size, hidden_);
      mean_ = all.sum / size, variance_ = all.squares / size - mean_ * mean_;
      const Vec<T> spread = vsqrt(variance_);
      start = layout_.start(LinearStart<T>{r_, spread, guess<T>(mean_, spread, r_ / (spread * size))});
    }
    top_ = all.top, low_ = add_down_lanes<T>(top_, -r_);
    const Mask<T> finite = all.sum - all.sum == Vec<T>{}, some = (all.sum == splat(-kInf<T>)) & (top_ > splat(-kInf<T>));
    finite_ = lane_bits<T>(finite | some);  // rows that were sorted may have hidden entries
    tau_ = between(start);
  }

  // Were there any?
  bool hidden() const { return hidden_; }

  void first() {
    if (sorted_) return;
    pass(Turn::first);
    const Vec<T> one = splat(T(1)), over = sum_ / count_;
    const Vec<T> bend = one + step_ * vmin((over + tau_ - mean_) / variance_, one / over) * T(0.5);
    tau_ = between(tau_ + step_ * select<T>((bend > splat(T(0.5))) & (bend < splat(T(2))), bend, one));
  }

  void second() {
    pass(Turn::second);
    if (Layout::kWrittenTogether && !sorted_) climb();
  }

  // All of these for rows without negative entries, onto the larger parts of their sums: Newton's first step, from 0, needs no
  // pass, and where it leaves every entry above it there is nothing more to find.
  void share(Vec<T> sum) {
    const Vec<T> size = splat(T(K_)), start = (sum - r_) / size, one = splat(T(1));
    top_ = splat(kInf<T>), low_ = -r_, finite_ = ~0u, tau_ = start;
    pass(Turn::second);
    const Mask<T> all = count_ == size;
    last_ = select<T>(all, size, last_), hope_ = ~lane_bits<T>(all);
    const Vec<T> bend = bend_of_share<T>(start, step_, count_, size - count_, sum_ - (sum - size * start));
    const Vec<T> next = tau_ + step_ * select<T>((bend > splat(T(0.5))) & (bend < splat(T(2))), bend, one);
    tau_ = select<T>(all, start, next);
    if (!(hope_ & plain_)) return;
    pass(Turn::later);
    if (!Layout::kWrittenTogether) return;
    ++steps_, last_ = select<T>(all, last_, count_);  // as climb() does, but for rows that have arrived
    tau_ = select<T>(all, start, between(add_down_lanes<T>(tau_, step_)));
    pass(Turn::later);
  }

  // Writes the rows `left`, one bit each, and returns those left undone: they need project_any, or more patience.
  template <bool stream>
  unsigned write(unsigned left, T* const* dst, double* threshold) {
    for (unsigned tried = 0;;) {
      const unsigned sure = lane_bits<T>(settled()), hope = left & plain_ & finite_;
      // Where the number below the largest entry is more than r away, that entry is alone.
      const Mask<T> far = sum_ > r_ + r_, below = low_ > splat(-kInf<T>);  // is there a number below the largest entry?
      const Mask<T> alone = far & below & (count_ == splat(T(1))) & (tau_ == low_);
      const unsigned near = hope & lane_bits<T>(~far | alone);
      const Recipe<T> recipe(tau_, select<T>(alone, Vec<T>{}, step_), r_ * kRounding<T> / count_,
                             select<T>(alone, splat(T(1)) / sum_, scale_), count_);
      const unsigned done = near ? near & layout_.template write<stream>(near, sure, recipe, dst) : 0;
      for (int i = 0; threshold && i < kWidth<T>; ++i)
        if (done >> i & 1) threshold[i] = alone[i] ? double(top_[i]) - double(r_[i]) : double(tau_[i]) + double(step_[i]);
      left &= ~done, tried |= near, hope_ = hope & ~done & ~sure;
      if (hope_ && steps_ < kMostSteps) {
        climb();
        continue;
      }
      if (left & tried) layout_.put_back(left & tried, dst);  // what is left is projected from its scores
      return left;
    }
  }

 private:
  static constexpr int kMostSteps = kMostPasses;

  // Has the set been found? Newton's steps land below the threshold and from there only climb, so the sets only shrink: equal
  // counts are equal sets. From the second step on a count can only rise where rounding is all that is left of f: see
  // is_rounding().
  Mask<T> settled() const {
    const Mask<T> same = count_ == last_;
    if (steps_ < 2) return same;
    const Vec<T> size = vmax(step_, -step_), slack = vmax(tau_, -tau_) * kGrid<T> + r_ * kBlur<T> / count_;
    return same | ((count_ > last_) & (size <= slack));
  }

  Vec<T> between(Vec<T> t) const { return select<T>((t > low_) & (t < top_), t, low_); }

  void climb() {
    ++steps_, last_ = count_;
    tau_ = between(add_down_lanes<T>(tau_, step_));
    pass(Turn::later);
  }

  void pass(Turn turn) {
    const Above<T> found = layout_.above(tau_, hope_, turn);
    sum_ = found.sum, count_ = found.count;
    step_ = (sum_ - r_) / count_;
  }

  Layout& layout_;
  int64_t K_;
  Vec<T> r_, scale_, mean_, variance_, top_, low_, tau_, sum_, count_, step_;
  Vec<T> last_ = splat(T(-1));  // size of the set whose Newton step led to tau_: found again, it is the right one
  unsigned plain_, finite_ = 0, hope_ = ~0u;
  int steps_ = 0;  // of Newton's, since tau_ was a guess
  bool sorted_ = false, hidden_ = false;
};

}  // namespace sparsegen::SPARSEGEN_ISA
