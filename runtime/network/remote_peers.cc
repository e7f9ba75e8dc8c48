// Ranks of other hosts. See remote_peers.h.
#include "runtime/network/remote_peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/core/log.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr auto kGather = 100ms;         // losses that occur together are reported together
constexpr auto kFirstAttempt = 1500ms;  // a lost first packet is retransmitted after 1 s
constexpr auto kSlowest = 20s;          // after several failures; dial() gives up a silent peer sooner

}  // namespace

Clock::time_point DialAttempts::end(std::chrono::milliseconds longest) const {
  const auto most = std::max<Clock::duration>(kSlowest, longest);
  return Clock::now() + std::min<Clock::duration>(kFirstAttempt * (1 << std::min(failed_, 8)), most);
}

void DialAttempts::note(const Status& outcome, const std::string& who) {
  if (outcome.ok()) {
    failed_ = 0;
    last_failure_.clear();
    return;
  }
  ++failed_;
  const std::string& why = outcome.failure()->text;
  if (outcome.reason() == Reason::resource && why != last_failure_)
    OURO_WARN("no connection to {}: {}; trying again", who, why);
  last_failure_ = why;
}

std::string RemotePeer::who() const { return fmt::format("rank {} ({})", remote.rank, remote.endpoint); }

std::string_view RemotePeer::host() const {
  return std::string_view(remote.endpoint).substr(0, remote.endpoint.rfind(':'));
}

void RemotePeers::add(RemoteRank r) {
  const int rank = r.rank;
  auto peer = std::make_unique<RemotePeer>();
  peer->remote = std::move(r);
  peer->last_received = Clock::now();
  peers_[rank] = std::move(peer);
}

RemotePeer* RemotePeers::peer_of(int rank) {
  const auto it = peers_.find(rank);
  return it == peers_.end() ? nullptr : it->second.get();
}

void RemotePeers::lose(int rank, Reason reason, std::string text, std::string detector) {
  RemotePeer& peer = *peers_.at(rank);
  if (peer.lost) return;
  peer.lost = true;
  for (auto& line : peer.lines) line->close();
  peer.lines.clear();
  fabric_.drop(rank);
  fabric_.exchange().forgive(rank);
  losses_.push_back({rank, reason, std::move(text), std::move(detector)});
  if (losses_.size() > 1) return;
  gather_.expires_after(reason == Reason::peer_dead ? kGather / 10 : kGather);
  gather_.async_wait([this](error_code e) {
    if (!e) report_(std::exchange(losses_, {}));
  });
}

void RemotePeers::sample(Clock::time_point now) {
  for (auto& [rank, peer] : peers_) {
    if (peer->lost || peer->closed()) continue;
    std::vector<transport::TcpSample> samples;
    for (const auto& line : peer->lines)
      if (const auto one = line->sample()) samples.push_back(*one);
    fabric_.sample(rank, &samples);
    peer->resends = std::ranges::any_of(samples, [](const auto& s) { return s.data && s.unanswered; });
    peer->changes = peer->connections.take(std::move(samples));
    peer->silence.take(peer->changes, peer->last_received, now);
  }
}

std::set<std::string_view> RemotePeers::unanswered() {
  std::set<std::string_view> hosts;
  for (auto& [rank, peer] : peers_)
    if (!peer->lost && !peer->closed() && peer->resends) hosts.insert(peer->host());
  return hosts;
}

void RemotePeers::fabric_failed(int rank, const Status& why) {
  const RemotePeer* const peer = peer_of(rank);
  if (!peer || peer->closed()) return;
  lose(rank, why.reason(), why.failure()->text, why.failure()->detector);
}

}  // namespace ouro::rt
