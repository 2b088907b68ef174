// A block of rows: brings each row to the arithmetic type, projects it by lanes or alone, and puts it back.
#pragma once

#include <memory>
#include <type_traits>

#include "job.hpp"
#include "group.hpp"
#include "storage.hpp"
#include "stored.hpp"
#include "support.hpp"

namespace sparsegen::SPARSEGEN_ISA {

inline constexpr int64_t kVjpLaneLimit = kVectorBytes < 64 ? 32 : 0, kPairLimit = 256;
inline constexpr int64_t kVjpSixteenLimit = 64;  // longest row of which sixteen, and the next sixteen, fit the first cache
inline constexpr int kLineRows = 16;        // rows brought in together: a cache line of a transposed float array
inline constexpr int kGroup = std::max(kLineRows, 2 * kWidth<float>);  // the same of rows that stand in one piece

// The memory of one thread, O(K), with room for `slots` whole rows. It is kept from call to call so that small calls do not
// pay for it; what is more than kKeptBytes goes back when the call ends.
inline constexpr int64_t kKeptBytes = 4 << 20;

template <class T>
class Workspace {
 public:
  Workspace(int64_t K, int slots) : store_(mine()) {
    const int64_t stride = K + kPad, room = slots * stride;
    if (store_.K < K || store_.room < room) store_.grow(std::max(K, store_.K), std::max(room, store_.room));
    view_ = store_.view;
    view_.slots = slots, view_.stride = stride;
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    if (store_.bytes > kKeptBytes) store_ = Store();
  }
  const Scratch<T>& view() const { return view_; }

 private:
  static constexpr int64_t kPad = 2 * kStep<T>;

  struct Store {
    std::unique_ptr<T[]> data;
    std::unique_ptr<int32_t[]> touched;
    int64_t K = -1, room = 0, bytes = 0;
    Scratch<T> view;

    void grow(int64_t new_K, int64_t new_room) {
      *this = Store();  // nothing is left to be used by mistake if there is no memory
      const int64_t maxima = (new_K + kPad) / 4 + kPad, picked = new_K + kPad;
      const int64_t lanes = 2 * std::min(std::max<int64_t>(new_K, kTile<T>), kLaneLimit) * kWidth<T>;
      const int64_t entries = maxima + picked + lanes + new_room;
      data.reset(new T[entries]);
      touched.reset(new int32_t[std::max({new_K / kPart<T> + 1, words_of(new_K), int64_t(kFew)})]);
      view.maxima = data.get();
      view.picked = view.maxima + maxima;
      view.lanes = view.picked + picked;
      view.rows = view.lanes + lanes;
      view.touched = touched.get(), view.words = reinterpret_cast<uint32_t*>(touched.get());
      K = new_K, room = new_room, bytes = entries * int64_t(sizeof(T));
    }
  };

  static Store& mine() {
    thread_local Store store;
    return store;
  }

