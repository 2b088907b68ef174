// The shortest rows: transposed, so that no pass ends in a sum across lanes; and for the gradients the same.
#pragma once

#include <utility>

#include "group.hpp"

namespace sparsegen::SPARSEGEN_ISA {

// W rows, of at least kTile entries each, to K x W.
template <class T>
inline void to_lanes(const T* const* rows, int64_t K, T* lanes) {
  constexpr int W = kWidth<T>, B = kTile<T>;
  for (int64_t k = 0; k < K; k += B) {
    const int64_t from = std::min<int64_t>(k, K - B);  // the last tile overlaps the one before
    for (int w = 0; w < W; w += B) {
      Tile<T> tile;
      for (int i = 0; i < B; ++i) tile.load(i, rows[w + i] + from);
      tile.transpose();
      for (int i = 0; i < B; ++i) tile.store(i, lanes + (from + i) * W + w);
    }
  }
}

// K x W to those of W rows that are `wanted`, one bit each. f(at, new) gives the vector `at` entries in, `new` the first time
// it is asked for it. With `ahead` it asks for the memory that many entries on.
template <class T, class F>
inline void from_lanes(int64_t K, T* const* rows, unsigned wanted, F&& f, int64_t ahead = 0) {
  constexpr int W = kWidth<T>, B = kTile<T>;
  const bool all = wanted == (1u << W) - 1;
  const auto put_tile = [&](const Tile<T>& tile, int w, int64_t from) {
    if (all)
      for (int i = 0; i < B; ++i) tile.store(i, rows[w + i] + from);
    else
      for (int i = 0; i < B; ++i)
        if (wanted >> (w + i) & 1) tile.store(i, rows[w + i] + from);
  };
  for (int64_t k = 0; k < K; k += B) {
    const int64_t from = std::min<int64_t>(k, K - B);
    for (int j = 0; ahead && j < B * W; j += kLine<T>) prefetch_to_write(rows[0] + ahead + k * W + j);
    Tile<T> tile;
    if constexpr (W == B) {
      for (int i = 0; i < B; ++i) tile.set(i, f((from + i) * W, from + i >= k));
      tile.transpose();
      put_tile(tile, 0, from);
    } else {
      T block[B * W];
      for (int i = 0; i < B; ++i) store(block + i * W, f((from + i) * W, from + i >= k));
      for (int w = 0; w < W; w += B) {
        for (int i = 0; i < B; ++i) tile.load(i, block + i * W + w);
        tile.transpose();
        put_tile(tile, w, from);
      }
    }
  }
}

// Batcher's merge exchange: pairs (a, b), a < b, which put N entries in order when exchanged in turn.
template <int N>
struct Network {
  int size = 0, a[N * N / 2] = {}, b[N * N / 2] = {};
  constexpr Network() {
    int top = 1;
    while (2 * top < N) top *= 2;
    for (int p = top; p > 0; p /= 2)
      for (int q = top, r = 0, d = p; ; d = q - p, q /= 2, r = p) {
        for (int i = 0; i + d < N; ++i)
          if ((i & p) == r) a[size] = i, b[size] = i + d, ++size;
        if (q == p) break;
      }
  }
};

template <int N, class T, size_t... I>
inline void sort_lanes(Vec<T>* v, std::index_sequence<I...>) {
  constexpr Network<N> network;
  const auto exchange = [](Vec<T>& x, Vec<T>& y) {
    const Vec<T> larger = vmax(x, y);
    y = vmin(x, y), x = larger;
  };
  (exchange(v[network.a[I]], v[network.b[I]]), ...);
}

// Size of the set {x > threshold} and the threshold it gives, from the rows in order: entry k is in while the radius exceeds
// what it costs to lift all larger ones over it.
template <int N, class T>
inline void sorted_start(const T* lanes, Vec<T> r, Look<T>& all, Vec<T>& tau, Vec<T>& count) {
  Vec<T> v[N], before{}, sum{};
  all.sum = Vec<T>{};
  for (int k = 0; k < N; ++k) v[k] = load(lanes + k * kWidth<T>), all.sum += v[k];
  sort_lanes<N, T>(v, std::make_index_sequence<size_t(Network<N>().size)>());
  Mask<T> n = ~Mask<T>{};  // minus the size so far: the largest is always in
  for (int k = 1; k < N; ++k) {
    const Vec<T> u = v[k] - v[0];
    const Mask<T> in = before - u * T(k) < r;
    before += u, sum += keep<T>(in, u), n += in;
  }
  all.top = v[0], count = __builtin_convertvector(-n, Vec<T>);
  tau = add_down_lanes<T>(v[0], (sum - r) / count);
}

inline constexpr int kSortLimit = 16;

template <class T, int N = kTile<T>>
inline bool sort_if_short(int64_t K, const T* lanes, Vec<T> r, Look<T>& all, Vec<T>& tau, Vec<T>& count) {
  if constexpr (N > kSortLimit) return false;
  else if (K == N) return sorted_start<N, T>(lanes, r, all, tau, count), true;
  else return sort_if_short<T, N + 1>(K, lanes, r, all, tau, count);
}

// W rows of K >= kTile entries, transposed into `lanes`.
template <class T>
class ByLane {
  static constexpr int W = kWidth<T>;

