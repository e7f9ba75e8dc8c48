// The interface of the host loops of one instruction set. Used by host_loops.cc, which chooses among them, by
// the units that implement them, and by tests that compare them.
#pragma once
#include <cstddef>
#include <string_view>

#include "runtime/core/types.h"

namespace ouro::kernels {

/// out = wide_in[0] (+) wide_in[1] (+) in[0] (+) in[1] ..., left to right. Plain pointers only: if this used
/// inline functions of the library, the linker could keep their AVX-512 copies for all instruction sets.
struct Job {
  void* out = nullptr;
  bool wide_out = false;  // out holds accumulators, not elements
  int wides = 0;          // 0 to 2
  const void* wide_in[2] = {};
  std::size_t ins = 0;  // wides + ins >= 1
  const void* const* in = nullptr;
  const Scalar* factor = nullptr;  // of in[i]; premulsum only
  double weight = 1;               // of wide_in[0]
  int ranks = 1;                   // number of contributions; avg divides by it
  std::size_t count = 0;
};
using Kernel = void (*)(const Job&);

/// The loop for one type and op; null if `applies` is false for the pair.
Kernel baseline_kernel(DType, OpKind);
Kernel avx2_kernel(DType, OpKind);
Kernel avx512_kernel(DType, OpKind);

/// Runs all loops on the named instruction set from now on, in all threads; false if the name is unknown or
/// this machine lacks the set. For tests and benches.
bool use_instruction_set(std::string_view name);

}  // namespace ouro::kernels
