// A linear model with the huber loss of sparsegen_lin, by ascent in the dual, one row at a time. With shares s that sum to 1,
//
//   P(W) = sum_i s_i L(W' x_i, eta_i) + alpha/2 |W|^2,      L the loss of radius r
//   D(mu) = sum_i s_i r/2 (|eta_i|^2 - |mu_i|^2) - alpha/2 |W(mu)|^2,   W(mu) = sum_i s_i x_i (eta_i - mu_i)' / alpha
//
// D <= P for every mu whose rows lie in the simplex. The best row, the others being fixed, is a projection:
//
//   mu_i = project(z_i + c mu_i, r + c),   z_i = W(mu)' x_i,   c = s_i |x_i|^2 / alpha
//
// and P - D at W(mu) is the sum of s_i (r/2 |mu_i|^2 - mu_i . z_i + max_p (p . z_i - r/2 |p|^2)): no term is negative.
// Rows of mu are as sparse as the map is, so memory is that of W and a few entries for each row.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "job.hpp"
#include "rows.hpp"

namespace sparsegen::SPARSEGEN_ISA {

inline constexpr int64_t kScoreTile = 1024;  // entries of a row of scores that stay in the first cache

// out += a0 w0 + ... + a3 w3, entries [0, n).
inline void add_four(const double* a, const double* const* w, int64_t n, double* __restrict out) {
  const double a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];
  const double *__restrict w0 = w[0], *__restrict w1 = w[1], *__restrict w2 = w[2], *__restrict w3 = w[3];
  for (int64_t k = 0; k < n; ++k) out[k] += (a0 * w0[k] + a1 * w1[k]) + (a2 * w2[k] + a3 * w3[k]);
}

inline void add_one(double a, const double* __restrict w, int64_t n, double* __restrict out) {
  for (int64_t k = 0; k < n; ++k) out[k] += a * w[k];
}

inline double dot(const double* x, const double* w, int64_t n) {
  using V = Vec<double>;
  constexpr int W = kWidth<double>;
  V sum[4] = {};
  int64_t j = 0;
  for (; j + 4 * W <= n; j += 4 * W)
    for (int u = 0; u < 4; ++u) sum[u] += load(x + j + u * W) * load(w + j + u * W);
  double total = 0;
  const V all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  for (int l = 0; l < W; ++l) total += all[l];
  for (; j < n; ++j) total += x[j] * w[j];
  return total;
}

// z = W' x of a sparse row: features' rows of W, four at a time, a tile of classes after the other.
inline void sparse_scores(const DualJob& job, int64_t row, double* z) {
  const int64_t begin = job.x_indptr[row], end = job.x_indptr[row + 1];
  for (int64_t from = 0; from < job.K; from += kScoreTile) {
    const int64_t n = std::min(kScoreTile, job.K - from);
    double* const out = z + from;
    std::fill_n(out, n, 0.0);
    if (job.constant != 0) add_one(job.constant, job.W + job.features * job.K + from, n, out);
    int64_t e = begin;
    for (; e + 4 <= end; e += 4) {
      const double* w[4];
      for (int u = 0; u < 4; ++u) w[u] = job.W + int64_t(job.x_index[e + u]) * job.K + from;
      add_four(job.x + e, w, n, out);
    }
    for (; e < end; ++e) add_one(job.x[e], job.W + int64_t(job.x_index[e]) * job.K + from, n, out);
  }
}

// The same of a dense row, where a class has its weights in one piece.
inline void dense_scores(const DualJob& job, int64_t row, double* z) {
  const double* x = job.x + row * job.features;
  const int64_t stride = job.width();
  for (int64_t k = 0; k < job.K; ++k) {
    const double* w = job.W + k * stride;
    z[k] = dot(x, w, job.features) + (job.constant != 0 ? job.constant * w[job.features] : 0.0);
  }
}

inline void dual_scores(const DualJob& job, int64_t row, double* z) {
  job.x_indptr ? sparse_scores(job, row, z) : dense_scores(job, row, z);
}

// W += step x delta', delta given by its entries.
inline void add_row(const DualJob& job, int64_t row, double step, const std::vector<DualEntry>& delta) {
  const int64_t K = job.K, d = job.features;
  if (!job.x_indptr) {
    for (const DualEntry& e : delta) {
      double* w = job.W + e.at * job.width();
      add_one(step * e.value, job.x + row * d, d, w);
      if (job.constant != 0) w[d] += step * job.constant * e.value;
    }
    return;
  }
  const auto add = [&](int64_t feature, double x) {
    double* w = job.W + feature * K;
    for (const DualEntry& e : delta) w[e.at] += step * x * e.value;
  };
  for (int64_t e = job.x_indptr[row]; e < job.x_indptr[row + 1]; ++e) add(job.x_index[e], job.x[e]);
  if (job.constant != 0) add(d, job.constant);
}

