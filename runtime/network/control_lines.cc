// Control lines between hosts. See control_lines.h.
#include "runtime/network/control_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "runtime/core/log.h"
#include "runtime/network/interfaces.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr auto kBeat = 250ms;
constexpr auto kMissed = kBeat + kBeat / 2;   // the last beat of the other end is missing
constexpr auto kStalled = 500ms;              // a beat this late is due to this process, not to its peers
constexpr auto kBrief = 1s;                   // a line that breaks sooner is not dialled again at once
constexpr std::size_t kMostQueued = 4 << 20;  // bytes on a line; the next line starts with everything

/// Encodes notes once, for all ranks to which they are sent.
std::vector<FrameStream::Payload> payloads(const std::vector<wire::Note>& notes) {
  std::vector<FrameStream::Payload> all;
  for (const wire::Note& n : notes) all.push_back(FrameStream::payload(n));
  return all;
}

/// Sends a sign of life that gets across only if whole packets do. It is older than all notes, so it
/// changes nothing.
void fill(FrameStream& line) {
  line.send(wire::Note{static_cast<std::uint16_t>(NoteKind::filler), 0, 0, wire::Bytes(line.packet())});
}

}  // namespace

ControlLines::ControlLines(asio::io_context& io, const NetworkOptions& options, const Identity& identity,
                           std::string interface, RemotePeers& peers, transport::Exchange& exchange,
                           const ControlPage& mine, Events events)
    : io_(io),
      options_(options),
      identity_(identity),
      interface_(std::move(interface)),
      peers_(peers),
      exchange_(exchange),
      publisher_(mine),
      events_(std::move(events)),
      timer_(io) {}

void ControlLines::start() {
  for (auto& [rank, peer] : peers_.all())
    if (rank < options_.rank) dial_peer(*peer);
  last_beat_ = Clock::now();
  beat();
}

void ControlLines::dial_peer(RemotePeer& peer) {
  if (peer.dialing || peer.lost || peer.closed() || cut_) return;
  peer.dialing = true;
  dial(io_, peer.remote.endpoint, Purpose::control, identity_, peer.remote.rank,
       peer.attempts.end(options_.silent_fail), [this, &peer](Result<Line> line) {
         peer.dialing = false;
         peer.attempts.note(line.status(), peer.who());
         if (line.ok()) return adopt(peer, std::move(*line), true);
         if (!peer.lines.empty() || peer.lost || peer.closed()) return;
         // If nothing listens where the rank did, or another program does, the rank has died. A missing
         // answer is left to the heartbeat.
         if (line.status().reason() == Reason::peer_dead)
           peers_.lose(peer.remote.rank, Reason::peer_dead, "its process ended without close (cause unknown)",
                       "connection refused");
         else if (line.status().reason() == Reason::refused)
           peers_.lose(peer.remote.rank, Reason::peer_dead,
                       "another program answers on its address: " + line.status().failure()->text,
                       "handshake");
       });
}

void ControlLines::adopt(RemotePeer& peer, Line line, bool dialled) {
  if (cut_) return;
  (void)watch_link(line.socket.get()).ok();
  const int rank = peer.remote.rank;
  auto pipe = transport::Pipe::open(line.socket.get(), tls_end(options_.tls, dialled, line));
  if (!pipe.ok()) {
    OURO_WARN("no line to {}: {}", peer.who(), pipe.status().failure()->text);
    return;
  }
  auto control =
      std::make_shared<FrameStream>(io_, std::move(line), wire::kMaxControl, std::move(*pipe), kMostQueued);
  control->start([this, &peer, weak = std::weak_ptr(control)](const Result<wire::NetFrame>& frame) {
    frame.ok() ? on_frame(peer, *frame) : hung_up(peer, weak.lock(), frame.status());
  });
  if (peer.lost) {
    // The rank does not know that the others continue without it or, if they have not agreed on that yet, the
    // error with which it was given up. It is notified of one or the other.
    if (peer.fenced)
      control->send(wire::Note{static_cast<std::uint16_t>(NoteKind::fenced), 0, 0, {}});
    else
      control->send(payloads(publisher_.everything()));
    control->last_words();
    OURO_INFO(NET, "rank {} came back after it was given up; it is told so", rank);
    return;
  }
  send_changes();
  // Only the first line is a sign of life by itself. A later one may have been made because of a silence, by
  // either end; it ends the silence only when something arrives.
  if (!peer.met) peer.last_received = Clock::now();
  peer.lines.push_back(control);
  if (peer.lines.size() > 2) {
    peer.lines.front()->close();
    peer.lines.erase(peer.lines.begin());
  }
  if (std::exchange(peer.met, true)) fill(*control);
  control->send(payloads(publisher_.everything()));
}

void ControlLines::on_frame(RemotePeer& peer, const wire::NetFrame& frame) {
  if (peer.lost || cut_) return;
  peer.last_received = Clock::now();
  peer.spoke = true;
  peer.said.clear();
  const auto* note = std::get_if<wire::Note>(&frame);
  if (!note) return;
  if (note->kind == static_cast<std::uint16_t>(NoteKind::fenced)) return events_.fenced(peer.remote.rank);
  if (note->order < peer.newest) return;  // it is from an older line, and superseded by later notes
  peer.newest = note->order;
  if (Status s = apply(*note, *peer.remote.copy); !s.ok()) {
    OURO_WARN("{} sent what cannot be: {}", peer.who(), s.failure()->text);
    return;
  }
  if (peer.closed())
    exchange_.forgive(peer.remote.rank);
  else if (peer.state() == ContextState::leaving)
    exchange_.leaves(peer.remote.rank);
  events_.news();
}

