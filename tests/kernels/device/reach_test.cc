// Reading another process's memory: its contents are read, but nothing of a stranger that has since got its
// process number.
#include "transport/shm/reach.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "runtime/core/fd.h"

namespace ouro::transport {
namespace {

/// A sleeping child, whose memory is a copy of this process's. The destructor kills and reaps it.
class Child {
 public:
  /// number: the requested process number; 0: any. If the system does not allow that, there is no child.
  explicit Child(pid_t number = 0) {
    clone_args args{};
    args.exit_signal = SIGCHLD;
    if (number != 0) args.set_tid = reinterpret_cast<std::uint64_t>(&number), args.set_tid_size = 1;
    pid_ = static_cast<pid_t>(::syscall(SYS_clone3, &args, sizeof args));
    if (pid_ == 0)
      for (;;) ::pause();
    if (pid_ > 0) pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void end(bool bury = true) {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    siginfo_t how{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &how, WEXITED | (bury ? 0 : WNOWAIT));
    if (bury) pid_ = -1;
  }
  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }

 private:
  pid_t pid_ = -1;
  Fd pidfd_;
};

const std::vector<char> g_secret(1 << 20, 's');
std::uint64_t address(const void* p) { return reinterpret_cast<std::uint64_t>(p); }

class ReadProcess : public testing::Test {
 protected:
  void SetUp() override {
    const Child child;
    if (child.pidfd() < 0) GTEST_SKIP() << "this system has no pidfd";
    char c = 0;
    if (read_process(child.pid(), child.pidfd(), address(g_secret.data()), &c, 1).reason() ==
        Reason::resource)
      GTEST_SKIP() << "this system allows no process to read its children";
  }
  std::vector<char> out_ = std::vector<char>(g_secret.size());
  Status read(pid_t pid, int pidfd) {
    return read_process(pid, pidfd, address(g_secret.data()), out_.data(), out_.size());
  }
};

TEST_F(ReadProcess, ReturnsTheMemoryOfALivingProcess) {
  const Child child;
  ASSERT_TRUE(read(child.pid(), child.pidfd()).ok());
  EXPECT_EQ(out_, g_secret);
  EXPECT_EQ(read_process(child.pid(), child.pidfd(), 8, out_.data(), 1).reason(), Reason::resource);
  EXPECT_EQ(read(child.pid(), -1).reason(), Reason::unsupported) << "nobody could say whose memory it is";
}

TEST_F(ReadProcess, FailsWithPeerDeadForADeadProcess) {
  Child child;
  const pid_t pid = child.pid();
  child.end(false);
  EXPECT_EQ(read(pid, child.pidfd()).reason(), Reason::peer_dead) << "not waited for yet";
  child.end();
  const Status s = read(pid, child.pidfd());
  EXPECT_EQ(s.reason(), Reason::peer_dead);
  EXPECT_EQ(s.failure()->pid, pid);
}

TEST_F(ReadProcess, FailsIfAnotherProcessHasTheSamePid) {
  Child child;
  const pid_t pid = child.pid();
  child.end();
  const Child same_number(pid), any;
  // If the system does not assign a requested number, a stranger with its own number serves as well.
  const Child& stranger = same_number.pid() > 0 ? same_number : any;
  ASSERT_GT(stranger.pid(), 0);
  const Status s = read(stranger.pid(), child.pidfd());
  EXPECT_EQ(s.reason(), Reason::peer_dead) << s.message();
  EXPECT_EQ(read_process(stranger.pid(), child.pidfd(), 8, out_.data(), 1).reason(), Reason::peer_dead)
      << "it has no such memory, which says nothing of the one that is meant";
}

/// Two pages of 2 MiB; huge ones if the system has them.
const std::byte* huge_pages(std::size_t bytes) {
  constexpr std::size_t kPage = 2 << 20;
  void* const at = ::mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  auto* const begin = reinterpret_cast<std::byte*>((address(at) + kPage - 1) / kPage * kPage);
  ::madvise(begin, bytes, MADV_HUGEPAGE);
  std::memset(begin, 1, bytes);
  return begin;
}

TEST(HugePages, ForkedChildFindsItsOwnPages) {
  constexpr std::size_t kBytes = 4 << 20;
  if (!on_huge_pages(open_pagemap().get(), huge_pages(kBytes), kBytes))
    GTEST_SKIP() << "this system has no huge pages, or none that can be seen";
  const pid_t child = ::fork();
  if (child == 0) {
    const Fd own = open_pagemap();
    for (int k = 0; k < 8; ++k)  // at a place where the parent has none
      if (on_huge_pages(own.get(), huge_pages(kBytes), kBytes)) ::_exit(0);
    ::_exit(1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ouro::transport
