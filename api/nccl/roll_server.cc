// Holds the roll call: one listener of the process, for the ranks of all ids that it made. See roll_call.h.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "api/nccl/roll_call.h"
#include "runtime/core/deadline.h"
#include "runtime/core/fd.h"
#include "runtime/core/fork.h"
#include "runtime/core/log.h"
#include "runtime/core/per_process.h"
#include "runtime/core/thread.h"
#include "runtime/network/net_address.h"

namespace ouro::nccl {
namespace {

using namespace std::chrono_literals;
constexpr auto kToSpeak = 10s;  // time for a connection to identify itself
constexpr auto kAtLeast = 1s;   // its minimum, if many others wait to be accepted
// Maximum connections that have not identified themselves; further ones wait in the backlog.
constexpr std::size_t kSilent = 256;
using roll::kMostRanks;
constexpr std::size_t kIds = 10'000;  // number of ids that are remembered

Result<Fd> listen_at(const std::string& place) {
  OURO_ASSIGN(const rt::NetAddress at, rt::parse_address(place));
  Fd s(::socket(at.at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (s) setsockopt(s.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!s || bind(s.get(), reinterpret_cast<const sockaddr*>(&at.at), at.length) != 0 ||
      listen(s.get(), 1024) != 0)
    return Status(Reason::resource, fmt::format("cannot listen on {}: {}", place, std::strerror(errno)));
  close_in_children(s.get());
  return s;
}

/// A connection, from its first byte until it is answered.
struct Line {
  Fd socket;
  Clock::time_point until;  ///< the connection is given up, or its rank stops waiting
  roll::Hello hello{};
  std::size_t got = 0;
  bool known() const { return got == sizeof hello; }
};

/// The ranks of one communicator that have reported.
struct Gathering {
  std::map<std::uint32_t, Line> ranks;
  std::uint32_t world = 0;
  Status verdict;  ///< not ok: the communicator cannot be made; ranks that report later receive this
  Clock::time_point remembered;  ///< until when
};

/// "pid 12 at 10.0.0.1"
std::string caller_of(const Line& l) {
  rt::NetAddress peer;
  peer.length = sizeof peer.at;
  const bool known = getpeername(l.socket.get(), reinterpret_cast<sockaddr*>(&peer.at), &peer.length) == 0;
  return fmt::format("pid {} at {}", l.hello.pid,
                     known ? rt::to_string(peer, false) : "an address that is not known any more");
}

/// The listener and its thread. One per process; a forked child that needs one creates its own.
class RollServer {
 public:
  static Result<RollServer*> make(const std::string& place) {
    OURO_ASSIGN(Fd listener, listen_at(place));
    rt::NetAddress own;
    own.length = sizeof own.at;
    getsockname(listener.get(), reinterpret_cast<sockaddr*>(&own.at), &own.length);
    Fd stop(eventfd(0, EFD_CLOEXEC));
    if (!stop) return Status(Reason::resource, fmt::format("eventfd: {}", std::strerror(errno)));
    auto* const server = new RollServer(std::move(listener), std::move(stop));
    server->place_ = rt::to_string(own);
    try {
      server->thread_ =
          Thread("ouro-nccl-roll", [server] { persist("the roll call", [server] { server->serve(); }); });
    } catch (const std::exception& e) {
      delete server;
      return Status(Reason::resource, fmt::format("no thread for the roll call: {}", e.what()));
    }
    return server;
  }
  void expect(const RollId& id) {
    std::lock_guard lock(mutex_);
    if (ids_.insert_or_assign(id.nonce, id).second) order_.push_back(id.nonce);
    if (order_.size() <= kIds) return;
    ids_.erase(order_.front());
    order_.pop_front();
  }
  const std::string& place() const { return place_; }
  /// Ends the thread; an answer being sent is completed.
  void end() {
    ending_.store(true);
    (void)eventfd_write(stop_.get(), 1);
    thread_.join();
  }

 private:
  RollServer(Fd listener, Fd stop) : listener_(std::move(listener)), stop_(std::move(stop)) {}

  void serve() {
    while (!ending_.load()) {
      std::vector<pollfd> polls{{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
      std::vector<Line*> lines;
      for (Line& l : silent_) lines.push_back(&l);
      for (auto& [job, g] : gatherings_)
        for (auto& [rank, l] : g.ranks) lines.push_back(&l);
      auto next = Clock::now() + 60s;
      if (!room()) polls[0].events = 0, next = silent_.front().until - kToSpeak + kAtLeast;
      for (Line* l : lines) polls.push_back({l->socket.get(), POLLIN, 0}), next = std::min(next, l->until);
      const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now()) + 1ms;
      poll(polls.data(), polls.size(), static_cast<int>(std::clamp<std::int64_t>(wait.count(), 1, 60'000)));
      for (std::size_t k = 0; k < lines.size(); ++k)
        if (polls[k + 2].revents != 0) receive(*lines[k]);
      settle();
      accept();
    }
  }

  /// Whether another connection can be accepted, perhaps in place of one that has been silent for long.
  bool room() const {
    return silent_.size() < kSilent || Clock::now() >= silent_.front().until - kToSpeak + kAtLeast;
  }
  void accept() {
    while (room()) {
      Fd s(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!s) {
        if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(10ms);
        return;
      }
      close_in_children(s.get());
      if (silent_.size() >= kSilent) silent_.pop_front();
      silent_.push_back({std::move(s), Clock::now() + kToSpeak});
    }
  }

  /// Reads more; a line that has ended or sends too much loses its socket.
  void receive(Line& l) {
    char beyond;
    void* const to = l.known() ? &beyond : reinterpret_cast<char*>(&l.hello) + l.got;
    const ssize_t n = ::recv(l.socket.get(), to, l.known() ? 1 : sizeof l.hello - l.got, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0 || l.known()) return l.socket.reset();
    l.got += static_cast<std::size_t>(n);
  }

  /// Moves identified connections to their gatherings, and answers gatherings that are complete or late.
  void settle() {
    const auto now = Clock::now();
    for (auto at = silent_.begin(); at != silent_.end();) {
      const auto line = at++;
      if (!line->socket || (!line->known() && now >= line->until)) {
        silent_.erase(line);
      } else if (line->known()) {
        admit(std::move(*line));
        silent_.erase(line);
      }
    }
    for (auto at = gatherings_.begin(); at != gatherings_.end();) {
      Gathering& g = at->second;
      if (!g.verdict.ok()) {
        at = now >= g.remembered ? gatherings_.erase(at) : std::next(at);
        continue;
      }
      // It disconnected and may report again.
      std::erase_if(g.ranks, [](const auto& r) { return !r.second.socket; });
      const bool late =
          std::any_of(g.ranks.begin(), g.ranks.end(), [&](const auto& r) { return now >= r.second.until; });
      if (!g.ranks.empty() && g.ranks.size() < g.world && !late) {
        ++at;
        continue;
      }
      if (late && g.ranks.size() < g.world) {
        give_up(g, {Reason::never_joined, missing(g)});
        ++at;
        continue;
      }
      if (g.ranks.size() == g.world) complete(g);
      at = gatherings_.erase(at);
    }
  }

  static std::string missing(const Gathering& g) {
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t r = 0; r < g.world && ranks.size() < 32; ++r)
      if (!g.ranks.contains(r)) ranks.push_back(r);
    return fmt::format("{} of {} ranks have reported; ranks {{{}}}{} have not", g.ranks.size(), g.world,
                       fmt::join(ranks, ","), ranks.size() + g.ranks.size() < g.world ? " and more" : "");
  }

  void admit(Line line) {
    const roll::Hello& h = line.hello;
    if (std::memcmp(h.magic, roll::kHello, sizeof h.magic) != 0) return;
    const std::optional<RollId> id = find(h.id);
    if (!id) return refuse_unsigned(line);  // another process's id, or one not yet made here
    const auto mac = roll::mac_of(*id, h);
    if (!mac.ok() || !wire::equal(*mac, h.mac)) return refuse_unsigned(line);
    if (h.world < 1 || h.world > kMostRanks || h.rank >= h.world) return;
    Gathering& g = gatherings_[h.job];
    line.until = Clock::now() + std::chrono::milliseconds(h.patience_ms);
    if (!g.verdict.ok()) return refuse(line, g.verdict);
    if (g.ranks.empty()) g.world = h.world;
    if (g.world != h.world)
      return give_up(g,
                     {Reason::mismatch, fmt::format("rank {} says that there are {} ranks, others {}", h.rank,
                                                    h.world, g.world)},
                     &line);
    const auto first = g.ranks.find(h.rank);
    if (first != g.ranks.end() && first->second.hello.caller != h.caller)
      return give_up(
          g,
          {Reason::refused, fmt::format("rank {} of {} has reported twice: {}, and {}; "
                                        "expected each rank once",
                                        h.rank, h.world, caller_of(first->second), caller_of(line))},
          &line);
    g.ranks.insert_or_assign(h.rank, std::move(line));  // a caller whose connection broke has reported again
  }

  /// Sent to a rank with an unknown id or a wrong key: there is no shared key to authenticate an answer with.
  static void refuse_unsigned(const Line& l) {
    roll::Answer a{};
    std::memcpy(a.magic, roll::kAnswer, sizeof a.magic);
    a.reason = static_cast<std::uint32_t>(Reason::refused);
    (void)!::send(l.socket.get(), &a, sizeof a, MSG_NOSIGNAL);
  }

  std::optional<RollId> find(const wire::Nonce& nonce) {
    std::lock_guard lock(mutex_);
    const auto it = ids_.find(nonce);
    return it == ids_.end() ? std::nullopt : std::optional(it->second);
  }

  void complete(Gathering& g) {
    std::vector<std::uint8_t> all(roll::kPlace + g.world * sizeof(HostKey));
    std::memcpy(all.data(), g.ranks.at(0).hello.place, roll::kPlace - 1);
    for (const auto& [rank, l] : g.ranks)
      std::memcpy(all.data() + roll::kPlace + rank * sizeof(HostKey), l.hello.host.data(), sizeof(HostKey));
    for (auto& [rank, l] : g.ranks) answer(l, Reason::none, all);
    OURO_INFO(BOOTSTRAP, "all {} ranks of a communicator have reported to the roll call", g.world);
  }
  /// Refuses all ranks that have reported, and `last`, which has just done so, with the reason why the
  /// communicator cannot be made; keeps the reason for the others, as long as any rank may wait for them.
  void give_up(Gathering& g, Status why, Line* last = nullptr) {
    g.verdict = std::move(why);
    std::vector<Line*> all;
    for (auto& [rank, l] : g.ranks) all.push_back(&l);
    if (last) all.push_back(last);
    for (Line* l : all) {
      g.remembered = std::max(g.remembered, l->until);
      refuse(*l, g.verdict);
    }
    g.ranks.clear();
  }
  void refuse(Line& l, const Status& why) { answer(l, why.reason(), text(why.failure()->text)); }
  static std::vector<std::uint8_t> text(const std::string& s) { return {s.begin(), s.end()}; }

  /// The final message to a rank; it fits into the kernel's socket buffer.
  void answer(Line& l, Reason reason, const std::vector<std::uint8_t>& follows) {
    const std::optional<RollId> id = find(l.hello.id);
    roll::Answer a{};
    std::memcpy(a.magic, roll::kAnswer, sizeof a.magic);
    a.reason = static_cast<std::uint32_t>(reason), a.bytes = static_cast<std::uint32_t>(follows.size());
    const auto mac = id ? roll::mac_of(*id, l.hello, a, follows) : Status(Reason::refused, "");
    if (!mac.ok()) return l.socket.reset();
    a.mac = *mac;
    std::vector<std::uint8_t> whole(sizeof a);
    std::memcpy(whole.data(), &a, sizeof a);
    whole.insert(whole.end(), follows.begin(), follows.end());
    const int flags = fcntl(l.socket.get(), F_GETFL);
    fcntl(l.socket.get(), F_SETFL, flags & ~O_NONBLOCK);
    const timeval patience{2, 0};
    setsockopt(l.socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    for (std::size_t at = 0; at < whole.size();) {
      const ssize_t n = ::send(l.socket.get(), whole.data() + at, whole.size() - at, MSG_NOSIGNAL);
      if (n <= 0) break;
      at += static_cast<std::size_t>(n);
    }
    l.socket.reset();
  }

  const Fd listener_, stop_;
  std::atomic<bool> ending_{false};
  Thread thread_;
  std::string place_;
  std::list<Line> silent_;
  std::map<wire::Nonce, Gathering> gatherings_;  // key: job
  std::mutex mutex_;
  std::map<wire::Nonce, RollId> ids_;
  std::deque<wire::Nonce> order_;  // keys of ids_, oldest first
};

/// The roll-call servers of this process.
struct Servers {
  std::mutex mutex;
  std::map<std::string, RollServer*> all;  // key: place
};
constinit PerProcess<Servers> g_servers;
std::atomic<bool> g_ends{false};  // end_servers is registered with atexit, which a child inherits

/// Called when the process exits or unloads the library: objects that the threads use are destroyed after it.
void end_servers() {
  Servers& servers = *g_servers;
  std::lock_guard lock(servers.mutex);
  for (const auto& [place, server] : servers.all)
    if (server) server->end();
}

}  // namespace

Result<std::string> expect_ranks(const RollId& id, const std::string& place) {
  Servers& servers = *g_servers;
  std::lock_guard lock(servers.mutex);
  RollServer*& server = servers.all[place];
  if (!server) {
    OURO_TRY(roll::mac_of(id, roll::Hello{}).status());  // initialises OpenSSL before end_servers is
                                                         // registered, so OpenSSL's cleanup runs after it
    if (!g_ends.exchange(true) && std::atexit(end_servers) != 0)
      return Status(Reason::resource, "no room for atexit");
    OURO_ASSIGN(server, RollServer::make(place));
  }
  server->expect(id);
  return server->place();
}

}  // namespace ouro::nccl
