// FakeGpu: devices, memory, streams and what is enqueued on them. Events and graphs are in fake_capture.cc.
// See fake_gpu.h.
#include "kernels/device/fake/fake_gpu.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "kernels/device/fake/fake_state.h"

namespace ouro::gpu {
namespace {

using namespace fake;

constexpr auto kReleaseLimit = std::chrono::seconds(20);
constexpr int kThreadsOfMultiprocessor = 2048, kBlocksOfMultiprocessor = 32;
constexpr int kPidShift = 40;  // handles are numbers: who made it, and which

thread_local int t_current_device = 0;

std::uintptr_t number(const void* handle) { return reinterpret_cast<std::uintptr_t>(handle); }

bool on_stream(FakeOp kind) { return kind <= FakeOp::graph; }

}  // namespace

FakeGpu::State::State(const FakeOptions& o, const State* inherited)
    : options(o),
      pid(getpid()),
      parent(inherited == nullptr ? 0 : inherited->pid),
      control(inherited == nullptr ? std::make_shared<Control>(o.devices)
                                   : std::make_shared<Control>(o.devices, *inherited->control)),
      memory(o.devices, o.memory_bytes),
      peers(static_cast<std::size_t>(o.devices * o.devices)) {
  for (int d = 0; d < o.devices; ++d)
    defaults.push_back(std::make_shared<Queue>(control, d, fmt::format("fake{} legacy", d)));
}

FakeGpu::State::~State() {
  {
    std::lock_guard lock(mutex);  // comes after callers who now wait without it
    control->stop();
    for (auto& [handle, q] : streams) q->capture = nullptr;
  }
  for (auto& [handle, q] : streams) q->end();
  for (auto& q : defaults) q->end();
  for (auto& q : retired) q->end();
}

Status FakeGpu::State::check(int device) const {
  if (device < 0 || device >= options.devices)
    return invalid(fmt::format("device {} does not exist; there are {}", device, options.devices));
  return control->lost(device);
}

Status FakeGpu::State::allowed_here() const {
  return in_host_work() ? invalid("a function on a stream of a GPU must not call the GPU") : Status();
}

Status FakeGpu::State::check_access(int device, const Block& b) {
  if (b.device < 0 || b.device == device) return {};
  if (b.origin == Origin::region && reaches(device, b.device)) return {};  // open to all who can map it
  std::lock_guard lock(mutex);
  if (peers[static_cast<std::size_t>(device * options.devices + b.device)]) return {};
  return invalid(
      fmt::format("device {} has no access to memory of device {}: see enable_peer", device, b.device));
}

Status FakeGpu::State::admit(FakeOp kind, int device) {
  OURO_TRY(check(device));
  return admit_anywhere(kind, device);
}

Status FakeGpu::State::admit_anywhere(FakeOp kind, int device) {
  OURO_TRY(allowed_here());
  if (!on_stream(kind)) control->hesitate(kind, device);
  const Reason reason = control->take(kind, on_stream(kind));
  if (reason == Reason::none) return {};
  if (reason == Reason::device) control->lose(device, "an injected failure");
  return {reason, "injected into a fake GPU"};
}

void* FakeGpu::State::new_handle() {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(pid) << kPidShift | next++);
}

Status FakeGpu::State::unknown(const char* what, const void* handle) const {
  if (parent != 0 && number(handle) >> kPidShift == static_cast<std::uintptr_t>(parent))
    return {Reason::forked,
            fmt::format("a {} of process {}, which forked this one, cannot be used here", what, parent)};
  return invalid(fmt::format("{} {} does not exist, or was destroyed", what, fmt::ptr(handle)));
}

Result<std::shared_ptr<Queue>> FakeGpu::State::find(Stream s) {
  if (s.device < 0 || s.device >= options.devices)
    return invalid(fmt::format("a stream of device {}; there are {}", s.device, options.devices));
  if (s.handle == nullptr) return defaults[static_cast<std::size_t>(s.device)];
  auto it = streams.find(s.handle);
  if (it == streams.end()) return unknown("stream", s.handle);
  if (it->second->device() != s.device)
    return invalid(
        fmt::format("a stream of device {} is used as one of device {}", it->second->device(), s.device));
  return it->second;
}

Status FakeGpu::State::push(Queue& q, Op op, bool is_work) {
  if (q.capture == nullptr) return q.push(std::move(op));
  Capture& c = *q.capture;
  if (!c.broken.empty()) return invalid("the capture of this stream is broken: " + c.broken);
  c.recording.lanes[q.lane].ops.push_back(std::move(op));
  if (is_work) ++c.clocks[q.lane][q.lane];
  return {};
}

Status FakeGpu::State::enqueue(Stream s, FakeOp kind, Work work) {
  std::lock_guard lock(mutex);
  auto q = find(s);
  if (!q.ok()) return q.status();
  if (control->take_fault(kind)) work = fault_work();
  return push(**q, {kind, std::move(work)});
}

