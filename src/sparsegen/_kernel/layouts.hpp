// How a group sees its rows: one by one where they stand (ByRow), or transposed, K x W (ByLane).
#pragma once

#include "lanes.hpp"
#include "walks.hpp"

namespace sparsegen::SPARSEGEN_ISA {

// What a layout's first look at its rows finds.
template <class T>
struct Look {
  Vec<T> top, sum, squares;
};

// Which pass it is. Each of the first four, which every group makes, asks for a quarter of the memory of the group that comes
// next, to read and to write: a core waits for so few lines of memory at a time that asking for all of them in one pass would
// stall it. See docs/decisions/0026.
enum class Turn : int { look = 0, first = 1, second = 2, write = 3, later };
inline constexpr int kAskings = 4;

// What a pass over tau finds: the excess over it, the number of entries above it, and what the squares of the excess exceed
// kSquares by, if they are asked for.
template <class T>
struct Above {
  Vec<T> sum, count, over;
};

// A place to start from. The largest entries of parts of a row, its heads, are a subset of it: their threshold bounds the row's
// from below, and where few heads are above it, it is closer than the guess; a guess below it is none.
template <class T>
struct LinearStart {
  Vec<T> r, spread, guess;

  template <int N>
  Vec<T> from(const Vec<T>* heads) const {
    const Mask<T> sparse = r < spread * T(8);
    if (!lane_bits<T>(sparse)) return guess;
    Vec<T> head[N], bound, count;
    std::copy_n(heads, N, head);
    sorted_cut<N, T>(head, r, bound, count);
    const Mask<T> few = (r < spread * T(4)) & (count <= splat(T(N * 3 / 4)));
    return select<T>(sparse & (few | (bound > guess)), bound, guess);
  }
};

// n <= W rows where they stand, of at least W entries; those with masks behind them, or as the first look has copied them. A Length
// goes through one of them: see walks.hpp.
template <class T, class First, class Length = AnyLength<T>>
class ByRow {
  static constexpr int W = kWidth<T>;
  using Place = std::conditional_t<std::is_same_v<First, Copied<T>>, const T*, First>;

 public:
  static constexpr bool kWrittenTogether = false;
  static constexpr bool kMasked = !std::is_same_v<First, const T*>;

  // `written` are the rows of the result, null where it is written past the caches; `squares` is null unless rows are still to be
  // made of them, `masks` where there are none, and `slots`, `stride` entries each, are where rows behind masks are copied to. The
  // support of rows that are written past the caches goes to `words` unless null; those that lines do not begin with are written to
  // `spare` first, unless null.
  ByRow(const T* const* rows, int n, int64_t K, const Length& length, Next<T> next, T* const* written,
        const Squaring<T>* squares = nullptr, const uint8_t* const* masks = nullptr, T* slots = nullptr, int64_t stride = 0,
        uint32_t* const* words = nullptr, T* spare = nullptr)
      : rows_(rows), written_(written), squares_(squares), masks_(masks), slots_(slots), stride_(stride), words_(words),
        spare_(spare), n_(n), K_(K), length_(length), next_(next) {
    for (int i = n; i < W; ++i) sum_[i] = moments_[i] = Vec<T>{}, count_[i] = Mask<T>{};
  }

  // The sums are of the `size` entries that are not hidden, by a mask or if some are known to be.
  template <bool hidden>
  Look<T> look(Vec<T>& size) {
    const Length length = length_;
    T heads[W][kHeads];
    const T* from[W];
    for (int i = 0; i < W; ++i) from[i] = heads[i < n_ ? i : 0];
    for (int i = 0; i < n_; ++i) {
      ask_for_next(Turn::look, i);
      if (!kMasked && squares_) make<hidden>(i, heads[i]);
      else keep_sums(i, length.template look<hidden>(first(i), heads[i]));
    }
    if (hidden || kMasked) size = fold_counts<T>(count_);
    to_lanes(from, kHeads, heads_);
    Vec<T> top = load(heads_);
    for (int i = 1; i < kHeads; ++i) top = vmax(load(heads_ + i * W), top);
    return {top, fold_rows<T, Sum>(sum_), fold_rows<T, Sum>(moments_)};
  }

