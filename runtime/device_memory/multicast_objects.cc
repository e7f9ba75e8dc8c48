// Multicast objects between the ranks of a host. See device_memory.h.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/core/no_memory.h"
#include "runtime/device_memory/device_memory.h"
#include "runtime/join/local_socket.h"

namespace ouro::rt {

/// The reason why this rank no longer takes part, if its group has ended. Requires multicasts_mutex_, like
/// the next function.
Status DeviceMemory::multicast_ended(std::uint64_t key) const {
  const auto at = std::ranges::find(ended_multicasts_, key, &EndedMulticast::key);
  return at == ended_multicasts_.end() ? Status() : at->why;
}

/// This rank's part of the object, made once by `make`: a failure is remembered like a part.
template <class Make>
Result<std::shared_ptr<GpuMulticast>> DeviceMemory::multicast_part(std::uint64_t key, Make&& make) {
  OURO_TRY(multicast_ended(key));
  const auto [at, fresh] = multicasts_.try_emplace(key);
  MulticastPart& part = at->second;
  if (fresh) {
    part.failed = no_memory();  // stays if make() throws: an entry has an object or a failure
    auto made = make();
    part.failed = made.status();
    if (made.ok()) part.object = std::move(*made);
  }
  OURO_TRY(part.failed);
  return part.object;
}

/// The object as its maker, which is this rank, offers it to others.
Result<ExportHandles> DeviceMemory::make_multicast(const MulticastKey& k) {
  std::lock_guard lock(multicasts_mutex_);
  OURO_ASSIGN(const auto part,
              multicast_part(k.key, [&] { return GpuMulticast::create(device_, k.ranks, k.bytes); }));
  if (part->bytes() < k.bytes)
    return Status(Reason::mismatch,
                  fmt::format("ranks computed different sizes for a multicast object: {} and {}",
                              part->bytes(), k.bytes));
  return part->offer();
}

Status DeviceMemory::join_multicast(const MulticastKey& k, const Fd& object) {
  std::lock_guard lock(multicasts_mutex_);
  OURO_ASSIGN(const auto part,
              multicast_part(k.key, [&] { return GpuMulticast::import(device_, object, k.bytes); }));
  return part->join();
}

Status DeviceMemory::bind_multicast(const MulticastKey& k) {
  std::lock_guard lock(multicasts_mutex_);
  OURO_TRY(multicast_ended(k.key));
  const auto at = multicasts_.find(k.key);
  if (at == multicasts_.end()) return invalid("this rank has no part in the multicast object");
  OURO_TRY(at->second.failed);
  return at->second.object->bind();
}

/// The next two run a step of any rank of this host: in this rank, in another one of this process, or by its
/// watch thread.
Result<ExportHandles> DeviceMemory::multicast_offer(int maker, const MulticastKey& k) {
  if (maker == members_.rank()) return make_multicast(k);
  if (!members_.is_thread(maker)) return fetch(maker, k.request(FetchKind::multicast));
  auto offer = Result<ExportHandles>(ExportHandles{});
  OURO_TRY(with_neighbour(maker, [&](DeviceMemory& there) {
    offer = there.make_multicast(k);
    return offer.status();
  }));
  return offer;
}

Status DeviceMemory::multicast_step(int r, FetchKind kind, const MulticastKey& k, const Fd& object) {
  const auto step = [&](DeviceMemory& m) {
    return kind == FetchKind::bind ? m.bind_multicast(k) : m.join_multicast(k, object);
  };
  if (r == members_.rank()) return step(*this);
  if (members_.is_thread(r)) return with_neighbour(r, step);
  std::vector<Fd> none;
  return requests_.ask(r, k.request(kind), &none, {object.get()}).status();
}

Result<std::shared_ptr<GpuMulticast>> DeviceMemory::multicast(std::span<const int> ranks, std::uint64_t key,
                                                              std::size_t bytes) {
  MulticastKey k{key, bytes, static_cast<int>(ranks.size())};
  OURO_ASSIGN(const ExportHandles offer, multicast_offer(ranks[0], k));
  k.bytes = offer.bytes;
  for (const auto kind : {FetchKind::join, FetchKind::bind})
    for (const int r : ranks) OURO_TRY(multicast_step(r, kind, k, offer.fd));
  std::lock_guard lock(multicasts_mutex_);
  return multicasts_.at(key).object;
}

void DeviceMemory::drop_multicast(std::uint64_t key) {
  decltype(multicasts_)::node_type gone;
  std::lock_guard lock(multicasts_mutex_);
  gone = multicasts_.extract(key);
  // A rank that gets this answer searches for the error because of which this one left
  // (FailureDetector::fail).
  Status why(Failure{.reason = Reason::peer_dead,
                     .text = "it has left the group",
                     .rank = members_.rank(),
                     .detector = "socket"});
  if (gone) {
    const MulticastPart& part = gone.mapped();
    if (const Status& failed = part.object ? part.object->failed() : part.failed; !failed.ok()) why = failed;
  }
  ended_multicasts_.push_back({key, std::move(why)});
  if (ended_multicasts_.size() > kEndedMulticasts) ended_multicasts_.pop_front();
}

/// The request contains everything that a step needs: a watch thread that sent requests itself could wait for
/// another that waits for it.
Status DeviceMemory::serve_multicast(int line, const wire::Fetch& request, std::span<const Fd> given) {
  if (request.bytes == 0 || request.bytes > MemoryRequests::kMaxSegment || request.ranks < 2 ||
      request.ranks > static_cast<std::uint32_t>(members_.size()))
    return {Reason::refused, "no such multicast object"};
  const MulticastKey k{request.key, request.bytes, static_cast<int>(request.ranks)};
  if (request.kind == FetchKind::multicast) {
    OURO_ASSIGN(const ExportHandles offer, make_multicast(k));
    return send_frame(line, wire::Grant{offer.bytes}, {offer.fd.get()});
  }
  if (given.size() != 1) return {Reason::refused, "the multicast object is to come with the request"};
  OURO_TRY(request.kind == FetchKind::bind ? bind_multicast(k) : join_multicast(k, given[0]));
  return send_frame(line, wire::Grant{k.bytes});
}

}  // namespace ouro::rt
