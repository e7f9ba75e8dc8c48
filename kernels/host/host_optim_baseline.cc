// The optimiser loops for any processor of the architecture. Used by host_optim.cc alone; CMakeLists.txt has
// the compiler flags.
#define OURO_ISA baseline
#include "kernels/host/host_optim_impl.h"

namespace ouro::kernels {

const OptimLoops* baseline_optim(DType t) { return baseline::optim_loops(t); }

}  // namespace ouro::kernels
