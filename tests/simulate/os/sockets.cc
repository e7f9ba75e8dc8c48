// TCP sockets of simulated processes. See network.h.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "tests/simulate/os/network.h"

namespace simulate {
namespace {

Nanos trip(int from, int to) {
  const Path& p = network->path(from, to);
  return p.delay + (p.jitter > 0 ? world->random().between(0, p.jitter) : 0);
}
bool passes(int from, int to) {
  const Path& p = network->path(from, to);
  return !p.cut && !(p.loss > 0 && world->random().chance(p.loss));
}

/// Sends a packet that requests a connection; without an answer another one follows, each after twice
/// the time.
void ask(const std::weak_ptr<File>& weak, std::uint64_t attempt, Address to, Nanos again) {
  const auto alive = [weak, attempt] {
    const auto s = std::static_pointer_cast<TcpSocket>(weak.lock());
    return s && s->attempt == attempt && s->state == TcpSocket::State::connecting ? s : nullptr;
  };
  const auto s = alive();
  if (!s) return;
  const Address from = s->own;
  world->after(again, [=] { ask(weak, attempt, to, again * 2); });
  if (!passes(from.host, to.host)) return;
  world->after(trip(from.host, to.host), [=] {
    if (!passes(to.host, from.host)) return;
    const auto listener = network->listeners.find(to);
    const bool there = listener != network->listeners.end();
    if (there && listener->second->accepted.size() >= listener->second->backlog) return;
    world->after(trip(to.host, from.host), [=] {
      const auto client = alive();
      if (!client) return;
      ++client->attempt;
      if (!there) {
        client->connect_error = ECONNREFUSED;
        world->note("refused", from.host, to.host, to.port);
        return client->changed();
      }
      const auto c = network->make(from, to);
      world->note("connects", from.host, to.host, static_cast<std::int64_t>(c->number));
      client->connection = c, client->side = 0;
      client->state = TcpSocket::State::connected;
      c->ends[0].socket = client.get();
      // Until the other program accepts it, the system keeps the connection.
      const auto at = network->listeners.find(to);
      if (at == network->listeners.end()) {
        network->send_reset(*c, 0);
      } else {
        const auto kept = std::make_shared<TcpSocket>();
        kept->own = to;
        kept->state = TcpSocket::State::connected;
        kept->connection = c, kept->side = 1;
        c->ends[1].socket = kept.get();
        world->after(trip(from.host, to.host), [=] {
          const auto now = network->listeners.find(to);
          if (now == network->listeners.end()) return kept->closed();
          now->second->accepted.push_back(kept);
          now->second->changed();
        });
      }
      client->changed();
    });
  });
}

}  // namespace

short TcpSocket::ready() const {
  if (state == State::fresh) return POLLOUT | POLLHUP;
  if (state == State::listening) return accepted.empty() ? 0 : POLLIN;
  if (state == State::connecting) return connect_error != 0 ? POLLIN | POLLOUT | POLLERR | POLLHUP : 0;
  const End& e = end();
  if (e.broken) return POLLIN | POLLOUT | POLLERR | POLLHUP;
  int now = 0;
  if (e.unread() > 0 || e.fin_in) now |= POLLIN;
  if (e.out.queued.size() + e.out.under_way + e.out.unacked < network->send_room) now |= POLLOUT;
  if (e.fin_in && e.out.fin_asked) now |= POLLHUP;
  return static_cast<short>(now);
}

void TcpSocket::closed() {
  ++attempt;
  if (state == State::listening) {
    network->listeners.erase(own);
    for (const auto& s : std::exchange(accepted, {})) {
      network->send_reset(*s->connection, 0);
      network->reset(*s->connection, 1, ECONNRESET);
      s->end().socket = nullptr;
    }
  }
  if (state != State::connected) return;
  End& e = end();
  e.socket = nullptr;
  if (e.broken) return;
  if (e.unread() > 0) {  // the data written last may be lost with it
    network->send_reset(*connection, 1 - side);
    network->reset(*connection, side, ECONNRESET);
    return;
  }
  (void)finish();
}

int TcpSocket::connect(Address to) {
  state = State::connecting;
  own = {own.host, own.port != 0 ? own.port : network->next_port++};
  ask(weak_from_this(), attempt, to, kSecond);
  return EINPROGRESS;
}

long TcpSocket::send(const void* data, std::size_t bytes) {
  if (state != State::connected) return -ENOTCONN;
  End& e = end();
  if (e.broken) return -(e.error != 0 ? std::exchange(e.error, 0) : EPIPE);
  if (e.out.fin_asked) return -EPIPE;
  const std::size_t held = e.out.queued.size() + e.out.under_way + e.out.unacked;
  const std::size_t room = held < network->send_room ? network->send_room - held : 0;
  if (room == 0 && bytes > 0) return -EAGAIN;
  if (held == 0) e.out.since = world->now();
  const std::size_t n = std::min(room, bytes);
  e.out.queued.append(static_cast<const char*>(data), n);
  network->transmit(*connection, side);
  return static_cast<long>(n);
}

long TcpSocket::receive(void* data, std::size_t bytes) {
  if (state == State::connecting && connect_error != 0) return -std::exchange(connect_error, 0);
  if (state != State::connected) return -ENOTCONN;
  End& e = end();
  const std::size_t n = std::min(bytes, e.unread());
  if (n == 0) {
    if (e.error != 0) return -std::exchange(e.error, 0);
    return e.fin_in || e.broken ? 0 : -EAGAIN;
  }
  std::copy_n(e.in.data() + e.read, n, static_cast<char*>(data));
  e.read += n;
  if (e.read == e.in.size() || e.read > (64u << 10)) {
    e.in.erase(0, e.read);
    e.read = 0;
  }
  network->opened(*connection, side);
  return static_cast<long>(n);
}

int TcpSocket::finish() {
  if (state != State::connected) return ENOTCONN;
  End& e = end();
  if (e.out.fin_asked || e.broken) return 0;
  if (e.out.queued.size() + e.out.under_way + e.out.unacked == 0) e.out.since = world->now();
  e.out.fin_asked = true;
  network->transmit(*connection, side);
  return 0;
}

}  // namespace simulate
