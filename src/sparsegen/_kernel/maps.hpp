// Maps of scores that are not projected as they are: a block of rows is brought in, made into points, projected and put back.
#pragma once

#include "lane_points.hpp"
#include "powers.hpp"
#include "roots.hpp"
#include "rows.hpp"
#include "transform.hpp"

namespace sparsegen::SPARSEGEN_ISA {

inline constexpr int64_t kSampledFrom = 8192;  // row length from which it pays to ask the first entries where the threshold will be

// Rows of one block, each in its slot, with where they are to be written.
template <class T>
class MapBlock {
 public:
  // `read` and `written` entries on are the rows that come next, in the scores and in the result; 0 where it is not known.
  MapBlock(const MapJob& job, const Scratch<T>& s, int64_t read, int64_t written)
      : job_(job), s_(s), plain_(job), read_(read), written_(written), squares_(job.transform == Transform::sq),
        sums_(job.rule == Rule::total && job.transform != Transform::exp && !job.power),
        all_shares_(job.rule == Rule::total && !job.radius_per_row && job.radius[0] == 1),
        all_roots_(job.power && !job.second_per_row && job.second[0] == 1.5) {
    plain_.radius_per_row = true;
    std::fill_n(sizes_, kGroup, kInf<T>);
  }

  // Rows [row, row + n), which stand at src[i] (their slots, or the scores themselves), to dst[i]; K counts the filling of
  // short ones.
  void run(int64_t row, int n, int64_t K, const T* const* src, T** dst) {
    has_words_ = 0;
    if (all_roots_ && K == job_.K && K <= kGroupLimit<T>) return even_roots(row, n, K, src, dst);
    Prepared made[kGroup];
    const unsigned done = job_.power ? powers(row, n, src, dst) | (K <= kGroupLimit<T> ? roots(row, n, K, src, dst) : 0)
                          : in_lanes(K, src, dst) ? lanes(row, n, K, src, dst)
                          : sums_ && K > kBesideLimit ? shares_alone(row, n, src, made, dst)
                          : squares_ && K >= kBlockedFrom ? squares_alone(row, n, src, dst) : 0;
    if (done == ~0u >> (32 - n)) return;
    const bool grouped = K > kLaneLimit && K <= kGroupLimit<T> && !job_.power && !all_shares_;
    next_ = {grouped && read_ ? src[0] + read_ : nullptr, job_.xs.outer};
    bool one_by_one = done != 0;
    find_sizes(n, grouped, src);
    later_ = grouped && square_later(row, n, src);
    if (sums_ && K <= kBesideLimit) sum_up(row, n, src, made, dst);
    larger_ = grouped ? larger_parts(row, n, made) : 0;
    for (int i = 0; i < n; ++i) {
      if (done >> i & 1) continue;
      T* const x = slot(i);
      if (!grouped || (made[i].plain && made[i].way == Way::shares)) ask_for_next(src[i], dst[i]);
      if (later_) {
        points_[i] = x, made[i] = of_squares(later_rows_[i], job_.radius_of(row + i));
      } else if (made[i].plain) {
        points_[i] = points(made[i].way, src[i], x, K);
      } else {
        made[i] = job_.power ? of_power(row + i, src[i], x) : prepare(row + i, src[i], x, sizes_[i]);
        points_[i] = job_.power && made[i].way != Way::shares ? points(made[i].way, src[i], x, K) : x;
      }
      if (points_[i] == x) std::fill_n(x + job_.K, K - job_.K, -kInf<T>);
      if (made[i].outside) job_.outside->store(true);
      one_by_one |= made[i].way != Way::project;
      if (made[i].way == Way::shares) finish(made, row, i, K, dst);  // while it is in the first cache
    }
    if (job_.transform == Transform::exp && job_.rule == Rule::given && !job_.power) scale_exponentials(made, n);
    for (int i = 0; i < n; ++i)
      if (!(done >> i & 1)) keep(row + i, made[i]);
    if (!one_by_one && (larger_ == 0 || larger_ == ~0u >> (32 - n))) return project(made, row, 0, n, K, dst);
    for (int i = 0; i < n; ++i)
      if (!(done >> i & 1) && made[i].way != Way::shares) finish(made, row, i, K, dst);
  }

  // The words of rows that were run(): see support.hpp.
  void find_words(int64_t row, int n, const T* const* dst) const {
    for (int i = 0; i < n; ++i) {
      if (has_words_ >> i & 1) continue;
      find_support(dst[i], job_.K, words_at(row + i));
      if (std::isnan(dst[i][0])) job_.radius_out[row + i] = kNone;
    }
  }