  // look<true>() at some of the rows, one bit each: the same bits as if their hidden entries had been known.
  Look<T> look_again(unsigned rows, Vec<T>& size) const {
    Vec<T> sum[W] = {}, squares[W] = {};
    Mask<T> n[W] = {};
    T heads[kHeads];
    for (int i = 0; i < n_; ++i) {
      if (!(rows >> i & 1)) continue;
      const RowSums<T> found = length_.template look<true>(row(i), heads);
      sum[i] = found.sum, squares[i] = found.squares, n[i] = found.count;
    }
    size = fold_counts<T>(n);
    return {Vec<T>{}, fold_rows<T, Sum>(sum), fold_rows<T, Sum>(squares)};
  }

  template <class Start>
  Vec<T> start(const Start& start) const {
    Vec<T> heads[kHeads];
    for (int i = 0; i < kHeads; ++i) heads[i] = load(heads_ + i * W);
    return start.template from<kHeads>(heads);
  }

  template <class F>
  bool sorted(Look<T>&, F&&) { return false; }

  template <bool squared = false>
  Above<T> above(Vec<T> tau, unsigned rows, Turn turn) {
    if (turn == Turn::first) sum_over<Turn::first, squared>(tau, rows);
    else if (turn == Turn::second) sum_over<Turn::second, squared>(tau, rows);
    else sum_over<Turn::later, squared>(tau, rows);
    return {-fold_rows<T, Sum>(sum_), fold_counts<T>(count_), squared ? fold_rows<T, Sum>(moments_) : Vec<T>{}};
  }

  // Rows that are written over are right: see write().
  void put_back(unsigned, T* const*) const {}

  // Returns the rows that are done: those with as many probabilities as the set has entries, and the `sure` ones.
  template <bool stream, class How = Straightly>
  unsigned write(unsigned rows, unsigned sure, const Recipe<T>& recipe, T* const* dst) const {
    const Length length = length_;
    Mask<T> count[W] = {};
    each_row<kTurnsBack>(rows, [&](int i) {
      // A row that is written over itself must be right the first time, for it may be needed again.
      if (rows_[i] == dst[i] && !(sure >> i & 1) && T(length.template count<How>(row(i), recipe, i)) != recipe.count[i]) return;
      ask_for_next(Turn::write, i);
      if constexpr (stream && std::is_same_v<How, Straightly> && !kMasked) {
        if (words_) return void(count[i] = length.template write<true, How, true>(row(i), recipe, i, dst[i], words_[i]));
      }
      T* const out = spare_ ? spare_ : dst[i];
      count[i] = length.template write<stream, How, false>(row(i), recipe, i, out, nullptr);
      if (spare_) put_row(out, K_, dst[i]);
    });
    return sure | lane_bits<T>(fold_counts<T>(count) == load(recipe.count));
  }

 private:
  static constexpr int kHeads = row_heads(W);
  // Does each pass begin with the row that the one before ended with? Sixteen rows of 512 floats are the first cache: in one order
  // always, each would just have been dropped when it is wanted. Groups of fewer rows fit.
  static constexpr bool kTurnsBack = W == 16 && Length::kLong;
  // Of n rows those that are wanted, one bit each. (The end of a loop over bits is all that is to be foreseen.)
  template <bool back, class F>
  __attribute__((always_inline)) void each_row(unsigned rows, F&& f) const {
    for (unsigned left = rows & (~0u >> (32 - n_)); left;) {
      const int i = back ? 31 - __builtin_clz(left) : __builtin_ctz(left);
      left &= ~(1u << i);
      f(i);
    }
  }

