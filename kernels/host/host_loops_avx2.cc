// The host loops for avx2. Used by host_loops.cc alone; CMakeLists.txt has the compiler flags.
#define OURO_ISA avx2
#include "kernels/host/host_loops_impl.h"

namespace ouro::kernels {

Kernel avx2_kernel(DType t, OpKind op) { return avx2::look_up(t, op); }

}  // namespace ouro::kernels
