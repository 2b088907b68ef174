// The hinge losses' F(z, r) and its slopes: against the double sums over pairs, as the paper writes them.
#include "families.hpp"
#include "scores.hpp"

namespace fuzz {
namespace {

using sparsegen::HingeJob;

constexpr double kInf = std::numeric_limits<double>::infinity();

struct HingeCase {
  Storage storage = Storage::float32;
  int64_t K = 1;
  std::vector<std::vector<double>> z;
  std::vector<std::vector<int64_t>> labels;
  std::vector<uint8_t> mask;  // rows x K or none
  std::vector<double> radius;
  double smoothing = 0;
  bool grad = true;
  Turns turns;

  int64_t rows() const { return int64_t(z.size()); }
  double radius_of(int64_t row) const { return radius[radius.size() > 1 ? size_t(row) : 0]; }
};

struct Found {
  std::vector<double> value, slope;
  std::vector<std::vector<double>> grad;
};

Found run_case(const HingeCase& c, const Engine& engine) {
  const Storage wider = wide(c.storage);
  Cells z(c.storage, c.rows() * c.K), grad(wider, c.grad ? c.rows() * c.K : 0);
  std::vector<int64_t> indptr{0}, indices;
  for (int64_t row = 0; row < c.rows(); ++row) {
    for (int64_t k = 0; k < c.K; ++k) z.set(row * c.K + k, c.z[size_t(row)][size_t(k)]);
    indices.insert(indices.end(), c.labels[size_t(row)].begin(), c.labels[size_t(row)].end());
    indptr.push_back(int64_t(indices.size()));
  }
  Found f;
  f.value.assign(size_t(c.rows()), -7), f.slope = f.value;
  const HingeJob job{{c.storage, c.rows(), c.K, 1, c.radius.data(), c.radius.size() > 1, c.turns.threads}, z.at(0),
                     c.mask.empty() ? nullptr : c.mask.data(), nullptr, indptr.data(), indices.data(), c.smoothing,
                     f.value.data(), f.slope.data(), c.grad ? grad.at(0) : nullptr};
  run(job, engine.hinge, c.rows(), c.turns);
  for (int64_t row = 0; c.grad && row < c.rows(); ++row) {
    f.grad.emplace_back();
    for (int64_t k = 0; k < c.K; ++k) f.grad.back().push_back(grad[row * c.K + k]);
  }
  return f;
}

// |d| or [d]_+ (both count from 0), smoothed: the term and its slope.
void term(Real d, Real s, Real& value, Real& slope) {
  if (d <= 0) value = slope = 0;
  else if (d < s) value = d * d / (2 * s), slope = d / s;
  else value = d - s / 2, slope = 1;
}

struct Sums {
  Real value = 0, slope = 0;
  std::vector<Real> grad, doubt;  // what pairs that stand on a kink, up to rounding, may add to each entry's slope
  Real slope_doubt = 0, reach = 0;
  bool nan = false;
};

Sums double_sums(const HingeCase& c, int64_t row) {
  const int64_t K = c.K;
  std::vector<Real> z(size_t(K), 0);
  std::vector<uint8_t> open(size_t(K), 1), is_label(size_t(K), 0);
  Sums sums;
  sums.grad.assign(size_t(K), 0), sums.doubt.assign(size_t(K), 0);
  sums.nan = !std::isfinite(c.radius_of(row));
  for (int64_t k = 0; k < K; ++k) {
    const double x = c.z[size_t(row)][size_t(k)];
    open[size_t(k)] = (c.mask.empty() || c.mask[size_t(row * K + k)]) && x != -kInf;
    if (open[size_t(k)]) z[size_t(k)] = x, sums.nan |= !std::isfinite(x);
  }
  const auto& labels = c.labels[size_t(row)];
  for (int64_t i : labels) is_label[size_t(i)] = 1, sums.nan |= !open[size_t(i)];
  if (sums.nan || labels.empty()) return sums;
  const Real P = Real(labels.size()), margin = Real(c.radius_of(row)) / P, s = c.smoothing;
  Real base = z[size_t(labels[0])];
  for (int64_t i : labels) base = std::min(base, z[size_t(i)]);
  sums.reach = margin;
  for (int64_t k = 0; k < K; ++k)
    if (open[size_t(k)] && z[size_t(k)] > base - margin) sums.reach = std::max(sums.reach, std::fabs(z[size_t(k)] - base));
  const Real blur = 4 * Real(0x1p-53) * sums.reach;
  Sum value, slope;
  for (int64_t i : labels)
    for (int64_t j = 0; j < K; ++j) {
      if (!open[size_t(j)] || i == j) continue;
      const Real d = is_label[size_t(j)] ? std::fabs(z[size_t(i)] - z[size_t(j)]) : margin - (z[size_t(i)] - z[size_t(j)]);
      Real v, g;
      term(d, s, v, g);
      value.add(v);
      const Real sign = !is_label[size_t(j)] ? -1 : z[size_t(i)] > z[size_t(j)] ? 1 : -1;
      sums.grad[size_t(i)] += sign * g, sums.grad[size_t(j)] -= sign * g;
      const Real doubt = std::fabs(d) > blur + s ? Real(0) : s > 0 ? std::min(Real(1), blur / s) : std::fabs(d) > blur ? 0 : 1;
      sums.doubt[size_t(i)] += doubt * (is_label[size_t(j)] ? 2 : 1), sums.doubt[size_t(j)] += doubt * (is_label[size_t(j)] ? 2 : 1);
      if (!is_label[size_t(j)]) slope.add(g), sums.slope_doubt += doubt;
    }
  sums.value = value.value(), sums.slope = slope.value() / P, sums.slope_doubt /= P;
  return sums;
}

// All in double. Up to 16 labels every pair is a term, above that each entry and each label has a prefix sum of up to P terms of
// the size of `reach`, whose difference from P reach is what remains: u P (P + K) reach, K of them. Smoothed sums also have
// squares over s. Those are theorems of the algorithm, not what one may wish for: see the note on smoothing in the findings.
std::string row_wrong(const HingeCase& c, const Found& f, int64_t row) {
  const Sums want = double_sums(c, row);
  const double value = f.value[size_t(row)], slope = f.slope[size_t(row)];
  const Real P = Real(std::max<size_t>(c.labels[size_t(row)].size(), 1)), K = Real(c.K), s = c.smoothing, u = 0x1p-53;
  const Real terms = P + K + 8, reach = want.reach, squares = s > 0 ? reach / s : Real(0);
  const Real least = Real(tiniest(Storage::float64)), allowed = 4 * u * terms * P * K * reach * (1 + squares) + 4 * u * terms * want.value + least;
  if (!close(value, want.nan ? Real(std::nan("")) : want.value, allowed, Storage::float64))
    return text("the loss of row ", row, " is ", value, ", not ", double(want.value), ", allowed ", double(allowed));
  const Real slack = 8 * u * terms * terms * squares;
  if (!close(slope, want.nan ? Real(std::nan("")) : want.slope, want.slope_doubt + slack + 4 * u * terms * want.slope + least, Storage::float64))
    return text("the slope of row ", row, " is ", slope, ", not ", double(want.slope));
  for (int64_t k = 0; c.grad && k < c.K; ++k) {
    const Real g = want.nan ? Real(std::nan("")) : want.grad[size_t(k)];
    const Real round = Real(eps_of(wide(c.storage))) * std::fabs(g) + Real(tiniest(wide(c.storage)));
    if (!close(f.grad[size_t(row)][size_t(k)], g, want.doubt[size_t(k)] + slack + 4 * u * terms * std::fabs(g) + round, wide(c.storage)))
      return text("entry ", k, " of the gradient of row ", row, " is ", f.grad[size_t(row)][size_t(k)], ", not ", double(g));
  }
  return "";
}

std::string check(const HingeCase& c, const Engine& engine) {
  const Found f = run_case(c, engine);
  for (int64_t row = 0; row < c.rows(); ++row) {
    const std::string what = row_wrong(c, f, row);
    if (!what.empty()) return what;
  }
  HingeCase d = c;
  d.turns = Turns();
  const Found again = run_case(d, engine);
  for (size_t row = 0; row < size_t(c.rows()); ++row)
    if (!same(f.value[row], again.value[row]) || !same(f.slope[row], again.slope[row])) return text("row ", row, " depends on threads");
  return "";
}

HingeCase make(Random& random) {
  HingeCase c;
  c.storage = Storage(random.below(4));
  c.K = random.one_in(3) ? random.between(1, 8) : random.one_in(8) ? random.between(64, 300) : random.between(1, 64);
  const int64_t rows = random.between(1, std::max<int64_t>(1, std::min<int64_t>(24, 256 / c.K)));
  c.grad = !random.one_in(8);
  if (random.one_in(3)) c.smoothing = random.pick({0.125, 1.0, random.magnitude(-4, 1)});
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<double> z((size_t(c.K)));
    const int kind = int(random.below(8));
    if (kind < 4) fill(random, Kind::ties, c.storage, z);
    else if (kind < 7) fill(random, Kind::normal, c.storage, z);
    else z = random_row(random, c.K, c.storage);
    const double scale = random.one_in(4) ? random.magnitude(-3, 3) : 1, shift = random.one_in(6) ? 1000 * random.normal() : 0;
    for (double& x : z) x = std::isfinite(x) ? std::clamp(x, -1e4, 1e4) * scale + shift : x;
    for (double& x : z) x = std::isfinite(x) ? double(rounded(Real(x), c.storage)) : x;
    const int64_t wanted = random.pick<int64_t>({0, 1, 1, 2, 3, 15, 16, 17, 40, c.K});
    std::vector<int64_t> labels;
    for (int64_t k = 0; k < c.K; ++k)
      if (random.below(c.K) < wanted) labels.push_back(k);
    c.z.push_back(z), c.labels.push_back(labels);
  }
  if (random.one_in(5)) {
    c.mask.resize(size_t(rows * c.K));
    for (uint8_t& open : c.mask) open = random.one_in(4) ? 0 : 1;
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i : c.labels[size_t(row)])
        if (!random.one_in(50)) c.mask[size_t(row * c.K + i)] = 1;
  }
  const bool each = random.one_in(2);
  for (int64_t row = 0; row < (each ? rows : 1); ++row)
    c.radius.push_back(random.one_in(20) ? random.pick({0.0, kInf, std::nan(""), 1e-30, 1e30}) : random.one_in(2) ? 1 : random.magnitude(-2, 2));
  c.turns = random_turns(random, rows);
  return c;
}

