// Litmus tests: a few atomic operations whose outcomes the standard settles. They test the engine.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "tests/explore/engine/program.h"

namespace explore {

/// A program of two to four threads, and all outcomes that it may have, or what is wrong with it.
struct Litmus {
  const char* name;
  Program* program;
  std::set<std::string> outcomes;
  std::string violation = {};  ///< part of it
};
std::vector<Litmus> litmus_tests();

}  // namespace explore
