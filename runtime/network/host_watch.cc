// The network path to each other host. See host_watch.h.
#include "runtime/network/host_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "runtime/core/log.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
/// After two missing heartbeats retransmissions are part of an interruption, which is handled as a silence.
constexpr auto kSilent = 500ms;

}  // namespace

std::string SlowHost::text() const {
  const std::string rate = fmt::format("{:.1f} kB/s", what.rate / 1e3);
  const std::string who = fmt::format("host {} (ranks {})", host, fmt::join(ranks, ","));
  return fmt::format("{} bytes are queued to {}, and {} get there", what.queued, who, rate);
}

void HostWatch::take(RemotePeers& peers, Clock::time_point now) {
  for (auto& [name, h] : hosts_) h.ranks.clear(), h.all.clear(), h.answered.clear();
  for (const auto& [rank, peer] : peers.all()) {
    if (peer->lost || peer->closed()) continue;
    auto at = hosts_.find(peer->host());
    if (at == hosts_.end()) at = hosts_.try_emplace(std::string(peer->host())).first;
    Host& h = at->second;
    h.ranks.push_back(rank);
    h.all.insert(h.all.end(), peer->changes.begin(), peer->changes.end());
    if (now - peer->last_received <= kSilent)
      h.answered.insert(h.answered.end(), peer->changes.begin(), peer->changes.end());
  }
  std::vector<SlowHost> slow;
  for (auto& [name, h] : hosts_) {
    if (const auto loss = h.loss.take(h.answered, now); loss && h.said.due(loss->rate(), now))
      OURO_WARN(
          "the way to host {} (ranks {}) loses packets, is congested, or has become slower: {} of {} "
          "segments ({:.1f} %) had to be sent again within {:.0f} s",
          name, fmt::join(h.ranks, ","), loss->again, loss->sent, 100 * loss->rate(), loss->seconds);
    h.rate.take(h.all, now);
    if (const auto s = h.rate.slow()) slow.push_back({name, h.ranks, *s});
  }
  if (slow.empty() && !any_slow_) return;
  any_slow_ = !slow.empty();
  std::lock_guard lock(mutex_);
  slow_ = std::move(slow);
}

std::vector<SlowHost> HostWatch::slow() const {
  if (!any_slow_) return {};
  std::lock_guard lock(mutex_);
  return slow_;
}

}  // namespace ouro::rt
