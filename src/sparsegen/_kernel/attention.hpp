// Attention whose weights are projections:  out = project(scale Q K^T + bias, r) V, or shares of exponentials, or entmax.
//
// A block of queries is scored against all keys, each row of scores is projected while it is still in the caches, and only
// its support goes on: to the sum over values, and (as CSR) to the backward pass, which never looks at another entry. The
// scores of a block are all that is ever kept of the queries x keys matrix. Where few queries meet many keys, as in decoding,
// the keys are read once and nothing is packed.
#pragma once

#include "attention_choice.hpp"
#include "attention_vjp.hpp"

namespace sparsegen::SPARSEGEN_ISA {

template <class S>
class AttentionBlocks {
  using T = Wide<S>;

 public:
  explicit AttentionBlocks(const AttentionJob& job)
      : job_(job), scale_(job.scale), pairs_(can_pair(job)), workspace_(job.keys, 0), scratch_(workspace_.view()),
        chosen_(job.keys + 2 * kStep<T>),
        // The odd line more keeps rows whose length is a power of two out of the same few lines of the cache.
        stride_((job.keys + kPanel<T> - 1) / kPanel<T> * kPanel<T> + 64 / int64_t(sizeof(T))),
        scores_(new T[job.block_rows() * stride_]), maxima_(new T[job.block_rows() * stride_ / 2]),
        ranges_(new T[job.block_rows()]), queries_(new T[job.block_rows() * job.width + 1]), out_(new T[job.value_width + 1]),
        sums_(new T[job.block_rows() * job.value_width + 1]),
        spans_(new Span[job.block_rows()]), whole_(new int64_t[job.block_rows()]) {}

  void run(int64_t block) {
    const int64_t first = job_.first_row(block), n = job_.rows_in(block);
    const int64_t head = first / job_.queries / job_.group;
    Span all{job_.keys, 0};
    for (int64_t i = 0; i < n; ++i) {
      const int64_t query = (first + i) % job_.queries;
      spans_[i] = open_span<T>(job_, (first + i) / job_.queries, query, reach(query));
      if (spans_[i].low < spans_[i].high) all = {std::min(all.low, spans_[i].low), std::max(all.high, spans_[i].high)};
    }
    if (job_.few()) score_few(head, first, n);
    else if (all.low < all.high) score(head, first, n, all);
    wholes_ = 0;
    for (int64_t i = 0; i < n; ++i) finish(head, first + i, i, all, job_.pieces ? job_.pieces + block : nullptr);
    sum_whole(head, first, all);
  }

 private:
  static constexpr int64_t kNear = 24576;  // bytes of values
  static constexpr T kBig = std::numeric_limits<T>::max() / 4;

  static bool can_pair(const AttentionJob& job) {
    return kPairs && std::is_same_v<S, Bfloat> && job.pairs && job.width % 2 == 0 && job.k.row % 2 == 0 && !job.few();
  }

  int64_t reach(int64_t query) const { return job_.causal ? std::min(query + 1, job_.keys) : job_.keys; }
  const S* query_row(int64_t row) const { return row_of<S>(job_.q, row / job_.queries, row % job_.queries); }

  void score_few(int64_t head, int64_t first, int64_t n) {
    const int64_t E = job_.width;
    T* q = queries_.get();
    for (int64_t i = 0; i < n; ++i) {
      const Span span = spans_[i];
      if (span.low >= span.high) continue;
      const S* row = query_row(first + i);
      for (int64_t e = 0; e < E; ++e) q[e] = widen(row[e]) * scale_.before;
      score_keys(q, row_of<S>(job_.k, head, span.low), job_.k.row, E, span.high - span.low, scale_.after,
                 scores_.get() + i * stride_ + span.low);
    }
  }

  // Queries of a tile entry by entry, and the largest entry of each. In pairs they are not scaled before they meet the keys:
  // false if one is subnormal, or if a sum could be too large.
  bool pack_queries(int64_t first, int64_t n, bool pairs) {
    const int64_t E = pairs ? job_.width / 2 : job_.width;
    bool tame = true;
    for (int64_t from = 0; from < n; from += kTileRows) {
      const int64_t rows = std::min<int64_t>(kTileRows, n - from);
      T* to = queries_.get() + from * E;
      for (int64_t i = 0; i < rows; ++i) {
        const S* q = query_row(first + from + i);
        for (int64_t e = 0; e < E; ++e) {
          if (pairs) std::memcpy(to + e * rows + i, q + 2 * e, sizeof(T));
          else to[e * rows + i] = widen(q[e]) * scale_.before;
        }
        Mask<T> top{};
        tame &= !widen_range(q, job_.width, top);
        ranges_[from + i] = range<T>(top);
        tame &= bounded(ranges_[from + i], 1);
      }
    }
    return tame;
  }

