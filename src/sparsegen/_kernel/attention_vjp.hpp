// The way back through attention, over the support alone.
#pragma once

#include "attention_scores.hpp"

namespace sparsegen::SPARSEGEN_ISA {

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

// The same of entmax with alpha = 1.5: entries count by the root of their weight, and there is no radius.
template <class T>
inline void root_slopes_of_row(const T* p, int64_t n, T* slope) {
  if (std::isnan(p[0])) return void(std::fill_n(slope, n, p[0]));
  double sum = 0, total = 0;
  for (int64_t j = 0; j < n; ++j) {
    const double root = std::sqrt(std::fabs(double(p[j])));
    sum += root * double(slope[j]), total += root;
  }
  const T mean = T(sum / total);
  for (int64_t j = 0; j < n; ++j) slope[j] = std::sqrt(std::fabs(p[j])) * (slope[j] - mean);
}

template <class S>
inline void vjp_row(const AttentionVjpJob& job, int64_t row) {
  using T = Wide<S>;
  const int64_t from = job.indptr[row], n = job.indptr[row + 1] - from, head = row / job.queries / job.group;
  const int32_t* at = job.index + from;
  const T *p = static_cast<const T*>(job.value) + from, *more = static_cast<const T*>(job.value_grad);
  const T* grad = static_cast<const T*>(job.out_grad) + row * job.value_width;
  const S* v = row_of<S>(job.v, head, 0);
  T* slope = static_cast<T*>(job.slopes) + from;
  for (int64_t j = 0; j < n; ++j) {
    const T found = dot(grad, v + at[j] * job.v.row, job.value_width) + (more ? more[from + j] : T(0));
    slope[j] = p[j] < 0 ? 0 * found : found * T(job.keep);
  }
  const double r = job.radius_of(row);
  double along = 0;
  if (n && job.weigh == Weigh::root) root_slopes_of_row(p, n, slope);
  else if (n) along = slopes_of_row(p, n, r, slope);
  if (job.radius_grad) job.radius_grad[row] = r == 0 ? 0 * along : -along / r;
  for (int64_t j = 0; j < n; ++j) slope[j] *= T(job.scale);
  combine(row_of<S>(job.k, head, 0), job.k.row, job.width, at, slope, n, static_cast<T*>(job.q_grad) + row * job.width);
}

template <class S>
inline void vjp_rows_of(const AttentionVjpJob& job, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) vjp_row<S>(job, row);
}

// The gradients of the keys [low, high) of one head. Each key meets its rows in ascending order however keys are shared out,
// so the sums are the same to the bit.
template <class S>
inline void vjp_key_range(const AttentionVjpJob& job, int64_t head, int64_t low, int64_t high) {
  using T = Wide<S>;
  const int64_t E = job.width, Ev = job.value_width;
  T* k_grad = static_cast<T*>(job.k_grad) + head * job.keys * E;
  T* v_grad = static_cast<T*>(job.v_grad) + head * job.keys * Ev;
  const T *value = static_cast<const T*>(job.value), *slope = static_cast<const T*>(job.slopes);
  for (int64_t h = head * job.group; h < (head + 1) * job.group; ++h)
    for (int64_t i = 0; i < job.queries; ++i) {
      const int64_t row = h * job.queries + i;
      const S* q = row_of<S>(job.q, h, i);
      const T* grad = static_cast<const T*>(job.out_grad) + row * Ev;
      int64_t j = job.indptr[row];
      if (low > 0) j = std::lower_bound(job.index + j, job.index + job.indptr[row + 1], low) - job.index;
      for (; j < job.indptr[row + 1] && job.index[j] < high; ++j) {
        add_multiple(slope[j], q, E, k_grad + job.index[j] * E);
        if (!(value[j] < 0)) add_multiple(value[j] * T(job.keep), grad, Ev, v_grad + job.index[j] * Ev);
      }
    }
}

template <class S>
inline void vjp_keys_of(const AttentionVjpJob& job, int64_t begin, int64_t end) {
  for (int64_t part = begin; part < end; ++part) {
    const int64_t at = part % job.ranges;
    vjp_key_range<S>(job, part / job.ranges, at * job.keys / job.ranges, (at + 1) * job.keys / job.ranges);
  }
}

}  // namespace sparsegen::SPARSEGEN_ISA
