// Short rows of floats that are made into points where they stand transposed, a lane for each: what maps.hpp does row by row,
// where a row is too short to fill vectors and to be worth a buffer of its own. Rows that are out of the ordinary (hidden
// entries, NaN, numbers whose squares or sums would need scaling) are left to transform.hpp.
#pragma once

#include "rows.hpp"
#include "transform.hpp"

namespace sparsegen::SPARSEGEN_ISA {

// A number for each of W rows, in double.
template <class T>
struct LaneNumbers {
  static constexpr int W = kWidth<T>, D = kWidth<double>;
  alignas(kVectorBytes) double of[W];

  // Those of n rows from `given` on, which has one for each or (`each` false) one for all.
  void read(const double* given, bool each, int n) {
    if (!each) return make([=](int) { return splat(*given); });
    for (int i = 0; i < W; ++i) of[i] = given[std::min(i, n - 1)];
  }
  void read(Vec<T> v) {
    typedef T Part __attribute__((vector_size(D * sizeof(T))));
    Part part[W / D];
    std::memcpy(part, &v, sizeof v);
    make([&](int i) { return __builtin_convertvector(part[i / D], Vec<double>); });
  }
  // of[i ...] = f(i), vector by vector.
  template <class F>
  void make(F&& f) {
    for (int i = 0; i < W; i += D) store(of + i, f(i));
  }
  // One bit for each row.
  template <class F>
  unsigned bits(F&& f) const {
    unsigned found = 0;
    for (int i = 0; i < W; i += D) found |= lane_bits<double>(f(load(of + i))) << i;
    return found;
  }
  Vec<T> narrow() const {
    Vec<T> found;
    for (int i = 0; i < W; ++i) found[i] = T(of[i]);
    return found;
  }
};

template <class T>
class LanePoints final : public Maker<T> {
  static constexpr int W = kWidth<T>;

 public:
  // Rows [row, ...) of a job, of K entries each, which are written to dst[i].
  LanePoints(const MapJob& job, int64_t row, T* const* dst) : job_(job), K_(job.K), row_(row), dst_(dst) {
    this->ends = job.rule == Rule::total && job.radius[0] == 1;
  }

  // Rows whose shares were written, as all of the sum is their radius, one bit each; and what became of all: see Prepared.
  unsigned written = 0;
  double radius[kGroup], base[kGroup];

  unsigned make(T* lanes, int i, int n, double* r) override {
    lanes_ = lanes;
    radius_.read(job_.radius + (job_.radius_per_row ? row_ + i : 0), job_.radius_per_row, n);
    base_.make([](int) { return splat(1.0); });
    const bool total = job_.rule == Rule::total;
    const unsigned plain = (total ? shares(row_ + i, n) : points()) & ((1u << n) - 1), all = plain & whole_, rest = plain & ~all;
    if (all) write(all, dst_ + i);
    if (rest && total && job_.transform == Transform::sq && !squared_) each([](Vec<T> v) { return v * v; });
    written |= all << i;
    if (rest) std::copy_n(radius_.of, n, r);
    if (job_.radius_out) std::copy_n(radius_.of, n, radius + i), std::copy_n(base_.of, n, base + i);
    return rest;
  }

 private:
  struct Range {
    Vec<T> low, top;
    Mask<T> finite() const { return (low > splat(-kInf<T>)) & (top < splat(kInf<T>)); }
  };

  // The least and the largest score of each row or, with `size`, size of a score. Of NaN they say nothing.
  template <bool size>
  Range range() const {
    Range even{splat(kInf<T>), splat(-kInf<T>)}, odd = even;
    const auto add = [this](Range& of, int64_t k) {
      const Vec<T> v = load(lanes_ + k * W), u = size ? vmax(v, -v) : v;
      of.low = vmin(u, of.low), of.top = vmax(u, of.top);
    };
    int64_t k = 0;
    for (; k + 2 <= K_; k += 2) add(even, k), add(odd, k + 1);
    if (k < K_) add(even, k);
    return {vmin(even.low, odd.low), vmax(even.top, odd.top)};
  }

  template <class F>
  void each(F&& f) {
    for (int64_t k = 0; k < K_ * W; k += W) store(lanes_ + k, f(load(lanes_ + k)));
  }

  // The sums of f(score); with `kept`, the scores become that. Of at most 16 numbers that are not negative four chains of floats lose
  // no more than three units in the last place.
  template <bool kept, class F>
  void sum_up(LaneNumbers<T>& sums, F&& f) {
    const auto made_of = [&](int64_t k) {
      const Vec<T> made = f(load(lanes_ + k * W));
      if constexpr (kept) store(lanes_ + k * W, made);
      return made;
    };
    if (K_ <= kSortLimit) {
      Vec<T> s0{}, s1{}, s2{}, s3{};
      int64_t k = 0;
      for (; k + 4 <= K_; k += 4) s0 += made_of(k), s1 += made_of(k + 1), s2 += made_of(k + 2), s3 += made_of(k + 3);
      if (k < K_) s0 += made_of(k);
      if (k + 1 < K_) s1 += made_of(k + 1);
      if (k + 2 < K_) s2 += made_of(k + 2);
      return sums.read((s0 + s1) + (s2 + s3));
    }
    LaneSums<T> even, odd;
    int64_t k = 0;
    for (; k + 2 <= K_; k += 2) even.add(made_of(k)), odd.add(made_of(k + 1));
    if (k < K_) even.add(made_of(k));
    even.add(odd);
    even.store(sums.of);
  }

