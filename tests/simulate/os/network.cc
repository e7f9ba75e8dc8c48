// Paths, and TCP between the hosts. See network.h.
#include "tests/simulate/os/network.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace simulate {
namespace {

constexpr Nanos kLongestResend = 120 * kSecond;
constexpr Nanos kGivenUp = 900 * kSecond;  // tcp_retries2
constexpr std::uint64_t kCountEach = 64;   // number of arrivals
constexpr std::size_t kSegment = 64 << 10;

void tell(const End& e) {
  if (e.socket) e.socket->changed();
}

}  // namespace

Network::Network(int hosts) : hosts_(hosts), paths_(static_cast<std::size_t>(hosts * hosts)) {}

std::shared_ptr<Connection> Network::make(Address from, Address to) {
  auto c = std::make_shared<Connection>();
  c->ends[0].at = from, c->ends[1].at = to;
  c->ends[0].heard = c->ends[1].heard = world->now();
  c->number = ++numbers_;
  all_.push_back(c);
  return c;
}

bool Network::passes(int from, int to) {
  const Path& p = path(from, to);
  return !p.cut && !(p.loss > 0 && world->random().chance(p.loss));
}

/// The system's probes, if enabled, detect the silence of an idle connection.
void Network::cut(int from, int to, bool on) {
  world->note(on ? "cut" : "mend", from, to);
  path(from, to).cut = on;
  if (!on) return;
  std::erase_if(all_, [](const auto& weak) { return weak.expired(); });
  for (const auto& weak : all_) {
    const auto c = weak.lock();
    for (const int side : {0, 1}) {
      const int a = c->ends[side].at.host, b = c->ends[1 - side].at.host;
      if ((a == from && b == to) || (a == to && b == from)) look_at_idle(*c, side);
    }
  }
}

void Network::look_at_idle(Connection& c, int side) {
  End& e = c.ends[side];
  if (e.keep_idle > 0 && !e.broken) probe(c, side, e.keep_idle, e.keep_for);
}

/// Schedules the next probe of an idle end; without an answer for `left` more, the connection ends.
void Network::probe(Connection& c, int side, Nanos wait, Nanos left) {
  world->after(wait, [this, weak = c.weak_from_this(), side, left, heard = c.ends[side].heard] {
    const auto kept = weak.lock();
    if (!kept) return;
    End& mine = kept->ends[side];
    const int a = mine.at.host, b = kept->ends[1 - side].at.host;
    if (mine.broken || !(path(a, b).cut || path(b, a).cut)) return;  // the next cut starts again
    if (mine.heard != heard) return look_at_idle(*kept, side);
    if (left <= 0) return reset(*kept, side, ETIMEDOUT);
    probe(*kept, side, kSecond, left - kSecond);
  });
}

void Network::forge_reset(Random& random, int a, int b) {
  std::vector<std::shared_ptr<Connection>> between;
  for (const auto& weak : all_)
    if (auto c = weak.lock(); c && std::minmax(c->ends[0].at.host, c->ends[1].at.host) == std::minmax(a, b) &&
                              !c->ends[0].broken && !c->ends[1].broken)
      between.push_back(std::move(c));
  if (between.empty()) return;
  Connection& c = *between[random.below(between.size())];
  const int first = static_cast<int>(random.below(2));
  world->note("forged reset", static_cast<std::int64_t>(c.number), first);
  reset(c, first, ECONNRESET);
  world->after(random.spread(kMicro, 20 * kMilli),
               [this, kept = c.shared_from_this(), other = 1 - first] { reset(*kept, other, ECONNRESET); });
}

void Network::reset(Connection& c, int side, int error) {
  End& e = c.ends[side];
  if (e.broken) return;
  world->note("reset", static_cast<std::int64_t>(c.number), side, error);
  e.broken = true;
  e.error = error;
  e.out.queued.clear();
  e.out.unacked = e.out.under_way = 0;
  e.out.timer++;
  tell(e);
  ask_other_end(c, 1 - side);
}

/// An end that is not notified learns from a probe of its system, if probes are enabled, that the other end
/// has gone.
void Network::ask_other_end(Connection& c, int side) {
  End& e = c.ends[side];
  if (e.broken || e.keep_idle == 0) return;
  world->after(e.keep_idle, [this, weak = c.weak_from_this(), side] {
    const auto kept = weak.lock();
    if (!kept || kept->ends[side].broken) return;
    const bool answered = passes(kept->ends[side].at.host, kept->ends[1 - side].at.host);
    answered ? send_reset(*kept, side) : ask_other_end(*kept, side);
  });
}

void Network::send_reset(Connection& c, int to_side) {
  const int from = c.ends[1 - to_side].at.host, to = c.ends[to_side].at.host;
  if (!passes(from, to)) return;
  const Path& p = path(from, to);
  world->after(p.delay + (p.jitter > 0 ? world->random().between(0, p.jitter) : 0),
               [this, kept = c.shared_from_this(), to_side] { reset(*kept, to_side, ECONNRESET); });
}

