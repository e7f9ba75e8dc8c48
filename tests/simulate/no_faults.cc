// No faults: the library as it is. See planted.h.
#include "tests/simulate/planted.h"

namespace simulate {
const std::vector<std::string_view>& faults() {
  static const std::vector<std::string_view> none;
  return none;
}
}  // namespace simulate
