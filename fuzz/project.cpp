// project(): every storage, layout, radius, rule and output, against sorting in long double and against itself elsewhere.
#include <atomic>
#include <cmath>

#include "families.hpp"
#include "scores.hpp"

namespace fuzz {
namespace {

using sparsegen::ProjectJob;
using sparsegen::Rule;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct ProjectCase {
  Storage storage = Storage::float32;
  int64_t outer = 1, K = 1, inner = 1;
  std::vector<std::vector<double>> x;  // numbers of the storage, a row each
  std::vector<double> radius;          // one a row, or one; q where there is a rule
  std::vector<uint8_t> mask;           // rows x K, or K for all rows, or none
  Rule rule = Rule::given;
  Layout in, out;
  bool in_place = false, stream = false, words = false, info = true;
  Turns turns;

  int64_t rows() const { return outer * inner; }
  bool one_mask() const { return !mask.empty() && int64_t(mask.size()) == K && rows() > 1; }
  bool open(int64_t row, int64_t k) const { return mask.empty() || mask[size_t((one_mask() ? 0 : row * K) + k)]; }
  double radius_of(int64_t row) const { return radius[radius.size() > 1 ? size_t(row) : 0]; }
};

// What a run gave, a row each.
struct Found {
  std::vector<std::vector<double>> p;
  std::vector<int64_t> support;
  std::vector<double> threshold, radius, mean, count;
  std::string what;
};

std::vector<uint8_t> cells_of(const Place& at, const ProjectCase& c) {
  std::vector<uint8_t> used(size_t(at.extent), 0);
  for (int64_t o = 0; o < c.outer; ++o)
    for (int64_t k = 0; k < c.K; ++k)
      for (int64_t i = 0; i < c.inner; ++i) used[size_t(at.at(o, k, i))] = 1;
  return used;
}

void write(const ProjectCase& c, const Place& at, Cells& cells) {
  for (int64_t row = 0; row < c.rows(); ++row)
    for (int64_t k = 0; k < c.K; ++k) cells.set(at.at(row / c.inner, k, row % c.inner), c.x[size_t(row)][size_t(k)]);
}

std::string words_wrong(const ProjectCase& c, const std::vector<uint32_t>& words, const Found& f, bool broken) {
  const int64_t step = (c.K + 31) / 32;
  bool nan = false;
  for (int64_t row = 0; row < c.rows(); ++row) {
    nan |= std::isnan(f.p[size_t(row)][0]);
    for (int64_t k = 0; k < step * 32; ++k) {
      const bool bit = words[size_t(row * step + k / 32)] >> (k % 32) & 1, in = k < c.K && f.p[size_t(row)][size_t(k)] > 0;
      if (bit != in) return text("bit ", k, " of the words of row ", row, " is ", bit);
    }
  }
  return nan == broken ? "" : "the call does not say whether a row is NaN";
}

Found run_case(const ProjectCase& c, const Engine& engine) {
  const int64_t rows = c.rows(), guard = 8;
  const Place in = place(c.in, c.outer, c.K, c.inner), out = c.in_place ? in : place(c.out, c.outer, c.K, c.inner);
  Cells x(c.storage, in.extent, c.in.shift), p(c.storage, c.in_place ? 1 : out.extent, c.out.shift);
  write(c, in, x);
  Cells& to = c.in_place ? x : p;
  const auto x_before = x.copy(), before = to.copy();
  Found f;
  f.support.assign(size_t(rows + guard), -7), f.threshold.assign(size_t(rows + guard), -7);
  f.radius = f.mean = f.count = f.threshold;
  std::vector<uint32_t> words(size_t(rows * ((c.K + 31) / 32)), 0xA5A5A5A5);
  std::vector<int64_t> mask_row;
  if (c.one_mask()) mask_row.assign(size_t(rows), 0);
  std::atomic<bool> broken{false};
  // The kernel streams where the arrays of a call are large; that rows beyond ours exist is enough to make it believe so.
  const int64_t outer = c.stream ? c.outer + sparsegen::kStreamFrom : c.outer;
  ProjectJob job{{c.storage, outer, c.K, c.inner, c.radius.data(), c.radius.size() > 1, c.turns.threads},
                 x.at(in.first), in.strides, to.at(out.first), out.strides, c.mask.empty() ? nullptr : c.mask.data(),
                 c.one_mask() ? mask_row.data() : nullptr, c.info ? f.support.data() : nullptr,
                 c.info ? f.threshold.data() : nullptr, c.rule};
  if (c.rule != Rule::given) job.radius_out = f.radius.data(), job.mean_out = f.mean.data(), job.count_out = f.count.data();
  if (c.words) job.words = words.data(), job.broken = &broken;
  run(job, engine.project, rows, c.turns);
  for (int64_t row = 0; row < rows; ++row) {
    f.p.emplace_back();
    for (int64_t k = 0; k < c.K; ++k) f.p.back().push_back(to[out.at(row / c.inner, k, row % c.inner)]);
  }
  if (!to.kept(before, cells_of(out, c))) f.what = "a cell that is no part of the result was written";
  if (!c.in_place && !x.kept(x_before, {})) f.what = "the scores were written";
  for (int64_t i = rows; i < rows + guard; ++i)
    if (f.support[size_t(i)] != -7 || f.threshold[size_t(i)] != -7 || f.radius[size_t(i)] != -7) f.what = "wrote past the rows";
  if (c.words && f.what.empty()) f.what = words_wrong(c, words, f, broken);
  return f;
}

// A row with what is hidden taken out.
std::vector<double> seen(const ProjectCase& c, int64_t row) {
  std::vector<double> x = c.x[size_t(row)];
  for (int64_t k = 0; k < c.K; ++k)
    if (!c.open(row, k)) x[size_t(k)] = -std::numeric_limits<double>::infinity();
  return x;
}

// The same rows on their own: contiguous, in reverse order, hidden entries as -inf, nothing in place.
ProjectCase elsewhere(const ProjectCase& c) {
  ProjectCase d = c;
  d.in = d.out = Layout(), d.in_place = d.stream = d.words = false, d.turns = Turns(), d.mask.clear();
  d.outer = c.rows(), d.inner = 1;
  for (int64_t row = 0; row < c.rows(); ++row) d.x[size_t(c.rows() - 1 - row)] = seen(c, row);
  if (c.radius.size() > 1) std::reverse(d.radius.begin(), d.radius.end());
  return d;
}

std::string differs(const ProjectCase& c, const Found& a, const Found& b) {
  for (int64_t row = 0; row < c.rows(); ++row) {
    const size_t i = size_t(row), j = size_t(c.rows() - 1 - row);
    for (int64_t k = 0; k < c.K; ++k)
      if (!same(a.p[i][size_t(k)], b.p[j][size_t(k)]))
        return text("entry ", k, " of row ", row, " is ", a.p[i][size_t(k)], " here and ", b.p[j][size_t(k)], " elsewhere");
    if (c.info && a.support[i] != b.support[j]) return text("support of row ", row, " depends on where it stands");
    if (c.info && !same(a.threshold[i], b.threshold[j])) return text("threshold of row ", row, " depends on where it stands");
    if (c.rule != Rule::given && !same(a.radius[i], b.radius[j])) return text("radius of row ", row, " depends on where it stands");
  }
  return "";
}

// Mean and number of the entries of a row. Sums of n doubles in 16 chains, then four folds, a division and the additions of the
// means of an overflowing sum: fewer than n + 8 roundings of numbers that add up to sum |x|.
std::string mean_wrong(const std::vector<double>& x, double mean, double count) {
  Sum sum, sizes;
  int64_t n = 0;
  bool bad = false;
  for (double v : x) {
    if (std::isinf(v) && v < 0) continue;
    bad |= !std::isfinite(v);
    sum.add(v), sizes.add(std::fabs(Real(v))), ++n;
  }
  if (count != double(n)) return text("a row has ", n, " entries, not ", count);
  if (n == 0) return mean == 0 ? "" : text("the mean of nothing is ", mean);
  if (bad) return std::isfinite(mean) ? text("the mean of a row with inf or NaN is ", mean) : "";
  const Real want = sum.value() / Real(n), allowed = Real(0x1p-53) * Real(n + 8) * sizes.value() / Real(n) + Real(5e-324);
  return std::fabs(mean - want) <= allowed ? "" : text("the mean is ", mean, ", not ", double(want));
}

// The radius of a rule is a function of the mean that was found, to a few roundings.
std::string radius_wrong(const ProjectCase& c, const Found& f, int64_t row) {
  const double q = c.radius_of(row), mean = f.mean[size_t(row)], n = f.count[size_t(row)], r = f.radius[size_t(row)];
  const std::string what = mean_wrong(seen(c, row), mean, n);
  if (!what.empty() || !std::isfinite(mean)) return what;
  if (n == 0) return r == 1 ? "" : text("the radius of nothing is ", r);
  const Real height = c.rule == Rule::hourglass ? std::fabs(Real(mean)) : Real(mean);
  const Real exact = std::isinf(q) ? Real(1) : (height + q) / (1 / Real(n) + q);
  if (std::isnan(q)) return std::isnan(r) ? "" : "a NaN q has a radius";
  if (c.rule == Rule::cone && std::isnan(r)) return exact <= Real(0x1p-50) * (std::fabs(height) + q) * n ? "" : "no radius";
  if (exact > std::numeric_limits<double>::max()) return std::isinf(r) ? "" : text("the radius is ", r, ", not inf");
  const Real allowed = Real(0x1p-51) * (std::fabs(height) + q) / (1 / Real(n) + q) + Real(5e-324) * (n + 1);
  if (!(std::fabs(r - exact) <= allowed) && !std::isinf(q)) return text("the radius is ", r, ", not ", double(exact));
  return "";
}

std::string sum_wrong(const std::vector<double>& p, Storage s) {
  Sum sum;
  for (double v : p) sum.add(v);
  const double off = double(std::fabs(sum.value() - 1)) / eps_of(s);
  return off <= 4 ? "" : text("the row sums to 1 only within ", off, " eps");
}

std::string row_wrong(const ProjectCase& c, const Found& f, int64_t row) {
  const std::vector<double>& p = f.p[size_t(row)];
  const std::vector<double> x = seen(c, row);
  const double r = c.rule == Rule::given ? c.radius_of(row) : f.radius[size_t(row)];
  const Answer a = project_exact(x.data(), c.K, r, eps_of(wide(c.storage)));
  for (int64_t k = 0; k < c.K; ++k)
    if (!near(p[size_t(k)], a, k, c.storage))
      return text("entry ", k, " of row ", row, " is ", p[size_t(k)], ", not ", double(a.p[size_t(k)]), " (support ", a.size, ", radius ", r, ")");
  if (c.info) {
    const int64_t size = std::count_if(p.begin(), p.end(), [](double v) { return v > 0; });
    if (f.support[size_t(row)] != size) return text("support of row ", row, " is ", size, ", said to be ", f.support[size_t(row)]);
    // What a threshold is good for is the probabilities it gives; as a number it is a double.
    const Real tau = f.threshold[size_t(row)], off = std::fabs(tau - a.tau), n = Real(a.firm);
    const Real allowed = 4 * Real(eps_of(wide(c.storage))) * r / n + Real(0x1p-51) * (std::fabs(a.tau) + r) + Real(5e-324);
    const bool fine = std::isnan(a.tau) ? std::isnan(tau) : tau == a.tau || off <= allowed || std::fabs(a.tau) > 1e308L;
    if (!fine) return text("threshold of row ", row, " is ", double(tau), ", not ", double(a.tau));
  }
  if (a.kind != Answer::numbers) return "";
  std::vector<int32_t> order(size_t(c.K));
  for (size_t k = 0; k < order.size(); ++k) order[k] = int32_t(k);
  std::sort(order.begin(), order.end(), [&](int32_t i, int32_t j) { return x[size_t(i)] < x[size_t(j)]; });
  for (size_t k = 1; k < order.size(); ++k) {
    const size_t i = size_t(order[k - 1]), j = size_t(order[k]);
    if (p[i] > p[j] || (x[i] == x[j] && p[i] != p[j])) return text("row ", row, " is not in the order of its scores at ", j);
  }
  return size_of(c.storage) > 2 ? sum_wrong(p, c.storage) : "";
}

std::string check(const ProjectCase& c, const Engine& engine) {
  const Found f = run_case(c, engine);
  if (!f.what.empty()) return f.what;
  for (int64_t row = 0; row < c.rows(); ++row) {
    std::string what = c.rule == Rule::given ? "" : radius_wrong(c, f, row);
    if (what.empty()) what = row_wrong(c, f, row);
    if (!what.empty()) return what;
  }
  return differs(c, f, run_case(elsewhere(c), engine));
}

std::string check_means(const ProjectCase& c, const Engine& engine) {
  const int64_t rows = c.rows();
  const Place in = place(c.in, c.outer, c.K, c.inner);
  Cells x(c.storage, in.extent, c.in.shift);
  write(c, in, x);
  std::vector<double> mean(size_t(rows), kNan), count(size_t(rows), kNan);
  std::vector<int64_t> mask_row;
  if (c.one_mask()) mask_row.assign(size_t(rows), 0);
  const sparsegen::MeanJob job{{c.storage, c.outer, c.K, c.inner, nullptr, false, c.turns.threads}, x.at(in.first), in.strides,
                               c.mask.empty() ? nullptr : c.mask.data(), c.one_mask() ? mask_row.data() : nullptr,
                               mean.data(), count.data()};
  run(job, engine.means, rows, c.turns);
  for (int64_t row = 0; row < rows; ++row) {
    const std::string what = mean_wrong(seen(c, row), mean[size_t(row)], count[size_t(row)]);
    if (!what.empty()) return what;
  }
  return "";
}

ProjectCase make(Random& random) {
  ProjectCase c;
  c.storage = Storage(random.below(4));
  c.K = random_length(random);
  const int64_t most = std::max<int64_t>(1, std::min<int64_t>(40, 2048 / c.K));
  c.outer = random.between(1, most);
  if (random.one_in(4)) c.inner = random.between(1, std::max<int64_t>(1, most / c.outer));
  c.in = random_layout(random, true), c.out = random_layout(random, false);
  c.in_place = !c.in.repeated && random.one_in(4);
  c.stream = random.one_in(8), c.words = random.one_in(8), c.info = random.one_in(2);
  c.rule = random.one_in(3) ? Rule(random.between(1, 2)) : Rule::given;
  c.turns = random_turns(random, c.rows());
  for (int64_t row = 0; row < c.rows(); ++row) {
    const bool again = c.in.repeated && row >= c.inner;
    c.x.push_back(again ? c.x[size_t(row - c.inner)] : random_row(random, c.K, c.storage));
  }
  if (random.one_in(6)) {
    c.mask.resize(size_t(random.one_in(3) ? c.K : c.rows() * c.K));
    for (uint8_t& open : c.mask) open = random.one_in(3) ? 0 : 1;
  }
  const bool each = random.one_in(3);
  for (int64_t row = 0; row < (each ? c.rows() : 1); ++row) {
    if (c.rule == Rule::given) c.radius.push_back(random_radius(random, c.x[size_t(row)], c.storage));
    else c.radius.push_back(random.pick({0.0, 1.0, 0.1, random.magnitude(-6, 6), std::numeric_limits<double>::infinity()}));
  }
  return c;
}

// Row `row` alone, or all but rows [from, from + n).
ProjectCase without_rows(const ProjectCase& c, int64_t from, int64_t n) {
  ProjectCase d = c;
  const bool each = c.radius.size() > 1, masks = !c.mask.empty() && !c.one_mask();
  d.x.erase(d.x.begin() + from, d.x.begin() + from + n);
  if (each) d.radius.erase(d.radius.begin() + from, d.radius.begin() + from + n);
  if (masks) d.mask.erase(d.mask.begin() + from * c.K, d.mask.begin() + (from + n) * c.K);
  d.outer = c.rows() - n, d.inner = 1;
  return d;
}

ProjectCase without_entries(const ProjectCase& c, int64_t from, int64_t n) {
  ProjectCase d = c;
  for (auto& row : d.x) row.erase(row.begin() + from, row.begin() + from + n);
  d.mask.clear();
  for (int64_t i = 0; i < int64_t(c.mask.size()); ++i)
    if (i % c.K < from || i % c.K >= from + n) d.mask.push_back(c.mask[size_t(i)]);
  d.K = c.K - n;
  return d;
}

void simplify(const ProjectCase& c, const std::function<bool(const ProjectCase&)>& attempt) {
  const auto with = [&](auto&& change) {
    ProjectCase d = c;
    change(d);
    return attempt(d);
  };
  bool done = false;
  if (!c.in.repeated)
    each_part(c.rows(), [&](int64_t from, int64_t n) { done = done || attempt(without_rows(c, from, n)); });
  each_part(c.K, [&](int64_t from, int64_t n) { done = done || attempt(without_entries(c, from, n)); });
  if (done) return;  // from the beginning, with fewer
  if (c.inner > 1 && with([](auto& d) { d.outer *= d.inner, d.inner = 1; })) return;
  if (!c.turns.plain() && with([](auto& d) { d.turns = Turns(); })) return;
  if (!c.mask.empty() && with([](auto& d) { d.mask.clear(); })) return;
  if (c.stream && with([](auto& d) { d.stream = false; })) return;
  if (c.words && with([](auto& d) { d.words = false; })) return;
  if (c.in_place && with([](auto& d) { d.in_place = false; })) return;
  if (!c.in.plain() && with([](auto& d) { d.in = Layout(); })) return;
  if (!c.out.plain() && with([](auto& d) { d.out = Layout(); })) return;
  if ((c.in.shift || c.out.shift) && with([](auto& d) { d.in.shift = d.out.shift = 0; })) return;
  if (c.radius.size() > 1 && with([](auto& d) { d.radius.resize(1); })) return;
  if (c.rule != Rule::given && with([](auto& d) { d.rule = Rule::given; })) return;
  for (size_t i = 0; i < c.radius.size(); ++i)
    for (double v : simpler_numbers(c.radius[i]))
      if (with([&](auto& d) { d.radius[i] = v; })) return;
  if (c.in.repeated || c.rows() * c.K > 200) return;
  ProjectCase d = c;  // numbers all in one go: one after the other would take a run each
  for (auto& row : d.x)
    for (double& v : row)
      for (double simpler : simpler_numbers(v)) {
        const double before = v;
        v = double(rounded(simpler, c.storage));
        if (v != before && attempt(d)) break;
        v = before;
      }
}

std::string array(const ProjectCase& c) {
  const bool torch = c.storage == Storage::bfloat16;
  std::string out = torch ? "torch.tensor([" : "np.array([";
  for (int64_t o = 0; o < c.outer; ++o) {
    std::vector<std::string> lines;
    out += o ? ", [" : "[";
    for (int64_t k = 0; k < c.K; ++k) {
      std::vector<double> across;
      for (int64_t i = 0; i < c.inner; ++i) across.push_back(c.x[size_t(o * c.inner + i)][size_t(k)]);
      out += (k ? ", " : "") + (c.inner == 1 ? digits(across[0], c.storage) : listed(across, c.storage));
    }
    out += "]";
  }
  return out + (torch ? "], dtype=torch.bfloat16)" : text("], '", name_of(c.storage), "')"));
}

// The strides of an array as NumPy and torch take them, in entries.
std::string laid_out(const ProjectCase& c, const std::string& x) {
  const Place at = place(c.in, c.outer, c.K, c.inner);
  if (c.in.plain()) return x;
  const std::string shape = c.inner == 1 ? text("(", c.outer, ", ", c.K, ")") : text("(", c.outer, ", ", c.K, ", ", c.inner, ")");
  std::string steps;
  for (int64_t s : {at.strides.outer, at.strides.entry}) steps += text(s * size_of(c.storage), ", ");
  if (c.inner > 1) steps += text(at.strides.inner * size_of(c.storage));
  return text("(lambda x: (lambda y: (np.copyto(y, x), y)[1])(np.lib.stride_tricks.as_strided(np.zeros(", at.extent, ", x.dtype)[",
              at.first, ":], ", shape, ", (", steps, "))))(", x, ")");
}

std::string masked(const ProjectCase& c) {
  if (c.mask.empty()) return "";
  std::vector<int> bits(c.mask.begin(), c.mask.end());
  const std::string flat = text("np.array(", listed(bits), ", bool)");
  if (c.one_mask()) return text(", mask=", flat, c.inner == 1 ? "" : "[:, None]");
  const std::string rows = text(flat, ".reshape(", c.outer, ", ", c.inner, ", ", c.K, ")");
  return text(", mask=", rows, c.inner == 1 ? "[:, 0]" : ".swapaxes(1, 2)");
}

// The public function nearest to the case; what has no public form (in place, words) is said beside it.
std::string python(const ProjectCase& c, const char* engine) {
  const bool torch = c.storage == Storage::bfloat16;
  std::string x = torch ? array(c) : laid_out(c, array(c)), note;
  if (c.stream) x = text("np.concatenate([", x, "] * ", 1 + (sparsegen::kStreamFrom / 2) / (c.rows() * c.K * size_of(c.storage)), ")");
  if (c.in_place) note += " in place";
  if (c.words) note += " with words";
  if (torch && (!c.in.plain() || c.stream)) note += " in another layout";
  if (c.turns.flush) note += " after torch.set_flush_denormal(True)";
  if (c.turns.threads > 1) note += text(" on ", c.turns.threads, " threads");
  std::string r = digits(c.radius[0]);
  if (c.radius.size() > 1) r = text("np.array(", listed(c.radius), ").reshape(", c.outer, c.inner == 1 ? ",)" : text(", ", c.inner, ")"));
  if (torch && c.radius.size() > 1) r = text("torch.tensor(", r, ")");
  const char* front = torch ? "st" : "sg";
  const std::string call = c.rule == Rule::given  ? text(".project(", x, ", ", r)
                           : c.rule == Rule::cone ? text(".sparsecone(", x, ", q=", r)
                                                  : text(".sparsehourglass(", x, ", q=", r);
  return text(preamble(engine, torch), "print(", front, call, torch ? ", dim=1" : ", axis=1", torch ? "" : masked(c), "))",
              note.empty() ? "" : "  #", note);
}

ProjectCase make_means(Random& random) {
  ProjectCase c = make(random);
  c.radius = {0.0};
  return c;
}

}  // namespace

void run_means(const Plan& plan, Report& report) {
  static const Family<ProjectCase> family{
      "means", make_means, [](const ProjectCase&) -> std::string { return "means"; },
      [](const ProjectCase& c) { return c.storage; }, [](const ProjectCase& c) { return c.rows(); }, check_means, simplify,
      [](const ProjectCase& c, const char* engine) {
        ProjectCase d = c;
        d.rule = Rule::hourglass, d.radius = {0.0};
        return python(d, engine);
      }};
  run_family(family, plan, report);
}

void run_project(const Plan& plan, Report& report) {
  static const Family<ProjectCase> family{
      "project", make,
      [](const ProjectCase& c) -> std::string {
        return c.rule == Rule::given ? "project" : c.rule == Rule::cone ? "project cone" : "project hourglass";
      },
      [](const ProjectCase& c) { return c.storage; }, [](const ProjectCase& c) { return c.rows(); }, check, simplify, python};
  run_family(family, plan, report);
}

}  // namespace fuzz
