// The way back of the maps of maps.hpp and of radii of the mean: gradients of scores and controls of a row, in one call.
//
// With s = [p > 0], w = s o (v - mean_S v) and the points x = g(z) of the transform, projected onto r:
//   grad_x = w / r - (w.p) / r dr/dx,   grad_z = grad_x o g'(z),   grad_control = -(w.p) / r dr/dcontrol.
// Where the threshold is 0 the mean drops out. Entmax has weights p^(2 - alpha) in the place of s: docs/math.md, section 9.
#pragma once

#include "functions.hpp"
#include "rows.hpp"

namespace sparsegen::SPARSEGEN_ISA {

// Derivatives of mean_radius() in each entry of the row that may be chosen, and in q.
struct MeanSlopes {
  double each, control;
};

inline MeanSlopes mean_slopes(Rule rule, double mean, double n, double q) {
  if (std::isinf(q) || n == 0) return {0, 0};
  const double turn = rule == Rule::cone ? 1 : mean > 0 ? 1 : mean < 0 ? -1 : 0, height = rule == Rule::cone ? mean : std::fabs(mean);
  const double width = 1 / n + q;
  return {turn / width / n, (1 / n - height) / (width * width)};
}

// One row: its arrays, and what is known of it.
template <class T>
struct MapRow {
  const T *z, *p, *v;
  T* g;  // may be none of the others
  int64_t K;
  double control, second, radius, base, count;
};

struct ControlGradients {
  double radius = 0, second = 0;
};

template <class T>
class MapVjp {
 public:
  MapVjp(const MapVjpJob& job, const MapRow<T>& row, bool stream)
      : job_(job), row_(row), shares_(job.rule == Rule::total && row.control == 1), skips_(row.K >= kSkipFrom),
        stream_(stream && !job.grad_second && aligned(row.g)) {}

  ControlGradients run() {
    if (std::isnan(row_.p[0])) {
      std::fill_n(row_.g, row_.K, row_.p[0]);
      return {double(row_.p[0]), double(row_.p[0])};
    }
    if (job_.power) return powers();
    centre();
    const bool needed = job_.rule != Rule::given || job_.grad_radius;
    along_ = needed ? along() : 0;
    write();
    return {radius_gradient(), job_.grad_second ? cooling() : 0};
  }

 private:
  // Sums f(at, p, on, get) over the vectors with some support, in doubles from span to span.
  template <class F>
  double sum_of(F&& f) const {
    constexpr int64_t span = 64 * kWidth<T>;
    double total = 0;
    for (int64_t from = 0; from < row_.K; from += span) {
      Vec<T> sum{};
      each_vector<T>(std::min(span, row_.K - from), [&](int64_t at, auto get, auto) {
        const Vec<T> p = get(row_.p + from + at);
        const Mask<T> on = p > Vec<T>{};
        if (!skips_ || lane_bits<T>(on)) sum += keep<T>(on, f(from + at, p, get));
      });
      total += double(lanes_sum(sum));
    }
    return total;
  }

  // The mean of v over the support; 0 for shares, which do not need it but for the gradient of their radius.
  void centre() {
    Mask<T> n{};
    const double sum = sum_of([&](int64_t at, Vec<T> p, auto get) {
      n -= p > Vec<T>{};
      return get(row_.v + at);
    });
    mean_ = T(sum / double(std::max<int64_t>(lanes_sum(n), 1)));
  }

  // w.p
  double along() const {
    const Vec<T> mean = splat(mean_);
    return sum_of([&](int64_t at, Vec<T> p, auto get) { return (get(row_.v + at) - mean) * p; });
  }

  bool constant() const { return row_.radius == 0 || std::isinf(row_.radius); }

  double radius_gradient() const {
    if (!job_.grad_radius || constant()) return 0;
    if (job_.rule == Rule::given || job_.rule == Rule::total) return std::isinf(row_.control) ? 0 : -along_ / row_.control;
    return -along_ / row_.radius * mean_slopes(job_.rule, row_.base, row_.count, row_.control).control;
  }

  // What every entry that may be chosen gets through the radius.
  double common() const {
    if (job_.rule == Rule::given || constant()) return 0;
    if (job_.rule == Rule::total) return -along_ * row_.control / row_.radius;
    return -along_ / row_.radius * mean_slopes(job_.rule, row_.base, row_.count, row_.control).each;
  }

