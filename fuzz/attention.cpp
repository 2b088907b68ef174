// Sparse attention forward and backward: against dense sums in long double.
//
// A score is a sum of E products, rounded at most E + 3 times, so it is off by d_j = (E + 3) u scale sum |q k|. Projection moves
// no probability by more than (d_j + max d) / r when its scores move by d: that, and 4 eps as for any projection, is what the
// weights are allowed. All else is compared with what follows from the weights the kernel found, in sums of known length.
#include "families.hpp"
#include "scores.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fuzz {
namespace {

using sparsegen::AttentionJob;
using sparsegen::AttentionShape;
using sparsegen::AttentionVjpJob;
using sparsegen::Heads;
using sparsegen::Piece;
using sparsegen::Rule;
using sparsegen::Weigh;

constexpr double kInf = std::numeric_limits<double>::infinity();

// Matrices (heads, rows, width), rows and heads any distance apart.
struct Matrices {
  int64_t heads = 1, rows = 1, width = 1, pad = 0, gap = 0;
  bool back = false;  // heads from the last to the first
  std::vector<double> x;

  int64_t row() const { return width + pad; }
  int64_t head() const { return rows * row() + gap; }
  double at(int64_t h, int64_t i, int64_t e) const { return x[size_t((h * rows + i) * width + e)]; }
};

struct AttentionCase {
  Storage storage = Storage::float32;
  int64_t group = 1, block = 6, ranges = 1;
  Matrices q, k, v;
  double scale = 1, dropout = 0;
  std::vector<double> radius;
  Rule rule = Rule::given;
  Weigh weigh = Weigh::project;
  double temperature = 1;
  bool causal = false, pairs = false, weighted = false;  // `weighted`: the weights have a gradient of their own
  uint64_t seed = 0;
  std::vector<uint8_t> mask;  // (heads, queries, keys), or (queries) with every key alike; or none
  std::vector<double> bias;   // (queries, keys) for all heads, or none
  Turns turns;

  Storage in() const { return wide(storage); }  // of the arithmetic, and of all but q, k, v and the result
  int64_t heads() const { return q.heads; }
  int64_t queries() const { return q.rows; }
  int64_t keys() const { return k.rows; }
  int64_t rows() const { return heads() * queries(); }
  int64_t reach(int64_t query) const { return causal ? std::min(query + 1, keys()) : keys(); }
  bool whole_mask() const { return int64_t(mask.size()) == rows() * keys(); }
  double radius_of(int64_t row) const { return radius[radius.size() > 1 ? size_t(row) : 0]; }
  bool open(int64_t row, int64_t key) const {
    if (key >= reach(row % queries())) return false;
    return mask.empty() || mask[size_t(whole_mask() ? row * keys() + key : row % queries())];
  }
};

// A matrix in memory of exactly its size.
class Laid {
 public:
  Laid(const Matrices& m, Storage s) : cells_(s, (m.heads - 1) * m.head() + (m.rows - 1) * m.row() + m.width), row_(m.row()) {
    for (int64_t h = 0; h < m.heads; ++h) {
      at_.push_back((m.back ? m.heads - 1 - h : h) * m.head());
      for (int64_t i = 0; i < m.rows; ++i)
        for (int64_t e = 0; e < m.width; ++e) cells_.set(at_.back() + i * m.row() + e, m.at(h, i, e));
    }
  }
  Heads heads() { return {cells_.at(0), at_.data(), row_}; }