void ControlLines::fence(RemotePeer& peer) {
  peer.fenced = true;
  if (!peer.lines.empty() && !cut_)
    peer.lines.back()->send(wire::Note{static_cast<std::uint16_t>(NoteKind::fenced), 0, 0, {}});
}

void ControlLines::hung_up(RemotePeer& peer, const std::shared_ptr<FrameStream>& line, const Status& how) {
  std::erase(peer.lines, line);
  if (peer.lost || peer.closed()) return;
  if (how.reason() != Reason::peer_unresponsive)
    OURO_WARN("the line to {} is cut: {}", peer.who(), how.failure()->text);
  // Notes in flight on the broken line are lost.
  if (!peer.lines.empty()) return peer.lines.back()->send(payloads(publisher_.everything()));
  OURO_INFO(NET, "the line to rank {} broke ({}); asking whether it lives", peer.remote.rank,
            how.failure()->text);
  // A line that broke at once is dialled again with the next beat.
  if (Clock::now() - line->since() > kBrief) dial_peer(peer);
}

void ControlLines::send_changes() {
  kicked_ = false;
  if (cut_) return;
  const std::vector<wire::Note> notes = publisher_.changes();
  if (notes.empty()) return;
  const std::vector<FrameStream::Payload> news = payloads(notes);
  for (auto& [rank, peer] : peers_.all())
    if (!peer->lines.empty()) peer->lines.back()->send(news);
}

void ControlLines::kick() {
  if (!kicked_.exchange(true)) asio::post(io_, [this] { send_changes(); });
}

void ControlLines::beat() {
  const auto now = Clock::now();
  // After a stop of this process the silence of others proves nothing.
  if (now - last_beat_ > kStalled + kBeat)
    for (auto& [rank, peer] : peers_.all()) peer->last_received = now;
  last_beat_ = now;
  timer_.expires_after(kBeat);
  timer_.async_wait([this](error_code e) {
    if (!e) beat();
  });
  send_changes();
  const FrameStream::Payload sign_of_life = FrameStream::payload(wire::Beat{});
  peers_.sample(now);
  hosts_.take(peers_, now);
  const std::set<std::string_view> unanswered = peers_.unanswered();
  for (auto& [rank, peer] : peers_.all()) {
    if (peer->lost || peer->closed()) continue;
    if (peer->lines.empty())
      dial_peer(*peer);
    else if (!cut_ && (now - peer->last_received > kMissed || unanswered.contains(peer->host())))
      fill(*peer->lines.back());
    else if (!cut_)
      peer->lines.back()->send(sign_of_life);
    judge_silence(*peer, now);
  }
}

void ControlLines::judge_silence(RemotePeer& peer, Clock::time_point now) {
  const auto silent = now - peer.last_received;
  const double seconds = std::chrono::duration<double>(silent).count();
  // A rank that has not sent anything yet may still be joining.
  const auto fail_after = peer.spoke ? options_.silent_fail : std::max(options_.silent_fail, options_.join);
  if (silent >= fail_after) {
    const bool link = !is_running(interface_);
    const bool answers = !peer.lines.empty() && peer.lines.back()->since() - peer.last_received > kMissed;
    const std::string silence = fmt::format("no sign of life for {:.1f} s", seconds);
    const std::string& failed = peer.attempts.last_failure();
    const std::string seen = peer.silence.text(peer.host());
    peers_.lose(peer.remote.rank, link || answers ? Reason::link_lost : Reason::peer_unresponsive,
                link ? fmt::format("interface {} of this host is down; {}", interface_, silence)
                : answers
                    ? silence +
                          ", though a new connection to it could be made: small packets seem to pass, and "
                          "large ones do not; look at the MTU of the path"
                    : silence + (seen.empty() ? "" : "; " + seen) +
                          (failed.empty() ? "" : "; connecting to it failed: " + failed),
                "heartbeat");
  } else if (silent >= options_.silent_warn) {
    // After an interruption the other end's kernel retransmits at growing intervals: a new line may be
    // there earlier.
    if (peer.lines.empty() || now - peer.lines.back()->since() > kBrief) dial_peer(peer);
    const Way way = peer.silence.way();
    // The warning is repeated if the direction has become known since, once for each that is reported: the
    // judgement may change back and forth.
    if ((peer.said.empty() || way != Way::unknown) && peer.said.insert(way).second) {
      const std::string seen = peer.silence.text(peer.host());
      OURO_WARN("{} has given no sign of life for {:.1f} s; it is given up at {:.1f} s{}{}", peer.who(),
                seconds, std::chrono::duration<double>(fail_after).count(), seen.empty() ? "" : "; ", seen);
    }
  }
}

bool ControlLines::met_all() const {
  return std::all_of(peers_.all().begin(), peers_.all().end(), [](const auto& entry) {
    const RemotePeer& peer = *entry.second;
    return peer.met || peer.lost || peer.closed();
  });
}

bool ControlLines::say_goodbye() {
  send_changes();
  // If a socket is closed with unread beats in it, what was sent may be lost, so it is delivered before.
  return std::all_of(peers_.all().begin(), peers_.all().end(), [](const auto& entry) {
    const auto& lines = entry.second->lines;
    if (lines.empty()) return true;
    lines.back()->last_words();
    return lines.back()->delivered();
  });
}

}  // namespace ouro::rt
