// Memory calls of a FakeGpu. See fake_allocator.h.
#include "kernels/device/fake/fake_allocator.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>

#include "runtime/core/log.h"

namespace ouro::gpu::fake {
namespace {
Status no_bytes() { return invalid("an allocation of 0 bytes"); }
}  // namespace

Result<void*> Allocator::alloc(int device, std::size_t bytes) {
  if (bytes == 0) return no_bytes();
  OURO_TRY(control_.admit(FakeOp::alloc, device));
  OURO_TRY(wait_to_allocate(device));
  auto b = memory_.allocate(Origin::legacy, device, bytes);
  return b.ok() ? Result<void*>((*b)->base) : b.status();
}

Result<Region> Allocator::alloc_shareable(int device, std::size_t bytes) {
  if (bytes == 0) return no_bytes();
  OURO_TRY(control_.admit(FakeOp::alloc, device));
  for (int other = 0; other < options_.devices; ++other)
    if (peers_.reaches(other, device)) OURO_TRY(wait_to_allocate(other));
  if (!options_.shareable_memory) return unsupported("this device has no shareable memory");
  auto b = memory_.allocate(Origin::region, device, bytes);
  if (!b.ok()) return b.status();
  return Region{device, (*b)->base, (*b)->bytes, (*b)->allocation};
}

Result<void*> Allocator::alloc_pinned(std::size_t bytes) {
  if (bytes == 0) return no_bytes();
  OURO_TRY(control_.admit_anywhere(FakeOp::alloc));
  OURO_TRY(wait_to_allocate(-1));
  auto b = memory_.allocate(Origin::pinned, -1, bytes);
  return b.ok() ? Result<void*>((*b)->base) : b.status();
}

Result<void*> Allocator::register_host(void* p, std::size_t bytes) {
  OURO_TRY(control_.admit_anywhere(FakeOp::alloc));
  OURO_TRY(wait_to_allocate(-1));
  return memory_.register_host(p, bytes);
}

Status Allocator::wait_to_allocate(int device) {
  return options_.harsh.allocation_waits ? streams_.quiesce(device, "making memory") : Status();
}

Status Allocator::wait_to_share(const void* p) {
  if (!options_.harsh.sharing_waits) return {};
  const auto b = memory_.around(p);
  return streams_.quiesce(b ? b->device : -1, "sharing memory");
}

Status Allocator::release(Origin origin, void* base, bool at_once) {
  if (base == nullptr) return {};
  auto b = memory_.at(origin, base);
  if (!b.ok()) return b.status();
  const int device = (*b)->device;
  OURO_TRY(control_.admit_anywhere(FakeOp::free, std::max(device, 0)));
  at_once &= !options_.harsh.unmapping_waits;
  if (!at_once) OURO_TRY(streams_.quiesce(device));
  if (memory_.in_use(**b)) {
    ++freed_in_use_;
    OURO_WARN("fake GPU: {} of {} bytes at {} is freed while {}", name(origin), (*b)->bytes, base,
              origin == Origin::legacy ? "another process has it open by its handle"
                                       : "it is still retained, so its memory is not freed");
  }
  if (!memory_.release(**b)) return invalid("released by two threads at once");
  if (at_once) streams_.keep_until_idle(device, *b);
  return device < 0 ? Status() : control_.lost(device);
}

Result<Fd> Allocator::export_fd(const Region& r) {
  OURO_TRY(control_.admit(FakeOp::share, r.device));
  return memory_.export_fd(r);
}

Result<Region> Allocator::import_fd(int device, const Fd& fd, std::size_t bytes) {
  OURO_TRY(control_.admit(FakeOp::share, device));
  if (!options_.shareable_memory) return unsupported("this device has no shareable memory");
  auto r = memory_.import_fd(device, fd, bytes);
  if (r.ok() && options_.misdirected && options_.misdirected(options_.first + device))
    mmap(r->data, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  return r;
}

Status Allocator::free_region(const Region& r) {
  const auto b = memory_.around(r.data);
  if (b == nullptr || b->allocation != r.handle || b->device != r.device)
    return invalid(fmt::format("the region at {} does not exist, or was released already", r.data));
  return release(b->origin == Origin::import_fd ? Origin::import_fd : Origin::region, r.data, true);
}

Result<Region> Allocator::retain_piece(const void* p) {
  if (!options_.shareable_memory) return unsupported("this device has no shareable memory");
  OURO_TRY(control_.admit_anywhere(FakeOp::share));
  OURO_TRY(wait_to_share(p));
  return memory_.retain(p);
}

Status Allocator::release_piece(const Region& r) {
  OURO_TRY(control_.admit(FakeOp::free, r.device));
  return memory_.release_retained(r);
}

Result<Fd> Allocator::export_piece(const Region& r) {
  OURO_TRY(control_.admit(FakeOp::share, r.device));
  return memory_.export_retained(r);
}

Status Allocator::open_to_peers(const Region& r) {
  OURO_TRY(control_.admit(FakeOp::share, r.device));
  OURO_TRY(wait_to_share(r.data));
  return memory_.open_to_peers(r);
}

Result<MappedRange> Allocator::reserve_range(int device, std::size_t bytes) {
  OURO_TRY(control_.admit(FakeOp::share, device));
  if (!options_.shareable_memory) return unsupported("this device has no shareable memory");
  return memory_.reserve_range(device, bytes);
}

Status Allocator::map_piece(MappedRange* r, const Fd& fd, std::size_t bytes) {
  OURO_TRY(control_.admit(FakeOp::share, r->device));
  return memory_.map_piece(r, fd, bytes);
}

Status Allocator::free_range(const MappedRange& r) { return release(Origin::import_fd, r.data, true); }

Result<void*> Allocator::reserve(int device, std::size_t bytes) {
  OURO_TRY(control_.check(device));
  if (!options_.shareable_memory) return unsupported("this device has no memory of cuMemMap");
  return memory_.reserve(bytes);
}

Status Allocator::unreserve(void* p) { return memory_.unreserve(p); }

Status Allocator::map_chunk(int device, void* at, std::size_t bytes, bool shareable) {
  OURO_TRY(control_.admit(FakeOp::alloc, device));
  OURO_TRY(wait_to_allocate(device));
  return memory_.map_chunk(device, at, bytes, shareable);
}

Result<IpcHandle> Allocator::ipc_export(void* base) {
  if (!options_.ipc) return unsupported("this device has no IPC handles");
  OURO_TRY(control_.admit_anywhere(FakeOp::share));
  const auto b = memory_.around(base);
  if (b != nullptr && b->device >= 0) {
    OURO_TRY(control_.check(b->device));
    if (b->origin != Origin::legacy) return unsupported(fmt::format("{} has no IPC handle", name(b->origin)));
  }
  return memory_.ipc_export(base);
}

Result<void*> Allocator::ipc_open(int device, const IpcHandle& handle) {
  if (!options_.ipc) return unsupported("this device has no IPC handles");
  OURO_TRY(control_.admit(FakeOp::share, device));
  return memory_.ipc_open(device, handle, [&](int peer) { return peers_.maps(device, peer); });
}

Status Allocator::ipc_close(int device, void* p) {
  const auto b = memory_.around(p);
  if (b != nullptr && b->origin == Origin::import_ipc && b->device != device)
    return invalid(fmt::format("opened for device {}, closed for device {}", b->device, device));
  if (p == nullptr) return invalid("no memory to close");
  return release(Origin::import_ipc, p);
}

PointerInfo Allocator::pointer(const void* p) const {
  PointerInfo info;
  const auto b = memory_.around(p);
  if (b == nullptr) {
    info.kind = p == nullptr ? MemoryKind::unknown : MemoryKind::host;
  } else if (b->device < 0) {
    info.kind = MemoryKind::pinned;
  } else {
    info = {MemoryKind::device, b->device, b->base, b->bytes, b->allocation, b->origin == Origin::legacy};
  }
  return info;
}

}  // namespace ouro::gpu::fake
