// Explores one program: runs executions until all have been tried, the bounds are reached, or a violation is
// found. Used by the tests and the program.
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
  std::uint64_t executions = 0;  ///< that ran to their end
  std::uint64_t redundant = 0;   ///< abandoned, because others represent them
  std::uint64_t steps = 0, missed_wakes = 0;
  bool complete = false;  ///< all executions have been tried
  double seconds = 0;
  std::string violation;  ///< empty: none was found
  Plan again;             ///< repeats the execution with the violation
  /// Program::outcome(), with the number of times each occurred.
  std::map<std::string, std::uint64_t> outcomes;
};

/// Stops at the first violation.
Findings explore(Program&, const Plan&, const Bounds&, const Fault* = nullptr);
/// Repeats the execution `again` and describes it step by step, with the places in the source.
std::string trace(Program&, const Plan& again, const Fault* = nullptr);
/// The atomic operations of a program that some executions reach.
SiteList survey(Program&, const Plan&, const Bounds&);
/// "file:line (function)" of an address in this program, as addr2line says.
std::string source_of(const void* site);
/// Converts a plan that repeats an execution to text, and back.
std::string text(const Plan& again);
Plan plan_of(const std::string& text);

}  // namespace explore
