// FakeGpu: GPUs made of host objects. They behave as CUDA guarantees in order, capture, sharing and errors,
// without a GPU, and fail on request. Used by tests, and by gpu() where OURO_FAKE_GPUS is set.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>

#include "kernels/device/gpu.h"

namespace ouro::gpu {

/// Behaviour that CUDA permits but rarely shows. A fake that always shows it reveals code that relies on the
/// usual behaviour. A call that waits in vain fails after `patience`, and is counted as a stall.
struct FakeHarsh {
  /// The first launch of a kernel on a device, or the first query of it, waits for all work there.
  bool lazy_loading = false;
  /// alloc, alloc_pinned and register_host wait for all work, and alloc_shareable for that of all devices
  /// that can map the memory.
  bool allocation_waits = false;
  /// enable_peer waits for all work of both devices, unless the pair has access already.
  bool peering_waits = false;
  bool sharing_waits = false;  ///< retain_piece and open_to_peers wait for all work of the device
  /// The first launch of a kernel that needs more stack than any before, and than was reserved, waits for all
  /// work of the device, as does reserve_stack.
  bool stack_waits = false;
  /// free_region and ipc_close wait for all work of their device and then unmap at once: a kernel that
  /// touches unmapped memory faults.
  bool unmapping_waits = false;
  /// Hardware queues that the streams of a device share in turn; each begins what it holds in the order in
  /// which it was enqueued. A kernel leaves its queue when it begins, other work when it has ended. What
  /// follows in the same stream stays in the queue until the kernel has ended, except records of events.
  /// 0: each stream has its own.
  int connections = 0;
  /// Operations that a stream holds. The next call waits for room, and with it every call of the process that
  /// enqueues. 0: no limit.
  int depth = 0;
  std::chrono::milliseconds patience{20'000};
};

struct FakeOptions {
  int devices = 1;
  std::size_t memory_bytes = std::size_t{4} << 30;  ///< of each device, in each process
  int multiprocessors = 4;
  bool shareable_memory = true, ipc = true, stream_values = true;
  bool device_words = true;        ///< false: stream values in device memory are refused
  bool multicast = false;          ///< multicast objects, of regions of shareable memory
  bool mps = false;                ///< Properties::mps; kernels of processes always run at the same time here
  int architecture = 90;           ///< the architecture that kernels report to be compiled for
  bool has_code = true;            ///< false: no kernel was compiled for these devices
  std::size_t stack_bytes = 1024;  ///< of a thread at first, as in CUDA
  std::function<std::size_t(const Kernel&)> local_bytes = {};  ///< KernelInfo::local_bytes; empty: 0
  std::function<bool(int device, int peer)> peer = {};  ///< which devices reach each other; empty: all do
  /// Whether memory of other processes that a device maps is other memory than theirs, as behind some bridges
  /// of virtual machines, although the devices report that they reach each other. By number on the host.
  std::function<bool(int device)> misdirected = {};
  /// As CUDA_VISIBLE_DEVICES: device 0 here is number `first` of the host's `host_devices` (0: this process
  /// sees all).
  int first = 0, host_devices = 0;
  FakeHarsh harsh = {};
  /// Called for each copy on a stream as it begins, by the thread of the stream.
  std::function<void(const void* to, const void* from, std::size_t bytes)> copying = {};
  /// Called for each operation on a word when it is enqueued on a stream of `device`. `memory`: the device
  /// whose memory it is in, -1: the host's. `imported`: it is another process's, mapped by device `memory`.
  std::function<void(const MemOp&, int device, int memory, bool imported)> on_word = {};
  /// Called at each step of a multicast object ("create", "export", "import", "join", "bind"): the step
  /// returns its error.
  std::function<Status(std::string_view step, int device)> multicasting = {};
};

/// Kinds of calls, for delays and failures. Up to `graph` they end on a stream's thread, else in the call.
enum class FakeOp : std::uint8_t {
  record,
  wait,
  copy,
  set,
  mem_op,
  kernel,
  call_host,
  graph,
  alloc,        ///< alloc, alloc_shareable, alloc_pinned, register_host
  free,         ///< free, free_region, ipc_close, free_pinned, unregister_host
  share,        ///< export_fd, import_fd, ipc_export, ipc_open
  create,       ///< create_stream, create_event
  synchronize,  ///< synchronize, query
  capture,      ///< begin_capture, end_capture
};
inline constexpr int kFakeOps = static_cast<int>(FakeOp::capture) + 1;

/// Numbers of objects that have been made and not yet released in this process.
struct FakeLive {
  int allocations = 0;  ///< alloc, alloc_shareable, alloc_pinned, map
  int registrations = 0, imports = 0, streams = 0, events = 0, graphs = 0, multicasts = 0;
  int retained = 0;  ///< pieces
  friend bool operator==(const FakeLive&, const FakeLive&) = default;
};

/// Stricter than CUDA where CUDA leaves something undefined or waits for ever:
/// - Device memory is shared memory of this host. It holds 0xa5 at first, not zeros.
/// - Releasing memory waits for all work of its device (pinned memory: of all devices; a region: of none).
///   After `patience` the call fails with `resource`, names the stream, and releases nothing.
/// - Copies and stream values are checked when they are enqueued (`invalid`) and again when they run (the
///   device is lost, as after an illegal address).
/// - A spinning kernel with more blocks than fit is refused. Spinning kernels that fit only one after the
///   other run one after the other.
/// - A graph runs once at a time: launches of it, on whatever streams, run one after the other.
/// - Streams of a capture run concurrently at each replay, ordered by what they waited for.
/// - A forked child starts with fresh devices. Streams, events and graphs of its parent are `forked` there,
///   and the parent's memory is not mapped.
/// - Priorities are checked and make no difference.
/// - The handles 1 and 2 are the legacy default stream and that of the calling thread, as in CUDA.
/// - A multicast address is mapped for nobody: ordinary accesses fault. Kernels that use it before all
///   members have bound, or while one unbinds, end the process, as a fault that no test can miss.
/// - On a lost device, calls that release something do so and return the error.
///
/// The destructor ends all waits, drops enqueued work and joins all threads. It waits only for kernels and
/// host functions that are running at that moment.
class FakeGpu final : public Gpu {
 public:
  explicit FakeGpu(FakeOptions = {});
  ~FakeGpu() override;
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  /// From now on each operation of this kind takes so much longer; 0 ends the delay.
  void delay(FakeOp, std::chrono::microseconds);
  /// The next call of this kind fails with this reason and does nothing. The exception is `device` for kinds
  /// that run on a stream: that call succeeds, and its device is lost when the work runs.
  void fail_next(FakeOp, Reason);
  /// Drops the work that is enqueued on the device and ends its waits; every later call fails with `device`.
  /// Events of the device no longer hold up streams of other devices.
  void lose(int device);
  /// Half of the operations sleep up to 200 us before they run, chosen by the seed; 0 ends these delays.
  void jitter(std::uint64_t seed);
  FakeLive live();
  int stalls();    ///< calls that waited until patience ran out
  int contexts();  ///< devices of which more than their number and reach was queried: CUDA has a context on
                   ///< each