 private:
  uint32_t* words_at(int64_t row) const { return job_.words ? job_.words + row * words_of(job_.K) : nullptr; }

  T* slot(int i) const { return s_.rows + i * s_.stride; }

  // What comes next is read while a row is computed: docs/decisions/0026. Groups of rows in one piece ask for it themselves.
  void ask_for_next(const T* x, const T* p) const {
    if (read_) each_line(x + read_, job_.K, 0, 1, prefetch_far);
    if (written_) each_line(p + written_, job_.K, 0, 1, prefetch_far_to_write);
  }

  // Are rows made into points where they stand transposed? Not those that are written over: their scores may be needed again.
  bool in_lanes(int64_t K, const T* const* src, T* const* dst) const {
    return sizeof(T) == 4 && K <= kLaneLimit && K == job_.K && src[0] != dst[0];
  }

  // Maps rows that are in_lanes(); returns those that are done, one bit each.
  unsigned lanes(int64_t row, int n, int64_t K, const T* const* src, T** dst) {
    double r[kGroup];
    LanePoints<T> points(job_, row, dst);
    const unsigned undone = Together<T>(plain_, r, src, n, K, dst, radii_, s_, nullptr, &points).run();
    const unsigned done = (points.written | ~undone) & ~0u >> (32 - n);
    for (int i = 0; job_.radius_out && i < n; ++i)
      if (done >> i & 1) keep(row + i, {points.radius[i], points.base[i], Way::project, false, sums_, true});
    return done;
  }

  // Finds the sums of rows of which that is all they need: those are made `plain`. Meanwhile half of what comes next is asked for,
  // if rows are grouped: the other half is by the group, in the two passes it always makes.
  void sum_up(int64_t row, int n, const T* const* src, Prepared* made, T* const* dst) {
    constexpr int W = kWidth<T>;
    for (int i = 0; i < n; i += W) {
      Vec<T> sums[W] = {};
      unsigned negative = 0;
      for (int j = 0; j < std::min(W, n - i); ++j) {
        Sums<T> of;
        if (next_.x && n - i >= W) {
          each_line(next_.from(i + j / 2).x, job_.K, j % 2, 2, prefetch_far);
          if (written_) each_line(dst[i + j / 2] + W * job_.K, job_.K, j % 2, 2, prefetch_far_to_write);
        }
        add(row + i + j, src[i + j], job_.K, slot(i + j), of);
        sums[j] = of.sum, negative |= unsigned(of.negative()) << j;
      }
      alignas(kVectorBytes) T sum[W];
      store(sum, fold_rows<T, Sum>(sums));
      for (int j = 0; j < std::min(W, n - i); ++j) {
        made[i + j] = of_sum(row + i + j, double(sum[j]), negative >> j & 1);
        sum_of_[i + j] = double(sum[j]);
      }
    }
  }

  // The same of longer rows; those of which the radius is the larger part are projected while they are in the first cache. Returns
  // them, one bit each.
  unsigned shares_alone(int64_t row, int n, const T* const* src, Prepared* made, T* const* dst) {
    unsigned done = 0;
    for (int i = 0; i < n; ++i)
      if (squares_ ? share_alone(row + i, src[i], made[i], dst[i], Squared<T>{src[i]})
                   : share_alone(row + i, src[i], made[i], dst[i], src[i]))
        keep(row + i, made[i]), done |= 1u << i;
    has_words_ = done;
    return done;
  }

  // Its points are read at `x`.
  template <class Place>
  bool share_alone(int64_t row, const T* z, Prepared& made, T* p, Place x) const {
    const double part = job_.radius_of(row);
    const bool larger = larger_part(part);
    Known<T> all;
    if (larger && job_.K >= kSampledFrom) all.start = threshold_of_some(z, part, x);
    const bool negative = all.start > 0 ? sum_long<Also::excess>(z, all) : sum_long<Also::least>(z, all);
    made = of_sum(row, all.sum, negative);
    double threshold;
    return larger && made.plain && project_share(x, job_.K, all, made.radius, p, s_, threshold, words_at(row));
  }