  Store& store_;
  Scratch<T> view_;
};

inline int64_t offset(const Job& job, const Strides& strides, int64_t row) {
  if (job.inner == 1) return row * strides.outer;  // spares short rows two divisions
  return row / job.inner * strides.outer + row % job.inner * strides.inner;
}

// How many rows are brought in together: a cache line of a transposed array, or a group of short rows, of the shortest two;
// long rows that stand in one piece gain nothing by company.
template <class T>
inline int rows_together(int64_t K, int64_t entry) {
  if (entry != 1) return kLineRows;
  return K > kGroupLimit<T> ? 1 : K > kSortLimit ? kLineRows : kGroup;
}

// Where rows [row, row + n) of an array stand: in the array itself, or (`direct` false) in the slots. `at` has kGroup places.
template <class T, class S>
inline void find_rows(const Job& job, S* x, const Strides& strides, int64_t row, int n, bool direct, T* slots, int64_t stride,
                      T** at) {
  if (!direct) {
    for (int i = 0; i < n; ++i) at[i] = slots + i * stride;
  } else if (job.inner == 1) {
    T* const first = (T*)(x + row * strides.outer);
    const int64_t step = strides.outer;
    for (int i = 0; i < kGroup; ++i) at[i] = first + i * step;  // those from n on are not looked at
  } else {
    for (int i = 0; i < n; ++i) at[i] = (T*)(x + offset(job, strides, row + i));
  }
}

// The same for the rows that follow `group` rows whose places `at` has.
template <class T, class S>
inline void next_rows(const Job& job, S* x, const Strides& strides, int64_t row, int n, int group, bool direct, T** at) {
  if (!direct) return;  // the slots stay where they are
  if (job.inner > 1) return find_rows<T>(job, x, strides, row, n, true, nullptr, 0, at);
  const int64_t step = group * strides.outer;
  for (int i = 0; i < kGroup; ++i) at[i] += step;
}

// Rows [row, row + n) into `rows`, widened; entry by entry across the rows where they are not contiguous.
template <class S, class T>
inline void load_rows(const Job& job, const S* x, const Strides& strides, int64_t row, int n, const Scratch<T>& s) {
  const S* from[kGroup];
  for (int i = 0; i < n; ++i) from[i] = x + offset(job, strides, row + i);
  if (strides.entry == 1) {
    for (int i = 0; i < n; ++i) widen_row(from[i], job.K, s.rows + i * s.stride);
    return;
  }
  for (int64_t k = 0; k < job.K; ++k)
    for (int i = 0; i < n; ++i) s.rows[i * s.stride + k] = widen(from[i][k * strides.entry]);
}

template <bool probability, class S, class T>
inline void store_rows(const Job& job, S* p, const Strides& strides, int64_t row, int n, const Scratch<T>& s) {
  S* to[kGroup];
  for (int i = 0; i < n; ++i) to[i] = p + offset(job, strides, row + i);
  if (strides.entry == 1) {
    for (int i = 0; i < n; ++i) narrow_row<probability>(s.rows + i * s.stride, job.K, to[i]);
    return;
  }
  for (int64_t k = 0; k < job.K; ++k)
    for (int i = 0; i < n; ++i) {
      if constexpr (probability) narrow_probability(s.rows[i * s.stride + k], to[i][k * strides.entry]);
      else narrow(s.rows[i * s.stride + k], to[i][k * strides.entry]);
    }
}

template <class J>
inline const uint8_t* mask_of(const J& job, int64_t row) {
  if (job.mask_row == kOneMask) return job.mask;
  return job.mask + (job.mask_row ? job.mask_row[row] : row * job.K);
}

// Those of rows [row, row + n); `at` has kGroup places.
template <class J>
__attribute__((noinline)) void find_masks(const J& job, int64_t row, int n, const uint8_t** at) {
  if (job.mask_row) {
    for (int i = 0; i < n; ++i) at[i] = mask_of(job, row + i);
  } else {
    const uint8_t* const first = job.mask + row * job.K;
    for (int i = 0; i < kGroup; ++i) at[i] = first + i * job.K;  // those from n on are not looked at
  }
}

// x to `to`, W entries at a time, with -inf where the mask does not let it be chosen; `to` may be `x`.
template <class T>
inline void hide_row(const T* x, const uint8_t* mask, int64_t K, T* to) {
  constexpr int W = kWidth<T>;
  const auto hide = [=](int64_t k) { store(to + k, hide_vector<T>(load(x + k), mask + k)); };
  int64_t k = 0;
  for (; k + W <= K; k += W) {
    hide(k);
    if (K <= kLaneLimit) continue;
    if (k % kLine<T> == 0) prefetch_far(x + k + K);  // the next row's, as a rule
    if (k % 64 == 0) prefetch_far(mask + k + K);
  }
  if (k == K) return;
  if (K >= W) return hide(K - W);  // some for the second time
#if defined(__AVX512F__)
  const int n = int(K);
  store_part(to, select<T>(open_lanes<T>(mask, n), load_part(x, n), splat(-kInf<T>)), n);
#else
  for (; k < K; ++k) to[k] = mask[k] ? x[k] : -kInf<T>;
#endif
}

template <class J, class T>
inline void hide_masked(const J& job, int64_t row, T* x) {
  hide_row(x, mask_of(job, row), job.K, x);
}

// load_rows() of a job with a mask.
template <class J, class S, class T>
inline void load_masked(const J& job, const S* x, const Strides& strides, int64_t row, int n, const Scratch<T>& s) {
  if constexpr (std::is_same_v<S, T>) {
    if (strides.entry == 1) {
      for (int i = 0; i < n; ++i)
        hide_row(x + offset(job, strides, row + i), mask_of(job, row + i), job.K, s.rows + i * s.stride);
      return;
    }
  }
  load_rows(job, x, strides, row, n, s);
  for (int i = 0; i < n; ++i) hide_masked(job, row + i, s.rows + i * s.stride);
}

// What is done to rows that stand transposed before they are projected: radii are found, or points are made of the scores.
template <class T>
struct Maker {
  // For n rows from the i-th on, in `lanes`: their radii to r; returns those that are to be projected, one bit each.
  virtual unsigned make(T* lanes, int i, int n, double* r) = 0;

  const T* sums = nullptr;  // of W rows without negative entries, if their radii are the larger parts of them
  bool ends = false;        // are rows written by make(), as a rule, and not projected?

 protected:
  ~Maker() = default;
};

// Projects rows src[i] to dst[i], i < n, in groups of W. A maker is for rows that are transposed.
template <class T>
class Together {
  static constexpr int W = kWidth<T>;

 public:
  Together(const ProjectJob& job, double* r, const T* const* src, int n, int64_t K, T** dst, LaneRadii<T>& radii,
           const Scratch<T>& s, double* threshold, Maker<T>* maker = nullptr)
      : r_(job.radius_per_row || job.rule != Rule::given ? r : nullptr), src_(src), n_(n), K_(K), dst_(dst), radii_(radii),
        s_(s), threshold_(job.threshold ? threshold : nullptr), maker_(maker) {}

  // Returns the rows left undone, one bit each. (In one place: where it is written out anew for each caller, GCC no longer puts
  // the stages of a group into one piece, which takes 1.15 times as long.)
  __attribute__((noinline)) unsigned run() {
    unsigned undone = 0;
    int i = 0;
    for (; K_ <= kSortLimit && i + W < n_; i += 2 * W) undone |= two(by_lane(i, 0, 2), by_lane(i + W, 1, 2), i);
    for (; i < n_; i += W)
      undone |= K_ <= kLaneLimit ? one(by_lane(i, 0, 1), i) : s_.masks ? one_by_row<Masked<T>>(i) : one_by_row<const T*>(i);
    return undone;
  }

