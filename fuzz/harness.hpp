// What the targets share: engines, counts, shrinking, and lines of Python.
#pragma once

#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "cells.hpp"
#include "exact.hpp"
#include "job.hpp"
#include "random.hpp"
#include "threads.hpp"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace fuzz {

using sparsegen::Engine;

template <class... Args>
std::string text(Args&&... args) {
  std::ostringstream out;
  out.precision(17);
  (out << ... << args);
  return out.str();
}

// Numbers as Python reads them; `inf` and `nan` are names there.
inline std::string digits(double x, Storage s = Storage::float64) {
  char out[40];
  std::snprintf(out, sizeof out, "%.*g", s == Storage::float64 ? 17 : 9, x);
  return std::isnan(x) ? "nan" : out;
}

template <class T>
std::string listed(const std::vector<T>& x, Storage s = Storage::float64) {
  std::string out = "[";
  for (size_t i = 0; i < x.size(); ++i) out += (i ? ", " : "") + digits(double(x[i]), s);
  return out + "]";
}

inline std::string preamble(const char* engine, bool torch = false) {
  return text("import numpy as np, sparsegen as sg; from numpy import nan, inf; ",
              torch ? "import torch, sparsegen.torch as st; " : "", "sg._core.use_engine('", engine, "'); ");
}

// Rows worked, by target, engine and storage.
using Counts = std::map<std::string, int64_t>;

// On how many threads, in what turns, and whether the caller's own thread flushes subnormal numbers.
struct Turns {
  int threads = 1;
  int64_t chunk = 1;
  bool flush = false;
  bool plain() const { return threads == 1 && !flush; }
};

inline int forced_threads = 0;  // not 0: for every case

inline Turns random_turns(Random& random, int64_t rows) {
  if (forced_threads) return {forced_threads, random.between(1, std::max<int64_t>(1, rows / 2)), random.one_in(2)};
  if (!random.one_in(10)) return {};
  return {int(random.between(1, 4)), random.between(1, std::max<int64_t>(1, rows / 2)), random.one_in(2)};
}

// What torch.set_flush_denormal does to a thread, while it lives.
class Flushing {
 public:
#if defined(__SSE2__)
  explicit Flushing(bool on) : before_(_mm_getcsr()) { _mm_setcsr(on ? before_ | 0x8040 : before_); }
  ~Flushing() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#else
  explicit Flushing(bool) {}
#endif
};

template <class Job>
void run(const Job& job, void (*work)(const Job&, int64_t, int64_t), int64_t rows, const Turns& turns) {
  if (turns.plain()) return work(job, 0, rows);
  const Flushing flushing(turns.flush);
  sparsegen::parallel(rows, turns.chunk, turns.threads, [&](int64_t begin, int64_t end) { work(job, begin, end); });
}

// A family of cases. `label` says under which name a case counts, `check` what is wrong with it (nothing: ""), `simplify`
// hands simpler cases to `attempt`, which takes those that are still wrong.
template <class Case>
struct Family {
  const char* name;
  Case (*make)(Random&);
  std::string (*label)(const Case&);
  Storage (*storage)(const Case&);
  int64_t (*rows)(const Case&);
  std::string (*check)(const Case&, const Engine&);
  void (*simplify)(const Case&, const std::function<bool(const Case&)>& attempt);
  std::string (*python)(const Case&, const char* engine);
};

// The simplest case that is still wrong, as far as some seconds lead.
template <class Case>
Case shrunk(const Family<Case>& family, Case c, const std::function<bool(const Case&)>& wrong, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (bool again = true; again && Clock::now() < end;) {
    again = false;
    family.simplify(Case(c), [&](const Case& simpler) {
      if (Clock::now() > end || !wrong(simpler)) return false;
      c = simpler;
      return again = true;
    });
  }
  return c;
}

// Numbers simpler than x: tried in turn, the first that does is taken.
inline std::vector<double> simpler_numbers(double x) {
  std::vector<double> found;
  for (double v : {0.0, 1.0, std::round(x), std::isfinite(x) && x != 0 ? std::ldexp(1.0, std::ilogb(x)) : x, double(float(x))})
    if (v != x && std::isfinite(v)) found.push_back(v);
  for (int n = 4; n < 24 && std::isfinite(x) && x != 0; n *= 2) {
    const int unit = std::ilogb(x) - n;
    const double v = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
    if (v != x) found.push_back(v);
  }
  return found;
}

// [from, from + n) for n = all but one, half, a quarter, ... 1: what is worth leaving out.
template <class F>
void each_part(int64_t size, F&& f) {
  for (int64_t n = size - 1; n > 0; n /= 2)
    for (int64_t from = 0; from + n <= size; from += n) f(from, n);
}

// Numbers x within `allowed` of `want`, and then rounded to `s`. Beyond the largest number of `in` anything goes.
inline bool close(double x, Real want, Real allowed, Storage s, Storage in) {
  if (std::isnan(want)) return std::isnan(x);
  if (std::fabs(want) + allowed > Real(format_of(in).largest)) return true;
  const auto end = [&](Real v) { return size_of(s) == 2 ? rounded(v, s) : v; };
  return Real(x) >= end(want - allowed) && Real(x) <= end(want + allowed);
}

inline bool close(double x, Real want, Real allowed, Storage s) { return close(x, want, allowed, s, wide(s)); }

// Numbers (a, b, c) of rows as a list of lists, for Python.
inline std::string listed_rows(const std::vector<std::vector<double>>& rows, Storage s) {
  std::string out = "[";
  for (size_t i = 0; i < rows.size(); ++i) out += (i ? ", " : "") + listed(rows[i], s);
  return out + "]";
}

}  // namespace fuzz