  // Of the first entries of a long row: where the threshold of all of them will be, as a rule.
  template <class Place>
  static T threshold_of_some(const T* z, double part, Place x) {
    constexpr int64_t some = kGroupLimit<T>;
    Sums<T> of;
    of.template add<std::is_same_v<Place, Squared<T>>>(z, some);
    Known<T> all;
    all.sum = double(lanes_sum(of.sum));
    if (!plain_sum<T>(all.sum, false)) return 0;
    const double r = part * all.sum;
    const Cut<T> cut = draft_share(Row<T, Place>(x, some), double(some), all, T(-r), r, 0);
    return T(cut.tau + cut.rest);
  }

  // Finds what is known of a long row, and the excess over its start if that is asked for. Is a score negative, or hidden?
  template <Also also>
  bool sum_long(const T* z, Known<T>& all) const {
    Total<T> total, over;
    Sums<T> of;
    of.asks = !foresees;
    const Vec<T> start = splat(all.start);
    for (int64_t at = 0; at < job_.K; at += kGroupLimit<T>) {
      const int64_t n = std::min(kGroupLimit<T>, job_.K - at);
      squares_ ? of.template add<true, also>(z + at, n, nullptr, start) : of.template add<false, also>(z + at, n, nullptr, start);
      total.add(lanes_sum(of.sum)), over.add(-lanes_sum(of.over));
      of.sum = of.over = Vec<T>{};
    }
    all.sum = total.value(), all.over = {over.value(), -lanes_sum(of.count)};
    all.least = squares_ ? T(0) : -lanes_max(-of.low);
    return of.negative();
  }

  // Squares that will be projected are kept in passing, unless the scores stand in their place: they may be needed.
  void add(int64_t row, const T* z, int64_t K, T* x, Sums<T>& of) const {
    if (!squares_) of.template add<false>(z, K);
    else if (z == x || job_.radius_of(row) == 1) of.template add<true>(z, K);
    else of.template add<true, Also::squares>(z, K, x);
  }

  Prepared of_sum(int64_t row, double sum, bool negative) const {
    const double keep = job_.radius_of(row);
    if (negative || !plain_sum<T>(sum, squares_) || !(keep == 1 || plain_radius<T>(keep * sum))) return {};
    return {keep == 1 ? sum : keep * sum, 1, keep == 1 ? Way::shares : Way::project, false, true};
  }

  // Is this part of the sum so large that the sum tells where the threshold is? All of it is shared without one.
  static bool larger_part(double part) { return part >= 0.5 && part != 1; }

  // The rows of which that is so, one bit each, of those that sum_up() has seen.
  unsigned larger_parts(int64_t row, int n, const Prepared* made) const {
    unsigned found = 0;
    for (int i = 0; i < n && job_.K <= kBesideLimit; ++i)
      found |= unsigned(made[i].plain && larger_part(job_.radius_of(row + i))) << i;
    return found;
  }

  // Where the points of a plain row stand. Rows that need filling up are copied.
  const T* points(Way way, const T* z, T* x, int64_t K) const {
    if (way == Way::shares || (!squares_ && K == job_.K)) return z;
    if (squares_ && (x == z || K > kBesideLimit)) square_row(z, x, job_.K);
    if (!squares_ && x != z) std::copy_n(z, job_.K, x);
    return x;
  }

  // The sizes of rows that are squared: of whole vectors of rows together.
  void find_sizes(int n, bool grouped, const T* const* src) {
    constexpr int W = kWidth<T>;
    if (job_.transform != Transform::sq || job_.rule != Rule::given || job_.K >= kBlockedFrom) return;  // see squares_alone()
    std::fill_n(sizes_, kGroup, kInf<T>);
    for (int i = 0; grouped && i + W <= n; i += W) store(sizes_ + i, sizes_of(src + i, job_.K));
  }

  // Are all rows of a block squares that the first look at them may make?
  bool square_later(int64_t row, int n, const T* const* src) {
    if (job_.transform != Transform::sq || job_.rule != Rule::given) return false;
    bool can = true;
    for (int i = 0; i < n && can; ++i) {
      const T top = sizes_[i] < kInf<T> ? sizes_[i] : top_of<true>(src[i], job_.K);
      later_rows_[i] = squaring(src[i], top, sizes_[i] < kInf<T>);
      can = std::fabs(top) < kInf<T> && src[i] != slot(i) && of_squares(later_rows_[i], job_.radius_of(row + i)).radius > 0;
    }
    return can;
  }

