// Lines between hosts: signs of life, replicas, and who makes the fabric's connections. See network.h.
#include "runtime/network/network.h"

#include <fmt/format.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <future>
#include <utility>

#include "runtime/core/log.h"
#include "runtime/network/frame_stream.h"
#include "runtime/network/interfaces.h"
#include "transport/net/tcp/tcp.h"
#include "transport/net/ucx/ucx.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr auto kBeat = 250ms;
constexpr auto kStalled = 500ms;   // a beat so late says something about this process, not about its peers
constexpr auto kGather = 100ms;    // losses that come together are reported together
constexpr auto kAttempt = 1500ms;  // the first to connect: one that is lost is sent again after a second
constexpr auto kSlowest =
    20s;  // of several that failed; who does not answer at all is given up sooner (dial)
constexpr auto kDataIdle = 2s;  // control lines show a dead link before data connections do
constexpr auto kBrief = 1s;     // a line that breaks sooner is not dialled again at once
constexpr auto kAgain = 100ms;  // between attempts to connect the fabric
constexpr std::chrono::milliseconds kLastWords = 500ms, kServe = 2s;
constexpr std::size_t kMostQueued = 4 << 20;  // on a line; on the next one everything is said anew

/// Whether the interface is there, up, and has a carrier.
bool runs(const std::string& interface) {
  if (interface.empty()) return true;
  const Fd any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  interface.copy(request.ifr_name, IFNAMSIZ - 1);
  if (!any || ioctl(any.get(), SIOCGIFFLAGS, &request) != 0) return false;
  return (request.ifr_flags & IFF_UP) && (request.ifr_flags & IFF_RUNNING);
}

/// This rank's end of a line under TLS; the one that has dialled is the client.
std::optional<transport::TlsEnd> encrypted(bool tls, bool dialled, const Line& line) {
  using Role = transport::TlsEnd::Role;
  if (!tls) return {};
  return transport::TlsEnd{.role = dialled ? Role::client : Role::server, .keys = line.keys};
}

/// Encoded once, for as many ranks as hear them.
std::vector<FrameStream::Payload> payloads(const std::vector<wire::Note>& notes) {
  std::vector<FrameStream::Payload> all;
  for (const wire::Note& n : notes) all.push_back(FrameStream::payload(n));
  return all;
}

}  // namespace

/// What this rank knows of one on another host.
struct Network::RemotePeer {
  Remote remote;
  std::vector<std::shared_ptr<FrameStream>> lines;  // all are read, the newest is written to
  Clock::time_point heard{};
  bool spoke = false;  // something has come since it started: from then on its silence means something
  bool warned = false, lost = false, fenced = false, dialing = false, dialing_data = false;
  std::uint64_t newest = 0;          // of its notes
  int failed = 0;                    // attempts to connect, one after the other
  std::string last_failure;          // of them
  Clock::time_point data_failing{};  // since when no connection for data could be made
  std::string who() const { return fmt::format("rank {} ({})", remote.rank, remote.endpoint); }
  ContextState state() const { return static_cast<ContextState>(remote.copy->state.get()); }
  bool closed() const { return state() == ContextState::closed; }
};

Network::Network(NetworkOptions options)
    : options_(std::move(options)), work_(io_.get_executor()), tick_(io_), gather_(io_) {}

Network::~Network() {
  io_.stop();
  if (thread_.joinable()) thread_.join();
}

void Network::keep(std::function<bool()> served, std::function<void(Line)> table_line) {
  served_ = std::move(served);
  table_line_ = std::move(table_line);
}

void Network::start(const ControlPage& mine, std::vector<Remote> remotes, Events events) {
  events_ = std::move(events);
  publisher_ = std::make_unique<ReplicaPublisher>(mine);
  const auto now = Clock::now();
  for (Remote& r : remotes) {
    auto peer = std::make_unique<RemotePeer>();
    peer->heard = now;
    const int rank = r.rank;
    peer->remote = std::move(r);
    if (ucx_) ucx_->connect(rank, peer->remote.address);
    remotes_[rank] = std::move(peer);
  }
  asio::post(io_, [this] {
    started_ = true;
    for (Line& line : std::exchange(early_, {})) taken(std::move(line));
    for (auto& [rank, peer] : remotes_)
      if (rank < options_.rank) dial_control(rank);
    last_tick_ = Clock::now();
    tick();
  });
  thread_ = Thread("ouro-net", [this] {
    OURO_INFO(PROXY, "thread ouro-net begins: connections to {} ranks", remotes_.size());
    bool again = false;
    persist("the lines between hosts", [&] {
      if (std::exchange(again, true) && started_) tick();  // an exception may have cut it short
      io_.run();
    });
  });
}

