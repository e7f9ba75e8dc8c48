// Multicast objects between the ranks of a host. See device_memory.h.
#include <fmt/format.h>

#include "runtime/context/device_memory.h"
#include "runtime/join/local_socket.h"

namespace ouro::rt {

using transport::GpuMulticast;
using transport::GpuOffer;

/// The object as its maker gives it to others.
Result<GpuOffer> DeviceMemory::multicast_offer(const MulticastKey& k) {
  const auto made_here = [](DeviceMemory& maker, const MulticastKey& key) -> Result<GpuOffer> {
    std::lock_guard lock(maker.multicasts_mutex_);
    OURO_ASSIGN(const auto part, maker.own_multicast(key));
    return part->offer();
  };
  if (k.owner == members_.rank()) return made_here(*this, k);
  if (members_.peer(k.owner).pid == members_.self().pid) {
    auto offer = Result<GpuOffer>(GpuOffer{});
    OURO_TRY(with_neighbour(k.owner, [&](DeviceMemory& maker) {
      offer = made_here(maker, k);
      return offer.status();
    }));
    return offer;
  }
  return fetch(k.owner, {.kind = wire::Fetch::Kind::multicast,
                         .key = k.key,
                         .bytes = k.bytes,
                         .owner = static_cast<std::uint32_t>(k.owner),
                         .ranks = static_cast<std::uint32_t>(k.ranks)});
}

/// The maker's part; of another rank its part, if it has got one.
Result<std::shared_ptr<GpuMulticast>> DeviceMemory::own_multicast(const MulticastKey& k) {
  auto& known = multicasts_[k.key];
  if (!known && k.owner == members_.rank()) {
    OURO_ASSIGN(known, GpuMulticast::create(device_, k.ranks, k.bytes));
  }
  if (!known) return invalid("this rank has no part in the multicast object yet");
  if (known->bytes() < k.bytes)
    return Status(Reason::mismatch,
                  fmt::format("ranks computed different sizes for a multicast object: {} and {}",
                              known->bytes(), k.bytes));
  return known;
}

Status DeviceMemory::join_multicast(const MulticastKey& k, const GpuOffer* offer) {
  std::lock_guard lock(multicasts_mutex_);
  if (auto& known = multicasts_[k.key]; !known && offer) {
    OURO_ASSIGN(known, GpuMulticast::import(device_, *offer));
  }
  OURO_ASSIGN(const auto part, own_multicast(k));
  return part->join();
}

Status DeviceMemory::bind_multicast(const MulticastKey& k) {
  std::lock_guard lock(multicasts_mutex_);
  OURO_ASSIGN(const auto part, own_multicast(k));
  return part->bind();
}

/// Of any rank of this host: what it does itself, or its watch thread does for it.
Status DeviceMemory::multicast_step(int r, wire::Fetch::Kind kind, const MulticastKey& k,
                                    const GpuOffer& offer) {
  const auto step = [&](DeviceMemory& m) {
    if (kind == wire::Fetch::Kind::bind) return m.bind_multicast(k);
    return m.join_multicast(k, m.members_.rank() == k.owner ? nullptr : &offer);
  };
  if (r == members_.rank()) return step(*this);
  if (members_.peer(r).pid == members_.self().pid) return with_neighbour(r, step);
  std::vector<Fd> fds;
  return requests_
      .ask(r,
           {.kind = kind,
            .key = k.key,
            .bytes = k.bytes,
            .owner = static_cast<std::uint32_t>(k.owner),
            .ranks = static_cast<std::uint32_t>(k.ranks)},
           &fds)
      .status();
}

Result<std::shared_ptr<GpuMulticast>> DeviceMemory::multicast(std::span<const int> ranks, std::uint64_t key,
                                                              std::size_t bytes) {
  const MulticastKey k{key, bytes, ranks[0], static_cast<int>(ranks.size())};
  OURO_ASSIGN(const GpuOffer offer, multicast_offer(k));
  for (const auto kind : {wire::Fetch::Kind::join, wire::Fetch::Kind::bind})
    for (const int r : ranks) OURO_TRY(multicast_step(r, kind, k, offer));
  std::lock_guard lock(multicasts_mutex_);
  return own_multicast(k);
}

void DeviceMemory::drop_multicast(std::uint64_t key) {
  decltype(multicasts_)::node_type gone;
  std::lock_guard lock(multicasts_mutex_);
  gone = multicasts_.extract(key);
}

Status DeviceMemory::serve_multicast(int line, const wire::Fetch& request) {
  if (request.bytes == 0 || request.bytes > MemoryRequests::kMaxSegment || request.ranks < 2 ||
      request.owner >= static_cast<std::uint32_t>(members_.size()) ||
      request.ranks > static_cast<std::uint32_t>(members_.size()))
    return {Reason::refused, "no such multicast object"};
  const MulticastKey k{request.key, request.bytes, static_cast<int>(request.owner),
                       static_cast<int>(request.ranks)};
  const bool mine = k.owner == members_.rank();
  if (request.kind == wire::Fetch::Kind::multicast && !mine)
    return {Reason::refused, "another rank makes this multicast object"};
  if (request.kind == wire::Fetch::Kind::bind) {
    OURO_TRY(bind_multicast(k));
    return send_frame(line, wire::Grant{k.bytes});
  }
  // Whoever makes an object asks nobody, so two ranks that ask each other do not wait for each other.
  OURO_ASSIGN(const GpuOffer offer, multicast_offer(k));
  if (request.kind == wire::Fetch::Kind::multicast)
    return send_frame(line, wire::Grant{offer.bytes}, {offer.fd.get()});
  OURO_TRY(join_multicast(k, mine ? nullptr : &offer));
  return send_frame(line, wire::Grant{k.bytes});
}

}  // namespace ouro::rt
