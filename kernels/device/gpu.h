// Gpu: everything that ouro needs from GPUs, as one interface. Implemented by CUDA (cuda.cc, cuda_memory.cc
// and cuda_driver.cc, which alone call it) and by a fake of host objects (fake_gpu.cc). Used by executors,
// transports, kernels' launchers and tools.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/status.h"

namespace ouro::gpu {

/// Handles that CUDA gives a meaning: the legacy default stream, which is also the null handle, and that of
/// the calling thread.
inline void* const kLegacyStream = reinterpret_cast<void*>(1);
inline void* const kThreadStream = reinterpret_cast<void*>(2);

/// A stream of a device. `handle` is a cudaStream_t (nullptr: the legacy default stream).
struct Stream {
  int device = -1;
  void* handle = nullptr;
  friend bool operator==(const Stream&, const Stream&) = default;
};
/// Whether it is none of the default streams.
inline bool is_created(const Stream& s) {
  return s.handle != nullptr && s.handle != kLegacyStream && s.handle != kThreadStream;
}
struct Event {
  void* handle = nullptr;
};
/// A captured graph, ready to be launched.
struct Graph {
  void* handle = nullptr;
};

using Uuid = std::array<unsigned char, 16>;  ///< the same device has the same UUID in all processes

struct Properties {
  std::string name;
  Uuid uuid = {};
  std::string pci_bus_id;    ///< "0000:17:00.0"
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  std::size_t memory_bytes = 0, l2_bytes = 0;
  bool shareable_memory = false;  ///< alloc_shareable works
  bool ipc = false;               ///< ipc_export works
  bool stream_values = false;     ///< enqueue(MemOp) works on registered host memory
  /// enqueue(MemOp) also works on memory of this device, and on memory of others that is mapped here.
  bool device_words = false;
  bool multicast = false;  ///< multicast_create works
  bool mps = false;        ///< contexts of processes are shared (MPS): their kernels run at the same time
  /// Hardware queues that all streams of the device in this process share, in which a stream that waits holds
  /// up those behind it. 0: each stream has its own.
  int connections = 0;
  int low_priority = 0, high_priority = 0;  ///< of streams; numerically high <= low
};

enum class MemoryKind : std::uint8_t { unknown, host, pinned, device, managed };

/// The properties of an address.
struct PointerInfo {
  MemoryKind kind = MemoryKind::unknown;
  int device = -1;
  void* base = nullptr;          ///< of the allocation (device memory only); of cuMemMap: of one mapping
  std::size_t bytes = 0;         ///< of the same
  std::uint64_t allocation = 0;  ///< never reused in a process: identifies a new allocation at an old address
  bool legacy_ipc = false;       ///< ipc_export accepts it
};

/// Device memory that other processes can map.
struct Region {
  int device = -1;
  void* data = nullptr;
  std::size_t bytes = 0;  ///< rounded up to the device's granularity
  std::uint64_t handle = 0;
};

/// A reserved range of addresses into which pieces of memory of another process are mapped one
/// after the other.
struct MappedRange {
  int device = -1;
  void* data = nullptr;
  std::size_t bytes = 0;   ///< reserved
  std::size_t mapped = 0;  ///< from the beginning on
};

/// One device's part in a multicast object: memory of several devices at one address, from which a switch
/// reads all of it, reduced, and to which it writes all at once. Ordinary accesses of that address fault.
struct Multicast {
  int device = -1;
  std::size_t bytes = 0;  ///< rounded up to the granularity of such objects
  std::uint64_t handle = 0;
  Region region = {};    ///< what has been bound
  void* data = nullptr;  ///< where it is mapped, once bound
};

using IpcHandle = std::array<std::byte, 64>;

/// An operation of the stream itself on a 32-bit word ("at least" counts cyclically), in registered host
/// memory or, if Properties::device_words, in device memory; aligned to 4 bytes.
struct MemOp {
  enum class Kind : std::uint8_t { wait_equal, wait_at_least, write } kind = Kind::write;
  std::uint32_t value = 0;
  void* address = nullptr;  ///< as the device sees it (register_host)
};

/// A kernel: its device entry, and the same body for one block by one host thread (what the fake runs).
/// All kernels take one argument, a trivially copied struct of `arg_bytes` bytes.
struct Kernel {
  const char* name = "";
  const void* device = nullptr;  ///< nullptr in builds without a CUDA compiler
  void (*host)(const void* args, int block, int blocks) = nullptr;
  std::size_t arg_bytes = 0;
  /// Its blocks wait for each other or for another rank's, so all must be resident at once; resident_blocks
  /// says in advance whether they can be. It is launched with the highest priority.
  bool spins = false;
};
struct Shape {
  int blocks = 1, threads = 256;
};
struct KernelInfo {
  int registers = 0, max_threads = 0;
  std::size_t local_bytes = 0;  ///< of the stack of each thread: what was spilled, and the frames of calls
  std::size_t shared_bytes = 0;
  int architecture = 0;  ///< whose instructions are allowed: 90 for sm_90, on newer devices, too
};

/// Calls may come from any thread; each leaves the thread's current device as it was. Errors: `resource` (no
/// memory, no descriptors), `invalid` (arguments), `unsupported` (this device or driver cannot), `device`
/// (lost or faulted: nothing of that device works again). An asynchronous fault is returned by a later call.
class Gpu {
 public:
  virtual ~Gpu() = default;
  virtual const char* name() const = 0;     ///< "cuda", "fake" or "none"
  virtual std::string version() const = 0;  ///< of driver and runtime; the missing part, if nothing works
  virtual int devices() = 0;                ///< 0 without a driver; never an error
  virtual Result<Properties> properties(int device) = 0;
  virtual bool peer_access(int device, int peer) = 0;    ///< whether `device` can map memory of `peer`
  virtual Status enable_peer(int device, int peer) = 0;  ///< idempotent
  /// The other devices whose memory `device` can map, also those that this process does not see. Makes no
  /// context on them, which would take hundreds of MiB of each.
  virtual Result<std::vector<Uuid>> reachable(int device) = 0;
  /// The current device of the calling thread.
  virtual Result<int> current_device() = 0;
  virtual Status set_current_device(int device) = 0;

