// Attention whose weights are projections:  out = project(scale Q K^T + bias, r) V.
//
// A block of queries is scored against all keys, each row of scores is projected while it is still in the caches, and only
// its support goes on: to the sum over values, and (as CSR) to the backward pass, which never looks at another entry. The
// scores of a block are all that is ever kept of the queries x keys matrix.
#pragma once

#include <memory>

#include "rows.hpp"

namespace sparsegen::SPARSEGEN_ISA {

inline constexpr int kTileRows = 6;  // 6 x 2 vectors of sums, 2 of keys and one of a query fill 15 of 16 registers
template <class T>
inline constexpr int kPanel = 2 * kWidth<T>;  // keys scored together

template <class T>
using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;

template <class T>
inline const T* row_of(const Heads& m, int64_t head, int64_t i) {
  return static_cast<const T*>(m.data) + m.at[head] + i * m.row;
}

// The largest |x| of a row joins `top`, compared as integers: NaN is above infinity, and both above all numbers.
template <class T>
inline void widen_range(const T* x, int64_t n, Mask<T>& top) {
  each_vector<T>(n, [&](int64_t at, auto get, auto) {
    const Mask<T> size = (Mask<T>)get(x + at) & std::numeric_limits<Bits<T>>::max();
    top = size > top ? size : top;
  });
}

template <class T>
inline T range(Mask<T> top) {
  Bits<T> most = 0;
  for (int i = 0; i < kWidth<T>; ++i) most = std::max<Bits<T>>(most, top[i]);
  T largest;
  std::memcpy(&largest, &most, sizeof largest);
  return largest;
}

// The keys of one head, panel by panel, entry by entry, key by key: a tile reads them in order. Packed as far as needed.
template <class T>
class PackedKeys {
 public:
  explicit PackedKeys(const AttentionJob& job)
      : job_(job), data_(new T[(job.keys + kPanel<T>) * job.width + kPanel<T>]) {}
  void use(int64_t head, int64_t keys) {
    if (head != head_) head_ = head, done_ = 0, top_ = Mask<T>{};
    for (; done_ < keys; done_ += kPanel<T>) pack(done_);
  }
  const T* panel(int64_t key) const { return data_.get() + key * job_.width; }
  T largest() const { return range<T>(top_); }

