// Which of the planted faults is in force. Used by the program and by the copies of the library's sources
// that have faults (plant.py).
#pragma once
#include <string_view>
#include <vector>

namespace simulate {

inline int planted = 0;  ///< 0: none, else from 1
/// What each is; empty in the program that links the library as it is.
const std::vector<std::string_view>& faults();

}  // namespace simulate