  void keep_sums(int i, const RowSums<T>& found) { sum_[i] = found.sum, moments_[i] = found.squares, count_[i] = found.count; }

  // The i-th of W equal parts of a pass's share. A call would have all vectors taken out of their registers.
  __attribute__((always_inline)) void ask_for_next(Turn pass, int i) const {
    if (n_ < W) return;  // the last group
    const int at = int(pass) * W + i, row = at / kAskings, part = at % kAskings;
    length_.ask(next_.x ? next_.x + row * next_.step : rows_[row] + W * K_, part, kAskings, prefetch_far);
    if (kMasked && pass == Turn::write) each_line(masks_[i] + W * K_, K_, 0, 1, prefetch_far);  // few lines: all of them at once
    if (written_) length_.ask(written_[row] + W * K_, part, kAskings, prefetch_far_to_write);
  }

  static constexpr bool kCopied = std::is_same_v<First, Copied<T>>;

  // Row i for the first look, and for all after it.
  First first(int i) const {
    if constexpr (kCopied) return {rows_[i], masks_[i], slots_ + i * stride_};
    else return row(i);
  }
  Place row(int i) const {
    if constexpr (kCopied) return slots_ + i * stride_;
    else if constexpr (kMasked) return {rows_[i], masks_[i]};
    else return rows_[i];
  }

  // A look at a row of squares; apart, as it would crowd out the others.
  template <bool hidden>
  __attribute__((noinline)) void make(int i, T* heads) {
    const Squaring<T>& made = squares_[i];
    T* const slot = const_cast<T*>(rows_[i]);
    if (made.open) keep_sums(i, length_.template look<hidden>(Making<T, true>{made.z, slot, made}, heads));
    else keep_sums(i, length_.template look<hidden>(Making<T, false>{made.z, slot, made}, heads));
  }

  // The first pass is at a guess: its sum need not be exact.
  template <Turn turn, bool squared>
  void sum_over(Vec<T> tau, unsigned rows) {
    alignas(kVectorBytes) T at[W];
    store(at, tau);
    const Length length = length_;
    each_row<kTurnsBack && turn == Turn::first>(rows, [&](int i) {
      if (turn != Turn::later) ask_for_next(turn, i);
      const RowSums<T> found = length.template above<turn != Turn::first, squared>(row(i), splat(at[i]));
      sum_[i] = found.sum, count_[i] = found.count;
      if constexpr (squared) moments_[i] = found.squares;
    });
  }

  const T* const* rows_;
  T* const* written_;
  const Squaring<T>* squares_;
  const uint8_t* const* masks_;
  T* slots_;
  int64_t stride_;
  uint32_t* const* words_;
  T* spare_;
  int n_;
  int64_t K_;
  Length length_;
  Next<T> next_;
  Vec<T> sum_[W], moments_[W];  // of each row, lanes not yet folded
  Mask<T> count_[W];
  alignas(kVectorBytes) T heads_[kHeads * W];
};

// cut(N, v) puts the N entries of a lane in order.
template <int N, class T, class F>
inline void sort_whole(const T* lanes, Look<T>& all, F&& cut) {
  Vec<T> v[N];
  all.sum = Vec<T>{};
  for (int k = 0; k < N; ++k) v[k] = load(lanes + k * kWidth<T>), all.sum += v[k];
  cut(std::integral_constant<int, N>(), v);
  all.top = v[0];
}

inline constexpr int kSortLimit = 16;

template <class T, int N = kTile<T>, class F>
inline bool sort_if_short(int64_t K, const T* lanes, Look<T>& all, F&& cut) {
  if constexpr (N > kSortLimit) return false;
  else if (K == N) return sort_whole<N, T>(lanes, all, cut), true;
  else return sort_if_short<T, N + 1>(K, lanes, all, cut);
}

// W rows of K >= kTile entries, transposed into `lanes`; what their masks hide is -inf there.
template <class T>
class ByLane {
  static constexpr int W = kWidth<T>;

