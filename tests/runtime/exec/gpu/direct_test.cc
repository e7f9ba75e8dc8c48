// Messages between hosts from and to memory of GPUs that is handed to UCX: nothing of them is copied down or
// up; and ranks that die, time out or cannot do it.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "kernels/device/fake/fake_gpu.h"
#include "runtime/exec/host/wiring.h"
#include "runtime/group/group.h"
#include "runtime/network/network.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/exec/gpu/direct.h"
#include "tests/runtime/failure/harness.h"
#include "tests/runtime/group/access.h"

namespace ouro::test {
namespace {

constexpr std::size_t kChunk = rt::Wiring::kFarMessageSlot, kThreshold = 256 << 10;

/// Bytes of all copies of the devices of this process that one end of was on the host, since reset().
class HostCopies {
 public:
  static HostCopies& seen() {
    static HostCopies all;
    return all;
  }
  void add(const void* to, const void* from, std::size_t bytes) {
    std::lock_guard lock(mutex_);
    all_.push_back({to, from, bytes});
  }
  void reset() {
    std::lock_guard lock(mutex_);
    all_.clear();
  }
  std::size_t bytes() {
    std::lock_guard lock(mutex_);
    const auto device = [](const void* p) {
      const auto info = gpu::gpu().pointer(p);
      return info.ok() && info->kind == gpu::MemoryKind::device;
    };
    std::size_t sum = 0;
    for (const Copy& c : all_)
      if (device(c.to) != device(c.from)) sum += c.bytes;
    return sum;
  }

 private:
  struct Copy {
    const void *to, *from;
    std::size_t bytes;
  };
  std::mutex mutex_;
  std::vector<Copy> all_;
};

/// Two processes on two hosts, with an emulated device each, over UCX.
class DirectMessages : public testing::Test {
 protected:
  void SetUp() override {
    OURO_NEEDS_FAKES();
    OURO_NEEDS_PROCESSES();
    OURO_NEEDS_UCX();
    gpu::FakeOptions options;
    options.copying = [](const void* to, const void* from, std::size_t bytes) {
      HostCopies::seen().add(to, from, bytes);
    };
    fake_ = std::make_unique<gpu::FakeGpu>(options);
    gpu::install(fake_.get());
    for (const auto& [name, value] : variables()) setenv(name, value, 1);
  }
  void TearDown() override {
    gpu::install(nullptr);
    for (const auto& variable : variables()) unsetenv(variable.first);
    std::error_code ignored;
    std::filesystem::remove(file_, ignored);
  }
  static std::vector<std::pair<const char*, const char*>> variables() {
    return {{"OURO_INSECURE", "1"}, {"OURO_SOCKET_IFNAME", "lo"}, {"OURO_FABRIC", "ucx"}};
  }
  Result<Context> join(int rank) const {
    InitOptions o = options(rank, 2, id_);
    o.local_rank = 0, o.local_size = 1;
    o.host_id = "host-" + std::to_string(rank);
    o.rendezvous = "file:" + file_.string();
    return Context::create(o);
  }
  static transport::UcxFabric& fabric(Context& c) {
    return dynamic_cast<transport::UcxFabric&>(c.world().impl()->context()->network()->fabric());
  }
  /// Waits until a receive of this rank has been posted.
  static bool posted(Context& c) {
    return eventually([&] { return rt::TestAccess::wanted_receives(*c.world().impl()) > 0; });
  }

