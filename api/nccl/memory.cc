// Memory allocated by the library and registered memory of the user. See nccl.h, section "Memory".
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "api/nccl/communicator.h"
#include "api/nccl/environment.h"
#include "api/nccl/group_calls.h"
#include "api/nccl/mode.h"
#include "kernels/device/gpu.h"
#include "runtime/core/log.h"
#include "runtime/core/per_process.h"
#include "runtime/core/segment.h"

/// A registered buffer, of the host or of a GPU.
struct ncclWindow_vidmem {
  ncclComm_t comm;
  void* data;
  std::size_t bytes;
  ouro::Registration registration;  ///< of a GPU's memory, if it could be registered
};

namespace ouro::nccl {
namespace {

struct Allocation {
  std::shared_ptr<SharedSegment> on_host;
  gpu::Region on_gpu;
};
/// A registration of ncclCommRegister; its address is the handle.
struct Registered {
  ncclComm_t comm;
  Registration registration;
};
/// Memory, registrations and windows of this process; a forked child cannot use its parent's.
struct Known {
  std::mutex mutex;
  std::map<void*, Allocation> allocations;
  std::map<void*, std::unique_ptr<Registered>> registered;
  std::set<ncclWindow_t> windows;
};
constinit PerProcess<Known> g_known;

/// Allocates memory that the other ranks can map, on the host or on the calling thread's GPU.
Result<void*> allocate(std::size_t size) {
  OURO_ASSIGN(const Device where, device_for({}));
  Allocation made;
  void* data = nullptr;
  if (where.kind == Device::Kind::host) {
    OURO_ASSIGN(made.on_host, SharedSegment::create(size, "ncclMemAlloc"));
    data = made.on_host->data();
  } else {
    OURO_ASSIGN(made.on_gpu, gpu::gpu().alloc_shareable(where.index, size));
    data = made.on_gpu.data;
  }
  std::lock_guard lock(g_known->mutex);
  g_known->allocations.emplace(data, std::move(made));
  return data;
}

/// Registers a buffer of a communicator on a GPU. It is a hint: if the buffer cannot be registered, returns
/// an empty handle, and logs the reason once.
Registration try_to_register(ncclComm_t comm, const char* function, const void* data, std::size_t bytes) {
  if (on_gpu(comm)) {
    auto made = comm->family->context.register_memory(data, bytes, comm->place);
    if (made.ok()) return std::move(*made);
    static std::atomic<bool> told_once{false};
    if (!told_once.exchange(true))
      OURO_INFO(REG, "{}: the buffer works without being registered: {}", function, made.status().message());
  } else {
    static std::atomic<bool> told_once{false};
    if (!told_once.exchange(true))
      OURO_INFO(REG, "{}: buffers of the host work without being registered", function);
  }
  return {};
}

/// Ends a registration before the program frees the memory, as it may once this call has returned.
void end_registration(const char* function, Registration registration,
                      Milliseconds wait = Milliseconds(2000)) {
  const void* const data = registration.data();
  const Status ended = registration.release(wait);
  if (!ended.ok())
    OURO_WARN("{}: {}. The memory at {} must not be freed yet: CUDA leaves undefined what follows", function,
              ended.message(), data);
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

/// Does not wait for other ranks, which may never destroy their communicators: warns if one of them still has
/// memory open.
void end_registrations(ncclComm_t comm) {
  std::vector<Registration> ended;
  std::unique_lock lock(g_known->mutex);
  for (auto it = g_known->registered.begin(); it != g_known->registered.end();) {
    const auto at = it++;
    if (at->second->comm != comm) continue;
    ended.push_back(std::move(at->second->registration));
    g_known->registered.erase(at);
  }
  for (const ncclWindow_t window : g_known->windows)
    if (window->comm == comm) ended.push_back(std::move(window->registration));
  lock.unlock();
  for (Registration& r : ended)
    if (r) end_registration("a communicator ends", std::move(r), Milliseconds(0));
}

}  // namespace ouro::nccl

using namespace ouro::nccl;

OURO_NCCL(ncclResult_t, MemAlloc, void** ptr, size_t size) {
  constexpr const char* me = "ncclMemAlloc";
  return report_to_group(guarded(nullptr, me, [&]() -> ncclResult_t {
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
  return report_to_group(guarded(nullptr, me, [&]() -> ncclResult_t {
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
  return report_to_group(guarded(comm, me, [&]() -> ncclResult_t {
    const Entry entry(comm, me, Needs::open);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    if (!handle) return invalid_argument(comm, me, "the pointer for the handle is null");
    *handle = nullptr;
    if (!buff || size == 0) return invalid_argument(comm, me, "an empty buffer");
    auto made = std::make_unique<Registered>(Registered{comm, try_to_register(comm, me, buff, size)});
    if (!made->registration) return ncclSuccess;
    std::lock_guard lock(g_known->mutex);
    void* const name = made.get();
    g_known->registered.emplace(name, std::move(made));
    *handle = name;
    return ncclSuccess;
  }));
}

OURO_NCCL(ncclResult_t, CommDeregister, const ncclComm_t comm, void* handle) {
  constexpr const char* me = "ncclCommDeregister";
  return report_to_group(guarded(comm, me, [&]() -> ncclResult_t {
    const Entry entry(comm, me);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    if (!handle) return ncclSuccess;
    ouro::Registration ended;
    {
      std::lock_guard lock(g_known->mutex);
      const auto found = g_known->registered.find(handle);
      if (found == g_known->registered.end() || found->second->comm != comm)
        return invalid_argument(
            comm, me, "{} is no handle of ncclCommRegister of this communicator, or has ended", handle);
      ended = std::move(found->second->registration);
      g_known->registered.erase(found);
    }
    end_registration(me, std::move(ended));
    return ncclSuccess;
  }));
}

OURO_NCCL(ncclResult_t, CommWindowRegister, ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
          int winFlags) {
  constexpr const char* me = "ncclCommWindowRegister";
  return report_to_group(guarded(comm, me, [&]() -> ncclResult_t {
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
    auto window = std::make_unique<ncclWindow_vidmem>(ncclWindow_vidmem{
        comm, buff, size, on_gpu(comm) ? try_to_register(comm, me, buff, size) : ouro::Registration()});
    std::lock_guard lock(g_known->mutex);
    g_known->windows.insert(window.get());
    *win = window.release();
    return ncclSuccess;
  }));
}

OURO_NCCL(ncclResult_t, CommWindowDeregister, ncclComm_t comm, ncclWindow_t win) {
  constexpr const char* me = "ncclCommWindowDeregister";
  return report_to_group(guarded(comm, me, [&]() -> ncclResult_t {
    const Entry entry(comm, me);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    if (!win) return ncclSuccess;
    ouro::Registration ended;
    {
      std::lock_guard lock(g_known->mutex);
      if (const ncclResult_t wrong = check_window(me, comm, win); wrong != ncclSuccess) return wrong;
      g_known->windows.erase(win);
      ended = std::move(win->registration);
      delete win;
    }
    end_registration(me, std::move(ended));
    return ncclSuccess;
  }));
}

OURO_NCCL(ncclResult_t, WinGetUserPtr, ncclComm_t comm, ncclWindow_t win, void** outUserPtr) {
  constexpr const char* me = "ncclWinGetUserPtr";
  return report_to_group(guarded(comm, me, [&]() -> ncclResult_t {
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