 private:
  int size(int i) const { return std::min(W, n_ - i); }

  // Are the rows of a group written past the caches as they are?
  bool past(int i) const { return s_.stream && K_ % W == 0 && all_aligned(dst_ + i, size(i)); }
  // Or by way of another place? Not those whose words will be read off them.
  bool shifted(int i) const { return s_.stream && !s_.kept && !past(i); }

  T* lanes(int slot) const { return s_.lanes + slot * K_ * W; }

  // One of `several` groups that are at work. (Called, it would be copied from where it is made.)
  __attribute__((always_inline)) ByLane<T> by_lane(int i, int slot, int several) const {
    return ByLane<T>(src_ + i, size(i), K_, lanes(slot), several * W, dst_ + i, masks(i));
  }

  template <class First>
  unsigned one_by_row(int i) {
    return with_length<T, !std::is_same_v<First, Copied<T>>>(K_, [&](auto length) {
      return one(ByRow<T, First, decltype(length)>(src_ + i, size(i), K_, length, s_.next.from(i), s_.stream ? nullptr : dst_ + i,
                                                   s_.squares ? s_.squares + i : nullptr, masks(i), s_.rows, s_.stride,
                                                   s_.kept ? s_.kept + i : nullptr, shifted(i) ? s_.picked : nullptr), i);
    });
  }

  const uint8_t* const* masks(int i) const { return s_.masks ? s_.masks + i : nullptr; }

  // The radii of a group from the i-th row on, whose rows stand in a slot of the lanes if they are transposed.
  const LaneRadii<T>& radii(int i, int slot = 0) {
    const unsigned rows = maker_ ? maker_->make(lanes(slot), i, size(i), r_ + i) : ~0u;
    if (r_) radii_.set(r_ + i, size(i)), radii_.plain &= rows;
    return radii_;
  }

  // What the passes would ask for that rows which a maker ends do not make.
  void ask_for_rest(const ByLane<T>& layout) const {
    if (maker_ && maker_->ends) layout.ask_for_next(Turn::first), layout.ask_for_next(Turn::second), layout.ask_for_next(Turn::write);
  }

  // The sums of a group whose radii are the larger parts of them; false for others, and for rows that are sorted.
  template <class Layout>
  bool find_sums(int i, T* sums) const {
    const bool made = Layout::kWrittenTogether && maker_ && maker_->sums && K_ > kSortLimit;
    if (made) std::copy_n(maker_->sums, W, sums);
    else if (!Layout::kWrittenTogether && s_.sums) std::copy_n(s_.sums + i, size(i), sums);
    return made || (!Layout::kWrittenTogether && s_.sums);
  }

  // Called: as parts of one function layouts would crowd each other out of the registers.
  template <class Layout>
  __attribute__((noinline)) unsigned one(Layout&& layout, int i) {
    if constexpr (Layout::kWrittenTogether) ask_for_rest(layout);
    Group<T, Layout> group(layout, radii(i), K_);
    if (maker_ && !group.plain()) return ((1u << size(i)) - 1) << i;
    alignas(kVectorBytes) T sums[W] = {};
    if (find_sums<Layout>(i, sums)) {
      if constexpr (Layout::kWrittenTogether) layout.ask_for_next(Turn::first);  // which shares do not make
      group.share(load(sums));
      return write(group, i);
    }
    s_.hidden || (s_.masks && !Layout::kMasked) ? group.template look<true>() : group.template look<false>();
    s_.hidden = group.hidden();
    group.first(), group.second();
    return write(group, i);
  }

  // The shortest rows: what one group waits for at the end of each stage passes while the other's stage is under way. (Two
  // groups of longer rows would crowd each other out of the first cache.)
  unsigned two(ByLane<T> first, ByLane<T> second, int i) {
    ask_for_rest(first), ask_for_rest(second);
    Group<T, ByLane<T>> a(first, radii(i, 0), K_), b(second, radii(i + W, 1), K_);
    if (maker_ && !(a.plain() | b.plain())) return ~0u >> (32 - size(i) - size(i + W)) << i;
    a.template look<false>(), b.template look<false>();
    a.second(), b.second();
    return write(a, i) | write(b, i + W);
  }

  template <class G>
  unsigned write(G& group, int i) {
    double* const threshold = threshold_ ? threshold_ + i : nullptr;
    const unsigned rows = (1u << size(i)) - 1;
    if (past(i)) {
      const unsigned left = group.template write<true>(rows, dst_ + i, threshold);
      if (s_.kept) s_.has_words |= (rows & ~left) << i;
      return left << i;
    }
    return group.template write<false>(rows, dst_ + i, threshold) << i;
  }

