// Kernels of programs that the tests' CUDA runtime can run, replaced by equivalent host functions. Used
// by kernels.cc.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace ouro::test::cudart {

/// All work of a kernel launch, on one host thread.
using Body = std::function<void()>;
/// Copies the arguments of a launch, which are invalid by the time it runs, and returns its body.
using Bind = Body (*)(void** args, const std::vector<std::string>& types);

/// A kernel by the name of its template, such as "prepareInput2", with its number of template arguments.
struct KnownKernel {
  const char* name;
  std::size_t types;
  Bind bind;
};
/// nullptr: unknown; the kernel cannot be run.
const KnownKernel* known_kernel(const std::string& name);

}  // namespace ouro::test::cudart
