// Python's view of the kernel: addresses and sizes in, rows written. The front ends own every check.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <string>

#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#define SPARSEGEN_X86
#include <cpuid.h>
#endif

#include "job.hpp"
#include "modules.hpp"
#include "tensors.hpp"
#include "threads.hpp"

namespace nb = nanobind;

namespace sparsegen {

extern const Engine engine_plain;
#if defined(SPARSEGEN_X86)
extern const Engine engine_avx2, engine_avx512;
#endif

#if defined(SPARSEGEN_X86)
// Conversions of float16; not a name that older compilers know.
static bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && c >> 29 & 1;
}

// Each test names all that the flags of its build allow the compiler to use: see CMakeLists.txt.
static bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt") && has_f16c();
}

static bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

// Dot products of bfloat16, beside all of the above; not a name that older compilers know.
static bool has_pairs() {
  static const bool has = [] {
    unsigned a, b, c, d;
    return has_avx512() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 5 & 1;
  }();
  return has;
}
#else
static bool has_pairs() { return false; }
#endif

static std::vector<const Engine*> engines() {
  std::vector<const Engine*> found{&engine_plain};
#if defined(SPARSEGEN_X86)
  __builtin_cpu_init();
  if (has_avx2()) found.push_back(&engine_avx2);
  if (has_avx512()) found.push_back(&engine_avx512);
#endif
  return found;
}

static const Engine* engine = engines().back();

// Of Intel's processors with AVX-512 a core writes past its caches at 7 GB/s, and into them at twice that: docs/decisions/0027.
static bool past_is_faster() {
#if defined(SPARSEGEN_X86)
  return !(__builtin_cpu_is("intel") && has_avx512());
#else
  return true;
#endif
}

// AMD's from Zen 5 on fetch little of a row that they are not asked for while the one before it is worked: docs/decisions/0028.
static bool is_foresighted() {
#if defined(SPARSEGEN_X86)
  unsigned a, b, c, d;
  if (!__builtin_cpu_is("amd") || !__get_cpuid(1, &a, &b, &c, &d)) return true;
  return (a >> 8 & 15) + (a >> 20 & 255) < 0x1A;  // the family
#else
  return true;
#endif
}

// A large output is often memory the process has not touched yet, and its page faults then cost more than the projection.
// Asking for huge pages, inside the output only, makes them few; where they are there already it changes nothing.
static void expect_writes([[maybe_unused]] void* out, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t page = uintptr_t(1) << 21;
  const uintptr_t from = (reinterpret_cast<uintptr_t>(out) + page - 1) & ~(page - 1);
  const uintptr_t to = (reinterpret_cast<uintptr_t>(out) + uintptr_t(bytes)) & ~(page - 1);
  if (bytes >= int64_t(8 * page) && to > from) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
#endif
}

static void expect_writes(const ProjectJob& job) { expect_writes(job.p, job.bytes()); }
static void expect_writes(const VjpJob& job) { expect_writes(job.grad_x, job.bytes()); }
static void expect_writes(const MapVjpJob& job) { expect_writes(job.grad, job.bytes()); }
static void expect_writes(const MeanJob&) {}
static void expect_writes(const HingeJob&) {}

// Python's lock, given back while rows are worked. A thread that comes for it again while Python ends is unwound by force, which
// functions that may not throw turn into an abort of the process: it waits for the end instead, as Python itself has it from 3.14 on.
class Released {
 public:
  Released() : state_(PyEval_SaveThread()) {}
  Released(const Released&) = delete;
  ~Released() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }

 private:
  PyThreadState* const state_;
};

template <class J>
static void run(const J& job, void (*work)(const J&, int64_t, int64_t)) {
  const int64_t rows = job.rows(), entries = rows * job.K;
  if (entries < kChunkEntries) {
    const StandardArithmetic standard;
    return work(job, 0, rows);
  }
  const Released released;
  expect_writes(job);
  parallel(rows, rows_a_turn(job), job.threads, [&](int64_t begin, int64_t end) { work(job, begin, end); });
}

template <class P>
static P* at(uintptr_t address) {
  return reinterpret_cast<P*>(address);
}