inline void project_row(double* x, int64_t K, double r, double* p, const Scratch<double>& s) {
  double threshold;
  if (!project_direct(x, K, r, p, s, threshold)) project_any(x, K, r, p, s, threshold);
}

// Brings row i to its best mu and W along; returns by how much D rises.
inline double ascend(const DualJob& job, int64_t i, const Scratch<double>& s, std::vector<DualEntry>& delta) {
  double *const z = s.rows, *const t = z + s.stride, *const p = t + s.stride, *const old = p + s.stride;
  const double share = job.share[i], c = share * job.square[i] / job.alpha, r = job.radius;
  std::vector<DualEntry>& mu = job.mu[i];
  dual_scores(job, i, z);
  std::copy_n(z, job.K, t);
  for (const DualEntry& e : mu) t[e.at] += c * e.value, old[e.at] = e.value;
  project_row(t, job.K, r + c, p, s);
  delta.clear(), mu.clear();
  double rise = 0;
  for (int64_t k = 0; k < job.K; ++k) {
    if (p[k] != 0) mu.push_back({int32_t(k), p[k]});
    if (p[k] == old[k]) continue;
    const double d = old[k] - p[k];
    rise += d * (r * (old[k] + p[k]) / 2 - z[k] - c * d / 2);
    delta.push_back({int32_t(k), d});
    old[k] = 0;
  }
  for (const DualEntry& e : mu) old[e.at] = 0;
  add_row(job, i, share / job.alpha, delta);
  return share * rise;
}

// A pass over the rows in the order that is given; returns by how much D has risen.
inline double dual_pass(const DualJob& job, int64_t rows) {
  const Workspace<double> workspace(job.K, 4);
  const Scratch<double>& s = workspace.view();
  std::fill_n(s.rows + 3 * s.stride, job.K, 0.0);
  std::vector<DualEntry> delta;
  double rise = 0;
  for (int64_t n = 0; n < rows; ++n) rise += ascend(job, job.order[n], s, delta);
  return rise;
}

// The loss of each row, and its part of P - D, at W as it is; with `restart`, mu becomes the map of the scores.
inline void dual_values(const DualJob& job, int64_t begin, int64_t end) {
  const Workspace<double> workspace(job.K, 3);
  const Scratch<double>& s = workspace.view();
  double *const z = s.rows, *const t = z + s.stride, *const p = t + s.stride;
  const double r = job.radius;
  for (int64_t i = begin; i < end; ++i) {
    dual_scores(job, i, z);
    std::copy_n(z, job.K, t);
    project_row(t, job.K, r, p, s);
    double best = 0, truth = 0, own = 0;  // p . z - r/2 |p|^2 at the map, the target and mu
    if (job.restart) job.mu[i].clear();
    for (int64_t k = 0; k < job.K; ++k) {
      if (p[k] == 0) continue;
      best += p[k] * (z[k] - r * p[k] / 2);
      if (job.restart) job.mu[i].push_back({int32_t(k), p[k]});
    }
    for (int64_t e = job.y_indptr[i]; e < job.y_indptr[i + 1]; ++e)
      truth += job.eta[e] * (z[job.y_index[e]] - r * job.eta[e] / 2);
    for (const DualEntry& e : job.mu[i]) own += e.value * (z[e.at] - r * e.value / 2);
    job.value[i] = std::max(best - truth, 0.0), job.gap[i] = std::max(best - own, 0.0);
  }
}

// W(mu), from nothing.
inline void dual_weights(const DualJob& job, int64_t rows) {
  std::vector<DualEntry> delta;
  std::fill_n(job.W, job.width() * job.K, 0.0);
  for (int64_t i = 0; i < rows; ++i) {
    delta.clear();
    for (int64_t e = job.y_indptr[i]; e < job.y_indptr[i + 1]; ++e) delta.push_back({int32_t(job.y_index[e]), job.eta[e]});
    for (const DualEntry& e : job.mu[i]) delta.push_back({e.at, -e.value});
    add_row(job, i, job.share[i] / job.alpha, delta);
  }
}

}  // namespace sparsegen::SPARSEGEN_ISA