 private:
  Cells cells_;
  std::vector<int64_t> at_;
  int64_t row_;
};

struct Forward {
  std::vector<double> out, radius, mean, count, value;
  std::vector<int64_t> sizes, indptr{0};
  std::vector<int32_t> index;
};

void shape(const AttentionCase& c, Laid& q, Laid& k, Laid& v, AttentionShape& job) {
  job.storage = c.storage, job.heads = c.heads(), job.group = c.group, job.queries = c.queries(), job.keys = c.keys();
  job.width = c.q.width, job.value_width = c.v.width;
  job.q = q.heads(), job.k = k.heads(), job.v = v.heads();
  job.scale = c.scale, job.threads = c.turns.threads, job.weigh = c.weigh;
}

Forward forward(const AttentionCase& c, const Engine& engine, int64_t block, const Turns& turns) {
  Laid q(c.q, c.storage), k(c.k, c.storage), v(c.v, c.storage);
  Cells out(c.storage, c.rows() * c.v.width), bias(c.in(), int64_t(c.bias.size()));
  for (size_t i = 0; i < c.bias.size(); ++i) bias.set(int64_t(i), c.bias[i]);
  Forward f;
  f.radius.assign(size_t(c.rows()), -7), f.mean = f.count = f.radius, f.sizes.assign(size_t(c.rows()), -7);
  AttentionJob job{};
  shape(c, q, k, v, job);
  job.radius = c.radius.data(), job.radius_per_row = c.radius.size() > 1;
  job.causal = c.causal, job.rule = c.rule, job.dropout = c.dropout, job.seed = c.seed, job.block = block, job.pairs = c.pairs, job.temperature = c.temperature;
  std::vector<int64_t> mask_at(size_t(c.heads()), 0);
  if (!c.mask.empty()) {
    job.mask = c.mask.data(), job.mask_row = c.whole_mask() ? c.keys() : 1, job.mask_key = c.whole_mask() ? 1 : 0;
    for (int64_t h = 0; c.whole_mask() && h < c.heads(); ++h) mask_at[size_t(h)] = h * c.queries() * c.keys();
  } else if (!c.bias.empty()) {
    job.bias = bias.at(0), job.mask_row = c.keys(), job.mask_key = 1;
  }
  if (!c.mask.empty() || !c.bias.empty()) job.mask_at = mask_at.data();
  job.out = out.at(0), job.sizes = f.sizes.data();
  if (c.rule != Rule::given) job.radius_out = f.radius.data(), job.mean_out = f.mean.data(), job.count_out = f.count.data();
  std::vector<Piece> pieces(size_t(job.blocks()));
  job.pieces = pieces.data();
  run(job, engine.attention, job.blocks(), turns);
  for (int64_t i = 0; i < c.rows() * c.v.width; ++i) f.out.push_back(out[i]);
  for (const Piece& piece : pieces) {
    f.index.insert(f.index.end(), piece.index.begin(), piece.index.end());
    f.value.insert(f.value.end(), piece.narrow.begin(), piece.narrow.end());
    f.value.insert(f.value.end(), piece.wide.begin(), piece.wide.end());
  }
  for (int64_t n : f.sizes) f.indptr.push_back(f.indptr.back() + n);
  return f;
}

// The scores of a row that may be chosen, -inf elsewhere, and how far the kernel's may be from them.
struct Scores {
  std::vector<double> x;
  Real off = 0, size = 0;
  bool broken = false, beyond = false;  // a score is NaN or inf; one is more than the storage holds, and may be either
};

Scores scores_of(const AttentionCase& c, int64_t row) {
  const int64_t head = row / c.queries(), query = row % c.queries(), E = c.q.width;
  const Real u = Real(eps_of(c.in())) / 2;
  Scores s;
  s.x.assign(size_t(c.reach(query)), -kInf);
  for (int64_t j = 0; j < c.reach(query); ++j) {
    if (!c.open(row, j) || (!c.bias.empty() && c.bias[size_t(query * c.keys() + j)] == -kInf)) continue;
    Sum sum, sizes, lost;  // `lost`: digits that a subnormal query leaves behind when it is scaled
    for (int64_t e = 0; e < E; ++e) {
      lost.add(Real(tiniest(c.in())) * std::fabs(Real(c.k.at(head / c.group, j, e))));
      const Real product = Real(c.q.at(head, query, e)) * Real(c.k.at(head / c.group, j, e)) * Real(c.scale);
      sum.add(product), sizes.add(std::fabs(product));
    }
    Real x = sum.value(), size = sizes.value() * Real(E + 4) + (Real(tiniest(c.in())) * Real(2 * E) + lost.value()) / u;
    if (!c.bias.empty()) x += c.bias[size_t(query * c.keys() + j)], size += std::fabs(x);
    s.broken |= std::isnan(x) || x == kInf;
    s.beyond |= sizes.value() > Real(format_of(c.in()).largest) / 4;
    s.x[size_t(j)] = double(x);
    if (std::isfinite(x)) s.off = std::max(s.off, u * (size + std::fabs(x))), s.size = std::max(s.size, std::fabs(x));
  }
  return s;
}

// Shares of e^(x / t), from the largest: points to project, and the radius, a share of their sum.
std::vector<double> shares_of(const std::vector<double>& x, double temperature, double keep, double& r) {
  const double top = *std::max_element(x.begin(), x.end());
  std::vector<double> made;
  Sum sum;
  for (double v : x) made.push_back(v == -kInf ? -kInf : double(std::exp((Real(v) - Real(top)) / Real(temperature))));
  for (double v : made)
    if (v > -kInf) sum.add(v);
  r = double(sum.value() * Real(keep));
  return made;
}

// Entmax with alpha = 1.5 by bisection: p = ([x - t]_+ / 2)^2.
Answer root_exact(const std::vector<double>& x) {
  const Real top = *std::max_element(x.begin(), x.end());
  Answer a;
  Real low = top - 2, high = top;
  for (int i = 0; i < 80; ++i) {
    const Real t = (low + high) / 2;
    Real sum = 0;
    for (double v : x) sum += v > t ? (v - t) * (v - t) / 4 : Real(0);
    (sum > 1 ? low : high) = t;
  }
  a.tau = low;
  for (double v : x) a.p.push_back(v > low ? (v - low) * (v - low) / 4 : Real(0));
  a.size = a.firm = 1;
  return a;
}

std::string weights_wrong(const AttentionCase& c, const Forward& f, int64_t row) {
  const Scores s = scores_of(c, row);
  const int64_t from = f.indptr[size_t(row)], n = f.sizes[size_t(row)];
  double r = c.radius_of(row);
  for (int64_t j = from; j < from + n; ++j)
    if (f.index[size_t(j)] < 0 || f.index[size_t(j)] >= c.reach(row % c.queries()) || (j > from && f.index[size_t(j)] <= f.index[size_t(j - 1)]))
      return text("the support of row ", row, " is not in order");
  if (s.beyond) return "";
  if (s.broken) {  // NaN throughout, whatever the arithmetic made of it
    for (int64_t j = from; j < from + n; ++j)
      if (std::isnan(f.value[size_t(j)])) return "";
    return text("row ", row, " is not a number and its weights are");
  }
  if (c.rule != Rule::given) {
    Sum sum;
    int64_t open = 0;
    for (double x : s.x)
      if (x != -kInf) sum.add(x), ++open;
    const Real mean = open ? sum.value() / Real(open) : Real(0), height = c.rule == Rule::hourglass ? std::fabs(mean) : mean;
    const Real width = 1 / Real(std::max<int64_t>(open, 1)) + r, off = s.off + Real(0x1p-52) * Real(open + 8) * s.size;
    const Real want = std::isinf(r) || open == 0 ? Real(1) : (height + r) / width;
    r = f.radius[size_t(row)];
    const Real allowed = std::isinf(c.radius_of(row)) || open == 0 ? Real(0) : off / width + Real(0x1p-50) * std::fabs(want);
    if (std::isnan(r) ? want > allowed : !(std::fabs(r - want) <= allowed)) return text("the radius of row ", row, " is ", r, ", not ", double(want));
    if (f.count[size_t(row)] != double(open)) return text("row ", row, " has ", open, " keys, not ", f.count[size_t(row)]);
  }
  const bool some = std::any_of(s.x.begin(), s.x.end(), [](double x) { return x > -kInf; });
  std::vector<double> x = s.x;
  if (c.weigh == Weigh::shares && some) x = shares_of(s.x, c.temperature, c.radius_of(row), r);
  const Answer a = c.weigh == Weigh::root && some ? root_exact(x) : project_exact(x.data(), int64_t(x.size()), r, eps_of(c.in()));
  std::vector<double> p(s.x.size(), 0.0);
  for (int64_t j = from; j < from + n; ++j) p[size_t(f.index[size_t(j)])] = std::fabs(f.value[size_t(j)]);
  // A radius of 0 asks for the maximum itself, which scores so close to it may be.
  Real blur = r > 0 ? 2 * s.off / Real(r) : s.off > 0 ? Real(1) : Real(0);
  // Points are off by a share of themselves, 1 at most; the root of a weight is off by what its score is.
  if (c.weigh == Weigh::shares) blur = 6 * (s.off / Real(c.temperature) + 4 * Real(eps_of(c.in()))) * (1 + 1 / Real(r));
  if (c.weigh == Weigh::root) blur = 2 * s.off + 16 * Real(eps_of(c.in())) * (1 + s.size);
  for (size_t j = 0; j < p.size(); ++j)
    if (!near(p[j], a, int64_t(j), c.in(), blur))
      return text("weight ", j, " of row ", row, " is ", p[j], ", not ", double(a.p[j]), " within ", double(blur));
  return "";
}

// The weights after dropout, as the kernel's own p and marks have them.
Real kept(const AttentionCase& c, double value) {
  if (c.dropout == 0) return value;
  const Real keep = c.dropout < 1 ? rounded(1 / (1 - c.dropout), c.in()) : Real(0);
  return std::signbit(value) ? Real(0) : Real(value) * keep;
}

std::string out_wrong(const AttentionCase& c, const Forward& f, int64_t row) {
  const int64_t head = row / c.queries() / c.group, Ev = c.v.width;
  const Real u = Real(eps_of(c.in())) / 2;
  for (int64_t e = 0; e < Ev; ++e) {
    Sum sum, sizes;
    bool nan = false;
    for (int64_t j = f.indptr[size_t(row)]; j < f.indptr[size_t(row) + 1]; ++j) {
      nan |= std::isnan(f.value[size_t(j)]);
      const Real term = kept(c, f.value[size_t(j)]) * Real(c.v.at(head, f.index[size_t(j)], e));
      sum.add(term), sizes.add(std::fabs(term));
    }
    const Real allowed = u * Real(f.sizes[size_t(row)] + 4) * sizes.value() + Real(tiniest(c.in())) * Real(f.sizes[size_t(row)] + 1);
    if (!close(f.out[size_t(row * Ev + e)], nan ? Real(std::nan("")) : sum.value(), allowed, c.storage))
      return text("entry ", e, " of the result of row ", row, " is ", f.out[size_t(row * Ev + e)], ", not ", double(sum.value()));
  }
  return "";
}

struct Backward {
  std::vector<double> q, k, v, radius, out_grad, value_grad;
};

Backward backward(const AttentionCase& c, const Engine& engine, const Forward& f, int64_t ranges, const Turns& turns) {
  Laid q(c.q, c.storage), k(c.k, c.storage), v(c.v, c.storage);
  const int64_t nnz = f.indptr.back(), kv = c.heads() / c.group;
  Random random(c.seed, 99, 0);
  Backward b;
  Cells out_grad(c.in(), c.rows() * c.v.width), value_grad(c.in(), nnz), value(c.in(), nnz), slopes(c.in(), nnz);
  Cells q_grad(c.in(), c.rows() * c.q.width), k_grad(c.in(), kv * c.keys() * c.q.width), v_grad(c.in(), kv * c.keys() * c.v.width);
  const auto numbers = [&](Cells& to, int64_t n, std::vector<double>& kept) {
    for (int64_t i = 0; i < n; ++i) kept.push_back(double(rounded(Real(random.normal()), c.in()))), to.set(i, kept.back());
  };
  numbers(out_grad, c.rows() * c.v.width, b.out_grad), numbers(value_grad, nnz, b.value_grad);
  for (int64_t i = 0; i < nnz; ++i) value.set(i, f.value[size_t(i)]);
  for (int64_t i = 0; i < kv * c.keys() * c.q.width; ++i) k_grad.set(i, 0);
  for (int64_t i = 0; i < kv * c.keys() * c.v.width; ++i) v_grad.set(i, 0);
  b.radius.assign(size_t(c.rows()), -7);
  AttentionVjpJob job{};
  shape(c, q, k, v, job);
  job.radius = c.rule == Rule::given ? c.radius.data() : f.radius.data();
  job.radius_per_row = c.rule != Rule::given || c.radius.size() > 1;
  job.keep = c.dropout == 0 ? 1 : c.dropout < 1 ? 1 / (1 - c.dropout) : 0;
  job.indptr = f.indptr.data(), job.index = f.index.data(), job.value = value.at(0), job.out_grad = out_grad.at(0);
  job.value_grad = c.weighted ? value_grad.at(0) : nullptr, job.slopes = slopes.at(0);
  job.q_grad = q_grad.at(0), job.k_grad = k_grad.at(0), job.v_grad = v_grad.at(0), job.radius_grad = b.radius.data();
  job.ranges = ranges;
  run(job, engine.attention_vjp_rows, c.rows(), turns);
  run(job, engine.attention_vjp_keys, kv * ranges, turns);
  for (int64_t i = 0; i < c.rows() * c.q.width; ++i) b.q.push_back(q_grad[i]);
  for (int64_t i = 0; i < kv * c.keys() * c.q.width; ++i) b.k.push_back(k_grad[i]);
  for (int64_t i = 0; i < kv * c.keys() * c.v.width; ++i) b.v.push_back(v_grad[i]);
  return b;
}

// A number and the most the kernel's may be off: both grow with every term.
struct Bounded {
  Real x = 0, off = 0, size = 0;
  void add(Real term, Real error) { x += term, off += error, size += std::fabs(term); }
  bool holds(double found, int64_t terms, Storage s) const {
    return close(found, x, off + Real(eps_of(s)) / 2 * Real(terms + 4) * size + Real(tiniest(s)) * Real(terms + 2), s);
  }
};

// The gradients that follow from the weights found: slopes of the weights, centred over the support, over r.
std::string gradients_wrong(const AttentionCase& c, const Forward& f, const Backward& b) {
  const int64_t E = c.q.width, Ev = c.v.width, kv = c.heads() / c.group, Q = c.queries();
  const Real u = Real(eps_of(c.in())) / 2, smallest = Real(tiniest(c.in())), keep = c.dropout == 0 ? Real(1) : c.dropout < 1 ? rounded(1 / (1 - Real(c.dropout)), c.in()) : Real(0);
  std::vector<Bounded> k(size_t(kv * c.keys() * E)), v(size_t(kv * c.keys() * Ev));
  for (const auto* numbers : {&f.value, &c.q.x, &c.k.x, &c.v.x})
    for (double x : *numbers)
      if (!(std::fabs(x) < 1e15)) return "";  // sums overflow, and NaN spreads to what it meets: the result was looked at
  for (int64_t row = 0; row < c.rows(); ++row) {
    const int64_t head = row / Q / c.group, from = f.indptr[size_t(row)], n = f.sizes[size_t(row)];
    const double r = c.rule == Rule::given ? c.radius_of(row) : f.radius[size_t(row)];
    const Real most = Real(format_of(c.in()).largest), over_r = r == 0 ? Real(0) : std::min(1 / Real(r), most);
    std::vector<Real> slope, off;
    Real mean = 0, mean_off = 0;
    for (int64_t j = from; j < from + n; ++j) {
      Bounded found;
      for (int64_t e = 0; e < Ev; ++e) found.add(Real(b.out_grad[size_t(row * Ev + e)]) * Real(c.v.at(head, f.index[size_t(j)], e)), 0);
      if (c.weighted) found.add(b.value_grad[size_t(j)], 0);
      const bool dropped = std::signbit(f.value[size_t(j)]);
      slope.push_back(dropped ? Real(0) : found.x * keep), off.push_back(dropped ? Real(0) : (u * Real(Ev + 6) * found.size + smallest * Real(Ev + 2)) * keep);
      mean += slope.back() / Real(n), mean_off += (off.back() + u * std::fabs(slope.back()) + smallest) / Real(n);
    }
    Bounded along;
    std::vector<Bounded> q(static_cast<size_t>(E));
    for (int64_t j = 0; j < n; ++j) {
      const Real w = slope[size_t(j)] - mean, w_off = off[size_t(j)] + mean_off + smallest + 2 * u * (std::fabs(w) + std::fabs(mean));
      const Real p = std::fabs(Real(f.value[size_t(from + j)]));
      along.add(w * p, w_off * p);
      const Real s = w * over_r * c.scale, s_off = (w_off + 4 * u * std::fabs(w)) * over_r * std::fabs(Real(c.scale)) + Real(tiniest(c.in())) * (2 + std::fabs(w)) * (1 + std::fabs(Real(c.scale)));
      const int64_t at = (head * c.keys() + f.index[size_t(from + j)]);
      const Real lost = std::fabs(w) * over_r * (1 + std::fabs(Real(c.scale))) > most / 2 ? Real(HUGE_VAL) : Real(0);  // inf times 0
      for (int64_t e = 0; e < E; ++e) {
        const Real key = c.k.at(head, f.index[size_t(from + j)], e), query = c.q.at(row / Q, row % Q, e);
        q[size_t(e)].add(s * key, s_off * std::fabs(key) + lost), k[size_t(at * E + e)].add(s * query, s_off * std::fabs(query) + lost);
      }
      for (int64_t e = 0; e < Ev; ++e) v[size_t(at * Ev + e)].add(kept(c, f.value[size_t(from + j)]) * Real(b.out_grad[size_t(row * Ev + e)]), 0);
    }
    for (int64_t e = 0; e < E; ++e)
      if (!q[size_t(e)].holds(b.q[size_t(row * E + e)], n, c.in())) 
        return text("entry ", e, " of the gradient of query ", row, " is ", b.q[size_t(row * E + e)], ", not ", double(q[size_t(e)].x), " (support ", n, ", radius ", r, ")");
    const Real want = r == 0 ? Real(0) : -along.x / r, allowed = r == 0 ? Real(0) : (along.off + 4 * u * along.size) / r + Real(1e-300);
    if (!close(b.radius[size_t(row)], want, allowed, Storage::float64))
      return text("the gradient of radius ", row, " is ", b.radius[size_t(row)], ", not ", double(want));
  }
  for (size_t i = 0; i < k.size(); ++i)
    if (!k[i].holds(b.k[i], c.rows(), c.in())) return text("the gradient of the keys is ", b.k[i], ", not ", double(k[i].x), " at ", i);
  for (size_t i = 0; i < v.size(); ++i)
    if (!v[i].holds(b.v[i], c.rows(), c.in())) return text("the gradient of the values is ", b.v[i], ", not ", double(v[i].x), " at ", i);
  return "";
}

bool equal(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!same(a[i], b[i])) return false;
  return true;
}

