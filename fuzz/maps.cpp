// Whole maps, there and back: transforms, shares of the sum, radii of the mean and entmax, by their definitions in long double.
#include <atomic>
#include <cmath>
#include <tuple>

#include "families.hpp"
#include "scores.hpp"

namespace fuzz {
namespace {

using sparsegen::MapJob;
using sparsegen::MapVjpJob;
using sparsegen::ProjectJob;
using sparsegen::Rule;
using sparsegen::Transform;
using Rows = std::vector<std::vector<double>>;
using Reals = std::vector<Real>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr Real kLeast = std::numeric_limits<Real>::min();

struct MapCase {
  Storage storage = Storage::float32;
  int64_t outer = 1, K = 1, inner = 1;
  Transform transform = Transform::lin;
  Rule rule = Rule::given;
  bool power = false;                      // entmax: `second` is alpha
  Rows z, v;                               // numbers of the storage, a row each
  std::vector<double> radius, second{1};   // one a row, or one
  std::vector<uint8_t> mask;               // rows x K, or K for all rows, or none
  Layout in, out;                          // of z; of p, v and the gradient
  bool words = false, controls = false;    // are words kept; are gradients of the controls wanted?
  bool bare = false;                       // entmax: the way back knows nothing but p, as that of a gradient's gradient
  bool junk = false;                       // v is NaN or infinite wherever that must not matter
  bool stream = false;
  Turns turns;

  int64_t rows() const { return outer * inner; }
  bool one_mask() const { return !mask.empty() && int64_t(mask.size()) == K && rows() > 1; }
  bool open(int64_t row, int64_t k) const { return mask.empty() || mask[size_t((one_mask() ? 0 : row * K) + k)]; }
  double radius_of(int64_t row) const { return radius[radius.size() > 1 ? size_t(row) : 0]; }
  double second_of(int64_t row) const { return second[second.size() > 1 ? size_t(row) : 0]; }
  bool total() const { return rule == Rule::total; }
  bool mean() const { return rule == Rule::cone || rule == Rule::hourglass; }
  // All of the sum is the radius: the threshold is 0, and entries that are 0 move with the others.
  bool whole(int64_t row) const { return total() && radius_of(row) == 1; }
  bool has_second() const { return power || (total() && transform == Transform::exp); }
};

// What a run gave, a row each.
struct Found {
  Rows p, v, grad;
  std::vector<double> to_radius, to_second;
  bool outside = false;
  std::string what;
};

// A row with what is hidden as -inf.
std::vector<double> seen(const MapCase& c, int64_t row) {
  std::vector<double> z = c.z[size_t(row)];
  for (int64_t k = 0; k < c.K; ++k)
    if (!c.open(row, k)) z[size_t(k)] = -kInf;
  return z;
}

Rows read(const MapCase& c, const Place& at, Cells& from) {
  Rows rows(size_t(c.rows()));
  for (int64_t row = 0; row < c.rows(); ++row)
    for (int64_t k = 0; k < c.K; ++k) rows[size_t(row)].push_back(from[at.at(row / c.inner, k, row % c.inner)]);
  return rows;
}

void write(const MapCase& c, const Rows& from, const Place& at, Cells& to) {
  for (int64_t row = 0; row < c.rows(); ++row)
    for (int64_t k = 0; k < c.K; ++k) to.set(at.at(row / c.inner, k, row % c.inner), from[size_t(row)][size_t(k)]);
}

std::vector<uint8_t> cells_of(const Place& at, const MapCase& c) {
  std::vector<uint8_t> used(size_t(at.extent), 0);
  for (int64_t row = 0; row < c.rows(); ++row)
    for (int64_t k = 0; k < c.K; ++k) used[size_t(at.at(row / c.inner, k, row % c.inner))] = 1;
  return used;
}

// v as the way back gets it: what no gradient depends on may be anything.
Rows upstream(const MapCase& c, const Rows& p) {
  Rows v = c.v;
  for (int64_t row = 0; c.junk && row < c.rows(); ++row) {
    const std::vector<double> z = seen(c, row);
    for (size_t k = 0; k < z.size(); ++k) {
      const bool counts = c.whole(row) ? z[k] > -kInf : p[size_t(row)][k] > 0;
      if (!counts) v[size_t(row)][k] = k % 3 == 0 ? std::nan("") : k % 3 == 1 ? kInf : -kInf;
    }
  }
  return v;
}

// [p > 0] bit by bit, nothing behind the row, and the one word more as it was.
std::string words_wrong(const MapCase& c, const std::vector<uint32_t>& words, const Rows& p) {
  const int64_t step = (c.K + 31) / 32;
  for (int64_t row = 0; row < c.rows(); ++row)
    for (int64_t k = 0; k < step * 32; ++k) {
      const bool bit = words[size_t(row * step + k / 32)] >> (k % 32) & 1, in = k < c.K && p[size_t(row)][size_t(k)] > 0;
      if (bit != in) return text("bit ", k, " of the words of row ", row, " is ", bit);
    }
  return words.back() == 0xA5A5A5A5 ? "" : "the word behind the words was written";
}

// Where a case stands in memory, and what the way there keeps of each row, with some room behind.
struct Memory {
  static constexpr int64_t kGuard = 8;
  Place in, out;
  Cells z, p, v, g;
  std::vector<double> radius, base, count;
  std::vector<uint32_t> words;
  std::vector<int64_t> mask_row;
  std::atomic<bool> outside{false};

