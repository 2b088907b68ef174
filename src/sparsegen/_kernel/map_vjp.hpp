// The way back of the maps of maps.hpp and of radii of the mean: gradients of scores and controls of rows, in one call.
//
// With s = [p > 0], w = s o (v - mean_S v) and the points x = g(z) of the transform, projected onto r:
//   grad_x = w / r - (w.p) / r dr/dx,   grad_z = grad_x o g'(z),   grad_control = -(w.p) / r dr/dcontrol.
// Where the threshold is 0 the mean drops out. Entmax has weights p^(2 - alpha) in the place of s: docs/math.md, section 9.
#pragma once

#include "functions.hpp"
#include "root_vjp.hpp"
#include "rows.hpp"

namespace sparsegen::SPARSEGEN_ISA {

// Derivatives of mean_radius() in each entry of the row that may be chosen, and in q.
struct MeanSlopes {
  double each, control;
};

inline MeanSlopes mean_slopes(Rule rule, double mean, double n, double q) {
  if (std::isinf(q) || n == 0) return {0, 0};
  const bool cone = rule == Rule::cone;
  const double turn = cone ? 1 : mean == 0 ? 0 : std::copysign(1.0, mean);  // no branch on a sign, which nobody foresees
  const double height = cone ? mean : std::fabs(mean);
  const double width = 1 / n + q;
  return {turn / (1 + n * q), (1 / n - height) / (width * width)};
}

// One row: its arrays, and what is known of it.
template <class T>
struct MapRow {
  const T *z, *p, *v;
  T* g;  // may be none of the others
  int64_t K;
  double control, second, radius, base, count;

  bool constant() const { return radius == 0 || std::isinf(radius); }
  bool open() const { return count == double(K); }  // no entry is known to be hidden
};

struct ControlGradients {
  double radius = 0, second = 0;
};

// What multiplies the gradient of points that were made of the scores z: of(row) makes an f(x, z), x times the derivative there.
// What does not move has no gradient, however steep it is (0 times infinity is no number), and what is hidden has none.
template <class T, class Of>
struct Steep {
  static constexpr int kArrays = 1;
  const T* const* z;
  Of of;
  int first = 0;

  template <class F>
  struct Row {
    const T* z;
    F f;
    template <class Get>
    Vec<T> operator()(Vec<T> x, int64_t at, Get&& get) const {
      const Vec<T> zi = get(z + at);
      return keep<T>((zi > splat(-kInf<T>)) & (x != Vec<T>{}), f(x, zi));
    }
    template <class G>
    void line(int64_t at, G&& ask) const { ask(z + at); }
  };

  Steep from(int i) const { return {z, of, first + i}; }
  template <class G>
  void lines(G&& g) const { g(z); }
  auto row(int i) const {
    auto f = of(first + i);
    return Row<decltype(f)>{z[first + i], f};
  }
};

// The same of squares none of which is hidden: what is the same for all entries of a row is in its factors, and z is left.
template <class T>
struct Times {
  static constexpr int kArrays = 1;
  const T* const* z;

  struct Row {
    const T* z;
    template <class Get>
    Vec<T> operator()(Vec<T> x, int64_t at, Get&& get) const { return x * get(z + at); }
    template <class G>
    void line(int64_t at, G&& ask) const { ask(z + at); }
  };

  Times from(int i) const { return {z + i}; }
  template <class G>
  void lines(G&& g) const { g(z); }
  Row row(int i) const { return {z[i]}; }
};

// A number for each row as T has it, no larger than T can be: the w.p that it multiplies may be 0.
template <class T>
inline T within(double x) {
  constexpr double most = std::numeric_limits<T>::max();
  return T(std::min(std::max(x, -most), most));
}

// Rows of a block whose gradients are w / r and what comes through the radius, brought together.
template <class T>
struct Pulled {
  int n = 0, row[kGroup];
  const T *z[kGroup], *p[kGroup], *v[kGroup];
  T* g[kGroup];
  T scale[kGroup + kWidth<T>] = {}, each[kGroup + kWidth<T>] = {}, along[kGroup + kWidth<T>] = {};

