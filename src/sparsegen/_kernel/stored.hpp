// The backward pass of support.hpp for rows in half storage that stand in one piece.
#pragma once

#include "storage.hpp"
#include "support.hpp"

namespace sparsegen::SPARSEGEN_ISA {

#if defined(__AVX512F__)
inline constexpr int64_t kStoredFrom = 32;  // shortest row that is not brought in with others

// Thirty-two numbers in storage as two vectors, which bits of their word are whose, and how they are put back.
template <class S>
struct Two;

template <>
struct Two<Half> {  // the lower sixteen, and the upper
  Vec<float> a, b;
  explicit Two(__m512i h)
      : a(widen16((Halves16)_mm512_castsi512_si256(h), Half{})), b(widen16((Halves16)_mm512_extracti64x4_epi64(h, 1), Half{})) {}
  static Open<float> in_a(uint32_t word) { return Open<float>(word & 0xFFFF); }
  static Open<float> in_b(uint32_t word) { return Open<float>(word >> 16); }
  static __m512i close(Vec<float> a, Vec<float> b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512((__m256i)narrow16(a, Half{})), (__m256i)narrow16(b, Half{}), 1);
  }
};

template <>
struct Two<Bfloat> {  // those in even places, and those in odd ones: none has to move
  Vec<float> a, b;
  explicit Two(__m512i h)
      : a((Vec<float>)_mm512_slli_epi32(h, 16)), b((Vec<float>)_mm512_and_si512(h, _mm512_set1_epi32(int(0xFFFF0000u)))) {}
  static Open<float> in_a(uint32_t word) { return Open<float>(_pext_u32(word, 0x55555555)); }
  static Open<float> in_b(uint32_t word) { return Open<float>(_pext_u32(word, 0xAAAAAAAA)); }
  // To nearest, ties to even. NaN made of numbers in storage have none of the bits that are rounded away, and stay what they are.
  static Words16 rounded(Vec<float> v) {
    const Words16 u = (Words16)v;
    return u + 0x7FFF + (u >> 16 & 1);
  }
  static __m512i close(Vec<float> a, Vec<float> b) {
    return _mm512_mask_mov_epi16((__m512i)(rounded(a) >> 16), 0xAAAAAAAA, (__m512i)rounded(b));
  }
};

// The gradient of one row, a word at a time: nothing is written but the gradient. Words without support are worth a branch in long
// rows: `skip`. `v` may be `g`.
template <bool skip, class S>
inline void vjp_chosen_stored(const uint32_t* words, const S* v, int64_t K, float scale, S* g) {
  const int64_t whole = K / 32, left = K % 32;
  const __mmask32 last = _cvtu32_mask32(left ? ~0u >> (32 - left) : 0);
  const __m512i end = _mm512_maskz_loadu_epi16(last, v + whole * 32);
  const auto load_at = [=](int64_t i) { return _mm512_loadu_si512(v + i * 32); };
  Total<float> total;
  int64_t size = 0;
  Vec<float> s0{}, s1{};
  const auto add = [&](__m512i h, uint32_t word) {
    const Two<S> x(h);
    add_where<float>(x.in_a(word), x.a, s0), add_where<float>(x.in_b(word), x.b, s1);
    size += __builtin_popcount(word);
  };
  for (int64_t i = 0; i < whole;) {
    for (const int64_t pause = std::min(i + kFold, whole); i < pause; ++i)
      if (!skip || words[i]) add(load_at(i), words[i]);
    if (i < whole) total.add(lanes_sum(s0 + s1)), s0 = s1 = Vec<float>{};
  }
  if (left) add(end, words[whole]);
  total.add(lanes_sum(s0 + s1));
  const Vec<float> mean = splat(size ? float(total.value() / double(size)) : 0.0f), by = splat(scale);
  const auto made = [=](__m512i h, uint32_t word) {
    const Two<S> x(h);
    return x.close(keep<float>(x.in_a(word), x.a - mean) * by, keep<float>(x.in_b(word), x.b - mean) * by);
  };
  for (int64_t i = 0; i < whole; ++i)
    _mm512_storeu_si512(g + i * 32, !skip || words[i] ? made(load_at(i), words[i]) : _mm512_setzero_si512());
  if (left) _mm512_mask_storeu_epi16(g + whole * 32, last, made(end, words[whole]));
}

// The way of rows of K entries.
template <class S>
inline auto chosen_stored_of(int64_t K) {
  return K < kSkipFrom ? vjp_chosen_stored<false, S> : vjp_chosen_stored<true, S>;
}
#else
inline constexpr int64_t kStoredFrom = kSkipFrom;  // shorter rows gain more by company

// The gradient of one long row: widened and narrowed part by part, in the first cache, and only where it has support. `v` may be `g`.
template <class S>
inline void vjp_chosen_stored(const uint32_t* words, const S* v, int64_t K, float scale, S* g) {
  constexpr int64_t part = 512;
  alignas(kVectorBytes) float wide[part + kWidth<float>];
  Total<float> total;
  const auto each = [=](auto&& f) {
    for (int64_t at = 0; at < K; at += part) {
      const uint32_t* const in = words + at / 32;
      const int64_t n = std::min(part, K - at);
      uint32_t all = 0;  // without a branch for each, which nobody foresees
      for (int64_t i = 0; i < words_of(n); ++i) all |= in[i];
      f(at, n, in, all != 0);
    }
  };
  each([&](int64_t at, int64_t n, const uint32_t* in, bool some) {
    if (!some) return;
    Vec<float> sum{};
    widen_row(v + at, n, wide);
    each_chosen<float, false, false>(in, n, [&](int64_t j, Mask<float> on, auto get, auto) { add_where<float>(on, get(wide + j), sum); },
                                     [](int64_t) {});
    total.add(lanes_sum(sum));
  });
  const int64_t size = support_size(words, K);
  const float mean = size ? float(total.value() / double(size)) : 0.0f;
  each([&](int64_t at, int64_t n, const uint32_t* in, bool some) {
    if (!some) return void(std::fill_n(g + at, n, S{}));
    widen_row(v + at, n, wide);
    write_chosen<false, false>(in, wide, n, mean, scale, wide, 0, Straight{});
    narrow_row<false>(wide, n, g + at);
  });
}

template <class S>
inline auto chosen_stored_of(int64_t) {
  return vjp_chosen_stored<S>;
}
#endif

}  // namespace sparsegen::SPARSEGEN_ISA
