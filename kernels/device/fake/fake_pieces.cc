// Memory of fake GPUs like that of cuMemMap: ranges, chunks, and pieces for other processes.
// See fake_memory.h.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kernels/device/fake/fake_memory.h"

namespace ouro::gpu::fake {
namespace {

Result<void*> addresses(std::size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    return Status(Reason::resource, fmt::format("cannot reserve {} bytes: {}", bytes, std::strerror(errno)));
  return p;
}

/// Maps the descriptor at addresses that have been reserved.
Status map_at(void* at, std::size_t bytes, int fd) {
  if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
    return {Reason::resource, fmt::format("cannot map {} bytes: {}", bytes, std::strerror(errno))};
  madvise(at, bytes, MADV_DONTFORK);
  return {};
}

}  // namespace

Result<void*> Memory::reserve(std::size_t bytes) {
  if (bytes == 0 || bytes % kGranularity != 0)
    return invalid(fmt::format("a range of {} bytes; expected a multiple of {}", bytes, kGranularity));
  OURO_ASSIGN(void* const p, addresses(bytes));
  std::lock_guard lock(mutex_);
  reserved_[key(p)] = bytes;
  return p;
}

Status Memory::unreserve(void* p) {
  std::lock_guard lock(mutex_);
  const auto it = reserved_.find(key(p));
  if (it == reserved_.end()) return invalid(fmt::format("{} was not reserved", p));
  if (overlaps(it->first, it->second)) return invalid("chunks are mapped in a range that is given back");
  munmap(p, it->second);
  reserved_.erase(it);
  return {};
}

Status Memory::map_chunk(int device, void* at, std::size_t bytes, bool shareable) {
  if (bytes == 0 || bytes % kGranularity != 0)
    return invalid(fmt::format("a chunk of {} bytes; expected a multiple of {}", bytes, kGranularity));
  auto b = std::make_shared<Block>();
  OURO_ASSIGN(b->segment, SharedSegment::create(bytes, "a chunk of a fake GPU's memory"));
  fill_stale(b->segment->data(), bytes);
  std::lock_guard lock(mutex_);
  const auto range = reserved_.upper_bound(key(at));
  if (range == reserved_.begin() || std::prev(range)->first + std::prev(range)->second < key(at) + bytes)
    return invalid(fmt::format("{} bytes at {} are not in a reserved range", bytes, at));
  if (overlaps(key(at), bytes)) return invalid("a chunk is mapped there already");
  std::size_t& used = used_[static_cast<std::size_t>(device)];
  if (bytes > limit_ - used)
    return {Reason::resource,
            fmt::format("{} bytes of memory needed; device {} has {} left", bytes, device, limit_ - used)};
  OURO_TRY(map_at(at, bytes, b->segment->fd()));
  used += bytes;
  b->origin = Origin::chunk;
  b->device = device;
  b->base = static_cast<std::byte*>(at);
  b->bytes = b->mapping_bytes = bytes;
  b->mapping = at;
  b->shareable = shareable;
  add(std::move(b));
  return {};
}

Result<Region> Memory::retain(const void* p) {
  const auto b = around(p);
  if (b == nullptr || b->device < 0) return invalid(fmt::format("{} is no memory of a device", p));
  if (b->origin != Origin::region && b->origin != Origin::chunk)
    return unsupported(fmt::format("{} at {} was not mapped by cuMemMap", name(b->origin), p));
  if (!b->shareable)
    return unsupported(
        fmt::format("other processes cannot map the memory at {}: it was made by cuMemCreate without a "
                    "shareable handle type",
                    p));
  std::lock_guard lock(mutex_);
  const Region r{b->device, b->base, b->bytes, next_++};
  retained_[r.handle] = {r, b->segment};
  return r;
}

Status Memory::open_to_peers(const Region& r) {
  const auto b = around(r.data);
  if (b == nullptr || (b->origin != Origin::region && b->origin != Origin::chunk))
    return invalid(fmt::format("{} is no memory of cuMemMap", r.data));
  std::lock_guard lock(mutex_);
  if (const auto it = blocks_.find(key(b->base)); it != blocks_.end()) it->second->open = true;
  return {};
}

Status Memory::release_retained(const Region& r) {
  std::lock_guard lock(mutex_);
  return retained_.erase(r.handle) == 1 ? Status() : invalid("this piece was not retained, or was released");
}

Result<Fd> Memory::export_retained(const Region& r) const {
  std::lock_guard lock(mutex_);
  const auto it = retained_.find(r.handle);
  if (it == retained_.end()) return invalid("this piece is not retained");
  Fd copy(fcntl(it->second.segment->fd(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return Status(Reason::resource, fmt::format("cannot export: {}", std::strerror(errno)));
  return copy;
}

int Memory::retained() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(retained_.size());
}

bool Memory::in_use(const Block& b) const {
  if (b.origin == Origin::legacy) {
    struct flock writes {};
    writes.l_type = F_WRLCK, writes.l_whence = SEEK_SET;
    return fcntl(b.segment->fd(), F_OFD_GETLK, &writes) == 0 && writes.l_type != F_UNLCK;
  }
  if (b.origin != Origin::region && b.origin != Origin::chunk) return false;
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(retained_, [&](const auto& r) { return r.second.segment == b.segment; });
}

Result<MappedRange> Memory::reserve_range(int device, std::size_t bytes) {
  if (bytes == 0 || bytes % page_bytes() != 0) return invalid(fmt::format("a range of {} bytes", bytes));
  OURO_ASSIGN(void* const p, addresses(bytes));
  auto b = std::make_shared<Block>();
  b->origin = Origin::import_fd;
  b->device = device;
  b->base = static_cast<std::byte*>(p);
  b->bytes = b->mapping_bytes = bytes;
  b->mapping = p;
  std::lock_guard lock(mutex_);
  add(std::move(b));
  return MappedRange{.device = device, .data = p, .bytes = bytes};
}

Status Memory::map_piece(MappedRange* r, const Fd& fd, std::size_t bytes) {
  OURO_TRY(at(Origin::import_fd, r->data).status());
  struct stat info {};
  OURO_TRY(check_descriptor(fd, bytes, &info));
  if (bytes > r->bytes - r->mapped)
    return invalid(fmt::format("a piece of {} bytes, where {} are left", bytes, r->bytes - r->mapped));
  OURO_TRY(map_at(static_cast<std::byte*>(r->data) + r->mapped, bytes, fd.get()));
  r->mapped += bytes;
  return {};
}

}  // namespace ouro::gpu::fake
