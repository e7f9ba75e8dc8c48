// Multicast objects between the ranks of a host. See multicast_objects.h.
#include "runtime/device_memory/multicast_objects.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/core/no_memory.h"
#include "runtime/device_memory/device_memory.h"
#include "runtime/device_memory/handle_frames.h"
#include "runtime/device_memory/process_ranks.h"
#include "runtime/join/local_socket.h"

namespace ouro::rt {

/// Returns why this rank no longer takes part, if its group has ended.
Status MulticastObjects::why_dropped(std::uint64_t key) const {
  const auto at = std::ranges::find(dropped_, key, &Dropped::key);
  return at == dropped_.end() ? Status() : at->why;
}

/// Returns this rank's part of the object, which `make` makes once. A failure is remembered like a part.
template <class Make>
Result<std::shared_ptr<GpuMulticast>> MulticastObjects::find_or_make(std::uint64_t key, Make&& make) {
  OURO_TRY(why_dropped(key));
  const auto [at, fresh] = parts_.try_emplace(key);
  Part& part = at->second;
  if (fresh) {
    part.failed = no_memory();  // remains if make() throws: each entry has an object or a failure
    auto made = make();
    part.failed = made.status();
    if (made.ok()) part.object = std::move(*made);
  }
  OURO_TRY(part.failed);
  return part.object;
}

Result<ExportHandles> MulticastObjects::create(const Key& k) {
  std::lock_guard lock(mutex_);
  OURO_ASSIGN(const auto part,
              find_or_make(k.key, [&] { return GpuMulticast::create(device_, k.ranks, k.bytes); }));
  if (part->bytes() < k.bytes)
    return Status(Reason::mismatch,
                  fmt::format("ranks computed different sizes for a multicast object: {} and {}",
                              part->bytes(), k.bytes));
  return part->handles();
}

Status MulticastObjects::join(const Key& k, const Fd& object) {
  std::lock_guard lock(mutex_);
  OURO_ASSIGN(const auto part,
              find_or_make(k.key, [&] { return GpuMulticast::import(device_, object, k.bytes); }));
  return part->join();
}

Status MulticastObjects::bind(const Key& k) {
  std::lock_guard lock(mutex_);
  OURO_TRY(why_dropped(k.key));
  const auto at = parts_.find(k.key);
  if (at == parts_.end()) return invalid("this rank has no part in the multicast object");
  OURO_TRY(at->second.failed);
  return at->second.object->bind();
}

Result<ExportHandles> MulticastObjects::create_at(int creator, const Key& k) {
  if (creator == members_.rank()) return create(k);
  if (!members_.is_thread(creator)) return request_handles(requests_, creator, k.request(Step::multicast));
  auto handles = Result<ExportHandles>(ExportHandles{});
  OURO_TRY(with_rank_memory(requests_.job(), creator, [&](DeviceMemory& theirs) {
    handles = theirs.multicasts().create(k);
    return handles.status();
  }));
  return handles;
}

Status MulticastObjects::step_at(int r, Step step, const Key& k, const Fd& object) {
  const auto take = [&](MulticastObjects& objects) {
    return step == Step::bind ? objects.bind(k) : objects.join(k, object);
  };
  if (r == members_.rank()) return take(*this);
  if (members_.is_thread(r))
    return with_rank_memory(requests_.job(), r,
                            [&](DeviceMemory& theirs) { return take(theirs.multicasts()); });
  std::vector<Fd> none;
  return requests_.ask(r, k.request(step), &none, {object.get()}).status();
}

Result<std::shared_ptr<GpuMulticast>> MulticastObjects::bound_object(std::span<const int> ranks,
                                                                     std::uint64_t key, std::size_t bytes) {
  Key k{key, bytes, static_cast<int>(ranks.size())};
  OURO_ASSIGN(const ExportHandles handles, create_at(ranks[0], k));
  k.bytes = handles.bytes;
  for (const Step step : {Step::join, Step::bind})
    for (const int r : ranks) OURO_TRY(step_at(r, step, k, handles.fd));
  std::lock_guard lock(mutex_);
  return parts_.at(key).object;
}

void MulticastObjects::drop_object(std::uint64_t key) {
  decltype(parts_)::node_type part;  // destroyed after the lock is released
  std::lock_guard lock(mutex_);
  part = parts_.extract(key);
  // A rank that receives this answer searches for the error because of which this one
  // left (FailureDetector::fail).
  Status why(Failure{.reason = Reason::peer_dead,
                     .text = "it has left the group",
                     .rank = members_.rank(),
                     .detector = "socket"});
  if (part) {
    const Part& p = part.mapped();
    if (const Status& failed = p.object ? p.object->failed() : p.failed; !failed.ok()) why = failed;
  }
  dropped_.push_back({key, std::move(why)});
  if (dropped_.size() > kDropped) dropped_.pop_front();
}

/// The request contains everything that a step needs: a watch thread that sent requests itself could wait for
/// another that waits for it.
Status MulticastObjects::serve_step(int line, const wire::Fetch& request, std::span<const Fd> given) {
  if (request.bytes == 0 || request.bytes > MemoryRequests::kMaxSegment || request.ranks < 2 ||
      request.ranks > static_cast<std::uint32_t>(members_.size()))
    return {Reason::refused, "no such multicast object"};
  const Key k{request.key, request.bytes, static_cast<int>(request.ranks)};
  if (request.kind == Step::multicast) {
    OURO_ASSIGN(const ExportHandles handles, create(k));
    return send_handles(line, handles);
  }
  if (given.size() != 1) return {Reason::refused, "the multicast object is to come with the request"};
  OURO_TRY(request.kind == Step::bind ? bind(k) : join(k, given[0]));
  return send_frame(line, wire::Grant{k.bytes});
}

}  // namespace ouro::rt