  // No sum of products of a query and a key, nor any part of it, is then infinite or NaN.
  bool bounded(T query, double scale) const {
    return double(query) * double(largest_) * double(job_.width) * scale < double(kBig);
  }

  PackedKeys<S>& keys(bool pairs) {
    std::unique_ptr<PackedKeys<S>>& found = pairs ? paired_ : keys_;
    if (!found) found.reset(new PackedKeys<S>(job_, pairs));
    return *found;
  }

  void score(int64_t head, int64_t first, int64_t n, Span all) {
    bool pairs = pairs_;
    if (pairs) {
      keys(true).use(head, all.high);
      largest_ = keys(true).largest(all.high);
      pairs = !keys(true).tiny(all.high) && pack_queries(first, n, true);
    }
    PackedKeys<S>& packed = keys(pairs);
    packed.use(head, all.high);
    largest_ = packed.largest(all.high);
    if (!pairs) pack_queries(first, n, false);
    const int64_t E = pairs ? job_.width / 2 : job_.width;
    const ScoreTile<T> whole = tile_of<T>(kTileRows, pairs);
    const ScoreTile<T> last = tile_of<T>(int((n - 1) % kTileRows + 1), pairs);
    for (int64_t key = all.low; key < all.high; key += kPanel<T>)
      for (int64_t i = 0; i < n; i += kTileRows)
        (n - i < kTileRows ? last : whole)(queries_.get() + i * E, packed.panel(key), E, pairs ? T(job_.scale) : scale_.after,
                                           scores_.get() + i * stride_ + key, maxima_.get() + (i * stride_ + key) / 2, stride_);
  }

  // From places within a span to keys.
  void place(Span span) {
    for (int64_t j = 0; span.low && j < chosen_.n; ++j) chosen_.at[j] += int32_t(span.low);
  }

  // Finds the support of row `i` of the block.
  void find(int64_t row, int64_t i) {
    const Span span = spans_[i];
    const int64_t K = std::max<int64_t>(span.high - span.low, 0);
    T *x = scores_.get() + i * stride_ + span.low, *maxima = maxima_.get() + (i * stride_ + span.low) / 2;
    chosen_.n = 0, chosen_.dense = false;
    if (K && job_.mask_at) add_mask(job_, row / job_.queries, row % job_.queries, span, x);
    const double r = attention_radius(job_, row, x, K);
    if (K == 0) return;
    bool finite;
    const bool closed = job_.mask_at || job_.few();
    if (closed) {
      finite = look(x, K, maxima);
    } else {
      finite = bounded(ranges_[i], std::fabs(job_.scale));
      if (finite) close_row(x, K, maxima);
    }
    if (!finite) maxima = nullptr;
    switch (job_.weigh) {
      case Weigh::project: choose(x, K, r, maxima, scratch_, chosen_); break;
      case Weigh::shares: choose_shares(x, K, r, job_.temperature, finite && !closed, scratch_, chosen_); break;
      case Weigh::root: choose_root(x, K, maxima, scratch_, chosen_); break;
    }
    place(span);
    if (job_.mask_at && chosen_.n && std::isnan(chosen_.p[0])) {  // NaN throughout, also where nothing was scored
      chosen_.n = 0;
      for (int64_t j = 0; j < reach(row % job_.queries); ++j) chosen_.add(j, std::numeric_limits<T>::quiet_NaN());
    }
  }

  S* out_row(int64_t row) const { return static_cast<S*>(job_.out) + row * job_.value_width; }

  // Lists the support of a row that stands in the place of its scores.
  void list(int64_t i) {
    const Span span = spans_[i];
    choose_nonzero(scores_.get() + i * stride_ + span.low, span.high - span.low, chosen_);
    place(span);
  }

  // Gathers the values of the support that is listed.
  void sum_listed(int64_t head, int64_t row) {
    const T* weight = drop(job_, row, chosen_);
    if (!job_.out) return;
    T* sum = out_.get();
    if constexpr (std::is_same_v<S, T>) sum = out_row(row);
    combine(row_of<S>(job_.v, head, 0), job_.v.row, job_.value_width, chosen_.at.get(), weight, chosen_.n, sum);
    if constexpr (!std::is_same_v<S, T>) narrow_row<false>(sum, job_.value_width, out_row(row));
  }

