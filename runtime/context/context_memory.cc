// Memory that ranks of a host give each other: shared segments of groups and registered allocations. See
// context.h.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>

#include "runtime/context/context.h"
#include "runtime/core/log.h"
#include "runtime/join/descriptors.h"
#include "runtime/join/local_socket.h"
#include "transport/shm/reach.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr auto kFetchDeadline = 10s;
constexpr auto kFetchSlice = 20ms;
constexpr int kAttempts = 3;

}  // namespace

Allocation::~Allocation() {
  if (block_)
    owner_->gpu_exports().withdraw(id_);
  else
    owner_->forget(id_);
}

/// A connection that ends proves no death: who has died does not listen any more either.
Result<wire::Frame> Context::ask(int r, const wire::Fetch& request, std::vector<Fd>* fds) {
  for (int attempt = 1;; ++attempt) {
    auto answer = ask_once(r, request, fds);
    if (answer.ok() || answer.status().reason() != Reason::peer_dead || is_dead(r) || attempt == kAttempts)
      return answer;
    OURO_INFO(SHM, "asking rank {} for memory again: {}", r, answer.status().failure()->text);
  }
}

Result<wire::Frame> Context::ask_once(int r, const wire::Fetch& request, std::vector<Fd>* fds) {
  if (is_remote(r)) return Status(unsupported(fmt::format("memory of rank {}, which is on another host", r)));
  Fd line = connect_local(peer(r).server);
  if (!line && descriptors_lack(errno)) return no_descriptor("asking a rank for its memory");
  if (!line)
    return Status(Failure{.reason = Reason::peer_dead,
                          .text = "it no longer answers",
                          .rank = r,
                          .host = peer(r).host,
                          .pid = peer(r).pid,
                          .detector = "socket"});
  OURO_TRY(check_peer(line.get()));
  OURO_TRY(send_frame(line.get(), request));
  // Its end is not always a hang-up: a process that it forked may hold the socket open.
  const auto end = Clock::now() + kFetchDeadline;
  auto incoming = recv_frame(line.get(), Clock::now() + kFetchSlice);
  while (!incoming.ok() && incoming.status().reason() == Reason::deadline && Clock::now() < end &&
         !is_dead(r))
    incoming = recv_frame(line.get(), Clock::now() + kFetchSlice);
  if (is_dead(r) || (!incoming.ok() && incoming.status().reason() == Reason::peer_dead))
    return Status(Failure{.reason = Reason::peer_dead,
                          .text = "it ended before it gave its memory" +
                                  (incoming.ok() ? "" : ": " + incoming.status().failure()->text),
                          .rank = r,
                          .host = peer(r).host,
                          .pid = peer(r).pid,
                          .detector = "socket"});
  if (!incoming.ok()) return incoming.status();
  if (auto* no = std::get_if<wire::Refuse>(&incoming->frame))
    return Status(no->reason, fmt::format("rank {} gave no shared memory: {}", r, no->text));
  *fds = std::move(incoming->fds);
  return std::move(incoming->frame);
}

Result<Fd> Context::fetch(int r, const wire::Fetch& request, std::uint64_t* bytes) {
  std::vector<Fd> fds;
  auto answer = ask(r, request, &fds);
  if (!answer.ok()) return answer.status();
  auto* grant = std::get_if<wire::Grant>(&*answer);
  if (!grant || fds.size() != 1)
    return Status(Reason::refused, fmt::format("rank {} answered with something else than a descriptor", r));
  *bytes = grant->bytes;
  return std::move(fds[0]);
}

Status Context::serve(int line, const wire::Fetch& request) {
  if (request.job != spec_.join.job) return {Reason::refused, "wrong-job"};
  if (request.kind == wire::Fetch::Kind::gpu || request.kind == wire::Fetch::Kind::gpu_group)
    return serve_gpu(line, request);
  std::shared_ptr<device::Segment> segment;
  if (request.kind == wire::Fetch::Kind::group) {
    if (request.bytes > kMaxSegment)
      return {Reason::refused, fmt::format("a group's segment is at most {} bytes", kMaxSegment)};
    auto made = this->segment(request.key, request.bytes, rank());
    if (!made.ok()) return made.status();
    segment = *made;
    if (segment->bytes() != request.bytes)
      return {Reason::mismatch,
              fmt::format("ranks computed different sizes for a group's segment: {} and {} bytes "
                          "(do OURO_* settings differ?)",
                          segment->bytes(), request.bytes)};
  } else {
    std::shared_lock lock(memory_mutex_);
    auto it = exported_.find(request.key);
    if (it == exported_.end()) return {Reason::refused, "this memory was freed"};
    segment = it->second.segment;
  }
  return send_frame(line, wire::Grant{segment->bytes()}, {segment->fd()});
}

Result<std::shared_ptr<device::Segment>> Context::segment(std::uint64_t key, std::size_t bytes, int owner) {
  if (owner != rank()) {
    std::uint64_t got = 0;
    auto fd = fetch(owner, {wire::Fetch::Kind::group, spec_.join.job, key, bytes}, &got);
    if (!fd.ok()) return fd.status();
    return device::Segment::attach(std::move(*fd), bytes);
  }
  std::lock_guard lock(mutex_);
  auto& segment = segments_[key];
  if (!segment) {
    auto made = device::Segment::create(bytes, "links of a group");
    if (!made.ok()) {
      segments_.erase(key);
      return made.status();
    }
    segment = std::move(*made);
    OURO_INFO(SHM, "{} bytes of shared memory for links or staging buffers", bytes);
  }
  return segment;
}

