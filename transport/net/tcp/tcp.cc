// The tcp fabric. See tcp.h.
#include "transport/net/tcp/tcp.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "runtime/core/thread.h"

namespace ouro::transport {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kStage = 8192;       // what is read beyond the payload at hand
constexpr std::size_t kPerTurn = 4 << 20;  // bytes moved on one connection before the next has its turn
constexpr std::size_t kBurst = 8;          // frames that go with one call of the kernel
constexpr auto kAside = 1ms;               // how often the own thread asks whether somebody drives
constexpr auto kNap = 100ms;               // the longest that it sleeps

/// One connection: at most one frame coming in and a burst going out.
struct Connection {
  Connection(int peer_rank, Fd line, Pipe over)
      : socket(std::move(line)), pipe(std::move(over)), peer(peer_rank) {
    out.reserve(kBurst);  // what the exchange has handed out must not be lost for want of memory
  }
  void close() {
    broken = true;
    socket.reset();
  }
  pollfd wanted() const {
    return {socket.get(), static_cast<short>(pipe.blocked() ? POLLIN | POLLOUT : POLLIN), 0};
  }

  Fd socket;  // to wait for; bytes go by the pipe
  Pipe pipe;
  const int peer;
  bool broken = false;

  std::array<std::byte, kStage> stage;
  std::size_t begin = 0, end = 0;  // of what is staged
  NetHeader in;
  bool within = false;  // between the header and the end of its payload
  Exchange::Place place;
  std::size_t got = 0;
  bool paused = false;  // there may be more to take that the socket does not tell of

  std::vector<Exchange::Outgoing> out;  // the first of them in part
  std::size_t written = 0;              // bytes of the first
  std::vector<std::byte> filler;        // the rest of a frame whose payload is its owner's again
};

}  // namespace

struct TcpFabric::State {
  explicit State(Options o)
      : options(std::move(o)),
        exchange(options.world, options.checks,
                 [this](int peer, std::string text) {
                   options.failed(peer, Status(Failure{.reason = Reason::data_corrupt,
                                                       .text = std::move(text),
                                                       .rank = peer,
                                                       .detector = "checksum"}));
                 }),
        connections(static_cast<std::size_t>(options.world)),
        dropped(static_cast<std::size_t>(options.world)),
        resumed(static_cast<std::size_t>(options.world)),
        damaged(static_cast<std::size_t>(options.world)),
        wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  Options options;
  Exchange exchange;
  // Under the exchange's lock.
  std::vector<std::vector<std::shared_ptr<Connection>>> connections;  // by peer
  std::vector<bool> dropped;
  std::vector<bool> resumed;  // by peer: chunks may go that have arrived
  std::vector<int> damaged;   // by peer: headers that came damaged, one after the other
  std::vector<std::byte> waste = std::vector<std::byte>(64 << 10);

  Fd wake;  // asks the own thread to look
  std::atomic<bool> stopping{false};
  std::atomic<std::uint64_t> drives{0};  // calls of progress by others than the own thread
  std::atomic<bool> paused{false};       // some connection is
  Thread thread;

  void move_all();
  bool push(int peer);
  bool send(Connection&);
  void withdraw(Connection&);
  bool receive(Connection&);
  bool take_staged(Connection&);
  void finish(Connection&);
  void give_up(Connection&);
  void fail(Connection&, const Status&);
  void look() { (void)eventfd_write(wake.get(), 1); }
  void watch(const TcpFabric&);
};

TcpFabric::TcpFabric(Options options) : state_(std::make_unique<State>(std::move(options))) {
  state_->thread =
      Thread("ouro-progress", [this] { persist("the tcp fabric", [this] { state_->watch(*this); }); });
}

TcpFabric::~TcpFabric() {
  state_->stopping = true;
  state_->look();
  state_->thread.join();
}

Exchange& TcpFabric::exchange() { return state_->exchange; }