 public:
  static constexpr bool kMasked = false;          // what is hidden is seen by its value
  static constexpr bool kWrittenTogether = true;  // a wrong set in one row has all of them written again: a third pass pays

  // `ahead` rows on are those that come next, in the scores, in the result `written` and in the masks, if there are any.
  __attribute__((always_inline)) ByLane(const T* const* rows, int n, int64_t K, T* lanes, int ahead, T* const* written,
                                        const uint8_t* const* masks = nullptr)
      : next_(rows[0] + ahead * K), written_(written[0] + ahead * K), K_(K), lanes_(lanes), last_(n < W) {
    ask_for_next(Turn::look);
    if (masks) {
      to_lanes_masked(rows, n, K, lanes, ahead, masks);
    } else if (n == 1) {
      to_all_lanes(rows[0], K, lanes);
    } else {
      const T* all[W];
      for (int i = 0; n < W && i < W; ++i) all[i] = rows[i < n ? i : 0];
      to_lanes(n < W ? all : rows, K, lanes);
    }
  }

  // Asks for the share of a pass, for those that are not made.
  void ask_for_next(Turn pass) const {
    if (last_) return;  // of a call
    const auto ask = [&](const T* memory, auto hint) { each_line(memory, W * K_, int(pass), kAskings, hint); };
    if (W * K_ * int(sizeof(T)) > kNear) ask(next_, prefetch_far), ask(written_, prefetch_far_to_write);
    else ask(next_, prefetch), ask(written_, prefetch_to_write);
  }

  // Four chains of additions here and below: with fewer, each waits for the one before.
  template <bool hidden>
  Look<T> look(Vec<T>& size) {
    constexpr int N = std::max(4, kHeads), tops = std::max(2, kHeads);
    Vec<T> top[tops], s[4] = {}, q[4] = {};
    Mask<T> n{};
    std::fill_n(top, tops, splat(-kInf<T>));
    const T *x = lanes_, *const end = x + K_ * W;
    for (; x + N * W <= end; x += N * W)
      for (int j = 0; j < N; ++j) {
        const Vec<T> v = load(x + j * W);
        top[j % tops] = vmax(v, top[j % tops]), add_moments<hidden, T>(v, s[j % 4], q[j % 4], n);
      }
    for (; x < end; x += W) {
      const Vec<T> v = load(x);
      top[0] = vmax(v, top[0]), add_moments<hidden, T>(v, s[0], q[0], n);
    }
    if (hidden) size = __builtin_convertvector(-n, Vec<T>);
    for (int j = 0; j < kHeads; ++j) heads_[j] = top[j];
    for (int n = tops / 2; n > 0; n /= 2)
      for (int j = 0; j < n; ++j) top[j] = vmax(top[j], top[j + n]);
    return {top[0], (s[0] + s[1]) + (s[2] + s[3]), (q[0] + q[1]) + (q[2] + q[3])};
  }

  Look<T> look_again(unsigned, Vec<T>& size) { return look<true>(size); }

  template <class Start>
  Vec<T> start(const Start& start) const {
    ask_for_next(Turn::first);
    if constexpr (kHeads == 0) return start.guess;
    else return start.template from<kHeads>(heads_);
  }

  template <class F>
  bool sorted(Look<T>& all, F&& cut) const {
    if (K_ <= kSortLimit) ask_for_next(Turn::first);  // such rows make no first pass
    return sort_if_short<T>(K_, lanes_, all, cut);
  }