  void write() {
    if (constant()) return void(std::fill_n(row_.g, row_.K, T(0)));  // not 0 times a slope, which may be infinite
    if (shares_ && job_.transform == Transform::exp) return write_softmax();
    switch (job_.transform) {
      case Transform::lin: {
        const T unit = job_.rule == Rule::total ? T(row_.base) : T(1);
        return write_with([=](Vec<T> x, Vec<T>) { return x * unit; });
      }
      case Transform::exp: {
        const Vec<T> top = splat(T(row_.base));
        const bool cooled = job_.rule == Rule::total;
        const Vec<T> by = splat(cooled ? std::max(T(row_.second), std::numeric_limits<T>::min()) : T(1));
        return write_with([=](Vec<T> x, Vec<T> z) { return x * (vexp<T>((z - top) / by) / by); });
      }
      case Transform::sq: {
        const Vec<T> unit = splat(T(row_.base));
        return write_with([=](Vec<T> x, Vec<T> z) { return x * (T(2) * (z * unit) * unit); });
      }
      case Transform::log: return write_with([](Vec<T> x, Vec<T> z) { return x / z; });  // 1 / z may be infinite
    }
  }

  // steep(x, z): x times the derivative of the transform at z.
  template <class F>
  void write_with(F&& steep) {
    stream_ ? write_past<true>(steep) : write_past<false>(steep);
  }

  template <bool stream, class F>
  void write_past(F&& steep) {
    const T scale = constant() ? T(0) : vjp_scale<T>(row_.radius), shared = T(common());
    const Vec<T> mean = splat(mean_), by = splat(scale), more = splat(shared), hidden = splat(-kInf<T>);
    const bool everywhere = shared != 0, all = everywhere || shares_;
    each_vector<T, stream>(row_.K, [&](int64_t at, auto get, auto write) {
      Mask<T> on = get(row_.p + at) > Vec<T>{};
      if (skips_ && !all && !lane_bits<T>(on)) return write(row_.g + at, Vec<T>{});
      const Vec<T> z = get(row_.z + at);
      if (shares_) on = z > hidden;  // where the threshold is 0, entries that are 0 move with the others
      Vec<T> x = keep<T>(on, (get(row_.v + at) - mean) * by);
      if (everywhere) x += more;
      // What does not move has no gradient, however steep the transform is there: 0 times infinity is no number.
      write(row_.g + at, keep<T>((everywhere ? z > hidden : on) & (x != Vec<T>{}), steep(x, z)));
    });
  }

  // p (v - v.p) / t: the weights themselves need not be made again.
  void write_softmax() {
    const Vec<T> mean = splat(mean_), less = splat(T(along_));
    const Vec<T> by = splat(std::max(T(row_.second), std::numeric_limits<T>::min()));
    each_vector<T>(row_.K, [&](int64_t at, auto get, auto write) {
      write(row_.g + at, get(row_.p + at) * ((get(row_.v + at) - mean) - less) / by);
    });
  }

  // In the temperature: -sum grad_z (z - top) / t.
  double cooling() const {
    if (std::isinf(row_.second) || std::isinf(row_.base)) return 0;
    Vec<T> sum{};
    const Vec<T> top = splat(T(row_.base)), hidden = splat(-kInf<T>);
    each_vector<T>(row_.K, [&](int64_t at, auto get, auto) {
      const Vec<T> z = get(row_.z + at);
      sum += keep<T>(z > hidden, get(row_.g + at) * (z - top));
    });
    return -double(lanes_sum(sum)) / row_.second;
  }

  // p^(2 - alpha) where p > 0.
  template <class F>
  void weights(F&& f) const {
    const T power = T(2 - row_.second);
    const Vec<T> zero{}, one = splat(T(1));
    const bool root = row_.second == 1.5, whole = row_.second == 1, none = row_.second == 2;
    each_vector<T>(row_.K, [&](int64_t at, auto get, auto write) {
      const Vec<T> p = get(row_.p + at);
      const Mask<T> on = p > zero;
      Vec<T> s = p;
      if (root) s = vsqrt(p);
      else if (none) s = one;
      else if (!whole) s = vexp<T>(vlog<T>(select<T>(on, p, one)) * power);
      f(at, keep<T>(on, s), get, write);
    });
  }

  ControlGradients powers() {
    Vec<T> total{}, sum{};
    weights([&](int64_t at, Vec<T> s, auto get, auto write) {
      total += s, sum += keep<T>(s > Vec<T>{}, s * get(row_.v + at));
      write(row_.g + at, s);
    });
    const double all = lanes_sum(total);
    const Vec<T> mean = splat(T(double(lanes_sum(sum)) / (all > 0 ? all : 1)));
    each_vector<T>(row_.K, [&](int64_t at, auto get, auto write) {
      write(row_.g + at, get(row_.g + at) * keep<T>(get(row_.p + at) > Vec<T>{}, get(row_.v + at) - mean));
    });
    return {0, job_.grad_second ? bending() : 0};
  }

