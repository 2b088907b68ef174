// A lane of a vector for each of W rows: transposing them, putting their entries in order, and the gradients of the shortest.
#pragma once

#include <utility>

#include "vjp.hpp"

namespace sparsegen::SPARSEGEN_ISA {

// A row alone in all lanes, and the other way.
template <class T>
inline void to_all_lanes(const T* row, int64_t K, T* lanes) {
  for (int64_t k = 0; k < K; ++k) store(lanes + k * kWidth<T>, splat(row[k]));
}

template <class T, class F>
inline void from_first_lane(int64_t K, T* row, F&& f) {
  for (int64_t k = 0; k < K; ++k) row[k] = f(k * kWidth<T>, true)[0];
}

// Both ways, between rows and lanes, are written for tiles and for AVX-512's strips: in one form for both GCC makes 256-bit code
// of it that takes 1.1 to 1.3 times as long.
#if defined(__AVX512F__)
// Are the last entries of a row few enough for half a strip?
template <class T>
inline bool half_left(int64_t K) {
  return K % kStrip<T> > 0 && K % kStrip<T> <= kStrip<T> / 2;
}

// W rows, of at least kTile entries each, to K x W; with -inf where their masks, if they have any, do not let an entry be chosen.
template <bool masked = false, class T>
inline void to_lanes(const T* const* rows, int64_t K, T* lanes, [[maybe_unused]] const uint8_t* const* masks = nullptr) {
  constexpr int W = kWidth<T>, B = kStrip<T>;
  for (int64_t k = 0; k < K; k += B) {
    if (k + B > K && half_left<T>(K)) {
      HalfStrip<T> half;
      half.load(rows, K - half.B);
      if constexpr (masked) half.hide(masks, K - half.B);
      half.to_lanes();
      for (int i = 0; i < half.B; ++i) store(lanes + (K - half.B + i) * W, half.get(i));
      return;
    }
    const int64_t from = std::min<int64_t>(k, K - B);  // the last strip overlaps the one before
    Strip<T> strip;
    strip.load(rows, from);
    if constexpr (masked) strip.hide(masks, from);
    strip.to_lanes();
    for (int i = 0; i < B; ++i) store(lanes + (from + i) * W, strip.get(i));
  }
}

// K x W to those of W rows that are `wanted`, one bit each. f(at, new) gives the vector `at` entries in, `new` the first time
// it is asked for it.
template <class T, class F>
inline void from_lanes(int64_t K, T* const* rows, unsigned wanted, F&& f) {
  constexpr int W = kWidth<T>, B = kStrip<T>;
  if (wanted == 1) return from_first_lane<T>(K, rows[0], f);
  const bool all = wanted == (1u << W) - 1;
  const auto put_rows = [&](const auto& strip, int64_t from) {
    if (all)
      for (int i = 0; i < W; ++i) strip.store(i, rows[i] + from);
    else
      for (int i = 0; i < W; ++i)
        if (wanted >> i & 1) strip.store(i, rows[i] + from);
  };
  for (int64_t k = 0; k < K; k += B) {
    if (k + B > K && half_left<T>(K)) {
      HalfStrip<T> half;
      for (int i = 0; i < half.B; ++i) half.set(i, f((K - half.B + i) * W, K - half.B + i >= k));
      half.to_rows();
      return put_rows(half, K - half.B);
    }
    const int64_t from = std::min<int64_t>(k, K - B);
    Strip<T> strip;
    for (int i = 0; i < B; ++i) strip.set(i, f((from + i) * W, from + i >= k));
    strip.to_rows();
    put_rows(strip, from);
  }
}
#else
// Are the last entries of a row moved by half a tile? Eight rows of floats, and at most four entries left.
template <class T>
inline constexpr bool kHalves = sizeof(T) == 4 && kWidth<T> == 8 && kTile<T> == 8;

inline bool half_left(int64_t K) { return K % 8 > 0 && K % 8 <= 4; }

// W rows, of at least kTile entries each, to K x W; with -inf where their masks, if they have any, do not let an entry be chosen.
template <bool masked = false, class T>
#if defined(__AVX2__)
__attribute__((noinline))  // a tile needs all the registers there are
#endif
inline void to_lanes(const T* const* rows, int64_t K, T* lanes, [[maybe_unused]] const uint8_t* const* masks = nullptr) {
  constexpr int W = kWidth<T>, B = kTile<T>;
  static_assert(B == W, "a mask hides a row of a tile as it hides a vector");
  for (int64_t k = 0; k < K; k += B) {
    if constexpr (kHalves<T>) {
      if (k + B > K && half_left(K)) {
        HalfTile<T> tile;
        for (int i = 0; i < tile.B; ++i) {
          tile.load(i, rows, K - tile.B);
          if constexpr (masked) {
            uint8_t bytes[2 * tile.B];
            for (int j = 0; j < 2; ++j) std::memcpy(bytes + j * tile.B, masks[i + j * tile.B] + (K - tile.B), tile.B);
            tile.set(i, hide_vector<T>((Vec<T>)tile.row[i], bytes));
          }
        }
        tile.transpose();
        for (int i = 0; i < tile.B; ++i) store(lanes + (K - tile.B + i) * W, (Vec<T>)tile.row[i]);
        return;
      }
    }
    const int64_t from = std::min<int64_t>(k, K - B);  // the last tile overlaps the one before
    Tile<T> tile;
    for (int i = 0; i < B; ++i) {
      if constexpr (masked) tile.set(i, hide_vector<T>(load(rows[i] + from), masks[i] + from));
      else tile.load(i, rows[i] + from);
    }
    tile.transpose();
    for (int i = 0; i < B; ++i) tile.store(i, lanes + (from + i) * W);
  }
}

// K x W to those of W rows that are `wanted`, one bit each. f(at, new) gives the vector `at` entries in, `new` the first time
// it is asked for it.
template <class T, class F>
inline void from_lanes(int64_t K, T* const* rows, unsigned wanted, F&& f) {
  constexpr int W = kWidth<T>, B = kTile<T>;
  if (wanted == 1) return from_first_lane<T>(K, rows[0], f);
  const bool all = wanted == (1u << W) - 1;
  const auto put_tile = [&](const auto& tile, int64_t from) {
    if (all)
      for (int i = 0; i < B; ++i) tile.store(i, rows[i] + from);
    else
      for (int i = 0; i < B; ++i)
        if (wanted >> i & 1) tile.store(i, rows[i] + from);
  };
  for (int64_t k = 0; k < K; k += B) {
    if constexpr (kHalves<T>) {
      if (k + B > K && half_left(K)) {
        HalfTile<T> tile;
        for (int i = 0; i < tile.B; ++i) tile.set(i, f((K - tile.B + i) * W, K - tile.B + i >= k));
        tile.transpose();
        return put_tile(tile, K - tile.B);
      }
    }
    const int64_t from = std::min<int64_t>(k, K - B);
    Tile<T> tile;
    for (int i = 0; i < B; ++i) tile.set(i, f((from + i) * W, from + i >= k));
    tile.transpose();
    put_tile(tile, from);
  }
}
#endif

template <class T>
inline Vec<T> next_below_lanes(Vec<T> v) {
  const Mask<T> bits = (Mask<T>)v, one = Mask<T>{} + 1;
  const Mask<T> positive = v > Vec<T>{}, negative = v < Vec<T>{};
  const Mask<T> moved = bits + (positive & -one) + (negative & one);
  const Vec<T> under_zero = splat(-std::numeric_limits<T>::denorm_min());
  return select<T>(positive | negative, (Vec<T>)moved, under_zero);
}

template <class T>
inline Vec<T> add_down_lanes(Vec<T> tau, Vec<T> step) {
  const Vec<T> next = tau + step, b = next - tau;
  const Vec<T> error = (tau - (next - b)) + (step - b);
  return select<T>(error < Vec<T>{}, next_below_lanes<T>(next), next);
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
__attribute__((always_inline)) inline void sort_lanes(Vec<T>* v, std::index_sequence<I...>) {
  constexpr Network<N> network;
  const auto exchange = [](Vec<T>& x, Vec<T>& y) {
    const Vec<T> larger = vmax(x, y);
    y = vmin(x, y), x = larger;
  };
  (exchange(v[network.a[I]], v[network.b[I]]), ...);
}

// Puts N entries a lane in order, and finds the size of the set {x > threshold} and the threshold it gives: entry k is in while
// the radius exceeds what it costs to lift all larger ones over it.
template <int N, class T>
__attribute__((always_inline)) inline void sorted_cut(Vec<T>* v, Vec<T> r, Vec<T>& tau, Vec<T>& count) {
  Vec<T> before{}, sum{};
  sort_lanes<N, T>(v, std::make_index_sequence<size_t(Network<N>().size)>());
  Mask<T> n = ~Mask<T>{};  // minus the size so far: the largest is always in
  for (int k = 1; k < N; ++k) {
    const Vec<T> u = v[k] - v[0];
    const Mask<T> in = before - u * T(k) < r;
    before += u, sum += keep<T>(in, u), n += in;
  }
  count = __builtin_convertvector(-n, Vec<T>);
  tau = add_down_lanes<T>(v[0], (sum - r) / count);
}

// The sums of W lanes in double, where floats lose none of their digits.
template <class T>
class LaneSums {
  static constexpr int D = kWidth<double>, N = kWidth<T> / D;
  typedef T Part __attribute__((vector_size(D * sizeof(T))));

 public:
  void add(Vec<T> v) {
    Part part[N];
    std::memcpy(part, &v, sizeof v);
    for (int j = 0; j < N; ++j) sum_[j] += __builtin_convertvector(part[j], Vec<double>);
  }
  void add(const LaneSums& other) {
    for (int j = 0; j < N; ++j) sum_[j] += other.sum_[j];
  }
  void store(double* to) const {
    for (int j = 0; j < N; ++j) SPARSEGEN_ISA::store(to + j * D, sum_[j]);
  }

 private:
  Vec<double> sum_[N] = {};
};

// The sums of entries `from`, from + step, ... of rows of K > from that stand in `lanes`, in the order of sum_row(): sixteen sums,
// joined by halves.
template <int step, class T>
__attribute__((always_inline)) inline LaneSums<T> sum_every(const T* lanes, int64_t K, int64_t from) {
  LaneSums<T> of;
  if constexpr (step == 16) {
    for (int64_t k = from; k < K; k += step) of.add(load(lanes + k * kWidth<T>));
  } else {
    of = sum_every<2 * step>(lanes, K, from);
    if (from + step < K) of.add(sum_every<2 * step>(lanes, K, from + step));
  }
  return of;
}

// Gradients as vjp_short() has them, for n <= W rows of K >= kTile entries. `lanes` has room for 2 K vectors.
template <Along when, class T>
inline void vjp_lanes(const T* const* p, const T* const* v, int n, int64_t K, Factors<T> by, T* const* g, T* lanes) {
  constexpr int W = kWidth<T>;
  const T *ps[W], *vs[W];
  for (int i = 0; i < W; ++i) ps[i] = p[i < n ? i : 0], vs[i] = v[i < n ? i : 0];
  T *lp = lanes, *lv = lanes + K * W;
  to_lanes(ps, K, lp);
  to_lanes(vs, K, lv);
  const Vec<T> zero{}, scale = load(by.scale);
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
  if (by.along) store(by.along, wp + nan);
  const unsigned rows = (1u << n) - 1;
  if constexpr (when == Along::before) {
    const Vec<T> more = wp * load(by.each);
    from_lanes<T>(K, g, rows, [&](int64_t at, bool) { return load(lv + at) + more; });
  } else {
    from_lanes<T>(K, g, rows, [&](int64_t at, bool) { return load(lv + at); });
  }
}

}  // namespace sparsegen::SPARSEGEN_ISA
