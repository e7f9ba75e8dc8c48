// The arguments of CUDA's calls for launches and allocations, as values that tests can check without a
// device. Used by cuda.cc and cuda_memory.cc.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "kernels/device/gpu.h"

namespace ouro::gpu {

/// Attributes of a launch; `high`: the highest priority of the device's streams. A kernel that spins is
/// launched with priority over others, but not cooperatively. A cooperative grid starts when all of its
/// blocks fit at once, which kernels of the user may prevent for any time; and CUDA does not guarantee that
/// two such grids run at the same time, as those of two ranks must. The caller has checked that all blocks
/// fit on an idle device.
struct LaunchTerms {
  cudaLaunchAttribute attribute = {};
  unsigned count = 0;
};
inline LaunchTerms launch_terms(const Kernel& kernel, int high) {
  LaunchTerms t;
  if (!kernel.spins) return t;
  t.attribute.id = cudaLaunchAttributePriority;
  t.attribute.val.priority = high;
  t.count = 1;
  return t;
}

/// Memory that other processes can map; `rdma`: whether the device lets network interfaces reach such memory.
inline CUmemAllocationProp shareable_terms(int device, bool rdma) {
  CUmemAllocationProp p = {};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  p.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  p.allocFlags.gpuDirectRDMACapable = rdma ? 1 : 0;
  return p;
}

/// Why memory that was made with these properties cannot be passed to other processes; "" if it can.
inline std::string why_not_shareable(const CUmemAllocationProp& p) {
  if (p.type != CU_MEM_ALLOCATION_TYPE_PINNED || p.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return "it is not memory of a device";
  if ((p.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) return "";
  return p.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE
             ? "it was made by cuMemCreate without a shareable handle type (requestedHandleTypes has no "
               "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)"
             : "its shareable handle types do not include CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR";
}

}  // namespace ouro::gpu