  double* r_;  // null: one radius for all
  const T* const* src_;
  int n_;
  int64_t K_;
  T** dst_;
  LaneRadii<T>& radii_;
  const Scratch<T>& s_;
  double* threshold_;
  Maker<T>* maker_;
};

// Radii of 0 of short rows: n of them, W at a time, transposed. Returns those left undone, one bit each: NaN, infinite tops.
template <class T>
inline unsigned project_tops(const T* const* src, int n, int64_t K, T* const* dst, T* lanes, double* threshold) {
  constexpr int W = kWidth<T>;
  unsigned undone = 0;
  for (int i = 0; i < n; i += W) {
    const int m = std::min(W, n - i);
    if (m == W) each_line(src[i] + n * K, W * K, 0, 1, prefetch), each_line(dst[i] + n * K, W * K, 0, 1, prefetch_to_write);
    const T* rows[W];
    for (int j = 0; j < W; ++j) rows[j] = src[i + (j < m ? j : 0)];
    to_lanes(rows, K, lanes);
    Vec<T> top = splat(-kInf<T>);
    Mask<T> bad{}, count{};
    for (int64_t k = 0; k < K * W; k += W) bad |= load(lanes + k) != load(lanes + k), top = vmax(load(lanes + k), top);
    for (int64_t k = 0; k < K * W; k += W) count -= load(lanes + k) == top;
    const unsigned all = (1u << m) - 1, done = all & lane_bits<T>(~bad & (vmax(top, -top) < splat(kInf<T>)));
    const Vec<T> share = splat(T(1)) / __builtin_convertvector(count, Vec<T>);
    if (done) from_lanes<T>(K, dst + i, done, [=](int64_t at, bool) { return keep<T>(load(lanes + at) == top, share); });
    for (int j = 0; j < m; ++j) threshold[i + j] = double(top[j]) + 0.0;  // the zeros of a row may have either sign
    undone |= (all & ~done) << i;
  }
  return undone;
}

// Projects src[i] to dst[i] for i < n. A row that needs project_any is copied to its slot of `s.rows`, or to the only one.
template <class T>
inline void project_group(const ProjectJob& job, double* r, const T** src, int n, int64_t K, T** dst,
                          LaneRadii<T>& radii, const Scratch<T>& s, double* threshold, Maker<T>* maker = nullptr) {
  unsigned undone = ~0u >> (32 - n);
  const bool tops = !maker && r[0] == 0 && std::all_of(r, r + n, [](double one) { return one == 0; });
  if (tops && K <= kSortLimit && n > 1 && !s.masks) undone = project_tops(src, n, K, dst, s.lanes, threshold);
  if (K <= kGroupLimit<T> && !tops) undone = Together<T>(job, r, src, n, K, dst, radii, s, threshold, maker).run();
  for (; undone; undone &= undone - 1) {
    const int i = __builtin_ctz(undone);
    const T* x = src[i];
    T* const slot = s.rows + (i < s.slots ? i * s.stride : 0);
    const bool behind = s.masks && r[i] > 0 && K >= std::max(kBlockedFrom, kGroupLimit<T> + 1);
    if (behind && !s.copies && project_behind(x, s.masks[i], K, r[i], dst[i], s, threshold[i])) continue;
    Survey<T> all;
    if (behind) all = copy_behind(x, s.masks[i], K, slot, s.maxima), s.copies = K <= kSoonLimit && !may_be_sparse(all, r[i]);
    else if (s.masks) hide_row(x, s.masks[i], K, slot);
    if (s.masks) x = slot;
    if (r[i] == 0 && (K < kBlockedFrom ? project_top(x, K, dst[i], threshold[i]) : project_top_long(x, K, dst[i], s, threshold[i])))
      continue;
    uint32_t* const words = s.kept && K > kGroupLimit<T> ? s.kept[i] : nullptr;
    if (K > kGroupLimit<T> && project_direct(x, K, r[i], dst[i], s, threshold[i], behind ? &all : nullptr, words)) {
      s.has_words |= unsigned(words != nullptr) << i;
      continue;
    }
    if (x != slot) std::copy_n(x, K, slot);
    project_any(slot, K, r[i], dst[i], s, threshold[i]);
  }
}

// The radius of `row`, whose entries are `x`.
template <class T>
inline double find_radius(const ProjectJob& job, int64_t row, const T* x) {
  if (job.rule == Rule::given) {
    if (job.radius_out) job.radius_out[row] = job.radius_of(row);
    return job.radius_of(row);
  }
  double n;
  const double mean = mean_row(x, job.K, n, !job.mask), r = mean_radius(job.rule, mean, n, job.radius_of(row));
  if (job.radius_out) job.radius_out[row] = r, job.mean_out[row] = mean, job.count_out[row] = n;
  if (job.outside && std::isnan(r) && std::isfinite(mean)) job.outside->store(true);
  return r;
}

inline Vec<double> mean_height(Rule rule, Vec<double> mean) { return rule == Rule::hourglass ? vmax(mean, -mean) : mean; }

// The same of n rows together, those first of which the sum is all that is needed; `sums` has those that are known. `r` has room
// for whole vectors.
template <class T>
inline void find_radii(const ProjectJob& job, int64_t row, int n, const T* const* x, double* r, const double* sums = nullptr) {
  constexpr int D = kWidth<double>;
  const bool together = job.rule != Rule::given && !job.mask;
  double mean[kGroup], q[kGroup], none;
  for (int i = 0; together && i < n; ++i)
    mean[i] = sums ? sums[i] : sum_row<true>(x[i], job.K, none), q[i] = job.radius_of(row + i);
  for (int i = 0; together && i < n; i += D) {
    const Vec<double> found = load(mean + i) / double(job.K), more = load(q + i);
    store(mean + i, found), store(r + i, (mean_height(job.rule, found) + more) / (1 / double(job.K) + more));
  }
  for (int i = 0; i < n; ++i) {
    const bool plain = together && r[i] > 0 && r[i] < kInf<double>;  // else NaN, outside the domain, a limit, or hidden entries
    if (!plain) r[i] = find_radius(job, row + i, x[i]);
    else if (job.radius_out)
      job.radius_out[row + i] = r[i], job.mean_out[row + i] = mean[i], job.count_out[row + i] = double(job.K);
  }
}

// Is the radius of a row of a positive mean the larger part of its sum, whatever the mean? (mean + q) / (1/K + q) is, for such a q.
inline bool takes_most(const ProjectJob& job, int64_t row) { return job.radius_of(row) * double(job.K) <= 1; }

// find_radii() of one row.
template <class T>
inline double radius_of_mean(const ProjectJob& job, int64_t row, const T* x, const double* sum = nullptr) {
  double r[kWidth<double>];
  find_radii(job, row, 1, &x, r, sum);
  return r[0];
}

// A long row with a radius of the mean that takes_most(). One without negative entries is projected by its sum and its least entry,
// which the pass for the mean finds: says whether it was, and its support is in `words` then unless null. (Other rows would pay for
// the least entry and not need it.)
template <class T>
inline bool project_mean(const ProjectJob& job, int64_t row, const T* x, double& r, T* p, const Scratch<T>& s, double& threshold,
                         uint32_t* words) {
  Known<T> all;
  double none;
  all.sum = sum_row<true, true>(x, job.K, none, &all.least);
  r = radius_of_mean(job, row, x, &all.sum);
  return all.least >= 0 && r >= all.sum / 2 && project_share(x, job.K, all, r, p, s, threshold, words);
}

// Another, read once for its mean and for the search. False where that is not finite, or project_any() is needed.
template <class T>
inline bool project_surveyed(const ProjectJob& job, int64_t row, const T* x, double& r, T* p, const Scratch<T>& s, double& threshold,
                             uint32_t* words) {
  Survey<T> all;
  double sum;
  const bool finite = survey_with_sum(x, job.K, s.maxima, all, sum);
  r = radius_of_mean(job, row, x, finite ? &sum : nullptr);
  return finite && project_direct(x, job.K, r, p, s, threshold, &all, words);
}

// Is an entry of the first step negative?
template <class T>
inline bool begins_negative(const T* x) {
  Vec<T> low{};
  for (int i = 0; i < kStep<T>; i += kWidth<T>) low = vmin(load(x + i), low);
  return lane_bits<T>(low < Vec<T>{}) != 0;
}

// Projects n long rows with radii of the mean, some of them on the way to their radii; false where none can be. How a row is made goes
// by what stands in it, not by its company nor by where that stands.
template <class T>
inline bool project_means(const ProjectJob& job, int64_t row, int n, const T** src, double* r, T** dst, LaneRadii<T>& radii,
                          const Scratch<T>& s, double* threshold) {
  // Shorter rows are looked at for their radii first, one after the other; behind a mask there is more to a mean than a sum.
  const bool longest = job.K > kSoonLimit && !job.mask;
  unsigned most = 0, done = 0;
  for (int i = 0; i < n; ++i) most |= unsigned(takes_most(job, row + i)) << i;
  if (!longest && !most) return false;
  for (int i = 0; i < n; ++i) {
    const bool by_sum = (most >> i & 1) && !begins_negative(src[i]);
    const auto f = by_sum ? project_mean<T> : project_surveyed<T>;
    if (!by_sum && !longest) r[i] = radius_of_mean(job, row + i, src[i]);
    else done |= unsigned(f(job, row + i, src[i], r[i], dst[i], s, threshold[i], s.kept ? s.kept[i] : nullptr)) << i;
  }
  if (s.kept) s.has_words |= done;
  Scratch<T> one = s;
  for (int i = 0; i < n; ++i) {
    if (done >> i & 1) continue;
    one.rows = s.rows + (i < s.slots ? i * s.stride : 0), one.slots = 1;
    one.kept = s.kept ? s.kept + i : nullptr, one.has_words = 0;
    project_group(job, r + i, src + i, 1, job.K, dst + i, radii, one, threshold + i);
    s.has_words |= one.has_words << i;
  }
  return true;
}

// The radii of the mean of rows that stand transposed.
template <class T>
class MeanMaker final : public Maker<T> {
 public:
  MeanMaker(const ProjectJob& job, const T* const* src) : job_(job), src_(src) {}
  void begin(int64_t row) { row_ = row; }