void simplify(const HingeCase& c, const std::function<bool(const HingeCase&)>& attempt) {
  const auto with = [&](auto&& change) {
    HingeCase d = c;
    change(d);
    return attempt(d);
  };
  bool done = false;
  each_part(c.rows(), [&](int64_t from, int64_t n) {
    done = done || with([&](HingeCase& d) {
      d.z.erase(d.z.begin() + from, d.z.begin() + from + n), d.labels.erase(d.labels.begin() + from, d.labels.begin() + from + n);
      if (c.radius.size() > 1) d.radius.erase(d.radius.begin() + from, d.radius.begin() + from + n);
      if (!c.mask.empty()) d.mask.erase(d.mask.begin() + from * c.K, d.mask.begin() + (from + n) * c.K);
    });
  });
  each_part(c.K, [&](int64_t from, int64_t n) {
    done = done || with([&](HingeCase& d) {
      d.K = c.K - n, d.mask.clear();
      for (size_t i = 0; i < c.mask.size(); ++i)
        if (int64_t(i) % c.K < from || int64_t(i) % c.K >= from + n) d.mask.push_back(c.mask[i]);
      for (auto& row : d.z) row.erase(row.begin() + from, row.begin() + from + n);
      for (auto& row : d.labels) {
        std::vector<int64_t> left;
        for (int64_t i : row)
          if (i < from || i >= from + n) left.push_back(i < from ? i : i - n);
        row = left;
      }
    });
  });
  if (done) return;
  if (!c.turns.plain() && with([](auto& d) { d.turns = Turns(); })) return;
  if (!c.mask.empty() && with([](auto& d) { d.mask.clear(); })) return;
  if (c.smoothing > 0 && with([](auto& d) { d.smoothing = 0; })) return;
  if (c.radius.size() > 1 && with([](auto& d) { d.radius.resize(1); })) return;
  for (double r : simpler_numbers(c.radius[0]))
    if (with([&](auto& d) { d.radius[0] = r; })) return;
  HingeCase d = c;
  for (auto& row : d.z)
    for (double& x : row)
      for (double simpler : simpler_numbers(x)) {
        const double before = x;
        x = double(rounded(simpler, c.storage));
        if (x != before && attempt(d)) break;
        x = before;
      }
}