  // Memory. alloc and free may wait for the whole device, so they must not be called between enqueue
  // and completion.
  virtual Result<void*> alloc(int device, std::size_t bytes) = 0;
  virtual Status free(void*) = 0;
  virtual Result<Region> alloc_shareable(int device, std::size_t bytes) = 0;
  virtual Result<Fd> export_fd(const Region&) = 0;
  /// Maps memory that another process has exported; readable and writable from `device`. `bytes` is that of
  /// its Region.
  virtual Result<Region> import_fd(int device, const Fd&, std::size_t bytes) = 0;
  virtual Status free_region(const Region&) = 0;
  /// For the base of a legacy allocation (PointerInfo::base).
  virtual Result<IpcHandle> ipc_export(void* base) = 0;
  /// Must not be called in the process that exported (`invalid`). The exporter frees only after ipc_close.
  virtual Result<void*> ipc_open(int device, const IpcHandle&) = 0;
  virtual Status ipc_close(int device, void*) = 0;
  virtual Result<PointerInfo> pointer(const void*) = 0;
  virtual Result<void*> alloc_pinned(std::size_t bytes) = 0;  ///< same address on host and device
  virtual Status free_pinned(void*) = 0;
  /// Pins memory of the host and gives its address on the devices.
  virtual Result<void*> register_host(void*, std::size_t bytes) = 0;
  virtual Status unregister_host(void*) = 0;

  // Memory that the program has mapped itself with cuMemMap, in pieces: NCCL's ncclMemAlloc and the
  // expandable segments of PyTorch do so. All calls are `unsupported` if a device has no shareable memory.
  /// Returns the piece that is mapped at `p` and keeps its memory allocated until release_piece, even if the
  /// program unmaps it. Errors: invalid (not memory of a device), unsupported (other processes cannot map it;
  /// the text says why).
  virtual Result<Region> retain_piece(const void* p);
  virtual Status release_piece(const Region&);
  virtual Result<Fd> export_piece(const Region&);
  /// Gives the other devices of this process access to the piece, if they can map memory of its device;
  /// enable_peer does not do that for such memory. Uses only device, address and bytes of the Region.
  virtual Status open_to_peers(const Region&);
  /// Reserves addresses for all pieces of an import. map_piece then maps them in order, readable and writable
  /// from `device`.
  virtual Result<MappedRange> reserve_range(int device, std::size_t bytes);
  /// Errors: invalid (`bytes` are not those of the piece, or more than are left of the range).
  virtual Status map_piece(MappedRange*, const Fd&, std::size_t bytes);
  /// Unmaps all pieces. Like free_region, it does not wait.
  virtual Status free_range(const MappedRange&);

