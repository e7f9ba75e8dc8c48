// Memory allocated by the library and registered memory of the user. See nccl.h, section "Memory".
#include <cstdint>
#include <map>
#include <mutex>
#include <set>

#include "api/nccl/communicator.h"
#include "api/nccl/environment.h"
#include "api/nccl/group_calls.h"
#include "api/nccl/mode.h"
#include "kernels/device/gpu.h"
#include "runtime/core/log.h"
#include "runtime/core/per_process.h"
#include "runtime/core/segment.h"

/// A registered host buffer.
struct ncclWindow_vidmem {
  ncclComm_t comm;
  void* data;
  std::size_t bytes;
};

namespace ouro::nccl {
namespace {

struct Allocation {
  std::shared_ptr<device::Segment> on_host;
  gpu::Region on_gpu;
};
/// Memory and windows of this process; a forked child cannot use its parent's.
struct Known {
  std::mutex mutex;
  std::map<void*, Allocation> allocations;
  std::set<ncclWindow_t> windows;
};
constinit PerProcess<Known> g_known;

/// Allocates memory that the other ranks can map, on the host or on the calling thread's GPU.
Result<void*> allocate(std::size_t size) {
  OURO_ASSIGN(const Device where, device_for({}));
  Allocation made;
  void* data = nullptr;
  if (where.kind == Device::Kind::host) {
    OURO_ASSIGN(made.on_host, device::Segment::create(size, "ncclMemAlloc"));
    data = made.on_host->data();
  } else {
    OURO_ASSIGN(made.on_gpu, gpu::gpu().alloc_shareable(where.index, size));
    data = made.on_gpu.data;
  }
  std::lock_guard lock(g_known->mutex);
  g_known->allocations.emplace(data, std::move(made));
  return data;
}

ncclResult_t check_window(const char* function, ncclComm_t comm, ncclWindow_t window) {
  if (g_known->windows.contains(window) && (!comm || window->comm == comm)) return ncclSuccess;
  return invalid_argument(comm, function, "this is no window{}", comm ? " of this communicator" : "");
}

ncclResult_t no_device_pointer(const char* function, ncclWindow_t window, void** out) {
  if (!out) return invalid_argument(nullptr, function, "the pointer for the answer is null");
  *out = nullptr;
  {
    std::lock_guard lock(g_known->mutex);
    if (const ncclResult_t wrong = check_window(function, nullptr, window); wrong != ncclSuccess)
      return wrong;
  }
  return not_supported(nullptr, function, "a pointer of a device to a window",
                       "windows lie in memory of the host", "use ncclWinGetUserPtr");
}

}  // namespace
}  // namespace ouro::nccl

using namespace ouro::nccl;

OURO_NCCL(ncclResult_t, MemAlloc, void** ptr, size_t size) {
  constexpr const char* me = "ncclMemAlloc";
  return told(guarded(nullptr, me, [&]() -> ncclResult_t {
    if (!ptr) return invalid_argument(nullptr, me, "the pointer for the memory is null");
    *ptr = nullptr;
    if (const ncclResult_t wrong = check_mode(me); wrong != ncclSuccess) return wrong;
    if (size == 0) return ncclSuccess;
    auto data = allocate(size);
    if (!data.ok()) return fail(nullptr, me, data.status());
    *ptr = *data;
    return ncclSuccess;
  }));
}

OURO_NCCL(ncclResult_t, MemFree, void* ptr) {
  constexpr const char* me = "ncclMemFree";
  if (!ptr) return ncclSuccess;
  return told(guarded(nullptr, me, [&]() -> ncclResult_t {
    Allocation gone;
    {
      std::lock_guard lock(g_known->mutex);
      const auto found = g_known->allocations.find(ptr);
      if (found == g_known->allocations.end())
        return invalid_argument(nullptr, me, "{} is not from ncclMemAlloc in this process, or was freed",
                                ptr);
      gone = std::move(found->second);
      g_known->allocations.erase(found);
    }
    if (gone.on_gpu.data == nullptr) return ncclSuccess;
    const ouro::Status freed = ouro::gpu::gpu().free_region(gone.on_gpu);
    return freed.ok() ? ncclSuccess : fail(nullptr, me, freed);
  }));
}

