// Cores and ranks. See core_share.h.
#include "runtime/context/core_share.h"

#include <algorithm>
#include <cstddef>

#include "runtime/context/machine.h"

namespace ouro::rt {
namespace {

/// Whether every rank of a host can have that many hardware threads of its own.
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

}  // namespace

CoreShare::CoreShare(const JobMembers& members, std::optional<std::chrono::microseconds> spin)
    : members_(members) {
  int hosts = 1;
  for (const Peer& p : members.peers()) hosts = std::max(hosts, p.node + 1);
  for (int host = 0; host < hosts; ++host) enough_.push_back(can_have(members, host, 1));
  const int here = members.self().node;
  enough_here_ = enough_[static_cast<std::size_t>(here)];
  crowded_ = !spin && !can_have(members, here, 2);
  spin_ = spin.value_or(std::chrono::microseconds(enough_here_ ? 50 : 0));
}

bool CoreShare::enough_for(const std::vector<int>& ranks) const {
  return std::all_of(ranks.begin(), ranks.end(),
                     [this](int r) { return enough_[static_cast<std::size_t>(members_.peer(r).node)]; });
}

}  // namespace ouro::rt
