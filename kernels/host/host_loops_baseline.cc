// The host loops for any processor of the architecture. Used by host_loops.cc alone; CMakeLists.txt has the
// compiler flags.
#define OURO_ISA baseline
#include "kernels/host/host_loops_impl.h"

namespace ouro::kernels {

Kernel baseline_kernel(DType t, OpKind op) { return baseline::look_up(t, op); }

}  // namespace ouro::kernels