int FakeGpu::State::resident(int threads) const {
  return options.multiprocessors * std::clamp(kThreadsOfMultiprocessor / threads, 1, kBlocksOfMultiprocessor);
}

std::vector<std::shared_ptr<Queue>> FakeGpu::State::queues(int device) {
  std::vector<std::shared_ptr<Queue>> all;
  std::lock_guard lock(mutex);
  const auto add = [&](const std::shared_ptr<Queue>& q) {
    if (device < 0 || q->device() == device) all.push_back(q);
  };
  for (auto& q : defaults) add(q);
  for (auto& [handle, q] : streams) add(q);
  for (auto& q : retired) add(q);
  return all;
}

Status FakeGpu::State::quiesce(int device) {
  const auto until = Clock::now() + kReleaseLimit;
  for (auto& q : queues(device))
    if (!q->drain_until(until))
      return {Reason::resource,
              fmt::format("releasing memory waits for its device, and after {} s stream \"{}\" has "
                          "not ended: what it waits for may need this thread",
                          kReleaseLimit.count(), q->name())};
  return {};
}

Status FakeGpu::State::release(Origin origin, void* base, bool at_once) {
  if (base == nullptr) return {};
  auto b = memory.at(origin, base);
  if (!b.ok()) return b.status();
  const int device = (*b)->device;
  OURO_TRY(admit_anywhere(FakeOp::free, std::max(device, 0)));
  if (!at_once) OURO_TRY(quiesce(device));
  if (!memory.release(**b)) return invalid("released by two threads at once");
  if (at_once)
    for (auto& q : queues(device)) q->push_behind_work({FakeOp::free, [keep = *b](const Run&) {}});
  return device < 0 ? Status() : control->lost(device);
}

FakeGpu::FakeGpu(FakeOptions options) : options_(std::move(options)), state_(new State(options_, nullptr)) {}

FakeGpu::~FakeGpu() {
  State* s = state_.load(std::memory_order_acquire);
  if (s->pid == getpid()) delete s;  // a forked child that made nothing has none of the threads to join
}

FakeGpu::State& FakeGpu::state() {
  State* s = state_.load(std::memory_order_acquire);
  if (s->pid == getpid()) return *s;
  // The parent's is left alone: its locks may have been held at the fork, its threads are not here.
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
  FakeLive all;
  all.allocations = s.memory.count({Origin::legacy, Origin::region, Origin::pinned});
  all.registrations = s.memory.count({Origin::registered});
  all.imports = s.memory.count({Origin::import_fd, Origin::import_ipc});
  std::lock_guard lock(s.mutex);
  all.streams = static_cast<int>(s.streams.size());
  all.events = static_cast<int>(s.events.size());
  all.graphs = static_cast<int>(s.graphs.size());
  return all;
}

std::string FakeGpu::version() const { return fmt::format("{} fake GPUs of host objects", options_.devices); }

Result<Properties> FakeGpu::properties(int device) {
  OURO_TRY(state().check(device));
  Properties p;
  p.name = "fake GPU";
  constexpr char kUuid[] = "ouro fake GPU";
  std::memcpy(p.uuid.data(), kUuid, sizeof kUuid);
  p.uuid.back() = static_cast<unsigned char>(device);
  p.pci_bus_id = fmt::format("ffff:{:02x}:00.0", device);  // a domain that no machine has
  p.major = 9;
  p.multiprocessors = options_.multiprocessors;
  p.memory_bytes = options_.memory_bytes;
  p.l2_bytes = std::size_t{32} << 20;
  p.shareable_memory = options_.shareable_memory;
  p.ipc = options_.ipc;
  p.stream_values = options_.stream_values;
  p.low_priority = kLowPriority;
  p.high_priority = kHighPriority;
  return p;
}

bool FakeGpu::peer_access(int device, int peer) {
  State& s = state();
  return s.check(device).ok() && s.check(peer).ok() && s.reaches(device, peer);
}

Status FakeGpu::enable_peer(int device, int peer) {
  State& s = state();
  OURO_TRY(s.check(device));
  OURO_TRY(s.check(peer));
  if (!s.reaches(device, peer))
    return unsupported(fmt::format("device {} cannot map memory of device {}", device, peer));
  std::lock_guard lock(s.mutex);
  s.peers[static_cast<std::size_t>(device * options_.devices + peer)] = true;
  return {};
}

Result<int> FakeGpu::current_device() {
  if (options_.devices == 0) return unsupported("there are no devices");
  return t_current_device < options_.devices ? t_current_device : 0;
}

Status FakeGpu::set_current_device(int device) {
  OURO_TRY(state().check(device));
  t_current_device = device;
  return {};
}

namespace {
Status no_bytes() { return invalid("an allocation of 0 bytes"); }
}  // namespace

Result<void*> FakeGpu::alloc(int device, std::size_t bytes) {
  if (bytes == 0) return no_bytes();
  OURO_TRY(state().admit(FakeOp::alloc, device));
  auto b = state().memory.allocate(Origin::legacy, device, bytes);
  return b.ok() ? Result<void*>((*b)->base) : b.status();
}
Status FakeGpu::free(void* p) { return state().release(Origin::legacy, p); }

