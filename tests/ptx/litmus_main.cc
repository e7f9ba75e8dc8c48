// Enumerates all litmus shapes and prints what each allows. Used by tools/gate litmus.
#include <algorithm>
#include <cstdio>

#include "tests/ptx/litmus.h"

using namespace ptx::litmus;

int main() {
  std::uint64_t executions = 0;
  std::size_t planted = 0, failures = 0;
  for (const Shape& s : shapes()) {
    const Verdict v = judge(s);
    executions += v.model.executions + v.made.executions;
    std::printf("%s: %s\n", s.name, s.stands_for);
    std::printf("  %llu executions by the axioms, %llu by the interpreter\n",
                static_cast<unsigned long long>(v.model.executions),
                static_cast<unsigned long long>(v.made.executions));
    for (const std::string& o : v.model.outcomes) {
      const bool named =
          std::any_of(s.may.begin(), s.may.end(), [&](const std::string& may) { return matches(o, may); });
      std::printf("  may     %s%s%s\n", o.c_str(), named ? " (as the shape says)" : "",
                  v.made.outcomes.contains(o) ? "" : " (not made by the interpreter)");
    }
    for (const std::string& never : s.never) std::printf("  relies  never %s\n", never.c_str());
    for (const Weaker& w : v.weaker)
      std::printf("  weaker  %s: %s; by the interpreter: %s\n", w.what, w.by_axioms.c_str(),
                  w.by_interpreter.empty() ? "not made" : w.by_interpreter.c_str());
    for (const std::string& f : v.failures) std::printf("  FAILED  %s\n", f.c_str());
    planted += s.weakenings.size();
    failures += v.failures.size();
  }
  std::printf("%zu shapes, %llu executions, %zu weakenings, %zu failures\n", shapes().size(),
              static_cast<unsigned long long>(executions), planted, failures);
  return failures == 0 ? 0 : 1;
}