OURO_NCCL(ncclResult_t, CommRegister, const ncclComm_t comm, void* buff, size_t size, void** handle) {
  constexpr const char* me = "ncclCommRegister";
  return told(guarded(comm, me, [&]() -> ncclResult_t {
    const Entry entry(comm, me, Needs::open);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    if (!handle) return invalid_argument(comm, me, "the pointer for the handle is null");
    *handle = nullptr;
    if (!buff || size == 0) return invalid_argument(comm, me, "an empty buffer");
    static const bool told_once = [] {
      OURO_INFO(REG, "ncclCommRegister: buffers work without being registered; handles are null");
      return true;
    }();
    (void)told_once;
    return ncclSuccess;
  }));
}

OURO_NCCL(ncclResult_t, CommDeregister, const ncclComm_t comm, void* handle) {
  constexpr const char* me = "ncclCommDeregister";
  return told(guarded(comm, me, [&]() -> ncclResult_t {
    const Entry entry(comm, me);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    if (handle) return invalid_argument(comm, me, "{} is no handle of ncclCommRegister", handle);
    return ncclSuccess;
  }));
}

OURO_NCCL(ncclResult_t, CommWindowRegister, ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
          int winFlags) {
  constexpr const char* me = "ncclCommWindowRegister";
  return told(guarded(comm, me, [&]() -> ncclResult_t {
    const Entry entry(comm, me, Needs::open);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    if (!win) return invalid_argument(comm, me, "the pointer for the window is null");
    *win = nullptr;
    if (!buff || size == 0) return invalid_argument(comm, me, "an empty buffer");
    if ((winFlags & ~(NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING)) != 0)
      return invalid_argument(comm, me, "flags {:#x}; expected those of nccl.h", winFlags);
    if (reinterpret_cast<std::uintptr_t>(buff) % NCCL_WIN_REQUIRED_ALIGNMENT != 0)
      return invalid_argument(comm, me, "a buffer at {}; expected a multiple of {} (ncclMemAlloc gives one)",
                              buff, NCCL_WIN_REQUIRED_ALIGNMENT);
    if (!offers_windows()) {
      OURO_INFO(REG, "ncclCommWindowRegister: no window, as NCCL_WIN_ENABLE=0 says");
      return ncclSuccess;
    }
    auto window = std::make_unique<ncclWindow_vidmem>(ncclWindow_vidmem{comm, buff, size});
    std::lock_guard lock(g_known->mutex);
    g_known->windows.insert(window.get());
    *win = window.release();
    return ncclSuccess;
  }));
}

OURO_NCCL(ncclResult_t, CommWindowDeregister, ncclComm_t comm, ncclWindow_t win) {
  constexpr const char* me = "ncclCommWindowDeregister";
  return told(guarded(comm, me, [&]() -> ncclResult_t {
    const Entry entry(comm, me);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    if (!win) return ncclSuccess;
    std::lock_guard lock(g_known->mutex);
    if (const ncclResult_t wrong = check_window(me, comm, win); wrong != ncclSuccess) return wrong;
    g_known->windows.erase(win);
    delete win;
    return ncclSuccess;
  }));
}

OURO_NCCL(ncclResult_t, WinGetUserPtr, ncclComm_t comm, ncclWindow_t win, void** outUserPtr) {
  constexpr const char* me = "ncclWinGetUserPtr";
  return told(guarded(comm, me, [&]() -> ncclResult_t {
    const Entry entry(comm, me);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    if (!outUserPtr) return invalid_argument(comm, me, "the pointer for the answer is null");
    *outUserPtr = nullptr;
    std::lock_guard lock(g_known->mutex);
    if (const ncclResult_t wrong = check_window(me, comm, win); wrong != ncclSuccess) return wrong;
    *outUserPtr = win->data;
    return ncclSuccess;
  }));
}

OURO_NCCL(ncclResult_t, GetLsaDevicePointer, ncclWindow_t window, size_t, int, void** outPtr) {
  return no_device_pointer("ncclGetLsaDevicePointer", window, outPtr);
}
OURO_NCCL(ncclResult_t, GetLsaMultimemDevicePointer, ncclWindow_t window, size_t, void** outPtr) {
  return no_device_pointer("ncclGetLsaMultimemDevicePointer", window, outPtr);
}
OURO_NCCL(ncclResult_t, GetPeerDevicePointer, ncclWindow_t window, size_t, int, void** outPtr) {
  return no_device_pointer("ncclGetPeerDevicePointer", window, outPtr);
}
OURO_NCCL(ncclResult_t, GetMultimemDevicePointer, ncclWindow_t window, size_t, ncclMultimemHandle_t,
          void** outPtr) {
  return no_device_pointer("ncclGetMultimemDevicePointer", window, outPtr);
}
