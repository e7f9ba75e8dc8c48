// Calls that the linker leads here (--wrap) and back: `OURO_REAL(f)` is what the system has by the name of f.
// Used by the files of calls. What is called outside of fibers, or about what is not simulated, goes there.
#pragma once
#include <cerrno>

#include "tests/simulate/os/network.h"

#define OURO_REAL(returns, name, ...) extern "C" returns __real_##name(__VA_ARGS__)

namespace simulate {

/// As calls of the system tell of failures: a negative result becomes errno.
template <class T>
T told(T result) {
  if (result >= 0) return result;
  errno = static_cast<int>(-result);
  return -1;
}

}  // namespace simulate