  explicit Memory(const MapCase& c)
      : in(place(c.in, c.outer, c.K, c.inner)), out(place(c.out, c.outer, c.K, c.inner)), z(c.storage, in.extent, c.in.shift),
        p(c.storage, out.extent, c.out.shift), v(c.storage, out.extent, c.out.shift), g(c.storage, out.extent, c.out.shift),
        radius(size_t(c.rows() + kGuard), -7), base(radius), count(radius),
        words(size_t(c.rows() * ((c.K + 31) / 32) + 1), 0xA5A5A5A5) {
    if (c.one_mask()) mask_row.assign(size_t(c.rows()), 0);
    write(c, c.z, in, z);
  }
};

MapJob there(const MapCase& c, Memory& m) {
  // The kernel streams where the arrays of a call are large; that rows beyond ours exist is enough to make it believe so.
  const int64_t outer = c.stream ? c.outer + sparsegen::kStreamFrom : c.outer;
  MapJob job;
  static_cast<sparsegen::Job&>(job) = {c.storage, outer, c.K, c.inner, c.radius.data(), c.radius.size() > 1, c.turns.threads};
  job.x = m.z.at(m.in.first), job.xs = m.in.strides, job.p = m.p.at(m.out.first), job.ps = m.out.strides;
  job.mask = c.mask.empty() ? nullptr : c.mask.data(), job.mask_row = c.one_mask() ? m.mask_row.data() : nullptr;
  job.support = nullptr, job.threshold = nullptr, job.rule = c.rule, job.transform = c.transform, job.power = c.power;
  job.second = c.second.data(), job.second_per_row = c.second.size() > 1, job.outside = &m.outside;
  if (!c.bare) job.radius_out = m.radius.data(), job.mean_out = m.base.data(), job.count_out = m.count.data();
  if (c.words) job.words = m.words.data();
  return job;
}

MapVjpJob way_back(const MapCase& c, const MapJob& job, Memory& m, Found& f) {
  MapVjpJob back;
  static_cast<sparsegen::Job&>(back) = job;
  back.z = c.bare ? job.p : job.x, back.zs = c.bare ? job.ps : job.xs;
  back.p = job.p, back.v = m.v.at(m.out.first), back.grad = m.g.at(m.out.first), back.strides = job.ps;
  back.mask = c.bare ? nullptr : job.mask, back.mask_row = c.bare ? nullptr : job.mask_row;
  back.rule = c.rule, back.transform = c.transform, back.power = c.power;
  back.second = job.second, back.second_per_row = job.second_per_row;
  back.found = job.radius_out, back.base = job.mean_out, back.count = job.count_out, back.words = job.words;
  back.grad_radius = c.controls ? f.to_radius.data() : nullptr;
  back.grad_second = c.controls && c.has_second() ? f.to_second.data() : nullptr;
  return back;
}

Found run_case(const MapCase& c, const Engine& engine) {
  Memory m(c);
  Found f;
  f.to_radius.assign(m.radius.size(), -7), f.to_second = f.to_radius;
  const MapJob job = there(c, m);
  const auto z_before = m.z.copy(), p_before = m.p.copy(), g_before = m.g.copy();
  // What is projected as it is, is projected: as module.cpp has it.
  if (c.transform == Transform::lin && !c.total() && !c.power) run<ProjectJob>(job, engine.project, c.rows(), c.turns);
  else run(job, engine.map, c.rows(), c.turns);
  f.p = read(c, m.out, m.p), f.outside = m.outside, f.v = upstream(c, f.p);
  if (!m.p.kept(p_before, cells_of(m.out, c))) f.what = "a cell that is no part of the result was written";
  else if (c.words) f.what = words_wrong(c, m.words, f.p);
  if (!f.what.empty()) return f;
  write(c, f.v, m.out, m.v);
  const auto v_before = m.v.copy(), p_after = m.p.copy();
  run(way_back(c, job, m, f), engine.map_vjp, c.rows(), c.turns);
  f.grad = read(c, m.out, m.g);
  if (!m.g.kept(g_before, cells_of(m.out, c))) f.what = "a cell that is no part of the gradient was written";
  if (!m.z.kept(z_before, {}) || !m.v.kept(v_before, {}) || !m.p.kept(p_after, {})) f.what = "what is only read was written";
  for (const auto* of : {&m.radius, &m.base, &m.count, &f.to_radius, &f.to_second})
    for (size_t i = size_t(c.rows()); i < of->size(); ++i)
      if ((*of)[i] != -7) f.what = "wrote past the rows";
  return f;
}

// A row of scores, and what is true of it.
struct Scores {
  std::vector<double> z;  // -inf: hidden
  Real top = -kInf, low = kInf, size = 0;  // the largest and the least of what is shown, and the largest size
  int64_t n = 0;                           // how many are
  bool bad = false;                        // NaN or inf