void Network::transmit(Connection& c, int side) {
  End &e = c.ends[side], &other = c.ends[1 - side];
  Flow& out = e.out;
  if (e.broken || out.resend > 0) return;
  while (!out.queued.empty() || (out.fin_asked && !out.fin_sent)) {
    const std::size_t taken = other.unread() + out.under_way;
    const bool gone = other.socket == nullptr || other.broken;
    const std::size_t room = gone ? kSegment : taken >= receive_room ? 0 : receive_room - taken;
    const std::size_t bytes = std::min({out.queued.size(), room, kSegment});
    if (bytes == 0 && !out.queued.empty()) return wait_to_resend(c, side);  // until there is room
    if (!passes(e.at.host, other.at.host)) return wait_to_resend(c, side);
    std::string data = out.queued.substr(0, bytes);
    out.queued.erase(0, bytes);
    const bool fin = out.queued.empty() && out.fin_asked;
    out.fin_sent |= fin;
    out.under_way += bytes;
    const Path& p = path(e.at.host, other.at.host);
    out.last_arrival = std::max(
        out.last_arrival, world->now() + p.delay + (p.jitter > 0 ? world->random().between(0, p.jitter) : 0));
    world->at(out.last_arrival, [this, kept = c.shared_from_this(), side, data = std::move(data), fin] {
      arrive(*kept, side, data, fin);
    });
    if (fin) break;
  }
}

void Network::arrive(Connection& c, int from_side, std::string data, bool fin) {
  End &from = c.ends[from_side], &to = c.ends[1 - from_side];
  if (from.out.under_way < data.size()) return;  // the connection has been reset meanwhile
  from.out.under_way -= data.size();
  from.out.unacked += data.size();
  world->note("arrives", static_cast<std::int64_t>(c.number), from_side,
              static_cast<std::int64_t>(data.size()));
  if (to.broken || (to.socket == nullptr && !data.empty())) return send_reset(c, from_side);
  to.heard = world->now();
  to.in += data;
  to.fin_in |= fin;
  count();
  if (to.socket) tell(to);
  if (!passes(to.at.host, from.at.host)) return wait_to_resend(c, from_side);
  world->after(path(to.at.host, from.at.host).delay,
               [this, kept = c.shared_from_this(), from_side, bytes = data.size()] {
                 acknowledge(*kept, from_side, bytes);
               });
}

void Network::acknowledge(Connection& c, int side, std::size_t bytes) {
  End& e = c.ends[side];
  if (e.broken) return;
  e.heard = e.out.since = world->now();
  e.out.unacked -= std::min(bytes, e.out.unacked);
  tell(e);
}

void Network::opened(Connection& c, int side) {
  End& from = c.ends[1 - side];
  if (from.broken || from.out.queued.empty() || from.out.resend == 0) return;
  const int here = c.ends[side].at.host, there = from.at.host;
  if (!passes(here, there)) return;
  world->after(path(here, there).delay,
               [this, kept = c.shared_from_this(), other = 1 - side] { resend(*kept, other); });
}

void Network::wait_to_resend(Connection& c, int side, Nanos pause) {
  End& e = c.ends[side];
  if (e.out.resend > 0 || e.broken) return;
  e.out.resend = pause;
  const std::uint64_t mine = ++e.out.timer;
  const Nanos left = e.out.since + (e.user_timeout > 0 ? e.user_timeout : kGivenUp) - world->now();
  world->after(std::clamp<Nanos>(pause, kMilli, std::max<Nanos>(left, kMilli)),
               [this, weak = c.weak_from_this(), side, mine] {
                 if (const auto kept = weak.lock(); kept && kept->ends[side].out.timer == mine)
                   resend(*kept, side);
               });
}

/// The next attempt: everything continues if both directions of the path are up.
void Network::resend(Connection& c, int side) {
  End &e = c.ends[side], &other = c.ends[1 - side];
  Flow& out = e.out;
  if (e.broken || out.resend == 0) return;
  const int here = e.at.host, there = other.at.host;
  const bool full =
      !out.queued.empty() && other.socket && !other.broken && other.unread() + out.under_way >= receive_room;
  const Nanos pause = std::exchange(out.resend, 0);
  ++out.timer;
  if (!full && passes(here, there) && passes(there, here)) {
    if (out.unacked > 0) acknowledge(c, side, out.unacked);
    out.since = world->now();
    return transmit(c, side);
  }
  if (world->now() - out.since >= (e.user_timeout > 0 ? e.user_timeout : kGivenUp))
    return reset(c, side, ETIMEDOUT);
  wait_to_resend(c, side, std::min(pause * 2, kLongestResend));
}

void Network::count() {
  if (++arrivals_ % kCountEach != 0) return;
  std::size_t all = 0;
  for (const auto& weak : all_)
    if (const auto c = weak.lock())
      for (const End& e : c->ends) all += e.unread() + e.out.queued.size() + e.out.under_way;
  most_buffered = std::max(most_buffered, all);
}

}  // namespace simulate