void Network::taken(Line line) {
  if (line.purpose == Purpose::table) {
    if (table_line_) table_line_(std::move(line));
    return;
  }
  if (!started_) {
    if (early_.size() < 4 * static_cast<std::size_t>(options_.world)) early_.push_back(std::move(line));
    return;
  }
  const auto it = remotes_.find(line.peer_rank);
  if (it == remotes_.end()) return;
  RemotePeer& peer = *it->second;
  if (line.purpose == Purpose::data) {
    if (tcp_ && !peer.lost) adopt_data(peer, std::move(line), false);
    return;
  }
  if (line.purpose == Purpose::control) adopt(peer, std::move(line), false);
}

void Network::dial_control(int rank) {
  RemotePeer& peer = *remotes_.at(rank);
  if (peer.dialing || peer.lost || peer.closed()) return;
  peer.dialing = true;
  dial(io_, peer.remote.endpoint, Purpose::control, identity_, rank, attempt(peer),
       [this, rank](Result<Line> line) {
         RemotePeer& to = *remotes_.at(rank);
         to.dialing = false;
         note_attempt(to, line.status());
         if (line.ok()) return adopt(to, std::move(*line), true);
         if (!to.lines.empty() || to.lost || to.closed()) return;
         // Nobody listens where it listened, or a stranger does: it has gone. No answer is left to the clock.
         if (line.status().reason() == Reason::peer_dead)
           lose(rank, Reason::peer_dead, "its process ended without close (cause unknown)",
                "connection refused");
         else if (line.status().reason() == Reason::refused)
           lose(rank, Reason::peer_dead,
                "another program answers on its address: " + line.status().failure()->text, "handshake");
       });
}

/// Until when an attempt to connect may take; longer ones after those that have failed, for paths that are
/// slow.
Clock::time_point Network::attempt(const RemotePeer& peer) const {
  const auto longest = std::max<Clock::duration>(kSlowest, options_.silent_fail);
  return Clock::now() + std::min<Clock::duration>(kAttempt * (1 << std::min(peer.failed, 8)), longest);
}

void Network::note_attempt(RemotePeer& peer, const Status& outcome) {
  if (outcome.ok()) {
    peer.failed = 0;
    peer.last_failure.clear();
    return;
  }
  ++peer.failed;
  const std::string& why = outcome.failure()->text;
  if (outcome.reason() == Reason::resource && why != peer.last_failure)
    OURO_WARN("no connection to {}: {}; trying again", peer.who(), why);
  peer.last_failure = why;
}

void Network::adopt(RemotePeer& peer, Line line, bool dialled) {
  if (peer.lost && !peer.fenced) return;  // it may be that nobody has agreed to that yet
  (void)watch_link(line.socket.get()).ok();
  const int rank = peer.remote.rank;
  auto pipe = transport::Pipe::open(line.socket.get(), encrypted(options_.tls, dialled, line));
  if (!pipe.ok()) {
    OURO_WARN("no line to {}: {}", peer.who(), pipe.status().failure()->text);
    return;
  }
  auto control =
      std::make_shared<FrameStream>(io_, std::move(line), wire::kMaxControl, std::move(*pipe), kMostQueued);
  control->start([this, &peer, weak = std::weak_ptr(control)](const Result<wire::NetFrame>& frame) {
    frame.ok() ? heard(peer, *frame) : hung_up(peer, weak.lock(), frame.status());
  });
  if (peer.lost) {
    // The others have gone on without it, and it does not know.
    control->send(wire::Note{static_cast<std::uint16_t>(NoteKind::fenced), 0, 0, {}});
    control->last_words();
    OURO_INFO(NET, "rank {} came back after it was given up; it is told so", rank);
    return;
  }
  tell();
  peer.lines.push_back(control);
  if (peer.lines.size() > 2) {
    peer.lines.front()->close();
    peer.lines.erase(peer.lines.begin());
  }
  peer.heard = Clock::now();
  control->send(payloads(publisher_->everything()));
}