 private:
  void pack(int64_t key) {
    constexpr int P = kPanel<T>, N = kTile<T>;
    const int64_t E = job_.width, n = std::min<int64_t>(P, job_.keys - key);
    const T* from = row_of<T>(job_.k, head_, key);
    T* to = data_.get() + key * E;
    for (int64_t j = 0; j < n; ++j) widen_range(from + j * job_.k.row, E, top_);
    int64_t e = 0;
    for (; n == P && e + N <= E; e += N)
      for (int j = 0; j < P; j += N) {
        Tile<T> tile;
        for (int i = 0; i < N; ++i) tile.load(i, from + (j + i) * job_.k.row + e);
        tile.transpose();
        for (int i = 0; i < N; ++i) tile.store(i, to + (e + i) * P + j);
      }
    for (; e < E; ++e)
      for (int j = 0; j < P; ++j) to[e * P + j] = j < n ? from[j * job_.k.row + e] : T(0);
  }
  const AttentionJob& job_;
  std::unique_ptr<T[]> data_;
  int64_t head_ = -1, done_ = 0;
  Mask<T> top_{};
};

// The scores of R queries (entry by entry, query by query) and one panel, and the larger of each score and the one W on.
template <int R, class T>
inline void score_tile(const T* q, const T* k, int64_t E, T* s, T* maxima, int64_t stride) {
  constexpr int W = kWidth<T>;
  Vec<T> a[R], b[R];  // registers, once all loops over them are unrolled
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) a[i] = b[i] = Vec<T>{};
  for (int64_t e = 0; e < E; ++e, q += R, k += 2 * W) {
    const Vec<T> k0 = load(k), k1 = load(k + W);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Vec<T> qi = splat(q[i]);
      a[i] = fma(qi, k0, a[i]), b[i] = fma(qi, k1, b[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    store(s + i * stride, a[i]), store(s + i * stride + W, b[i]);
    store(maxima + i * stride / 2, vmax(a[i], b[i]));
  }
}

template <class T>
inline void score_tile(int rows, const T* q, const T* k, int64_t E, T* s, T* maxima, int64_t stride) {
  switch (rows) {
    case 1: return score_tile<1>(q, k, E, s, maxima, stride);
    case 2: return score_tile<2>(q, k, E, s, maxima, stride);
    case 3: return score_tile<3>(q, k, E, s, maxima, stride);
    case 4: return score_tile<4>(q, k, E, s, maxima, stride);
    case 5: return score_tile<5>(q, k, E, s, maxima, stride);
    default: return score_tile<kTileRows>(q, k, E, s, maxima, stride);
  }
}

// sum_j w[j] * row at[j] of a matrix, to `out`.
template <int N, class T>
inline void combine_vectors(const T* m, int64_t stride, const int32_t* at, const T* w, int64_t n, T* out) {
  constexpr int W = kWidth<T>;
  Vec<T> sum[N];
#pragma GCC unroll 8
  for (int v = 0; v < N; ++v) sum[v] = Vec<T>{};
  for (int64_t j = 0; j < n; ++j) {
    const T* row = m + at[j] * stride;
    const Vec<T> wj = splat(w[j]);
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) sum[v] = fma(wj, load(row + v * W), sum[v]);
  }
#pragma GCC unroll 8
  for (int v = 0; v < N; ++v) store(out + v * W, sum[v]);
}

template <class T>
inline void combine(const T* m, int64_t stride, int64_t E, const int32_t* at, const T* w, int64_t n, T* out) {
  constexpr int W = kWidth<T>;
  int64_t e = 0;
  for (; e + 8 * W <= E; e += 8 * W) combine_vectors<8>(m + e, stride, at, w, n, out + e);
  for (; e + W <= E; e += W) combine_vectors<1>(m + e, stride, at, w, n, out + e);
  const int left = int(E - e);
  if (!left) return;
  Vec<T> sum{};
  for (int64_t j = 0; j < n; ++j) sum = fma(splat(w[j]), load_part(m + at[j] * stride + e, left), sum);
  store_part(out + e, sum, left);
}

// out += w * x
template <class T>
inline void add_multiple(T w, const T* x, int64_t E, T* out) {
  each_vector<T>(E, [&](int64_t at, auto get, auto put) { put(out + at, fma(splat(w), get(x + at), get(out + at))); });
}

template <class T>
inline T dot(const T* x, const T* y, int64_t E) {
  constexpr int W = kWidth<T>;
  Vec<T> a{}, b{}, c{}, d{};
  int64_t e = 0;
  for (; e + 4 * W <= E; e += 4 * W) {
    a = fma(load(x + e), load(y + e), a), b = fma(load(x + e + W), load(y + e + W), b);
    c = fma(load(x + e + 2 * W), load(y + e + 2 * W), c), d = fma(load(x + e + 3 * W), load(y + e + 3 * W), d);
  }
  each_vector<T>(E - e, [&](int64_t at, auto get, auto) { a = fma(get(x + e + at), get(y + e + at), a); });
  return lanes_sum((a + b) + (c + d));
}

// A number in [0, 1) for each weight, the same whoever asks and in whatever order (splitmix64's mixing).
inline double chance(uint64_t seed, uint64_t row, uint64_t key) {
  uint64_t h = seed;
  for (uint64_t x : {row, key}) {
    h += x * 0x9E3779B97F4A7C15u + 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9u;
    h = (h ^ h >> 27) * 0x94D049BB133111EBu;
    h ^= h >> 31;
  }
  return double(h >> 11) * 0x1p-53;
}

// The support of a row: where and how much.
template <class T>
struct Chosen {
  std::unique_ptr<int32_t[]> at;
  std::unique_ptr<T[]> p, weight;
  int64_t n = 0;
  explicit Chosen(int64_t K) : at(new int32_t[K]), p(new T[K]), weight(new T[K]) {}
  void add(int64_t i, T value) { at[n] = int32_t(i), p[n++] = value; }
};

template <class T>
inline void choose_step(const T* x, int64_t from, Vec<T> tau, Vec<T> rest, Vec<T> error, Vec<T> scale, Chosen<T>& out) {
  for (int j = 0; j < kStep<T>; j += kWidth<T>) {
    const Vec<T> d = (load(x + j) - tau) - rest;
    unsigned bits = lane_bits<T>(d > error);
    if (!bits) continue;
    const Vec<T> p = d * scale;
    T lanes[kWidth<T>];
    store(lanes, p);
    for (; bits; bits &= bits - 1) {
      const int lane = __builtin_ctz(bits);
      out.add(from + j + lane, lanes[lane]);
    }
  }
}

// write_row() of simplex.hpp for the support only.
template <class T>
inline void choose_row(const Row<T>& row, const T* maxima, const Cut<T>& cut, double r, Chosen<T>& out) {
  const Vec<T> tau = splat(cut.tau), rest = splat(T(cut.rest)), scale = splat(T(1 / r));
  const Vec<T> error = splat(T(kRounding<T> * r / double(cut.count))), bound = splat(cut.rest < 0 ? -kInf<T> : cut.tau);
  for (int64_t from = 0; from < row.steps; from += kBlock, maxima += kWidth<T>) {
    if (!lane_bits<T>(load(maxima) > bound)) continue;
    for (int64_t i = from; i < std::min(from + kBlock, row.steps); ++i)
      choose_step(row.at(i), i * kStep<T>, tau, rest, error, scale, out);
  }
}

// False where the row needs project_any: see project_direct().
template <class T>
inline bool choose_direct(const T* x, int64_t K, double r, const Scratch<T>& s, Chosen<T>& out) {
  if (!plain_radius<T>(r)) return false;
  const Row<T> row(x, K);
  Survey<T> all;
  survey(row.x, row.full, kBlock, s.maxima, all);
  if (row.steps > row.full) survey_tail(row, s.maxima, all);
  const T top = lanes_max(all.top);
  if (!(std::fabs(top) < kInf<T>) || std::isnan(lanes_sum(all.sum))) return false;
  const Cut<T> cut = find_cut(row, K, s.maxima, all, r, s.picked);
  if (!(cut.count > 0 && cut.sum <= 2 * r)) return false;
  choose_row(row, s.maxima, cut, r, out);
  return true;
}

inline constexpr int32_t kLane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Appends the places `from` + lane of the lanes whose bit is set. Writes up to W entries.
template <class T>
inline void pack_places(int32_t* out, int64_t from, unsigned bits) {
  if constexpr (sizeof(T) == 4) {
    Mask<float> lanes;
    std::memcpy(&lanes, kLane, sizeof lanes);
    const Mask<float> places = lanes + int32_t(from);
    float* to = reinterpret_cast<float*>(out);
    pack<float>(to, (Vec<float>)places, bits);
  } else {
    for (; bits; bits &= bits - 1) *out++ = int32_t(from) + __builtin_ctz(bits);
  }
}

// The entries of a row above `low`, from the panels that have any, to `out`; false once they are more than a quarter.
// Which panels those are is settled for 64 of them before any is visited: branches on it would be guesses.
template <class T>
inline bool pick_panels(const T* x, int64_t panels, const T* maxima, T low, Chosen<T>& out) {
  constexpr int W = kWidth<T>;
  const Vec<T> bound = splat(low);
  int32_t* at = out.at.get();  // copies: the compiler need not fear that writing changes them
  T* p = out.p.get();
  for (int64_t base = 0; base < panels; base += 64) {
    const int n = int(std::min<int64_t>(64, panels - base));
    uint64_t some = 0;
    for (int i = 0; i < n; ++i) some |= uint64_t(lane_bits<T>(load(maxima + (base + i) * W) > bound) != 0) << i;
    if (__builtin_popcountll(some) * 4 > n * 3 && n > 8) return false;
    for (; some; some &= some - 1) {
      const int64_t from = (base + __builtin_ctzll(some)) * kPanel<T>;
      for (int64_t i = from; i < from + kPanel<T>; i += W) {
        const Vec<T> v = load(x + i);
        const unsigned bits = lane_bits<T>(v > bound);
        pack_places<T>(at, i, bits);
        const int added = pack(p, v, bits);
        at += added, p += added;
      }
    }
  }
  out.n = p - out.p.get();
  return true;
}

// From the picked scores to the support's probabilities, in place.
template <class T>
inline void choose_picked(const Cut<T>& cut, double r, Chosen<T>& c) {
  constexpr int W = kWidth<T>;
  const Vec<T> tau = splat(cut.tau), rest = splat(T(cut.rest)), scale = splat(T(1 / r));
  const Vec<T> error = splat(T(kRounding<T> * r / double(cut.count)));
  int64_t n = 0;
  for (int64_t i = 0; i < c.n; i += W) {
    const Vec<T> d = (load(c.p.get() + i) - tau) - rest;
    const unsigned bits = lane_bits<T>(d > error);
    int32_t places[W];
    std::memcpy(places, c.at.get() + i, sizeof places);
    if constexpr (sizeof(T) == 4) {
      Vec<float> moved;
      std::memcpy(&moved, places, sizeof moved);
      pack<float>(reinterpret_cast<float*>(c.at.get() + n), moved, bits);
    } else {
      int32_t* to = c.at.get() + n;
      for (unsigned left = bits; left; left &= left - 1) *to++ = places[__builtin_ctz(left)];
    }
    n += pack(c.p.get() + n, d * scale, bits);
  }
  c.n = n;
}

// A row of finite scores with the maxima score_tile() left. tau is at least the largest score less r: what lies above that
// is picked, and as a rule it is little. False where it is not, or where the row needs project_any.
template <class T>
inline bool choose_quick(T* x, int64_t K, double r, T* maxima, Chosen<T>& out) {
  constexpr int W = kWidth<T>, P = kPanel<T>;
  if (!plain_radius<T>(r)) return false;
  const int64_t panels = (K + P - 1) / P, last = (panels - 1) * P;
  if (K % P) {
    std::fill(x + K, x + last + P, -kInf<T>);
    store(maxima + (panels - 1) * W, vmax(load(x + last), load(x + last + W)));
  }
  Vec<T> top = splat(-kInf<T>);
  for (int64_t i = 0; i < panels; ++i) top = vmax(load(maxima + i * W), top);
  const T low = add_down(lanes_max(top), -r);
  if (!pick_panels(x, panels, maxima, low, out)) return false;
  const int64_t end = (out.n + kStep<T> - 1) / kStep<T> * kStep<T>;
  std::fill(out.p.get() + out.n, out.p.get() + end, -kInf<T>);
  const Cut<T> cut = newton(Row<T>(out.p.get(), end), low, low, r);
  if (!(cut.count > 0 && cut.sum <= 2 * r)) return false;
  choose_picked(cut, r, out);
  return true;
}

// The support of scores `x`, which may be overwritten; `maxima` are null unless all scores are finite. A row that is not a number has all its entries, each NaN.
template <class T>
inline void choose(T* x, int64_t K, double r, T* maxima, const Scratch<T>& s, Chosen<T>& out) {
  out.n = 0;
  if (maxima && choose_quick(x, K, r, maxima, out)) return;
  out.n = 0;
  if (choose_direct(x, K, r, s, out)) return;
  double threshold;
  project_any(x, K, r, x, s, threshold);
  for (int64_t i = 0; i < K; ++i)
    if (x[i] != 0) out.add(i, x[i]);
}

template <class T>
inline void add_mask(const AttentionJob& job, int64_t head, int64_t query, T* x) {
  const int64_t at = job.mask_at[head] + query * job.mask_row, step = job.mask_key;
  if (job.mask) {
    const uint8_t* mask = job.mask + at;
    if (step == 1)
      for (int64_t j = 0; j < job.keys; ++j) x[j] = mask[j] ? x[j] : -kInf<T>;
    else if (!*mask) std::fill_n(x, job.keys, -kInf<T>);
  } else {
    const T* bias = static_cast<const T*>(job.bias) + at;
    for (int64_t j = 0; j < job.keys; ++j) x[j] += bias[j * step];
  }
}

template <class T>
inline double attention_radius(const AttentionJob& job, int64_t row, const T* x, int64_t K) {
  if (job.rule == Rule::given) return job.radius_of(row);
  double n;
  const double mean = mean_row(x, K, n), r = mean_radius(job.rule, mean, n, job.radius_of(row));
  if (job.radius_out) job.radius_out[row] = r, job.mean_out[row] = mean, job.count_out[row] = n;
  return r;
}

// The weights of a row after dropout; those it took are marked in p.
template <class T>
inline const T* drop(const AttentionJob& job, int64_t row, Chosen<T>& c) {
  if (job.dropout == 0) return c.p.get();
  const T keep = job.dropout < 1 ? T(1 / (1 - job.dropout)) : T(0);
  for (int64_t j = 0; j < c.n; ++j) {
    const bool taken = chance(job.seed, uint64_t(row), uint64_t(c.at[j])) < job.dropout;
    c.weight[j] = taken ? 0 * c.p[j] : c.p[j] * keep;
    if (taken) c.p[j] = -c.p[j];
  }
  return c.weight.get();
}

template <class T>
class AttentionBlocks {
 public:
  explicit AttentionBlocks(const AttentionJob& job)
      : job_(job), workspace_(job.keys, 0), scratch_(workspace_.view()), keys_(job), chosen_(job.keys + 2 * kStep<T>),
        // The odd line more keeps rows whose length is a power of two out of the same few lines of the cache.
        stride_((job.keys + kPanel<T> - 1) / kPanel<T> * kPanel<T> + 64 / int64_t(sizeof(T))),
        scores_(new T[job.block * stride_]), maxima_(new T[job.block * stride_ / 2]), ranges_(new T[job.block]),
        queries_(new T[job.block * job.width + 1]) {}