void TcpFabric::adopt(int peer, Fd socket, const std::optional<TlsEnd>& tls) {
  State& s = *state_;
  auto pipe = Pipe::open(socket.get(), tls);
  if (!pipe.ok()) return s.options.failed(peer, pipe.status());
  {
    std::lock_guard lock(s.exchange.lock());
    if (s.dropped[static_cast<std::size_t>(peer)]) return;
    auto& all = s.connections[static_cast<std::size_t>(peer)];
    // One more than there should be: the other side has lost some, and this one has not heard of it.
    if (static_cast<int>(all.size()) >= s.options.connections) {
      for (auto& c : all) s.give_up(*c);
      all.clear();
    }
    all.push_back(std::make_shared<Connection>(peer, std::move(socket), std::move(*pipe)));
  }
  kick(peer);
  s.look();
}

int TcpFabric::wanted(int peer) {
  State& s = *state_;
  std::lock_guard lock(s.exchange.lock());
  const auto i = static_cast<std::size_t>(peer);
  if (s.dropped[i] || !s.exchange.talks_to(peer)) return 0;
  return s.options.connections - static_cast<int>(s.connections[i].size());
}

void TcpFabric::moved(int peer, const Exchange::Move& m) {
  const auto is = [&](const NetHeader& h) { return h.link_set == m.link_set && h.index == m.index; };
  for (auto& c : state_->connections[static_cast<std::size_t>(peer)]) {
    for (Exchange::Outgoing& out : c->out)
      if (out.payload == m.from && is(out.header)) out.payload = m.to;
    if (!c->within || c->place.to != m.from || !is(c->in)) continue;
    std::memcpy(m.to, m.from, c->got);
    c->place.to = m.to;
  }
}

void TcpFabric::drop(int peer) {
  State& s = *state_;
  std::lock_guard lock(s.exchange.lock());
  s.dropped[static_cast<std::size_t>(peer)] = true;
  for (auto& c : s.connections[static_cast<std::size_t>(peer)]) c->close();
  s.connections[static_cast<std::size_t>(peer)].clear();
}

void TcpFabric::progress() {
  std::unique_lock lock(state_->exchange.lock(), std::try_to_lock);
  if (!lock) return;
  state_->drives.fetch_add(1, std::memory_order_relaxed);
  state_->move_all();
}

void TcpFabric::left() {
  if (state_->paused) state_->look();
}

void TcpFabric::kick(int peer) {
  State& s = *state_;
  bool left = false;
  {
    std::lock_guard lock(s.exchange.lock());
    if (peer != kEveryone) {
      left = s.push(peer);
    } else {
      for (int p = 0; p < s.options.world; ++p)
        if (s.exchange.talks_to(p)) left |= s.push(p);
    }
  }
  if (left) s.look();
}

void TcpFabric::rest(std::chrono::microseconds at_most) {
  State& s = *state_;
  std::vector<pollfd> fds;
  {
    std::lock_guard lock(s.exchange.lock());
    for (auto& all : s.connections)
      for (auto& c : all) fds.push_back(c->wanted());
    if (s.paused) return;
  }
  const timespec slice{0, static_cast<long>(at_most.count()) * 1000};
  ppoll(fds.data(), fds.size(), &slice, nullptr);
}

// ---- moving, under the exchange's lock -------------------------------------------------------------

void TcpFabric::State::move_all() {
  bool any_paused = false;
  for (auto& all : connections) {
    bool broke = false;
    for (auto& c : all) {
      send(*c);
      if (receive(*c)) send(*c);  // what came may have to be answered
      broke |= c->broken;
      any_paused |= c->paused && !c->broken;
    }
    if (broke) std::erase_if(all, [](const auto& c) { return c->broken; });
  }
  paused = any_paused;
}

/// Sends what waits for `peer`; whether some of it could not go yet.
bool TcpFabric::State::push(int peer) {
  const auto i = static_cast<std::size_t>(peer);
  bool left = false;
  for (auto& c : connections[i]) {
    send(*c);
    left |= c->pipe.blocked();
  }
  std::erase_if(connections[i], [](const auto& c) { return c->broken; });
  if (static_cast<int>(connections[i].size()) < options.connections && !dropped[i]) options.need(peer);
  return left;
}