/// What the kernel cannot get across for seconds is dropped, made anew and sent again, though the control
/// line lives: between the two there may be a firewall that has forgotten this connection.
void Network::adopt_data(RemotePeer& peer, Line line, bool dialled) {
  (void)watch_link(line.socket.get(), kDataIdle).ok();
  tcp_->adopt(peer.remote.rank, std::move(line.socket), encrypted(options_.tls, dialled, line));
}

void Network::heard(RemotePeer& peer, const wire::NetFrame& frame) {
  if (peer.lost) return;
  peer.heard = Clock::now();
  peer.spoke = true;
  peer.warned = false;
  const auto* note = std::get_if<wire::Note>(&frame);
  if (!note) return;
  if (note->kind == static_cast<std::uint16_t>(NoteKind::fenced)) return events_.fenced(peer.remote.rank);
  if (note->order < peer.newest) return;  // of an older line: what came since says it all
  peer.newest = note->order;
  if (Status s = apply(*note, *peer.remote.copy); !s.ok()) {
    OURO_WARN("{} sent what cannot be: {}", peer.who(), s.failure()->text);
    return;
  }
  if (peer.state() > ContextState::active) fabric_->exchange().forgive(peer.remote.rank);
  events_.news();
}

void Network::hung_up(RemotePeer& peer, const std::shared_ptr<FrameStream>& line, const Status& how) {
  std::erase(peer.lines, line);
  if (peer.lost || peer.closed()) return;
  if (how.reason() != Reason::peer_unresponsive)
    OURO_WARN("the line to {} is cut: {}", peer.who(), how.failure()->text);
  // What was on its way on the other is lost.
  if (!peer.lines.empty()) return peer.lines.back()->send(payloads(publisher_->everything()));
  OURO_INFO(NET, "the line to rank {} broke ({}); asking whether it lives", peer.remote.rank,
            how.failure()->text);
  // One that is hung up on as soon as it is there is tried again with the next beat.
  if (Clock::now() - line->since() > kBrief) dial_control(peer.remote.rank);
}

void Network::tell() {
  kicked_ = false;
  const std::vector<wire::Note> notes = publisher_->changes();
  if (notes.empty()) return;
  const std::vector<FrameStream::Payload> news = payloads(notes);
  for (auto& [rank, peer] : remotes_)
    if (!peer->lines.empty()) peer->lines.back()->send(news);
}

void Network::fence(int rank) {
  asio::post(io_, [this, rank] {
    if (const auto peer = remotes_.find(rank); peer != remotes_.end()) peer->second->fenced = true;
  });
}

void Network::kick() {
  if (!kicked_.exchange(true)) asio::post(io_, [this] { tell(); });
}

void Network::tick() {
  const auto now = Clock::now();
  // After a stop of this process nobody else is dead.
  if (now - last_tick_ > kStalled + kBeat)
    for (auto& [rank, peer] : remotes_) peer->heard = now;
  last_tick_ = now;
  tick_.expires_after(kBeat);
  tick_.async_wait([this](error_code e) {
    if (!e) tick();
  });
  tell();
  const FrameStream::Payload beat = FrameStream::payload(wire::Beat{});
  for (auto& [rank, peer] : remotes_) {
    if (peer->lost || peer->closed()) continue;
    if (peer->lines.empty()) {
      dial_control(rank);
    } else {
      peer->lines.back()->send(beat);
    }
    const auto silent = now - peer->heard;
    const double seconds = std::chrono::duration<double>(silent).count();
    // One that has not spoken yet may still be joining.
    const auto fail_after =
        peer->spoke ? options_.silent_fail : std::max(options_.silent_fail, options_.join);
    if (silent >= fail_after) {
      const bool link = !runs(interface_);
      lose(rank, link ? Reason::link_lost : Reason::peer_unresponsive,
           link ? fmt::format("interface {} of this host is down; no sign of life for {:.1f} s", interface_,
                              seconds)
                : fmt::format(
                      "no sign of life for {:.1f} s{}{}", seconds,
                      peer->last_failure.empty() ? "" : "; connecting to it failed: ", peer->last_failure),
           "heartbeat");
    } else if (silent >= options_.silent_warn && !peer->warned) {
      peer->warned = true;
      OURO_WARN("{} has given no sign of life for {:.1f} s; it is given up at {:.1f} s", peer->who(), seconds,
                std::chrono::duration<double>(fail_after).count());
    }
  }
}

