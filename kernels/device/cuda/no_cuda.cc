// Stands in for cuda.cc in builds without a CUDA compiler. Used by gpu().
#include "kernels/device/gpu.h"

namespace ouro::gpu {

Gpu* cuda(std::string* why) {
  *why = "built without CUDA";
  return nullptr;
}

}  // namespace ouro::gpu
