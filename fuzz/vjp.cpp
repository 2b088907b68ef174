// The vector-Jacobian product of the projection, from p and from words: against its closed form in long double.
#include "families.hpp"

namespace fuzz {
namespace {

using sparsegen::VjpJob;
using Rows = std::vector<std::vector<double>>;

struct VjpCase {
  Storage storage = Storage::float32;
  int64_t outer = 1, K = 1, inner = 1;
  Rows p, v;
  std::vector<double> radius;
  Layout layout;
  bool over = false, words = false, along = false, stream = false;  // `over`: the gradient is written over v
  Turns turns;

  int64_t rows() const { return outer * inner; }
  double radius_of(int64_t row) const { return radius[radius.size() > 1 ? size_t(row) : 0]; }
};

struct Found {
  Rows grad;
  std::vector<double> along;
  std::string what;
};

void write(const VjpCase& c, const Rows& from, const Place& at, Cells& to) {
  for (int64_t row = 0; row < c.rows(); ++row)
    for (int64_t k = 0; k < c.K; ++k) to.set(at.at(row / c.inner, k, row % c.inner), from[size_t(row)][size_t(k)]);
}

Found run_case(const VjpCase& c, const Engine& engine) {
  const Place at = place(c.layout, c.outer, c.K, c.inner);
  Cells p(c.storage, c.words ? 0 : at.extent, c.layout.shift), v(c.storage, at.extent, c.layout.shift);
  Cells g(c.storage, c.over ? 0 : at.extent, c.layout.shift);
  std::vector<uint32_t> words(size_t(c.rows() * ((c.K + 31) / 32)), 0);
  for (int64_t row = 0; row < c.rows(); ++row)
    for (int64_t k = 0; k < c.K; ++k)
      if (c.p[size_t(row)][size_t(k)] > 0) words[size_t(row * ((c.K + 31) / 32) + k / 32)] |= uint32_t(1) << (k % 32);
  if (!c.words) write(c, c.p, at, p);
  write(c, c.v, at, v);
  Cells& to = c.over ? v : g;
  const auto before = to.copy();
  Found f;
  f.along.assign(size_t(c.rows()), std::nan(""));
  const int64_t outer = c.stream ? c.outer + sparsegen::kStreamFrom : c.outer;
  VjpJob job{{c.storage, outer, c.K, c.inner, c.radius.data(), c.radius.size() > 1, c.turns.threads},
             c.words ? nullptr : p.at(at.first), v.at(at.first), to.at(at.first), at.strides, c.along ? f.along.data() : nullptr};
  if (c.words) job.words = words.data();
  run(job, engine.vjp, c.rows(), c.turns);
  std::vector<uint8_t> written(size_t(at.extent), 0);
  for (int64_t row = 0; row < c.rows(); ++row) {
    f.grad.emplace_back();
    for (int64_t k = 0; k < c.K; ++k) {
      const int64_t i = at.at(row / c.inner, k, row % c.inner);
      f.grad.back().push_back(to[i]), written[size_t(i)] = 1;
    }
  }
  if (!to.kept(before, written)) f.what = "a cell that is no part of the gradient was written";
  return f;
}

// The longest chain of additions a term of a sum over a row goes through: rows of up to kVjpLaneLimit one after the other, of
// less than kSkipFrom in vectors of at least two, longer ones in parts of kFold steps.
double chain(int64_t K) { return K < 1024 ? double(K) / 2 + 24 : 160; }

// u, the error of one rounding, of each of: the sum of v (`chain` of them), the mean, v - mean, the product with 1/r, 1/r. That
// is a theorem, and generous: the errors do not conspire.
std::string row_wrong(const VjpCase& c, const Found& f, int64_t row) {
  const auto &p = c.p[size_t(row)], &v = c.v[size_t(row)];
  const Storage in = wide(c.storage);
  const Real u = Real(eps_of(in)) / 2, least = Real(tiniest(in)), most = Real(format_of(in).largest);
  const double r = c.radius_of(row);
  const Real scale = r == 0 ? Real(0) : std::min(1 / Real(r), most);
  Sum sum, sizes;
  int64_t n = 0;
  for (int64_t k = 0; k < c.K; ++k)
    if (p[size_t(k)] > 0) sum.add(v[size_t(k)]), sizes.add(std::fabs(v[size_t(k)])), ++n;
  const bool nan = std::isnan(p[0]);
  const Real count = Real(std::max<int64_t>(n, 1)), mean = sum.value() / count, size = sizes.value() / count;
  const Real off = u * (Real(chain(c.K)) + 3) * size;
  Sum along, along_off;
  for (int64_t k = 0; k < c.K; ++k) {
    const Real w = p[size_t(k)] > 0 ? v[size_t(k)] - mean : Real(0), error = p[size_t(k)] > 0 ? off + u * std::fabs(w) : Real(0);
    const Real want = nan ? Real(std::nan("")) : w * scale;
    const Real allowed = p[size_t(k)] > 0 ? (error + 3 * u * std::fabs(w)) * scale + least * (std::fabs(w) + 1) : Real(0);
    if (!close(f.grad[size_t(row)][size_t(k)], want, allowed, c.storage))
      return text("entry ", k, " of the gradient of row ", row, " is ", f.grad[size_t(row)][size_t(k)], ", not ", double(want));
    along.add(w * p[size_t(k)]);
    along_off.add((error + u * (Real(chain(c.K)) + 3) * std::fabs(w)) * p[size_t(k)] + least);
  }
  if (!c.along) return "";
  const Real want = nan ? Real(std::nan("")) : r == 0 ? Real(0) : -along.value() / r;
  const Real allowed = r == 0 ? Real(0) : along_off.value() / r * (1 + Real(0x1p-50));
  if (close(f.along[size_t(row)], want, allowed, Storage::float64)) return "";
  return text("the gradient of the radius of row ", row, " is ", f.along[size_t(row)], ", not ", double(want));
}

VjpCase elsewhere(const VjpCase& c) {
  VjpCase d = c;
  d.layout = Layout(), d.turns = Turns(), d.stream = d.over = false, d.outer = c.rows(), d.inner = 1;
  std::reverse(d.p.begin(), d.p.end()), std::reverse(d.v.begin(), d.v.end());
  if (c.radius.size() > 1) std::reverse(d.radius.begin(), d.radius.end());
  return d;
}

std::string check(const VjpCase& c, const Engine& engine) {
  const Found f = run_case(c, engine);
  if (!f.what.empty()) return f.what;
  for (int64_t row = 0; row < c.rows(); ++row) {
    const std::string what = row_wrong(c, f, row);
    if (!what.empty()) return what;
  }
  const Found again = run_case(elsewhere(c), engine);
  for (int64_t row = 0; row < c.rows(); ++row) {
    const size_t i = size_t(row), j = size_t(c.rows() - 1 - row);
    for (size_t k = 0; k < size_t(c.K); ++k)
      if (!same(f.grad[i][k], again.grad[j][k])) return text("the gradient of row ", row, " depends on where it stands");
    if (c.along && !same(f.along[i], again.along[j])) return text("the radius' gradient of row ", row, " depends on where it stands");
  }
  return "";
}

VjpCase make(Random& random) {
  VjpCase c;
  c.storage = Storage(random.below(4));
  const int64_t limit = random.one_in(10) ? random.pick<int64_t>({512, 1024, 2048, 8192}) : random.pick<int64_t>({8, 16, 32, 64, 160, 256});
  c.K = random.one_in(3) ? std::max<int64_t>(1, limit + random.between(-3, 3)) : random.between(1, 70);
  const int64_t most = std::max<int64_t>(1, std::min<int64_t>(40, 2048 / c.K));
  c.outer = random.between(1, most);
  if (random.one_in(4)) c.inner = random.between(1, std::max<int64_t>(1, most / c.outer));
  c.layout = random_layout(random, false);
  c.over = random.one_in(4), c.words = random.one_in(3), c.along = !c.words && random.one_in(2), c.stream = random.one_in(6);
  c.turns = random_turns(random, c.rows());
  const double dense = random.pick({0.02, 0.1, 0.5, 0.9, 1.0}), spread = random.magnitude(-3, 3);
  for (int64_t row = 0; row < c.rows(); ++row) {
    std::vector<double> p(size_t(c.K), 0.0), v(size_t(c.K), 0.0);
    double sum = 0;
    for (double& x : p) sum += x = random.uniform() < dense ? random.uniform() + 1e-3 : 0;
    for (double& x : p) x = double(stored(Real(rounded(Real(x / std::max(sum, 1e-3)), wide(c.storage))), c.storage));
    if (!c.words && random.one_in(20)) std::fill(p.begin(), p.end(), std::nan(""));
    const bool junk = random.one_in(8);
    const double shift = random.one_in(4) ? spread * 100 : 0;
    for (size_t k = 0; k < v.size(); ++k) {
      v[k] = double(rounded(Real(std::clamp(random.normal() * spread + shift, -6e4, 6e4)), c.storage));
      if (junk && !(p[k] > 0)) v[k] = random.pick({std::nan(""), HUGE_VAL, -HUGE_VAL});
    }
    c.p.push_back(p), c.v.push_back(v);
  }
  const bool each = !c.words && random.one_in(3);
  for (int64_t row = 0; row < (each ? c.rows() : 1); ++row)
    c.radius.push_back(random.one_in(8) ? random.pick({0.0, HUGE_VAL, 1e-300, 1e-40, 1e40, 1e300}) : random.magnitude(-3, 3));
  return c;
}

void simplify(const VjpCase& c, const std::function<bool(const VjpCase&)>& attempt) {
  const auto with = [&](auto&& change) {
    VjpCase d = c;
    change(d);
    return attempt(d);
  };
  bool done = false;
  each_part(c.rows(), [&](int64_t from, int64_t n) {
    done = done || with([&](VjpCase& d) {
      d.p.erase(d.p.begin() + from, d.p.begin() + from + n), d.v.erase(d.v.begin() + from, d.v.begin() + from + n);
      if (c.radius.size() > 1) d.radius.erase(d.radius.begin() + from, d.radius.begin() + from + n);
      d.outer = c.rows() - n, d.inner = 1;
    });
  });
  each_part(c.K, [&](int64_t from, int64_t n) {
    done = done || with([&](VjpCase& d) {
      for (Rows* rows : {&d.p, &d.v})
        for (auto& row : *rows) row.erase(row.begin() + from, row.begin() + from + n);
      d.K = c.K - n;
    });
  });
  if (done) return;
  if (!c.turns.plain() && with([](auto& d) { d.turns = Turns(); })) return;
  if (c.stream && with([](auto& d) { d.stream = false; })) return;
  if (c.over && with([](auto& d) { d.over = false; })) return;
  if (c.words && with([](auto& d) { d.words = false; })) return;
  if ((!c.layout.plain() || c.layout.shift) && with([](auto& d) { d.layout = Layout(); })) return;
  if (c.radius.size() > 1 && with([](auto& d) { d.radius.resize(1); })) return;
  for (double r : simpler_numbers(c.radius[0]))
    if (with([&](auto& d) { d.radius[0] = r; })) return;
  if (c.rows() * c.K > 200) return;
  VjpCase d = c;
  for (auto& row : d.v)
    for (double& x : row)
      for (double simpler : simpler_numbers(x)) {
        const double before = x;
        x = double(rounded(simpler, c.storage));
        if (x != before && attempt(d)) break;
        x = before;
      }
}

// The kernel itself: the front ends have no function of p and v.
std::string python(const VjpCase& c, const char* engine) {
  const std::string cells = c.storage == Storage::bfloat16 ? ", dtype=torch.bfloat16).view(torch.int16).numpy()" : "";
  const auto array = [&](const Rows& rows) {
    return cells.empty() ? text("np.array(", listed_rows(rows, c.storage), ", '", name_of(c.storage), "')")
                         : text("torch.tensor(", listed_rows(rows, c.storage), cells);
  };
  std::string note;
  if (!c.layout.plain()) note += " in another layout";
  if (c.over) note += " over v";
  if (c.words) note += " from words";
  return text(preamble(engine, !cells.empty()), "p, v = ", array(c.p), ", ", array(c.v), "; r = np.array(", listed(c.radius),
              "); g = np.empty_like(v); a = np.empty(", c.rows(), "); sg._core.project_vjp(p.ctypes.data, v.ctypes.data, g.ctypes.data, ",
              int(c.storage), ", ", c.rows(), ", ", c.K, ", 1, r.ctypes.data, ", c.radius.size() > 1 ? "True" : "False",
              ", a.ctypes.data, ", c.turns.threads, "); print(g, a)", note.empty() ? "" : "  #", note);
}

}  // namespace

void run_vjp(const Plan& plan, Report& report) {
  static const Family<VjpCase> family{"vjp",
                                      make,
                                      [](const VjpCase& c) -> std::string { return c.words ? "vjp words" : "vjp"; },
                                      [](const VjpCase& c) { return c.storage; },
                                      [](const VjpCase& c) { return c.rows(); },
                                      check,
                                      simplify,
                                      python};
  run_family(family, plan, report);
}

}  // namespace fuzz
