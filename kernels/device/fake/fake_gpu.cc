// FakeGpu: hands each call to the part of this process that serves it. See fake_gpu.h.
#include "kernels/device/fake/fake_gpu.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "kernels/device/fake/fake_state.h"

namespace ouro::gpu {
namespace {

using namespace fake;

thread_local int t_current_device = 0;

/// The UUID of a device, by its number on the host.
Uuid uuid_of(int number) {
  Uuid uuid = {};
  constexpr char kUuid[] = "ouro fake GPU";
  std::memcpy(uuid.data(), kUuid, sizeof kUuid);
  uuid.back() = static_cast<unsigned char>(number);
  return uuid;
}

}  // namespace

FakeGpu::FakeGpu(FakeOptions options) : options_(std::move(options)), state_(new State(options_, nullptr)) {}

FakeGpu::~FakeGpu() {
  State* s = state_.load(std::memory_order_acquire);
  if (s->handles.pid() == getpid())
    delete s;  // a forked child that made nothing has none of the threads to join
}

FakeGpu::State& FakeGpu::state() {
  State* s = state_.load(std::memory_order_acquire);
  if (s->handles.pid() == getpid()) return *s;
  // The parent's object is not used: its locks may have been held at the fork, and its threads do not
  // exist here.
  auto mine = std::make_unique<State>(options_, s);
  if (state_.compare_exchange_strong(s, mine.get(), std::memory_order_acq_rel)) return *mine.release();
  return *s;
}

void FakeGpu::delay(FakeOp kind, std::chrono::microseconds d) { state().control->delay(kind, d); }
void FakeGpu::fail_next(FakeOp kind, Reason reason) { state().control->fail_next(kind, reason); }
void FakeGpu::lose(int device) {
  if (device >= 0 && device < options_.devices) state().control->lose(device, "lose() was called");
}
void FakeGpu::jitter(std::uint64_t seed) { state().control->jitter(seed); }

FakeLive FakeGpu::live() {
  State& s = state();
  return {.allocations = s.memory.count({Origin::legacy, Origin::region, Origin::chunk, Origin::pinned}),
          .registrations = s.memory.count({Origin::registered}),
          .imports = s.memory.count({Origin::import_fd, Origin::import_ipc}),
          .streams = s.streams.count(),
          .events = s.events.count(),
          .graphs = s.graphs.count(),
          .multicasts = s.multicasts.count(),
          .retained = s.memory.retained()};
}
int FakeGpu::stalls() { return state().control->stalls(); }
int FakeGpu::contexts() { return state().control->contexts(); }

Result<Stream> FakeGpu::create_blocking_stream(int device, int priority) {
  return state().streams.create(device, priority, true);
}
Result<Stream> FakeGpu::create_foreign_stream(int device) { return state().streams.create_foreign(device); }
Status FakeGpu::synchronize(int device) { return state().streams.synchronize_device(device); }
Status FakeGpu::free(void* p, Stream s) { return state().submitter.free(p, s); }
Result<std::size_t> FakeGpu::memory_left(int device) {
  OURO_TRY(state().control->check(device));
  return state().memory.left(device);
}

std::string FakeGpu::version() const { return fmt::format("{} fake GPUs of host objects", options_.devices); }

Result<Properties> FakeGpu::properties(int device) {
  OURO_TRY(state().control->check(device));
  state().control->use(device);  // like CUDA, which queries a context for the priorities of its streams
  Properties p;
  p.name = "fake GPU";
  p.uuid = uuid_of(options_.first + device);
  p.pci_bus_id = fmt::format("ffff:{:02x}:00.0", options_.first + device);  // a domain that no machine has
  p.major = 9;
  p.multiprocessors = options_.multiprocessors;
  p.memory_bytes = options_.memory_bytes;
  p.l2_bytes = std::size_t{32} << 20;
  p.shareable_memory = options_.shareable_memory;
  p.ipc = options_.ipc;
  p.stream_values = options_.stream_values;
  p.device_words = options_.stream_values && options_.device_words;
  p.multicast = options_.multicast && options_.shareable_memory;
  p.mps = options_.mps;
  p.connections = options_.harsh.connections;
  p.low_priority = kLowPriority;
  p.high_priority = kHighPriority;
  return p;
}

bool FakeGpu::peer_access(int device, int peer) {
  State& s = state();
  return s.control->check(device).ok() && s.control->check(peer).ok() && s.peers.reaches(device, peer);
}

Status FakeGpu::enable_peer(int device, int peer) {
  State& s = state();
  OURO_TRY(s.control->check(device));
  OURO_TRY(s.control->check(peer));
  if (options_.harsh.peering_waits && s.peers.reaches(device, peer) && !s.peers.enabled(device, peer))
    for (const int d : {device, peer}) OURO_TRY(s.streams.quiesce(d, "enabling peer access"));
  return s.peers.enable(device, peer);
}

Result<std::vector<Uuid>> FakeGpu::reachable(int device) {
  State& s = state();
  OURO_TRY(s.control->check(device));
  std::vector<Uuid> all;
  for (int n = 0; n < std::max(options_.host_devices, options_.first + options_.devices); ++n)
    if (n != options_.first + device && s.peers.maps(device, n)) all.push_back(uuid_of(n));
  return all;
}

Result<int> FakeGpu::current_device() {
  if (options_.devices == 0) return unsupported("there are no devices");
  return t_current_device < options_.devices ? t_current_device : 0;
}

Status FakeGpu::set_current_device(int device) {
  OURO_TRY(state().control->check(device));
  t_current_device = device;
  return {};
}

Result<void*> FakeGpu::alloc(int device, std::size_t bytes) { return state().allocator.alloc(device, bytes); }
Status FakeGpu::free(void* p) { return state().allocator.release(Origin::legacy, p); }
Result<Region> FakeGpu::alloc_shareable(int device, std::size_t bytes) {
  return state().allocator.alloc_shareable(device, bytes);
}
Result<Fd> FakeGpu::export_fd(const Region& r) { return state().allocator.export_fd(r); }
Result<Region> FakeGpu::import_fd(int device, const Fd& fd, std::size_t bytes) {
  return state().allocator.import_fd(device, fd, bytes);
}
Status FakeGpu::free_region(const Region& r) { return state().allocator.free_region(r); }
Result<IpcHandle> FakeGpu::ipc_export(void* base) { return state().allocator.ipc_export(base); }
Result<void*> FakeGpu::ipc_open(int device, const IpcHandle& handle) {
  return state().allocator.ipc_open(device, handle);
}
Status FakeGpu::ipc_close(int device, void* p) { return state().allocator.ipc_close(device, p); }
Result<PointerInfo> FakeGpu::pointer(const void* p) { return state().allocator.pointer(p); }
Result<void*> FakeGpu::alloc_pinned(std::size_t bytes) { return state().allocator.alloc_pinned(bytes); }
Status FakeGpu::free_pinned(void* p) { return state().allocator.release(Origin::pinned, p); }
Result<void*> FakeGpu::register_host(void* p, std::size_t bytes) {
  return state().allocator.register_host(p, bytes);
}
Status FakeGpu::unregister_host(void* p) {
  if (p == nullptr) return invalid("no memory to unregister");
  return state().allocator.release(Origin::registered, p);
}

Result<Region> FakeGpu::retain_piece(const void* p) { return state().allocator.retain_piece(p); }
Status FakeGpu::release_piece(const Region& r) { return state().allocator.release_piece(r); }
Result<Fd> FakeGpu::export_piece(const Region& r) { return state().allocator.export_piece(r); }
Status FakeGpu::open_to_peers(const Region& r) { return state().allocator.open_to_peers(r); }
Result<MappedRange> FakeGpu::reserve_range(int device, std::size_t bytes) {
  return state().allocator.reserve_range(device, bytes);
}
Status FakeGpu::map_piece(MappedRange* r, const Fd& fd, std::size_t bytes) {
  return state().allocator.map_piece(r, fd, bytes);
}
Status FakeGpu::free_range(const MappedRange& r) { return state().allocator.free_range(r); }
Result<void*> FakeGpu::reserve(int device, std::size_t bytes) {
  return state().allocator.reserve(device, bytes);
}
Status FakeGpu::unreserve(void* p) { return state().allocator.unreserve(p); }
Status FakeGpu::map(int device, void* at, std::size_t bytes, bool shareable) {
  return state().allocator.map_chunk(device, at, bytes, shareable);
}
Status FakeGpu::unmap(void* at) { return state().allocator.unmap_chunk(at); }
int FakeGpu::freed_in_use() { return state().allocator.freed_in_use(); }

Result<Multicast> FakeGpu::multicast_create(int device, int devices, std::size_t bytes) {
  return state().multicasts.create(device, devices, bytes);
}
Result<Fd> FakeGpu::export_fd(const Multicast& m) { return state().multicasts.export_fd(m); }
Result<Multicast> FakeGpu::multicast_import(int device, const Fd& fd, std::size_t bytes) {
  return state().multicasts.import_fd(device, fd, bytes);
}
Status FakeGpu::multicast_join(const Multicast& m) { return state().multicasts.join(m); }
Status FakeGpu::multicast_bind(Multicast* m, const Region& r) { return state().multicasts.bind(m, r); }
Status FakeGpu::free_multicast(const Multicast& m) { return state().multicasts.free(m); }
int FakeGpu::multicast_members(const void* address, std::byte** members) {
  return state().multicasts.members(address, members);
}

Result<Stream> FakeGpu::create_stream(int device, int priority) {
  return state().streams.create(device, priority);
}
Status FakeGpu::destroy_stream(Stream s) { return state().streams.destroy(s); }
Status FakeGpu::check_context(Stream s) { return state().streams.check_context(s); }
Status FakeGpu::synchronize(Stream s) { return state().streams.synchronize(s); }
Result<bool> FakeGpu::query(Stream s) { return state().streams.query(s); }

Result<Event> FakeGpu::create_event(int device, bool timing) { return state().events.create(device, timing); }
Status FakeGpu::destroy_event(Event e) { return state().events.destroy(e); }
Status FakeGpu::record(Event e, Stream s) { return state().events.record(e, s); }
Status FakeGpu::wait(Stream s, Event e) { return state().events.wait(s, e); }
Status FakeGpu::synchronize(Event e) { return state().events.synchronize(e); }
Result<bool> FakeGpu::query(Event e) { return state().events.query(e); }
Result<float> FakeGpu::elapsed_ms(Event from, Event to) { return state().events.elapsed_ms(from, to); }

Status FakeGpu::copy(void* to, const void* from, std::size_t bytes, Stream s) {
  return state().submitter.copy(to, from, bytes, s);
}
Status FakeGpu::set(void* to, std::uint8_t byte, std::size_t bytes, Stream s) {
  return state().submitter.set(to, byte, bytes, s);
}
Status FakeGpu::enqueue(std::span<const MemOp> ops, Stream s) { return state().submitter.enqueue(ops, s); }
Status FakeGpu::launch(const Kernel& kernel, Shape shape, const void* args, Stream s) {
  return state().submitter.launch(kernel, shape, args, s);
}
Status FakeGpu::call_host(Stream s, void (*f)(void*), void* data) {
  return state().submitter.call_host(s, f, data);
}

Result<std::uint64_t> FakeGpu::capturing(Stream s) { return state().graphs.capturing(s); }
Result<std::size_t> FakeGpu::nodes(Graph g) { return state().graphs.nodes(g); }
Result<std::size_t> FakeGpu::nodes(Stream s) { return state().graphs.nodes(s); }
Status FakeGpu::begin_capture(Stream s) { return state().graphs.begin(s); }
Result<Graph> FakeGpu::end_capture(Stream s) { return state().graphs.end(s); }
Status FakeGpu::launch(Graph g, Stream s) { return state().graphs.launch(g, s); }
Status FakeGpu::destroy_graph(Graph g) { return state().graphs.destroy(g); }

Result<KernelInfo> FakeGpu::info(const Kernel& kernel, int device) {
  OURO_TRY(state().control->check(device));
  OURO_TRY(state().submitter.resident_blocks(kernel, 1, device).status());
  return KernelInfo{.registers = 32,
                    .max_threads = kMaxThreads,
                    .local_bytes = state().submitter.local_bytes(kernel),
                    .architecture = options_.architecture};
}
Status FakeGpu::reserve_stack(int device, std::size_t bytes) {
  OURO_TRY(state().control->check(device));
  return state().submitter.need_stack(device, bytes, "reserving stack");
}
Result<int> FakeGpu::resident_blocks(const Kernel& kernel, int threads, int device) {
  OURO_TRY(state().control->check(device));
  return state().submitter.resident_blocks(kernel, threads, device);
}

}  // namespace ouro::gpu
