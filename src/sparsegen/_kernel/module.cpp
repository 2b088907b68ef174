// Python's view of the kernel: addresses and sizes in, rows written. The front ends own every check.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "job.hpp"
#include "threads.hpp"

namespace nb = nanobind;

namespace sparsegen {

extern const Engine engine_plain;
#if defined(SPARSEGEN_X86)
extern const Engine engine_avx2, engine_avx512;
#endif

static std::vector<const Engine*> engines() {
  std::vector<const Engine*> found{&engine_plain};
#if defined(SPARSEGEN_X86)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    found.push_back(&engine_avx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    found.push_back(&engine_avx512);
#endif
  return found;
}

static const Engine* engine = engines().back();

// Below this many entries a second thread costs more than it saves; a chunk is about that large.
static constexpr int64_t kChunkEntries = 16384;

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
static void expect_writes(const MeanJob&) {}
static void expect_writes(const HingeJob&) {}

// How many rows a thread takes at a time: about a chunk of long ones; of short ones whole groups of 16, so that lanes are
// full, and no more turns than four a thread.
static int64_t rows_a_turn(const Job& job) {
  const int64_t fit = kChunkEntries / job.K;
  if (fit < 16) return std::max<int64_t>(1, fit);
  return (std::max(fit, job.rows() / (4 * job.threads)) + 15) / 16 * 16;
}

template <class J>
static void run(const J& job, void (*work)(const J&, int64_t, int64_t)) {
  const int64_t rows = job.rows(), entries = rows * job.K;
  if (entries < kChunkEntries) return work(job, 0, rows);
  nb::gil_scoped_release released;
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

static void project_mean(uintptr_t x, uintptr_t p, int storage, int64_t outer, int64_t K, int64_t inner,
                         int64_t x_outer, int64_t x_entry, int64_t x_inner, int rule, double q, uintptr_t q_rows,
                         uintptr_t mask, uintptr_t mask_row, uintptr_t radius, uintptr_t mean, uintptr_t count,
                         int threads) {
  const double* qs = q_rows ? at<double>(q_rows) : &q;
  ProjectJob job{{Storage(storage), outer, K, inner, qs, q_rows != 0, threads},
                 at<void>(x), {x_outer, x_entry, x_inner}, at<void>(p), {K * inner, inner, 1},
                 at<uint8_t>(mask), at<int64_t>(mask_row), nullptr, nullptr,
                 Rule(rule), at<double>(radius), at<double>(mean), at<double>(count)};
  run(job, engine->project);
}

static void project_vjp(uintptr_t p, uintptr_t v, uintptr_t grad_x, int storage, int64_t outer, int64_t K,
                        int64_t inner, uintptr_t radius, bool radius_per_row, uintptr_t grad_radius, int threads) {
  VjpJob job{{Storage(storage), outer, K, inner, at<double>(radius), radius_per_row, threads},
             at<void>(p), at<void>(v), at<void>(grad_x), {K * inner, inner, 1}, at<double>(grad_radius)};
  run(job, engine->vjp);
}

static void project_vjp_rows(uintptr_t p, uintptr_t v, uintptr_t grad_x, int storage, int64_t rows, int64_t K,
                             double radius, int threads) {
  VjpJob job{{Storage(storage), rows, K, 1, &radius, false, threads},
             at<void>(p), at<void>(v), at<void>(grad_x), {K, 1, 0}, nullptr};
  run(job, engine->vjp);
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

static void use_engine(const std::string& name) {
  for (const Engine* found : engines())
    if (name == found->name) {
      engine = found;
      return;
    }
  throw nb::value_error(("this machine has no engine '" + name + "'").c_str());
}

NB_MODULE(_core, m) {
  m.def("project", &project);
  m.def("project_strided", &project_strided);
  m.def("project_mean", &project_mean);
  m.def("project_vjp", &project_vjp);
  m.def("project_vjp_rows", &project_vjp_rows);
  m.def("row_means", &row_means);
  m.def("hinge", &hinge);
  m.def("borrow_openmp", [](uintptr_t entry) { borrowed() = reinterpret_cast<OpenMP>(entry); });
  m.def("engines", [] {
    std::vector<std::string> names;
    for (const Engine* found : engines()) names.emplace_back(found->name);
    return names;
  });
  m.def("engine", [] { return std::string(engine->name); });
  m.def("use_engine", &use_engine);
}

}  // namespace sparsegen
