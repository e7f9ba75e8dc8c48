// The host loops for avx512. Used by host_loops.cc alone; CMakeLists.txt has the compiler flags.
#define OURO_ISA avx512
#include "kernels/host/host_loops_impl.h"

namespace ouro::kernels {

Kernel avx512_kernel(DType t, OpKind op) { return avx512::look_up(t, op); }

}  // namespace ouro::kernels