 public:
  static constexpr bool kWrittenTogether = true;  // a wrong set in one row has all of them written again: a third pass pays

  ByLane(const T* const* rows, int n, int64_t K, T* lanes) : next_(rows[0] + ahead(K)), K_(K), lanes_(lanes) {
    const T* all[W];
    for (int i = 0; n < W && i < W; ++i) all[i] = rows[i < n ? i : 0];
    to_lanes(n < W ? all : rows, K, lanes);
  }

  // Four chains of additions here and below: with fewer, each waits for the one before.
  Look<T> look() const {
    Vec<T> t0 = splat(-kInf<T>), t1 = t0, s0{}, s1{}, s2{}, s3{}, q0{}, q1{}, q2{}, q3{};
    const T *x = lanes_, *const end = x + K_ * W;
    for (; x + 4 * W <= end; x += 4 * W) {
      const Vec<T> v0 = load(x), v1 = load(x + W), v2 = load(x + 2 * W), v3 = load(x + 3 * W);
      t0 = vmax(v0, t0), t1 = vmax(v1, t1), t0 = vmax(v2, t0), t1 = vmax(v3, t1);
      s0 += v0, s1 += v1, s2 += v2, s3 += v3;
      q0 = fma(v0, v0, q0), q1 = fma(v1, v1, q1), q2 = fma(v2, v2, q2), q3 = fma(v3, v3, q3);
    }
    for (; x < end; x += W) {
      const Vec<T> v = load(x);
      t0 = vmax(v, t0), s0 += v, q0 = fma(v, v, q0);
    }
    return {vmax(t0, t1), (s0 + s1) + (s2 + s3), (q0 + q1) + (q2 + q3)};
  }

  bool sorted(Vec<T> r, Look<T>& all, Vec<T>& tau, Vec<T>& count) const {
    return sort_if_short<T>(K_, lanes_, r, all, tau, count);
  }

