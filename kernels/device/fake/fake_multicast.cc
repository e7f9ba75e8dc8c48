// Multicast objects of fake GPUs. See fake_multicast.h.
#include "kernels/device/fake/fake_multicast.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "runtime/core/process.h"

namespace ouro::gpu::fake {
namespace {

enum State : std::uint32_t { kFree, kJoined, kBound, kGone };
constexpr char kMulticastMagic[8] = "ouromcs";

/// The record that a member writes of itself; `state` is written last.
struct Member {
  std::atomic<std::uint32_t> state;
  std::int32_t device;  // its number on the host
  std::int32_t pid, fd;
  std::uint64_t process, file_device, file, bytes;
  std::byte* base;  // in its process
};

/// Ends the process as a kernel's access would: the address is not mapped, so this faults, and no test
/// can continue.
void fault(const void* address, const std::string& what) {
  std::fprintf(stderr, "fake GPU: %s\n", what.c_str());
  static_cast<void>(*static_cast<const volatile char*>(address));
}

}  // namespace

struct Multicasts::Shared {
  char magic[8];
  std::uint64_t bytes;
  std::uint32_t devices;
  std::atomic<std::uint32_t> joined;
  Member member[kMaxDevices];
  bool complete() const { return joined.load(std::memory_order_acquire) >= devices; }
};

struct Multicasts::Object {
  std::shared_ptr<SharedSegment> segment;
  int device = -1, index = -1;  // index: among the members
  void* reserved = nullptr;     // the multicast address, which no memory is mapped at
  std::vector<std::byte*> at;   // of each member, once all have bound
  std::vector<bool> foreign;    // what this object has mapped
  std::shared_ptr<const Block> bound;