  explicit Scores(std::vector<double> row) : z(std::move(row)) {
    for (double x : z) {
      if (x == -kInf) continue;
      ++n, bad |= !std::isfinite(x);
      top = std::max(top, Real(x)), low = std::min(low, Real(x)), size = std::max(size, Real(std::fabs(x)));
    }
  }
  Real unit() const { return size > 0 ? size : Real(1); }
  bool shown(size_t k) const { return z[k] > -kInf || std::isnan(z[k]); }
};

// The answer to a row: probabilities, how far each may be moved by rounding of what is projected and of the radius, and the
// radius in the unit that points are measured in. Nothing is promised of rows to `skip`: their radius is lost in rounding.
struct Wanted {
  Answer a;
  Reals blur;
  Real radius = 1;
  bool skip = false, outside = false;
};

Real inverse(Real r) { return r == 0 || std::isinf(r) ? Real(0) : 1 / r; }

Wanted constant(int64_t K, Answer::Kind kind) {
  Wanted w;
  w.a.kind = kind, w.a.p.assign(size_t(K), kind == Answer::nan ? Real(std::nan("")) : Real(0)), w.blur.assign(size_t(K), 0);
  return w;
}

Wanted outside(int64_t K) {
  Wanted w = constant(K, Answer::nan);
  w.outside = true;
  return w;
}

// Onto a radius that is given. Points are off by a few roundings of their size; those that matter are within r of the top.
Wanted onto_given(const MapCase& c, const Scores& s, double control, double eps) {
  Wanted w;
  Reals x(s.z.begin(), s.z.end());
  Real off = 0, r = control, far = 0;
  const bool exp = c.transform == Transform::exp, sq = c.transform == Transform::sq;
  const Real b = s.unit(), unit = exp ? std::exp(-s.top) : sq ? 1 / (b * b) : Real(1);
  for (Real& v : x) {
    if (v == -kInf) continue;
    if (c.transform == Transform::log && !(v > 0)) return outside(c.K);
    if (exp) v = std::expm1(v - s.top);
    if (sq) v = (std::fabs(v) - b) / b * (std::fabs(v) / b + 1);
    if (c.transform == Transform::log) v = std::log(v), far = std::max(far, std::fabs(v));
  }
  if (!std::isinf(r)) r *= unit;
  if (r < kLeast) r = 0;  // it has lost its digits, and no two scores are as close
  if (exp || sq) off = 12 * Real(eps) * std::min(Real(1), 1 / std::max(r, kLeast));
  if (c.transform == Transform::log) off = 6 * Real(eps) * far * inverse(r);
  w.a = project_exact(x.data(), c.K, r, eps), w.radius = r, w.blur.assign(x.size(), off);
  return w;
}

// The mean of what is shown and how far doubles may be from it: fewer than n + 8 roundings of numbers that add up to sum |z|.
struct Mean {
  Real value = 0, size = 0, n = 1, off = 0;
};

Mean mean_of(const Scores& s) {
  Sum sum, sizes;
  for (double x : s.z)
    if (x > -kInf) sum.add(x), sizes.add(std::fabs(Real(x)));
  const Real n = Real(std::max<int64_t>(s.n, 1));
  return {sum.value() / n, sizes.value() / n, n, Real(0x1p-53) * (n + 8) * sizes.value() / n};
}

// Onto a radius made of the row's mean: what is lost of the mean is lost of the radius, and of p.
Wanted onto_mean(const MapCase& c, const Scores& s, double q, double eps) {
  const Mean mean = mean_of(s);
  const Real height = c.rule == Rule::cone ? mean.value : std::fabs(mean.value), width = 1 / mean.n + Real(q);
  Wanted w;
  w.radius = std::isinf(q) ? Real(1) : (height + q) / width;
  const Real off = std::isinf(q) ? Real(0) : (mean.off + Real(0x1p-51) * (std::fabs(height) + q) + Real(5e-324)) / width;
  const Real relative = off / std::max(std::fabs(w.radius), kLeast);
  w.skip = relative > Real(1e-3), w.outside = !w.skip && w.radius < 0;
  w.a = project_exact(s.z.data(), c.K, w.radius, eps), w.blur.assign(s.z.size(), 4 * relative);
  return w;
}

// Points that add up to the radius or a part `keep` of it. Each share has a few roundings of its own, more where an exponent was
// rounded, and those of the sum.
Wanted shares(const MapCase& c, const Scores& s, double keep, double t, double eps) {
  Reals x(s.z.size(), 0), steps(s.z.size(), Real(12) + Real(c.K) / 4);
  Sum total, all;
  for (size_t k = 0; k < x.size(); ++k) {
    if (!s.shown(k)) continue;
    const Real v = s.z[k], low = (v - s.top) / t;
    if (c.transform == Transform::lin && v < 0) return outside(c.K);
    if (c.transform == Transform::exp) steps[k] += 4 * std::fabs(low);
    x[k] = c.transform == Transform::exp ? std::exp(low) : c.transform == Transform::sq ? v * v : v;
    total.add(x[k]);
  }
  if (total.value() == 0) return outside(c.K);
  Wanted w;
  for (size_t k = 0; k < x.size(); ++k) x[k] /= total.value(), all.add(steps[k] * x[k]);
  Real most = 0;
  for (size_t k = 0; k < x.size(); ++k) w.blur.push_back((steps[k] + all.value()) * eps * x[k]), most = std::max(most, w.blur[k]);
  if (keep == 1) {
    w.a.p = x, w.a.firm = INT64_MAX;  // it divides: there is no threshold whose rounding all entries share
    return w;
  }
  for (size_t k = 0; k < x.size(); ++k)
    if (!s.shown(k)) x[k] = -kInf;
  w.a = project_exact(x.data(), c.K, keep, eps), w.blur.assign(x.size(), 2 * most / keep);
  return w;
}

// (1 - gap w)^(1/gap), e^-w for a gap of 0.
Real root_of(Real w, Real gap) {
  if (gap == 0) return std::exp(-w);
  const Real inside = 1 - gap * w;
  if (!(inside > 0)) return 0;
  return gap == 1 ? inside : gap == Real(0.5) ? inside * inside : std::exp(std::log1p(-gap * w) / gap);
}

int64_t firm_size(Reals p, double eps) {
  std::sort(p.begin(), p.end(), [](Real u, Real v) { return u > v; });
  int64_t n = int64_t(p.size());
  while (n > 1 && !(p[size_t(n - 1)] * Real(n) > 2 * Real(eps))) --n;
  return n;
}

// Entmax: how far the threshold is above the largest score, by bisection.
Real root_threshold(const Reals& below, int64_t n, Real gap) {
  Reals near;  // what can be in
  for (Real b : below)
    if (gap * b < 1) near.push_back(b);
  const Real log_n = std::log(Real(n));
  Real low = 0, high = gap == 0 ? log_n : -std::expm1(-gap * log_n) / gap;
  for (int i = 0; i < 72; ++i) {
    const Real middle = (low + high) / 2;
    Real sum = 0;
    for (Real b : near) sum += root_of(middle + b, gap);
    (sum > 1 ? low : high) = middle;
  }
  return high;
}

// The threshold, and with it each w, is off by a few roundings: what that makes of p is its blur.
Wanted powers(const MapCase& c, const Scores& s, double alpha, double eps) {
  const Real gap = Real(alpha) - 1, steps = (12 + Real(c.K) / 4) * Real(eps);
  Reals below;
  for (double x : s.z) below.push_back(x > -kInf ? s.top - Real(x) : Real(kInf));
  const Real start = root_threshold(below, s.n, gap);
  Wanted w;
  Sum sum, blurs;
  for (Real b : below) w.a.p.push_back(b < kInf ? root_of(start + b, gap) : Real(0)), sum.add(w.a.p.back());
  for (size_t k = 0; k < below.size(); ++k) {
    Real& p = w.a.p[k];
    p /= sum.value();
    const Real at = start + below[k], more = below[k] < kInf ? root_of(at * (1 - steps), gap) : Real(0);
    w.blur.push_back(p > 0 ? std::max(more - root_of(at * (1 + steps), gap), more - p) : more);
    blurs.add(w.blur.back());
  }
  for (size_t k = 0; k < below.size(); ++k) w.blur[k] += w.a.p[k] * blurs.value();
  w.a.firm = firm_size(w.a.p, eps);
  return w;
}

Wanted wanted(const MapCase& c, const Scores& s, int64_t row) {
  const double eps = eps_of(wide(c.storage)), r = c.radius_of(row), second = c.second_of(row);
  if (s.bad) return constant(c.K, Answer::nan);
  if (s.n == 0) return constant(c.K, Answer::nothing);
  if (c.power) return powers(c, s, second, eps);
  if (c.total()) return shares(c, s, r, second, eps);
  return c.mean() ? onto_mean(c, s, r, eps) : onto_given(c, s, r, eps);
}

std::string p_wrong(const MapCase& c, const Scores& s, const Wanted& w, const std::vector<double>& p, int64_t row) {
  if (w.skip) return "";
  Sum sum;
  for (size_t k = 0; k < p.size(); ++k) {
    const bool fine = near(p[k], w.a, int64_t(k), c.storage, w.blur[k] + Real(tiniest(Storage::float32)));
    if (!fine || (!s.shown(k) && w.a.kind == Answer::numbers && p[k] != 0))
      return text("entry ", k, " of row ", row, " is ", p[k], ", not ", double(w.a.p[k]));
    sum.add(p[k]);
  }
  if (w.a.kind != Answer::numbers) return "";
  std::map<double, double> share;  // of scores that count as the same
  for (size_t k = 0; k < p.size(); ++k) {
    const double score = c.transform == Transform::sq && s.shown(k) ? std::fabs(s.z[k]) : s.z[k];
    if (!share.emplace(score, p[k]).second && share[score] != p[k]) return text("row ", row, " parts a tie at ", k);
  }
  const double off = double(std::fabs(sum.value() - 1)) / eps_of(c.storage);
  const double most = c.total() ? 8 + double(c.K) / 2 : 4;  // those that divide do so by a plain sum
  if (size_of(c.storage) == 2 || off <= most) return "";
  return text("row ", row, " sums to 1 only within ", off, " eps");
}

// Gradients of a row, and the sizes that their rounding errors are measured by. `beyond`: on the way to them a number of T is too
// large, or a radius too small to have one.
struct Slopes {
  Reals score, size;
  Real radius = 0, radius_size = 0, second = 0, second_size = 0, lost = 0;
  bool beyond = false;
};

// What the closed form is made of: the support as the kernel found it, v on it, and w.
struct Way {
  const MapCase& c;
  const Scores& s;
  const Wanted& want;
  const std::vector<double>&p, &v;
  Real r, second;     // the controls
  Reals w;            // v less its mean over the support
  Real mean = 0;
  Real size = 0;      // of the v that count
  Real along = 0, along_size = 0;  // w.p
  Real lost;          // beside this, subnormal numbers have lost digits