bool TcpFabric::State::send(Connection& c) {
  if (c.broken) return false;
  // Where there are several connections, what one takes the others cannot send.
  const std::size_t burst = options.connections > 1 ? 1 : kBurst;
  std::size_t moved = 0;
  if (Status s = c.pipe.flush(); !s.ok()) fail(c, s);
  while (!c.broken && moved < kPerTurn && c.pipe.ready() && !c.pipe.blocked()) {
    for (Exchange::Outgoing out; c.out.size() < burst && exchange.next(c.peer, &out);)
      c.out.push_back(std::move(out));
    if (resumed[static_cast<std::size_t>(c.peer)]) withdraw(c);
    if (c.out.empty()) break;
    std::array<iovec, 2 * kBurst> parts;
    std::size_t used = 0, skip = c.written;
    for (Exchange::Outgoing& out : c.out) {
      const std::size_t of_head = std::min(skip, sizeof(NetHeader)), of_payload = skip - of_head;
      // As iovec has it; nothing writes through these.
      parts[used++] = {reinterpret_cast<std::byte*>(&out.header) + of_head, sizeof(NetHeader) - of_head};
      if (out.header.bytes > of_payload)
        parts[used++] = {const_cast<std::byte*>(out.payload) + of_payload, out.header.bytes - of_payload};
      skip = 0;
    }
    const auto n = c.pipe.write(std::span(parts).first(used));
    if (!n.ok()) {
      fail(c, n.status());
      break;
    }
    if (*n == 0) break;
    moved += *n;
    c.written += *n;
    const auto whole = [&](const Exchange::Outgoing& out) {
      const std::size_t all = sizeof(NetHeader) + out.header.bytes;
      if (c.written < all) return false;
      c.written -= all;
      return true;
    };
    c.out.erase(c.out.begin(), std::find_if_not(c.out.begin(), c.out.end(), whole));
  }
  return moved > 0;
}

/// Payloads that their owners have back, since they had arrived by an earlier connection, are not read again.
void TcpFabric::State::withdraw(Connection& c) {
  for (auto out = c.out.begin(); out != c.out.end();) {
    if (out->payload == c.filler.data() || !exchange.given_back(c.peer, out->header)) {
      ++out;
    } else if (out == c.out.begin() && c.written > 0) {  // the other side awaits the rest, and discards it
      c.filler.assign(out->header.bytes, std::byte{});
      out->payload = c.filler.data();
    } else {
      out = c.out.erase(out);
    }
  }
}

/// Takes what has come, up to the end of the turn and then what is staged here or kept by the pipe: nothing
/// would wake anybody for that. Whether anything moved, or can move now.
bool TcpFabric::State::receive(Connection& c) {
  std::size_t moved = 0;
  const bool was_ready = c.pipe.ready();
  auto from = Pipe::From::wire;
  bool took = false;
  c.paused = false;
  while (!c.broken && !c.paused) {
    if (take_staged(c)) {
      took = true;
      continue;
    }
    if (c.broken) break;
    // What the payload at hand lacks goes to its place; what follows it is staged.
    if (c.begin > 0) {
      std::memmove(c.stage.data(), c.stage.data() + c.begin, c.end - c.begin);
      c.end -= c.begin;
      c.begin = 0;
    }
    const std::size_t lacks = c.within ? c.in.bytes - c.got : 0;
    // Of a long run of chunks the next header only, so that the payload behind it goes to its place, too.
    const iovec stage{c.stage.data() + c.end, lacks > kStage ? sizeof(NetHeader) : c.stage.size() - c.end};
    std::array<iovec, 2> parts{stage, iovec{}};
    std::size_t direct = 0;
    if (lacks > 0 && c.place.to) {
      direct = lacks;
      parts = {iovec{c.place.to + c.got, lacks}, stage};
    } else if (lacks > 0) {
      direct = std::min(lacks, waste.size());
      parts = {iovec{waste.data(), direct}, iovec{}};
    }
    const auto n = c.pipe.read(parts, from);
    if (!n.ok()) {
      fail(c, n.status());
      break;
    }
    if (*n == 0) break;
    moved += *n;
    if (moved >= kPerTurn || (c.pipe.in_clear() && *n < parts[0].iov_len + parts[1].iov_len))
      from = Pipe::From::kept;  // a socket in clear that gives less than was asked for is empty
    c.got += std::min(*n, direct);
    c.end += *n - std::min(*n, direct);
    if (c.within && c.got == c.in.bytes) finish(c);
  }
  return took || moved > 0 || c.pipe.ready() != was_ready;
}

