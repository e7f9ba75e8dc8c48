// Distribution of cores among ranks. See core_share.h.
#include "runtime/context/core_share.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <set>

#include "runtime/calibration/choose.h"
#include "runtime/context/machine.h"

namespace ouro::rt {
namespace {

/// Whether every rank of a host can have `of_each` hardware threads of its own.
bool can_have(const JobMembers& members, int host, std::size_t of_each) {
  std::vector<Cpus> masks;
  for (int r = 0; r < members.size(); ++r) {
    if (members.peer(r).node != host) continue;
    const ControlPage& page = members.page(r);
    Cpus mask;
    for (int cpu = 0; cpu < kMaxCpus; ++cpu)
      if (page.cpus[cpu / 64] >> (cpu % 64) & 1) mask.push_back(cpu);
    masks.insert(masks.end(), of_each, mask);
  }
  return room_for_each(masks);
}

/// Number of hardware threads that those of the ranks may use that are on this host: several ranks on one
/// core have one cache.
std::size_t threads_of(const JobMembers& members, const std::vector<int>& ranks) {
  std::size_t threads = 0;
  for (int word = 0; word < kMaxCpus / 64; ++word) {
    std::uint64_t any = 0;
    for (const int r : ranks)
      if (members.peer(r).node == members.self().node) any |= members.page(r).cpus[word];
    threads += static_cast<std::size_t>(std::popcount(any));
  }
  return threads;
}

}  // namespace

CoreShare::CoreShare(const JobMembers& members, const Calibration& record,
                     std::optional<std::chrono::microseconds> spin)
    : members_(members), spin_(spin) {
  int hosts = 1;
  for (const Peer& p : members.peers()) hosts = std::max(hosts, p.node + 1);
  for (int host = 0; host < hosts; ++host) enough_.push_back(can_have(members, host, 1));
  const int here = members.self().node;
  enough_here_ = enough_[static_cast<std::size_t>(here)];
  crowded_ = !spin && !can_have(members, here, 2);
  reckon_with(record);
}

Patience CoreShare::patience_by(const Calibration& record) const {
  Patience p = rt::patience_by(record, enough_here_);
  p.crowded = crowded_;
  if (spin_) p.spin = *spin_;
  return p;
}

void CoreShare::reckon_with(const Calibration& record) {
  const Patience p = patience_by(record);
  spin_us_.store(p.spin.count(), std::memory_order_relaxed);
  polls_.store(p.polls, std::memory_order_relaxed);
}

bool CoreShare::enough_for(const std::vector<int>& ranks) const {
  return std::all_of(ranks.begin(), ranks.end(),
                     [this](int r) { return enough_[static_cast<std::size_t>(members_.peer(r).node)]; });
}

std::size_t CoreShare::caches_of(const std::vector<int>& ranks, const Calibration& record) const {
  std::set<int> bound;
  std::size_t anywhere = 0, here = 0;
  for (const int r : ranks) {
    if (members_.peer(r).node != members_.self().node) continue;
    ++here;
    const int cache = members_.page(r).cache;
    cache > 0 ? void(bound.insert(cache)) : void(++anywhere);
  }
  if (!shares_caches(record)) return std::max<std::size_t>(1, std::min(here, threads_of(members_, ranks)));
  const std::size_t others = record.caches > bound.size() ? record.caches - bound.size() : 0;
  return std::max<std::size_t>(1, bound.size() + std::min(anywhere, others));
}

}  // namespace ouro::rt