static void project(uintptr_t x, uintptr_t p, int storage, int64_t rows, int64_t K, double radius, int threads) {
  const Strides strides{K, 1, 0};
  ProjectJob job{{Storage(storage), rows, K, 1, &radius, false, threads}, at<void>(x), strides, at<void>(p), strides,
                 nullptr, nullptr, nullptr, nullptr};
  run(job, engine->project);
}

static void project_strided(uintptr_t x, uintptr_t p, int storage, int64_t outer, int64_t K, int64_t inner,
                            int64_t x_outer, int64_t x_entry, int64_t x_inner, uintptr_t radius, bool radius_per_row,
                            uintptr_t mask, uintptr_t mask_row, uintptr_t support, uintptr_t threshold, int threads) {
  ProjectJob job{{Storage(storage), outer, K, inner, at<double>(radius), radius_per_row, threads},
                 at<void>(x), {x_outer, x_entry, x_inner}, at<void>(p), {K * inner, inner, 1},
                 at<uint8_t>(mask), at<int64_t>(mask_row), at<int64_t>(support), at<double>(threshold)};
  run(job, engine->project);
}

static void project_vjp(uintptr_t p, uintptr_t v, uintptr_t grad_x, int storage, int64_t outer, int64_t K,
                        int64_t inner, uintptr_t radius, bool radius_per_row, uintptr_t grad_radius, int threads) {
  VjpJob job{{Storage(storage), outer, K, inner, at<double>(radius), radius_per_row, threads},
             at<void>(p), at<void>(v), at<void>(grad_x), {K * inner, inner, 1}, at<double>(grad_radius)};
  run(job, engine->vjp);
}

// The same, and the support of each row as bits: ceil(K / 32) words of 32. Returns whether a row is NaN.
static bool project_words(uintptr_t x, uintptr_t p, uintptr_t words, int storage, int64_t rows, int64_t K, double radius,
                          int threads) {
  ProjectJob job{{Storage(storage), rows, K, 1, &radius, false, threads},
                 at<void>(x), {K, 1, 0}, at<void>(p), {K, 1, 0}, nullptr, nullptr, nullptr, nullptr};
  std::atomic<bool> broken{false};
  job.words = at<uint32_t>(words), job.broken = &broken;
  run(job, engine->project);
  return broken;
}

static void project_vjp_words(uintptr_t words, uintptr_t v, uintptr_t grad_x, int storage, int64_t rows, int64_t K,
                              double radius, int threads) {
  VjpJob job{{Storage(storage), rows, K, 1, &radius, false, threads},
             nullptr, at<void>(v), at<void>(grad_x), {K, 1, 0}, nullptr};
  job.words = at<uint32_t>(words);
  run(job, engine->vjp);
}

static void project_vjp_rows(uintptr_t p, uintptr_t v, uintptr_t grad_x, int storage, int64_t rows, int64_t K,
                             double radius, int threads) {
  VjpJob job{{Storage(storage), rows, K, 1, &radius, false, threads},
             at<void>(p), at<void>(v), at<void>(grad_x), {K, 1, 0}, nullptr};
  run(job, engine->vjp);
}

// Any map of the table, by transform, radius rule and power: see ProjectJob and MapJob. `radius` is the control of the rule,
// `second` temperature or alpha; each is one number or one per row (an address). What the way back needs of each row goes to
// `found`, `base` and `count` unless 0. Returns whether a row is outside the domain.
static bool map(uintptr_t x, uintptr_t p, int storage, int64_t outer, int64_t K, int64_t inner, int64_t x_outer,
                int64_t x_entry, int64_t x_inner, int transform, int rule, bool power, double radius, uintptr_t radius_rows,
                double second, uintptr_t second_rows, uintptr_t mask, uintptr_t mask_row, uintptr_t found, uintptr_t base,
                uintptr_t count, uintptr_t words, int threads) {
  MapJob job;
  static_cast<Job&>(job) = {Storage(storage), outer, K, inner, radius_rows ? at<double>(radius_rows) : &radius,
                            radius_rows != 0, threads};
  job.x = at<void>(x), job.xs = {x_outer, x_entry, x_inner}, job.p = at<void>(p), job.ps = {K * inner, inner, 1};
  job.mask = at<uint8_t>(mask), job.mask_row = at<int64_t>(mask_row), job.support = nullptr, job.threshold = nullptr;
  job.rule = Rule(rule), job.radius_out = at<double>(found), job.mean_out = at<double>(base);
  job.count_out = at<double>(count), job.transform = Transform(transform), job.power = power;
  job.second = second_rows ? at<double>(second_rows) : &second, job.second_per_row = second_rows != 0;
  job.words = at<uint32_t>(words);
  std::atomic<bool> outside{false};
  job.outside = &outside;
  if (job.transform == Transform::lin && job.rule != Rule::total && !power) run<ProjectJob>(job, engine->project);
  else run(job, engine->map);
  return outside;
}

