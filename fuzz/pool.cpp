// The threads: every row once, callers beside each other, and a failure of any thread told to the caller.
#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "families.hpp"

namespace fuzz {

// Set, it makes the next allocation of any thread but the one that set it fail.
static std::atomic<int> allocations_to_fail{0};
static thread_local bool spared = false;

}  // namespace fuzz

static void* allocate(size_t n) {
  using namespace fuzz;
  if (!spared && allocations_to_fail.load(std::memory_order_relaxed) > 0 && allocations_to_fail.fetch_sub(1) > 0) throw std::bad_alloc();
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}

void* operator new(size_t n) { return allocate(n); }
void* operator new[](size_t n) { return allocate(n); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }

namespace fuzz {
namespace {

using sparsegen::parallel;

struct PoolCase {
  enum Kind { once, beside, throws, scratch, count } kind = once;
  int64_t total = 1, chunk = 1, bad = 0;
  int threads = 2, callers = 2;
};

std::string each_once(const PoolCase& c) {
  std::vector<std::atomic<int>> seen(static_cast<size_t>(c.total));
  parallel(c.total, c.chunk, c.threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) seen[size_t(i)].fetch_add(1);
  });
  for (int64_t i = 0; i < c.total; ++i)
    if (seen[size_t(i)] != 1) return text("row ", i, " of ", c.total, " was worked ", seen[size_t(i)].load(), " times");
  return "";
}

std::string callers_beside_each_other(const PoolCase& c) {
  std::vector<std::string> what(static_cast<size_t>(c.callers));
  std::vector<std::thread> callers;
  for (int i = 0; i < c.callers; ++i) callers.emplace_back([&, i] { what[size_t(i)] = each_once(c); });
  for (std::thread& caller : callers) caller.join();
  for (const std::string& one : what)
    if (!one.empty()) return one;
  return "";
}

// Whoever meets the row that fails, the caller gets the exception, and the threads go on to work.
std::string failure_reaches_the_caller(const PoolCase& c) {
  bool caught = false;
  try {
    parallel(c.total, c.chunk, c.threads, [&](int64_t begin, int64_t end) {
      if (begin <= c.bad && c.bad < end) throw std::bad_alloc();
    });
  } catch (const std::bad_alloc&) {
    caught = true;
  }
  return caught ? each_once(c) : "a failure was lost";
}

// The same of the kernel's own memory: a worker that gets none says so, and the next call is right.
std::string scratch_fails(const PoolCase& c, const Engine& engine) {
  const int64_t rows = 6, K = 1100000;  // more than a thread keeps: every call needs new memory
  std::vector<float> x(size_t(rows * K)), p(x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(i % 7) / 8;
  const double radius = 1;
  const sparsegen::ProjectJob job{{Storage::float32, rows, K, 1, &radius, false, c.threads}, x.data(), {K, 1, 0}, p.data(), {K, 1, 0},
                                  nullptr, nullptr, nullptr, nullptr};
  const auto go = [&] { parallel(rows, 1, c.threads, [&](int64_t begin, int64_t end) { engine.project(job, begin, end); }); };
  bool caught = false;
  go();  // the pool has its threads then: starting them wants memory too, and goes on without
  allocations_to_fail = 1;
  try {
    go();
  } catch (const std::bad_alloc&) {
    caught = true;
  }
  allocations_to_fail = 0;
  if (!caught) return "the kernel wanted no memory, or did not say that there was none";
  go();
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (int64_t k = 0; k < K; ++k) sum += p[size_t(row * K + k)];
    if (std::fabs(sum - 1) > 1e-5) return text("row ", row, " sums to ", sum, " after a failure");
  }
  return "";
}

std::string check(const PoolCase& c, const Engine& engine) {
  switch (c.kind) {
    case PoolCase::beside: return callers_beside_each_other(c);
    case PoolCase::throws: return failure_reaches_the_caller(c);
    case PoolCase::scratch: return scratch_fails(c, engine);
    default: return each_once(c);
  }
}

PoolCase make(Random& random) {
  PoolCase c;
  c.kind = random.one_in(50) ? PoolCase::scratch : PoolCase::Kind(random.below(3));
  c.total = random.between(1, 200), c.chunk = random.between(1, 20), c.bad = random.below(c.total);
  c.threads = int(random.between(2, 6)), c.callers = int(random.between(2, 4));
  return c;
}

}  // namespace

void run_pool(const Plan& plan, Report& report) {
  static const Family<PoolCase> family{
      "pool", make, [](const PoolCase&) -> std::string { return "pool"; }, [](const PoolCase&) { return Storage::float32; },
      [](const PoolCase& c) { return c.total; }, check, [](const PoolCase&, const std::function<bool(const PoolCase&)>&) {},
      [](const PoolCase& c, const char*) { return text("# no Python: kind ", int(c.kind), ", ", c.threads, " threads"); }};
  run_family(family, plan, report);
}

}  // namespace fuzz
