// The optimiser loops for avx2. Used by host_optim.cc alone; CMakeLists.txt has the compiler flags.
#define OURO_ISA avx2
#include "kernels/host/host_optim_impl.h"

namespace ouro::kernels {

const OptimLoops* avx2_optim(DType t) { return avx2::optim_loops(t); }

}  // namespace ouro::kernels