Result<Region> FakeGpu::alloc_shareable(int device, std::size_t bytes) {
  if (bytes == 0) return no_bytes();
  OURO_TRY(state().admit(FakeOp::alloc, device));
  if (!options_.shareable_memory) return unsupported("this device has no shareable memory");
  auto b = state().memory.allocate(Origin::region, device, bytes);
  if (!b.ok()) return b.status();
  return Region{device, (*b)->base, (*b)->bytes, (*b)->allocation};
}

Result<Fd> FakeGpu::export_fd(const Region& r) {
  OURO_TRY(state().admit(FakeOp::share, r.device));
  return state().memory.export_fd(r);
}

Result<Region> FakeGpu::import_fd(int device, const Fd& fd, std::size_t bytes) {
  OURO_TRY(state().admit(FakeOp::share, device));
  if (!options_.shareable_memory) return unsupported("this device has no shareable memory");
  return state().memory.import_fd(device, fd, bytes);
}

Status FakeGpu::free_region(const Region& r) {
  State& s = state();
  const auto b = s.memory.around(r.data);
  if (b == nullptr || b->allocation != r.handle || b->device != r.device)
    return invalid(fmt::format("the region at {} does not exist, or was released already", r.data));
  return s.release(b->origin == Origin::import_fd ? Origin::import_fd : Origin::region, r.data, true);
}

Result<IpcHandle> FakeGpu::ipc_export(void* base) {
  State& s = state();
  if (!options_.ipc) return unsupported("this device has no IPC handles");
  OURO_TRY(s.admit_anywhere(FakeOp::share));
  const auto b = s.memory.around(base);
  if (b != nullptr && b->device >= 0) {
    OURO_TRY(s.check(b->device));
    if (b->origin != Origin::legacy)
      return unsupported(fmt::format("{} has no IPC handle", fake::name(b->origin)));
  }
  return s.memory.ipc_export(base);
}

Result<void*> FakeGpu::ipc_open(int device, const IpcHandle& handle) {
  State& s = state();
  if (!options_.ipc) return unsupported("this device has no IPC handles");
  OURO_TRY(s.admit(FakeOp::share, device));
  return s.memory.ipc_open(device, handle, [&](int peer) { return s.reaches(device, peer); });
}

Status FakeGpu::ipc_close(int device, void* p) {
  State& s = state();
  const auto b = s.memory.around(p);
  if (b != nullptr && b->origin == Origin::import_ipc && b->device != device)
    return invalid(fmt::format("opened for device {}, closed for device {}", b->device, device));
  if (p == nullptr) return invalid("no memory to close");
  return s.release(Origin::import_ipc, p);
}

Result<PointerInfo> FakeGpu::pointer(const void* p) {
  PointerInfo info;
  const auto b = state().memory.around(p);
  if (b == nullptr) {
    info.kind = p == nullptr ? MemoryKind::unknown : MemoryKind::host;
  } else if (b->device < 0) {
    info.kind = MemoryKind::pinned;
  } else {
    info = {MemoryKind::device, b->device, b->base, b->bytes, b->allocation, b->origin == Origin::legacy};
  }
  return info;
}

Result<void*> FakeGpu::alloc_pinned(std::size_t bytes) {
  if (bytes == 0) return no_bytes();
  OURO_TRY(state().admit_anywhere(FakeOp::alloc));
  auto b = state().memory.allocate(Origin::pinned, -1, bytes);
  return b.ok() ? Result<void*>((*b)->base) : b.status();
}
Status FakeGpu::free_pinned(void* p) { return state().release(Origin::pinned, p); }

Result<void*> FakeGpu::register_host(void* p, std::size_t bytes) {
  OURO_TRY(state().admit_anywhere(FakeOp::alloc));
  return state().memory.register_host(p, bytes);
}
Status FakeGpu::unregister_host(void* p) {
  if (p == nullptr) return invalid("no memory to unregister");
  return state().release(Origin::registered, p);
}

Result<KernelInfo> FakeGpu::info(const Kernel& kernel, int device) {
  OURO_TRY(state().check(device));
  if (kernel.host == nullptr) return unsupported(fmt::format("kernel {} has no host body", kernel.name));
  return KernelInfo{.registers = 32, .max_threads = kMaxThreads};
}

Result<int> FakeGpu::resident_blocks(const Kernel& kernel, int threads, int device) {
  OURO_TRY(state().check(device));
  if (kernel.host == nullptr) return unsupported(fmt::format("kernel {} has no host body", kernel.name));
  if (threads < 1 || threads > kMaxThreads) return invalid(fmt::format("{} threads in a block", threads));
  return state().resident(threads);
}

Gpu* emulated(int devices) { return new FakeGpu({.devices = devices, .multiprocessors = 16}); }

}  // namespace ouro::gpu