static void map_vjp(uintptr_t z, uintptr_t p, uintptr_t v, uintptr_t grad, int storage, int64_t outer, int64_t K,
                    int64_t inner, int64_t z_outer, int64_t z_entry, int64_t z_inner, int transform, int rule, bool power,
                    double radius, uintptr_t radius_rows, double second, uintptr_t second_rows, uintptr_t mask,
                    uintptr_t mask_row, uintptr_t found, uintptr_t base, uintptr_t count, uintptr_t words,
                    uintptr_t grad_radius, uintptr_t grad_second, int threads) {
  MapVjpJob job;
  static_cast<Job&>(job) = {Storage(storage), outer, K, inner, radius_rows ? at<double>(radius_rows) : &radius,
                            radius_rows != 0, threads};
  job.z = at<void>(z), job.p = at<void>(p), job.v = at<void>(v), job.grad = at<void>(grad);
  job.zs = {z_outer, z_entry, z_inner}, job.strides = {K * inner, inner, 1};
  job.mask = at<uint8_t>(mask), job.mask_row = at<int64_t>(mask_row);
  job.rule = Rule(rule), job.transform = Transform(transform), job.power = power;
  job.second = second_rows ? at<double>(second_rows) : &second, job.second_per_row = second_rows != 0;
  job.found = at<double>(found), job.base = at<double>(base), job.count = at<double>(count);
  job.grad_radius = at<double>(grad_radius), job.grad_second = at<double>(grad_second), job.words = at<uint32_t>(words);
  run(job, engine->map_vjp);
}

// None, where a question could not be answered. What torch raised on the way is forgotten, but not that somebody wants to stop.
static nb::object unanswered() {
  if (PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw nb::python_error();
    PyErr_Clear();
  }
  return nb::none();
}

// Map.kind of the table: transform, rule and power, two bits each from the third bit on.
struct Kind {
  int transform, rule;
  bool power;
  explicit Kind(int kind) : transform(kind >> 2 & 3), rule(kind >> 4 & 3), power(kind >> 6 & 1) {}
};

// How many words the way there keeps for the way back, behind all else: the support of rows, and one word more. Not of rows that are
// in the caches still, nor where all of p is read all the same.
static int64_t words_kept(const TensorRows& z, const Kind& m, double radius, double second) {
  const int64_t bytes = z.rows * z.K * (z.storage == int(Storage::float64) ? 8 : 4);
  const bool whole = Rule(m.rule) == Rule::total && radius == 1;  // nobody asks for the support of shares of all of a sum
  if (whole || z.storage > int(Storage::float64)) return 0;
  const Transform transform = Transform(m.transform);
  const Rule rule = Rule(m.rule);
  const bool suffice = bytes >= kWordsFrom && words_suffice(transform, rule, m.power, radius, z.K);
  return suffice || words_spare(transform, rule, m.power, second, z.K) ? z.rows * words_of(z.K) + 1 : 0;
}

// The same of torch's tensors, for small calls: see tensors.hpp. With `keep`, p and what the way back needs of each row; None where more has to be asked.
static nb::object tensor_map(nb::handle x, int kind, double radius, double second, bool keep, nb::handle mask) {
  const TensorRows z(x.ptr());
  if (!z) return unanswered();
  const TensorMask hide(mask.ptr(), z);
  NewTensor p = hide.fits() ? NewTensor::like(x.ptr()) : NewTensor(nullptr);
  const Kind m(kind);
  const int64_t words = keep && mask.is_none() ? words_kept(z, m, radius, second) : 0;
  NewTensor found = p && keep ? NewTensor::wide(3 * z.rows + (words + 1) / 2) : NewTensor(nullptr);
  if (!p || (keep && !found)) return unanswered();
  double* const rows = at<double>(found.at);
  std::fill(rows, rows + (keep ? 3 * z.rows : 0), 1.0);
  const uintptr_t step = keep ? 8 * z.rows : 0;
  map(z.at, p.at, z.storage, z.rows, z.K, 1, z.K, 1, 1, m.transform, m.rule, m.power, radius, 0, second, 0,
      hide.bytes(), hide.offsets(), found.at, found.at + step, found.at + 2 * step, words ? found.at + 3 * step : 0,
      threads_for(z, kChunkEntries));
  return keep ? nb::make_tuple(nb::steal(p.tensor.release()), nb::steal(found.tensor.release()))
              : nb::steal(p.tensor.release());
}