std::string check(const AttentionCase& c, const Engine& engine) {
  // A key that is not finite, or huge (of pairs: or subnormal), sends all rows of its block another way, also those that may not see it: other blocks
  // then have other last digits.
  bool tame = true;
  for (const Matrices* m : {&c.q, &c.k})
    for (double x : m->x) tame = tame && std::fabs(x) < 1e15 && (x == 0 || c.storage != Storage::bfloat16 || std::fabs(x) > 1e-37);
  const Forward f = forward(c, engine, c.block, c.turns), g = forward(c, engine, tame ? c.block % 12 + 1 : c.block, Turns());
  for (int64_t row = 0; row < c.rows(); ++row) {
    std::string what = weights_wrong(c, f, row);
    if (what.empty()) what = out_wrong(c, f, row);
    if (!what.empty()) return what;
  }
  if (!equal(f.out, g.out) || !equal(f.value, g.value) || f.index != g.index) return "the result depends on blocks or threads";
  if (c.weigh == Weigh::shares) return "";  // no way back
  const Backward b = backward(c, engine, f, c.ranges, c.turns), d = backward(c, engine, f, 1, Turns());
  if (!equal(b.q, d.q) || !equal(b.k, d.k) || !equal(b.v, d.v) || !equal(b.radius, d.radius)) return "gradients depend on ranges or threads";
  return c.weigh == Weigh::root ? "" : gradients_wrong(c, f, b);  // those of entmax are Python's to check
}

