// Entmax with alpha = 1.5 of short rows, W of them together: the search of entmax.hpp in lockstep, a lane for each row.
//
// The set of entries less than 2 below the largest holds all that matter. The threshold that a set gives, by a quadratic
// equation, gives the next set; sets are nested, so one with as many entries as the last is the last, and its threshold the
// row's. Three or four passes do. Rows for which they do not, those with an entry at the threshold and those without an answer
// are left to root_row(): what becomes of a row does not depend on its neighbours.
#pragma once

#include "entmax.hpp"
#include "lanes.hpp"

namespace sparsegen::SPARSEGEN_ISA {

template <class T>
class RootLanes {
  static constexpr int W = kWidth<T>;
  static constexpr int kPasses = 6;
  static constexpr int kTurn = 16;  // entries whose squares are summed before the sum is taken over with all its digits

 public:
  // n <= W rows of K >= kTile entries; `lanes` has room for 2 K vectors.
  RootLanes(const T* const* rows, int n, int64_t K, T* lanes) : K_(K), x_(lanes), p_(lanes + K * W), rows_((1u << n) - 1) {
    const T* all[W];
    for (int i = 0; n < W && i < W; ++i) all[i] = rows[i < n ? i : 0];
    to_lanes(n < W ? all : rows, K, lanes);
  }

  // Passes that every group makes: ask(i) is called in each, to ask for a part of the memory that is needed next.
  static constexpr int kAskings = 4;

  // Writes the rows it has an answer for; returns the others, one bit each.
  template <class F>
  unsigned run(T* const* dst, F&& ask) {
    ask(0);
    const unsigned answered = search(ask) & rows_;
    if (!answered) return rows_;
    ask(3);
    const unsigned right = answered & lane_bits<T>(share() == count_);
    if (right) from_lanes<T>(K_, dst, right, [&](int64_t at, bool) { return load(p_ + at); });
    return rows_ & ~right;
  }

 private:
  // Finds tau_, rest_ and count_; returns the lanes that have them.
  template <class F>
  unsigned search(F&& ask) {
    Vec<T> top = splat(-kInf<T>);
    Mask<T> numbers = ~Mask<T>{};
    for (int64_t k = 0; k < K_ * W; k += W) {
      const Vec<T> v = load(x_ + k);
      top = vmax(v, top), numbers &= v == v;
    }
    // Differences from larger numbers have too few digits; root_row() takes them from the largest entry.
    const Mask<T> plain = numbers & (vmax(top, -top) <= splat(T(1024 * kRoot)));
    const Vec<T> low = add_down_lanes<T>(top, splat(T(-kRoot)));
    Vec<T> last = splat(T(-1));
    tau_ = low;
    for (int pass = 0; pass < kPasses; ++pass) {
      if (pass < 2) ask(1 + pass);
      const Mask<T> found = look() & (count_ == last);
      if (!lane_bits<T>(plain & ~found)) return lane_bits<T>(plain);
      if (pass + 1 == kPasses) return lane_bits<T>(plain & found);
      last = count_;
      tau_ = select<T>(found, tau_, vmax(add_down_lanes<T>(tau_, rest_), low));
    }
    return 0;
  }

  // A pass over the entries above tau_: their number, and how far on the threshold of their set is. Where they give none, for
  // they are too far apart, rest_ is Newton's step, and their lanes are not returned.
  Mask<T> look() {
    const Vec<T> zero{};
    Vec<T> over = splat(T(-kRoot * kRoot)), lost{};  // what the squares exceed 4 by, and what rounding took from it
    Mask<T> n[2] = {};
    sum_ = zero;
    for (int64_t k = 0; k < K_ * W;) {
      Vec<T> s[4] = {}, q[4] = {};
      const auto add = [&](int64_t at, int j) {
        const Vec<T> d = vmax(load(x_ + at) - tau_, zero);
        s[j] += d, q[j] = fma(d, d, q[j]), n[j % 2] += d > zero;
      };
      const int64_t end = std::min(k + kTurn * W, K_ * W);
      for (; k + 4 * W <= end; k += 4 * W) add(k, 0), add(k + W, 1), add(k + 2 * W, 2), add(k + 3 * W, 3);
      if (k < end) add(k, 0);
      if (k + W < end) add(k + W, 1);
      if (k + 2 * W < end) add(k + 2 * W, 2);
      k = end;
      sum_ += (s[0] + s[1]) + (s[2] + s[3]);
      const Vec<T> more = (q[0] + q[1]) + (q[2] + q[3]), next = over + more, part = next - over;
      lost += (over - (next - part)) + (more - part);
      over = next;
    }
    over += lost;
    count_ = __builtin_convertvector(-(n[0] + n[1]), Vec<T>);
    const Vec<T> inside = sum_ * sum_ - count_ * over, squares = vmax(over + T(kRoot * kRoot), zero);
    const Mask<T> real = inside >= zero;
    const Vec<T> newton = (squares - vsqrt(squares) * T(kRoot)) / sum_;
    rest_ = select<T>(real, over / (sum_ + vsqrt(vmax(inside, zero))), newton);
    return real;
  }

  // The probabilities, to p_; returns how many there are.
  Vec<T> share() {
    const Vec<T> error = splat(kRootDoubt<T>) / sum_;
    Mask<T> n{};
    for (int64_t k = 0; k < K_ * W; k += W) {
      const Vec<T> d = (load(x_ + k) - tau_) - rest_, u = d * T(1 / kRoot);
      const Mask<T> in = d > error;
      n += in;
      store(p_ + k, keep<T>(in, u * u));
    }
    return __builtin_convertvector(-n, Vec<T>);
  }

  int64_t K_;
  T *x_, *p_;
  unsigned rows_;
  Vec<T> tau_, rest_, count_, sum_;
};

}  // namespace sparsegen::SPARSEGEN_ISA