  // Long rows of squares onto a given radius; returns those of which few matter, which are done, one bit each.
  unsigned squares_alone(int64_t row, int n, const T* const* src, T* const* dst) {
    unsigned done = 0;
    for (int i = 0; i < n; ++i) {
      sizes_[i] = kInf<T>;
      done |= unsigned(square_alone(row + i, src[i], sizes_[i], dst[i], words_past(row, i))) << i;
    }
    if (words_past(row, 0)) has_words_ |= done;
    return done;
  }

  // One of them. True if few of its squares matter, and it is done: no others are made. Else its size is found, if none is hidden.
  bool square_alone(int64_t row, const T* z, T& size, T* p, uint32_t* words) const {
    const int64_t K = job_.K;
    const Row<T, Sized<T>> sizes({z}, K);
    Survey<T> all;
    survey<false>(sizes.x, sizes.full, kBlock, s_.maxima, all);
    if (sizes.steps > sizes.full) survey_tail(sizes, s_.maxima, all);
    const T top = lanes_max(all.top), squares = lanes_sum(all.squares);
    if (!(top < kInf<T>) || std::isnan(squares)) return false;
    size = top;
    const Squaring<T> made = squaring(z, top, true);
    const Prepared found = of_squares(made, job_.radius_of(row));
    const double r = found.radius, unit = double(made.unit), most = double(made.most) * double(made.most);
    const T low = add_down(T(0), -r);
    // Up to half of the largest square squares rise with their scores, rounded too: their maxima are those of the largest scores.
    if (!plain_radius<T>(r) || r > most / 2 || !(double(low) > double(squares) * (unit * unit) / double(K) - most)) return false;
    for (int64_t i = 0; i < (sizes.steps + kBlock - 1) / kBlock * kWidth<T>; i += kWidth<T>)
      store(s_.maxima + i, made.template of<false>(load(s_.maxima + i)));
    const Row<T, Made<T>> points({z, made}, K);
    double threshold;
    if (!write_sparse(points, K, made.template of<false>(all.top), T(0), r, p, s_, threshold, words)) return false;
    keep(row, found);
    return true;
  }

  Prepared prepare(int64_t row, const T* z, T* x, T size) const {
    const double control = job_.radius_of(row);
    if (job_.rule == Rule::total) return make_shares(job_.transform, z, x, job_.K, control, job_.second_of(row));
    return make_points(job_.transform, z, x, job_.K, control, size);
  }

  // Softmax and sparsemax are what they are everywhere.
  Prepared of_power(int64_t row, const T* z, T* x) const {
    const double alpha = job_.second_of(row);
    if (alpha == 1) return make_shares(Transform::exp, z, x, job_.K, 1, 1);
    return {1, 0, alpha == 2 ? Way::project : Way::root};
  }

  // Those whose alpha has no way of its own; returns them, one bit each.
  unsigned powers(int64_t row, int n, const T* const* src, T** dst) const {
    PowerRows<T> group(job_.K, slot(s_.slots / kPowerSlots), s_.stride);
    unsigned done = 0;
    for (int i = 0; i < n; ++i) {
      const double alpha = job_.second_of(row + i);
      if (alpha == 1 || alpha == 1.5 || alpha == 2) continue;
      ask_for_next(src[i], dst[i]);
      group.add(src[i], dst[i], alpha);
      keep(row + i, {}), done |= 1u << i;
    }
    group.run(s_.stream);
    return done;
  }

  // Short rows that all have alpha = 1.5. Ten entries of a row are done before it is told apart from others, as roots() does.
  void even_roots(int64_t row, int n, int64_t K, const T* const* src, T** dst) const {
    for (int i = 0; job_.radius_out && i < n; ++i) keep(row + i, {1, 0, Way::root});
    together(src, n, K, dst, read_ ? src[0] + read_ : nullptr, [this](int i) { return slot(i); });
  }

  // Those of short rows that have alpha = 1.5; returns them, one bit each.
  unsigned roots(int64_t row, int n, int64_t K, const T* const* src, T** dst) const {
    const T* from[kGroup];
    T *spare[kGroup], *to[kGroup];
    unsigned done = 0;
    int m = 0;
    for (int i = 0; i < n; ++i) {
      if (job_.second_of(row + i) != 1.5) continue;
      done |= 1u << i, spare[m] = slot(i), to[m] = dst[i], from[m] = K > job_.K ? slot(i) : src[i];
      if (from[m] != src[i]) std::copy_n(src[i], job_.K, slot(i));
      std::fill_n(slot(i) + job_.K, K - job_.K, -kInf<T>);
      keep(row + i, {1, 0, Way::root});
      ++m;
    }
    together(from, m, K, to, read_ ? src[0] + read_ : nullptr, [&](int i) { return spare[i]; });
    return done;
  }

