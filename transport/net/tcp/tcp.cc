// The tcp fabric. See tcp.h.
#include "transport/net/tcp/tcp.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "runtime/core/thread.h"
#include "transport/net/tcp/tcp_connection.h"

namespace ouro::transport {
namespace {

using namespace std::chrono_literals;

constexpr auto kAside = 1ms;  // how often the own thread checks whether somebody drives
constexpr auto kNap = 100ms;  // the longest time that it sleeps

}  // namespace

struct TcpFabric::Engine {
  explicit Engine(Options o)
      : options(std::move(o)),
        exchange(options.world, options.checks,
                 [this](int peer, std::string text) {
                   options.failed(peer, Status(Failure{.reason = Reason::data_corrupt,
                                                       .text = std::move(text),
                                                       .rank = peer,
                                                       .detector = "checksum"}));
                 }),
        states(static_cast<std::size_t>(options.world)),
        connections(static_cast<std::size_t>(options.world)),
        dropped(static_cast<std::size_t>(options.world)),
        wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  Options options;
  Exchange exchange;
  // The exchange's lock protects the following.
  std::vector<TcpPeer> states;                                           // by peer
  std::vector<std::vector<std::shared_ptr<TcpConnection>>> connections;  // by peer
  std::vector<bool> dropped;                                             // by peer
  std::vector<std::shared_ptr<TcpConnection>> silent;                    // open, but never moved again
  std::vector<std::byte> waste = std::vector<std::byte>(64 << 10);

  Fd wake;  // wakes the own thread
  std::atomic<bool> stopping{false};
  std::atomic<std::uint64_t> drives{0};  // calls of progress by other threads
  std::atomic<bool> paused{false};       // some connection is paused
  Thread thread;