// The kernel itself, which has the radius and the smoothing as arguments.
std::string python(const HingeCase& c, const char* engine) {
  std::vector<int64_t> indptr{0}, indices;
  for (const auto& row : c.labels) {
    indices.insert(indices.end(), row.begin(), row.end());
    indptr.push_back(int64_t(indices.size()));
  }
  const bool bfloat = c.storage == Storage::bfloat16;
  const std::string z = bfloat ? text("torch.tensor(", listed_rows(c.z, c.storage), ", dtype=torch.bfloat16).view(torch.int16).numpy()")
                               : text("np.array(", listed_rows(c.z, c.storage), ", '", name_of(c.storage), "')");
  const std::vector<int> mask(c.mask.begin(), c.mask.end());
  return text(preamble(engine, bfloat), "z, p, i, r, m = ", z, ", np.array(", listed(indptr), ", 'i8'), np.array(", listed(indices),
              ", 'i8'), np.array(", listed(c.radius), "), np.array(", listed(mask), ", 'u1'); v, s, g = np.empty(", c.rows(), "), np.empty(",
              c.rows(), "), np.empty(z.shape, '", name_of(wide(c.storage)), "'); sg._core.hinge(z.ctypes.data, ", int(c.storage), ", ",
              c.rows(), ", ", c.K, ", ", mask.empty() ? "0" : "m.ctypes.data", ", 0, p.ctypes.data, i.ctypes.data, r.ctypes.data, ",
              c.radius.size() > 1 ? "True" : "False", ", ", c.smoothing, ", v.ctypes.data, s.ctypes.data, g.ctypes.data, ",
              c.turns.threads, "); print(v, s, g)");
}

}  // namespace

void run_hinge(const Plan& plan, Report& report) {
  static const Family<HingeCase> family{
      "hinge", make, [](const HingeCase& c) -> std::string { return c.smoothing > 0 ? "hinge smooth" : "hinge"; },
      [](const HingeCase& c) { return c.storage; }, [](const HingeCase& c) { return c.rows(); }, check, simplify, python};
  run_family(family, plan, report);
}

}  // namespace fuzz