  // dr/dx is `slope` in each entry that may be chosen; points are `unit` times the scores.
  void add(int i, const T* zi, const T* pi, const T* vi, T* gi, double radius, double slope, double unit) {
    const double by = unit / radius;
    z[n] = zi, p[n] = pi, v[n] = vi, g[n] = gi, row[n] = i, scale[n] = within<T>(by), each[n] = within<T>(-slope * by);
    ++n;
  }

  // The first m rows of a block, all at once. `by` and `slope` have room for whole vectors.
  void add_all(int m, const T* const* zs, const T* const* ps, const T* const* vs, T* const* gs, const double* by,
               const double* slope) {
    constexpr int D = kWidth<double>;
    const Vec<double> most = splat(double(std::numeric_limits<T>::max()));
    const auto put = [=](T* to, Vec<double> x) { store_narrow(to, vmin(most, vmax(-most, x))); };  // as within() has it
    n = m;
    for (int i = 0; i < m; ++i) z[i] = zs[i], p[i] = ps[i], v[i] = vs[i], g[i] = gs[i], row[i] = i;
    for (int i = 0; i < m; i += D) put(scale + i, load(by + i)), put(each + i, -load(slope + i) * load(by + i));
  }

  template <Along when, class F>
  void run(int64_t K, const Scratch<T>& s, const F& steep) {
    run<when>(FromShares<T>{p}, K, s, steep);
  }
  // The same, given where their support is read.
  template <Along when, class P, class F>
  void run(const P& support, int64_t K, const Scratch<T>& s, const F& steep) {
    vjp_group<when>(support, v, n, K, Factors<T>{scale, each, along}, g, s, steep);
  }
};

// The support of one row of entmax with alpha = 1.5: the roots of its shares, and the sum of v weighed by them.
template <class T>
struct RootSupport {
  Total<T> total, weight;
  Vec<T> sum{}, all{};
  void add(Mask<T> on, Vec<T> p, Vec<T> v) {
    const Vec<T> s = vsqrt(p);
    all += s, add_where<T>(on, s * v, sum);
  }
  void fold() { total.add(lanes_sum(sum)), weight.add(lanes_sum(all)), sum = all = Vec<T>{}; }
};

// A row alone: powers, and shares, whose threshold is 0.
template <class T>
class MapVjp {
 public:
  // The support goes by `words` unless null.
  MapVjp(const MapVjpJob& job, const MapRow<T>& row, const Scratch<T>& s, const uint32_t* words = nullptr)
      : job_(job), row_(row), words_(words), touched_(s.touched), roots_(s.rows), stream_(s.stream && aligned(row.g)) {}

  ControlGradients run() {
    if (std::isnan(row_.p[0])) {
      std::fill_n(row_.g, row_.K, row_.p[0]);
      return {double(row_.p[0]), double(row_.p[0])};
    }
    if (job_.power) return powers(), power_controls();
    if (!row_.constant()) return shares();
    std::fill_n(row_.g, row_.K, T(0));  // not 0 times a slope, which may be infinite
    return {};
  }

  // Of a power: in alpha alone.
  ControlGradients power_controls() const {
    if (std::isnan(row_.p[0])) return {double(row_.p[0]), double(row_.p[0])};
    return {0, job_.grad_second ? bending() : 0};
  }

  // In the temperature: -sum grad_z (z - top) / t.
  double cooling() const {
    if (std::isinf(row_.second) || std::isinf(row_.base)) return 0;
    Vec<T> sum{};
    const Vec<T> top = splat(T(row_.base)), hidden = splat(-kInf<T>);
    each_vector<T>(row_.K, [&](int64_t at, auto get, auto) {
      const Vec<T> z = get(row_.z + at);
      const Vec<T> g = get(row_.g + at);
      sum += keep<T>((z > hidden) & (g != Vec<T>{}), g * (z - top));  // z - top may be infinite where nothing moves
    });
    return -double(lanes_sum(sum)) / row_.second;
  }

