// Devices: their number, properties, and which is current. Functions of the tests' CUDA runtime.
#include <cstdio>
#include <cstring>

#include "world.h"

using namespace ouro::test::cudart;
using ouro::Status;
using ouro::gpu::FakeGpu;

OURO_CUDART(cudaGetDeviceCount, int* count) {
  if (!count) return keep(cudaErrorInvalidValue);
  *count = world() ? world()->devices() : 0;
  return *count > 0 ? cudaSuccess : keep(cudaErrorNoDevice);
}

OURO_CUDART(cudaGetDevice, int* device) {
  return serve("cudaGetDevice", [&](FakeGpu& g) -> Status {
    OURO_ASSIGN(*device, g.current_device());
    return {};
  });
}

OURO_CUDART(cudaSetDevice, int device) {
  if (world() && (device < 0 || device >= world()->devices())) return keep(cudaErrorInvalidDevice);
  return serve("cudaSetDevice", [&](FakeGpu& g) { return g.set_current_device(device); });
}
OURO_CUDART(cudaInitDevice, int device, unsigned, unsigned) { return cudaSetDevice(device); }

OURO_CUDART(cudaGetDeviceProperties, cudaDeviceProp* out, int device) {
  return serve("cudaGetDeviceProperties", [&](FakeGpu& g) -> Status {
    OURO_ASSIGN(const auto p, g.properties(device));
    std::memset(out, 0, sizeof *out);
    std::snprintf(out->name, sizeof out->name, "%s", p.name.c_str());
    std::memcpy(out->uuid.bytes, p.uuid.data(), sizeof out->uuid.bytes);
    out->totalGlobalMem = p.memory_bytes;
    out->sharedMemPerBlock = 48 << 10,
    out->sharedMemPerMultiprocessor = out->sharedMemPerBlockOptin = 227 << 10;
    out->regsPerBlock = out->regsPerMultiprocessor = 64 << 10;
    out->warpSize = 32;
    out->maxThreadsPerBlock = 1024, out->maxThreadsPerMultiProcessor = 2048;
    for (int i = 0; i < 3; ++i)
      out->maxThreadsDim[i] = i < 2 ? 1024 : 64, out->maxGridSize[i] = i ? 65535 : 0x7fffffff;
    out->major = p.major, out->minor = p.minor;
    out->multiProcessorCount = p.multiprocessors;
    out->l2CacheSize = static_cast<int>(p.l2_bytes);
    std::sscanf(p.pci_bus_id.c_str(), "%x:%x:%x", reinterpret_cast<unsigned*>(&out->pciDomainID),
                reinterpret_cast<unsigned*>(&out->pciBusID), reinterpret_cast<unsigned*>(&out->pciDeviceID));
    out->canMapHostMemory = out->concurrentKernels = out->unifiedAddressing = out->streamPrioritiesSupported =
        1;
    out->asyncEngineCount = 2;
    return {};
  });
}

OURO_CUDART(cudaDeviceGetAttribute, int* value, cudaDeviceAttr attribute, int device) {
  return serve("cudaDeviceGetAttribute", [&](FakeGpu& g) -> Status {
    OURO_ASSIGN(const auto p, g.properties(device));
    switch (attribute) {
      case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        return {};
      case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        return {};
      case cudaDevAttrMultiProcessorCount:
        *value = p.multiprocessors;
        return {};
      case cudaDevAttrWarpSize:
        *value = 32;
        return {};
      case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        return {};
      case cudaDevAttrUnifiedAddressing:
      case cudaDevAttrCanMapHostMemory:
        *value = 1;
        return {};
      default:
        *value = 0;  // these devices lack all other attributes
        return {};
    }
  });
}

OURO_CUDART(cudaDeviceSynchronize, void) {
  return serve("cudaDeviceSynchronize", [](FakeGpu& g) -> Status {
    OURO_ASSIGN(const int device, g.current_device());
    return g.synchronize(device);
  });
}
/// Waits for all work. Allocations stay valid: other libraries in the process use these devices, too.
OURO_CUDART(cudaDeviceReset, void) { return cudaDeviceSynchronize(); }

OURO_CUDART(cudaDeviceCanAccessPeer, int* can, int device, int peer) {
  return serve("cudaDeviceCanAccessPeer", [&](FakeGpu& g) -> Status {
    *can = device != peer && g.peer_access(device, peer);
    return {};
  });
}
OURO_CUDART(cudaDeviceEnablePeerAccess, int peer, unsigned) {
  return serve("cudaDeviceEnablePeerAccess", [&](FakeGpu& g) -> Status {
    OURO_ASSIGN(const int device, g.current_device());
    return g.enable_peer(device, peer);
  });
}

OURO_CUDART(cudaDeviceGetStreamPriorityRange, int* least, int* greatest) {
  return serve("cudaDeviceGetStreamPriorityRange", [&](FakeGpu& g) -> Status {
    OURO_ASSIGN(const auto p, g.properties(0));
    if (least) *least = p.low_priority;
    if (greatest) *greatest = p.high_priority;
    return {};
  });
}

OURO_CUDART(cudaDeviceGetPCIBusId, char* text, int bytes, int device) {
  return serve("cudaDeviceGetPCIBusId", [&](FakeGpu& g) -> Status {
    OURO_ASSIGN(const auto p, g.properties(device));
    std::snprintf(text, static_cast<std::size_t>(bytes), "%s", p.pci_bus_id.c_str());
    return {};
  });
}

OURO_CUDART(cudaRuntimeGetVersion, int* version) { return *version = CUDART_VERSION, cudaSuccess; }
OURO_CUDART(cudaDriverGetVersion, int* version) { return *version = CUDART_VERSION, cudaSuccess; }
