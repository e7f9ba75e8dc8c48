// No faults: the library as it is. See planted.h.
#include "tests/simulate/planted.h"

namespace simulate {
const std::vector<Fault>& faults() {
  static const std::vector<Fault> none;
  return none;
}
}  // namespace simulate