  void run(int64_t block) {
    const int64_t head = block / job_.blocks(), first = block % job_.blocks() * job_.block;
    const int64_t n = std::min(job_.block, job_.queries - first);
    score(head, first, n);
    const T largest = keys_.largest();
    for (int64_t i = 0; i < n; ++i) {
      // No score, nor any part of its sum, can then be infinite or NaN.
      const bool finite = double(ranges_[i]) * double(largest) * double(job_.width) < double(kBig);
      T* maxima = finite && !job_.mask_at ? maxima_.get() + i * stride_ / 2 : nullptr;
      finish(head, first + i, scores_.get() + i * stride_, maxima, piece(block));
    }
  }

 private:
  static constexpr T kBig = std::numeric_limits<T>::max() / 4;
  Piece* piece(int64_t block) const { return job_.pieces ? job_.pieces + block : nullptr; }
  int64_t reach(int64_t query) const { return job_.causal ? std::min(query + 1, job_.keys) : job_.keys; }

  void pack_queries(int64_t head, int64_t first, int64_t n) {
    const int64_t E = job_.width;
    const T scale = T(job_.scale);
    for (int64_t from = 0; from < n; from += kTileRows) {
      const int64_t rows = std::min<int64_t>(kTileRows, n - from);
      T* to = queries_.get() + from * E;
      for (int64_t i = 0; i < rows; ++i) {
        const T* q = row_of<T>(job_.q, head, first + from + i);
        for (int64_t e = 0; e < E; ++e) to[e * rows + i] = q[e] * scale;
        Mask<T> top{};
        widen_range(q, E, top);
        ranges_[from + i] = range<T>(top) * std::fabs(scale);
      }
    }
  }

