// What becomes of a row of scores: its support, where and how much.
#pragma once

#include <memory>

#include "attention_scores.hpp"
#include "entmax.hpp"
#include "rows.hpp"
#include "transform.hpp"

namespace sparsegen::SPARSEGEN_ISA {

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

// The support of a row: where and how much.
template <class T>
struct Chosen {
  std::unique_ptr<int32_t[]> at;
  std::unique_ptr<T[]> p, weight;
  int64_t n = 0;
  bool dense = false;  // then the probabilities stand in the place of the scores, zeros among them, and nothing is listed here
  explicit Chosen(int64_t K) : at(new int32_t[K]), p(new T[K]), weight(new T[K]) {}
  void add(int64_t i, T value) { at[n] = int32_t(i), p[n++] = value; }
  // The lanes of `v` whose bit is set, which stand from `from` on.
  void append(int64_t from, Vec<T> v, unsigned bits) {
    if (!bits) return;
    pack_places<T>(at.get() + n, from, bits);
    n += pack(p.get() + n, v, bits);
  }
};

template <class T>
inline void choose_step(const T* x, int64_t from, Vec<T> tau, Vec<T> rest, Vec<T> error, Vec<T> scale, Chosen<T>& out) {
  for (int j = 0; j < kStep<T>; j += kWidth<T>) {
    const Vec<T> d = (load(x + j) - tau) - rest;
    out.append(from + j, d * scale, lane_bits<T>(d > error));
  }
}

// write_row() of simplex.hpp for the support only, with or without the maxima of blocks.
template <class T>
inline void choose_row(const Row<T>& row, const T* maxima, const Cut<T>& cut, double r, Chosen<T>& out) {
  const Vec<T> tau = splat(cut.tau), rest = splat(T(cut.rest)), scale = splat(T(1 / r));
  const Vec<T> error = splat(T(kRounding<T> * r / double(cut.count))), bound = splat(cut.rest < 0 ? -kInf<T> : cut.tau);
  for (int64_t from = 0; from < row.steps; from += kBlock) {
    if (maxima && !lane_bits<T>(load(maxima + from / kBlock * kWidth<T>) > bound)) continue;
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
  survey<false>(row.x, row.full, kBlock, s.maxima, all);
  if (row.steps > row.full) survey_tail(row, s.maxima, all);
  const T top = lanes_max(all.top);
  if (!(std::fabs(top) < kInf<T>) || std::isnan(lanes_sum(all.sum))) return false;
  const Cut<T> cut = find_cut(row, K, s.maxima, all, r, s);
  if (!(cut.count > 0 && cut.sum <= 2 * r)) return false;
  choose_row(row, s.maxima, cut, r, out);
  return true;
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

// What lies between the K entries of a row and the end of its last panel is hidden, also from the panel's maxima.
template <class T>
inline void close_row(T* x, int64_t K, T* maxima) {
  constexpr int W = kWidth<T>, P = kPanel<T>;
  if (K % P == 0) return;
  const int64_t last = K / P * P;
  std::fill(x + K, x + last + P, -kInf<T>);
  store(maxima + last / 2, vmax(load(x + last), load(x + last + W)));
}

// Writes the maxima of a row's panels as score_tile() does. False if a score is NaN or infinite; hidden ones may be -inf.
template <class T>
inline bool look(T* x, int64_t K, T* maxima) {
  constexpr int W = kWidth<T>, P = kPanel<T>;
  std::fill(x + K, x + (K + P - 1) / P * P, -kInf<T>);
  Mask<T> bad{};
  for (int64_t i = 0; i < K; i += P) {
    const Vec<T> a = load(x + i), b = load(x + i + W);
    bad |= (a != a) | (b != b) | (a == splat(kInf<T>)) | (b == splat(kInf<T>));
    store(maxima + i / 2, vmax(a, b));
  }
  return !lane_bits<T>(bad);
}

// A row of finite scores, closed, with the maxima of its panels. tau is at least the largest score less r: what lies above
// that is picked, and as a rule it is little. False where it is not, or where the row needs project_any.
template <class T>
inline bool choose_quick(T* x, int64_t K, double r, T* maxima, Chosen<T>& out) {
  constexpr int W = kWidth<T>, P = kPanel<T>;
  if (!plain_radius<T>(r)) return false;
  const int64_t panels = (K + P - 1) / P;
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

// The support of K probabilities; NaN counts.
template <class T>
inline void choose_nonzero(const T* p, int64_t K, Chosen<T>& out) {
  out.n = 0;
  int64_t i = 0;
  for (; i + kWidth<T> <= K; i += kWidth<T>) {
    const Vec<T> v = load(p + i);
    out.append(i, v, lane_bits<T>(v != Vec<T>{}));
  }
  for (; i < K; ++i)
    if (p[i] != 0) out.add(i, p[i]);
}

// The support of scores `x`, which may be overwritten; `maxima` are null unless all scores are finite. A row that is not a
// number has all its entries, each NaN.
template <class T>
inline void choose(T* x, int64_t K, double r, T* maxima, const Scratch<T>& s, Chosen<T>& out) {
  out.n = 0;
  if (maxima && choose_quick(x, K, r, maxima, out)) return;
  out.n = 0;
  if (choose_direct(x, K, r, s, out)) return;
  double threshold;
  project_any(x, K, r, x, s, threshold);
  choose_nonzero(x, K, out);
}

// More than half of the entries: sooner summed as they stand than gathered.
inline bool mostly(int64_t n, int64_t K) { return 2 * n > K; }

// The same of shares of the sum of e^(x / temperature), `keep` of which is the radius. In an `open` row all are finite.
template <class T>
inline void choose_shares(T* x, int64_t K, double keep, double temperature, bool open, const Scratch<T>& s, Chosen<T>& out) {
  const Prepared made = (open ? make_shares<T, true, true> : make_shares<T, true>)(Transform::exp, x, x, K, keep, temperature);
  if (made.way == Way::shares) {
    out.dense = true;
    return write_shares<false, false>(x, K, made.radius, x);
  }
  const Row<T> row(x, K);
  const double r = made.radius;
  Cut<T> cut{0, 0, 0, 0};
  if (plain_radius<T>(r) && std::isfinite(made.base)) {
    // Where little is cut off most entries stay, so the search begins with all of them: their threshold bounds the row's from
    // below, less what rounding does to their sum.
    const double sum = r / keep, all = (sum - r - sum * 0x1p-20) / double(K);
    const T low = std::max(add_down(T(1), -r), all > 0 ? T(all) : T(-1));
    cut = newton(row, low, low, r);
  }
  if (!(cut.count > 0 && cut.sum <= 2 * r)) return choose(x, K, r, static_cast<T*>(nullptr), s, out);
  if (mostly(cut.count, K)) {
    out.dense = true;
    write_row<false>(row, K, static_cast<const T*>(nullptr), cut, r, x);
    return;
  }
  choose_row(row, static_cast<const T*>(nullptr), cut, r, out);
}

// The same of entmax with alpha = 1.5, whose support lies within 2 of the largest score.
template <class T>
inline void choose_root(T* x, int64_t K, T* maxima, const Scratch<T>& s, Chosen<T>& out) {
  constexpr int W = kWidth<T>, P = kPanel<T>;
  const int64_t panels = (K + P - 1) / P;
  Vec<T> top = splat(-kInf<T>);
  for (int64_t i = 0; maxima && i < panels; ++i) top = vmax(load(maxima + i * W), top);
  out.n = 0;
  const T low = add_down(lanes_max(top), -kRoot);
  if (!maxima || !(std::fabs(low) < kInf<T>) || !pick_panels(x, panels, maxima, low, out)) {
    root_row(x, K, x, s, x);
    return choose_nonzero(x, K, out);
  }
  root_row(out.p.get(), out.n, out.p.get(), s, out.p.get());
  int64_t n = 0;
  for (int64_t j = 0; j < out.n; ++j)
    if (out.p[j] != 0) out.at[n] = out.at[j], out.p[n++] = out.p[j];
  out.n = n;
}

// The keys of a row that a mask leaves open lie in [low, high); low is the start of a panel.
struct Span {
  int64_t low, high;
};

// The first and the last of n for which open(i).
template <class F>
inline Span span_of(int64_t n, int64_t panel, F&& open) {
  int64_t high = n, low = 0;
  while (high > 0 && !open(high - 1)) --high;
  while (low < high && !open(low)) ++low;
  return {low / panel * panel, high};
}

template <class T>
inline Span open_span(const AttentionJob& job, int64_t head, int64_t query, int64_t n) {
  if (!job.mask_at) return {0, n};
  const int64_t at = job.mask_at[head] + query * job.mask_row, step = job.mask_key;
  const uint8_t* mask = job.mask ? job.mask + at : nullptr;
  const T* bias = mask ? nullptr : static_cast<const T*>(job.bias) + at;
  if (step == 0) return {0, (mask ? *mask != 0 : *bias != -kInf<T>) ? n : 0};
  if (!mask) return span_of(n, kPanel<T>, [=](int64_t j) { return bias[j] != -kInf<T>; });
  const auto word = [=](int64_t i) {
    uint64_t eight;
    std::memcpy(&eight, mask + i * 8, 8);
    return eight != 0;
  };
  // Eight keys at a time, then one by one.
  int64_t high = n;
  while (high % 8 && !mask[high - 1]) --high;
  if (high % 8 == 0) high = span_of(high / 8, 1, word).high * 8;
  const Span words = span_of(high / 8, 1, word);
  const Span rest = span_of(high - words.low * 8, 1, [=](int64_t j) { return mask[words.low * 8 + j] != 0; });
  return {(words.low * 8 + rest.low) / kPanel<T> * kPanel<T>, words.low * 8 + rest.high};
}

// The scores of the keys of a span, hidden and shifted as the mask says.
template <class T>
inline void add_mask(const AttentionJob& job, int64_t head, int64_t query, Span span, T* x) {
  const int64_t step = job.mask_key, at = job.mask_at[head] + query * job.mask_row + span.low * step, n = span.high - span.low;
  if (job.mask) {
    const uint8_t* mask = job.mask + at;
    if (step == 1)
      for (int64_t j = 0; j < n; ++j) x[j] = mask[j] ? x[j] : -kInf<T>;
  } else {
    const T* bias = static_cast<const T*>(job.bias) + at;
    // Hidden is hidden, whatever the key holds: NaN less infinity would be NaN.
    for (int64_t j = 0; j < n; ++j) x[j] = bias[j * step] == -kInf<T> ? -kInf<T> : x[j] + bias[j * step];
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

}  // namespace sparsegen::SPARSEGEN_ISA