  std::unique_ptr<gpu::FakeGpu> fake_;
  const UniqueId id_ = new_id();
  const std::filesystem::path file_ =
      std::filesystem::temp_directory_path() / ("ouro-direct-test-" + std::to_string(getpid()));
};

View bytes_at(const DeviceArena& a, std::size_t offset, std::size_t count, Context& c) {
  return View(a.data() + offset, count, DType::u8, c.device());
}

struct Case {
  std::size_t bytes, offset;
};
const std::vector<Case> kCases = {{kThreshold - 1, 0},   {kThreshold, 0},         {kThreshold + 1, 3},
                                  {3 * kChunk + 17, 1},  {16 * kChunk, 0},        {16 * kChunk + 5, 7},
                                  {40 * kChunk + 1, 64}, {100 * kChunk - 4096, 2}};
constexpr std::size_t kMost = 100 * kChunk + 4096;

/// The receive is posted first. From the threshold on, everything goes from device to device.
TEST_F(DirectMessages, MessagesFromTheThresholdOnAreNotCopiedThroughTheHost) {
  Watchdog watchdog;
  Processes ranks(2, [&](int rank, Board& board) {
    auto c = join(rank);
    ASSERT_TRUE(c.ok()) << c.status().message();
    DeviceArena a;
    ASSERT_TRUE(a.make(*c, kMost, From::driver).ok());
    auto s = Stream::create(c->device());
    ASSERT_TRUE(s.ok());
    int stage = 0;
    for (const Case& k : kCases) {
      ASSERT_TRUE(a.write(pattern(kMost, rank == 0 ? 1 : 99)).ok());
      HostCopies::seen().reset();
      const auto sent = fabric(*c).device_bytes_sent(), received = fabric(*c).device_bytes_received();
      if (rank == 1) {
        auto w = recv(c->world(), bytes_at(a, k.offset, k.bytes, *c), 0, 4, *s);
        ASSERT_TRUE(w.ok()) << w.status().message();
        ASSERT_TRUE(posted(*c));
        board.stage[0] = ++stage;
        ASSERT_TRUE(w->wait().ok()) << w->wait().message();
      } else {
        ++stage;
        ASSERT_TRUE(eventually([&] { return board.stage[0] == stage; }));
        auto w = send(c->world(), bytes_at(a, k.offset, k.bytes, *c), 1, 4, *s);
        ASSERT_TRUE(w.ok()) << w.status().message();
        ASSERT_TRUE(w->wait().ok()) << w->wait().message();
      }
      const bool direct = k.bytes >= kThreshold;
      const std::size_t copied = HostCopies::seen().bytes();
      EXPECT_EQ(copied, direct ? 0 : rank == 0 ? k.bytes : 2 * k.bytes) << k.bytes;
      EXPECT_EQ(fabric(*c).device_bytes_sent() - sent, direct && rank == 0 ? k.bytes : 0) << k.bytes;
      EXPECT_EQ(fabric(*c).device_bytes_received() - received, direct && rank == 1 ? k.bytes : 0) << k.bytes;
      if (rank == 0) continue;
      auto expected = pattern(kMost, 99);
      const auto from = pattern(kMost, 1);
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(k.offset), k.bytes,
                  expected.begin() + static_cast<std::ptrdiff_t>(k.offset));
      auto got = a.read();
      ASSERT_TRUE(got.ok());
      EXPECT_TRUE(*got == expected) << k.bytes << " bytes at " << k.offset;
    }
    EXPECT_TRUE(c->close().ok());
  });
  ranks.join();
}

/// What comes before its receive is in slots of the host, the rest goes to the device. Both directions at
/// once.
TEST_F(DirectMessages, EarlyMessagesInBothDirectionsArrive) {
  Watchdog watchdog;
  constexpr std::size_t kBytes = 50 * kChunk + 11;
  Processes ranks(2, [&](int rank, Board& board) {
    auto c = join(rank);
    ASSERT_TRUE(c.ok()) << c.status().message();
    DeviceArena out, in;
    ASSERT_TRUE(out.make(*c, kBytes, From::ouro).ok());
    ASSERT_TRUE(in.make(*c, kBytes, From::driver).ok());
    auto s = Stream::create(c->device()), t = Stream::create(c->device());
    ASSERT_TRUE(s.ok() && t.ok());
    for (int round = 1; round <= 3; ++round) {
      ASSERT_TRUE(out.write(pattern(kBytes, static_cast<unsigned>(10 * round + rank))).ok());
      const auto received = fabric(*c).device_bytes_received();
      auto sending = send(c->world(), bytes_at(out, 0, kBytes, *c), 1 - rank, round, *s);
      ASSERT_TRUE(sending.ok());
      if (round == 2) {  // it waits as a whole in the queue of unexpected messages
        ASSERT_TRUE(eventually([&] {
          auto here = match(c->world(), 1 - rank, round);
          return here.ok() && here->has_value();
        }));
      }
      board.stage[rank] = round;
      ASSERT_TRUE(eventually([&] { return board.stage[1 - rank] >= round; }));
      auto got = recv(c->world(), bytes_at(in, 0, kBytes, *c), 1 - rank, round, *t);
      ASSERT_TRUE(got.ok());
      ASSERT_TRUE(got->wait().ok()) << got->wait().message();
      ASSERT_TRUE(sending->wait().ok()) << sending->wait().message();
      auto bytes = in.read();
      ASSERT_TRUE(bytes.ok());
      EXPECT_TRUE(*bytes == pattern(kBytes, static_cast<unsigned>(10 * round + 1 - rank))) << round;
      EXPECT_LE(fabric(*c).device_bytes_received() - received, kBytes);
    }
    EXPECT_TRUE(c->close().ok());
  });
  ranks.join();
}

/// One rank does not hand its memory over: both stage.
TEST_F(DirectMessages, BothSidesStageIfOneCannotHandMemoryOver) {
  Watchdog watchdog;
  constexpr std::size_t kBytes = 20 * kChunk + 1;
  for (const bool sender_cannot : {true, false}) {
    std::filesystem::remove(file_);
    Processes ranks(2, [&](int rank, Board&) {
      if ((rank == 0) == sender_cannot) setenv("OURO_GPU_DIRECT", "off", 1);
      auto c = join(rank);
      ASSERT_TRUE(c.ok()) << c.status().message();
      DeviceArena a;
      ASSERT_TRUE(a.make(*c, kBytes, From::driver).ok());
      ASSERT_TRUE(a.write(pattern(kBytes, static_cast<unsigned>(rank))).ok());
      HostCopies::seen().reset();
      const View v = bytes_at(a, 0, kBytes, *c);
      const Status moved = rank == 0 ? send(c->world(), v, 1, 4) : recv(c->world(), v, 0, 4).status();
      ASSERT_TRUE(moved.ok()) << moved.message();
      EXPECT_EQ(HostCopies::seen().bytes(), rank == 0 ? kBytes : 2 * kBytes);
      EXPECT_EQ(fabric(*c).device_bytes_sent() + fabric(*c).device_bytes_received(), 0u);
      auto got = a.read();
      ASSERT_TRUE(got.ok());
      EXPECT_TRUE(*got == pattern(kBytes, 0));
      EXPECT_TRUE(c->close().ok());
    });
    ranks.join();
  }
}

/// One end is on a device, and the other on the host.
TEST_F(DirectMessages, MessagesBetweenDeviceAndHostMemoryArrive) {
  Watchdog watchdog;
  constexpr std::size_t kBytes = 20 * kChunk + 1;
  Processes ranks(2, [&](int rank, Board&) {
    auto c = join(rank);
    ASSERT_TRUE(c.ok()) << c.status().message();
    DeviceArena a;
    ASSERT_TRUE(a.make(*c, kBytes, From::driver).ok());
    for (const int device_rank : {0, 1}) {
      std::vector<std::byte> host = pattern(kBytes, static_cast<unsigned>(rank));
      ASSERT_TRUE(a.write(host).ok());
      const View v = rank == device_rank ? bytes_at(a, 0, kBytes, *c) : View(host.data(), kBytes, DType::u8);
      const Status moved = rank == 0 ? send(c->world(), v, 1, 4) : recv(c->world(), v, 0, 4).status();
      ASSERT_TRUE(moved.ok()) << moved.message();
      if (rank == device_rank) {
        auto read = a.read();
        ASSERT_TRUE(read.ok());
        host = *read;
      }
      EXPECT_TRUE(host == pattern(kBytes, 0)) << device_rank;
    }
    EXPECT_TRUE(c->close().ok());
  });
  ranks.join();
}

/// A rank dies in mid-message: the other learns of it, its stream goes on, and its memory can be freed.
TEST_F(DirectMessages, DeathOfARankDoesNotBlockTheOther) {
  Watchdog watchdog(4 * std::chrono::duration_cast<std::chrono::seconds>(kHang));
  constexpr std::size_t kBytes = 1500 * kChunk;
  for (const int victim : {0, 1}) {
    std::filesystem::remove(file_);
    Processes ranks(2, [&](int rank, Board& board) {
      auto c = join(rank);
      ASSERT_TRUE(c.ok()) << c.status().message();
      DeviceArena a;
      ASSERT_TRUE(a.make(*c, kBytes, From::driver).ok());
      auto s = Stream::create(c->device());
      ASSERT_TRUE(s.ok());
      board.stage[rank] = 1;
      ASSERT_TRUE(eventually([&] { return board.stage[1 - rank] == 1; }));
      std::thread dies([&] {
        if (rank != victim) return;
        const auto moved = [&] {
          return fabric(*c).device_bytes_sent() + fabric(*c).device_bytes_received();
        };
        if (eventually([&] { return moved() > 4 * kChunk; })) raise(SIGKILL);
      });
      const View v = bytes_at(a, 0, kBytes, *c);
      auto w = rank == 0 ? send(c->world(), v, 1, 4, *s) : recv(c->world(), v, 0, 4, *s);
      const Status said = w.ok() ? w->wait() : w.status();
      dies.join();
      EXPECT_THAT(said, Fails(Reason::peer_dead, victim));
      Event mark;
      mark.record(*s);
      EXPECT_TRUE(mark.synchronize(20s).ok()) << "the stream waits on";
    });
    ranks.join({victim});
  }
}

/// A receive ends at its own deadline, or its group fails, in mid-message: the buffer is the caller's at
/// once, and nobody writes it any more. The rest of the message is received by the next receive.
TEST_F(DirectMessages, MessageOfATimedOutReceiveGoesToTheNextReceive) {
  Watchdog watchdog;
  constexpr std::size_t kBytes = 400 * kChunk + 3;
  Processes ranks(2, [&](int rank, Board& board) {
    auto c = join(rank);
    ASSERT_TRUE(c.ok()) << c.status().message();
    DeviceArena a, b;
    ASSERT_TRUE(a.make(*c, kBytes, From::driver).ok());
    ASSERT_TRUE(b.make(*c, kBytes, From::driver).ok());
    ASSERT_TRUE(a.write(pattern(kBytes, static_cast<unsigned>(rank))).ok());
    if (rank == 0) {
      board.pid[0] = ::getpid();
      const Status sent = send(c->world(), bytes_at(a, 0, kBytes, *c), 1, 4);
      EXPECT_TRUE(sent.ok()) << sent.message();
    } else {
      // The sender is stopped in the middle.
      std::thread stops([&] {
        if (eventually([&] { return fabric(*c).device_bytes_received() > 2 * kChunk; }))
          ::kill(board.pid[0], SIGSTOP);
      });
      const Status late = recv(c->world(), bytes_at(a, 0, kBytes, *c), 0, 4, 300ms).status();
      stops.join();
      EXPECT_THAT(late, Fails(Reason::deadline));
      auto before = a.read();
      ::kill(board.pid[0], SIGCONT);
      const Status got = recv(c->world(), bytes_at(b, 0, kBytes, *c), 0, 4).status();
      EXPECT_TRUE(got.ok()) << got.message();
      auto bytes = b.read(), after = a.read();
      ASSERT_TRUE(bytes.ok() && before.ok() && after.ok());
      EXPECT_TRUE(*bytes == pattern(kBytes, 0));
      EXPECT_TRUE(*before == *after);
      EXPECT_TRUE(*after == pattern(kBytes, 1)) << "a receive that failed has written";
    }
    EXPECT_TRUE(c->close().ok());
  });
  ranks.join();
}

TEST_F(DirectMessages, ForcedDirectIsRefusedOnAFabricWithoutIt) {
  setenv("OURO_GPU_DIRECT", "on", 1);
  setenv("OURO_FABRIC", "tcp", 1);
  const Status refused = join(0).status();
  EXPECT_THAT(refused, Fails(Reason::unsupported));
  EXPECT_TRUE(has(refused.message(), "the fabric tcp takes no GPU memory")) << refused.message();
  unsetenv("OURO_GPU_DIRECT");
}

}  // namespace
}  // namespace ouro::test
