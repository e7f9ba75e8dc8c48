// Gpu by CUDA, except for memory, which is in cuda_memory.cc. It uses the runtime library, linked statically,
// and functions that only the driver has, found at run time. Used through cuda() of gpu.h by gpu.cc. Only
// these two files and cuda_driver.cc call CUDA.
#include "kernels/device/cuda/cuda_gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/device/cuda/cuda_driver.h"
#include "kernels/device/cuda/cuda_memory.h"
#include "kernels/device/cuda/cuda_terms.h"
#include "kernels/device/cuda/nvml.h"

namespace ouro::gpu {
namespace {

/// For Result<bool>: true if done, false if not yet.
Result<bool> done(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return true;
  if (error != cudaErrorNotReady) return failed(error, call);
  (void)cudaGetLastError();  // some versions keep it
  return false;
}

cudaStream_t native(Stream s) { return static_cast<cudaStream_t>(s.handle); }
cudaEvent_t native(Event e) { return static_cast<cudaEvent_t>(e.handle); }
cudaGraphExec_t native(Graph g) { return static_cast<cudaGraphExec_t>(g.handle); }

/// This makes no context.
Result<Uuid> uuid_of(int device) {
  cudaDeviceProp p = {};
  OURO_CUDA(cudaGetDeviceProperties, &p, device);
  Uuid uuid;
  static_assert(sizeof(p.uuid.bytes) == sizeof(uuid));
  std::memcpy(uuid.data(), p.uuid.bytes, sizeof(uuid));
  return uuid;
}

Status no_kernel(const Kernel& k) {
  return unsupported(fmt::format("kernel {} was built without device code", k.name));
}

class Cuda final : public CudaMemory {
 public:
  const char* name() const override { return "cuda"; }
  std::string version() const override {
    return driver().why.empty() ? driver().version : fmt::format("{} ({})", driver().why, driver().version);
  }
  int devices() override { return driver().why.empty() ? std::min(driver().devices, kMaxDevices) : 0; }

