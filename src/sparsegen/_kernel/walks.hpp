// How a pass goes through one row of a group that stands where it is: a row of any length, or of as many vectors as the compiler is
// told, which spares the loops, and the branches, that cost a row of a hundred entries as much as its arithmetic.
#pragma once

#include "simplex.hpp"

namespace sparsegen::SPARSEGEN_ISA {

// How the probabilities of a set of `count` entries are made: [x - tau - rest]_+ * scale, 0 up to the rounding error.
template <class T>
struct Recipe {
  alignas(kVectorBytes) T tau[kWidth<T>], rest[kWidth<T>], error[kWidth<T>], scale[kWidth<T>], count[kWidth<T>];
  Recipe(Vec<T> t, Vec<T> c, Vec<T> e, Vec<T> s, Vec<T> n) {
    store(tau, t), store(rest, c), store(error, e), store(scale, s), store(count, n);
  }
};

// What a pass over one row finds, lanes not yet folded: sums, and minus the number of entries. A first look gives sum and squares of
// the entries; another one minus what they exceed a place by and, if they are asked for, the squares of that less kSquares.
template <class T>
struct RowSums {
  Vec<T> sum, squares;
  Mask<T> count;
};

inline constexpr int row_heads(int W) { return W < 8 ? 2 * W : 8; }

// The largest entries of the parts of a row, from those of two chains.
template <class T>
inline void store_heads(T* heads, Vec<T> t0, Vec<T> t1) {
  constexpr int W = kWidth<T>, N = row_heads(W);
  if constexpr (N == W) store(heads, vmax(t0, t1));
  else if constexpr (N < W) store_half_max(heads, vmax(t0, t1));
  else store(heads, t0), store(heads + W, t1);
}

// A row of K >= W entries. (Copied where it is used: what is written could be part of the original, for all the compiler knows.)
template <class T>
class AnyLength {
  static constexpr int W = kWidth<T>;

 public:
  static constexpr bool kLong = true;  // may a group of them fill the first cache?

  explicit AnyLength(int64_t K)
      : K_(K), whole_(K / W * W), steps_(K / kStep<T> * kStep<T>), tail_(last_lanes<T>(int(K % W))) {}

  // One of the equal parts of a row at `x` is asked for.
  template <class P, class F>
  void ask(const P* x, int part, int parts, F&& hint) const { each_line(x, K_, part, parts, hint); }

  // Of the entries that are not hidden, by a mask or if some are known to be.
  template <bool hidden, class P>
  RowSums<T> look(P x, T* heads) const {
    constexpr bool counted = hidden || kHides<P>;
    Vec<T> t0 = splat(-kInf<T>), t1 = t0, s0{}, s1{}, q0{}, q1{};
    Mask<T> n0{}, n1{};
    const P end = x + whole_, last = x + (K_ - W);
    for (const P stop = x + steps_; x != stop; x += kStep<T>)
      for (int j = 0; j < kStep<T>; j += 2 * W) {
        look_at_vector<hidden>(x + j, t0, s0, q0, n0);
        look_at_vector<hidden>(x + (j + W), t1, s1, q1, n1);
      }
    for (; x != end; x += W) look_at_vector<hidden>(x, t0, s0, q0, n0);
    if (whole_ < K_) {
      // What the vectors before have covered counts as hidden, or as 0.
      const Vec<T> v = chosen_at(last);
      t1 = vmax(v, t1);
      add_moments<counted, T>(select<T>(tail_, v, counted ? splat(-kInf<T>) : Vec<T>{}), s1, q1, n1);
    }
    store_heads(heads, t0, t1);
    return {s0 + s1, q0 + q1, n0 + n1};
  }

  // The excess is summed as min(t - x, 0), which takes x from memory without an instruction to load it. A sum that need not be
  // `exact` is one of longer chains.
  template <bool exact, bool squared, class P>
  RowSums<T> above(P x, Vec<T> t) const {
    const auto below = [=](P at) { return t - scores_at(at); };
    const Vec<T> zero{};
    Vec<T> sum{}, s0{}, s1{}, s2{}, s3{}, squares = splat(T(-kSquares / W)), lost{}, q0{}, q1{}, q2{}, q3{};
    Mask<T> n0{}, n1{};
    const P end = x + whole_, last = x + (K_ - W);
    for (int64_t left = steps_;;) {
      const int64_t span = exact && left > kSpan<T> ? kSpan<T> : left;
      for (const P pause = x + span; x != pause; x += kStep<T>) {
        const Vec<T> d0 = below(x), d1 = below(x + W), d2 = below(x + 2 * W), d3 = below(x + 3 * W);
        add_below_at<squared>(x, d0, s0, q0, n0);
        add_below_at<squared>(x + W, d1, s1, q1, n1);
        add_below_at<squared>(x + 2 * W, d2, s2, q2, n0);
        add_below_at<squared>(x + 3 * W, d3, s3, q3, n1);
      }
      if ((left -= span) == 0) break;
      sum += (s0 + s1) + (s2 + s3);
      s0 = s1 = s2 = s3 = zero;
      if constexpr (squared) add_exactly((q0 + q1) + (q2 + q3), squares, lost), q0 = q1 = q2 = q3 = zero;
    }
    if (x != end) add_below_at<squared>(x, below(x), s0, q0, n0), x += W;
    if (x != end) add_below_at<squared>(x, below(x), s1, q1, n1), x += W;
    if (x != end) add_below_at<squared>(x, below(x), s2, q2, n0);
    if (whole_ < K_) {
      const Vec<T> d = keep<T>(tail_, below(last));
      add_below_at<squared>(last, d, s3, q3, n1);
    }
    sum += (s0 + s1) + (s2 + s3);
    if constexpr (squared) squares += ((q0 + q1) + (q2 + q3)) + lost;
    return {sum, squares, n0 + n1};
  }