  // p = x / sum of some rows or, of squares, z (z / sum): the square alone could lose digits that its share has.
  void write(unsigned rows, T* const* dst) {
    LaneNumbers<T> over;
    over.make([&](int i) { return 1.0 / load(radius_.of + i); });
    const Vec<T> scale = over.narrow();
    const T* const lanes = lanes_;
    if (job_.transform == Transform::sq)
      from_lanes<T>(K_, dst, rows, [=](int64_t at, bool) { return load(lanes + at) * (load(lanes + at) * scale); });
    else
      from_lanes<T>(K_, dst, rows, [=](int64_t at, bool) { return load(lanes + at) * scale; });
  }

  // As make_points() has them.
  unsigned points() {
    if (job_.transform == Transform::sq) {
      const Vec<T> top = range<true>().top;
      each([=](Vec<T> v) {
        const Vec<T> a = vmax(v, -v);
        return (a - top) * (a + top);
      });
      return lane_bits<T>((top >= splat(T(0x1p-30))) & (top <= splat(T(0x1p60))));
    }
    const Range of = range<false>();
    if (job_.transform == Transform::log) {
      each([](Vec<T> v) { return vlog<T>(v) + (v - v); });
      base_.make([](int) { return Vec<double>{}; });
      return lane_bits<T>((of.low > Vec<T>{}) & of.finite());
    }
    const Vec<T> top = of.top;
    each([=](Vec<T> v) { return vexpm1<T>(v - top); });
    base_.read(top);
    radius_.make([&](int i) { return load(radius_.of + i) * vexp<double>(-load(base_.of + i)); });
    return lane_bits<T>(of.finite());
  }

  // As make_shares() and Sums have them. Where all of the sum is the radius, the row is among whole_.
  unsigned shares(int64_t row, int n) {
    LaneNumbers<T> sum;
    const unsigned found = job_.transform == Transform::exp ? exponentials(row, n, sum) : sum_scores(sum);
    const bool larger = !job_.radius_per_row && 2 * job_.radius[0] >= 1;
    if (larger) store(sums_, sum.narrow());
    this->sums = larger ? sums_ : nullptr;
    const Vec<double> one = splat(1.0);
    whole_ = radius_.bits([=](Vec<double> r) { return r == one; });
    radius_.make([&](int i) {
      const Vec<double> r = load(radius_.of + i), s = load(sum.of + i);
      return select<double>(r == one, s, r * s);
    });
    return found;
  }

  unsigned sum_scores(LaneNumbers<T>& sum) {
    const bool squares = job_.transform == Transform::sq;
    Vec<T> low = splat(kInf<T>);
    squared_ = squares && !job_.radius_per_row && job_.radius[0] != 1;  // no share is written from the scores
    if (squared_) sum_up<true>(sum, [](Vec<T> v) { return v * v; });
    else if (squares) sum_up<false>(sum, [](Vec<T> v) { return v * v; });
    else sum_up<false>(sum, [&](Vec<T> v) { return low = vmin(v, low), v; });
    const double least = least_plain_sum<T>(squares), most = kBigRadius<T>;
    return lane_bits<T>(low >= Vec<T>{}) & sum.bits([=](Vec<double> s) { return (s >= splat(least)) & (s <= splat(most)); });
  }

  unsigned exponentials(int64_t row, int n, LaneNumbers<T>& sum) {
    const Range of = range<false>();
    const Vec<T> top = of.top;
    base_.read(top);
    LaneNumbers<T> temperature;
    temperature.read(job_.second + (job_.second_per_row ? row : 0), job_.second_per_row, n);
    const unsigned ones = temperature.bits([](Vec<double> t) { return t == splat(1.0); });
    if (ones == (1u << (W - 1)) * 2 - 1) {
      sum_up<true>(sum, [=](Vec<T> v) { return vexp<T>(v - top); });
    } else {
      const Vec<T> by = vmax(temperature.narrow(), splat(std::numeric_limits<T>::min()));
      sum_up<true>(sum, [=](Vec<T> v) { return vexp<T>((v - top) / by); });
    }
    return lane_bits<T>(of.finite()) & sum.bits([](Vec<double> s) { return s >= splat(1.0); });  // NaN is not
  }

  const MapJob& job_;
  int64_t K_, row_;
  T* const* dst_;
  T* lanes_ = nullptr;
  LaneNumbers<T> radius_, base_;  // of the group at hand
  alignas(kVectorBytes) T sums_[W];
  unsigned whole_ = 0;
  bool squared_ = false;  // are the scores of the group at hand squares by now?
};

}  // namespace sparsegen::SPARSEGEN_ISA
