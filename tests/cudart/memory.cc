// Memory, copies and sets. Functions of the tests' CUDA runtime.
#include <cstring>
#include <map>
#include <mutex>

#include "world.h"

namespace ouro::test::cudart {
namespace {

using gpu::MemoryKind;

/// Registered host memory, and its address on the devices.
struct Registrations {
  std::mutex mutex;
  std::map<const void*, void*> on_devices;
};
Registrations& registrations() {
  static auto& all = *new Registrations;
  return all;
}

/// Copies. A copy between pageable host memory and a device has finished when the call returns.
Status copy(gpu::FakeGpu& g, void* to, const void* from, std::size_t bytes, gpu::Stream s, bool wait) {
  OURO_TRY(g.copy(to, from, bytes, s));
  for (const void* end : {static_cast<const void*>(to), from}) {
    OURO_ASSIGN(const auto about, g.pointer(end));
    wait = wait || about.kind == MemoryKind::host;
  }
  OURO_ASSIGN(const auto capture, g.capturing(s));
  return wait && capture == 0 ? g.synchronize(s) : Status();
}

Status allocate(gpu::FakeGpu& g, void** out, std::size_t bytes) {
  *out = nullptr;
  if (bytes == 0) return {};
  OURO_ASSIGN(const int device, g.current_device());
  OURO_ASSIGN(*out, g.alloc(device, bytes));
  return {};
}

Status allocate_pinned(gpu::FakeGpu& g, void** out, std::size_t bytes) {
  *out = nullptr;
  if (bytes == 0) return {};
  OURO_ASSIGN(*out, g.alloc_pinned(bytes));
  return {};
}

}  // namespace
}  // namespace ouro::test::cudart

using namespace ouro::test::cudart;
using ouro::Status;
using ouro::gpu::FakeGpu;
using ouro::gpu::Stream;

OURO_CUDART(cudaMalloc, void** out, size_t bytes) {
  return serve("cudaMalloc", [&](FakeGpu& g) { return allocate(g, out, bytes); });
}
OURO_CUDART(cudaFree, void* p) {
  return serve("cudaFree", [&](FakeGpu& g) { return p ? g.free(p) : Status(); });
}
OURO_CUDART(cudaMallocAsync, void** out, size_t bytes, cudaStream_t stream) {
  return serve("cudaMallocAsync", stream, [&](FakeGpu& g, Stream) { return allocate(g, out, bytes); });
}
OURO_CUDART(cudaFreeAsync, void* p, cudaStream_t stream) {
  return serve("cudaFreeAsync", stream, [&](FakeGpu& g, Stream s) { return p ? g.free(p, s) : Status(); });
}
OURO_CUDART(cudaMallocHost, void** out, size_t bytes) {
  return serve("cudaMallocHost", [&](FakeGpu& g) { return allocate_pinned(g, out, bytes); });
}
OURO_CUDART(cudaHostAlloc, void** out, size_t bytes, unsigned) {
  return serve("cudaHostAlloc", [&](FakeGpu& g) { return allocate_pinned(g, out, bytes); });
}
OURO_CUDART(cudaFreeHost, void* p) {
  return serve("cudaFreeHost", [&](FakeGpu& g) { return p ? g.free_pinned(p) : Status(); });
}

OURO_CUDART(cudaHostRegister, void* p, size_t bytes, unsigned) {
  return serve("cudaHostRegister", [&](FakeGpu& g) -> Status {
    OURO_ASSIGN(void* const there, g.register_host(p, bytes));
    std::lock_guard lock(registrations().mutex);
    registrations().on_devices[p] = there;
    return {};
  });
}
OURO_CUDART(cudaHostUnregister, void* p) {
  return serve("cudaHostUnregister", [&](FakeGpu& g) {
    std::lock_guard lock(registrations().mutex);
    registrations().on_devices.erase(p);
    return g.unregister_host(p);
  });
}
OURO_CUDART(cudaHostGetDevicePointer, void** out, void* p, unsigned) {
  std::lock_guard lock(registrations().mutex);
  const auto found = registrations().on_devices.find(p);
  *out = found == registrations().on_devices.end() ? p : found->second;
  return cudaSuccess;
}