  // Writes the probabilities of row i to `p`; returns minus their number, lanes not yet folded. With `kept` the support goes to
  // `words`, of a row of whole vectors.
  template <bool stream, class How, bool kept, class P>
  Mask<T> write(P x, const Recipe<T>& recipe, int i, T* p, [[maybe_unused]] uint32_t* words) const {
    const Vec<T> tau = splat(recipe.tau[i]), rest = splat(recipe.rest[i]);
    const Vec<T> error = splat(-recipe.error[i]), scale = splat(-recipe.scale[i]);
    const auto below = [=](P at) { return kept_at(at, How::below(tau, scores_at(at), rest)); };
    const Vec<T> last = below(x + (K_ - W));
    Mask<T> n0{}, n1{};
    const auto probability = [=](Vec<T> d, Mask<T>& n, Mask<T> counted) {
      const Mask<T> on = d < error;
      count_where<T>(on & counted, n);
      return keep<T>(on, How::share(d, scale));
    };
    [[maybe_unused]] char* bits = reinterpret_cast<char*>(words);
    const auto one = [&](int at, Mask<T>& n) {
      const Vec<T> made = probability(below(x + at), n, ~Mask<T>{});
      put<stream>(p + at, made);
      return kept ? uint64_t(bits_above<T>(made, Vec<T>{})) : 0;
    };
    const P end = x + whole_;
    for (const P stop = x + steps_; x != stop; x += kStep<T>, p += kStep<T>) {
      const uint64_t in[] = {one(0, n0), one(W, n1), one(2 * W, n0), one(3 * W, n1)};
      if constexpr (kept) {
        const uint64_t all = in[0] | in[1] << W | in[2] << (2 * W) | in[3] << (3 * W);
        std::memcpy(bits, &all, kStep<T> / 8), bits += kStep<T> / 8;
      }
    }
    [[maybe_unused]] uint64_t rest_in = 0;
    for (int at = 0; x != end; x += W, p += W, at += W) rest_in |= one(0, n0) << at;
    if constexpr (kept) fill_words(words, K_, steps_, rest_in);
    if (whole_ < K_) store(p + (K_ - whole_) - W, probability(last, n1, tail_));  // overlaps the vector before it
    return n0 + n1;
  }

  // How many there would be.
  template <class How, class P>
  int64_t count(P x, const Recipe<T>& recipe, int i) const {
    const Vec<T> tau = splat(recipe.tau[i]), rest = splat(recipe.rest[i]), error = splat(-recipe.error[i]);
    const auto in = [=](P at) { return kept_at(at, How::below(tau, scores_at(at), rest)) < error; };
    Mask<T> n{};
    for (int64_t k = 0; k < whole_; k += W) n -= in(x + k);
    if (whole_ < K_) n -= in(x + (K_ - W)) & tail_;
    return lanes_sum(n);
  }

 private:
  int64_t K_, whole_, steps_;  // entries: all, in whole vectors, in whole steps
  Mask<T> tail_;               // the lanes of the last W entries that whole vectors have not covered
};

#if defined(__AVX512F__)
// The same of V vectors, the last of which may be incomplete.
template <class T, int V>
class FewVectors {
  static constexpr int W = kWidth<T>, kLast = V - 1;

 public:
  static constexpr bool kLong = false;

  explicit FewVectors(int64_t K) : K_(K), part_(int(K - kLast * W)), bits_(Open<T>(~0u >> (32 - part_))) {}

  template <class P, class F>
  void ask(const P* x, int part, int parts, F&& hint) const {
    const int lines = (V * int(sizeof(P)) * W / parts + 63) / 64;
    for (int j = 0; j < lines; ++j) hint(x + part * K_ / parts + j * kLine<P>);
  }