  void score(int64_t head, int64_t first, int64_t n) {
    const int64_t E = job_.width, end = reach(first + n - 1);
    keys_.use(head / job_.group, end);
    pack_queries(head, first, n);
    for (int64_t key = 0; key < end; key += kPanel<T>)
      for (int64_t i = 0; i < n; i += kTileRows)
        score_tile(int(std::min<int64_t>(kTileRows, n - i)), queries_.get() + i * E, keys_.panel(key), E,
                   scores_.get() + i * stride_ + key, maxima_.get() + (i * stride_ + key) / 2, stride_);
  }

  void finish(int64_t head, int64_t query, T* x, T* maxima, Piece* piece) {
    const int64_t row = head * job_.queries + query, K = reach(query);
    if (job_.mask_at) add_mask(job_, head, query, x);
    choose(x, K, attention_radius(job_, row, x, K), maxima, scratch_, chosen_);
    const T* weight = drop(job_, row, chosen_);
    if (job_.out)
      combine(row_of<T>(job_.v, head / job_.group, 0), job_.v.row, job_.value_width, chosen_.at.get(), weight, chosen_.n,
              static_cast<T*>(job_.out) + row * job_.value_width);
    if (!piece) return;
    job_.sizes[row] = chosen_.n;
    piece->index.insert(piece->index.end(), chosen_.at.get(), chosen_.at.get() + chosen_.n);
    auto& values = piece->values(T());
    values.insert(values.end(), chosen_.p.get(), chosen_.p.get() + chosen_.n);
  }

