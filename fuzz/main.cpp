// The kernel without Python, against other algorithms. See --help.
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sys/wait.h>
#include <unistd.h>

#include "families.hpp"

#if defined(__x86_64__)
#define SPARSEGEN_X86
#endif

namespace sparsegen {
extern const Engine engine_plain;
#if defined(SPARSEGEN_X86)
extern const Engine engine_avx2, engine_avx512;
#endif
}  // namespace sparsegen

namespace fuzz {

char current[256] = "";

bool fails_in_child(const std::function<bool()>& wrong) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) std::signal(signal, SIG_DFL);
    _exit(wrong() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status != 0;
}

namespace {

const char* const kHelp =
    "kernel [options]: random rows through the kernel, each answer checked by another algorithm\n"
    "  --family NAME    project, vjp, maps, means, hinge, attention, pool; all by default\n"
    "  --engine NAME    plain, avx2, avx512; by default all that this machine, or an emulation, can run\n"
    "  --seed N         of the random numbers (0)\n"
    "  --case N         this case only: what a failure printed\n"
    "  --cases N        that many of each family\n"
    "  --seconds S      in all (60)\n"
    "  --rows N         stop once each name and engine had so many rows\n"
    "  --threads N      as many for every case\n"
    "  --failures N     stop after so many (5)\n"
    "  --shrinking S    seconds in which a failing case is made simpler (10); 0 leaves it as it was found\n"
    "  --fork           each check in a process of its own: shrinks a case that crashes\n"
    "  --sabotage       break the engines: every family must notice\n"
    "  --json           counts as JSON, on the last line\n"
    "  --engines        print the engines that can run, and stop\n";

using Run = void (*)(const Plan&, Report&);
const std::pair<const char*, Run> kFamilies[] = {
    {"project", run_project}, {"vjp", run_vjp},     {"maps", run_maps},           {"means", run_means},
    {"hinge", run_hinge},     {"attention", run_attention}, {"pool", run_pool}};

// Engines that do as the others do, and then spoil the first number they wrote.
const Engine* honest = nullptr;

void spoil(void* at, Storage s) { put(at, s, 0.5 + get(at, s) / 4); }

Engine sabotaged(const Engine& engine) {
  using namespace sparsegen;
  honest = &engine;
  Engine e = engine;
  e.project = [](const ProjectJob& job, int64_t begin, int64_t end) {
    honest->project(job, begin, end);
    if (begin == 0) spoil(job.p, job.storage);
  };
  e.vjp = [](const VjpJob& job, int64_t begin, int64_t end) {
    honest->vjp(job, begin, end);
    if (begin == 0) spoil(job.grad_x, job.storage);
  };
  e.map = [](const MapJob& job, int64_t begin, int64_t end) {
    honest->map(job, begin, end);
    if (begin == 0) spoil(job.p, job.storage);
  };
  e.map_vjp = [](const MapVjpJob& job, int64_t begin, int64_t end) {
    honest->map_vjp(job, begin, end);
    if (begin == 0) spoil(job.grad, job.storage);
  };
  e.means = [](const MeanJob& job, int64_t begin, int64_t end) {
    honest->means(job, begin, end);
    spoil(job.mean + begin, Storage::float64);
  };
  e.hinge = [](const HingeJob& job, int64_t begin, int64_t end) {
    honest->hinge(job, begin, end);
    spoil(job.value + begin, Storage::float64);
  };
  e.attention = [](const AttentionJob& job, int64_t begin, int64_t end) {
    honest->attention(job, begin, end);
    if (begin == 0) spoil(job.out, job.storage);
  };
  return e;
}

std::vector<const Engine*> engines() {
  std::vector<const Engine*> found{&sparsegen::engine_plain};
#if defined(SPARSEGEN_X86)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    found.push_back(&sparsegen::engine_avx2);
#if defined(SPARSEGEN_EMULATED)
  const bool wide = found.size() == 2;  // the emulation is compiled for AVX2
#else
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#endif
  if (wide) found.push_back(&sparsegen::engine_avx512);
#endif
  return found;
}

void say_where(int signal) {
  const char* parts[] = {"\ncrashed in ", current, "\n  shrink it: the same with --fork\n"};
  for (const char* part : parts)
    if (write(2, part, std::strlen(part)) < 0) break;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

std::string quoted(const std::string& s) {
  std::string out = "\"";
  for (char c : s) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out + "\"";
}

void print(const Report& report, bool json) {
  if (json) {
    std::string rows, failures;
    for (const auto& [name, n] : report.rows) rows += text(rows.empty() ? "" : ", ", quoted(name), ": ", n);
    for (const auto& what : report.failures) failures += text(failures.empty() ? "" : ", ", quoted(what));
    std::cout << "{\"rows\": {" << rows << "}, \"failures\": [" << failures << "]}" << std::endl;
    return;
  }
  for (const auto& [name, n] : report.rows) std::printf("%-44s %12lld rows\n", name.c_str(), (long long)n);
  std::printf("%zu failures\n", report.failures.size());
}

int run_all(int argc, char** argv) {
  Plan plan;
  std::string family, engine;
  bool json = false, sabotage = false;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const auto value = [&] { return i + 1 < argc ? argv[++i] : ""; };
    if (option == "--family") family = value();
    else if (option == "--engine") engine = value();
    else if (option == "--seed") plan.seed = std::strtoull(value(), nullptr, 10);
    else if (option == "--case") plan.first = std::atoll(value()), plan.cases = 1;
    else if (option == "--cases") plan.cases = std::atoll(value());
    else if (option == "--seconds") plan.seconds = std::atof(value());
    else if (option == "--rows") plan.rows = std::atoll(value());
    else if (option == "--threads") forced_threads = std::atoi(value());
    else if (option == "--failures") plan.most_failures = std::atoll(value());
    else if (option == "--shrinking") plan.shrinking = std::atof(value());
    else if (option == "--fork") plan.forked = true;
    else if (option == "--sabotage") sabotage = true;
    else if (option == "--json") json = true;
    else if (option == "--engines") {
      for (const Engine* found : engines()) std::printf("%s\n", found->name);
      return 0;
    } else {
      std::cerr << kHelp;
      return option == "--help" ? 0 : 2;
    }
  }
  if (plan.cases < 0 && plan.seconds < 0 && plan.rows < 0) plan.seconds = 60;
  for (const Engine* found : engines())
    if (engine.empty() || engine == found->name) plan.engines.push_back(found);
  if (plan.engines.empty()) return std::cerr << "this machine has no engine '" << engine << "'\n", 2;
  const Engine broken = sabotaged(*plan.engines[0]);
  if (sabotage) plan.engines = {&broken};
  for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) std::signal(signal, say_where);
  if (family.empty()) plan.seconds /= double(std::size(kFamilies));
  Report report;
  bool known = false;
  for (const auto& [name, run] : kFamilies)
    if (family.empty() || family == name) known = true, run(plan, report);
  if (!known) return std::cerr << "there is no family '" << family << "'\n", 2;
  print(report, json);
  return report.failures.empty() ? 0 : 1;
}

}  // namespace
}  // namespace fuzz

int main(int argc, char** argv) { return fuzz::run_all(argc, argv); }