  template <bool hidden, class P>
  RowSums<T> look(P x, T* heads) const {
    Vec<T> t[2] = {splat(-kInf<T>), splat(-kInf<T>)}, s[2] = {}, q[2] = {};
    Mask<T> n[2] = {};
    for (int j = 0; j < V; ++j) {
      const int k = j % 2;
      const Vec<T> v = made(x, j);
      if (!hidden && !kBehind<P> && j < kLast) {
        t[k] = vmax(v, t[k]), s[k] += v, q[k] = fma(v, v, q[k]);
        continue;
      }
      Open<T> on = open(x, j);
      if (hidden) on &= open_other<T>(v, splat(-kInf<T>));
      t[k] = select<T>(on, vmax(v, t[k]), t[k]);
      add_where<T>(on, v, s[k]), add_product_where<T>(on, v, v, q[k]);
      if (hidden || kBehind<P>) count_where<T>(on, n[k]);
    }
    store_heads(heads, t[0], t[1]);
    return {s[0] + s[1], q[0] + q[1], n[0] + n[1]};
  }

  template <bool exact, bool squared, class P>
  RowSums<T> above(P x, Vec<T> t) const {
    static_assert(V <= kSpanTurns * kUnroll, "longer chains of floats round too often");
    Vec<T> s[4] = {}, q[4] = {}, squares = splat(T(-kSquares / W)), lost{};
    Mask<T> n[2] = {};
    for (int j = 0; j < V; ++j) {
      const Vec<T> d = t - scores(x, j);
      const Open<T> on = among(x, j, Vec<T>{}, d);
      add_where<T>(on, d, s[j % 4]), count_where<T>(on, n[j % 2]);
      if constexpr (squared) add_product_where<T>(on, d, d, q[j % 4]);
    }
    if constexpr (squared) add_exactly((q[0] + q[1]) + (q[2] + q[3]), squares, lost);
    return {(s[0] + s[1]) + (s[2] + s[3]), squares + lost, n[0] + n[1]};
  }

  template <bool stream, class How, bool kept, class P>
  Mask<T> write(P x, const Recipe<T>& recipe, int i, T* p, [[maybe_unused]] uint32_t* words) const {
    const Vec<T> tau = splat(recipe.tau[i]), rest = splat(recipe.rest[i]);
    const Vec<T> error = splat(-recipe.error[i]), scale = splat(-recipe.scale[i]);
    Mask<T> n[2] = {};
    if constexpr (kept && V % 2) words[V / 2] = 0;  // of an odd number of vectors half of the last word is no entry's
    for (int j = 0; j < V; ++j) {
      const Vec<T> d = How::below(tau, scores(x, j), rest);
      const Open<T> on = among(x, j, error, d);
      count_where<T>(on, n[j % 2]);
      if constexpr (kept) std::memcpy(reinterpret_cast<char*>(words) + j * sizeof on, &on, sizeof on);
      const Vec<T> share = keep<T>(on, How::share(d, scale));
      if (stream || j < kLast) put<stream>(p + j * W, share);
      else store_bits(p + j * W, share, bits_);
    }
    return n[0] + n[1];
  }

  template <class How, class P>
  int64_t count(P x, const Recipe<T>& recipe, int i) const {
    const Vec<T> tau = splat(recipe.tau[i]), rest = splat(recipe.rest[i]), error = splat(-recipe.error[i]);
    int64_t n = 0;
    for (int j = 0; j < V; ++j) n += __builtin_popcount(among(x, j, error, How::below(tau, scores(x, j), rest)));
    return n;
  }

 private:
  // The j-th vector of a row as it is read, 0 in lanes beyond the last entry.
  template <class P>
  Vec<T> scores(P x, int j) const {
    const T* const at = memory_at(x) + j * W;
    return j < kLast ? load(at) : load_bits(at, bits_);
  }

  // The same for the first look, which may have to make it.
  template <class P>
  Vec<T> made(P x, int j) const {
    if constexpr (kMade<P>) {
      const Vec<T> v = x.made.template of<P::kOpen>(scores(x, j));
      store(x.slot + j * W, v);
      return v;
    } else {
      return scores(x, j);
    }
  }

  // The lanes that may be chosen.
  template <class P>
  Open<T> open(P x, int j) const {
    if constexpr (kBehind<P>) return j < kLast ? open_lanes<T>(x.mask + j * W) : open_lanes<T>(x.mask + j * W, part_);
    else return j < kLast ? Open<T>(~0u) : bits_;
  }

  // Those of them where a > b.
  template <class P>
  Open<T> among(P x, int j, Vec<T> a, Vec<T> b) const {
    return !kBehind<P> && j < kLast ? open_above<T>(a, b) : open_above<T>(open(x, j), a, b);
  }

  int64_t K_;
  int part_;      // entries of the last vector
  Open<T> bits_;  // the same as bits
};
#endif

// f(length) with what goes through rows of K entries. Only rows of floats that are too long to be transposed are known by their
// vectors: longer ones than 128 entries do not gain, and each length is code of its own.
template <class T, bool few = true, class F>
inline auto with_length(int64_t K, F&& f) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4 && few) {
    switch ((K - 1) / kWidth<T>) {
      case 4: return f(FewVectors<T, 5>(K));
      case 5: return f(FewVectors<T, 6>(K));
      case 6: return f(FewVectors<T, 7>(K));
      case 7: return f(FewVectors<T, 8>(K));
    }
  }
#endif
  return f(AnyLength<T>(K));
}

}  // namespace sparsegen::SPARSEGEN_ISA