void Network::lose(int rank, Reason reason, std::string text, std::string detector) {
  RemotePeer& peer = *remotes_.at(rank);
  if (peer.lost) return;
  peer.lost = true;
  for (auto& line : peer.lines) line->close();
  peer.lines.clear();
  fabric_->drop(rank);
  fabric_->exchange().forgive(rank);
  losses_.push_back({rank, reason, std::move(text), std::move(detector)});
  if (losses_.size() > 1) return;
  gather_.expires_after(reason == Reason::peer_dead ? kGather / 10 : kGather);
  gather_.async_wait([this](error_code e) {
    if (!e) events_.lost(std::exchange(losses_, {}));
  });
}

void Network::on_fabric_failure(int peer, const Status& why) {
  const auto found = remotes_.find(peer);
  // A connection ends with a rank that has left in good order, too.
  if (found == remotes_.end() || found->second->closed()) return;
  lose(peer, why.reason(), why.failure()->text, why.failure()->detector);
}

void Network::dial_data(int rank) {
  const auto it = remotes_.find(rank);
  if (it == remotes_.end()) return;
  RemotePeer& peer = *it->second;
  // The higher rank dials; the other takes.
  if (rank > options_.rank || peer.lost || peer.closed() || peer.dialing_data || tcp_->wanted(rank) <= 0)
    return;
  peer.dialing_data = true;
  dial(
      io_, peer.remote.endpoint, Purpose::data, identity_, rank, attempt(peer),
      [this, rank](Result<Line> line) {
        RemotePeer& to = *remotes_.at(rank);
        to.dialing_data = false;
        note_attempt(to, line.status());
        if (to.lost) return;
        if (line.ok()) {
          to.data_failing = {};
          adopt_data(to, std::move(*line), true);
          return dial_data(rank);
        }
        // Its control line may live on by a path that lets nothing new through.
        if (to.data_failing == Clock::time_point{}) to.data_failing = Clock::now();
        if (Clock::now() - to.data_failing > 2 * options_.silent_fail)
          return lose(
              rank, Reason::link_lost,
              fmt::format("it gives signs of life, but no connection for data could be made for {:.1f} s: {}",
                          std::chrono::duration<double>(Clock::now() - to.data_failing).count(),
                          line.status().failure()->text),
              "connection");
        auto again = std::make_shared<asio::steady_timer>(io_, kAgain);
        again->async_wait([this, rank, again](error_code e) {
          if (!e) dial_data(rank);
        });
      });
}

void Network::close() {
  if (!thread_.joinable()) return;
  const auto wait_for = [this](auto&& idle, std::chrono::milliseconds at_most) {
    const auto end = Clock::now() + at_most;
    for (bool done = false; !done && Clock::now() < end;) {
      std::promise<bool> answer;
      auto said = answer.get_future();
      asio::post(io_, [&] { answer.set_value(idle()); });
      done = said.get();
      if (!done) std::this_thread::sleep_for(1ms);
    }
  };
  wait_for([this] { return !served_ || served_(); }, kServe);
  wait_for(
      [this] {
        tell();
        // With unread beats in it a socket that is closed takes back what was sent: it goes out before.
        return std::all_of(remotes_.begin(), remotes_.end(), [](const auto& entry) {
          const auto& lines = entry.second->lines;
          if (lines.empty()) return true;
          lines.back()->last_words();
          return lines.back()->delivered();
        });
      },
      kLastWords);
  io_.stop();
  thread_.join();
}

}  // namespace ouro::rt