// The same of a tensor nobody asks gradients of, while torch does nothing but compute: (x, kind, radius, second).
static nb::object quick_map(PyObject* const* given) {
  PyObject* const x = given[0];
  if (!is_plain(x) || !idle() || (is_asked(x) && is_recording())) return unanswered();
  const double kind = PyFloat_AsDouble(given[1]), radius = PyFloat_AsDouble(given[2]), second = PyFloat_AsDouble(given[3]);
  return PyErr_Occurred() ? unanswered() : tensor_map(x, int(kind), radius, second, false, Py_None);
}

// The same of one of our modules, in the place of torch's way through it: (module, x).
static nb::object quick_module(PyObject* const* given) {
  PyObject *const module = given[0], *const x = given[1];
  if (!is_plain(x) || !idle()) return unanswered();
  const Owned state(PyObject_GenericGetDict(module, nullptr));
  if (!state) return unanswered();
  const bool records = is_recording();
  const Plan plan = plan_of(module, state.get(), records);
  if (!plan || (records && is_asked(x))) return unanswered();
  return tensor_map(x, plan.kind, plan.told[0], plan.told[1], false, Py_None);
}

// Functions of Python's own kind: a call costs less than through nanobind.
template <nb::object (*f)(PyObject* const*), Py_ssize_t n>
static PyObject* called(PyObject*, PyObject* const* given, Py_ssize_t count) {
  try {
    if (count == n) return f(given).release().ptr();
    return PyErr_Format(PyExc_TypeError, "%zd arguments are needed, got %zd", n, count);
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

template <nb::object (*f)(PyObject* const*), Py_ssize_t n>
static void define(nb::module_& m, const char* name) {
  static PyMethodDef method{name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&called<f, n>)), METH_FASTCALL, nullptr};
  m.attr(name) = nb::steal(PyCFunction_NewEx(&method, nullptr, nb::object(m.attr("__name__")).ptr()));
}

// Gradients of a map of tensors: of scores, of the radius' control and of temperature or alpha of each row, where they are
// wanted. `found` is what the way there kept, or None.
static nb::object tensor_map_vjp(nb::handle z, nb::handle p, nb::handle v, int kind, double radius, double second,
                                 nb::handle found, bool want_radius, bool want_second, nb::handle mask) {
  const TensorRows of_z(z.ptr());
  if (!of_z) return unanswered();
  const TensorMask hide(mask.ptr(), of_z);
  if (!hide.fits()) return unanswered();
  const TensorRows of_p(p.ptr());
  if (!of_p.same(of_z)) return unanswered();
  const Owned upstream(PyObject_CallMethodNoArgs(v.ptr(), names().contiguous));
  if (!upstream) return unanswered();
  const TensorRows of_v(upstream.get());
  if (!of_v.same(of_z)) return unanswered();
  const uintptr_t kept = found.is_none() ? 0 : uintptr_t(number(Owned(PyObject_CallMethodNoArgs(found.ptr(), torch.address)), 0));
  if (!found.is_none() && !kept) return unanswered();
  const Kind m(kind);
  const int64_t words = kept && mask.is_none() ? words_kept(of_z, m, radius, second) : 0;
  const bool has_words = words && TensorRows(found.ptr()).entries() > 3 * of_z.rows;  // those of a longer way have not
  NewTensor grad = NewTensor::like(p.ptr()), to_radius = want_radius ? NewTensor::wide(of_z.rows) : NewTensor(nullptr),
            to_second = want_second ? NewTensor::wide(of_z.rows) : NewTensor(nullptr);
  if (!grad || (want_radius && !to_radius) || (want_second && !to_second)) return unanswered();
  const uintptr_t step = kept ? 8 * of_z.rows : 0;
  map_vjp(of_z.at, of_p.at, of_v.at, grad.at, of_z.storage, of_z.rows, of_z.K, 1, of_z.K, 1, 1, m.transform, m.rule,
          m.power, radius, 0, second, 0, hide.bytes(), hide.offsets(), kept, kept + step, kept + 2 * step,
          has_words ? kept + 3 * step : 0, to_radius.at, to_second.at, threads_for(of_z, kChunkEntries));
  const auto given = [](NewTensor& made) { return made ? nb::steal(made.tensor.release()) : nb::none(); };
  return nb::make_tuple(given(grad), given(to_radius), given(to_second));
}

