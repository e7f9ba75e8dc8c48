// Calls that the linker redirects here (--wrap), and the way back: `OURO_REAL(f)` is the system's function
// f. Used by the files of calls. Calls outside of fibers, or about objects that are not simulated, go to
// the system.
#pragma once
#include <cerrno>

#include "tests/simulate/os/network.h"

#define OURO_REAL(returns, name, ...) extern "C" returns __real_##name(__VA_ARGS__)

namespace simulate {

/// Reports failures as system calls do: a negative result becomes errno.
template <class T>
T told(T result) {
  if (result >= 0) return result;
  errno = static_cast<int>(-result);
  return -1;
}

}  // namespace simulate
