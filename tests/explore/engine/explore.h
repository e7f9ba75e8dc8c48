// Exploring one program: executions until all have been tried, or the bounds are reached, or something is
// wrong. Used by the tests and the program.
#pragma once
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "tests/explore/engine/machine.h"

namespace explore {

struct Bounds {
  std::uint64_t executions = 1'000'000;
  std::chrono::milliseconds time{60'000};
};

struct Findings {
  std::uint64_t executions = 0;  ///< that were brought to their end
  std::uint64_t redundant = 0;   ///< given up, as others stand for them
  std::uint64_t steps = 0, missed_wakes = 0;
  bool complete = false;  ///< all executions have been tried
  double seconds = 0;
  std::string violation;                          ///< empty: none
  Plan again;                                     ///< repeats the execution that violates
  std::map<std::string, std::uint64_t> outcomes;  ///< of Program::outcome(), and how often
};

/// Stops at the first violation.
Findings explore(Program&, const Plan&, const Bounds&, const Fault* = nullptr);
/// The execution that `again` repeats, step by step, with the places in the source.
std::string trace(Program&, const Plan& again, const Fault* = nullptr);
/// Atomic operations of a program that some executions come to.
SiteList survey(Program&, const Plan&, const Bounds&);
/// "file:line (function)" of an address in this program, as addr2line says.
std::string source_of(const void* site);
/// A plan that repeats as text, and back.
std::string text(const Plan& again);
Plan plan_of(const std::string& text);

}  // namespace explore