 private:
  // Of v over the support, where an entry of x weighs f(x), and others nothing.
  template <class F>
  double mean_of(const T* x, F&& f) const {
    constexpr int64_t span = 64 * kWidth<T>;
    double total = 0, weight = 0;
    for (int64_t from = 0; from < row_.K; from += span) {
      Vec<T> sum{}, all{};
      each_vector<T>(std::min(span, row_.K - from), [&](int64_t at, auto get, auto) {
        const Vec<T> w = f(get(x + from + at));
        const Mask<T> on = w > Vec<T>{};
        add_where<T>(on, w, all), add_where<T>(on, w * get(row_.v + from + at), sum);
      });
      total += double(lanes_sum(sum)), weight += double(lanes_sum(all));
    }
    return weight > 0 ? total / weight : 0;
  }

  // The mean over the support drops out of the gradient, but for that of the share which is the radius. Entries that are 0
  // move with the others.
  ControlGradients shares() {
    // Squares that were taken as they are tell their shares, and have to be read in any case: p is not then. (Short rows gain nothing.)
    const bool squares = job_.transform == Transform::sq && row_.open() && row_.base == 1 && row_.K > kVjpSixteenLimit;
    const double mean = squares ? mean_of(row_.z, [](Vec<T> z) { return z * z; }) : mean_of(row_.p, [](Vec<T> p) { return p; });
    const Vec<T> less = splat(T(mean)), scale = splat(within<T>(1 / row_.radius)), unit = splat(T(row_.base));
    const Vec<T> even = splat(within<T>(row_.base / row_.radius));
    const auto open = [=](Vec<T> z, Vec<T> x) { return keep<T>(z > splat(-kInf<T>), x); };
    if (job_.transform == Transform::exp) {
      const Vec<T> by = splat(std::max(T(row_.second), std::numeric_limits<T>::min()));
      write([=](int64_t at, Vec<T> v, auto get) {
        const Vec<T> p = get(row_.p + at);
        return keep<T>(p > Vec<T>{}, p * (v - less) / by);  // v may be anything where there is no share
      });
    } else if (job_.transform == Transform::sq) {
      write([=](int64_t at, Vec<T> v, auto get) {
        const Vec<T> z = get(row_.z + at);
        return open(z, (v - less) * (T(2) * (z * unit) * scale * unit));
      });
    } else if (row_.open()) {
      write([=](int64_t, Vec<T> v, auto) { return (v - less) * even; });
    } else {
      write([=](int64_t at, Vec<T> v, auto get) { return open(get(row_.z + at), (v - less) * even); });
    }
    double to_share = 0;
    if (job_.grad_radius) to_share = mean_of(row_.p, [](Vec<T> p) { return keep<T>(p > Vec<T>{}, splat(T(1))); }) - mean;
    return {to_share, job_.grad_second ? cooling() : 0};
  }

  // f(at, v, load) is the gradient there.
  template <class F>
  void write(F&& f) {
    const auto one = [&](int64_t at, auto get, auto write) { write(row_.g + at, f(at, get(row_.v + at), get)); };
    stream_ ? each_vector<T, true>(row_.K, one) : each_vector<T, false>(row_.K, one);
  }

  // p^(2 - alpha) where p > 0.
  template <class F>
  void weights(F&& f) const {
    const T power = T(2 - row_.second);
    const Vec<T> zero{}, one = splat(T(1));
    const bool whole = row_.second == 1, none = row_.second == 2;
    each_vector<T>(row_.K, [&](int64_t at, auto get, auto write) {
      const Vec<T> p = get(row_.p + at);
      const Mask<T> on = p > zero;
      Vec<T> s = p;
      if (none) s = one;
      else if (!whole) s = vexp<T>(vlog<T>(select<T>(on, p, one)) * power);
      f(at, keep<T>(on, s), get, write);
    });
  }

  void powers() {
    if (row_.second == 1.5) return stream_ ? root<true>() : root<false>();
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
  }

  template <bool stream>
  void root() {
    if (row_.K >= kSkipFrom) long_root<stream>();
    else root_vjp_alone<stream>(row_.p, row_.v, row_.K, row_.g, roots_);
  }

