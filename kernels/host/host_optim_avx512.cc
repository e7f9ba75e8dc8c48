// The optimiser loops for avx512. Used by host_optim.cc alone; CMakeLists.txt has the compiler flags.
#define OURO_ISA avx512
#include "kernels/host/host_optim_impl.h"

namespace ouro::kernels {

const OptimLoops* avx512_optim(DType t) { return avx512::optim_loops(t); }

}  // namespace ouro::kernels
