// Connections of the tcp fabric. See data_lines.h.
#include "runtime/network/data_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr auto kIdle = 2s;      // longer than on control lines, which show a dead link first
constexpr auto kAgain = 100ms;  // between attempts

// The rate of connections is limited to one every kEach, and kBurst / kEach at once for paths that cut many:
// a peer that has given this rank up hangs up on each one at once until it notifies this rank on a
// control line.
constexpr auto kEach = 125ms, kBurst = 32 * kEach;

}  // namespace

void DataLines::dial_peer(int rank) {
  RemotePeer* const peer = peers_.peer_of(rank);
  if (!peer || rank > options_.rank || peer->lost || peer->closed() || cut_) return;
  Dialing& d = dialing_[rank];
  if (d.now) return;
  if (fabric_.wanted(rank) <= 0) {
    d.failing_since = {};  // the time begins anew when a connection is wanted again
    return;
  }
  const auto now = Clock::now(), due = std::max(d.due, now);
  d.now = true;
  if (due - now > kBurst) return dial_later(rank, due - kBurst);
  d.due = due + kEach;
  dial(io_, peer->remote.endpoint, Purpose::data, identity_, rank, peer->attempts.end(options_.silent_fail),
       [this, rank](Result<Line> line) { dialled(rank, std::move(line)); });
}

void DataLines::dialled(int rank, Result<Line> line) {
  RemotePeer& peer = *peers_.peer_of(rank);
  Dialing& d = dialing_[rank];
  d.now = false;
  peer.attempts.note(line.status(), peer.who());
  if (peer.lost || cut_) return;
  if (line.ok()) {
    d.failing_since = {};
    adopt(peer, std::move(*line), true);
    return dial_peer(rank);
  }
  // Its control line may live on over a path that lets no new connection through.
  if (d.failing_since == Clock::time_point{}) d.failing_since = Clock::now();
  if (Clock::now() - d.failing_since > 2 * options_.silent_fail)
    return peers_.lose(
        rank, Reason::link_lost,
        fmt::format("it gives signs of life, but no connection for data could be made for {:.1f} s: {}",
                    std::chrono::duration<double>(Clock::now() - d.failing_since).count(),
                    line.status().failure()->text),
        "connection");
  d.now = true;
  dial_later(rank, Clock::now() + kAgain);
}

void DataLines::dial_later(int rank, Clock::time_point when) {
  auto again = std::make_shared<asio::steady_timer>(io_, when);
  again->async_wait([this, rank, again](error_code e) {
    if (e) return;
    dialing_[rank].now = false;
    dial_peer(rank);
  });
}

/// A connection over which the kernel gets nothing across for seconds is dropped and replaced, and its data
/// sent again, even if the control line lives: a firewall on the path may have forgotten this connection.
void DataLines::adopt(RemotePeer& peer, Line line, bool dialled) {
  (void)watch_link(line.socket.get(), kIdle).ok();
  fabric_.adopt(peer.remote.rank, std::move(line.socket), tls_end(options_.tls, dialled, line));
}

}  // namespace ouro::rt