// The gradient of a projection of tensors onto one radius, given p or (unless None) its support as words; None where more has to be
// asked.
static nb::object tensor_project_vjp(nb::handle p, nb::handle v, double radius, nb::handle words) {
  const TensorRows of_p(p.ptr());
  if (!of_p) return unanswered();
  const Owned upstream(PyObject_CallMethodNoArgs(v.ptr(), names().contiguous));
  if (!upstream) return unanswered();
  const TensorRows of_v(upstream.get());
  if (!of_v.same(of_p)) return unanswered();
  const uintptr_t kept = words.is_none() ? 0 : uintptr_t(number(Owned(PyObject_CallMethodNoArgs(words.ptr(), torch.address)), 0));
  NewTensor grad = NewTensor::like(p.ptr());
  if (!grad || (!words.is_none() && !kept)) return unanswered();
  (kept ? project_vjp_words : project_vjp_rows)(kept ? kept : of_p.at, of_v.at, grad.at, of_p.storage, of_p.rows, of_p.K, radius,
                                                threads_for(of_p, kChunkEntries));
  return nb::steal(grad.tensor.release());
}

// The one number of a plain tensor on the CPU, while torch does nothing but compute; None for any other.
static nb::object tensor_number(nb::handle t) {
  const bool one = is_plain(t.ptr()) && number(Owned(PyObject_CallMethodNoArgs(t.ptr(), names().dim)), 1) == 0 &&
                   attribute_is(t.ptr(), names().is_cpu, Py_True) && idle();
  PyObject* const found = one ? PyObject_CallMethodNoArgs(t.ptr(), names().item) : nullptr;
  return found ? nb::steal(found) : unanswered();
}

static void know_torch(nb::dict given) {
  const auto keep = [&](const char* name) { return nb::object(given[name]).release().ptr(); };
  torch = {keep("tensor"), keep("parameter"), keep("storages"), keep("empty_like"), keep("wide"), keep("threads"),
           keep("modes"), keep("tracing"), keep("functorch"), keep("levels"), keep("records"), keep("level"),
           keep("address"), keep("truth"), keep("deferred"), nullptr, keep("hooks")};
  const nb::object exchange = given["exchange"];
  if (!exchange.is_none()) torch.exchange = static_cast<const Exchange*>(PyCapsule_GetPointer(exchange.ptr(), "dlpack_exchange_api"));
  if (PyErr_Occurred()) throw nb::python_error();
}

static void row_means(uintptr_t x, int storage, int64_t outer, int64_t K, int64_t inner, int64_t x_outer,
                      int64_t x_entry, int64_t x_inner, uintptr_t mask, uintptr_t mask_row, uintptr_t mean,
                      uintptr_t count, int threads) {
  MeanJob job{{Storage(storage), outer, K, inner, nullptr, false, threads}, at<void>(x), {x_outer, x_entry, x_inner},
              at<uint8_t>(mask), at<int64_t>(mask_row), at<double>(mean), at<double>(count)};
  run(job, engine->means);
}

static void hinge(uintptr_t z, int storage, int64_t rows, int64_t K, uintptr_t mask, uintptr_t mask_row,
                  uintptr_t indptr, uintptr_t indices, uintptr_t radius, bool radius_per_row,
                  double smoothing, uintptr_t value, uintptr_t slope, uintptr_t grad, int threads) {
  HingeJob job{{Storage(storage), rows, K, 1, at<double>(radius), radius_per_row, threads}, at<void>(z),
               at<uint8_t>(mask), at<int64_t>(mask_row), at<int64_t>(indptr), at<int64_t>(indices),
               smoothing, at<double>(value), at<double>(slope), at<void>(grad)};
  run(job, engine->hinge);
}

