// Entmax with alpha = 1.5 of rows that are short, W of them together: the search of entmax.hpp in lockstep, a lane for each row.
//
// As in group.hpp the first pass is at a guess, the second where the guess leads when corrected by the curvature, and the third
// writes what the second one's set gives and counts it: equal counts are equal sets, as sets are nested. Here the threshold of a
// set solves a quadratic equation. Rows whose set was not the right one climb on. Those for which a few passes do not do, those
// with an entry at the threshold and those without an answer are left to root_row(): what becomes of a row does not depend on its
// neighbours.
#pragma once

#include "entmax.hpp"
#include "group.hpp"

namespace sparsegen::SPARSEGEN_ISA {

// Puts N entries a lane in order, and returns their threshold: entry k is in while the squares of what all larger ones exceed it
// by leave room below 4. From entry to entry, d lower, that sum of squares grows by d times what the larger ones exceed both by,
// so nothing cancels: what is left below the last entry that is in solves a quadratic equation, right to a few units in the last
// place.
template <int N, class T>
inline Vec<T> sorted_root(Vec<T>* v) {
  sort_lanes<N, T>(v, std::make_index_sequence<size_t(Network<N>().size)>());
  Vec<T> room = splat(T(kSquares)), over{};  // the sum of what all larger entries exceed the one at hand by
  Vec<T> last = v[0], left = room, sum{}, count = splat(T(1));  // the largest is always in
  for (int k = 1; k < N; ++k) {
    const Vec<T> d = v[k - 1] - v[k], next = fma(d, splat(T(k)), over);
    room = fma(-d, over + next, room), over = next;
    const Mask<T> in = room > Vec<T>{};
    last = select<T>(in, v[k], last), left = select<T>(in, room, left), sum = select<T>(in, over, sum);
    count = select<T>(in, splat(T(k + 1)), count);
  }
  return last - left / (sum + vsqrt(fma(count, left, sum * sum)));
}

// The threshold of the heads, a subset of the row, bounds the row's from below. It is closer than the guess unless the scores lie
// so close together that most entries have a share.
template <class T>
struct RootStart {
  Vec<T> spread, guess;

  template <int N>
  Vec<T> from(const Vec<T>* heads) const {
    const Mask<T> dense = spread < splat(T(0.375 * kRoot));
    if (lane_bits<T>(~dense) == 0) return guess;
    Vec<T> head[N];
    std::copy_n(heads, N, head);
    return select<T>(dense, guess, sorted_root<N, T>(head));
  }
};

template <class T, class Layout>
class RootGroup {
 public:
  RootGroup(Layout& layout, int64_t K) : layout_(layout), K_(K) {}

  // The stages, to be called in this order. Are -inf among the scores likely? See Group::look().
  template <bool hidden>
  void look() {
    Look<T> all;
    Vec<T> start;
    sorted_ = layout_.sorted(all, [&](auto n, Vec<T>* v) { start = sorted_root<n.value, T>(v); });
    if (!sorted_) {
      Vec<T> size = splat(T(K_));
      all = look_past_hidden<hidden, T>(layout_, size, hidden_);
      mean_ = all.sum / size, variance_ = all.squares / size - mean_ * mean_;
      const Vec<T> spread = vsqrt(variance_), share = T(kSquares) / (size * variance_);
      start = layout_.start(RootStart<T>{spread, guess_root<T>(mean_, spread, share)});
    }
    top_ = all.top, low_ = add_down_lanes<T>(top_, splat(T(-kRoot)));
    // Differences from larger numbers have too few digits; root_row() takes them from the largest entry. Rows that were sorted may
    // have hidden entries.
    const Mask<T> numbers = (all.sum - all.sum == Vec<T>{}) | (all.sum == splat(-kInf<T>));
    plain_ = lane_bits<T>(numbers & (vmax(top_, -top_) <= splat(T(1024 * kRoot))));
    tau_ = between(start);
  }

  void search() {
    if (!sorted_) first();
    pass(Turn::second);
  }

  // Writes those of `left`, one bit each, that it has an answer for; returns the others.
  template <bool stream>
  unsigned write(unsigned left, T* const* dst) {
    unsigned tried = 0;
    for (int climbs = 0;; ++climbs) {
      hope_ = left & plain_;
      // Squares far larger than 4 have too few digits of what they exceed it by.
      const unsigned near = hope_ & lane_bits<T>(real_ & (over_ <= splat(T(kSquares))));
      const Vec<T> half = splat(T(1 / kRoot));
      const Recipe<T> recipe(tau_ * half, rest_ * half, kRootDoubt<T> * half / sum_, half, count_);
      if (near) left &= ~(near & layout_.template write<stream, Squarely>(near, 0, recipe, dst)), tried |= near;
      hope_ = left & plain_;
      if (!hope_ || climbs == kClimbs) break;
      climb();
    }
    if (left & tried) layout_.put_back(left & tried, dst);  // what is left is worked from its scores
    return left;
  }

  // The rows that have an answer here at all, one bit each.
  unsigned plain() const { return plain_; }

  // Were there any?
  bool hidden() const { return hidden_; }

 private:
  static constexpr int kClimbs = 4;  // more help nobody but rows with an entry at the threshold

  // The squares over t have the third derivative -2 density; for normal scores the density at tau is known from the sums.
  void first() {
    pass(Turn::first);
    const Vec<T> density = vmax((sum_ + (tau_ - mean_) * count_) / variance_, Vec<T>{}), bend = density * rest_ * rest_;
    const Vec<T> step = rest_ - rest_ * bend / (T(3) * (bend + T(2) * (sum_ - count_ * rest_)));
    tau_ = between(tau_ + select<T>(real_ & (step == step), step, rest_));
  }

  Vec<T> between(Vec<T> t) const { return select<T>((t > low_) & (t < top_), t, low_); }

  void climb() {
    tau_ = between(add_down_lanes<T>(tau_, rest_));
    pass(Turn::later);
  }

  // A pass over the entries above tau_: their number, and how far on the threshold of their set is. Where they give none, for
  // they are too far apart, rest_ is Newton's step.
  void pass(Turn turn) {
    const Vec<T> zero{};
    const Above<T> found = layout_.template above<true>(tau_, hope_, turn);
    sum_ = found.sum, count_ = found.count, over_ = found.over;
    const Vec<T> inside = sum_ * sum_ - count_ * over_;
    real_ = inside >= zero;
    rest_ = over_ / (sum_ + vsqrt(vmax(inside, zero)));
    if (lane_bits<T>(real_) == lane_bits<T>(~Mask<T>{})) return;
    const Vec<T> squares = over_ + T(kSquares), newton = (squares - vsqrt(squares) * T(kRoot)) / sum_;
    rest_ = select<T>(real_, rest_, newton);
  }

  Layout& layout_;
  int64_t K_;
  Vec<T> mean_, variance_, top_, low_, tau_, sum_, count_, over_, rest_;
  Mask<T> real_;
  unsigned plain_ = 0, hope_ = ~0u;
  bool sorted_ = false, hidden_ = false;
};

}  // namespace sparsegen::SPARSEGEN_ISA