  // v.dp/dalpha, in a form that does not cancel near alpha = 1.
  double bending() const {
    const double a = row_.second - 1;
    double mean = 0, squares = 0, spread = 0, found = 0;
    const auto each = [&](auto&& f) {
      for (int64_t i = 0; i < row_.K; ++i)
        if (row_.p[i] > 0) f(double(row_.p[i]), std::log(double(row_.p[i])), double(row_.v[i]));
    };
    each([&](double p, double log, double) { mean += p * log, squares += p * log * log, spread += p * std::expm1(-a * log); });
    if (a < 1e-6) {
      each([&](double p, double log, double v) { found += v * p * (squares - log * log) / 2; });
      return found;
    }
    const double shift = std::log1p(spread);
    each([&](double p, double log, double v) {
      found += v * p / a * (mean - log + (mean - 1 / a) * std::expm1(-(a * log + shift)));
    });
    return found;
  }

  const MapVjpJob& job_;
  const MapRow<T>& row_;
  bool shares_, skips_, stream_;  // is the threshold 0; is a vector without support worth a branch; is the gradient large
  T mean_ = 0;
  double along_ = 0;
};

template <class S>
inline void map_vjp_rows(const MapVjpJob& job, int64_t begin, int64_t end) {
  using T = typename ComputeIn<S>::type;
  const S *z = static_cast<const S*>(job.z), *p = static_cast<const S*>(job.p), *v = static_cast<const S*>(job.v);
  S* grad = static_cast<S*>(job.grad);
  const bool direct = std::is_same_v<S, T> && job.strides.entry == 1;
  const bool read = std::is_same_v<S, T> && job.zs.entry == 1 && !job.mask;
  const bool stream = direct && 4 * job.bytes() >= kStreamFrom;
  const int group = std::max(1, rows_together<T>(job.K, std::max(job.strides.entry, job.zs.entry)));
  const Workspace<T> workspace(job.K, 4 * group);
  const Scratch<T>& s = workspace.view();
  Scratch<T> slots[4];
  for (int i = 0; i < 4; ++i) slots[i] = s, slots[i].rows += i * group * s.stride;
  const T *zi[kGroup], *pi[kGroup], *vi[kGroup];
  T* gi[kGroup];
  for (int64_t row = begin; row < end; row += group) {
    const int n = int(std::min<int64_t>(group, end - row));
    if (job.mask) load_masked(job, z, job.zs, row, n, slots[0]);
    else if (!read) load_rows(job, z, job.zs, row, n, slots[0]);
    if (!direct) load_rows(job, p, job.strides, row, n, slots[1]), load_rows(job, v, job.strides, row, n, slots[2]);
    find_rows<const T>(job, z, job.zs, row, n, read, slots[0].rows, s.stride, zi);
    find_rows<const T>(job, p, job.strides, row, n, direct, slots[1].rows, s.stride, pi);
    find_rows<const T>(job, v, job.strides, row, n, direct, slots[2].rows, s.stride, vi);
    find_rows(job, grad, job.strides, row, n, direct, slots[3].rows, s.stride, gi);
    for (int i = 0; i < n; ++i) {
      const int64_t at = row + i;
      const MapRow<T> one{zi[i], pi[i], vi[i], gi[i], job.K, job.radius_of(at), job.second_of(at), job.found ? job.found[at] : job.radius_of(at),
                          job.base ? job.base[at] : 0, job.count ? job.count[at] : 0};
      const ControlGradients found = MapVjp<T>(job, one, stream).run();
      if (job.grad_radius) job.grad_radius[at] = found.radius;
      if (job.grad_second) job.grad_second[at] = found.second;
    }
    if (!direct) store_rows<false>(job, grad, job.strides, row, n, slots[3]);
  }
  if (stream) finish_streams();
}

inline void map_vjp(const MapVjpJob& job, int64_t begin, int64_t end) {
  switch (job.storage) {
    case Storage::float32: return map_vjp_rows<float>(job, begin, end);
    case Storage::float64: return map_vjp_rows<double>(job, begin, end);
    case Storage::float16: return map_vjp_rows<Half>(job, begin, end);
    case Storage::bfloat16: return map_vjp_rows<Bfloat>(job, begin, end);
  }
}

}  // namespace sparsegen::SPARSEGEN_ISA