// The dual of a linear model with the huber loss: it keeps mu, and borrows all else from arrays that Python keeps alive.
class Dual {
 public:
  Dual(std::vector<int64_t> sizes, uintptr_t x_indptr, uintptr_t x_index, uintptr_t x, uintptr_t share, uintptr_t square,
       uintptr_t y_indptr, uintptr_t y_index, uintptr_t eta, double constant, double radius, uintptr_t W)
      : mu_(size_t(sizes[0])), job_{} {
    job_.K = sizes[1], job_.features = sizes[2], job_.constant = constant;
    job_.x_indptr = at<int64_t>(x_indptr), job_.x_index = at<int32_t>(x_index), job_.x = at<double>(x);
    job_.share = at<double>(share), job_.square = at<double>(square);
    job_.y_indptr = at<int64_t>(y_indptr), job_.y_index = at<int64_t>(y_index), job_.eta = at<double>(eta);
    job_.radius = radius, job_.W = at<double>(W), job_.mu = mu_.data();
    for (int64_t i = 0; i < rows(); ++i)  // mu = eta belongs to W = 0
      for (int64_t e = job_.y_indptr[i]; e < job_.y_indptr[i + 1]; ++e)
        mu_[size_t(i)].push_back({int32_t(job_.y_index[e]), job_.eta[e]});
  }

  double pass(uintptr_t order, double alpha) {
    DualJob job = with(alpha);
    job.order = at<int64_t>(order);
    const Released released;
    const StandardArithmetic standard;
    return engine->dual_pass(job, rows());
  }

  void values(uintptr_t value, uintptr_t gap, double alpha, bool restart, int threads) {
    DualJob job = with(alpha);
    job.value = at<double>(value), job.gap = at<double>(gap), job.restart = restart;
    const Released released;
    const int64_t turn = std::max({int64_t(1), kChunkEntries / job.K, rows() / (4 * threads)});
    parallel(rows(), turn, rows() * job.K < kChunkEntries ? 1 : threads,
             [&](int64_t begin, int64_t end) { engine->dual_values(job, begin, end); });
  }

  void weights(double alpha) {
    const DualJob job = with(alpha);
    const Released released;
    const StandardArithmetic standard;
    engine->dual_weights(job, rows());
  }

  double entries() const {  // of mu that are not 0
    double n = 0;
    for (const auto& row : mu_) n += double(row.size());
    return n;
  }

 private:
  int64_t rows() const { return int64_t(mu_.size()); }
  DualJob with(double alpha) const {
    DualJob job = job_;
    job.alpha = alpha;
    return job;
  }

  std::vector<std::vector<DualEntry>> mu_;
  DualJob job_;
};

// A tensor (..., rows, entries) as Python describes it: its address, the step from row to row, and size and step of each axis
// before them; and the offset of each of its matrices.
using Walk = std::vector<int64_t>;

static std::vector<int64_t> offsets(const Walk& walk) {
  std::vector<int64_t> at{0};
  for (size_t axis = 2; axis + 1 < walk.size(); axis += 2) {
    std::vector<int64_t> next;
    next.reserve(at.size() * size_t(walk[axis]));
    for (int64_t from : at)
      for (int64_t i = 0; i < walk[axis]; ++i) next.push_back(from + i * walk[axis + 1]);
    at.swap(next);
  }
  return at;
}

// What both directions are told: storage, threads, scale, the sizes AttentionShape names from group to value_width, and the
// radius, of each row or (address 0) one for all.
struct Attention {
  std::vector<int64_t> q_at, k_at, v_at;
  double radius;

  void fill(AttentionShape& job, int storage, int threads, int weigh, double scale, const std::vector<int64_t>& sizes, const Walk& q,
            const Walk& k, const Walk& v, double one_radius, uintptr_t radii) {
    q_at = offsets(q), k_at = offsets(k), v_at = offsets(v), radius = one_radius;
    job.storage = Storage(storage), job.threads = threads, job.scale = scale, job.weigh = Weigh(weigh);
    job.heads = int64_t(q_at.size()), job.group = sizes[0], job.queries = sizes[1], job.keys = sizes[2];
    job.width = sizes[3], job.value_width = sizes[4];
    job.q = {at<void>(uintptr_t(q[0])), q_at.data(), q[1]};
    job.k = {at<void>(uintptr_t(k[0])), k_at.data(), k[1]};
    job.v = {at<void>(uintptr_t(v[0])), v_at.data(), v[1]};
    job.radius = radii ? at<double>(radii) : &radius, job.radius_per_row = radii != 0;
  }
};

