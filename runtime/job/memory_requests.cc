// Requests for memory of other ranks. See memory_requests.h.
#include "runtime/job/memory_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/core/log.h"
#include "runtime/join/descriptors.h"
#include "runtime/join/local_socket.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr auto kFetchDeadline = 10s;
constexpr auto kFetchSlice = 20ms;
constexpr int kAttempts = 3;

Status ended(int r, const Peer& peer, std::string text) {
  return Status(Failure{.reason = Reason::peer_dead,
                        .text = std::move(text),
                        .rank = r,
                        .host = peer.host,
                        .pid = peer.pid,
                        .detector = "socket"});
}

}  // namespace

/// A broken connection is no proof of death, so it is retried: a rank that has died does not listen any
/// more either.
Result<wire::Frame> MemoryRequests::ask(int r, wire::Fetch request, std::vector<Fd>* fds,
                                        const std::vector<int>& give, Clock::time_point until) const {
  request.job = job_;
  for (int attempt = 1;; ++attempt) {
    auto answer = ask_once(r, request, fds, give, until);
    if (answer.ok() || answer.status().reason() != Reason::peer_dead || members_.is_dead(r) ||
        attempt == kAttempts)
      return answer;
    OURO_INFO(SHM, "asking rank {} for memory again: {}", r, answer.status().failure()->text);
  }
}

Result<wire::Frame> MemoryRequests::ask_once(int r, const wire::Fetch& request, std::vector<Fd>* fds,
                                             const std::vector<int>& give, Clock::time_point until) const {
  if (members_.is_remote(r))
    return Status(unsupported(fmt::format("memory of rank {}, which is on another host", r)));
  const Peer& peer = members_.peer(r);
  Fd line = connect_local(peer.server);
  if (!line && descriptors_lack(errno)) return no_descriptor("asking a rank for its memory");
  if (!line) return ended(r, peer, "it no longer answers");
  OURO_TRY(check_peer(line.get()));
  OURO_TRY(send_frame(line.get(), request, give));
  // The connection does not always close when the rank ends: a process that it forked may hold the
  // socket open.
  const auto end = std::min<Clock::time_point>(Clock::now() + kFetchDeadline, until);
  const auto slice = [&] { return std::min<Clock::time_point>(Clock::now() + kFetchSlice, end); };
  auto incoming = recv_frame(line.get(), slice());
  while (!incoming.ok() && incoming.status().reason() == Reason::deadline && Clock::now() < end &&
         !members_.is_dead(r))
    incoming = recv_frame(line.get(), slice());
  if (members_.is_dead(r) || (!incoming.ok() && incoming.status().reason() == Reason::peer_dead))
    return ended(r, peer,
                 "it ended before it gave its memory" +
                     (incoming.ok() ? "" : ": " + incoming.status().failure()->text));
  if (!incoming.ok()) return incoming.status();
  if (auto* no = std::get_if<wire::Refuse>(&incoming->frame))
    return Status(no->reason, fmt::format("rank {} gave no shared memory: {}", r, no->text));
  *fds = std::move(incoming->fds);
  return std::move(incoming->frame);
}

Result<Fd> MemoryRequests::fetch(int r, Kind kind, std::uint64_t key, std::uint64_t bytes,
                                 std::uint64_t* got) const {
  std::vector<Fd> fds;
  auto answer = ask(r, {.kind = kind, .key = key, .bytes = bytes}, &fds);
  if (!answer.ok()) return answer.status();
  auto* grant = std::get_if<wire::Grant>(&*answer);
  if (!grant || fds.size() != 1)
    return Status(Reason::refused, fmt::format("rank {} answered with something else than a descriptor", r));
  *got = grant->bytes;
  return std::move(fds[0]);
}

}  // namespace ouro::rt