  // Functions of CUDA's runtime that Gpu lacks, for the runtime of the tests.
  /// Makes a stream that the legacy stream of its device waits for, and that waits for it.
  Result<Stream> create_blocking_stream(int device, int priority);
  /// Makes a stream of another context than the one of this interface, which refuses it.
  Result<Stream> create_foreign_stream(int device);
  /// Waits for all work of a device, however long that takes.
  Status synchronize(int device);
  /// Frees memory of alloc in stream order. Errors: unsupported (in a capture).
  Status free(void*, Stream);
  Result<std::size_t> memory_left(int device);  ///< bytes that this process can still allocate

  // Memory as a program makes it with cuMemCreate and cuMemMap, for tests that stand for such programs.
  /// Addresses for chunks; a multiple of 64 KiB.
  Result<void*> reserve(int device, std::size_t bytes);
  Status unreserve(void*);
  /// Maps new memory at an address. `shareable`: with a handle type that can be passed to other processes.
  Status map(int device, void* at, std::size_t bytes, bool shareable = true);
  /// Waits for all work of the device, and unmaps the chunk that begins at the address.
  Status unmap(void* at);
  /// The number of times that memory was freed while another process had it open by its handle, which is
  /// undefined in CUDA, or while it was retained. A warning names it each time.
  int freed_in_use();