// The support found by a forward pass, block by block, until Python has made room for all of it.
struct Found {
  Storage storage;
  std::vector<Piece> pieces;

  int64_t size() const {
    int64_t n = 0;
    for (const Piece& piece : pieces) n += int64_t(piece.index.size());
    return n;
  }
  // Moves everything to arrays of size() entries; what has been moved is freed at once.
  void move_to(uintptr_t index, uintptr_t value) {
    int32_t* to = at<int32_t>(index);
    for (Piece& piece : pieces) {
      to = std::copy(piece.index.begin(), piece.index.end(), to);
      value += storage == Storage::float64 ? put(piece.wide, value) : put(piece.narrow, value);
      piece = Piece();
    }
  }

 private:
  template <class T>
  static uintptr_t put(const std::vector<T>& from, uintptr_t to) {
    std::copy(from.begin(), from.end(), at<T>(to));
    return from.size() * sizeof(T);
  }
};

// Bytes of scores a block of queries may fill: half of a core's second cache on small machines.
static constexpr int64_t kScoreBytes = int64_t(1) << 18;

static int64_t block_of(int64_t queries, int64_t keys, Storage storage) {
  const int64_t fit = kScoreBytes / (keys * (storage == Storage::float64 ? 8 : 4));
  return std::min(queries, std::clamp<int64_t>(fit / 6 * 6, 6, 48));
}

// Whole heads where there are enough of them: their keys are then packed once.
static int64_t blocks_a_turn(const AttentionJob& job) {
  if (job.heads >= 4 * job.threads && !job.few()) return job.blocks_a_head();
  return std::max<int64_t>(1, job.blocks() / (4 * job.threads));
}

// Multiplications below which a second thread costs more than it saves.
static constexpr int64_t kSmallWork = 64 * kChunkEntries / 4;

static Found attention(int storage, int threads, int weigh, double temperature, double scale, std::vector<int64_t> sizes, Walk q, Walk k, Walk v,
                       double radius, uintptr_t radii, bool causal, int rule, bool additive, Walk mask,
                       int64_t mask_key, double dropout, uint64_t seed, uintptr_t out, uintptr_t radius_out,
                       uintptr_t mean_out, uintptr_t count_out, uintptr_t support_sizes) {
  AttentionJob job{};
  Attention shared;
  shared.fill(job, storage, threads, weigh, scale, sizes, q, k, v, radius, radii);
  job.causal = causal, job.rule = Rule(rule), job.dropout = dropout, job.seed = seed, job.pairs = has_pairs();
  job.temperature = temperature;
  const std::vector<int64_t> mask_at = offsets(mask);
  if (!mask.empty()) {
    if (additive) job.bias = at<void>(uintptr_t(mask[0]));
    else job.mask = at<uint8_t>(uintptr_t(mask[0]));
    job.mask_at = mask_at.data(), job.mask_row = mask[1], job.mask_key = mask_key;
  }
  job.block = block_of(job.queries, job.keys, job.storage);
  job.out = at<void>(out), job.sizes = at<int64_t>(support_sizes);
  job.radius_out = at<double>(radius_out), job.mean_out = at<double>(mean_out), job.count_out = at<double>(count_out);
  Found found{job.storage, std::vector<Piece>(support_sizes ? job.blocks() : 0)};
  job.pieces = support_sizes ? found.pieces.data() : nullptr;
  const Released released;
  const bool small = job.heads * job.queries * job.keys * job.width < kSmallWork;
  parallel(job.blocks(), blocks_a_turn(job), small ? 1 : threads,
           [&](int64_t begin, int64_t end) { engine->attention(job, begin, end); });
  return found;
}