  // With `soon` it asks for the rows that come next: eight short streams side by side are more than the hardware foresees.
  Above<T> above(Vec<T> tau, unsigned, bool soon) const {
    const Vec<T> zero{};
    Vec<T> sum{};
    Mask<T> n0{}, n1{};
    const T *x = lanes_, *const end = x + K_ * W;
    while (x + 4 * W <= end) {
      Vec<T> s0{}, s1{}, s2{}, s3{};
      const int64_t turns = std::min<int64_t>(kFold, (end - x) / (4 * W));
      for (const T* stop = x + turns * 4 * W; x != stop; x += 4 * W) {
        const Vec<T> d0 = tau - load(x), d1 = tau - load(x + W), d2 = tau - load(x + 2 * W), d3 = tau - load(x + 3 * W);
        s0 += vmin(d0, zero), n0 += d0 < zero;
        s1 += vmin(d1, zero), n1 += d1 < zero;
        s2 += vmin(d2, zero), n0 += d2 < zero;
        s3 += vmin(d3, zero), n1 += d3 < zero;
        for (int j = 0; soon && j < 4 * W; j += kLine<T>) prefetch(next_ + (x - lanes_) + j);
      }
      sum += (s0 + s1) + (s2 + s3);
    }
    for (; x < end; x += W) {
      const Vec<T> d = tau - load(x);
      sum += vmin(d, zero), n0 += d < zero;
    }
    return {-sum, __builtin_convertvector(-(n0 + n1), Vec<T>)};
  }

  // See ByRow::write(). The scores are kept, so a row written wrong is written again.
  template <bool>
  unsigned write(unsigned rows, unsigned sure, const Recipe<T>& recipe, T* const* dst) const {
    const Vec<T> tau = load(recipe.tau), rest = load(recipe.rest), error = -load(recipe.error), scale = -load(recipe.scale);
    const T* const lanes = lanes_;
    const auto probability = [=](int64_t at, auto&& count) {
      const Vec<T> d = (tau - load(lanes + at)) + rest;
      const Mask<T> on = d < error;
      count(on);
      return keep<T>(on, d * scale);
    };
    if ((rows & ~sure) == 0) {
      from_lanes<T>(K_, dst, rows, [=](int64_t at, bool) { return probability(at, [](Mask<T>) {}); }, ahead(K_));
      return sure;
    }
    Mask<T> n{};
    from_lanes<T>(K_, dst, rows, [&](int64_t at, bool first) {
      return probability(at, [&](Mask<T> on) { if (first) n -= on; });
    }, ahead(K_));
    return sure | lane_bits<T>(__builtin_convertvector(n, Vec<T>) == load(recipe.count));
  }

 private:
  static int64_t ahead(int64_t K) { return K < 32 ? 0 : 2 * W * K; }  // shorter rows make one stream

  const T* next_;
  int64_t K_;
  T* lanes_;
};

// Gradients as vjp_short() has them, for n <= W rows of K >= kTile entries. `lanes` has room for 2 K vectors.
template <class T>
inline void vjp_lanes(const T* const* p, const T* const* v, Vec<T> scale, int n, int64_t K, T* const* g, T* lanes,
                      T* along) {
  constexpr int W = kWidth<T>;
  const T *ps[W], *vs[W];
  for (int i = 0; i < W; ++i) ps[i] = p[i < n ? i : 0], vs[i] = v[i < n ? i : 0];
  T *lp = lanes, *lv = lanes + K * W;
  to_lanes(ps, K, lp);
  to_lanes(vs, K, lv);
  const Vec<T> zero{};
  Vec<T> sum{}, wp{};
  Mask<T> count{};
  for (int64_t k = 0; k < K * W; k += W) {
    const Mask<T> on = load(lp + k) > zero;
    sum += keep<T>(on, load(lv + k)), count -= on;
  }
  const Vec<T> size = vmax(__builtin_convertvector(count, Vec<T>), splat(T(1))), mean = sum / size;
  const Vec<T> nan = load(lp) - load(lp);  // a row with NaN is NaN throughout
  for (int64_t k = 0; k < K * W; k += W) {
    const Vec<T> pk = load(lp + k), w = keep<T>(pk > zero, load(lv + k) - mean);
    wp += w * pk;
    store(lv + k, w * scale + nan);
  }
  if (along) store(along, wp + nan);
  from_lanes<T>(K, g, (1u << n) - 1, [&](int64_t at, bool) { return load(lv + at); });
}

}  // namespace sparsegen::SPARSEGEN_ISA