  bool on(size_t k) const { return p[k] > 0; }
};

Way way_of(const MapCase& c, const Scores& s, const Wanted& want, const Found& f, int64_t row) {
  const Storage in = wide(c.storage);
  Way way{c, s, want, f.p[size_t(row)], f.v[size_t(row)], c.radius_of(row), c.second_of(row), {}, 0, 0, 0, 0,
          Real(tiniest(in)) / Real(eps_of(in))};
  Sum sum, along, sizes;
  int64_t n = 0;
  for (size_t k = 0; k < way.p.size(); ++k) {
    if (way.on(k)) sum.add(way.v[k]), ++n;
    if (c.whole(row) ? s.shown(k) : way.on(k)) way.size = std::max(way.size, Real(std::fabs(way.v[k])));
  }
  way.mean = sum.value() / Real(std::max<int64_t>(n, 1));
  for (size_t k = 0; k < way.p.size(); ++k) {
    way.w.push_back(way.on(k) ? way.v[k] - way.mean : Real(0));
    along.add(way.w[k] * way.p[k]), sizes.add(std::fabs(way.w[k]) * way.p[k]);
  }
  way.along = along.value(), way.along_size = sizes.value() + way.size;
  return way;
}

// g'(z) / r in the units of the points, how large it is to rounding, and what is lost of it where w / r is subnormal.
struct Steep {
  Real slope = 0, size = 0, lost = 0;