  void move_all();
  /// With several connections, one takes only one frame at a time, since the others cannot send what
  /// it has taken.
  std::size_t burst() const { return options.connections > 1 ? 1 : TcpConnection::kBurst; }
  void judge(TcpConnection& c, const Status& sent) {
    if (!sent.ok()) fail(c, sent);
  }
  bool receive(TcpConnection&);
  void fail(TcpConnection&, const Status&);
  void wake_thread() { (void)eventfd_write(wake.get(), 1); }
  void watch(const TcpFabric&);
};

TcpFabric::TcpFabric(Options options) : engine_(std::make_unique<Engine>(std::move(options))) {
  engine_->thread =
      Thread("ouro-progress", [this] { persist("the tcp fabric", [this] { engine_->watch(*this); }); });
}

TcpFabric::~TcpFabric() {
  engine_->stopping = true;
  engine_->wake_thread();
  engine_->thread.join();
}

Exchange& TcpFabric::exchange() { return engine_->exchange; }

void TcpFabric::adopt(int peer, Fd socket, const std::optional<TlsEnd>& tls) {
  Engine& s = *engine_;
  auto pipe = Pipe::open(socket.get(), tls);
  if (!pipe.ok()) return s.options.failed(peer, pipe.status());
  {
    std::lock_guard lock(s.exchange.lock());
    if (s.dropped[static_cast<std::size_t>(peer)]) return;
    auto& all = s.connections[static_cast<std::size_t>(peer)];
    // One connection too many: the other side has lost some that this side still considers open.
    if (static_cast<int>(all.size()) >= s.options.connections) {
      for (auto& c : all) c->give_up();
      all.clear();
    }
    all.push_back(std::make_shared<TcpConnection>(s.exchange, peer, s.states[static_cast<std::size_t>(peer)],
                                                  std::move(socket), std::move(*pipe)));
  }
  kick(peer);
  s.wake_thread();
}

int TcpFabric::wanted(int peer) {
  Engine& s = *engine_;
  std::lock_guard lock(s.exchange.lock());
  const auto i = static_cast<std::size_t>(peer);
  if (s.dropped[i] || !s.exchange.talks_to(peer)) return 0;
  return s.options.connections - static_cast<int>(s.connections[i].size());
}

void TcpFabric::moved(int peer, const NetLink::Move& m) {
  for (auto& c : engine_->connections[static_cast<std::size_t>(peer)]) c->moved(m);
}

void TcpFabric::drop(int peer) {
  Engine& s = *engine_;
  std::lock_guard lock(s.exchange.lock());
  s.dropped[static_cast<std::size_t>(peer)] = true;
  for (auto& c : s.connections[static_cast<std::size_t>(peer)]) c->close();
  s.connections[static_cast<std::size_t>(peer)].clear();
}

void TcpFabric::sample(int peer, std::vector<TcpSample>* samples) {
  Engine& s = *engine_;
  std::lock_guard lock(s.exchange.lock());
  for (const auto& c : s.connections[static_cast<std::size_t>(peer)])
    if (const auto one = c->sample()) samples->push_back(*one);
}

void TcpFabric::cut() {
  Engine& s = *engine_;
  std::lock_guard lock(s.exchange.lock());
  for (auto& all : s.connections)
    for (auto& c : std::exchange(all, {})) s.silent.push_back(std::move(c));
}

void TcpFabric::progress() {
  std::unique_lock lock(engine_->exchange.lock(), std::try_to_lock);
  if (!lock) return;
  engine_->drives.fetch_add(1, std::memory_order_relaxed);
  engine_->move_all();
}

void TcpFabric::left() {
  if (engine_->paused) engine_->wake_thread();
}

void TcpFabric::kick(int peer) {
  Engine& s = *engine_;
  const int first = peer == kEveryone ? 0 : peer, last = peer == kEveryone ? s.options.world - 1 : peer;
  bool left = false;  // some data cannot be sent yet
  {
    std::lock_guard lock(s.exchange.lock());
    for (int p = first; p <= last; ++p) {
      if (peer == kEveryone && !s.exchange.talks_to(p)) continue;
      auto& all = s.connections[static_cast<std::size_t>(p)];
      for (auto& c : all) {
        s.judge(*c, c->send(s.burst()));
        left |= c->blocked();
      }
      std::erase_if(all, [](const auto& c) { return c->broken(); });
      if (static_cast<int>(all.size()) < s.options.connections && !s.dropped[static_cast<std::size_t>(p)])
        s.options.need(p);
    }
  }
  if (left) s.wake_thread();
}

void TcpFabric::rest(std::chrono::microseconds at_most) {
  Engine& s = *engine_;
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

// ---- moving data, under the exchange's lock ---------------------------------------------------------

void TcpFabric::Engine::move_all() {
  bool any_paused = false;
  for (auto& all : connections) {
    bool broke = false;
    for (auto& c : all) {
      judge(*c, c->send(burst()));
      if (receive(*c)) judge(*c, c->send(burst()));  // received frames may need an answer
      broke |= c->broken();
      any_paused |= c->paused() && !c->broken();
    }
    if (broke) std::erase_if(all, [](const auto& c) { return c->broken(); });
  }
  paused = any_paused;
}

/// Returns whether anything moved, or can move now.
bool TcpFabric::Engine::receive(TcpConnection& c) {
  if (c.broken()) return false;
  bool moved = false;
  const Status s = c.receive(waste, &moved);
  if (s.ok()) return moved;
  // After a damaged header the start of the next frame is unknown, so the connection is made anew, once.
  const bool damaged = s.reason() == Reason::data_corrupt;
  if (!c.bad_header() || (damaged && states[static_cast<std::size_t>(c.peer())].damaged++ == 0)) {
    fail(c, s);
  } else {
    options.failed(c.peer(), s);
    c.close();
  }
  return false;
}

/// Gives the connection up; its unfinished frames are sent again on another.
void TcpFabric::Engine::fail(TcpConnection& c, const Status& why) {
  c.give_up();
  options.lost(c.peer(), why.failure()->text);
  if (exchange.talks_to(c.peer())) options.need(c.peer());
}

// ---- the own thread --------------------------------------------------------------------------------

/// Moves data while nobody drives. A thread that drove a moment ago will drive again soon. Until then this
/// thread does not wait for connections, since each packet would wake it and it would get in the way of the
/// thread that reads the packet.
void TcpFabric::Engine::watch(const TcpFabric& f) {
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