  // Multicast objects. One device makes an object for a number of devices, itself included; each joins; when
  // all have, each binds memory of its own. A kernel may touch the object only when all have bound. All calls
  // are `unsupported` if a device has no multicast.
  virtual Result<Multicast> multicast_create(int device, int devices, std::size_t bytes);
  virtual Result<Fd> export_fd(const Multicast&);
  /// Opens an object by a descriptor that export_fd returned, in this process or another; `bytes` is that of
  /// the object.
  virtual Result<Multicast> multicast_import(int device, const Fd&, std::size_t bytes);
  virtual Status multicast_join(const Multicast&);
  /// Binds a region of the same device, of Multicast::bytes and more, and maps the object. Errors: invalid,
  /// if a device has not joined; the driver may wait for it instead.
  virtual Status multicast_bind(Multicast*, const Region&);
  /// Unmaps, unbinds and releases, whatever of these steps applies. Precondition: no kernel touches the
  /// device's part any more.
  virtual Status free_multicast(const Multicast&);
  /// For kernel bodies on the host, on emulated devices only: sets `members` to the place of `address` in the
  /// memory of each member and returns their number; 0 if this is no multicast address. Ends the process if a
  /// member has not bound.
  virtual int multicast_members(const void* address, std::byte** members);

  /// Makes data that a network adapter has written to memory of the device by now visible to all work that
  /// begins there later. Errors: unsupported (this device or driver cannot guarantee it).
  virtual Status flush_arrivals(int device);
  /// For calls of other libraries into the driver: the device is current in this thread until the returned
  /// owner is destroyed, on the same thread, and calls of the thread do not disturb a capture of another.
  /// Like all calls it makes no context on the device that was current before. Errors: those of a device that
  /// cannot be used.
  virtual Result<std::shared_ptr<void>> scope(int device);

  // Streams and events. Priority: low_priority..high_priority. Streams made here never wait for the
  // legacy stream.
  virtual Result<Stream> create_stream(int device, int priority) = 0;
  virtual Status destroy_stream(Stream) = 0;
  /// For a stream that the program has made: whether it belongs to the context that this interface uses, the
  /// device's primary one. Errors: invalid.
  virtual Status check_context(Stream) = 0;
  virtual Status synchronize(Stream) = 0;
  virtual Result<bool> query(Stream) = 0;  ///< whether all enqueued work has ended
  virtual Result<Event> create_event(int device, bool timing) = 0;
  virtual Status destroy_event(Event) = 0;
  virtual Status record(Event, Stream) = 0;
  virtual Status wait(Stream, Event) = 0;  ///< work enqueued from now on starts after the event's last record
  virtual Status synchronize(Event) = 0;
  virtual Result<bool> query(Event) = 0;  ///< true if never recorded
  virtual Result<float> elapsed_ms(Event from, Event to) = 0;

  // Enqueued work.
  virtual Status copy(void* to, const void* from, std::size_t bytes,
                      Stream) = 0;  ///< any two kinds of memory
  virtual Status set(void* to, std::uint8_t byte, std::size_t bytes, Stream) = 0;
  virtual Status enqueue(std::span<const MemOp>,
                         Stream) = 0;  ///< in order; each write is a release, each wait an acquire
  virtual Status launch(const Kernel&, Shape, const void* args, Stream) = 0;
  /// Runs f(data) on a thread of the driver, in stream order; it must not call this interface or wait long.
  virtual Status call_host(Stream, void (*f)(void*), void* data) = 0;

  // Graphs. Work that is enqueued on a capturing stream is recorded, not run.
  /// Non-zero while the stream is capturing: names the capture.
  virtual Result<std::uint64_t> capturing(Stream) = 0;
  virtual Status begin_capture(Stream) = 0;
  virtual Result<Graph> end_capture(Stream) = 0;  ///< instantiated
  virtual Status launch(Graph, Stream) = 0;
  virtual Status destroy_graph(Graph) = 0;

  // Kernels.
  virtual Result<KernelInfo> info(const Kernel&, int device) = 0;  ///< loads it
  /// Gives each thread of the device at least so much stack; never less than before. A driver that has to
  /// give a kernel more at its launch waits for all work of the device, and so may this call.
  virtual Status reserve_stack(int device, std::size_t bytes) = 0;
  /// Blocks of `threads` threads that can be resident at once on the whole device.
  virtual Result<int> resident_blocks(const Kernel&, int threads, int device) = 0;
};

/// The implementation of this process: that of install(); else the fake if OURO_FAKE_GPUS is positive; else
/// CUDA if it was built in and there is a driver; else one with no devices, whose calls are `unsupported`.
Gpu& gpu();
/// For tests, before any other use; nullptr restores the choice above. Not thread-safe.
void install(Gpu*);

/// An implementation without devices; `why` is its version().
std::unique_ptr<Gpu> no_gpu(std::string why);
/// CUDA, or nullptr with the reason: not built in, no driver, a driver that is too old.
Gpu* cuda(std::string* why);
/// Returns an implementation with so many emulated devices, made of host memory and threads. Never destroyed:
/// streams and memory of users may outlive static destructors.
Gpu* emulated(int devices);

}  // namespace ouro::gpu
