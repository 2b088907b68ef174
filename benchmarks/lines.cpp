// What memory itself takes for rows of floats that fit in no cache but the second: `lines ROWS K ROUNDS` prints the median microseconds
// of each way of going over them. Built and read by lines.py.
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr long kBytes = 64;
#elif defined(__AVX__)
constexpr long kBytes = 32;
#else
constexpr long kBytes = 16;
#endif
constexpr long W = kBytes / long(sizeof(float));
typedef float Vec __attribute__((vector_size(kBytes)));

// Past the caches.
void put(float* p, Vec v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, v);
#elif defined(__AVX__)
  _mm256_stream_ps(p, v);
#else
  _mm_stream_ps(p, v);
#endif
}

Vec get(const float* x) { return *reinterpret_cast<const Vec*>(x); }

struct Row {
  float *x, *v, *p;
};

constexpr long kSets = 4;  // of arrays, which take turns, so that none is found in the last cache

// What is read would not be, if nothing came of it.
float read(const float* x, long K) {
  Vec s0{}, s1{};
  for (long i = 0; i < K; i += 2 * W) s0 += get(x + i), s1 += get(x + i + W);
  return (s0 + s1)[0];
}

float read_both(const float* x, const float* v, long K) {
  Vec s0{}, s1{};
  for (long i = 0; i < K; i += W) s0 += get(x + i), s1 += get(v + i);
  return (s0 + s1)[0];
}

void write(float* p, long K, float value) {
  const Vec all = value - Vec{};
  for (long i = 0; i < K; i += W) put(p + i, all);
}

void write_shares(const float* x, float* p, long K, float by) {
  for (long i = 0; i < K; i += W) put(p + i, get(x + i) * by);
}

void write_products(const float* x, const float* v, float* p, long K, float less) {
  for (long i = 0; i < K; i += W) put(p + i, get(x + i) * (get(v + i) - less));
}

float* make(long n, float value) {
  float* const x = static_cast<float*>(std::aligned_alloc(4096, size_t(n) * sizeof(float)));
  for (long i = 0; i < n; ++i) x[i] = value + float(i % 97) / 97;
  return x;
}

}  // namespace

int main(int, char** given) {
  const long rows = std::atol(given[1]), K = std::atol(given[2]), rounds = std::atol(given[3]);
  Row sets[kSets];
  for (Row& all : sets) all = {make(rows * K, 1), make(rows * K, 2), make(rows * K, 3)};
  volatile float kept = 0;
  const std::vector<std::pair<std::string, std::function<void(Row)>>> ways = {
      {"read", [&](Row r) { kept = read(r.x, K); }},
      {"write zeros", [&](Row r) { write(r.p, K, 0); }},
      {"write ones", [&](Row r) { write(r.p, K, 1); }},
      {"read, write zeros", [&](Row r) { kept = read(r.x, K), write(r.p, K, 0); }},
      {"read, write shares", [&](Row r) { write_shares(r.x, r.p, K, 1 / read(r.x, K)); }},
      {"read two, write products", [&](Row r) { write_products(r.x, r.v, r.p, K, read_both(r.x, r.v, K)); }},
  };
  std::vector<std::vector<double>> times(ways.size());
  for (long round = 0; round < rounds + kSets; ++round) {
    for (size_t way = 0; way < ways.size(); ++way) {
      const Row& all = sets[(size_t(round) + way) % kSets];
      const auto start = std::chrono::steady_clock::now();
      for (long i = 0; i < rows; ++i) ways[way].second({all.x + i * K, all.v + i * K, all.p + i * K});
      _mm_sfence();
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
      if (round >= kSets) times[way].push_back(took.count());
    }
  }
  for (size_t way = 0; way < ways.size(); ++way) {
    auto middle = times[way].begin() + long(times[way].size() / 2);
    std::nth_element(times[way].begin(), middle, times[way].end());
    std::printf("%s: %.1f\n", ways[way].first.c_str(), *middle);
  }
}
