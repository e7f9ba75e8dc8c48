// Kernels that the CUDA runtime of the tests can run in place of a program's own: by functions of the host
// that do the same. Used by kernels.cc.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace ouro::test::cudart {

/// What a launch comes to: all of the kernel's work, on one thread of the host.
using Body = std::function<void()>;
/// Reads the arguments of a launch, which are gone when it runs, and says what to do.
using Bind = Body (*)(void** args, const std::vector<std::string>& types);

/// A kernel by the name of its template, as in "prepareInput2", and how many arguments that has.
struct KnownKernel {
  const char* name;
  std::size_t types;
  Bind bind;
};
/// nullptr: it is not known, and cannot be run.
const KnownKernel* known_kernel(const std::string& name);

}  // namespace ouro::test::cudart
