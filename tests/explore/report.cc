// Runs searches, and prints tables of their results. See report.h.
#include "tests/explore/report.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <string_view>

#include "tests/explore/engine/explore.h"
#include "tests/explore/litmus.h"
#include "tests/explore/protocols/protocols.h"

namespace explore {
namespace {

constexpr std::uint64_t kForFault = 250'000;  // executions within which one kind of search must find a fault
constexpr std::chrono::hours kNoLimit{24};

const char* name_of(Plan::Kind kind) {
  return kind == Plan::Kind::reduced ? "reduced" : kind == Plan::Kind::all ? "all" : "random";
}

const Protocol* find(const std::vector<Protocol>& all, const std::string& name) {
  for (const Protocol& p : all)
    if (p.name == name) return &p;
  std::fprintf(stderr, "explore: there is no protocol %s; see explore list\n", name.c_str());
  return nullptr;
}

void tell_violation(const Protocol& p, const Findings& f, const Fault* fault, int number) {
  std::printf("%s: %s\n%s  again: explore repeat %s %s", p.name, f.violation.c_str(),
              trace(*p.program, f.again, fault).c_str(), p.name, text(f.again).c_str());
  if (fault) std::printf(" --fault %d", number);
  std::printf("\n");
}

/// Whether a search of this kind finds the fault, and repeating the execution shows it again.
bool finds(const Protocol& p, const Fault& fault, Plan::Kind kind, std::uint64_t executions) {
  const Findings f = explore(*p.program, {.kind = kind, .seed = fault.seed}, {executions, kNoLimit}, &fault);
  return !f.violation.empty() && trace(*p.program, f.again, &fault).ends_with("  " + f.violation + "\n");
}

}  // namespace

int run_litmus() {
  bool right = true;
  std::printf("%-66s %8s %8s\n", "litmus test", "all", "reduced");
  for (const Litmus& l : litmus_tests()) {
    std::uint64_t executions[3] = {};
    std::string wrong;
    for (const Plan::Kind kind : {Plan::Kind::all, Plan::Kind::reduced, Plan::Kind::random}) {
      const bool random = kind == Plan::Kind::random;
      const Findings f = explore(*l.program, {.kind = kind}, {random ? 20'000u : 10'000'000u, kNoLimit});
      executions[static_cast<int>(kind == Plan::Kind::all ? 0 : random ? 2 : 1)] = f.executions;
      if (!l.violation.empty()) {
        if (f.violation.find(l.violation) == std::string::npos)
          wrong += std::string(" ") + name_of(kind) + " misses that it " + l.violation + ",";
        continue;
      }
      std::set<std::string> seen;
      for (const auto& [outcome, often] : f.outcomes) {
        seen.insert(outcome);
        if (!l.outcomes.contains(outcome))
          wrong += std::string(" ") + name_of(kind) + " shows " + outcome + ",";
      }
      for (const std::string& outcome : l.outcomes)
        if (!seen.contains(outcome)) wrong += std::string(" ") + name_of(kind) + " misses " + outcome + ",";
      if (!random && !f.complete) wrong += std::string(" ") + name_of(kind) + " does not end,";
      if (!f.violation.empty()) wrong += " " + f.violation + ",";
    }
    std::printf("%-66s %8llu %8llu  %zu outcomes%s\n", l.name, static_cast<unsigned long long>(executions[0]),
                static_cast<unsigned long long>(executions[1]), l.outcomes.size(),
                wrong.empty() ? l.violation.empty() ? "" : ", a violation" : (", WRONG:" + wrong).c_str());
    right &= wrong.empty();
  }
  return right ? 0 : 1;
}

int run_protocols(const Settings& s) {
  bool right = true;
  const std::vector<Protocol> all = protocols();
  std::vector<const Protocol*> chosen;
  for (const Protocol& p : all)
    if (std::string_view(p.name).starts_with(s.only)) chosen.push_back(&p);
  if (chosen.empty()) {
    std::fprintf(stderr, "explore: no protocol begins with %s; see explore list\n", s.only.c_str());
    return 2;
  }
  std::printf("%-22s %12s %12s %-11s %12s %10s %8s %6s %8s %8s\n", "protocol", "executions", "redundant",
              "exhaustive", "random", "missed", "seconds", "faults", "reduced", "random");
  std::uint64_t total = 0;
  for (const Protocol* p : chosen) {
    Findings tried;
    if (!s.random_only) tried = explore(*p->program, {.kind = Plan::Kind::reduced}, {s.executions, kNoLimit});
    Findings drawn;
    if (tried.violation.empty()) {
      Bounds bounds{s.executions, kNoLimit};
      if (s.minutes > 0)
        bounds = {~std::uint64_t{0}, std::chrono::milliseconds(s.minutes * 60'000 / chosen.size())};
      drawn = explore(*p->program, {.kind = Plan::Kind::random, .seed = s.seed}, bounds);
    }
    std::size_t found = 0, by_reduced = 0, by_random = 0;
    std::string missed;
    for (std::size_t i = 0; i < p->faults.size() && !s.random_only; ++i) {
      // A fault that one search has found does not need the other, which then ends where the caller says.
      const bool random = finds(*p, p->faults[i], Plan::Kind::random, kForFault);
      const std::uint64_t rest = random ? std::min(s.executions, kForFault) : kForFault;
      const bool reduced = finds(*p, p->faults[i], Plan::Kind::reduced, rest);
      by_reduced += reduced, by_random += random, found += reduced || random;
      if (!reduced && !random) missed += std::string("  not found: ") + p->faults[i].name + "\n";
    }
    std::printf("%-22s %12llu %12llu %-11s %12llu %10llu %8.1f %4zu/%zu %8zu %8zu\n%s", p->name,
                static_cast<unsigned long long>(tried.executions),
                static_cast<unsigned long long>(tried.redundant),
                s.random_only    ? "-"
                : tried.complete ? "yes"
                                 : "up to here",
                static_cast<unsigned long long>(drawn.executions),
                static_cast<unsigned long long>(tried.missed_wakes + drawn.missed_wakes),
                tried.seconds + drawn.seconds, found, s.random_only ? 0 : p->faults.size(), by_reduced,
                by_random, missed.c_str());
    std::fflush(stdout);
    for (const Findings* f : {&tried, &drawn})
      if (!f->violation.empty()) tell_violation(*p, *f, nullptr, 0), right = false;
    if (p->exhaustive && !s.random_only && !tried.complete && s.executions >= kForFault) {
      std::printf("  not all executions of %s could be tried\n", p->name);
      right = false;
    }
    right &= missed.empty();
    total += tried.executions + drawn.executions;
  }
  std::printf("%llu executions\n", static_cast<unsigned long long>(total));
  return right ? 0 : 1;
}

int list_protocols() {
  for (const Protocol& p : protocols()) {
    std::printf("%s: %s\n", p.name, p.what);
    for (std::size_t i = 0; i < p.faults.size(); ++i)
      std::printf("  fault %zu: %s\n", i + 1, p.faults[i].name);
  }
  return 0;
}

int list_sites(const char* name) {
  const std::vector<Protocol> all = protocols();
  const Protocol* const p = find(all, name);
  if (!p) return 2;
  for (const Site& s : survey(*p->program, {.kind = Plan::Kind::random}, {20'000, kNoLimit})) {
    constexpr const char* kKinds[] = {"load", "store", "change", "sleep", "wake", "fence"};
    std::printf("%-6s %-8s %-18s %s\n", kKinds[static_cast<int>(s.kind)], explore::name(s.order),
                s.label.c_str(), source_of(s.at).c_str());
  }
  return 0;
}

int repeat(const char* name, const char* choices, const Settings& s) {
  const std::vector<Protocol> all = protocols();
  const Protocol* const p = find(all, name);
  if (!p) return 2;
  if (s.fault > p->faults.size()) {
    std::fprintf(stderr, "explore: %s has %zu faults\n", name, p->faults.size());
    return 2;
  }
  const Fault* const fault = s.fault ? &p->faults[s.fault - 1] : nullptr;
  std::fputs(trace(*p->program, plan_of(choices), fault).c_str(), stdout);
  return 0;
}

}  // namespace explore
