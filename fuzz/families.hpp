// The families of cases, one to a file, and how they are run.
#pragma once

#include "harness.hpp"

namespace fuzz {

struct Plan {
  uint64_t seed = 0;
  std::vector<const Engine*> engines;
  int64_t first = 0, cases = -1;  // the number of the first case, and how many; -1: until the time or the rows are over
  double seconds = -1;
  int64_t rows = -1;  // of each name and engine
  bool forked = false;  // each check in a process of its own
  double shrinking = 10;  // seconds in which a failure is made simpler
  int64_t most_failures = 5;
};

struct Report {
  Counts rows;
  std::vector<std::string> failures;
  int64_t cases = 0;
};

// Where a crash happened, for the handler of signals.
extern char current[256];

// Runs `wrong` in a child, so that a crash is one more way to be wrong.
bool fails_in_child(const std::function<bool()>& wrong);

template <class Case>
void run_family(const Family<Case>& family, const Plan& plan, Report& report) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  std::map<std::string, int64_t> done;
  for (int64_t number = plan.first; plan.cases < 0 || number < plan.first + plan.cases; ++number) {
    const double spent = std::chrono::duration<double>(Clock::now() - start).count();
    if (plan.cases < 0 && plan.seconds >= 0 && spent > plan.seconds) break;
    if (plan.cases < 0 && plan.rows >= 0 && !done.empty()) {
      int64_t fewest = INT64_MAX;
      for (const auto& [label, n] : done) fewest = std::min(fewest, n);
      if (fewest >= plan.rows) break;
    }
    uint64_t stream = 0;
    for (const char* c = family.name; *c; ++c) stream = stream * 31 + uint64_t(*c);
    Random random(plan.seed, stream, uint64_t(number));
    const Case made = family.make(random);
    for (const Engine* engine : plan.engines) {
      std::snprintf(current, sizeof current, "--family %s --engine %s --seed %llu --case %lld", family.name, engine->name,
                    (unsigned long long)plan.seed, (long long)number);
      const auto wrong = [&](const Case& c) {
        const auto check = [&] { return !family.check(c, *engine).empty(); };
        return plan.forked ? fails_in_child(check) : check();
      };
      std::string what;
      if (!plan.forked) what = family.check(made, *engine);
      else if (wrong(made)) what = "a crash, or a wrong answer";
      const std::string label = family.label(made);
      report.rows[text(label, "/", engine->name, "/", name_of(family.storage(made)))] += family.rows(made);
      done[text(label, "/", engine->name)] += family.rows(made);
      if (what.empty()) continue;
      const Case small = shrunk<Case>(family, made, wrong, plan.shrinking);
      const std::string now = plan.forked ? what : family.check(small, *engine);
      report.failures.push_back(text(label, " is wrong: ", now.empty() ? what : now, "\n  again: ", current,
                                     "\n  Python: ", family.python(small, engine->name)));
      std::printf("%s\n", report.failures.back().c_str());
      std::fflush(stdout);
      if (int64_t(report.failures.size()) >= plan.most_failures) return;
    }
    ++report.cases;
  }
}

void run_project(const Plan& plan, Report& report);
void run_vjp(const Plan& plan, Report& report);
void run_maps(const Plan& plan, Report& report);
void run_means(const Plan& plan, Report& report);
void run_hinge(const Plan& plan, Report& report);
void run_attention(const Plan& plan, Report& report);
void run_pool(const Plan& plan, Report& report);

}  // namespace fuzz
