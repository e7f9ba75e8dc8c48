// The empty list of faults, for the unmodified library. See planted.h.
#include "tests/simulate/planted.h"

namespace simulate {
const std::vector<Fault>& faults() {
  static const std::vector<Fault> none;
  return none;
}
}  // namespace simulate
