// Litmus tests: a few atomic operations whose outcomes the standard defines. They test the engine.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "tests/explore/engine/program.h"

namespace explore {

/// A program of two to four threads, and all its allowed outcomes, or the expected violation.
struct Litmus {
  const char* name;
  Program* program;
  std::set<std::string> outcomes;
  std::string violation = {};  ///< a part of its text
};
std::vector<Litmus> litmus_tests();

}  // namespace explore
