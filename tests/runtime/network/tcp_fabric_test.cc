// Two tcp fabrics with one link between them, over a stream socket, in plaintext and under TLS.
#include "transport/net/tcp/tcp.h"

#include <gmock/gmock.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "runtime/group/messages.h"
#include "tests/runtime/network/pipe_ends.h"
#include "transport/net/net_links.h"

namespace ouro::transport {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kSlot = 70'016, kSlots = 8;

/// Two ranks; the parameter says whether their line is encrypted. The test drives rank 0; rank 1 is driven by
/// its own thread.
class TwoFabrics : public testing::TestWithParam<bool> {
 protected:
  struct End {
    std::unique_ptr<TcpFabric> fabric;
    std::shared_ptr<LinkSet> link_set = std::make_shared<LinkSet>();
    Counter doorbell{};
    NetLink* link = nullptr;
    std::uint64_t sent = 0, taken = 0;
    LinkView in() const { return link->in(); }
    LinkView out() const { return link->out(); }
  };
  void connect(int socket_buffer) {
    Sockets s(socket_buffer);
    for (int r = 0; r < 2; ++r) {
      End& e = ends_[r];
      const int peer = 1 - r;
      e.fabric = std::make_unique<TcpFabric>(
          TcpFabric::Options{.world = 2,
                             .checks = !GetParam(),
                             .need = [](int) {},
                             .failed = [&](int, Status why) { lose(why.message()); },
                             .lost = [&](int, std::string how) { lose(std::move(how)); }});
      e.link_set->key = 5;
      e.link_set->doorbell = &e.doorbell;
      e.link = (e.link_set->links[peer] = std::make_unique<NetLink>(kSlot, kSlots)).get();
      e.fabric->exchange().add(e.link_set);
      adopt(r, std::move(r == 0 ? s.a : s.b));
      if (r == 0) e.fabric->enter();
    }
  }
  void adopt(int r, Fd socket) {
    ends_[r].fabric->adopt(
        1 - r, std::move(socket),
        GetParam() ? std::optional(end_of(r == 0 ? Role::client : Role::server)) : std::nullopt);
  }
  void lose(std::string how) {
    std::lock_guard lock(mutex_);
    lost_.push_back(std::move(how));
  }
  std::size_t lost() {
    std::lock_guard lock(mutex_);
    return lost_.size();
  }
  /// Drives rank 0 until `done`; false after 20 s.
  template <class Done>
  bool drive_until(Done&& done) {
    for (const auto until = Clock::now() + 20s; !done(); drive())
      if (Clock::now() > until) return false;
    return true;
  }
  void drive() {
    ends_[0].fabric->progress();
    ends_[0].fabric->rest(100us);
  }
  void TearDown() override {
    ends_[0].fabric->leave();
    for (End& e : ends_) e.fabric->exchange().remove(5, false);
    std::lock_guard lock(mutex_);
    EXPECT_THAT(lost_, testing::IsEmpty());
  }
  std::mutex mutex_;
  std::vector<std::string> lost_;
  End ends_[2];  // destroyed first: their threads write to lost_
};
INSTANTIATE_TEST_SUITE_P(Tcp, TwoFabrics, testing::Bool(),
                         [](const auto& p) { return p.param ? "tls" : "plain"; });

/// Many chunks of all sizes in flight in both directions, through sockets with small buffers.
TEST_P(TwoFabrics, CarryManyChunksBothWays) {
  constexpr int kChunks = 400;
  connect(16384);
  const auto chunk = [](int from, std::uint64_t i) { return noise((i * 7919) % kSlot, i * 2 + from); };
  for (const auto until = Clock::now() + 30s; Clock::now() < until;) {
    bool done = true;
    for (int r = 0; r < 2; ++r) {
      End& e = ends_[r];
      for (; e.sent < kChunks && e.sent - load(*e.out().freed) < kSlots; ++e.sent) {
        const Bytes what = chunk(r, e.sent);
        std::copy(what.begin(), what.end(), e.out().payload(e.sent));
        e.out().header(e.sent) = {.seq = 1, .bytes = static_cast<std::uint32_t>(what.size())};
        publish(*e.out().full, e.sent + 1);
      }
      e.fabric->kick(1 - r);
      for (; e.taken < load(*e.in().full); ++e.taken) {
        const Bytes what = chunk(1 - r, e.taken);
        ASSERT_EQ(e.in().header(e.taken).bytes, what.size());
        ASSERT_TRUE(std::equal(what.begin(), what.end(), e.in().payload(e.taken))) << "chunk " << e.taken;
        publish(*e.in().freed, e.taken + 1);
      }
      if (r == 0) drive();
      done &= e.taken == kChunks;
    }
    if (done) break;
  }
  for (End& e : ends_) EXPECT_EQ(e.taken, static_cast<std::uint64_t>(kChunks));
}

/// However many messages are in flight when the first is received, each is written to its posted receive,
/// since the fabric waits for the next receive at the end of each message. The exception is one pass that
/// rank 0's own thread may have begun before it saw that the fabric is driven.
TEST_P(TwoFabrics, MessagesInARowAreWrittenToTheirPostedReceives) {
  constexpr int kMessages = 60;
  connect(1 << 20);
  End &from = ends_[1], &to = ends_[0];
  const auto message = [](int m) { return noise(2 * kSlot + 100 + static_cast<std::size_t>(m) * 977, m); };
  std::vector<Bytes> sent, got;
  for (int m = 0; m < kMessages; ++m) sent.push_back(message(m)), got.emplace_back(sent.back().size());
  int sending = 0, taking = -1, in_slots = 0;
  std::size_t moved = 0, taken = 0;
  std::uint64_t first = 0;
  const auto post_receive = [&] {
    taken = 0;
    if (++taking == kMessages) return;
    Bytes& where = got[static_cast<std::size_t>(taking)];
    std::lock_guard lock(to.fabric->exchange().lock());
    to.link->post({to.taken, where.data(), where.size(), taking});
  };
  post_receive();
  for (const auto until = Clock::now() + 30s; taking < kMessages && Clock::now() < until;) {
    for (; sending < kMessages && from.sent - load(*from.out().freed) < kSlots;) {
      const Bytes& what = sent[static_cast<std::size_t>(sending)];
      if (moved == 0) first = from.sent;
      const std::size_t n = std::min<std::size_t>(kSlot, what.size() - moved);
      std::memcpy(from.out().payload(from.sent), what.data() + moved, n);
      from.out().header(from.sent) = {first, 0, what.size(), static_cast<std::uint32_t>(n), sending};
      publish(*from.out().full, ++from.sent);
      if ((moved += n) == what.size()) moved = 0, ++sending;
    }
    from.fabric->kick(0);
    drive();
    while (taking < kMessages && to.taken < load(*to.in().full)) {
      const std::uint32_t n = to.in().header(to.taken).bytes;
      Bytes& where = got[static_cast<std::size_t>(taking)];
      const std::byte* const at = to.in().found(to.taken);
      if (at != where.data() + taken) ++in_slots, std::memcpy(where.data() + taken, at, n);
      publish(*to.in().freed, ++to.taken);
      if ((taken += n) == where.size()) post_receive();
    }
  }
  EXPECT_EQ(taking, kMessages);
  EXPECT_TRUE(sent == got);
  EXPECT_LE(in_slots, static_cast<int>(kSlots)) << "chunks that came to lie in a slot";
}

/// Chunks that had arrived when the connection broke are retransmitted on the next one. Once the other side
/// acknowledges them, their owner frees their memory, and the unsent rest of them is not read from that
/// memory any more.
TEST_P(TwoFabrics, AcknowledgedChunksAreNotReadAgain) {
  connect(16384);
  End &from = ends_[0], &to = ends_[1];
  constexpr std::size_t kBytes = std::size_t{kSlots} * kSlot;
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 7, kBytes);
  for (; from.sent < kSlots; ++from.sent) {
    from.out().elsewhere[from.sent] = static_cast<std::byte*>(memory) + from.sent * kSlot;
    from.out().header(from.sent) = {0, 0, kBytes, kSlot, 0};
    publish(*from.out().full, from.sent + 1);
  }
  from.fabric->kick(1);
  ASSERT_TRUE(drive_until([&] { return load(*to.in().full) == kSlots; }));
  for (int r : {0, 1}) {
    Sockets s;
    adopt(r, std::move(s.a));  // replaces the current connection; the other end is closed at once
  }
  ASSERT_TRUE(drive_until([&] { return lost() >= 2; }));
  publish(*to.in().freed, kSlots);
  Sockets s(16384);
  adopt(0, std::move(s.a));
  adopt(1, std::move(s.b));
  ASSERT_TRUE(drive_until([&] { return load(*from.out().freed) == kSlots; }));
  const std::size_t before = lost();
  ASSERT_EQ(mprotect(memory, kBytes, PROT_NONE), 0);
  const Bytes last = noise(1000, 3);
  from.out().elsewhere[0] = nullptr;
  std::copy(last.begin(), last.end(), from.out().payload(from.sent));
  from.out().header(from.sent) = {from.sent, 0, last.size(), 1000, 0};
  publish(*from.out().full, ++from.sent);
  from.fabric->kick(1);
  EXPECT_TRUE(drive_until([&] { return load(*to.in().full) == from.sent; }));
  EXPECT_TRUE(std::equal(last.begin(), last.end(), to.in().found(kSlots)));
  munmap(memory, kBytes);
  std::lock_guard lock(mutex_);
  EXPECT_EQ(lost_.size(), before) << lost_.back();
  lost_.clear();
}