OURO_CUDART(cudaMemcpy, void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return serve("cudaMemcpy", nullptr,
               [&](FakeGpu& g, Stream s) { return copy(g, to, from, bytes, s, true); });
}
OURO_CUDART(cudaMemcpyAsync, void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return serve("cudaMemcpyAsync", stream,
               [&](FakeGpu& g, Stream s) { return copy(g, to, from, bytes, s, false); });
}
OURO_CUDART(cudaMemcpyPeerAsync, void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return serve("cudaMemcpyPeerAsync", stream,
               [&](FakeGpu& g, Stream s) { return copy(g, to, from, bytes, s, false); });
}
OURO_CUDART(cudaMemset, void* to, int byte, size_t bytes) {
  return serve("cudaMemset", nullptr,
               [&](FakeGpu& g, Stream s) { return g.set(to, static_cast<unsigned char>(byte), bytes, s); });
}
OURO_CUDART(cudaMemsetAsync, void* to, int byte, size_t bytes, cudaStream_t stream) {
  return serve("cudaMemsetAsync", stream,
               [&](FakeGpu& g, Stream s) { return g.set(to, static_cast<unsigned char>(byte), bytes, s); });
}

OURO_CUDART(cudaMemGetInfo, size_t* left, size_t* total) {
  return serve("cudaMemGetInfo", [&](FakeGpu& g) -> Status {
    OURO_ASSIGN(const int device, g.current_device());
    OURO_ASSIGN(const auto p, g.properties(device));
    OURO_ASSIGN(*left, g.memory_left(device));
    *total = p.memory_bytes;
    return {};
  });
}

OURO_CUDART(cudaPointerGetAttributes, cudaPointerAttributes* out, const void* p) {
  return serve("cudaPointerGetAttributes", [&](FakeGpu& g) -> Status {
    OURO_ASSIGN(const auto about, g.pointer(p));
    *out = {};
    auto* const address = const_cast<void*>(p);
    switch (about.kind) {
      case ouro::gpu::MemoryKind::device:
        out->type = cudaMemoryTypeDevice, out->device = about.device, out->devicePointer = address;
        break;
      case ouro::gpu::MemoryKind::pinned:
        out->type = cudaMemoryTypeHost, out->hostPointer = out->devicePointer = address;
        break;
      default:
        out->type = cudaMemoryTypeUnregistered, out->device = -2, out->hostPointer = address;
    }
    return {};
  });
}

OURO_CUDART(cudaIpcGetMemHandle, cudaIpcMemHandle_t* out, void* base) {
  return serve("cudaIpcGetMemHandle", [&](FakeGpu& g) -> Status {
    OURO_ASSIGN(const auto handle, g.ipc_export(base));
    static_assert(sizeof handle == sizeof *out);
    std::memcpy(out, handle.data(), sizeof *out);
    return {};
  });
}
OURO_CUDART(cudaIpcOpenMemHandle, void** out, cudaIpcMemHandle_t given, unsigned) {
  return serve("cudaIpcOpenMemHandle", [&](FakeGpu& g) -> Status {
    ouro::gpu::IpcHandle handle;
    std::memcpy(handle.data(), &given, sizeof given);
    OURO_ASSIGN(const int device, g.current_device());
    OURO_ASSIGN(*out, g.ipc_open(device, handle));
    return {};
  });
}
OURO_CUDART(cudaIpcCloseMemHandle, void* p) {
  return serve("cudaIpcCloseMemHandle", [&](FakeGpu& g) -> Status {
    OURO_ASSIGN(const auto about, g.pointer(p));
    return g.ipc_close(about.device, p);
  });
}