  const AttentionJob& job_;
  Workspace<T> workspace_;
  const Scratch<T>& scratch_;
  PackedKeys<T> keys_;
  Chosen<T> chosen_;
  int64_t stride_;
  std::unique_ptr<T[]> scores_, maxima_, ranges_, queries_;
};

template <class T>
inline void attention_blocks(const AttentionJob& job, int64_t begin, int64_t end) {
  AttentionBlocks<T> blocks(job);
  for (int64_t block = begin; block < end; ++block) blocks.run(block);
}

// One row backwards: the slopes of its scores, from those of its weights in `slope`; returns w.p, see vjp.hpp.
template <class T>
inline double slopes_of_row(const T* p, int64_t n, double r, T* slope) {
  if (std::isnan(p[0])) {
    std::fill_n(slope, n, p[0]);
    return p[0];
  }
  double sum = 0, along = 0;
  for (int64_t j = 0; j < n; ++j) sum += slope[j];
  const T mean = T(sum / double(n)), scale = vjp_scale<T>(r);
  for (int64_t j = 0; j < n; ++j) {
    const T w = slope[j] - mean;
    along += double(w) * std::fabs(p[j]);
    slope[j] = w * scale;
  }
  return along;
}

template <class T>
inline void vjp_row(const AttentionVjpJob& job, int64_t row) {
  const int64_t from = job.indptr[row], n = job.indptr[row + 1] - from, head = row / job.queries / job.group;
  const int32_t* at = job.index + from;
  const T *p = static_cast<const T*>(job.value) + from, *more = static_cast<const T*>(job.value_grad);
  const T *grad = static_cast<const T*>(job.out_grad) + row * job.value_width, *v = row_of<T>(job.v, head, 0);
  T* slope = static_cast<T*>(job.slopes) + from;
  for (int64_t j = 0; j < n; ++j) {
    const T found = dot(grad, v + at[j] * job.v.row, job.value_width) + (more ? more[from + j] : T(0));
    slope[j] = p[j] < 0 ? 0 * found : found * T(job.keep);
  }
  const double r = job.radius_of(row), along = n ? slopes_of_row(p, n, r, slope) : 0;
  if (job.radius_grad) job.radius_grad[row] = r == 0 ? 0 * along : -along / r;
  for (int64_t j = 0; j < n; ++j) slope[j] *= T(job.scale);
  combine(row_of<T>(job.k, head, 0), job.k.row, job.width, at, slope, n, static_cast<T*>(job.q_grad) + row * job.width);
}

template <class T>
inline void vjp_rows_of(const AttentionVjpJob& job, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) vjp_row<T>(job, row);
}