  // Long rows with alpha = 1.5, as vjp_long() has them: no roots, and no v, where nothing has a share; nor p, if words were kept.
  template <bool stream>
  void long_root() {
    constexpr int64_t part = kPart<T>;
    const int64_t full = row_.K / part, end = full * part;
    RootSupport<T> s;
    const int64_t n = words_ ? gather_kept<stream>(words_, row_.p, row_.v, full, row_.g, touched_, s)
                             : gather_parts<stream>(row_.p, row_.v, full, row_.g, touched_, s);
    each_vector<T>(row_.K - end, [&](int64_t at, auto get, auto) {
      const Vec<T> p = get(row_.p + end + at);
      s.add(p > Vec<T>{}, p, get(row_.v + end + at));
    });
    s.fold();
    const double weight = s.weight.value();
    const Vec<T> mean = splat(T(s.total.value() / (weight > 0 ? weight : 1)));
    const auto gradient = [=](Vec<T> p, Vec<T> v) { return vsqrt(p) * keep<T>(p > Vec<T>{}, v - mean); };
    for (int64_t t = 0; t < n; ++t)
      for (int64_t i = touched_[t] * part; i < (touched_[t] + 1) * part; i += kWidth<T>) {
        put<stream>(row_.g + i, gradient(load(row_.p + i), load(row_.v + i)));
        if (!stream && i % kLine<T> == 0) ask_ahead(row_.g + i);
      }
    each_vector<T>(row_.K - end, [&](int64_t at, auto get, auto write) {
      write(row_.g + end + at, gradient(get(row_.p + end + at), get(row_.v + end + at)));
    });
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
  const uint32_t* words_;
  int32_t* touched_;
  T* roots_;     // room for a row: the slots of z, which powers do not read
  bool stream_;  // is the gradient large?
};

// Rows of one block: together what is w / r and more, the others alone.
template <class T>
class MapVjpBlock {
 public:
  MapVjpBlock(const MapVjpJob& job, const Scratch<T>& s)
      : job_(job), s_(s), linear_(job.transform == Transform::lin), total_(job.rule == Rule::total),
        given_(job.rule == Rule::given),
        slope_(given_ ? 0 : total_ ? job.radius[0] : mean_slopes(Rule::cone, 0, double(job.K), job.radius[0]).each) {}

  // Rows [row, row + n), which stand at z[i], p[i], v[i], to g[i].
  void run(int64_t row, int n, const T* const* z, const T* const* p, const T* const* v, T* const* g) {
    straight_.n = steep_.n = squares_.n = kept_.n = 0, times_ = false;
    const bool even = add_even(row, n, z, p, v, g);
    const unsigned done = job_.power && job_.K <= kRootLimit ? roots(row, n, p, v, g) : 0;
    for (int i = 0; i < n && !even; ++i) {
      if (done >> i & 1) continue;
      const MapRow<T> one = row_at(row + i, z[i], p[i], v[i], g[i]);
      if (job_.power || (total_ && one.control == 1) || one.constant()) {
        keep(row + i, MapVjp<T>(job_, one, s_, job_.power ? words_at(row + i, one) : nullptr).run());
        continue;
      }
      if (linear_ && words_at(row + i, one) && one.open()) {
        kept_.add(i, z[i], p[i], v[i], g[i], one.radius, slope(one), 1);
        continue;
      }
      if (is_squared(one.control) && one.open() && near_one_unit(one.base) && !std::isnan(one.radius)) {
        const double unit = 2 * (one.base * one.base);
        squares_.add(i, z[i], p[i], v[i], g[i], one.radius, slope(one) * (unit / one.radius / 2), unit);
        continue;
      }
      // Where nothing comes through the radius, or to every entry, the scores of a linear map need not be read.
      Pulled<T>& rows = linear_ && (given_ || one.open()) ? straight_ : steep_;
      rows.add(i, z[i], p[i], v[i], g[i], one.radius, slope(one), linear_ && total_ ? one.base : 1);
    }
    if (straight_.n) pull_straight(row);
    if (steep_.n) pull_steep(row);
    if (squares_.n) pull_squares(row);
    if (kept_.n) pull_kept(row);
  }

 private:
  MapRow<T> row_at(int64_t at, const T* z, const T* p, const T* v, T* g) const {
    const double control = job_.radius_of(at);
    return {z, p, v, g, job_.K, control, job_.second_of(at), job_.found ? job_.found[at] : control,
            job_.base ? job_.base[at] : 0, job_.count ? job_.count[at] : 0};
  }