static void attention_vjp(int storage, int threads, int weigh, double scale, std::vector<int64_t> sizes, Walk q, Walk k, Walk v,
                          double radius, uintptr_t radii, double keep, uintptr_t indptr, uintptr_t index,
                          uintptr_t value, uintptr_t out_grad, uintptr_t value_grad, uintptr_t slopes,
                          uintptr_t q_grad, uintptr_t k_grad, uintptr_t v_grad, uintptr_t radius_grad) {
  AttentionVjpJob job{};
  Attention shared;
  shared.fill(job, storage, threads, weigh, scale, sizes, q, k, v, radius, radii);
  job.keep = keep, job.indptr = at<int64_t>(indptr), job.index = at<int32_t>(index), job.value = at<void>(value);
  job.out_grad = at<void>(out_grad), job.value_grad = at<void>(value_grad), job.slopes = at<void>(slopes);
  job.q_grad = at<void>(q_grad), job.k_grad = at<void>(k_grad), job.v_grad = at<void>(v_grad);
  job.radius_grad = at<double>(radius_grad);
  const int64_t rows = job.heads * job.queries, heads = job.heads / job.group;
  job.ranges = heads >= 4 * threads ? 1 : std::min<int64_t>(job.keys, (4 * threads + heads - 1) / heads);
  const Released released;
  const int64_t work = job.indptr[rows] * (job.width + job.value_width);
  const int many = work < 4 * kChunkEntries ? 1 : threads;
  parallel(rows, std::max<int64_t>(1, rows / (8 * threads)), many,
           [&](int64_t begin, int64_t end) { engine->attention_vjp_rows(job, begin, end); });
  parallel(heads * job.ranges, 1, many,
           [&](int64_t begin, int64_t end) { engine->attention_vjp_keys(job, begin, end); });
}

static void use_engine(const std::string& name) {
  for (const Engine* found : engines())
    if (name == found->name) {
      engine = found;
      return;
    }
  throw nb::value_error(("this machine has no engine '" + name + "'").c_str());
}

NB_MODULE(_core, m) {
  past_caches = past_is_faster(), foresees = is_foresighted();
  m.def("project", &project);
  m.def("project_strided", &project_strided);
  m.def("project_vjp", &project_vjp);
  m.attr("CHUNK") = kChunkEntries;
  m.attr("STREAM_FROM") = kStreamFrom;
  m.def("project_words", &project_words);
  m.def("project_vjp_rows", &project_vjp_rows);
  m.def("project_vjp_words", &project_vjp_words);
  m.def("map", &map);
  m.def("map_vjp", &map_vjp);
  m.def("know_torch", &know_torch);
  m.def("idle", [] { return idle() || (PyErr_Clear(), false); });
  m.def("tensor_number", &tensor_number, nb::arg().none());
  m.def("tensor_map", &tensor_map, nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
  define<quick_map, 4>(m, "quick_map");
  define<quick_module, 2>(m, "quick_module");
  m.def("know_forward", [](nb::object forward) { torch.forward = forward.release().ptr(); });
  m.def("tensor_map_vjp", &tensor_map_vjp, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
        nb::arg(), nb::arg(), nb::arg().none());
  m.def("tensor_project_vjp", &tensor_project_vjp, nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
  m.def("row_means", &row_means);
  m.def("hinge", &hinge);
  nb::class_<Dual>(m, "Dual")
      .def(nb::init<std::vector<int64_t>, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                    uintptr_t, double, double, uintptr_t>())
      .def("pass_over", &Dual::pass)
      .def("values", &Dual::values)
      .def("weights", &Dual::weights)
      .def("entries", &Dual::entries);
  nb::class_<Found>(m, "Found").def("size", &Found::size).def("move_to", &Found::move_to);
  m.def("attention", &attention);
  m.def("attention_vjp", &attention_vjp);
  m.def("borrow_openmp", [](uintptr_t entry) { borrowed() = reinterpret_cast<OpenMP>(entry); });
  m.def("engines", [] {
    std::vector<std::string> names;
    for (const Engine* found : engines()) names.emplace_back(found->name);
    return names;
  });
  m.def("engine_address", [] { return reinterpret_cast<uintptr_t>(&engine); });  // for the handlers of jax_ffi.cpp
  m.def("engine", [] { return std::string(engine->name); });
  m.def("use_engine", &use_engine);
  m.def("past_caches", [] { return past_caches; });
  m.def("write_past_caches", [](bool past) { past_caches = past; });
  m.def("foresees", [] { return foresees; });
  m.def("expect_to_foresee", [](bool does) { foresees = does; });
}

}  // namespace sparsegen