  Shared& shared() const { return *reinterpret_cast<Shared*>(segment->data()); }
  ~Object() {
    for (std::size_t i = 0; i < at.size(); ++i)
      if (foreign[i]) munmap(at[i], shared().bytes);
    if (reserved != nullptr) munmap(reserved, shared().bytes);
  }
  /// The address of a member's memory in this process. The memory of a member whose process has ended is not
  /// used any more.
  std::byte* map(const Member& m, bool* mine) const {
    *mine = m.process == process_number();
    if (*mine) return m.base;
    const Fd fd(::open(fmt::format("/proc/{}/fd/{}", m.pid, m.fd).c_str(), O_RDWR | O_CLOEXEC));
    struct stat info {};
    const bool there =
        fd && fstat(fd.get(), &info) == 0 && info.st_dev == m.file_device && info.st_ino == m.file;
    void* p = mmap(nullptr, shared().bytes, PROT_READ | PROT_WRITE,
                   there ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, there ? fd.get() : -1, 0);
    if (p == MAP_FAILED) {
      fault(reserved, fmt::format("cannot map a member's memory: {}", std::strerror(errno)));
      return nullptr;
    }
    return static_cast<std::byte*>(p);
  }
};

Status Multicasts::admit(FakeOp kind, const char* step, int device) {
  OURO_TRY(control_.admit(kind, device));
  if (!options_.multicast || !options_.shareable_memory)
    return unsupported("this device has no multicast objects");
  return options_.multicasting ? options_.multicasting(step, device) : Status();
}

int Multicasts::count() {
  std::shared_lock lock(mutex_);
  return static_cast<int>(objects_.size());
}

Result<std::shared_ptr<Multicasts::Object>> Multicasts::find(const Multicast& m) {
  std::shared_lock lock(mutex_);
  const auto it = objects_.find(m.handle);
  if (it == objects_.end() || it->second->device != m.device)
    return invalid("no such multicast object, or it was released already");
  return it->second;
}

Result<Multicast> Multicasts::add(std::shared_ptr<Object> o) {
  std::unique_lock lock(mutex_);
  const Multicast m{.device = o->device, .bytes = o->shared().bytes, .handle = next_};
  objects_[next_++] = std::move(o);
  return m;
}

Result<Multicast> Multicasts::create(int device, int devices, std::size_t bytes) {
  OURO_TRY(admit(FakeOp::alloc, "create", device));
  if (devices < 2 || devices > kMaxDevices || bytes == 0)
    return invalid(fmt::format("a multicast object of {} devices, {} bytes", devices, bytes));
  auto o = std::make_shared<Object>();
  OURO_ASSIGN(o->segment, SharedSegment::create(sizeof(Shared), "a fake multicast object"));
  o->device = device;
  Shared& s = o->shared();
  std::memcpy(s.magic, kMulticastMagic, sizeof kMulticastMagic);
  s.bytes = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  s.devices = static_cast<std::uint32_t>(devices);
  return add(std::move(o));
}

Result<Fd> Multicasts::export_fd(const Multicast& m) {
  OURO_TRY(admit(FakeOp::share, "export", m.device));
  OURO_ASSIGN(const auto o, find(m));
  Fd copy(fcntl(o->segment->fd(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return Status(Reason::resource, fmt::format("cannot export: {}", std::strerror(errno)));
  return copy;
}

Result<Multicast> Multicasts::import_fd(int device, const Fd& fd, std::size_t bytes) {
  OURO_TRY(admit(FakeOp::share, "import", device));
  Fd mine(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!mine) return invalid("no usable descriptor of a multicast object");
  auto o = std::make_shared<Object>();
  OURO_ASSIGN(o->segment, SharedSegment::attach(std::move(mine), sizeof(Shared)));
  o->device = device;
  if (std::memcmp(o->shared().magic, kMulticastMagic, sizeof kMulticastMagic) != 0 ||
      o->shared().bytes != bytes)
    return invalid(fmt::format("the descriptor is not one of a multicast object of {} bytes", bytes));
  return add(std::move(o));
}

Status Multicasts::join(const Multicast& m) {
  OURO_TRY(admit(FakeOp::alloc, "join", m.device));
  OURO_ASSIGN(const auto o, find(m));
  std::unique_lock lock(mutex_);
  Shared& s = o->shared();
  const int number = options_.first + m.device;
  for (const Member& other : s.member)
    if (other.state.load(std::memory_order_acquire) != kFree && other.device == number)
      return invalid(fmt::format("device {} has joined this multicast object before", number));
  for (std::uint32_t i = 0; i < s.devices; ++i) {
    Member& slot = s.member[i];
    std::uint32_t free = kFree;
    if (!slot.state.compare_exchange_strong(free, kJoined)) continue;
    slot.device = number;
    o->index = static_cast<int>(i);
    s.joined.fetch_add(1, std::memory_order_acq_rel);
    return {};
  }
  return invalid(fmt::format("all {} devices of this multicast object have joined", s.devices));
}

Status Multicasts::bind(Multicast* m, const Region& r) {
  OURO_TRY(admit(FakeOp::alloc, "bind", m->device));
  OURO_ASSIGN(const auto o, find(*m));
  OURO_ASSIGN(const auto block, memory_.at(Origin::region, r.data));
  std::unique_lock lock(mutex_);
  Shared& s = o->shared();
  if (!s.complete()) return invalid("memory is bound after all devices have joined");
  if (o->index < 0 || s.member[o->index].state.load(std::memory_order_relaxed) != kJoined)
    return invalid("this device has not joined, or has bound memory already");
  if (block->device != m->device || r.bytes < s.bytes || r.bytes % kGranularity != 0)
    return invalid(fmt::format("{} bytes of device {} bound as {} of device {}, granularity {}", r.bytes,
                               block->device, s.bytes, m->device, kGranularity));
  struct stat info {};
  if (fstat(block->segment->fd(), &info) != 0)
    return {Reason::resource, fmt::format("fstat of device memory: {}", std::strerror(errno))};
  void* p = mmap(nullptr, s.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return {Reason::resource, fmt::format("no {} bytes of addresses", s.bytes)};
  o->reserved = p;
  o->bound = block;
  Member& mine = s.member[o->index];
  mine.pid = getpid(), mine.process = process_number(), mine.fd = block->segment->fd();
  mine.file_device = info.st_dev, mine.file = info.st_ino, mine.bytes = r.bytes;
  mine.base = block->base;
  mine.state.store(kBound, std::memory_order_release);
  mapped_[reinterpret_cast<std::uintptr_t>(p)] = o;
  m->region = r, m->data = p;
  return {};
}

Status Multicasts::free(const Multicast& m) {
  OURO_ASSIGN(const auto o, find(m));
  {
    std::unique_lock lock(mutex_);
    if (o->index >= 0) o->shared().member[o->index].state.store(kGone, std::memory_order_release);
    mapped_.erase(reinterpret_cast<std::uintptr_t>(o->reserved));
    objects_.erase(m.handle);
  }
  return control_.lost(m.device);
}

int Multicasts::members(const void* address, std::byte** members) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const auto mapped_object = [&]() -> Object* {
    auto it = mapped_.upper_bound(at);
    if (it == mapped_.begin()) return nullptr;
    --it;
    return at - it->first < it->second->shared().bytes ? it->second.get() : nullptr;
  };
  const auto fill = [&](const Object& o) {
    const Shared& s = o.shared();
    const std::size_t offset = at - reinterpret_cast<std::uintptr_t>(o.reserved);
    for (std::uint32_t i = 0; i < s.devices; ++i) {
      const auto state = s.member[i].state.load(std::memory_order_acquire);
      if (state != kBound)
        fault(address, fmt::format("a kernel used multicast memory of {} devices, of which one has {}",
                                   s.devices, state == kGone ? "unbound its own" : "not bound any"));
      if (!o.at.empty()) members[i] = o.at[i] + offset;
    }
    return static_cast<int>(s.devices);
  };
  {
    std::shared_lock lock(mutex_);
    const Object* o = mapped_object();
    if (o == nullptr) return 0;
    const int n = fill(*o);
    if (!o->at.empty()) return n;
  }
  std::unique_lock lock(mutex_);
  Object* o = mapped_object();
  if (o == nullptr) return 0;
  for (std::uint32_t i = 0; o->at.size() < o->shared().devices; ++i) {
    bool mine = false;
    o->at.push_back(o->map(o->shared().member[i], &mine));
    o->foreign.push_back(!mine);
  }
  return fill(*o);
}

}  // namespace ouro::gpu::fake