  // Rows from[i] to to[i], i < n, in groups of W. `read` is where those stand that come next, and spare(i) has room for row i.
  template <class Spare>
  void together(const T* const* from, int n, int64_t K, T* const* to, const T* read, Spare&& spare) const {
    constexpr int W = kWidth<T>;
    const Next<T> next{read, job_.xs.outer};
    unsigned left = 0;
    int i = 0;
    for (; K <= kSortLimit && i + W < n; i += 2 * W) left |= two_roots(from + i, std::min(W, n - i - W), K, to + i) << i;
    for (; i < n; i += W) {
      const int rows = std::min(W, n - i);
      const auto by_lane = [&] { return ByLane<T>(from + i, rows, K, s_.lanes, W, to + i); };
      const auto by_row = [&](auto length) {
        return find_roots(ByRow<T, const T*, decltype(length)>(from + i, rows, K, length, next.from(i), written_ ? to + i : nullptr),
                          rows, K, to + i);
      };
      left |= (K <= kLaneLimit ? find_roots(by_lane(), rows, K, to + i) : with_length<T>(K, by_row)) << i;
    }
    for (; left; left &= left - 1) {
      const int j = __builtin_ctz(left);
      root_row(from[j], K, to[j], s_, spare(j));
    }
  }

  // Returns the rows left undone, one bit each.
  template <class Layout>
  unsigned find_roots(Layout layout, int n, int64_t K, T* const* dst) const {
    RootGroup<T, Layout> group(layout, K);
    const unsigned rows = (1u << n) - 1;
    const bool stream = !Layout::kWrittenTogether && s_.stream && K % kWidth<T> == 0 && all_aligned(dst, n);
    s_.hidden ? group.template look<true>() : group.template look<false>();
    s_.hidden = group.hidden();
    if (!(rows & group.plain())) return rows;
    group.search();
    return stream ? group.template write<true>(rows, dst) : group.template write<false>(rows, dst);
  }

  // The same of W rows that are sorted and `n` more: what one group waits for passes while the other is at work. See Together.
  unsigned two_roots(const T* const* src, int n, int64_t K, T* const* dst) const {
    constexpr int W = kWidth<T>;
    ByLane<T> first(src, W, K, s_.lanes, 2 * W, dst), second(src + W, n, K, s_.lanes + K * W, 2 * W, dst + W);
    RootGroup<T, ByLane<T>> a(first, K), b(second, K);
    a.template look<false>(), b.template look<false>();
    a.search(), b.search();
    const unsigned left = a.template write<false>((1u << W) - 1, dst);
    return left | b.template write<false>((1u << n) - 1, dst + W) << W;
  }

  void keep(int64_t row, const Prepared& made) const {
    if (!job_.radius_out) return;
    job_.radius_out[row] = made.radius, job_.mean_out[row] = made.base;
    job_.count_out[row] = made.open ? double(job_.K) : 0;  // 0: some may be hidden
  }

  // The words of row i, counted from `row`, if they are to be found while it is written past the caches.
  uint32_t* words_past(int64_t row, int i) const { return s_.stream && job_.K > kGroupLimit<T> ? words_at(row + i) : nullptr; }

  // Rows [first, first + n) of those from `row` on.
  void project(const Prepared* made, int64_t row, int first, int n, int64_t K, T** dst) {
    const T* from[kGroup];
    uint32_t* kept[kGroup];
    double r[kGroup], threshold[kGroup];
    for (int i = 0; i < n; ++i) from[i] = points_[first + i], r[i] = made[first + i].radius;
    Scratch<T> s = s_;
    s.sums = larger_ >> first & 1 ? sum_of_ + first : nullptr;
    s.rows = slot(first);
    s.next = next_.from(first);
    for (int i = 0; i < n; ++i) kept[i] = words_past(row, first + i);
    s.kept = kept[0] ? kept : nullptr, s.has_words = 0;
    s.squares = later_ ? later_rows_ + first : nullptr;
    project_group(plain_, r, from, n, K, dst + first, radii_, s, threshold);
    has_words_ |= s.has_words << first;
  }

