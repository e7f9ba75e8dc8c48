// Signals belong to the program: a program that blocks one in its own threads and waits for it gets it,
// whatever threads the library has started by then.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kernels/device/gpu.h"
#include "tests/runtime/group/ranks.h"
#include "transport/net/ucx/ucx.h"

namespace ouro {
namespace {

struct Task {
  std::string name;
  std::uint64_t blocked = 0;
  bool takes(int signal) const { return (blocked >> (signal - 1) & 1) == 0; }
};

/// The threads of this process except the calling one.
std::vector<Task> other_threads() {
  std::vector<Task> all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    if (entry.path().filename() == std::to_string(gettid())) continue;
    std::ifstream status(entry.path() / "status");
    Task task;
    for (std::string word; status >> word;) {
      if (word == "Name:") status >> task.name;
      if (word == "SigBlk:") status >> std::hex >> task.blocked >> std::dec;
    }
    if (!task.name.empty()) all.push_back(task);
  }
  return all;
}

/// Signals of the program that these threads would take, and fault signals that they block.
std::string wrong(const std::vector<Task>& threads) {
  std::string found;
  for (const Task& t : threads) {
    for (const int s : {SIGUSR1, SIGUSR2, SIGTERM, SIGINT, SIGHUP, SIGCHLD, SIGALRM, SIGPIPE, SIGRTMIN})
      if (t.takes(s)) found += fmt::format("thread {} takes signal {}; ", t.name, s);
    for (const int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL})
      if (!t.takes(s)) found += fmt::format("thread {} blocks its own fault {}; ", t.name, s);
  }
  return found;
}

/// Blocks signals as programs do: after the library has started its threads.
class Blocked {
 public:
  explicit Blocked(std::initializer_list<int> signals) {
    sigemptyset(&set_);
    for (const int s : signals) sigaddset(&set_, s);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~Blocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  int wait() const {
    const timespec limit{5, 0};
    return sigtimedwait(&set_, nullptr, &limit);
  }

 private:
  sigset_t set_, before_;
};

/// `hosts` ranks, each on a host of its own, and a stream: with all the threads that these start, signals
/// still reach this thread.
void signals_are_ours(int hosts, const std::set<std::string>& expected) {
  InitOptions o = test::quick_options();
  const auto id = UniqueId::create();
  ASSERT_TRUE(id.ok());
  o.rendezvous =
      fmt::format("file:{}/ouro-signals-{}", std::filesystem::temp_directory_path().string(), getpid());
  std::vector<Context> contexts(static_cast<std::size_t>(hosts));
  std::vector<Status> outcomes(contexts.size());
  std::vector<std::thread> joiners;
  for (int r = 0; r < hosts; ++r)
    joiners.emplace_back([&, r] {
      InitOptions mine = o;
      mine.rank = r, mine.world_size = hosts, mine.id = *id, mine.gpu = -1;
      mine.local_rank = 0, mine.local_size = 1, mine.host_id = fmt::format("host-{}", r);
      auto made = Context::create(mine);
      if (made.ok()) contexts[static_cast<std::size_t>(r)] = std::move(*made);
      outcomes[static_cast<std::size_t>(r)] = made.status();
    });
  for (std::thread& t : joiners) t.join();
  std::error_code ignored;
  std::filesystem::remove(o.rendezvous.substr(5), ignored);
  for (const Status& s : outcomes) ASSERT_TRUE(s.ok()) << s.message();
  auto stream = Stream::create();
  ASSERT_TRUE(stream.ok());
  ASSERT_TRUE(stream->synchronize().ok());
  gpu::Gpu& gpu = gpu::gpu();
  std::optional<Stream> device;  // of a fake device, which has a thread too
  if (gpu.devices() > 0) {
    auto made = Stream::create(Device{Device::Kind::cuda, 0});
    ASSERT_TRUE(made.ok()) << made.status().message();
    device.emplace(std::move(*made));
    ASSERT_TRUE(device->run([] { return Status{}; }).wait().ok());
  }
  const Blocked blocked{SIGUSR1, SIGTERM, SIGCHLD};
  // The C library blocks all signals in a thread that starts or ends, and a joined thread may still be listed
  // for a moment.
  std::vector<Task> threads = other_threads();
  for (int i = 0; i < 500 && !wrong(threads).empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    threads = other_threads();
  }
  EXPECT_EQ(wrong(threads), "");
  std::set<std::string> names;
  for (const Task& t : threads) names.insert(t.name);
  for (const std::string& n : expected) EXPECT_TRUE(names.contains(n)) << n << " is not among the threads";
  if (testing::Test::HasFailure()) return;  // one of them would end this process
  for (int i = 0; i < 200; ++i) {
    const int sent = i % 2 ? SIGUSR1 : SIGTERM;
    ASSERT_EQ(::kill(getpid(), sent), 0);
    ASSERT_EQ(blocked.wait(), sent) << "of " << i;
  }
  for (Context& c : contexts) (void)c.close().ok();
}

class Signals : public testing::Test {
 protected:
  void SetUp() override {
    setenv("OURO_SOCKET_IFNAME", "lo", 1);
    setenv("OURO_INSECURE", "1", 1);
    setenv("OURO_FABRIC", fabric.c_str(), 1);
  }
  std::string fabric = "tcp";
};
struct SignalsUcx : Signals {
  SignalsUcx() { fabric = "ucx"; }
  void SetUp() override {
    if (const Status usable = transport::ucx_usable(); !usable.ok())
      GTEST_SKIP() << "no UCX: " << usable.message();
    Signals::SetUp();
  }
};

TEST_F(Signals, AreNotTakenByThreadsOfTheLibrary) {
  signals_are_ours(3, {"ouro-watch", "ouro-net", "ouro-progress", "ouro-stream"});
}
TEST_F(SignalsUcx, AreNotTakenByThreadsOfTheLibrary) {
  signals_are_ours(2, {"ouro-watch", "ouro-net", "ouro-progress"});
}

/// Joining leaves the signal mask of the calling thread unchanged.
TEST_F(Signals, JoiningKeepsTheCallersSignalMask) {
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  auto contexts = Context::threads(2, test::quick_options());
  ASSERT_TRUE(contexts.ok()) << contexts.status().message();
  auto stream = Stream::create();
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int s = 1; s < SIGRTMAX; ++s) EXPECT_EQ(sigismember(&before, s), sigismember(&after, s)) << s;
}

}  // namespace
}  // namespace ouro
