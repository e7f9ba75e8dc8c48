// Forked children. See fork.h.
#include "runtime/core/fork.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace ouro {

std::atomic<unsigned> detail::g_forks{0};

namespace {

/// The inode of the registered socket, by descriptor; 0 if none. It is an array of plain words, because the
/// child of a process with threads may call little more than close(). Children do not close descriptors
/// from kMost on.
constexpr int kMost = 1 << 16;
std::array<std::atomic<std::uint64_t>, kMost> g_sockets{};
std::atomic<int> g_end{0};  // one above the highest registered descriptor

std::uint64_t socket_inode(int fd) {
  struct stat what {};
  return fstat(fd, &what) == 0 && S_ISSOCK(what.st_mode) ? what.st_ino : 0;
}

void in_child() {
  detail::g_forks.fetch_add(1, std::memory_order_relaxed);
  const int end = g_end.load(std::memory_order_relaxed);
  for (int fd = 0; fd < end; ++fd) {
    const std::uint64_t inode =
        g_sockets[static_cast<std::size_t>(fd)].exchange(0, std::memory_order_relaxed);
    if (inode != 0 && socket_inode(fd) == inode) ::close(fd);
  }
}

[[maybe_unused]] const int g_listens = pthread_atfork(nullptr, nullptr, in_child);

}  // namespace

void close_in_children(int socket) {
  if (socket < 0 || socket >= kMost) return;
  g_sockets[static_cast<std::size_t>(socket)].store(socket_inode(socket), std::memory_order_relaxed);
  int end = g_end.load(std::memory_order_relaxed);
  while (end <= socket && !g_end.compare_exchange_weak(end, socket + 1, std::memory_order_relaxed)) continue;
}

}  // namespace ouro