  // Row i of those from `row` on.
  void finish(const Prepared* made, int64_t row, int i, int64_t K, T** dst) {
    T *const x = slot(i), *const p = dst[i];
    switch (made[i].way) {
      case Way::project: return project(made, row, i, 1, K, dst);
      case Way::shares: return write_shares_of(made[i], points_[i], p);
      case Way::root:
        has_words_ |= unsigned(root_row(points_[i], K, p, s_, x, points_[i] == x ? 0 : K, words_at(row + i))) << i;
    }
  }

  void write_shares_of(const Prepared& made, const T* x, T* p) const {
    const bool past = s_.stream && aligned(p), squares = made.plain && squares_;
    const auto f = squares ? (past ? write_shares<true, true, T> : write_shares<true, false, T>)
                           : (past ? write_shares<false, true, T> : write_shares<false, false, T>);
    f(x, job_.K, made.radius, p);
  }

  const MapJob& job_;
  const Scratch<T>& s_;
  ProjectJob plain_;
  int64_t read_, written_;
  const bool squares_, sums_;  // of squares; can the sum of a row be all it needs?
  const bool all_shares_;      // softmax: no row is projected
  const bool all_roots_;       // entmax, and alpha is 1.5 for all rows
  Next<T> next_;               // the scores that come next, where groups of rows ask for them
  unsigned has_words_ = 0;     // rows whose words were found while they were written, one bit each
  unsigned larger_ = 0;        // rows whose radius is the larger part of their sum, one bit each
  double sum_of_[kGroup];
  T sizes_[kGroup];            // of rows that are squared; inf: not known
  bool later_ = false;         // are rows of squares made by the first look at them?
  Squaring<T> later_rows_[kGroup];
  const T* points_[kGroup];    // where the points of each row stand
  LaneRadii<T> radii_;
};

template <class S>
inline void map_rows(const MapJob& job, int64_t begin, int64_t end) {
  using T = typename ComputeIn<S>::type;
  const S* x = static_cast<const S*>(job.x);
  S* p = static_cast<S*>(job.p);
  const int64_t K = std::max<int64_t>(job.K, kTile<T>);
  const bool own = std::is_same_v<S, T>, write = own && K == job.K && job.ps.entry == 1;
  const bool read = own && job.xs.entry == 1 && !job.mask;
  const int group = rows_together<T>(K, std::max(job.xs.entry, job.ps.entry));
  // Rows that are made into points by lanes are not written over, nor where others are made into points in a buffer: those that are
  // not written where they belong go to slots of their own.
  const bool apart = sizeof(T) == 4 && !job.power && K <= kLaneLimit && !write;
  const Workspace<T> workspace(K, job.power ? kPowerSlots * group : apart ? 2 * group : group);
  Scratch<T> s = workspace.view(), out = s;
  if (apart) out.rows += group * s.stride;
  // Words are read off what was written, but for shares of longer rows and for rows alone, which make them as they are written.
  const bool makes_words = job.rule == Rule::total ? K > kBesideLimit : K > kGroupLimit<T>;
  const bool reads_back = job.words && !makes_words;
  s.stream = write && !reads_back && job.written_past(2);
  s.hidden = job.mask != nullptr;
  const bool soon = job.inner == 1 && K <= kGroupLimit<T>;
  MapBlock<T> block(job, s, soon && read ? group * job.xs.outer : 0, soon && write && !s.stream ? group * job.ps.outer : 0);
  const T* src[kGroup];
  T* dst[kGroup];
  for (int64_t row = begin; row < end; row += group) {
    const int n = int(std::min<int64_t>(group, end - row));
    if (job.mask) load_masked(job, x, job.xs, row, n, s);
    else if (!read) load_rows(job, x, job.xs, row, n, s);
    find_rows<const T>(job, x, job.xs, row, n, read, s.rows, s.stride, src);
    find_rows(job, p, job.ps, row, n, write, out.rows, s.stride, dst);
    block.run(row, n, K, src, dst);
    if (job.words) block.find_words(row, n, dst);
    if (!write) store_rows<true>(job, p, job.ps, row, n, out);
  }
  if (s.stream) finish_streams();
}

inline void map(const MapJob& job, int64_t begin, int64_t end) {
  switch (job.storage) {
    case Storage::float32: return map_rows<float>(job, begin, end);
    case Storage::float64: return map_rows<double>(job, begin, end);
    case Storage::float16: return map_rows<Half>(job, begin, end);
    case Storage::bfloat16: return map_rows<Bfloat>(job, begin, end);
  }
}

}  // namespace sparsegen::SPARSEGEN_ISA