Matrices random_matrices(Random& random, Storage s, int64_t heads, int64_t rows, int64_t width) {
  Matrices m;
  m.heads = heads, m.rows = rows, m.width = width;
  m.pad = random.one_in(3) ? random.below(9) : 0, m.gap = random.one_in(3) ? random.below(9) : 0, m.back = random.one_in(5);
  const double spread = random.one_in(4) ? random.magnitude(-4, 4) : 1;
  const bool ties = random.one_in(4);
  for (int64_t i = 0; i < heads * rows * width; ++i)
    m.x.push_back(double(rounded(Real(ties ? double(random.between(-4, 4)) / 4 : random.normal() * spread), s)));
  if (s == Storage::bfloat16 && random.one_in(20)) m.x[size_t(random.below(int64_t(m.x.size())))] = 0x1p-130;
  if (random.one_in(40)) m.x[size_t(random.below(int64_t(m.x.size())))] = double(rounded(random.pick({std::nan(""), kInf, -kInf, 3e38}), s));
  return m;
}

// Can this machine multiply bfloat16 in pairs?
bool has_pairs() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  return __builtin_cpu_supports("avx512bw") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 5 & 1;
#else
  return false;
#endif
}

AttentionCase make(Random& random) {
  AttentionCase c;
  c.storage = random.pick({Storage::float64, Storage::float32, Storage::float32, Storage::float32, Storage::bfloat16, Storage::bfloat16,
                           Storage::float16});
  c.pairs = has_pairs() && random.one_in(2);
  const int64_t kv = random.between(1, 2), E = random.pick<int64_t>({1, 2, 3, 4, 8, 9}), wide = random.one_in(8) ? 8 : 1;
  const int64_t Ev = random.pick<int64_t>({1, 2, 3, 4, 8, 9}) * wide;
  c.group = random.pick<int64_t>({1, 1, 2, 3});
  const int64_t keys = random.one_in(3) ? random.between(1, 12) : random.one_in(30) ? random.between(100, 300) : random.between(1, 40);
  const int64_t most = random.one_in(4) ? 2 : 16, queries = random.between(1, std::max<int64_t>(1, std::min<int64_t>(most, 600 / keys)));
  c.q = random_matrices(random, c.storage, kv * c.group, queries, E), c.k = random_matrices(random, c.storage, kv, keys, E);
  c.v = random_matrices(random, c.storage, kv, keys, Ev);
  c.block = random.between(1, 18), c.ranges = random.between(1, std::min<int64_t>(keys, 4)), c.seed = random.bits();
  c.scale = random.one_in(3) ? random.magnitude(-2, 1) : 1 / std::sqrt(double(E));
  c.causal = random.one_in(4), c.weighted = random.one_in(3);
  if (random.one_in(4)) c.dropout = random.pick({0.1, 0.5, 0.9, 1.0});
  if (random.one_in(2)) c.rule = random.one_in(2) ? Rule::cone : Rule::hourglass;
  if (c.rule == Rule::given && random.one_in(3)) c.weigh = random.one_in(2) ? Weigh::shares : Weigh::root;
  if (c.weigh == Weigh::shares) c.temperature = random.pick({1.0, 1.0, random.magnitude(-1, 1)});
  const bool each = random.one_in(3);
  for (int64_t row = 0; row < (each ? c.rows() : 1); ++row)
    c.radius.push_back(c.weigh == Weigh::shares ? random.pick({1.0, 0.95, 0.5, random.uniform() + 1e-3, 1.5})
                       : c.rule != Rule::given ? random.pick({0.0, 0.5, 1.0, random.magnitude(-3, 3), kInf})
                       : random.one_in(16)   ? random.pick({0.0, kInf, 1e-300, 1e-30, 1e30, 1e300})
                       : random.one_in(2)    ? 1
                                             : random.magnitude(-2, 2));
  const int hidden = int(random.below(6));
  if (hidden == 0) c.mask.resize(size_t(random.one_in(3) ? queries : c.rows() * keys));
  if (hidden == 1) c.bias.resize(size_t(queries * keys));
  for (uint8_t& open : c.mask) open = random.one_in(3) ? 0 : 1;
  // As models make them: a window, or nothing beyond a length.
  if (c.whole_mask() && !c.mask.empty() && random.one_in(2))
    for (int64_t row = 0; row < c.rows(); ++row) {
      const int64_t low = random.between(0, keys), high = random.between(0, keys);
      for (int64_t j = 0; j < keys; ++j) c.mask[size_t(row * keys + j)] = j >= std::min(low, high) && j < std::max(low, high);
    }
  for (double& x : c.bias) x = random.one_in(4) ? -kInf : double(rounded(Real(random.normal()), c.in()));
  c.turns = random_turns(random, 8);
  return c;
}