  // Null if they were not kept, and of a row that is NaN.
  const uint32_t* words_at(int64_t row, const MapRow<T>& one) const {
    return job_.words && !std::isnan(one.radius) ? job_.words + row * words_of(job_.K) : nullptr;
  }

  // Adds rows that are all alike, as they mostly are: short ones would be done before they were told apart. False: they are not.
  // (Plain loops, whose flags are as wide as the numbers, so that compilers make vectors of them.)
  bool add_even(int64_t row, int n, const T* const* z, const T* const* p, const T* const* v, T* const* g) {
    if (job_.power || job_.radius_per_row || (total_ && job_.radius[0] == 1)) return false;
    if (!job_.found || !job_.base || !job_.count) return false;
    const double *const radius = job_.found + row, *const base = job_.base + row, *const count = job_.count + row;
    const double K = double(job_.K), infinite = kInf<double>;
    int64_t other = 0, closed = 0;
    for (int i = 0; i < n; ++i) other |= int64_t(radius[i] == 0) | int64_t(std::fabs(radius[i]) == infinite);
    for (int i = 0; i < n; ++i) closed |= int64_t(count[i] != K);
    const bool open = given_ || !closed;
    if (other || (!open && (linear_ || !total_))) return false;
    double by[kGroup] = {}, slope[kGroup] = {};
    if (linear_ && total_) for (int i = 0; i < n; ++i) by[i] = base[i] / radius[i];
    else for (int i = 0; i < n; ++i) by[i] = 1 / radius[i];
    if (job_.rule == Rule::hourglass && slope_ > 0)
      for (int i = 0; i < n; ++i) slope[i] = base[i] > 0 ? slope_ : base[i] < 0 ? -slope_ : 0;
    else std::fill_n(slope, n, slope_);
    times_ = job_.transform == Transform::sq && !closed && take_units(base, n, by);
    const bool squares = is_squared(job_.radius[0]);
    const bool kept = linear_ && job_.words;
    if (squares && !times_) return false;
    if ((squares || kept) && !(open && none_is_nan(radius, n))) return false;  // each row goes its way, whatever its neighbours are
    if (squares) for (int i = 0; i < n; ++i) slope[i] *= by[i] / 2;            // see pull_squares()
    (kept ? kept_ : linear_ && open ? straight_ : squares ? squares_ : steep_).add_all(n, z, p, v, g, by, slope);
    return true;
  }

  // Those with alpha = 1.5, together; returns them, one bit each. Nobody reads z here, so its slots are free.
  unsigned roots(int64_t row, int n, const T* const* p, const T* const* v, T* const* g) const {
    const T *ps[kGroup], *vs[kGroup];
    T* gs[kGroup];
    unsigned done = 0;
    int m = 0;
    for (int i = 0; i < n; ++i) {
      if (job_.second_of(row + i) != 1.5) continue;
      ps[m] = p[i], vs[m] = v[i], gs[m] = g[i], ++m, done |= 1u << i;
    }
    root_vjp<T>(ps, vs, m, job_.K, gs, s_);
    if (!job_.grad_radius && !job_.grad_second) return done;
    for (int i = 0; i < n; ++i)
      if (done >> i & 1) keep(row + i, MapVjp<T>(job_, row_at(row + i, nullptr, p[i], v[i], g[i]), s_).power_controls());
    return done;
  }

  static bool near_one_unit(double unit) {
    constexpr double most = sizeof(T) == 4 ? 0x1p30 : 0x1p250;
    return bool(int(unit >= 1 / most) & int(unit <= most));
  }

  // Takes what the derivative of squares has in every entry of a row, twice the square of their unit, into its factor. False where
  // that is too far from 1; the factors are as they were then.
  static bool take_units(const double* unit, int n, double* by) {
    int64_t other = 0;
    for (int i = 0; i < n; ++i) other |= int64_t(!near_one_unit(unit[i]));
    for (int i = 0; !other && i < n; ++i) by[i] *= 2 * (unit[i] * unit[i]);
    return !other;
  }