  unsigned make(T* lanes, int i, int n, double* r) override {
    alignas(kVectorBytes) double sums[kWidth<T>];
    sum_every<1>(lanes, job_.K, 0).store(sums);
    if (job_.radius_per_row || job_.radius_out || !find_plain(sums, r)) find_radii(job_, row_ + i, n, src_ + i, r, sums);
    return ~0u;
  }

 private:
  // find_radii() where one control is for all and nothing is out of the ordinary: says whether it is so.
  bool find_plain(const double* sums, double* r) const {
    constexpr int D = kWidth<double>;
    const double K = double(job_.K), q = job_.radius[0], width = 1 / K + q;
    Mask<double> plain = ~Mask<double>{};
    for (int i = 0; i < kWidth<T>; i += D) {
      const Vec<double> found = mean_height(job_.rule, load(sums + i) / K) + q, radius = found / width;
      plain &= (radius > Vec<double>{}) & (radius < splat(kInf<double>));
      store(r + i, radius);
    }
    return lane_bits<double>(plain) == (1u << D) - 1;
  }

  const ProjectJob& job_;
  const T* const* src_;
  int64_t row_ = 0;
};

template <class S>
inline void project_rows(const ProjectJob& job, int64_t begin, int64_t end) {
  using T = typename ComputeIn<S>::type;
  const S* x = static_cast<const S*>(job.x);
  S* p = static_cast<S*>(job.p);
  const int64_t K = std::max<int64_t>(job.K, kTile<T>);  // shorter rows are filled up with -inf
  const bool in_place = std::is_same_v<S, T> && K == job.K;
  const bool write = in_place && job.ps.entry == 1;
  // Rows with a mask are read where they stand too, unless a radius has to be found of them first.
  const bool read = in_place && job.xs.entry == 1 && (!job.mask || (write && job.rule == Rule::given));
  const bool behind = read && job.mask, alone = behind && K > kGroupLimit<T>;  // such rows may have to be copied, one by one
  const bool rule = job.rule != Rule::given || job.radius_per_row || job.radius_out;
  const bool by_mean = K >= kBlockedFrom && job.rule != Rule::given;
  // Radii are found before a group asks for the rows of the next one, and of long rows while they are in the second cache.
  const int found = K > (foresees ? kSoonLimit : kGroupLimit<T>) ? 1 : K > kLaneLimit ? kWidth<T> : kGroup;
  const int group = read && write && !alone ? (rule ? found : kGroup) : rows_together<T>(K, std::max(job.xs.entry, job.ps.entry));
  const Workspace<T> workspace(K, !read || !write ? group : behind && kCopiesMasked && !alone ? kWidth<T> : 1);
  Scratch<T> s = workspace.view();
  // Words are made of what is written past the caches while it is, and read off other results: those of masked and transposed rows.
  const bool keeps = job.words && K > kLaneLimit && !job.mask;
  s.stream = write && (!job.words || keeps) && job.written_past(2);
  s.hidden = job.mask && !read;
  LaneRadii<T> radii;
  double r[kGroup], threshold[kGroup];
  std::fill_n(r, kGroup, job.radius[0]);
  radii.set(r, kWidth<T>);
  const T* src[kGroup];
  MeanMaker<T> means(job, src);
  const bool in_lanes = sizeof(T) == 4 && read && K <= kLaneLimit && job.rule != Rule::given;
  const uint8_t* masks[kGroup];
  uint32_t* kept[kGroup];
  T* dst[kGroup];
  if (behind) s.masks = masks;
  if (keeps && s.stream) s.kept = kept;
  const int first = int(std::min<int64_t>(group, end - begin));
  find_rows<const T>(job, x, job.xs, begin, first, read, s.rows, s.stride, src);
  find_rows(job, p, job.ps, begin, first, write, s.rows, s.stride, dst);
  for (int64_t row = begin; row < end; row += group) {
    const int n = int(std::min<int64_t>(group, end - row));
    if (row > begin) {
      next_rows<const T>(job, x, job.xs, row, n, group, read, src);
      next_rows(job, p, job.ps, row, n, group, write, dst);
    }
    if (behind) find_masks(job, row, n, masks);
    for (int i = 0; s.kept && i < n; ++i) kept[i] = job.words + (row + i) * words_of(job.K);
    s.has_words = 0;
    if (!read) job.mask ? load_masked(job, x, job.xs, row, n, s) : load_rows(job, x, job.xs, row, n, s);
    if (job.mask && (!read || alone) && std::is_same_v<S, T> && job.inner == 1)
      s.next = {reinterpret_cast<const T*>(x + (row + group) * job.xs.outer), job.xs.outer};
    for (int i = 0; K > job.K && i < n; ++i) std::fill_n(s.rows + i * s.stride + job.K, K - job.K, -kInf<T>);
    if (!by_mean || !project_means(job, row, n, src, r, dst, radii, s, threshold)) {
      if (in_lanes) means.begin(row);
      else if (rule) find_radii(job, row, n, src, r);
      project_group(job, r, src, n, K, dst, radii, s, threshold, in_lanes ? &means : nullptr);
    }
    if (job.support)
      for (int i = 0; i < n; ++i)
        job.support[row + i] = std::count_if(dst[i], dst[i] + job.K, [](T v) { return v > 0; });
    for (int i = 0; job.words && i < n; ++i) {
      if (!(s.has_words >> i & 1)) find_support(dst[i], job.K, job.words + (row + i) * words_of(job.K));
      if (!std::isnan(dst[i][0])) continue;
      if (job.broken) job.broken->store(true);
      else job.radius_out[row + i] = dst[i][0];
    }
    if (job.threshold) std::copy_n(threshold, n, job.threshold + row);
    if (!write) store_rows<true>(job, p, job.ps, row, n, s);
  }
  if (s.stream) finish_streams();
}

inline constexpr int kHeldVectors = kVectorBytes < 64 ? 0 : 4;  // of the longest row whose v stays in registers

#if defined(__AVX512F__)
// vjp_held() of as many vectors as a row has.
template <Along when, bool stream, class T, class P, class F>
inline auto held_of(int64_t K) {
  constexpr decltype(&vjp_held<1, when, stream, T, P, F>) of[kHeldVectors] = {
      vjp_held<1, when, stream, T, P, F>, vjp_held<2, when, stream, T, P, F>, vjp_held<3, when, stream, T, P, F>,
      vjp_held<4, when, stream, T, P, F>};
  return of[(K - 1) / kWidth<T>];
}
#endif

// The gradients of n rows, given where their support is read, at v[i], written to g[i], which may be v[i].
template <Along when, class T, class P, class F>
inline void vjp_group(const P& all_p, const T* const* v, int n, int64_t K, Factors<T> all, T* const* g, const Scratch<T>& s,
                      const F& touch) {
  constexpr int W = kWidth<T>;
  constexpr bool later = when == Along::after;  // w.p is wanted, and the row need not be read once more for it
  // Do longer rows gain by company? Not those of which more is read, or that find w.p first: alone they stay in the first cache.
  constexpr bool company = kAsks<F> && when != Along::before;
  const bool lanes = std::is_same_v<F, Straight> && K >= kTile<T> && K <= kVjpLaneLimit;
  const bool tiny = kVectorBytes == 64 && K < W;
  const bool together = !lanes && K >= W && K <= (company ? kVjpGroupLimit : kVjpSixteenLimit);
  const int width = lanes || tiny || together ? (K <= kVjpSixteenLimit ? W : std::min(W, 8)) : company && K <= kPairLimit ? 2 : 1;
  for (int i = 0; i < n; i += width) {
    const int m = std::min(width, n - i);
    const Factors<T> by = all.from(i);
    const F steep = touch.from(i);
    const P p = all_p.from(i);
    if (lanes) {
      if constexpr (std::is_same_v<F, Straight>) vjp_lanes<when>(p.p, v + i, m, K, by, g + i, s.lanes);
#if defined(__AVX512F__)
    } else if (tiny) {
      vjp_tiny<when>(p, v + i, m, K, by, g + i, steep);
    } else if (K <= kHeldVectors * W) {
      const bool stream = !later && s.stream && K % W == 0 && all_aligned(g + i, m);
      const auto f = stream ? held_of<when, !later, T, P, F>(K) : held_of<when, false, T, P, F>(K);
      f(p, v + i, m, K, by, g + i, steep, s.asks);
#endif
    } else if (together) {
      const bool stream = s.stream && K % W == 0 && all_aligned(g + i, m);
      const auto f = !later && stream ? vjp_together<when, !later, T, P, F> : vjp_together<when, false, T, P, F>;
      f(p, v + i, m, K, by, g + i, steep, s.asks);
    } else if (K < kSkipFrom) {
      const bool stream = !later && m == 1 && s.stream && aligned(g[i]);
      auto f = stream ? vjp_short<1, when, !later, T, P, F> : vjp_short<1, when, false, T, P, F>;
      if constexpr (company) f = m == 2 ? vjp_short<2, when, false, T, P, F> : f;
      f(p, v + i, K, by, g + i, steep);
    } else {
      const bool stream = s.stream && aligned(g[i]);
      if constexpr (when == Along::before) {
        const auto f = stream ? vjp_spread<true, T, typename P::Row, F> : vjp_spread<false, T, typename P::Row, F>;
        f(p.row(0), v[i], K, by, g[i], s.words, steep);
      } else if constexpr (std::is_same_v<P, FromShares<T>>) {
        const auto f = stream ? vjp_long<when, true, T, F> : vjp_long<when, false, T, F>;
        f(p.p[0], v[i], K, by, g[i], s.touched, steep);
      }
    }
  }
}

// The same of rows whose words are given.
template <class T>
inline void vjp_chosen_rows(const VjpJob& job, int64_t row, const T** v, int n, T** g, const T* scale, bool stream) {
  constexpr int W = kWidth<T>;
  const int64_t K = job.K, step = words_of(K);
  for (int i = 0; i < n; i += W) {
    const uint32_t* words = job.words + (row + i) * step;
    const int m = std::min(W, n - i);
    if (K <= kChosenGroupLimit) {
      const bool past = stream && K % W == 0 && all_aligned(g + i, m);
#if defined(__AVX512F__)
      if (sizeof(T) == 4 && K > kChosenVectors / 2 * W && K <= kChosenVectors * W) {
        const auto held = past ? chosen_held_of<true, T>(K) : chosen_held_of<false, T>(K);
        held(words, v + i, m, K, scale, g + i);
        continue;
      }
#endif
      const auto f = past ? vjp_chosen<true, T> : vjp_chosen<false, T>;
      f(words, v + i, m, K, scale, g + i);
      continue;
    }
    for (int j = 0; j < m; ++j) {
      const auto f = stream && aligned(g[i + j]) ? vjp_chosen_long<true, T> : vjp_chosen_long<false, T>;
      f(words + j * step, v[i + j], K, scale[0], g[i + j], Straight{});
    }
  }
}

// Rows in storage, one after the other.
template <class S>
inline void vjp_stored_rows(const VjpJob& job, int64_t begin, int64_t end) {
  const S* const v = static_cast<const S*>(job.v);
  S* const grad = static_cast<S*>(job.grad_x);
  const auto f = chosen_stored_of<S>(job.K);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = offset(job, job.strides, row);
    f(job.words + row * words_of(job.K), v + at, job.K, vjp_scale<float>(job.radius_of(row)), grad + at);
  }
}