  Result<Properties> properties(int device) override {
    OURO_ON(device);
    const std::lock_guard lock(properties_mutex_);
    if (properties_.empty()) properties_.resize(static_cast<std::size_t>(devices()));
    std::optional<Properties>& known = properties_[static_cast<std::size_t>(device)];
    if (!known) {  // milliseconds, hence kept
      cudaDeviceProp p = {};
      Properties mine;
      char bus[32] = {};
      OURO_CUDA(cudaGetDeviceProperties, &p, device);
      OURO_CUDA(cudaDeviceGetPCIBusId, bus, sizeof(bus), device);
      OURO_CUDA(cudaDeviceGetStreamPriorityRange, &mine.low_priority, &mine.high_priority);
      mine.name = p.name;
      static_assert(sizeof(p.uuid.bytes) == sizeof(mine.uuid));
      std::memcpy(mine.uuid.data(), p.uuid.bytes, sizeof(p.uuid.bytes));
      mine.pci_bus_id = bus;
      mine.major = p.major, mine.minor = p.minor;
      mine.multiprocessors = p.multiProcessorCount;
      mine.memory_bytes = p.totalGlobalMem;
      mine.l2_bytes = static_cast<std::size_t>(p.l2CacheSize);
      mine.shareable_memory =
          attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) &&
          attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device);
      // Memory handles exist where event handles exist; if both are missing (WSL, Tegra), only this
      // attribute shows it.
      mine.ipc = p.unifiedAddressing != 0 && p.ipcEventSupported != 0;
      mine.connections = connections();
      mine.stream_values = true;  // 32-bit operations: all devices of a driver that this runtime accepts
      // Access to memory of cuMemCreate is granted to devices explicitly, also to memory of another process.
      mine.device_words = mine.shareable_memory;
      mine.multicast = mine.shareable_memory && driver().cuMulticastCreate != nullptr &&
                       attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, device);
      mine.mps = attribute(CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device);  // 0 from a driver that does not know it
      known = std::move(mine);
    }
    return *known;
  }

  Result<std::shared_ptr<void>> scope(int device) override {
    struct Both {
      explicit Both(int device) : scope(device) {}
      Scope scope;
      Relaxed relaxed;
    };
    auto both = std::make_shared<Both>(device);
    OURO_TRY(both->scope.status());
    return std::shared_ptr<void>(std::move(both));
  }

  Status flush_arrivals(int device) override {
    OURO_ON(device);
    int ordering = 0, options = 0;
    OURO_CUDA(cudaDeviceGetAttribute, &ordering, cudaDevAttrGPUDirectRDMAWritesOrdering, device);
    if (ordering >= cudaGPUDirectRDMAWritesOrderingOwner) return {};
    OURO_CUDA(cudaDeviceGetAttribute, &options, cudaDevAttrGPUDirectRDMAFlushWritesOptions, device);
    if ((options & cudaFlushGPUDirectRDMAWritesOptionHost) == 0) return Gpu::flush_arrivals(device);
    OURO_CUDA(cudaDeviceFlushGPUDirectRDMAWrites, cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
              cudaFlushGPUDirectRDMAWritesToOwner);
    return {};
  }

  bool peer_access(int device, int peer) override {
    const int n = devices();
    if (device < 0 || peer < 0 || device >= n || peer >= n) return false;
    int can = device == peer;
    if (!can && cudaDeviceCanAccessPeer(&can, device, peer) != cudaSuccess) (void)cudaGetLastError();
    return can != 0;
  }
  Status enable_peer(int device, int peer) override {
    OURO_ON(device);
    if (device == peer) return {};
    const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) return (void)cudaGetLastError(), Status{};
    return check(error, "cudaDeviceEnablePeerAccess");
  }

  Result<std::vector<Uuid>> reachable(int device) override {
    OURO_TRY(works());
    if (device < 0 || device >= devices())
      return invalid(fmt::format("device {}: there are {}", device, devices()));
    // CUDA itself answers for devices that it sees; only the management library knows the others.
    std::vector<Uuid> all, seen;
    for (int other = 0; other < devices(); ++other) {
      OURO_ASSIGN(seen.emplace_back(), uuid_of(other));
      if (other != device && peer_access(device, other)) all.push_back(seen.back());
    }
    for (const Uuid& other : reachable_by_nvml(seen[static_cast<std::size_t>(device)]))
      if (std::ranges::find(seen, other) == seen.end()) all.push_back(other);
    return all;
  }

  Result<int> current_device() override {
    OURO_TRY(works());
    int device = 0;
    OURO_CUDA(cudaGetDevice, &device);
    return device;
  }
  Status set_current_device(int device) override {
    OURO_TRY(works());
    return check(cudaSetDevice(device), "cudaSetDevice");
  }

  // Streams and events.
  Result<Stream> create_stream(int device, int priority) override {
    OURO_ON(device);
    cudaStream_t s = nullptr;
    OURO_CUDA(cudaStreamCreateWithPriority, &s, cudaStreamNonBlocking, priority);
    return Stream{device, s};
  }
  Status destroy_stream(Stream s) override {
    return on(s.device, "cudaStreamDestroy", [&] { return cudaStreamDestroy(native(s)); });
  }
  Status check_context(Stream s) override {
    OURO_TRY(works());
    if (!is_created(s)) return {};
    CUcontext of_stream = nullptr;
    CUgreenCtx green = nullptr;
    OURO_DRIVER(cuStreamGetCtx, native(s), &of_stream, &green);
    OURO_ASSIGN(const CUcontext primary, context_of(s.device));
    if (of_stream == primary && green == nullptr) return {};
    return invalid(
        fmt::format("stream {} belongs to {}, not to the primary context of GPU {}; expected a stream "
                    "that was made with that context current, as CUDA's runtime makes them",
                    s.handle, green ? "a green context" : "another context or device", s.device));
  }
  Status synchronize(Stream s) override {
    return aside(s.device, "cudaStreamSynchronize", [&] { return cudaStreamSynchronize(native(s)); });
  }
  Result<bool> query(Stream s) override {
    OURO_ON(s.device);
    const Relaxed relaxed;
    return done(cudaStreamQuery(native(s)), "cudaStreamQuery");
  }
  Result<Event> create_event(int device, bool timing) override {
    OURO_ON(device);
    cudaEvent_t e = nullptr;
    OURO_CUDA(cudaEventCreateWithFlags, &e, timing ? cudaEventDefault : cudaEventDisableTiming);
    return Event{e};
  }
  Status destroy_event(Event e) override {
    return on(kAnyDevice, "cudaEventDestroy", [&] { return cudaEventDestroy(native(e)); });
  }
  Status record(Event e, Stream s) override {
    return on(s.device, "cudaEventRecord", [&] { return cudaEventRecord(native(e), native(s)); });
  }
  Status wait(Stream s, Event e) override {
    return on(s.device, "cudaStreamWaitEvent", [&] { return cudaStreamWaitEvent(native(s), native(e), 0); });
  }
  Status synchronize(Event e) override {
    return aside(kAnyDevice, "cudaEventSynchronize", [&] { return cudaEventSynchronize(native(e)); });
  }
  Result<bool> query(Event e) override {
    OURO_ON(kAnyDevice);
    const Relaxed relaxed;
    return done(cudaEventQuery(native(e)), "cudaEventQuery");
  }
  Result<float> elapsed_ms(Event from, Event to) override {
    OURO_ON(kAnyDevice);
    float ms = 0;
    OURO_CUDA(cudaEventElapsedTime, &ms, native(from), native(to));
    return ms;
  }

  // Enqueued work.
  Status copy(void* to, const void* from, std::size_t bytes, Stream s) override {
    OURO_ON(s.device);
    if (bytes == 0) return {};
    return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native(s)), "cudaMemcpyAsync");
  }
  Status set(void* to, std::uint8_t byte, std::size_t bytes, Stream s) override {
    OURO_ON(s.device);
    if (bytes == 0) return {};
    return check(cudaMemsetAsync(to, byte, bytes, native(s)), "cudaMemsetAsync");
  }
  Status enqueue(std::span<const MemOp> ops, Stream s) override {
    OURO_ON(s.device);
    for (const MemOp& op : ops)
      if (op.address == nullptr || address(op.address) % sizeof(op.value) != 0)
        return invalid(fmt::format("stream value at {}: not the address of a 32-bit word", op.address));
    // The driver takes fewer than 256 at a time, and fences before each write for the whole system.
    constexpr std::size_t kAtOnce = 64;
    CUstreamBatchMemOpParams batch[kAtOnce];
    while (!ops.empty()) {
      const std::size_t n = std::min(ops.size(), kAtOnce);
      for (std::size_t i = 0; i < n; ++i) {
        const MemOp& op = ops[i];
        CUstreamBatchMemOpParams& one = batch[i] = {};
        if (op.kind == MemOp::Kind::write) {
          one.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
          one.writeValue.address = address(op.address);
          one.writeValue.value = op.value;
          one.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
        } else {
          one.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
          one.waitValue.address = address(op.address);
          one.waitValue.value = op.value;
          one.waitValue.flags =
              op.kind == MemOp::Kind::wait_equal ? CU_STREAM_WAIT_VALUE_EQ : CU_STREAM_WAIT_VALUE_GEQ;
        }
      }
      OURO_DRIVER(cuStreamBatchMemOp, native(s), static_cast<unsigned>(n), batch, 0);
      ops = ops.subspan(n);
    }
    return {};
  }
  Status launch(const Kernel& k, Shape shape, const void* args, Stream s) override {
    OURO_ON(s.device);
    if (k.device == nullptr) return no_kernel(k);
    if (shape.blocks < 1 || shape.threads < 1)
      return invalid(fmt::format("kernel {}: {} blocks of {} threads", k.name, shape.blocks, shape.threads));
    LaunchTerms terms = launch_terms(k, k.spins ? high_priority(s.device) : 0);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
    config.blockDim = dim3(static_cast<unsigned>(shape.threads));
    config.stream = native(s);
    config.attrs = &terms.attribute;
    config.numAttrs = terms.count;
    void* parameters[] = {const_cast<void*>(args)};
    if (const cudaError_t error = cudaLaunchKernelExC(&config, k.device, parameters); error != cudaSuccess)
      return failed(error, "cudaLaunchKernelExC",
                    fmt::format("{} with {} blocks of {} threads", k.name, shape.blocks, shape.threads));
    return {};
  }
  Status call_host(Stream s, void (*f)(void*), void* data) override {
    return on(s.device, "cudaLaunchHostFunc", [&] { return cudaLaunchHostFunc(native(s), f, data); });
  }

  // Graphs.
  Result<std::uint64_t> capturing(Stream s) override {
    OURO_ON(s.device);
    // The legacy stream is never captured, and a query of it disturbs streams that are.
    if (s.handle == nullptr || s.handle == kLegacyStream) return std::uint64_t{0};
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    OURO_CUDA(cudaStreamGetCaptureInfo, native(s), &status, &id);
    if (status == cudaStreamCaptureStatusInvalidated)
      return failed(cudaErrorStreamCaptureInvalidated, "cudaStreamGetCaptureInfo");
    return std::uint64_t{status == cudaStreamCaptureStatusActive ? id : 0};
  }
  Status begin_capture(Stream s) override {
    OURO_ON(s.device);
    return check(cudaStreamBeginCapture(native(s), cudaStreamCaptureModeThreadLocal),
                 "cudaStreamBeginCapture");
  }
  Result<Graph> end_capture(Stream s) override {
    OURO_ON(s.device);
    cudaGraph_t graph = nullptr;
    OURO_CUDA(cudaStreamEndCapture, native(s), &graph);
    const Relaxed relaxed;
    cudaGraphExec_t ready = nullptr;
    Status status = check(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
    (void)cudaGraphDestroy(graph);
    OURO_TRY(status);
    // Without this the first launch uploads the graph, perhaps while a kernel that waits for that launch
    // occupies the device.
    if (status = check(cudaGraphUpload(ready, native(s)), "cudaGraphUpload"); !status.ok()) {
      (void)cudaGraphExecDestroy(ready);
      return status;
    }
    return Graph{ready};
  }
  Status launch(Graph g, Stream s) override {
    return on(s.device, "cudaGraphLaunch", [&] { return cudaGraphLaunch(native(g), native(s)); });
  }
  Status destroy_graph(Graph g) override {
    return aside(kAnyDevice, "cudaGraphExecDestroy", [&] { return cudaGraphExecDestroy(native(g)); });
  }

  // Kernels.
  Result<KernelInfo> info(const Kernel& k, int device) override {
    OURO_ON(device);
    if (k.device == nullptr) return no_kernel(k);
    const Relaxed relaxed;
    cudaFuncAttributes a = {};
    if (const cudaError_t error = cudaFuncGetAttributes(&a, k.device); error != cudaSuccess)
      return failed(error, "cudaFuncGetAttributes", k.name);
    return KernelInfo{.registers = a.numRegs,
                      .max_threads = a.maxThreadsPerBlock,
                      .local_bytes = a.localSizeBytes,
                      .shared_bytes = a.sharedSizeBytes,
                      .architecture = a.ptxVersion};
  }
  Status reserve_stack(int device, std::size_t bytes) override {
    OURO_ON(device);
    const Relaxed relaxed;
    std::size_t now = 0;
    OURO_DRIVER(cuCtxGetLimit, &now, CU_LIMIT_STACK_SIZE);
    if (now < bytes) OURO_DRIVER(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, bytes);
    return {};
  }
  Result<int> resident_blocks(const Kernel& k, int threads, int device) override {
    const Result<Properties> p = properties(device);
    OURO_TRY(p.status());
    OURO_ON(device);
    if (k.device == nullptr) return no_kernel(k);
    const Relaxed relaxed;
    int each = 0;
    if (const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, k.device, threads, 0);
        error != cudaSuccess)
      return failed(error, "cudaOccupancyMaxActiveBlocksPerMultiprocessor", k.name);
    return each * p->multiprocessors;
  }

 private:
  /// The highest priority, queried once; 0, the lowest, if the device reports none.
  int high_priority(int device) {
    std::atomic<int>& known = high_[static_cast<std::size_t>(device)];
    int high = known.load(std::memory_order_relaxed);
    if (high == 0) {
      const auto p = properties(device);
      known.store(high = p.ok() ? p->high_priority : 0, std::memory_order_relaxed);
    }
    return high;
  }

  std::array<std::atomic<int>, kMaxDevices> high_{};  // priorities are below 0; 0: not queried yet
  std::mutex properties_mutex_;
  std::vector<std::optional<Properties>> properties_;
};

}  // namespace

Gpu& cuda_even_without_driver() {
  static Cuda* one = new Cuda;  // never destroyed, as the driver
  return *one;
}

Gpu* cuda(std::string* why) {
  Gpu& one = cuda_even_without_driver();
  if (driver().why.empty()) return &one;
  if (why != nullptr) *why = one.version();
  return nullptr;
}

}  // namespace ouro::gpu