  // Is p read for the support of squares alone, or not at all where words were kept?
  bool is_squared(double control) const {
    static_assert(kWordsBelow <= kSkipFrom, "longer rows onto a given radius read p: see vjp_group()");
    if (given_ && (!job_.words || job_.grad_radius)) return false;
    return words_suffice(job_.transform, job_.rule, job_.power, control, job_.K);
  }

  // Where words were kept, a radius is NaN if its row is.
  static bool none_is_nan(const double* radius, int n) {
    int64_t nan = 0;
    for (int i = 0; i < n; ++i) nan |= int64_t(radius[i] != radius[i]);
    return !nan;
  }

  // dr/dx in each entry that may be chosen.
  double slope(const MapRow<T>& one) const {
    return given_ ? 0 : total_ ? one.control : mean_slopes(job_.rule, one.base, one.count, one.control).each;
  }

  void pull_straight(int64_t row) {
    if (!given_) straight_.template run<Along::before>(job_.K, s_, Straight{});
    else if (job_.grad_radius) straight_.template run<Along::after>(job_.K, s_, Straight{});
    else straight_.template run<Along::none>(job_.K, s_, Straight{});
    keep_controls(row, straight_);
  }

  // Long rows onto a radius of their mean, of which few entries may matter: of p and v only what is in words with support is read.
  void pull_kept(int64_t row) {
    const Factors<T> by{kept_.scale, kept_.each, kept_.along};
    for (int i = 0; i < kept_.n; ++i) {
      const SharesOfWords<T> support{{job_.words + (row + kept_.row[i]) * words_of(job_.K)}, kept_.p[i]};
      const auto f = s_.stream && aligned(kept_.g[i]) ? vjp_spread<true, T, SharesOfWords<T>, Straight>
                                                      : vjp_spread<false, T, SharesOfWords<T>, Straight>;
      f(support, kept_.v[i], job_.K, by.from(i), kept_.g[i], nullptr, Straight{});
    }
    keep_controls(row, kept_);
  }

  void pull_steep(int64_t row) {
    const double* const base = job_.base + row;
    const int* const at = steep_.row;
    switch (job_.transform) {
      case Transform::lin: climb(row, [](int) { return [](Vec<T> x, Vec<T>) { return x; }; }); break;
      case Transform::exp:
        climb(row, [&](int i) {
          const T least = std::numeric_limits<T>::min();
          const Vec<T> top = splat(T(base[at[i]])), by = splat(total_ ? std::max(T(job_.second_of(row + at[i])), least) : T(1));
          return [=](Vec<T> x, Vec<T> z) { return x * (vexp<T>((z - top) / by) / by); };
        });
        break;
      case Transform::sq:
        if (times_) {
          climb_by(row, Times<T>{steep_.z});
          break;
        }
        climb(row, [=](int i) {
          const Vec<T> unit = splat(T(base[at[i]]));
          return [=](Vec<T> x, Vec<T> z) { return x * (T(2) * (z * unit) * unit); };
        });
        break;
      case Transform::log: climb(row, [](int) { return [](Vec<T> x, Vec<T> z) { return x / z; }; }); break;  // 1 / z may be infinite
    }
    keep_controls(row, steep_);
  }

  template <class Of>
  void climb(int64_t row, Of of) {
    climb_by(row, Steep<T, Of>{steep_.z, of});
  }

  template <class F>
  void climb_by(int64_t row, const F& steep) {
    if (given_ && !job_.grad_radius && job_.words && job_.K >= kSkipFrom) pull_chosen(row, steep);
    else if (given_ && !job_.grad_radius) steep_.template run<Along::none>(job_.K, s_, steep);
    else steep_.template run<Along::before>(job_.K, s_, steep);
  }

