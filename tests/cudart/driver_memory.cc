// Memory of cuMemCreate and cuMemMap on the emulated devices, for programs that map memory themselves, such
// as the expandable segments of PyTorch. What the emulated device makes at once is made when it is mapped.
#include <map>
#include <mutex>

#include "driver.h"

using namespace ouro::test::cudart;
using ouro::gpu::FakeGpu;

namespace {

struct Made {
  int device;
  std::size_t bytes;
  bool shareable;
};
struct Known {
  std::mutex mutex;
  std::map<CUmemGenericAllocationHandle, Made> made;
  CUmemGenericAllocationHandle next = 1;
};
Known& known() {
  static Known one;
  return one;
}

void* at(CUdeviceptr p) { return reinterpret_cast<void*>(p); }

}  // namespace

OURO_CU(cuMemGetAllocationGranularity, size_t* bytes, const CUmemAllocationProp*,
        CUmemAllocationGranularity_flags) {
  return *bytes = 2 << 20, CUDA_SUCCESS;
}
OURO_CU(cuMemAddressReserve, CUdeviceptr* p, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  return drive("cuMemAddressReserve", [&](FakeGpu& g) -> ouro::Status {
    OURO_ASSIGN(void* const made, g.reserve(0, bytes));
    *p = reinterpret_cast<CUdeviceptr>(made);
    return {};
  });
}
OURO_CU(cuMemAddressFree, CUdeviceptr p, size_t) {
  return drive("cuMemAddressFree", [&](FakeGpu& g) { return g.unreserve(at(p)); });
}
OURO_CU(cuMemCreate, CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* terms,
        unsigned long long) {
  if (terms->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  const std::lock_guard lock(known().mutex);
  *handle = known().next++;
  known().made[*handle] = {terms->location.id, bytes,
                           terms->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
  return CUDA_SUCCESS;
}
OURO_CU(cuMemRelease, CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(known().mutex);
  return known().made.erase(handle) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
OURO_CU(cuMemMap, CUdeviceptr p, size_t bytes, size_t, CUmemGenericAllocationHandle handle,
        unsigned long long) {
  return drive("cuMemMap", [&](FakeGpu& g) -> ouro::Status {
    const std::lock_guard lock(known().mutex);
    const auto made = known().made.find(handle);
    if (made == known().made.end() || made->second.bytes != bytes) return ouro::invalid("no such memory");
    return g.map(made->second.device, at(p), bytes, made->second.shareable);
  });
}
OURO_CU(cuMemUnmap, CUdeviceptr p, size_t bytes) {
  return drive("cuMemUnmap", [&](FakeGpu& g) -> ouro::Status {
    for (size_t done = 0; done < bytes;) {
      OURO_ASSIGN(const auto about, g.pointer(at(p + done)));
      OURO_TRY(g.unmap(at(p + done)));
      done += about.bytes;
    }
    return {};
  });
}
OURO_CU(cuMemSetAccess, CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