// Leaves out rows (or entries: every `width`-th) of matrices.
void leave_out(Matrices& m, int64_t from, int64_t n) {
  std::vector<double> left;
  for (int64_t h = 0; h < m.heads; ++h)
    for (int64_t i = 0; i < m.rows; ++i)
      for (int64_t e = 0; e < m.width && (i < from || i >= from + n); ++e) left.push_back(m.at(h, i, e));
  m.rows -= n, m.x = left;
}

void simplify(const AttentionCase& c, const std::function<bool(const AttentionCase&)>& attempt) {
  const auto with = [&](auto&& change) {
    AttentionCase d = c;
    change(d);
    return attempt(d);
  };
  if (!c.mask.empty() && with([](auto& d) { d.mask.clear(); })) return;
  if (!c.bias.empty() && with([](auto& d) { d.bias.clear(); })) return;
  if (!c.turns.plain() && with([](auto& d) { d.turns = Turns(); })) return;
  if (c.causal && with([](auto& d) { d.causal = false; })) return;
  if (c.dropout > 0 && with([](auto& d) { d.dropout = 0; })) return;
  if (c.weighted && with([](auto& d) { d.weighted = false; })) return;
  if (c.radius.size() > 1 && with([](auto& d) { d.radius.resize(1); })) return;
  if (c.rule != Rule::given && with([](auto& d) { d.rule = Rule::given; })) return;
  if (c.weigh != Weigh::project && with([](auto& d) { d.weigh = Weigh::project; })) return;
  if (c.heads() > 1 && c.mask.empty() && c.radius.size() == 1 && with([](auto& d) {
        for (Matrices* m : {&d.q, &d.k, &d.v}) m->x.resize(size_t(m->rows * m->width)), m->heads = 1;
        d.group = 1;
      })) return;
  for (double r : simpler_numbers(c.radius[0]))
    if (with([&](auto& d) { d.radius[0] = r; })) return;
  bool done = false;
  if (c.mask.empty() && c.bias.empty()) {
    if (c.radius.size() == 1)
      each_part(c.queries(), [&](int64_t from, int64_t n) { done = done || with([&](auto& d) { leave_out(d.q, from, n); }); });
    each_part(c.keys(), [&](int64_t from, int64_t n) {
      done = done || with([&](auto& d) { leave_out(d.k, from, n), leave_out(d.v, from, n), d.ranges = std::min(d.ranges, d.k.rows); });
    });
  }
  if (done || c.rows() * c.keys() > 400) return;
  AttentionCase d = c;
  for (Matrices* m : {&d.q, &d.k, &d.v})
    for (double& x : m->x)
      for (double simpler : simpler_numbers(x)) {
        const double before = x;
        x = double(rounded(simpler, c.storage));
        if (x != before && attempt(d)) break;
        x = before;
      }
}

