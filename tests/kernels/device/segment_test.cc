// Segments: seals, what is refused when a peer passes it, one mapping per process, nothing left behind.
#include "runtime/core/segment.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

namespace ouro {
namespace {

constexpr std::size_t kBytes = 64 << 10;

std::shared_ptr<SharedSegment> made(std::size_t bytes = kBytes) {
  auto s = SharedSegment::create(bytes, "test");
  if (!s.ok()) throw std::runtime_error(s.status().message());
  return *s;
}
Fd copy_of(const SharedSegment& s) { return Fd(fcntl(s.fd(), F_DUPFD_CLOEXEC, 0)); }

Fd memory(std::size_t bytes, int seals, unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING) {
  Fd fd(memfd_create("test", flags));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  if (seals) {
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  }
  return fd;
}

std::ptrdiff_t lines_of(const char* file, const std::string& part) {
  std::ifstream in(file);
  std::ptrdiff_t n = 0;
  for (std::string line; std::getline(in, line);) n += line.find(part) != std::string::npos;
  return n;
}
std::ptrdiff_t descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

TEST(Segment, IsZeroedSealedAndReserved) {
  const auto s = made();
  EXPECT_EQ(s->bytes(), kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) ASSERT_EQ(s->data()[i], std::byte{0});
  EXPECT_EQ(fcntl(s->fd(), F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_EQ(ftruncate(s->fd(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(s->fd(), 2 * kBytes), -1);
  EXPECT_TRUE(fcntl(s->fd(), F_GETFD) & FD_CLOEXEC);
  struct stat info {};
  ASSERT_EQ(fstat(s->fd(), &info), 0);
  EXPECT_GE(static_cast<std::size_t>(info.st_blocks) * 512, kBytes) << "its pages are reserved, not promised";
}

TEST(Segment, AttachingItAgainSharesTheMapping) {
  const auto s = made();
  auto again = SharedSegment::attach(copy_of(*s), kBytes);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->get(), s.get()) << "a process maps a segment once";
  EXPECT_EQ(lines_of("/proc/self/maps", "memfd:ouro"), 1);
}

/// A segment made by other code is accepted if it has the seals; writes by its maker are visible through a
/// new mapping.
TEST(Segment, AttachedOneSharesBytesWithItsCreator) {
  Fd fd = memory(kBytes, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  ASSERT_EQ(pwrite(fd.get(), "hello", 5, 100), 5);
  auto s = SharedSegment::attach(Fd(dup(fd.get())), kBytes);
  ASSERT_TRUE(s.ok()) << s.status().message();
  EXPECT_EQ(std::memcmp((*s)->data() + 100, "hello", 5), 0);
  (*s)->data()[200] = std::byte{7};
  char c = 0;
  EXPECT_EQ(pread(fd.get(), &c, 1, 200), 1);
  EXPECT_EQ(c, 7);
}

TEST(Segment, RefusesUnsealedOrWrongDescriptors) {
  const std::ptrdiff_t before = descriptors();
  {
    const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    struct {
      const char* name;
      Fd fd;
    } wrong[] = {{"unsealed", memory(kBytes, 0)},
                 {"not against shrinking", memory(kBytes, F_SEAL_GROW | F_SEAL_SEAL)},
                 {"not against growing", memory(kBytes, F_SEAL_SHRINK | F_SEAL_SEAL)},
                 {"seals may be added", memory(kBytes, F_SEAL_SHRINK | F_SEAL_GROW)},
                 {"no sealing", memory(kBytes, 0, MFD_CLOEXEC)},
                 {"too small", memory(kBytes - 4096, all)},
                 {"too large", memory(kBytes + 4096, all)},
                 {"empty", memory(0, all)},
                 {"a device", Fd(open("/dev/zero", O_RDWR | O_CLOEXEC))},
                 {"a file", Fd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC))},
                 {"a folder", Fd(open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC))},
                 {"nothing", Fd{}},
                 {"a closed one", Fd(9'999)}};
    for (auto& w : wrong) {
      auto s = SharedSegment::attach(std::move(w.fd), kBytes);
      EXPECT_EQ(s.status().reason(), Reason::refused) << w.name;
    }
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    EXPECT_EQ(SharedSegment::attach(Fd(ends[0]), kBytes).status().reason(), Reason::refused);
    close(ends[1]);
  }
  EXPECT_EQ(descriptors(), before) << "what is refused is closed";
}

TEST(Segment, RefusesMemoryOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "not root, which alone can make a descriptor of another user";
  Fd fd = memory(kBytes, 0);
  ASSERT_EQ(fchown(fd.get(), 65'534, 65'534), 0);
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  const auto s = SharedSegment::attach(std::move(fd), kBytes);
  EXPECT_EQ(s.status().reason(), Reason::refused);
  EXPECT_THAT(s.status().message(), testing::HasSubstr("65534"));
}

TEST(Segment, TooLargeRequestFailsWithBothSizes) {
  const std::size_t much = std::size_t{1} << 45;
  const auto s = SharedSegment::create(much, "a test's wish");
  ASSERT_EQ(s.status().reason(), Reason::resource);
  EXPECT_THAT(s.status().message(),
              testing::AllOf(testing::HasSubstr("a test's wish"), testing::HasSubstr(std::to_string(much)),
                             testing::HasSubstr("available")));
  EXPECT_GT(available_memory(), 0u);
  EXPECT_LT(available_memory(), much);
}

TEST(Segment, LeavesNoDescriptorNameOrMapping) {
  const auto names = [] {  // other programs' names come and go
    std::ptrdiff_t n = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
      n += entry.path().filename().string().find("ouro") != std::string::npos;
    return n;
  };
  const std::ptrdiff_t fds = descriptors(), shm = names();
  for (int i = 0; i < 100; ++i) {
    auto s = made();
    EXPECT_EQ(names(), shm) << "no name in /dev/shm while it lives";
    auto second = SharedSegment::attach(copy_of(*s), kBytes);
    ASSERT_TRUE(second.ok());
    s.reset();
    (*second)->data()[0] = std::byte{1};  // the last owner unmaps it
  }
  EXPECT_EQ(descriptors(), fds);
  EXPECT_EQ(lines_of("/proc/self/maps", "memfd:"), 0);
}

/// Forks a child that returns the result of `says`; returns how it ended.
int child_that(const std::function<int()>& says) {
  const int pid = fork();
  if (pid == 0) {
    alarm(20);
    _exit(says());
  }
  int status = 0;
  return waitpid(pid, &status, 0) == pid ? status : -1;
}

TEST(Segment, IsNotInAForkedChild) {
  const auto s = made();
  EXPECT_EQ(child_that([] { return lines_of("/proc/self/maps", "memfd:ouro") == 0 ? 0 : 1; }), 0);
}

TEST(Segment, DestructionInAForkedChildUnmapsNothing) {
  auto s = made();
  EXPECT_EQ(child_that([&] {
              void* const at = mmap(s->data(), kBytes, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
              if (at != s->data()) return 1;
              const std::ptrdiff_t before = descriptors();
              s.reset();
              if (descriptors() != before - 1) return 2;
              std::memset(at, 7, kBytes);
              return 0;
            }),
            0);
}

TEST(Segment, ForkedChildMapsItsParentsSegmentAnew) {
  const auto s = made();
  EXPECT_EQ(child_that([&] {
              const auto mine = SharedSegment::attach(copy_of(*s), kBytes);
              if (!mine.ok() || mine->get() == s.get()) return 1;
              (*mine)->data()[8] = std::byte{5};
              return 0;
            }),
            0);
  EXPECT_EQ(s->data()[8], std::byte{5});
}

}  // namespace
}  // namespace ouro
