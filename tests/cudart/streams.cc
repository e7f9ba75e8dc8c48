// Streams, events and host functions. Functions of the tests' CUDA runtime.
#include <map>
#include <mutex>

#include "kernels/device/fake/fake_streams.h"
#include "world.h"

namespace ouro::test::cudart {
namespace {

/// The device of each stream and event, which calls to emulated devices need and a CUDA handle lacks.
struct Owners {
  std::mutex mutex;
  std::map<const void*, int> devices;
};
Owners& owners() {
  static auto& all = *new Owners;
  return all;
}

void own(const void* handle, int device) {
  std::lock_guard lock(owners().mutex);
  owners().devices[handle] = device;
}
void disown(const void* handle) {
  std::lock_guard lock(owners().mutex);
  owners().devices.erase(handle);
}
int owner(const void* handle) {
  std::lock_guard lock(owners().mutex);
  const auto found = owners().devices.find(handle);
  return found == owners().devices.end() ? -1 : found->second;
}

Status make_stream(gpu::FakeGpu& g, cudaStream_t* out, unsigned flags, int priority) {
  OURO_ASSIGN(const int device, g.current_device());
  OURO_ASSIGN(const auto made, flags& cudaStreamNonBlocking ? g.create_stream(device, priority)
                                                            : g.create_blocking_stream(device, priority));
  own(made.handle, device);
  *out = static_cast<cudaStream_t>(made.handle);
  return {};
}

/// Like keep(), but cudaErrorNotReady is not printed.
cudaError_t ready(const char* function, const Result<bool>& r) {
  if (!r.ok()) return keep(function, r.status());
  return *r ? cudaSuccess : keep(cudaErrorNotReady);
}

}  // namespace

Result<gpu::Stream> stream_of(gpu::FakeGpu& g, cudaStream_t handle) {
  if (gpu::fake::is_legacy(handle) || handle == gpu::kThreadStream) {
    OURO_ASSIGN(const int device, g.current_device());
    return gpu::Stream{device, handle};
  }
  const int device = owner(handle);
  if (device < 0) return invalid("the stream does not exist, or was destroyed");
  return gpu::Stream{device, handle};
}

gpu::Event event_of(cudaEvent_t e) { return {e}; }
int device_of(cudaEvent_t e) { return owner(e); }

}  // namespace ouro::test::cudart

using namespace ouro::test::cudart;
using ouro::Status;
using ouro::gpu::FakeGpu;
using ouro::gpu::Stream;

OURO_CUDART(cudaStreamCreateWithPriority, cudaStream_t* out, unsigned flags, int priority) {
  return serve("cudaStreamCreateWithPriority",
               [&](FakeGpu& g) { return make_stream(g, out, flags, priority); });
}
OURO_CUDART(cudaStreamCreateWithFlags, cudaStream_t* out, unsigned flags) {
  return serve("cudaStreamCreateWithFlags", [&](FakeGpu& g) { return make_stream(g, out, flags, 0); });
}
OURO_CUDART(cudaStreamCreate, cudaStream_t* out) {
  return serve("cudaStreamCreate", [&](FakeGpu& g) { return make_stream(g, out, 0, 0); });
}
OURO_CUDART(cudaStreamDestroy, cudaStream_t stream) {
  return serve("cudaStreamDestroy", stream, [&](FakeGpu& g, Stream s) {
    Status gone = g.destroy_stream(s);
    if (gone.ok()) disown(stream);
    return gone;
  });
}
OURO_CUDART(cudaStreamSynchronize, cudaStream_t stream) {
  return serve("cudaStreamSynchronize", stream, [](FakeGpu& g, Stream s) { return g.synchronize(s); });
}
OURO_CUDART(cudaStreamQuery, cudaStream_t stream) {
  if (!world()) return keep(cudaErrorNoDevice);
  auto s = stream_of(*world(), stream);
  return s.ok() ? ready("cudaStreamQuery", world()->query(*s)) : keep("cudaStreamQuery", s.status());
}
OURO_CUDART(cudaStreamGetDevice, cudaStream_t stream, int* device) {
  return serve("cudaStreamGetDevice", stream,
               [&](FakeGpu&, Stream s) { return *device = s.device, Status(); });
}
OURO_CUDART(cudaStreamWaitEvent, cudaStream_t stream, cudaEvent_t event, unsigned) {
  return serve("cudaStreamWaitEvent", stream,
               [&](FakeGpu& g, Stream s) { return g.wait(s, event_of(event)); });
}
OURO_CUDART(cudaLaunchHostFunc, cudaStream_t stream, cudaHostFn_t f, void* data) {
  return serve("cudaLaunchHostFunc", stream, [&](FakeGpu& g, Stream s) { return g.call_host(s, f, data); });
}

OURO_CUDART(cudaEventCreateWithFlags, cudaEvent_t* out, unsigned flags) {
  return serve("cudaEventCreateWithFlags", [&](FakeGpu& g) -> Status {
    OURO_ASSIGN(const int device, g.current_device());
    OURO_ASSIGN(const auto made, g.create_event(device, (flags & cudaEventDisableTiming) == 0));
    own(made.handle, device);
    *out = static_cast<cudaEvent_t>(made.handle);
    return {};
  });
}
OURO_CUDART(cudaEventCreate, cudaEvent_t* out) { return cudaEventCreateWithFlags(out, cudaEventDefault); }
OURO_CUDART(cudaEventDestroy, cudaEvent_t event) {
  return serve("cudaEventDestroy", [&](FakeGpu& g) {
    disown(event);
    return g.destroy_event(event_of(event));
  });
}
OURO_CUDART(cudaEventRecord, cudaEvent_t event, cudaStream_t stream) {
  return serve("cudaEventRecord", stream, [&](FakeGpu& g, Stream s) { return g.record(event_of(event), s); });
}
OURO_CUDART(cudaEventRecordWithFlags, cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
OURO_CUDART(cudaEventSynchronize, cudaEvent_t event) {
  return serve("cudaEventSynchronize", [&](FakeGpu& g) { return g.synchronize(event_of(event)); });
}
OURO_CUDART(cudaEventQuery, cudaEvent_t event) {
  return world() ? ready("cudaEventQuery", world()->query(event_of(event))) : keep(cudaErrorNoDevice);
}
OURO_CUDART(cudaEventElapsedTime, float* ms, cudaEvent_t from, cudaEvent_t to) {
  return serve("cudaEventElapsedTime", [&](FakeGpu& g) -> Status {
    OURO_ASSIGN(*ms, g.elapsed_ms(event_of(from), event_of(to)));
    return {};
  });
}