  const char* name() const override { return "fake"; }
  std::string version() const override;
  int devices() override { return options_.devices; }
  Result<Properties> properties(int device) override;
  bool peer_access(int device, int peer) override;
  Status enable_peer(int device, int peer) override;
  Result<std::vector<Uuid>> reachable(int device) override;
  Result<int> current_device() override;
  Status set_current_device(int device) override;

  Result<void*> alloc(int device, std::size_t bytes) override;
  Status free(void*) override;
  Result<Region> alloc_shareable(int device, std::size_t bytes) override;
  Result<Fd> export_fd(const Region&) override;
  Result<Region> import_fd(int device, const Fd&, std::size_t bytes) override;
  Status free_region(const Region&) override;
  Result<IpcHandle> ipc_export(void* base) override;
  Result<void*> ipc_open(int device, const IpcHandle&) override;
  Status ipc_close(int device, void*) override;
  Result<PointerInfo> pointer(const void*) override;
  Result<void*> alloc_pinned(std::size_t bytes) override;
  Status free_pinned(void*) override;
  Result<void*> register_host(void*, std::size_t bytes) override;
  Status unregister_host(void*) override;

  Result<Region> retain_piece(const void*) override;
  Status release_piece(const Region&) override;
  Result<Fd> export_piece(const Region&) override;
  Status open_to_peers(const Region&) override;
  Result<MappedRange> reserve_range(int device, std::size_t bytes) override;
  Status map_piece(MappedRange*, const Fd&, std::size_t bytes) override;
  Status free_range(const MappedRange&) override;

  Result<Multicast> multicast_create(int device, int devices, std::size_t bytes) override;
  Result<Fd> export_fd(const Multicast&) override;
  Result<Multicast> multicast_import(int device, const Fd&, std::size_t bytes) override;
  Status multicast_join(const Multicast&) override;
  Status multicast_bind(Multicast*, const Region&) override;
  Status free_multicast(const Multicast&) override;
  int multicast_members(const void* address, std::byte** members) override;

  /// Memory of emulated devices is coherent.
  Status flush_arrivals(int) override { return {}; }

  Result<Stream> create_stream(int device, int priority) override;
  Status destroy_stream(Stream) override;
  Status check_context(Stream) override;
  Status synchronize(Stream) override;
  Result<bool> query(Stream) override;
  Result<Event> create_event(int device, bool timing) override;
  Status destroy_event(Event) override;
  Status record(Event, Stream) override;
  Status wait(Stream, Event) override;
  Status synchronize(Event) override;
  Result<bool> query(Event) override;
  Result<float> elapsed_ms(Event from, Event to) override;

  Status copy(void* to, const void* from, std::size_t bytes, Stream) override;
  Status set(void* to, std::uint8_t byte, std::size_t bytes, Stream) override;
  Status enqueue(std::span<const MemOp>, Stream) override;
  Status launch(const Kernel&, Shape, const void* args, Stream) override;
  Status call_host(Stream, void (*f)(void*), void* data) override;

  Result<std::uint64_t> capturing(Stream) override;
  Status begin_capture(Stream) override;
  Result<Graph> end_capture(Stream) override;
  Status launch(Graph, Stream) override;
  Status destroy_graph(Graph) override;
  /// Operations that a graph has, or that a stream's capture has so far (0: it is in none); events are none.
  Result<std::size_t> nodes(Graph);
  Result<std::size_t> nodes(Stream);

  Result<KernelInfo> info(const Kernel&, int device) override;
  Status reserve_stack(int device, std::size_t bytes) override;
  Result<int> resident_blocks(const Kernel&, int threads, int device) override;

 private:
  struct State;
  State& state();  ///< of this process: a forked child makes its own

  const FakeOptions options_;
  std::atomic<State*> state_;
};

}  // namespace ouro::gpu