// The gradients of the keys [low, high) of one head. Each key meets its rows in ascending order however keys are shared out,
// so the sums are the same to the bit.
template <class T>
inline void vjp_key_range(const AttentionVjpJob& job, int64_t head, int64_t low, int64_t high) {
  const int64_t E = job.width, Ev = job.value_width;
  T* k_grad = static_cast<T*>(job.k_grad) + head * job.keys * E;
  T* v_grad = static_cast<T*>(job.v_grad) + head * job.keys * Ev;
  const T *value = static_cast<const T*>(job.value), *slope = static_cast<const T*>(job.slopes);
  for (int64_t h = head * job.group; h < (head + 1) * job.group; ++h)
    for (int64_t i = 0; i < job.queries; ++i) {
      const int64_t row = h * job.queries + i;
      const T *q = row_of<T>(job.q, h, i), *grad = static_cast<const T*>(job.out_grad) + row * Ev;
      int64_t j = job.indptr[row];
      if (low > 0) j = std::lower_bound(job.index + j, job.index + job.indptr[row + 1], low) - job.index;
      for (; j < job.indptr[row + 1] && job.index[j] < high; ++j) {
        add_multiple(slope[j], q, E, k_grad + job.index[j] * E);
        if (!(value[j] < 0)) add_multiple(value[j] * T(job.keep), grad, Ev, v_grad + job.index[j] * Ev);
      }
    }
}

template <class T>
inline void vjp_keys_of(const AttentionVjpJob& job, int64_t begin, int64_t end) {
  for (int64_t part = begin; part < end; ++part) {
    const int64_t at = part % job.ranges;
    vjp_key_range<T>(job, part / job.ranges, at * job.keys / job.ranges, (at + 1) * job.keys / job.ranges);
  }
}

inline void attention(const AttentionJob& job, int64_t begin, int64_t end) {
  if (job.storage == Storage::float64) attention_blocks<double>(job, begin, end);
  else attention_blocks<float>(job, begin, end);
}

inline void attention_vjp_rows(const AttentionVjpJob& job, int64_t begin, int64_t end) {
  if (job.storage == Storage::float64) vjp_rows_of<double>(job, begin, end);
  else vjp_rows_of<float>(job, begin, end);
}

inline void attention_vjp_keys(const AttentionVjpJob& job, int64_t begin, int64_t end) {
  if (job.storage == Storage::float64) vjp_keys_of<double>(job, begin, end);
  else vjp_keys_of<float>(job, begin, end);
}

}  // namespace sparsegen::SPARSEGEN_ISA
