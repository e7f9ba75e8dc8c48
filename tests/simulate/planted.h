// Selects which of the planted faults is in force. Used by the program and by the copies of the library's
// sources that have faults (plant.py).
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace simulate {

inline int planted = 0;  ///< 0: none, else the number of the fault, from 1
struct Fault {
  std::string_view what;
  std::uint64_t seed;  ///< the seed that found it, which is tried first
};
/// Empty in the program that links the library as it is.
const std::vector<Fault>& faults();

}  // namespace simulate