void Context::drop_segment(std::uint64_t key) {
  std::lock_guard lock(mutex_);
  segments_.erase(key);
}

Result<std::shared_ptr<Allocation>> Context::allocate(std::size_t bytes, Device device) {
  OURO_TRY(usable());
  if (bytes == 0 || bytes > std::size_t{1} << 46)
    return invalid(fmt::format("an allocation of {} bytes; expected 1 to 2^46", bytes));
  if (device.kind == Device::Kind::cuda) {
    if (device.index != spec_.gpu)
      return invalid(fmt::format("an allocation on GPU {}; this rank {}", device.index,
                                 spec_.gpu < 0 ? "has none" : fmt::format("has GPU {}", spec_.gpu)));
    auto block = transport::GpuBlock::create(device.index, bytes);
    if (!block.ok()) return block.status();
    const std::uint64_t id = gpu_exports_.add(*block);
    return std::make_shared<Allocation>(shared_from_this(), id, std::move(*block));
  }
  auto segment = device::Segment::create((bytes + 4095) / 4096 * 4096, "ouro::alloc");
  if (!segment.ok()) return segment.status();
  std::unique_lock lock(memory_mutex_);
  const std::uint64_t id = next_allocation_++;
  exported_[id] = {(*segment)->data(), bytes, *segment};
  OURO_INFO(ALLOC, "allocation {}: {} bytes that all ranks of this host can map", id, bytes);
  exported_count_.fetch_add(1, std::memory_order_release);
  return std::make_shared<Allocation>(shared_from_this(), id, std::move(*segment));
}

void Context::forget(std::uint64_t id) {
  if (inherited()) return;  // the page is the parent's, and not mapped here
  std::unique_lock lock(memory_mutex_);
  exported_.erase(id);
  exported_count_.fetch_sub(1, std::memory_order_release);
  auto& freed = page(rank()).freed;
  freed.set(freed.get() + 1);
}

MemoryRef Context::find(const void* p, std::size_t bytes) const {
  if (exported_count_.load(std::memory_order_acquire) == 0) return {};
  const auto* at = static_cast<const std::byte*>(p);
  std::shared_lock lock(memory_mutex_);
  for (const auto& [id, e] : exported_)
    if (at >= e.base && at + bytes <= e.base + e.bytes) return {id, static_cast<std::uint64_t>(at - e.base)};
  return {};
}

bool Context::reaches(const std::vector<int>& ranks) {
  std::lock_guard lock(reach_mutex_);
  for (const int r : ranks) {
    if (is_remote(r)) return false;
    const auto [known, fresh] = reach_.try_emplace(r, false);
    if (fresh) {
      // What is found there says that the process number means the same process here (PID namespaces), too.
      std::uint64_t magic = 0;
      std::uint32_t number = 0;
      const std::uint64_t at = page(r).self;
      const auto read = [&](std::size_t offset, void* to, std::size_t bytes) {
        return device::read_process(peer(r).pid, peer(r).pidfd.get(), at + offset, to, bytes).ok();
      };
      known->second = read(offsetof(ControlPage, magic), &magic, sizeof magic) &&
                      read(offsetof(ControlPage, rank), &number, sizeof number) && magic == kControlMagic &&
                      number == static_cast<std::uint32_t>(r);
    }
    if (!known->second) return false;
  }
  return true;
}

Result<Context::Resolved> Context::resolve(int r, MemoryRef ref, std::size_t bytes) {
  if (r == rank()) {
    std::shared_lock lock(memory_mutex_);
    auto it = exported_.find(ref.id);
    if (it == exported_.end())
      return Status(Reason::ring_corrupt, "own memory was freed during an operation");
    return Resolved{it->second.base + ref.offset, it->second.segment};
  }
  std::lock_guard lock(import_mutex_);
  Imported& from = imported_[static_cast<std::size_t>(r)];
  // After a peer has freed anything, all mappings of its memory go: those still alive are fetched again on
  // demand.
  if (const std::uint64_t freed = page(r).freed.get(); freed != from.freed_seen) {
    from.segments.clear();
    from.freed_seen = freed;
  }
  auto& segment = from.segments[ref.id];
  if (!segment) {
    std::uint64_t got = 0;
    auto fd = fetch(r, {wire::Fetch::Kind::allocation, spec_.join.job, ref.id, 0}, &got);
    auto attached = fd.ok() ? device::Segment::attach(std::move(*fd), got)
                            : Result<std::shared_ptr<device::Segment>>(fd.status());
    if (!attached.ok()) {
      from.segments.erase(ref.id);
      return attached.status();
    }
    segment = std::move(*attached);
    OURO_INFO(REG, "maps allocation {} of rank {}, {} bytes", ref.id, r, got);
  }
  // The reference was written by a peer: bounded by the size of what was mapped.
  if (ref.offset > segment->bytes() || bytes > segment->bytes() - ref.offset)
    return Status(Reason::ring_corrupt, fmt::format("rank {} posted {} bytes at {} of an allocation of {}", r,
                                                    bytes, ref.offset, segment->bytes()));
  return Resolved{segment->data() + ref.offset, segment};
}

}  // namespace ouro::rt
