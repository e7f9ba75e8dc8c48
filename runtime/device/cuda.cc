// Gpu by CUDA: the runtime library, linked statically, and what only the driver has, found at run time.
// Used through cuda() of gpu.h by gpu.cc. Nothing but this file and cuda_driver.cc calls CUDA.
#include "runtime/device/cuda_gpu.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/device/cuda_driver.h"
#include "runtime/device/gpu.h"

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
CUdeviceptr address(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

bool attribute(CUdevice_attribute which, int device) {
  CUdevice handle = 0;
  int value = 0;
  return driver().cuDeviceGet(&handle, device) == CUDA_SUCCESS &&
         driver().cuDeviceGetAttribute(&value, which, handle) == CUDA_SUCCESS && value != 0;
}

Status no_kernel(const Kernel& k) {
  return unsupported(fmt::format("kernel {} was built without device code", k.name));
}

Status no_bytes() { return invalid("an allocation of 0 bytes"); }

CUmemAllocationProp shareable_on(int device) {
  CUmemAllocationProp p = {};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  p.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return p;
}

/// Undoes what was done so far when map() or its caller fails.
Status unmap(const Region& r, bool mapped) {
  const Driver& d = driver();
  Status first;
  const auto note = [&](Status s) {
    if (first.ok()) first = std::move(s);
  };
  if (mapped) note(check(d.cuMemUnmap(address(r.data), r.bytes), "cuMemUnmap"));
  if (r.data != nullptr) note(check(d.cuMemAddressFree(address(r.data), r.bytes), "cuMemAddressFree"));
  note(check(d.cuMemRelease(r.handle), "cuMemRelease"));
  return first;
}

/// Gives r.handle an address that `devices` can read and write. Releases the handle if it fails.
Status map(Region& r, const std::vector<int>& devices) {
  const Driver& d = driver();
  CUdeviceptr at = 0;
  if (Status s = check(d.cuMemAddressReserve(&at, r.bytes, 0, 0, 0), "cuMemAddressReserve"); !s.ok()) {
    (void)unmap(r, false);
    return s;
  }
  r.data = reinterpret_cast<void*>(at);
  if (Status s = check(d.cuMemMap(at, r.bytes, 0, r.handle, 0), "cuMemMap"); !s.ok()) {
    (void)unmap(r, false);
    return s;
  }
  std::vector<CUmemAccessDesc> access;
  for (int device : devices)
    access.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  Status s = check(d.cuMemSetAccess(at, r.bytes, access.data(), access.size()), "cuMemSetAccess");
  if (!s.ok()) (void)unmap(r, true);
  return s;
}

class Cuda final : public Gpu {
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
      // Memory handles go where event handles go; where both are missing (WSL, Tegra) only this says so.
      mine.ipc = p.unifiedAddressing != 0 && p.ipcEventSupported != 0;
      mine.stream_values = true;  // 32-bit operations: every device of a driver that this runtime accepts
      known = std::move(mine);
    }
    return *known;
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

  // Memory.
  Result<void*> alloc(int device, std::size_t bytes) override {
    OURO_ON(device);
    if (bytes == 0) return no_bytes();
    const Relaxed relaxed;
    void* p = nullptr;
    if (const cudaError_t error = cudaMalloc(&p, bytes); error != cudaSuccess)
      return failed(error, "cudaMalloc", fmt::format("{} bytes on device {}", bytes, device));
    return p;
  }
  Status free(void* p) override {
    return aside(kAnyDevice, "cudaFree", [&] { return cudaFree(p); });
  }

  Result<Region> alloc_shareable(int device, std::size_t bytes) override {
    OURO_ON(device);
    if (bytes == 0) return no_bytes();
    const Relaxed relaxed;
    const CUmemAllocationProp kind = shareable_on(device);
    std::size_t grain = 0;
    OURO_DRIVER(cuMemGetAllocationGranularity, &grain, &kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    Region r{.device = device, .bytes = (bytes + grain - 1) / grain * grain};
    CUmemGenericAllocationHandle handle = 0;
    if (const CUresult error = driver().cuMemCreate(&handle, r.bytes, &kind, 0); error != CUDA_SUCCESS)
      return failed(error, "cuMemCreate", fmt::format("{} bytes on device {}", r.bytes, device));
    r.handle = handle;
    // Unlike memory of cudaMalloc it is not opened to peers by cudaDeviceEnablePeerAccess.
    std::vector<int> readers = {device};
    for (int other = 0; other < devices(); ++other)
      if (other != device && peer_access(other, device)) readers.push_back(other);
    OURO_TRY(map(r, readers));
    return r;
  }
  Result<Fd> export_fd(const Region& r) override {
    OURO_ON(r.device);
    int fd = -1;
    OURO_DRIVER(cuMemExportToShareableHandle, &fd, r.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    Fd owned(fd);
    if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
      return Status{Reason::resource,
                    fmt::format("fcntl(FD_CLOEXEC) of exported memory: {}", std::strerror(errno))};
    return owned;
  }
  Result<Region> import_fd(int device, const Fd& fd, std::size_t bytes) override {
    OURO_ON(device);
    const Relaxed relaxed;
    CUmemGenericAllocationHandle handle = 0;
    void* number = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get()));  // as the driver wants it
    OURO_DRIVER(cuMemImportFromShareableHandle, &handle, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    Region r{.device = device, .bytes = bytes, .handle = handle};
    OURO_TRY(map(r, {device}));
    return r;
  }
  /// Unlike free, it waits for nothing: the caller knows that nobody uses the region.
  Status free_region(const Region& r) override {
    OURO_ON(r.device);
    const Relaxed relaxed;
    return unmap(r, true);
  }

  Result<IpcHandle> ipc_export(void* base) override {
    const Result<PointerInfo> what = pointer(base);
    OURO_TRY(what.status());
    if (what->kind != MemoryKind::device)
      return invalid(fmt::format("{} is no memory of a device: nothing to export", base));
    if (!what->legacy_ipc)
      return unsupported(fmt::format("{} was not allocated by cudaMalloc: CUDA IPC cannot share it", base));
    OURO_ON(what->device);
    const Relaxed relaxed;
    cudaIpcMemHandle_t native_handle = {};
    OURO_CUDA(cudaIpcGetMemHandle, &native_handle, base);
    IpcHandle handle;
    static_assert(sizeof(handle) == sizeof(native_handle));
    std::memcpy(handle.data(), &native_handle, sizeof(handle));
    return handle;
  }
  Result<void*> ipc_open(int device, const IpcHandle& handle) override {
    OURO_ON(device);
    const Relaxed relaxed;
    cudaIpcMemHandle_t native_handle = {};
    std::memcpy(&native_handle, handle.data(), sizeof(handle));
    void* p = nullptr;
    const cudaError_t error = cudaIpcOpenMemHandle(&p, native_handle, cudaIpcMemLazyEnablePeerAccess);
    if (error == cudaErrorDeviceUninitialized) {  // how CUDA says it
      (void)cudaGetLastError();
      return invalid(
          "cudaIpcOpenMemHandle: this memory was exported by this very process: use its own address");
    }
    OURO_TRY(check(error, "cudaIpcOpenMemHandle"));
    return p;
  }
  Status ipc_close(int device, void* p) override {
    return aside(device, "cudaIpcCloseMemHandle", [&] { return cudaIpcCloseMemHandle(p); });
  }

  Result<PointerInfo> pointer(const void* p) override {
    OURO_TRY(works());
    // One call for all; it needs no context, and knows what is not CUDA's by leaving zeros.
    unsigned type = 0, managed = 0, legacy = 0;
    int device = -1;
    unsigned long long id = 0;
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                   CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_BUFFER_ID};
    void* values[] = {&type, &managed, &legacy, &device, &id};
    const CUresult error = driver().cuPointerGetAttributes(std::size(names), names, values, address(p));
    if (error == CUDA_ERROR_INVALID_VALUE || error == CUDA_ERROR_INVALID_CONTEXT)
      type = 0;
    else
      OURO_TRY(check(error, "cuPointerGetAttributes"));

    PointerInfo info;
    if (type == 0) {
      info.kind = p == nullptr ? MemoryKind::unknown : MemoryKind::host;
      return info;
    }
    info.allocation = id;
    if (managed != 0) {
      info.kind = MemoryKind::managed;
      info.device = device;
    } else if (type == CU_MEMORYTYPE_HOST) {
      info.kind = MemoryKind::pinned;
    } else {
      info.kind = MemoryKind::device;
      info.device = device;
      info.legacy_ipc = legacy != 0;
      OURO_ON(device);
      CUdeviceptr base = 0;
      OURO_DRIVER(cuMemGetAddressRange, &base, &info.bytes, address(p));
      info.base = reinterpret_cast<void*>(base);
    }
    return info;
  }

  Result<void*> alloc_pinned(std::size_t bytes) override {
    OURO_ON(kAnyDevice);
    if (bytes == 0) return no_bytes();
    const Relaxed relaxed;
    void* p = nullptr;
    OURO_CUDA(cudaHostAlloc, &p, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    return p;
  }
  Status free_pinned(void* p) override {
    return aside(kAnyDevice, "cudaFreeHost", [&] { return cudaFreeHost(p); });
  }
  Result<void*> register_host(void* p, std::size_t bytes) override {
    OURO_ON(kAnyDevice);
    const Relaxed relaxed;
    OURO_CUDA(cudaHostRegister, p, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    void* on_device = nullptr;
    if (Status s = check(cudaHostGetDevicePointer(&on_device, p, 0), "cudaHostGetDevicePointer"); !s.ok()) {
      (void)cudaHostUnregister(p);
      return s;
    }
    return on_device;
  }
  Status unregister_host(void* p) override {
    return aside(kAnyDevice, "cudaHostUnregister", [&] { return cudaHostUnregister(p); });
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
    cudaLaunchAttribute cooperative = {};
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;  // refused if its blocks cannot all be resident on an idle device
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
    config.blockDim = dim3(static_cast<unsigned>(shape.threads));
    config.stream = native(s);
    config.attrs = &cooperative;
    config.numAttrs = k.spins ? 1 : 0;
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
    // The legacy stream is never captured, and to ask it disturbs those that are.
    if (s.handle == nullptr) return std::uint64_t{0};
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
    // Else the first launch does it, perhaps while a kernel that waits for that launch holds the device.
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
                      .shared_bytes = a.sharedSizeBytes};
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
  /// For calls that need no context.
  static Status works() { return driver().why.empty() ? Status{} : unsupported(driver().why); }

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