  void finish(int64_t head, int64_t row, int64_t i, Span all, Piece* piece) {
    find(row, i);
    if (chosen_.dense && !piece && job_.dropout == 0 && job_.out) {
      T* x = scores_.get() + i * stride_;
      std::fill(x + all.low, x + spans_[i].low, T(0)), std::fill(x + spans_[i].high, x + all.high, T(0));
      whole_[wholes_++] = i;
      return;
    }
    if (chosen_.dense) list(i);
    sum_listed(head, row);
    if (!piece) return;
    job_.sizes[row] = chosen_.n;
    piece->index.insert(piece->index.end(), chosen_.at.get(), chosen_.at.get() + chosen_.n);
    auto& values = piece->values(T());
    values.insert(values.end(), chosen_.p.get(), chosen_.p.get() + chosen_.n);
  }

  // The rows of the block whose weights stand in the place of their scores: several at a time, and by stretches of keys whose
  // values stay in the nearest cache for all of them.
  void sum_whole(int64_t head, int64_t first, Span all) {
    const int64_t E = job_.value_width, stretch = std::max<int64_t>(16, kNear / (E * int64_t(sizeof(S)) + 1));
    std::fill_n(sums_.get(), wholes_ * E, T(0));
    for (int64_t key = all.low; wholes_ && key < all.high; key += stretch)
      for (int64_t from = 0; from < wholes_; from += kTileRows) add_values(head, from, key, std::min(stretch, all.high - key));
    for (int64_t i = 0; i < wholes_; ++i) {
      const T* sum = sums_.get() + i * E;
      const int64_t row = first + whole_[i];
      if (has_nan(sum, E)) {  // nothing times infinity, perhaps: what has no weight must not count
        list(whole_[i]);
        sum_listed(head, row);
      } else if constexpr (std::is_same_v<S, T>) {
        std::copy_n(sum, E, out_row(row));
      } else {
        narrow_row<false>(sum, E, out_row(row));
      }
    }
  }

  // n keys of up to kTileRows of those rows.
  void add_values(int64_t head, int64_t from, int64_t key, int64_t n) {
    static constexpr void (*add[])(const S*, int64_t, int64_t, int64_t, const Weighed<T>&) = {
        combine_rows<1, S, T>, combine_rows<2, S, T>, combine_rows<3, S, T>,
        combine_rows<4, S, T>, combine_rows<5, S, T>, combine_rows<6, S, T>};
    const int rows = int(std::min<int64_t>(kTileRows, wholes_ - from));
    Weighed<T> these;
    for (int i = 0; i < rows; ++i) {
      these.w[i] = scores_.get() + whole_[from + i] * stride_ + key;
      these.out[i] = sums_.get() + (from + i) * job_.value_width;
    }
    add[rows - 1](row_of<S>(job_.v, head, key), job_.v.row, job_.value_width, n, these);
  }

  const AttentionJob& job_;
  const Scale<T> scale_;
  const bool pairs_;
  Workspace<T> workspace_;
  const Scratch<T>& scratch_;
  std::unique_ptr<PackedKeys<S>> keys_, paired_;
  Chosen<T> chosen_;
  int64_t stride_;
  T largest_ = 0;
  std::unique_ptr<T[]> scores_, maxima_, ranges_, queries_, out_, sums_;
  std::unique_ptr<Span[]> spans_;
  std::unique_ptr<int64_t[]> whole_;  // the rows of a block left to sum_whole()
  int64_t wholes_ = 0;
};

// f(S()) for the storage type of a job.
template <class F>
inline void with_storage(Storage storage, F&& f) {
  switch (storage) {
    case Storage::float64: return f(double());
    case Storage::float16: return f(Half());
    case Storage::bfloat16: return f(Bfloat());
    default: return f(float());
  }
}

inline void attention(const AttentionJob& job, int64_t begin, int64_t end) {
  with_storage(job.storage, [&](auto s) {
    AttentionBlocks<decltype(s)> blocks(job);
    for (int64_t block = begin; block < end; ++block) blocks.run(block);
  });
}

inline void attention_vjp_rows(const AttentionVjpJob& job, int64_t begin, int64_t end) {
  with_storage(job.storage, [&](auto s) { vjp_rows_of<decltype(s)>(job, begin, end); });
}

inline void attention_vjp_keys(const AttentionVjpJob& job, int64_t begin, int64_t end) {
  with_storage(job.storage, [&](auto s) { vjp_keys_of<decltype(s)>(job, begin, end); });
}

}  // namespace sparsegen::SPARSEGEN_ISA
