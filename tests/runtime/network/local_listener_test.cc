// The listener on a local name: which peers are served, which are refused, and a shortage of descriptors.
#include "runtime/join/local_listener.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <variant>
#include <vector>

#include "runtime/core/log.h"
#include "tests/runtime/network/lab.h"

namespace ouro::rt {
namespace {

std::string name() { return "ouro/test/" + std::to_string(getpid()); }

struct Door {
  explicit Door(asio::io_context& io)
      : listener(io, listen(), [this](const LocalListener::Line& line, Incoming said) {
          heard.push_back(said.frame.index());
          lines.push_back(line);
        }) {}
  static Fd listen() {
    auto socket = listen_local(name());
    EXPECT_TRUE(socket.ok()) << socket.status().message();
    return std::move(*socket);
  }
  std::vector<std::size_t> heard;
  std::vector<LocalListener::Line> lines;
  LocalListener listener;
};

std::string answer(const Fd& line) {
  auto said = recv_frame(line.get(), Clock::now());
  if (!said.ok()) return said.status().failure()->text;
  const auto* no = std::get_if<wire::Refuse>(&said->frame);
  return no ? no->text : "another frame";
}

TEST(LocalListener, ReadsTheFirstFrameAndRefusesGarbage) {
  asio::io_context io;
  Door door(io);
  const Fd fetch = connect_local(name()), nonsense = connect_local(name()), mute = connect_local(name());
  ASSERT_TRUE(send_frame(fetch.get(), wire::Fetch{}).ok());
  ASSERT_EQ(::send(nonsense.get(), "nonsense", 8, MSG_NOSIGNAL), 8);
  EXPECT_TRUE(run_until(io, [&] { return door.heard.size() == 1 && door.listener.refused() == 1; }));
  EXPECT_THAT(answer(nonsense), testing::HasSubstr("a frame of 8 bytes"));
  door.listener.refuse(door.lines[0], {Reason::refused, "go"});
  EXPECT_EQ(answer(fetch), "go");
  EXPECT_EQ(door.listener.refused(), 2);
  EXPECT_TRUE(run_until(io, [&] { return answer(mute) == "the peer hung up"; })) << "after a second";
}

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

TEST(LocalListener, RefusesAnotherUserAndKeepsNoDescriptor) {
  if (geteuid() != 0) GTEST_SKIP() << "not root, which alone can become another user";
  asio::io_context io;
  Door door(io);
  const std::ptrdiff_t before = open_descriptors();
  const std::string here = name();
  const pid_t stranger = fork();
  if (stranger == 0) {
    if (setresgid(65'534, 65'534, 65'534) != 0 || setresuid(65'534, 65'534, 65'534) != 0) _exit(2);
    const Fd line = connect_local(here);  // abstract names have no permissions
    if (!line) _exit(3);
    (void)send_frame(line.get(), wire::Fetch{}, {0}).ok();  // may fail if the listener has already hung up
    const auto said = recv_frame(line.get(), Clock::now() + test::kHang);
    _exit(!said.ok() || std::holds_alternative<wire::Refuse>(said->frame) ? 0 : 4);
  }
  EXPECT_TRUE(run_until(io, [&] { return door.listener.refused() == 1; }));
  int status = -1;
  ASSERT_EQ(waitpid(stranger, &status, 0), stranger);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(door.heard.empty());
  EXPECT_EQ(open_descriptors(), before);
}

/// More descriptors than any frame carries: all received descriptors are closed.
TEST(LocalSocket, ClosesDescriptorsThatNoFrameExpects) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const Fd here(ends[0]), there(ends[1]);
  wire::Bytes bytes = wire::encode(wire::Fetch{});
  iovec part{bytes.data(), bytes.size()};
  constexpr std::size_t kMany = 40;
  alignas(cmsghdr) char control[CMSG_SPACE(kMany * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part, message.msg_iovlen = 1;
  message.msg_control = control, message.msg_controllen = sizeof control;
  cmsghdr* const c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(kMany * sizeof(int));
  for (std::size_t i = 0; i < kMany; ++i) std::memcpy(CMSG_DATA(c) + i * sizeof(int), &ends[1], sizeof(int));
  ASSERT_GT(sendmsg(there.get(), &message, MSG_NOSIGNAL), 0);
  const std::ptrdiff_t before = open_descriptors();
  const Status s = recv_frame(here.get(), Clock::now()).status();
  EXPECT_EQ(s.reason(), Reason::refused);
  EXPECT_THAT(s.message(), testing::HasSubstr("more descriptors than expected"));
  EXPECT_EQ(open_descriptors(), before);
}

TEST(LocalListener, ReleasedSocketContinuesToListen) {
  asio::io_context io;
  Door door(io);
  const Fd socket = door.listener.release();
  ASSERT_TRUE(socket);
  const Fd guest = connect_local(name());
  ASSERT_TRUE(send_frame(guest.get(), wire::Fetch{}).ok());
  run_until(
      io, [] { return false; }, 30ms);
  EXPECT_TRUE(door.heard.empty());
  EXPECT_TRUE(Fd(accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC)));
}

TEST(LocalListener, OutOfDescriptorsItPausesAndLosesNoConnection) {
  asio::io_context io;
  Door door(io);
  std::vector<Fd> guests;
  for (int i = 0; i < 20; ++i) {
    guests.push_back(connect_local(name()));
    ASSERT_TRUE(send_frame(guests.back().get(), wire::Fetch{}).ok());
  }
  rlimit old{};
  getrlimit(RLIMIT_NOFILE, &old);
  rlimit low = old;
  low.rlim_cur = static_cast<rlim_t>(guests.back().get()) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<Fd> holes;  // below the limit
  for (int fd = 0; fd < 64; ++fd)
    if (Fd hole(fcntl(0, F_DUPFD_CLOEXEC, 0)); hole) holes.push_back(std::move(hole));
  int turns = 0;
  for (const auto end = Clock::now() + 300ms; Clock::now() < end;)
    turns += static_cast<int>(io.run_one_for(10ms));
  EXPECT_LT(turns, 20) << "no busy loop";
  EXPECT_THAT(log::last_warning(), testing::HasSubstr("no file descriptor is left"));
  EXPECT_TRUE(door.heard.empty());
  setrlimit(RLIMIT_NOFILE, &old);
  holes.clear();
  EXPECT_TRUE(run_until(io, [&] { return door.heard.size() == guests.size(); }));
  EXPECT_EQ(door.listener.refused(), 0);
}

/// Descriptors arrive while there is room for only some of them.
TEST(LocalSocket, ReportsThatItIsOutOfDescriptors) {
  for (const int room : {0, 1}) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const Fd here(ends[0]), there(ends[1]);
    ASSERT_TRUE(send_frame(there.get(), wire::Fetch{}, {here.get(), there.get()}).ok());
    std::vector<Fd> holes;
    rlimit old{};
    getrlimit(RLIMIT_NOFILE, &old);
    rlimit low = old;
    low.rlim_cur = static_cast<rlim_t>(std::max(ends[0], ends[1])) + 1;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    for (int fd = 0; fd < 64; ++fd)
      if (Fd hole(fcntl(0, F_DUPFD_CLOEXEC, 0)); hole) holes.push_back(std::move(hole));
    low.rlim_cur += static_cast<rlim_t>(room);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    const Status s = recv_frame(here.get(), Clock::now()).status();
    EXPECT_FALSE(connect_local(name()));
    EXPECT_EQ(errno == EMFILE, room == 0);
    setrlimit(RLIMIT_NOFILE, &old);
    EXPECT_EQ(s.reason(), Reason::resource) << room;
    EXPECT_THAT(s.message(), testing::HasSubstr("no file descriptor is left")) << room;
    EXPECT_THAT(s.message(), testing::HasSubstr(std::to_string(low.rlim_cur))) << room;
  }
}

TEST(LocalListener, SilentConnectionsAreBoundedAndOthersAreServed) {
  asio::io_context io;
  Door door(io);
  std::vector<Fd> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(connect_local(name()));
  const Fd guest = connect_local(name());
  ASSERT_TRUE(send_frame(guest.get(), wire::Fetch{}).ok());
  run_until(
      io, [] { return false; }, 100ms);
  EXPECT_TRUE(door.heard.empty()) << "it waits in the kernel";
  EXPECT_TRUE(run_until(io, [&] { return !door.heard.empty(); })) << "until some were hung up on";
}

}  // namespace
}  // namespace ouro::rt