template <class S>
inline void vjp_rows(const VjpJob& job, int64_t begin, int64_t end) {
  using T = typename ComputeIn<S>::type;
  if constexpr (sizeof(S) == 2)
    if (job.words && job.strides.entry == 1 && job.K >= kStoredFrom) return vjp_stored_rows<S>(job, begin, end);
  constexpr int most = std::max(kLineRows / 2, kWidth<T>);
  const S *p = static_cast<const S*>(job.p), *v = static_cast<const S*>(job.v);
  S* grad = static_cast<S*>(job.grad_x);
  const bool direct = std::is_same_v<S, T> && job.strides.entry == 1;
  // p in the lower slots, v and then the gradient in the upper ones
  const int few = job.K > kVjpSixteenLimit ? kLineRows / 2 : most;
  const int half = direct ? most : std::min(few, rows_together<T>(job.K, job.strides.entry));
  const Workspace<T> workspace(job.K, direct ? 0 : 2 * half);
  Scratch<T> s = workspace.view();
  s.stream = direct && job.written_past(job.words ? 2 : 3);
  s.asks = 3 * job.bytes() >= (job.K <= kHeldVectors * kWidth<T> ? kAskHeldFrom : kAskFrom);
  Scratch<T> upper = s;
  upper.rows += direct ? 0 : half * s.stride;
  T scale[most + kWidth<T>], along[most + kWidth<T>];
  std::fill_n(scale, most + kWidth<T>, vjp_scale<T>(job.radius[0]));
  for (int64_t row = begin; row < end; row += half) {
    const int n = int(std::min<int64_t>(half, end - row));
    const T *pi[kGroup], *vi[kGroup];
    T* gi[kGroup];
    if (!direct) {
      if (!job.words) load_rows(job, p, job.strides, row, n, s);
      load_rows(job, v, job.strides, row, n, upper);
    }
    if (!job.words) find_rows<const T>(job, p, job.strides, row, n, direct, s.rows, s.stride, pi);
    find_rows<const T>(job, v, job.strides, row, n, direct, upper.rows, s.stride, vi);
    find_rows(job, grad, job.strides, row, n, direct, upper.rows, s.stride, gi);
    for (int i = 0; job.radius_per_row && i < n; ++i) scale[i] = vjp_scale<T>(job.radius[row + i]);
    if (job.words) vjp_chosen_rows(job, row, vi, n, gi, scale, s.stream);
    else if (job.grad_radius) vjp_group<Along::after, T>(FromShares<T>{pi}, vi, n, job.K, {scale, nullptr, along}, gi, s, Straight{});
    else vjp_group<Along::none, T>(FromShares<T>{pi}, vi, n, job.K, {scale, nullptr, nullptr}, gi, s, Straight{});
    for (int i = 0; job.grad_radius && i < n; ++i) {
      const double r = job.radius_of(row + i);
      job.grad_radius[row + i] = r == 0 ? 0 * double(along[i]) : -double(along[i]) / r;
    }
    if (!direct) store_rows<false>(job, grad, job.strides, row, n, upper);
  }
  if (s.stream) finish_streams();
}