  // Long rows onto a given radius: nothing of them is read where words have no support.
  template <class F>
  void pull_chosen(int64_t row, const F& steep) {
    for (int i = 0; i < steep_.n; ++i) {
      const int64_t at = row + steep_.row[i];
      if (std::isnan(job_.found[at])) {
        std::fill_n(steep_.g[i], job_.K, steep_.p[i][0]);
        continue;
      }
      const auto touch = steep.row(i);
      using Touch = std::decay_t<decltype(touch)>;
      const auto f = s_.stream && aligned(steep_.g[i]) ? vjp_chosen_long<true, T, Touch> : vjp_chosen_long<false, T, Touch>;
      f(job_.words + at * words_of(job_.K), steep_.v[i], job_.K, steep_.scale[i], steep_.g[i], touch);
    }
  }

  // Squares of which w.p, if it is wanted, is found without p. What is found along w is w.z^2: of this, half of the factor makes w.p.
  void pull_squares(int64_t row) {
    const uint32_t* kept[kGroup];
    for (int i = 0; i < squares_.n; ++i) kept[i] = job_.words ? job_.words + (row + squares_.row[i]) * words_of(job_.K) : nullptr;
    const FromWords<T> words{kept, squares_.z};
    const FromSquares<T> shares{squares_.p, squares_.z};
    const Times<T> times{squares_.z};
    if (given_) squares_.template run<Along::none>(words, job_.K, s_, times);
    else if (job_.words) squares_.template run<Along::before>(words, job_.K, s_, times);
    else squares_.template run<Along::before>(shares, job_.K, s_, times);
    for (int i = 0; i < squares_.n; ++i) squares_.along[i] *= squares_.scale[i] / 2;
    keep_controls(row, squares_);
  }

  void keep_controls(int64_t row, const Pulled<T>& rows) const {
    if (!job_.grad_radius && !job_.grad_second) return;
    for (int i = 0; i < rows.n; ++i) {
      const int64_t at = row + rows.row[i];
      const MapRow<T> one = row_at(at, rows.z[i], rows.p[i], rows.v[i], rows.g[i]);
      if (std::isnan(one.p[0])) {  // so is the row, throughout
        keep(at, {double(one.p[0]), double(one.p[0])});
        continue;
      }
      const double to_radius = job_.grad_radius ? radius_gradient(one, double(rows.along[i])) : 0;
      keep(at, {to_radius, job_.grad_second ? MapVjp<T>(job_, one, s_).cooling() : 0});
    }
  }

  void keep(int64_t at, const ControlGradients& found) const {
    if (job_.grad_radius) job_.grad_radius[at] = found.radius;
    if (job_.grad_second) job_.grad_second[at] = found.second;
  }

  double radius_gradient(const MapRow<T>& one, double along) const {
    if (given_ || total_) return std::isinf(one.control) ? 0 : -along / one.control;
    return -along / one.radius * mean_slopes(job_.rule, one.base, one.count, one.control).control;
  }

  const MapVjpJob& job_;
  const Scratch<T>& s_;
  const bool linear_, total_, given_;
  const double slope_;  // of rows without hidden entries, if the control is one number: dr/dx
  Pulled<T> straight_, steep_, squares_, kept_;
  bool times_ = false;  // is what multiplies the gradients of squares in their factors, but for the scores?
};

template <class S>
inline void map_vjp_rows(const MapVjpJob& job, int64_t begin, int64_t end) {
  using T = typename ComputeIn<S>::type;
  const S *z = static_cast<const S*>(job.z), *p = static_cast<const S*>(job.p), *v = static_cast<const S*>(job.v);
  S* grad = static_cast<S*>(job.grad);
  const bool direct = std::is_same_v<S, T> && job.strides.entry == 1;
  const bool read = std::is_same_v<S, T> && job.zs.entry == 1 && !job.mask;
  const int group = std::max(1, rows_together<T>(job.K, std::max(job.strides.entry, job.zs.entry)));
  const Workspace<T> workspace(job.K, 4 * group);
  Scratch<T> s = workspace.view();
  s.stream = direct && !job.grad_second && job.written_past(4);
  Scratch<T> slots[4];
  for (int i = 0; i < 4; ++i) slots[i] = s, slots[i].rows += i * group * s.stride;
  MapVjpBlock<T> block(job, s);
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
    block.run(row, n, zi, pi, vi, gi);
    if (!direct) store_rows<false>(job, grad, job.strides, row, n, slots[3]);
  }
  if (s.stream) finish_streams();
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