/// A rank with messages, and a peer that sends arbitrary frames.
class AgainstAHostilePeer : public testing::Test {
 protected:
  static constexpr std::uint32_t kChunk = 128 << 10;
  static constexpr std::uint64_t kSet = 77;
  static constexpr std::byte kTheirs{0x43}, kMine{0x5e};

  AgainstAHostilePeer() {
    Sockets s(200'000);
    socket_ = s.a.get();
    peer_ = std::move(s.b);
    fabric_.enter();
    fabric_.adopt(1, std::move(s.a));
    say({.kind = NetHeader::kOpen});
  }
  ~AgainstAHostilePeer() override { fabric_.leave(); }

  void say(NetHeader h) {
    h.link_set = kSet;
    send(&h, sizeof h);
  }
  void send(const void* bytes, std::size_t n) {
    ASSERT_EQ(::send(peer_.get(), bytes, n, MSG_NOSIGNAL), static_cast<ssize_t>(n));
    // Waits until the fabric has read everything.
    for (int waiting = 1; waiting > 0;) {
      fabric_.progress();
      std::lock_guard lock(fabric_.exchange().lock());
      ASSERT_EQ(ioctl(socket_, FIONREAD, &waiting), 0);
    }
  }
  std::ptrdiff_t count(const std::vector<std::byte>& in, std::byte what) {
    return std::count(in.begin(), in.end(), what);
  }

  Fd peer_;
  int socket_ = -1;  // the fabric's end
  std::vector<std::byte> memory_ = std::vector<std::byte>(8 * kChunk);
  TcpFabric fabric_{{.world = 2,
                     .need = [](int) {},
                     .failed = [](int, const Status&) {},
                     .lost = [](int, const std::string&) {}}};
  rt::Messages engine_{std::make_unique<NetLinks>(fabric_, kSet, std::vector<int>{0, 1},
                                                  std::vector<int>{0, -1}, 0, NetSlots{kChunk, 16}, nullptr),
                       0, 2};
};

/// The first chunk completes the message; a second chunk claims that the message is longer.
TEST_F(AgainstAHostilePeer, MemoryOfACompletedReceiveIsNotWritten) {
  rt::Message m({.peer = 1, .tag = 5, .bytes = memory_.size()}, memory_.data());
  ASSERT_TRUE(engine_.post(m).ok());
  const std::vector<std::byte> chunk(kChunk, kTheirs);
  say({.kind = NetHeader::kChunk, .bytes = kChunk, .total = kChunk, .tag = 5});
  send(chunk.data(), kChunk);
  say({.kind = NetHeader::kChunk, .bytes = kChunk, .index = 1, .total = memory_.size(), .tag = 5});
  send(chunk.data(), kChunk / 2);
  ASSERT_TRUE(engine_.progress().ok());
  ASSERT_TRUE(engine_.done(m));
  ASSERT_EQ(m.envelope.bytes, kChunk);
  ASSERT_EQ(count(memory_, kTheirs), kChunk + kChunk / 2);
  std::fill(memory_.begin(), memory_.end(), kMine);
  send(chunk.data(), kChunk / 2);
  EXPECT_EQ(count(memory_, kMine), std::ssize(memory_));
  EXPECT_FALSE(engine_.progress().ok()) << "what begins in the middle of a message is none";
}

/// Chunks that have been partly written to the socket are given back, and so are those after them.
TEST_F(AgainstAHostilePeer, MemoryOfACompletedSendIsNotRead) {
  rt::Message m({.sends = true, .peer = 1, .tag = 6, .bytes = memory_.size()}, memory_.data());
  ASSERT_TRUE(engine_.post(m).ok());
  ASSERT_TRUE(engine_.progress().ok());
  ASSERT_FALSE(engine_.done(m));
  say({.kind = NetHeader::kCredit, .freed = 8});
  ASSERT_TRUE(engine_.progress().ok());
  ASSERT_TRUE(engine_.done(m));
  std::fill(memory_.begin(), memory_.end(), kMine);
  std::vector<std::byte> got(2 * memory_.size());
  std::size_t n = 0;
  for (int empty = 0; empty < 20;) {
    fabric_.progress();
    const ssize_t more = ::read(peer_.get(), got.data() + n, got.size() - n);
    if (more > 0) n += static_cast<std::size_t>(more);
    empty = more > 0 ? 0 : empty + 1;
  }
  EXPECT_GT(n, kChunk);
  EXPECT_EQ(count(got, kMine), 0);
}

}  // namespace
}  // namespace ouro::transport