template <class S>
inline void mean_rows(const MeanJob& job, int64_t begin, int64_t end) {
  using T = typename ComputeIn<S>::type;
  const S* x = static_cast<const S*>(job.x);
  const bool direct = std::is_same_v<S, T> && job.xs.entry == 1 && !job.mask;
  const int group = direct ? kGroup : rows_together<T>(job.K, job.xs.entry);
  const Workspace<T> workspace(job.K, direct ? 0 : group);
  const Scratch<T>& s = workspace.view();
  for (int64_t row = begin; row < end; row += group) {
    const int n = int(std::min<int64_t>(group, end - row));
    if (!direct) load_rows(job, x, job.xs, row, n, s);
    for (int i = 0; i < n; ++i) {
      T* slot = s.rows + i * s.stride;
      if (job.mask) hide_masked(job, row + i, slot);
      const T* xi = direct ? reinterpret_cast<const T*>(x + offset(job, job.xs, row + i)) : slot;
      job.mean[row + i] = mean_row(xi, job.K, job.count[row + i]);
    }
  }
}

inline void project(const ProjectJob& job, int64_t begin, int64_t end) {
  switch (job.storage) {
    case Storage::float32: return project_rows<float>(job, begin, end);
    case Storage::float64: return project_rows<double>(job, begin, end);
    case Storage::float16: return project_rows<Half>(job, begin, end);
    case Storage::bfloat16: return project_rows<Bfloat>(job, begin, end);
  }
}

inline void vjp(const VjpJob& job, int64_t begin, int64_t end) {
  switch (job.storage) {
    case Storage::float32: return vjp_rows<float>(job, begin, end);
    case Storage::float64: return vjp_rows<double>(job, begin, end);
    case Storage::float16: return vjp_rows<Half>(job, begin, end);
    case Storage::bfloat16: return vjp_rows<Bfloat>(job, begin, end);
  }
}

inline void means(const MeanJob& job, int64_t begin, int64_t end) {
  switch (job.storage) {
    case Storage::float32: return mean_rows<float>(job, begin, end);
    case Storage::float64: return mean_rows<double>(job, begin, end);
    case Storage::float16: return mean_rows<Half>(job, begin, end);
    case Storage::bfloat16: return mean_rows<Bfloat>(job, begin, end);
  }
}

}  // namespace sparsegen::SPARSEGEN_ISA