  template <bool squared = false>
  Above<T> above(Vec<T> tau, unsigned, Turn turn) const {
    if (turn == Turn::second) ask_for_next(Turn::second);
    Vec<T> sum{}, squares = splat(T(-kSquares)), lost{};
    Mask<T> n0{}, n1{};
    const T *x = lanes_, *const end = x + K_ * W;
    while (x + 4 * W <= end) {
      Vec<T> s0{}, s1{}, s2{}, s3{}, q0{}, q1{}, q2{}, q3{};
      const int64_t turns = std::min<int64_t>(kSpanTurns, (end - x) / (4 * W));
      for (const T* stop = x + turns * 4 * W; x != stop; x += 4 * W) {
        const Vec<T> d0 = tau - load(x), d1 = tau - load(x + W), d2 = tau - load(x + 2 * W), d3 = tau - load(x + 3 * W);
        add_below<squared, T>(d0, s0, q0, n0);
        add_below<squared, T>(d1, s1, q1, n1);
        add_below<squared, T>(d2, s2, q2, n0);
        add_below<squared, T>(d3, s3, q3, n1);
      }
      sum += (s0 + s1) + (s2 + s3);
      if constexpr (squared) add_exactly((q0 + q1) + (q2 + q3), squares, lost);
    }
    for (; x < end; x += W) {
      const Vec<T> d = tau - load(x);
      add_below<squared, T>(d, sum, squares, n0);
    }
    return {-sum, __builtin_convertvector(-(n0 + n1), Vec<T>), squares + lost};
  }

  // The scores of `rows` once more, for those that were written over and are not right.
  void put_back(unsigned rows, T* const* dst) const {
    from_lanes<T>(K_, dst, rows, [=](int64_t at, bool) { return load(lanes_ + at); });
  }

  // See ByRow::write(). The scores are kept, so a row written wrong is written again.
  template <bool, class How = Straightly>
  unsigned write(unsigned rows, unsigned sure, const Recipe<T>& recipe, T* const* dst) const {
    const Vec<T> tau = load(recipe.tau), rest = load(recipe.rest), error = -load(recipe.error), scale = -load(recipe.scale);
    const T* const lanes = lanes_;
    ask_for_next(Turn::write);
    const auto probability = [=](int64_t at, auto&& count) {
      const Vec<T> d = How::below(tau, load(lanes + at), rest);
      const Mask<T> on = d < error;
      count(on);
      return keep<T>(on, How::share(d, scale));
    };
    if ((rows & ~sure) == 0) {
      from_lanes<T>(K_, dst, rows, [=](int64_t at, bool) { return probability(at, [](Mask<T>) {}); });
      return sure;
    }
    Mask<T> n{};
    from_lanes<T>(K_, dst, rows, [&](int64_t at, bool first) {
      return probability(at, [&](Mask<T> on) { if (first) n -= on; });
    });
    return sure | lane_bits<T>(__builtin_convertvector(n, Vec<T>) == load(recipe.count));
  }

 private:
  static constexpr int kHeads = kVectorBytes < 64 ? 0 : 8;  // fewer registers have no room for so many maxima
  static constexpr int64_t kNear = 2560;  // bytes; more, with their lanes and what comes next, crowd the first cache

  // Called, not made part of what calls it: rows without masks would pay for its registers.
  __attribute__((noinline)) static void to_lanes_masked(const T* const* rows, int n, int64_t K, T* lanes, int ahead,
                                                        const uint8_t* const* masks) {
    if (n == 1) {
      to_all_lanes(rows[0], K, lanes);
      for (int64_t k = 0; k < K; ++k)
        if (!masks[0][k]) store(lanes + k * W, splat(-kInf<T>));
      return;
    }
    const T* all[W];
    const uint8_t* behind[W];
    for (int i = 0; n < W && i < W; ++i) all[i] = rows[i < n ? i : 0], behind[i] = masks[i < n ? i : 0];
    if (n == W) each_line(masks[0] + ahead * K, W * K, 0, 1, prefetch);  // few lines: all of them at once
    to_lanes<true>(n < W ? all : rows, K, lanes, n < W ? behind : masks);
  }

  const T *next_, *written_;
  int64_t K_;
  T* lanes_;
  bool last_;
  Vec<T> heads_[std::max(1, kHeads)];
};

}  // namespace sparsegen::SPARSEGEN_ISA