  Real error(Real v) const { return size * v + lost * (v + 1); }  // of a v of this size
};

Steep steep(const Way& way, size_t k, Real over) {
  const Real z = way.s.z[k], b = way.s.unit();
  const bool total = way.c.total(), wide_numbers = way.c.storage == Storage::float64;
  if (over == 0) return {};
  switch (way.c.transform) {
    case Transform::exp: {
      const Real t = total ? way.second : Real(1), low = (z - way.s.top) / t, slope = std::exp(low) / t * over;
      return {slope, slope * (1 + std::fabs(low)), way.lost / t};
    }
    case Transform::sq: {
      // Where the largest score is not far from 1 the kernel multiplies w by 2 / r, and only then by z: see take_units().
      const Real most = wide_numbers ? Real(0x1p251) : Real(0x1p31), slope = 2 * z / (b * b) * over;
      const Real times = b < most ? std::fabs(z) / 32 : Real(0);
      return {slope, std::fabs(slope), way.lost * (2 / b + times)};
    }
    case Transform::log: return {over / z, over / z, 0};
    default: return {total ? over / b : over, total ? over / b : over, 0};
  }
}

// Along what is projected onto a radius that is given, or of the mean.
Slopes back_projected(const Way& way) {
  const Real over = inverse(way.want.radius);
  Slopes g;
  for (size_t k = 0; k < way.p.size(); ++k) {
    const Steep at = way.on(k) ? steep(way, k, over) : Steep();
    g.score.push_back(way.w[k] * at.slope), g.size.push_back(at.error(way.size));
  }
  // Nor has a unit digits that is no normal double. No scores but ties are then as close as a radius that is not 0 or infinite.
  const Real unit = way.c.transform == Transform::exp ? std::fabs(way.s.top) / 708 : std::fabs(std::log(way.s.unit())) / 340;
  g.beyond = over * std::max(way.size, Real(1)) > Real(format_of(wide(way.c.storage)).largest) / 4;
  g.beyond |= (way.c.transform == Transform::exp || way.c.transform == Transform::sq) && unit > 1;
  if (!way.c.mean()) {
    const Real by = inverse(way.r);
    g.radius = -way.along * by, g.radius_size = way.along_size * by;
    return g;
  }
  const Mean mean = mean_of(way.s);
  const bool cone = way.c.rule == Rule::cone, far = std::isinf(way.r);
  const Real width = 1 / mean.n + way.r, sign = cone || mean.value > 0 ? 1 : mean.value < 0 ? -1 : 0;
  const Real height = cone ? mean.value : std::fabs(mean.value), push = far ? Real(0) : sign / mean.n / width;
  const Real bend = far ? Real(0) : (1 / mean.n - height) / (width * width);
  for (size_t k = 0; k < way.p.size(); ++k)
    if (way.s.shown(k)) g.score[k] -= way.along * over * push, g.size[k] += way.along_size * over * std::fabs(push);
  g.radius = -way.along * over * bend;
  g.radius_size = far ? Real(0) : way.along_size * over * (std::fabs(bend) + std::fabs(height) / (width * width));
  g.lost = 4 * way.want.blur[0];
  g.beyond |= !cone && !far && std::fabs(mean.value) <= mean.off;  // either sign will do
  return g;
}

// Onto `keep` of the sum of the points.
Slopes back_shares(const Way& way) {
  const Real keep = way.r, far = std::isinf(keep) ? Real(0) : keep;
  Sum total, weighed, weight;
  for (size_t k = 0; k < way.p.size(); ++k) {
    if (!way.s.shown(k)) continue;
    const Real z = way.s.z[k], b = way.s.unit();
    total.add(way.c.transform == Transform::exp ? std::exp((z - way.s.top) / way.second)
              : way.c.transform == Transform::sq ? z / b * (z / b) : z / b);
    if (way.on(k)) weighed.add(way.p[k] * Real(way.v[k])), weight.add(way.p[k]);
  }
  const Real over = inverse(keep * total.value()), mean = weighed.value() / weight.value();
  // Halves: what the kernel knows of w.p may be of the squares themselves, not of the p that was stored.
  const bool halved = size_of(way.c.storage) == 2 && way.c.transform == Transform::sq;
  const Real more = halved ? 1 + Real(eps_of(way.c.storage)) / Real(eps_of(Storage::float32)) / 64 : Real(1);  // see steps_of()
  Slopes g;
  Sum cooled, cooled_size;
  for (size_t k = 0; k < way.p.size(); ++k) {
    Real found = 0, size = 0;
    if (way.s.shown(k)) {
      const Steep at = steep(way, k, over);
      const bool exp = way.c.transform == Transform::exp;
      found = keep != 1 ? at.slope * (way.w[k] - far * way.along)
              : exp     ? way.p[k] * (way.v[k] - mean) / way.second
                        : at.slope * (way.v[k] - mean);
      size = 2 * at.error(way.size) * (2 + far) * more;
      if (exp && keep == 1) size = 2 * (way.p[k] + way.lost) * way.size / way.second;
      const Real low = std::fabs(Real(way.s.z[k]) - way.s.top) / way.second;
      cooled.add(found * low), cooled_size.add((size + std::fabs(found)) * low + way.lost * way.size / way.second);
    }
    g.score.push_back(found), g.size.push_back(size);
  }
  const Real steepest = way.c.transform == Transform::lin ? over / way.s.unit() : over;
  g.beyond = steepest * std::max(way.size, Real(1)) > Real(format_of(wide(way.c.storage)).largest) / 4;
  g.radius = keep == 1 ? way.mean - mean : -way.along * inverse(keep);  // the same where p adds up to 1; halves do not
  g.radius_size = 2 * way.size * inverse(keep) * more, g.second = cooled.value(), g.second_size = cooled_size.value();
  return g;
}

// docs/math.md, section 9, given p.
Slopes back_power(const Way& way) {
  const Real gap = way.second - 1, far = gap == 0 ? Real(1) : gap;
  Sum total, weighed, entropy, squares;
  Reals s;
  for (size_t k = 0; k < way.p.size(); ++k) {
    const Real log = way.on(k) ? std::log(Real(way.p[k])) : Real(0);
    s.push_back(way.on(k) ? gap == 1 ? Real(1) : std::exp((1 - gap) * log) : Real(0));
    total.add(s[k]), entropy.add(-way.p[k] * log), squares.add(way.p[k] * log * log);
    if (way.on(k)) weighed.add(s[k] * Real(way.v[k]));
  }
  const Real all = std::max(total.value(), kLeast), mean = weighed.value() / all;
  Slopes g;
  Sum bent, spread;
  for (size_t k = 0; k < way.p.size(); ++k) {
    g.score.push_back(way.on(k) ? s[k] * (way.v[k] - mean) : Real(0)), g.size.push_back(2 * s[k] * way.size);
    if (!way.on(k)) continue;
    const Real p = way.p[k], log = std::log(p), share = s[k] / all, h = -p * log;
    const Real slope = gap == 0 ? p * (squares.value() - log * log) / 2
                                : (p - share) / (far * far) + (h - share * entropy.value()) / far;
    bent.add(slope * way.v[k]);
    spread.add((p + share) * (1 + log * log + squares.value()) * (1 + 1 / (far * far)) * way.size);
  }
  // The formula takes it that p sums to 1: as it was stored it does up to its own rounding.
  const Real halved = Real(eps_of(way.c.storage)) / Real(eps_of(wide(way.c.storage)));
  g.second = bent.value(), g.second_size = spread.value() * (1 + halved / 64);  // see steps_of()
  return g;
}

// Sums over a row go through at most K / 2 + 24 roundings each.
Real steps_of(const MapCase& c) { return 2 * Real(eps_of(wide(c.storage))) * (Real(c.K) / 2 + 64); }

std::string control_wrong(const MapCase& c, const char* name, double x, Real want, Real size, Real lost, int64_t row) {
  const Storage in = wide(c.storage);
  if (!(size < Real(format_of(in).largest) / 4)) return "";
  const Real allowed = steps_of(c) * size + (lost + Real(eps_of(in))) * (std::fabs(want) + size) +
                       4 * Real(tiniest(Storage::float32)) * (1 + size);
  if (std::fabs(x - want) <= allowed) return "";
  return text("the gradient of the ", name, " of row ", row, " is ", x, ", not ", double(want));
}

// The closed form on the support that was found.
std::string grad_wrong(const MapCase& c, const Scores& s, const Wanted& want, const Found& f, int64_t row) {
  const auto& grad = f.grad[size_t(row)];
  const double to_radius = f.to_radius[size_t(row)], to_second = f.to_second[size_t(row)];
  if (want.a.kind != Answer::numbers) {
    const double all = want.a.kind == Answer::nan ? std::nan("") : 0;
    const auto is = [=](double x) { return std::isnan(all) ? std::isnan(x) : x == 0; };
    for (double x : grad)
      if (!is(x)) return text("row ", row, " is ", all, " throughout, its gradient has ", x);
    if (!c.controls || (is(to_radius) && (!c.has_second() || is(to_second)))) return "";
    return text("row ", row, " is ", all, ", the gradients of its controls are ", to_radius, " and ", to_second);
  }
  if (want.skip) return "";
  const Way way = way_of(c, s, want, f, row);
  const Slopes g = c.power ? back_power(way) : c.total() ? back_shares(way) : back_projected(way);
  if (g.beyond) return "";
  const Storage in = wide(c.storage);
  const Real eps = eps_of(in), least = tiniest(in), most = Real(format_of(in).largest) / 4;
  for (size_t k = 0; k < grad.size(); ++k) {
    const Real size = g.size[k], by = g.score[k];
    // A radius, or the unit it is measured in, above all numbers is infinite: its gradient is 0.
    const Real rounding = steps_of(c) * size + (eps + g.lost) * (std::fabs(by) + size) + 4 * least * (1 + size + way.size);
    const Real allowed = size == 0 ? Real(0) : rounding + Real(1e-300);
    if (!(size + std::fabs(by) + allowed < most)) continue;
    if (!close(grad[k], by, allowed, c.storage) || (!s.shown(k) && grad[k] != 0))
      return text("entry ", k, " of the gradient of row ", row, " is ", grad[k], ", not ", double(by));
  }
  if (!c.controls) return "";
  const std::string what = control_wrong(c, "radius", to_radius, g.radius, g.radius_size, g.lost, row);
  if (!what.empty() || !c.has_second()) return what;
  return control_wrong(c, "second control", to_second, g.second, g.second_size, g.lost, row);
}

// The same rows on their own: contiguous, in reverse order, hidden entries as -inf.
MapCase elsewhere(const MapCase& c) {
  MapCase d = c;
  d.in = d.out = Layout(), d.stream = false, d.turns = Turns(), d.mask.clear(), d.outer = c.rows(), d.inner = 1;
  for (int64_t row = 0; row < c.rows(); ++row) d.z[size_t(c.rows() - 1 - row)] = seen(c, row);
  std::reverse(d.v.begin(), d.v.end());
  if (c.radius.size() > 1) std::reverse(d.radius.begin(), d.radius.end());
  if (c.second.size() > 1) std::reverse(d.second.begin(), d.second.end());
  return d;
}

// Equal to the bit, but for the sign of a gradient of 0, and up to `off`.
bool alike(double a, double b, Real off = 0) { return a == b || same(a, b) || std::fabs(Real(a) - b) <= off; }

// Whether squares are multiplied by 2 / r and then by z, or by 2 z / r, depends on their neighbours. That is all the same unless
// 1 / r is, in whatever unit, subnormal or beyond all numbers: it is the largest of them then.
Real apart(const MapCase& c, int64_t row, size_t k) {
  if (c.transform != Transform::sq) return 0;
  const Real largest = format_of(wide(c.storage)).largest, b = Scores(seen(c, row)).unit(), over = inverse(c.radius_of(row));
  if (!c.total() && std::max(over, b * b * over) > largest / 8) return kInf;
  Real most = 1;
  for (double v : c.v[size_t(row)]) most = std::max(most, std::fabs(Real(v)));
  return 8 * Real(tiniest(wide(c.storage))) * most * (1 + 2 / b + std::fabs(Real(c.z[size_t(row)][k])));
}

std::string differs(const MapCase& c, const Found& a, const Found& b) {
  for (int64_t row = 0; row < c.rows(); ++row) {
    const size_t i = size_t(row), j = size_t(c.rows() - 1 - row);
    for (size_t k = 0; k < size_t(c.K); ++k) {
      if (!same(a.p[i][k], b.p[j][k]))
        return text("entry ", k, " of row ", row, " is ", a.p[i][k], " here and ", b.p[j][k], " elsewhere");
      if (!alike(a.grad[i][k], b.grad[j][k]) && !alike(a.grad[i][k], b.grad[j][k], apart(c, row, k)))
        return text("entry ", k, " of the gradient of row ", row, " is ", a.grad[i][k], " here and ", b.grad[j][k], " elsewhere");
    }
    if (!alike(a.to_radius[i], b.to_radius[j]) || !alike(a.to_second[i], b.to_second[j]))
      return text("a control's gradient of row ", row, " depends on where it stands");
  }
  return "";
}

std::string check(const MapCase& c, const Engine& engine) {
  const Found f = run_case(c, engine);
  if (!f.what.empty()) return f.what;
  bool out = false, broken = false;
  for (int64_t row = 0; row < c.rows(); ++row) {
    const Scores s(seen(c, row));
    const Wanted want = wanted(c, s, row);
    std::string what = p_wrong(c, s, want, f.p[size_t(row)], row);
    if (what.empty()) what = grad_wrong(c, s, want, f, row);
    if (!what.empty()) return what;
    out |= want.outside, broken |= s.bad || want.skip;  // such a row may be called outside, too
  }
  if (f.outside != out && !broken) return out ? "nothing is said of a row outside the domain" : "no row is outside the domain";
  return differs(c, f, run_case(elsewhere(c), engine));
}

// Scores moved into the map's domain, but for a few rows.
void move_inside(Random& random, const MapCase& c, std::vector<double>& z) {
  const bool log = c.transform == Transform::log, sums = c.total() && c.transform == Transform::lin;
  if (!(log || sums) || random.one_in(30)) {
    // Sums of larger numbers are not for doubles.
    for (double& x : z)
      if (c.mean() && std::isfinite(x)) x = std::clamp(x, -1e150, 1e150);
    return;
  }
  for (double& x : z) {
    if (x > -kInf) x = std::fabs(x);
    if (log && x == 0) x = tiniest(c.storage);
  }
}

// A radius of the row's own size, or one as callers have it.
double random_control(Random& random, const MapCase& c, const std::vector<double>& z) {
  const Scores s(z);
  if (c.power) return 1;
  if (c.total()) {
    if (random.one_in(3)) return 1;
    if (random.one_in(10)) return random.pick({2.0, 10.0, kInf, 1e6});
    return random.pick({0.5, 0.75, 0.9, 0.999, 0.25, random.uniform() + 1e-3, random.magnitude(-4, 0)});
  }
  if (c.mean()) {
    const double q = random.pick({0.0, 1.0, 0.1, random.magnitude(-6, 6), kInf});
    if (c.rule == Rule::hourglass || s.bad) return q;
    return std::max(double(-mean_of(s).value), 0.0) * 1.01 + 1e-3 + q;
  }
  if (random.one_in(3)) return random.pick({1.0, 0.5, 2.0, 0.0625});
  if (random.one_in(20)) return c.transform == Transform::lin ? random.pick({0.0, kInf}) : kInf;
  const Real own = s.n == 0 || s.bad                  ? Real(1)
                   : c.transform == Transform::exp    ? std::exp(std::clamp(s.top, Real(-600), Real(600)))
                   : c.transform == Transform::log    ? Real(1)
                                                      : std::pow(std::clamp(s.unit(), Real(1e-100), Real(1e100)), Real(2));
  return random.magnitude(-3, 3) * (random.one_in(3) ? 1.0 : double(c.transform == Transform::lin ? std::sqrt(own) : own));
}

double random_second(Random& random, const MapCase& c) {
  if (c.power) return random.one_in(3) ? random.pick({1.0, 2.0, 3.0, 1.01 + random.uniform()}) : 1.5;
  return c.has_second() && random.one_in(2) ? random.magnitude(-1.3, 1.3) : 1;
}

std::vector<double> random_v(Random& random, const MapCase& c, double spread) {
  const double shift = random.one_in(4) ? spread * 100 : 0;
  std::vector<double> v;
  for (int64_t k = 0; k < c.K; ++k)
    v.push_back(double(rounded(Real(std::clamp(random.normal() * spread + shift, -6e4, 6e4)), c.storage)));
  return v;
}

MapCase make(Random& random) {
  static const std::pair<Transform, Rule> kinds[] = {
      {Transform::lin, Rule::given}, {Transform::exp, Rule::given}, {Transform::log, Rule::given}, {Transform::sq, Rule::given},
      {Transform::sq, Rule::given},  {Transform::lin, Rule::total}, {Transform::exp, Rule::total}, {Transform::sq, Rule::total},
      {Transform::sq, Rule::total},  {Transform::lin, Rule::cone},  {Transform::lin, Rule::hourglass}};
  MapCase c;
  c.storage = Storage(random.below(4));
  c.power = random.one_in(6);
  if (!c.power) std::tie(c.transform, c.rule) = kinds[random.below(int64_t(std::size(kinds)))];
  c.K = random_length(random);
  const bool found = c.rule != Rule::given;  // radii of a row's own
  if (found && random.one_in(60)) c.K = 8192 + random.below(1200);  // from where the first entries are asked, or parts looked at
  const int64_t most = std::max<int64_t>(found && c.K > 1024 ? 3 : 1, std::min<int64_t>(70, 3000 / c.K));
  c.outer = random.between(1, most);
  if (random.one_in(4)) c.inner = random.between(1, std::max<int64_t>(1, most / c.outer));
  c.in = random_layout(random, true), c.out = random_layout(random, false);
  c.controls = random.one_in(2), c.bare = c.power && random.one_in(3), c.junk = random.one_in(8), c.stream = random.one_in(8);
  c.turns = random_turns(random, c.rows());
  const double spread = random.magnitude(-3, 3);
  for (int64_t row = 0; row < c.rows(); ++row) {
    c.z.push_back(c.in.repeated && row >= c.inner ? c.z[size_t(row - c.inner)] : random_row(random, c.K, c.storage));
    if (!c.in.repeated || row < c.inner) move_inside(random, c, c.z.back());
    c.v.push_back(random_v(random, c, spread));
  }
  if (random.one_in(6)) {
    c.mask.resize(size_t(random.one_in(3) ? c.K : c.rows() * c.K));
    for (uint8_t& open : c.mask) open = random.one_in(3) ? 0 : 1;
  }
  const bool radii = random.one_in(3), seconds = random.one_in(3);
  for (int64_t row = 0; row < (radii ? c.rows() : 1); ++row) c.radius.push_back(random_control(random, c, seen(c, row)));
  c.second.clear();
  for (int64_t row = 0; row < (seconds ? c.rows() : 1); ++row) c.second.push_back(random_second(random, c));
  const bool by_mean = c.rule == Rule::cone || c.rule == Rule::hourglass, root = c.power && !seconds && c.second[0] == 1.5;
  const bool made = c.transform != Transform::lin && c.rule == Rule::given && !c.power;
  const bool kind = made || c.transform == Transform::sq || (c.transform == Transform::lin && by_mean) || root;
  const bool can_keep = kind && !c.bare && !radii && c.mask.empty() && size_of(c.storage) > 2;
  c.words = can_keep && random.one_in(2);
  return c;
}

template <class T>
void drop(std::vector<T>& from, int64_t at, int64_t n) {
  from.erase(from.begin() + at, from.begin() + at + n);
}

// All but rows [from, from + n).
MapCase without_rows(const MapCase& c, int64_t from, int64_t n) {
  MapCase d = c;
  drop(d.z, from, n), drop(d.v, from, n);
  if (c.radius.size() > 1) drop(d.radius, from, n);
  if (c.second.size() > 1) drop(d.second, from, n);
  if (!c.mask.empty() && !c.one_mask()) drop(d.mask, from * c.K, n * c.K);
  d.outer = c.rows() - n, d.inner = 1;
  return d;
}

MapCase without_entries(const MapCase& c, int64_t from, int64_t n) {
  MapCase d = c;
  for (Rows* rows : {&d.z, &d.v})
    for (auto& row : *rows) drop(row, from, n);
  d.mask.clear();
  for (int64_t i = 0; i < int64_t(c.mask.size()); ++i)
    if (i % c.K < from || i % c.K >= from + n) d.mask.push_back(c.mask[size_t(i)]);
  d.K = c.K - n;
  return d;
}

void simplify(const MapCase& c, const std::function<bool(const MapCase&)>& attempt) {
  const auto with = [&](auto&& change) {
    MapCase d = c;
    change(d);
    return attempt(d);
  };
  bool done = false;
  if (c.in.repeated && with([](auto& d) { d.in = Layout(); })) return;
  if (!c.in.repeated)
    each_part(c.rows(), [&](int64_t from, int64_t n) { done = done || attempt(without_rows(c, from, n)); });
  each_part(c.K, [&](int64_t from, int64_t n) { done = done || attempt(without_entries(c, from, n)); });
  if (done) return;
  if (c.inner > 1 && with([](auto& d) { d.outer *= d.inner, d.inner = 1; })) return;
  if (!c.turns.plain() && with([](auto& d) { d.turns = Turns(); })) return;
  if (!c.mask.empty() && with([](auto& d) { d.mask.clear(); })) return;
  for (bool MapCase::*flag : {&MapCase::stream, &MapCase::junk, &MapCase::words, &MapCase::controls, &MapCase::bare})
    if (c.*flag && with([&](auto& d) { d.*flag = false; })) return;
  for (Layout MapCase::*lay : {&MapCase::in, &MapCase::out})
    if ((!(c.*lay).plain() || (c.*lay).shift) && with([&](auto& d) { d.*lay = Layout(); })) return;
  for (std::vector<double> MapCase::*control : {&MapCase::radius, &MapCase::second}) {
    if ((c.*control).size() > 1 && with([&](auto& d) { (d.*control).resize(1); })) return;
    for (double x : simpler_numbers((c.*control)[0]))
      if (x >= 1e-3 && with([&](auto& d) { (d.*control)[0] = x; })) return;
  }
  if (c.in.repeated || c.rows() * c.K > 200) return;
  MapCase d = c;
  for (Rows* rows : {&d.z, &d.v})
    for (auto& row : *rows)
      for (double& x : row)
        for (double simpler : simpler_numbers(x)) {
          const double before = x;
          x = double(rounded(simpler, c.storage));
          if (x != before && attempt(d)) break;
          x = before;
        }
}

std::string label(const MapCase& c) {
  static const char *const transforms[] = {"lin", "exp", "sq", "log"}, *const rules[] = {"", " cone", " hourglass", " total"};
  if (c.power) return "maps entmax";
  return text("maps ", transforms[int(c.transform)], rules[int(c.rule)], c.words ? " words" : "");
}

// The arguments that Python's map and map_vjp share, from the storage on; p, f and so on are names of the line.
std::string arguments(const MapCase& c, bool masked) {
  const auto rows = [](const std::vector<double>& control, const char* name) {
    return text(digits(control[0]), ", ", control.size() > 1 ? text(name, ".ctypes.data, ") : "0, ");
  };
  return text(int(c.storage), ", ", c.rows(), ", ", c.K, ", 1, ", c.K, ", 1, 1, ", int(c.transform), ", ", int(c.rule),
              c.power ? ", True, " : ", False, ", rows(c.radius, "r"), rows(c.second, "t"), masked ? "m.ctypes.data" : "0",
              ", 0, *(f[i].ctypes.data for i in range(3)), ", c.words ? "w.ctypes.data, " : "0, ");
}

// What a line of Python leaves out.
std::string note(const MapCase& c) {
  std::string out;
  if (!c.in.plain() || !c.out.plain()) out += " in another layout";
  if (c.stream) out += " streamed";
  if (c.junk) out += " with NaN in v where that must not matter";
  if (c.bare) out += " back from p alone";
  if (c.turns.flush) out += " after torch.set_flush_denormal(True)";
  return out.empty() ? "" : "  #" + out;
}

// The kernel itself, on contiguous rows.
std::string python(const MapCase& c, const char* engine) {
  const bool torch = c.storage == Storage::bfloat16;
  const auto array = [&](const Rows& rows) {
    return torch ? text("torch.tensor(", listed_rows(rows, c.storage), ", dtype=torch.bfloat16).view(torch.int16).numpy()")
                 : text("np.array(", listed_rows(rows, c.storage), ", '", name_of(c.storage), "')");
  };
  std::vector<int> mask;
  for (int64_t i = 0; !c.mask.empty() && i < c.rows() * c.K; ++i) mask.push_back(c.open(i / c.K, i % c.K));
  const std::string shared = arguments(c, !mask.empty());
  return text(preamble(engine, torch), "z, v = ", array(c.z), ", ", array(c.v), "; p, g = np.empty_like(z), np.empty_like(z); ",
              "f = np.ones((5, ", c.rows(), ")); r, t = np.array(", listed(c.radius), "), np.array(", listed(c.second), "); ",
              "m = np.array(", listed(mask), ", np.uint8); w = np.zeros(", c.rows() * ((c.K + 31) / 32) + 1, ", np.uint32); ",
              "print(sg._core.map(z.ctypes.data, p.ctypes.data, ", shared, c.turns.threads, ")); ",
              "sg._core.map_vjp(z.ctypes.data, p.ctypes.data, v.ctypes.data, g.ctypes.data, ", shared,
              c.controls ? "f[3].ctypes.data, " : "0, ", c.controls && c.has_second() ? "f[4].ctypes.data, " : "0, ",
              c.turns.threads, "); print(p, g, f, w)", note(c));
}

}  // namespace

void run_maps(const Plan& plan, Report& report) {
  static const Family<MapCase> family{"maps", make, label, [](const MapCase& c) { return c.storage; },
                                      [](const MapCase& c) { return c.rows(); }, check, simplify, python};
  run_family(family, plan, report);
}

}  // namespace fuzz