std::string tensor(const Matrices& m, Storage s) {
  return text("torch.tensor(", listed(m.x, s), ", dtype=torch.", name_of(s), ").reshape(1, ", m.heads, ", ", m.rows, ", ", m.width, ").requires_grad_()");
}

std::string python(const AttentionCase& c, const char* engine) {
  std::string more, note;
  const std::string shape = text("(", c.heads(), ", ", c.queries(), ", ", c.keys(), ")");
  if (c.whole_mask() && !c.mask.empty()) more += text(", attn_mask=torch.tensor(", listed(std::vector<int>(c.mask.begin(), c.mask.end())), ").bool().reshape", shape);
  else if (!c.mask.empty()) more += text(", attn_mask=torch.tensor(", listed(std::vector<int>(c.mask.begin(), c.mask.end())), ").bool()[:, None].expand(-1, ", c.keys(), ")");
  if (!c.bias.empty()) more += text(", attn_mask=torch.tensor(", listed(c.bias, c.in()), ", dtype=torch.", name_of(c.in()), ").reshape(", c.queries(), ", ", c.keys(), ")");
  if (c.causal) more += ", is_causal=True";
  if (c.dropout > 0) note += text(" with dropout ", c.dropout);
  if (c.group > 1) more += ", enable_gqa=True";
  // A radius that 1 - lam cannot express is as good as 0.
  const bool hard = 1 - c.radius[0] == 1;
  const std::string control = c.weigh == Weigh::root ? "mapping='entmax'"
                              : c.weigh == Weigh::shares ? text("mapping='sparsegen_softmax', temperature=", digits(c.temperature), ", lam=", digits(1 - c.radius[0]))
                              : c.rule == Rule::given && hard ? "mapping='hardmax'"
                              : c.rule == Rule::given ? text("mapping='sparsegen_lin', lam=", digits(1 - c.radius[0]))
                              : c.rule == Rule::cone ? text("mapping='sparsecone', q=", digits(c.radius[0]))
                                                     : text("mapping='sparsehourglass', q=", digits(c.radius[0]));
  if (c.radius.size() > 1) note += text(" with radii ", listed(c.radius));
  return text(preamble(engine, true), "q, k, v = ", tensor(c.q, c.storage), ", ", tensor(c.k, c.storage), ", ", tensor(c.v, c.storage),
              "; print(st.sparse_attention(q, k, v, ", control, ", scale=", digits(c.scale), more, "))", note.empty() ? "" : "  #", note);
}

}  // namespace

void run_attention(const Plan& plan, Report& report) {
  static const Family<AttentionCase> family{
      "attention", make,
      [](const AttentionCase& c) -> std::string {
        if (c.weigh != Weigh::project) return c.weigh == Weigh::shares ? "attention shares" : "attention root";
        return c.rule == Rule::given ? "attention" : c.rule == Rule::cone ? "attention cone" : "attention hourglass";
      },
      [](const AttentionCase& c) { return c.storage; }, [](const AttentionCase& c) { return c.rows(); }, check, simplify, python};
  run_family(family, plan, report);
}

}  // namespace fuzz
