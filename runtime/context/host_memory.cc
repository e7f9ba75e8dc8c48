// Memory that the ranks of a host share. See host_memory.h.
#include "runtime/context/host_memory.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "runtime/core/log.h"
#include "runtime/join/local_socket.h"
#include "transport/shm/reach.h"

namespace ouro::rt {
namespace {

/// Checks a reference from a record, which any rank of the host could have written, even if it is this
/// rank's own.
Status check_bounds(int rank, MemoryRef ref, std::size_t bytes, std::size_t of) {
  if (ref.offset <= of && bytes <= of - ref.offset) return {};
  return {Reason::ring_corrupt, fmt::format("the record of rank {} has {} bytes at {} of an allocation of {}",
                                            rank, bytes, ref.offset, of)};
}

}  // namespace

Status HostMemory::serve(int line, const wire::Fetch& request) {
  std::shared_ptr<SharedSegment> segment;
  if (request.kind == wire::Fetch::Kind::group) {
    if (request.bytes > MemoryRequests::kMaxSegment)
      return {Reason::refused,
              fmt::format("a group's segment is at most {} bytes", MemoryRequests::kMaxSegment)};
    auto made = this->segment(request.key, request.bytes, members_.rank());
    if (!made.ok()) return made.status();
    segment = *made;
    if (segment->bytes() != request.bytes)
      return {Reason::mismatch, fmt::format("ranks computed different sizes for a group's segment: {} and {} "
                                            "bytes (do OURO_* settings differ?)",
                                            segment->bytes(), request.bytes)};
  } else {
    std::shared_lock lock(exported_mutex_);
    auto it = exported_.find(request.key);
    if (it == exported_.end()) return {Reason::refused, "this memory was freed"};
    segment = it->second.segment;
  }
  return send_frame(line, wire::Grant{segment->bytes()}, {segment->fd()});
}

Result<std::shared_ptr<SharedSegment>> HostMemory::segment(std::uint64_t key, std::size_t bytes, int owner) {
  if (owner != members_.rank()) {
    std::uint64_t got = 0;
    auto fd = requests_.fetch(owner, wire::Fetch::Kind::group, key, bytes, &got);
    if (!fd.ok()) return fd.status();
    return SharedSegment::attach(std::move(*fd), bytes);
  }
  std::lock_guard lock(segments_mutex_);
  auto& segment = segments_[key];
  if (!segment) {
    auto made = SharedSegment::create(bytes, "links of a group");
    if (!made.ok()) {
      segments_.erase(key);
      return made.status();
    }
    segment = std::move(*made);
    OURO_INFO(SHM, "{} bytes of shared memory for links or staging buffers", bytes);
  }
  return segment;
}

void HostMemory::drop_segment(std::uint64_t key) {
  std::lock_guard lock(segments_mutex_);
  segments_.erase(key);
}

Result<HostMemory::Registered> HostMemory::allocate(std::size_t bytes) {
  auto segment = SharedSegment::create((bytes + 4095) / 4096 * 4096, "ouro::alloc");
  if (!segment.ok()) return segment.status();
  std::unique_lock lock(exported_mutex_);
  const std::uint64_t id = next_allocation_++;
  exported_[id] = {(*segment)->data(), bytes, *segment};
  OURO_INFO(ALLOC, "allocation {}: {} bytes that all ranks of this host can map", id, bytes);
  exported_count_.fetch_add(1, std::memory_order_release);
  return Registered{id, std::move(*segment)};
}

void HostMemory::forget(std::uint64_t id) {
  std::unique_lock lock(exported_mutex_);
  exported_.erase(id);
  exported_count_.fetch_sub(1, std::memory_order_release);
  auto& freed = members_.own_page().freed;
  freed.set(freed.get() + 1);
}

MemoryRef HostMemory::reference_to(const void* p, std::size_t bytes) const {
  if (exported_count_.load(std::memory_order_acquire) == 0) return {};
  const auto* at = static_cast<const std::byte*>(p);
  std::shared_lock lock(exported_mutex_);
  for (const auto& [id, e] : exported_)
    if (at >= e.base && at + bytes <= e.base + e.bytes) return {id, static_cast<std::uint64_t>(at - e.base)};
  return {};
}

Status HostMemory::copy(int rank, std::uint64_t from, void* to, std::size_t bytes) const {
  const Peer& peer = members_.peer(rank);
  if (!members_.is_thread(rank)) return transport::read_process(peer.pid, peer.pidfd.get(), from, to, bytes);
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return {};
}

bool HostMemory::read(int rank, std::uint64_t from, void* to, std::size_t bytes) {
  return reaches({rank}) && copy(rank, from, to, bytes).ok();
}

bool HostMemory::may_read(int rank) const {
  if (members_.is_thread(rank)) return true;
  const ControlPage& page = members_.page(rank);
  if (page.pid_namespace != members_.own_page().pid_namespace) return false;
  // The numbers found there also prove that the pid refers to the same process here.
  std::uint64_t process = 0;
  std::uint32_t number = 0;
  return copy(rank, page.self + offsetof(ControlPage, process), &process, sizeof process).ok() &&
         copy(rank, page.self + offsetof(ControlPage, rank), &number, sizeof number).ok() &&
         process == members_.peer(rank).process && number == static_cast<std::uint32_t>(rank);
}

bool HostMemory::reaches(const std::vector<int>& ranks) {
  std::lock_guard lock(reach_mutex_);
  for (const int r : ranks) {
    if (members_.is_remote(r)) return false;
    const auto [known, fresh] = reach_.try_emplace(r, false);
    if (fresh) known->second = may_read(r);
    if (!known->second) return false;
  }
  return true;
}

bool HostMemory::on_huge_pages(const void* p, std::size_t bytes) {
  std::call_once(pagemap_once_, [this] { pagemap_ = transport::open_pagemap(); });
  return transport::on_huge_pages(pagemap_.get(), p, bytes);
}

Result<HostMemory::Resolved> HostMemory::resolve(int r, MemoryRef ref, std::size_t bytes) {
  if (r == members_.rank()) {
    std::shared_lock lock(exported_mutex_);
    auto it = exported_.find(ref.id);
    if (it == exported_.end())
      return Status(Reason::ring_corrupt, "own memory was freed during an operation");
    OURO_TRY(check_bounds(r, ref, bytes, it->second.bytes));
    return Resolved{it->second.base + ref.offset, it->second.segment};
  }
  std::lock_guard lock(imported_mutex_);
  Imported& from = imported_[static_cast<std::size_t>(r)];
  // After a peer has freed anything, all mappings of its memory are dropped; those still alive are fetched
  // again on demand.
  if (const std::uint64_t freed = members_.page(r).freed.get(); freed != from.freed_seen) {
    from.segments.clear();
    from.freed_seen = freed;
  }
  auto& segment = from.segments[ref.id];
  if (!segment) {
    std::uint64_t got = 0;
    auto fd = requests_.fetch(r, wire::Fetch::Kind::allocation, ref.id, 0, &got);
    auto attached = fd.ok() ? SharedSegment::attach(std::move(*fd), got)
                            : Result<std::shared_ptr<SharedSegment>>(fd.status());
    if (!attached.ok()) {
      from.segments.erase(ref.id);
      return attached.status();
    }
    segment = std::move(*attached);
    OURO_INFO(REG, "maps allocation {} of rank {}, {} bytes", ref.id, r, got);
  }
  OURO_TRY(check_bounds(r, ref, bytes, segment->bytes()));
  return Resolved{segment->data() + ref.offset, segment};
}

}  // namespace ouro::rt
