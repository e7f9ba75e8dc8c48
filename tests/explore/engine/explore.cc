// Explores one program, and describes executions. See explore.h.
#include "tests/explore/engine/explore.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "tests/explore/engine/operations.h"

namespace explore {

using Steady = std::chrono::steady_clock;

Findings explore(Program& program, const Plan& plan, const Bounds& bounds, const Fault* fault) {
  Findings found;
  Search search(plan);
  Machine& machine = Machine::the();
  const auto start = Steady::now();
  for (std::uint64_t i = 1; search.begin(); ++i) {
    const End end = machine.run(program, search, fault, false);
    found.steps += machine.steps();
    found.missed_wakes += static_cast<std::uint64_t>(machine.missed_wakes());
    ++(end == End::redundant ? found.redundant : found.executions);
    if (end == End::violation) {
      found.violation = machine.violation();
      found.again = {.kind = Plan::Kind::repeat, .was_random = plan.kind == Plan::Kind::random};
      found.again.choices.assign(search.path().begin(), search.path().end());
      break;
    }
    if (end == End::well)
      if (std::string s = program.outcome(); !s.empty()) ++found.outcomes[s];
    if (found.executions >= bounds.executions) break;
    if (i % 256 == 0 && Steady::now() - start > bounds.time) break;
  }
  found.complete = search.complete();
  found.seconds = std::chrono::duration<double>(Steady::now() - start).count();
  return found;
}

std::string trace(Program& program, const Plan& again, const Fault* fault) {
  Search search(again);
  search.begin();
  Machine& machine = Machine::the();
  machine.run(program, search, fault, true);
  std::ostringstream out;
  for (const Event& e : machine.events()) {
    out << "  fiber " << e.fiber << "  " << e.what << ' ' << e.where;
    if (e.order != Order::relaxed) out << " (" << name(e.order) << ')';
    if (e.site) out << " = " << e.value;
    if (e.old) out << ", which is not the newest";
    if (e.site) out << "    " << source_of(e.site);
    out << '\n';
  }
  out << "  " << (machine.violation().empty() ? "ends well" : machine.violation()) << '\n';
  return out.str();
}

SiteList survey(Program& program, const Plan& plan, const Bounds& bounds) {
  SiteList sites;
  Operations::the().survey = &sites;
  (void)explore(program, plan, bounds);
  Operations::the().survey = nullptr;
  return sites;
}

std::string source_of(const void* site) {
  static std::map<const void*, std::string> known;
  std::string& text = known[site];
  if (!text.empty() || !site) return text;
  char self[512] = {}, command[700], line[512];
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return text;
  // Minus one, because the site is a return address. addr2line prints the innermost function first.
  std::snprintf(command, sizeof command, "addr2line -e '%s' -ifC 0x%zx 2>/dev/null", self,
                reinterpret_cast<std::size_t>(site) - 1);
  std::FILE* const pipe = popen(command, "r");
  if (!pipe) return text;
  // Lines alternate between functions and places; those of the standard library are skipped.
  std::string function;
  for (bool place = false; std::fgets(line, sizeof line, pipe); place = !place) {
    std::string s(line);
    while (!s.empty() && s.back() == '\n') s.pop_back();
    if (!place) {
      function = s.substr(0, s.find('('));
      continue;
    }
    if (s.find("/include/c++/") != std::string::npos) continue;
    for (const char* root : {"/runtime/", "/transport/", "/kernels/", "/tests/"})
      if (const auto at = s.rfind(root); at != std::string::npos) s = s.substr(at + 1);
    if (const auto at = s.find(" (disc"); at != std::string::npos) s.resize(at);
    text += (text.empty() ? "" : " < ") + function + " " + s;
    if (text.size() > 160) break;
  }
  pclose(pipe);
  return text;
}

std::string text(const Plan& again) {
  std::string s = again.was_random ? "random" : "tried";
  for (const std::uint16_t c : again.choices) s += '.' + std::to_string(c);
  return s;
}

Plan plan_of(const std::string& text) {
  Plan again{.kind = Plan::Kind::repeat};
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, '.');)
    if (part == "random")
      again.was_random = true;
    else if (part != "tried")
      again.choices.push_back(static_cast<std::uint16_t>(std::strtoul(part.c_str(), nullptr, 10)));
  return again;
}

}  // namespace explore