/// Uses what is staged: a header, or the beginning of a payload. False: more has to come first.
bool TcpFabric::State::take_staged(Connection& c) {
  const std::size_t staged = c.end - c.begin;
  if (!c.within) {
    if (staged < sizeof(NetHeader)) return false;
    std::memcpy(&c.in, c.stage.data() + c.begin, sizeof c.in);
    c.begin += sizeof c.in;
    auto place = exchange.place(c.peer, c.in);
    if (!place.ok()) {
      // After a damaged header nobody can tell where the next frame begins: the connection is made anew.
      if (place.status().reason() == Reason::data_corrupt &&
          damaged[static_cast<std::size_t>(c.peer)]++ == 0) {
        fail(c, place.status());
        return false;
      }
      options.failed(c.peer, place.status());
      c.close();
      return false;
    }
    c.place = std::move(*place);
    c.within = true;
    c.got = 0;
    if (c.in.bytes == 0) finish(c);
    return true;
  }
  if (staged == 0) return false;
  const std::size_t n = std::min(staged, c.in.bytes - c.got);
  if (c.place.to) std::memcpy(c.place.to + c.got, c.stage.data() + c.begin, n);
  c.begin += n;
  c.got += n;
  if (c.got == c.in.bytes) finish(c);
  return true;
}

void TcpFabric::State::finish(Connection& c) {
  exchange.received(c.peer, c.in, c.place);
  damaged[static_cast<std::size_t>(c.peer)] = 0;
  // Else what follows, already here perhaps, would go to a slot and have to be copied from there.
  c.paused = c.place.ends;
  c.place = {};
  c.within = false;
}

/// What was under way on it goes again on another.
void TcpFabric::State::give_up(Connection& c) {
  if (c.within && c.place.to) exchange.abandon(c.peer, c.in);
  c.close();
  exchange.resume(c.peer);
  resumed[static_cast<std::size_t>(c.peer)] = true;
}

void TcpFabric::State::fail(Connection& c, const Status& why) {
  give_up(c);
  options.lost(c.peer, why.failure()->text);
  if (exchange.talks_to(c.peer)) options.need(c.peer);
}

// ---- the own thread --------------------------------------------------------------------------------

/// Moves what comes while nobody drives. Whoever has driven a moment ago is about to come back: until then
/// this thread waits for no connection, since each packet would wake it, in the way of who reads the packet.
void TcpFabric::State::watch(const TcpFabric& f) {
  std::vector<pollfd> fds;
  for (std::uint64_t seen = 0; !stopping;) {
    const std::uint64_t now = drives.load(std::memory_order_relaxed);
    const bool aside = f.driven() || std::exchange(seen, now) != now;
    auto nap = aside ? kAside : kNap;
    fds.assign(1, {wake.get(), POLLIN, 0});
    if (!aside) {
      std::lock_guard lock(exchange.lock());
      move_all();
      if (paused) nap = 0ms;
      for (auto& all : connections)
        for (auto& c : all) fds.push_back(c->wanted());
    }
    poll(fds.data(), fds.size(), static_cast<int>(nap.count()));
    if (eventfd_t count; fds[0].revents & POLLIN) (void)eventfd_read(wake.get(), &count);
  }
}

}  // namespace ouro::transport
