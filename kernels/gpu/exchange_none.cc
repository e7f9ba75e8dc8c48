// Replaces exchange.cu in builds without a CUDA compiler: the exchange kernel runs on host threads only.
#include "kernels/gpu/exchange_entry.h"

namespace ouro::gpu {

const void* exchange_entry() { return nullptr; }

}  // namespace ouro::gpu
