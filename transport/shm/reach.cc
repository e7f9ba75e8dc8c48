// Memory of other processes. See reach.h.
#include "transport/shm/reach.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ouro::transport {

namespace {

Status failed(Reason reason, pid_t pid, std::size_t bytes, const char* why, const char* detector) {
  return Status(Failure{.reason = reason,
                        .text = fmt::format("cannot read {} bytes of process {}: {}", bytes, pid, why),
                        .pid = static_cast<int>(pid),
                        .detector = detector});
}

/// A pidfd becomes readable when its process ends.
bool ended(int pidfd) {
  pollfd p{pidfd, POLLIN, 0};
  int n = 0;
  do n = poll(&p, 1, 0);
  while (n < 0 && errno == EINTR);
  return n != 0;
}

}  // namespace

Status read_process(pid_t pid, int pidfd, std::uint64_t from, void* to, std::size_t bytes) {
  constexpr std::size_t kMost = std::size_t{1} << 30;  // per call; the system moves less than 2 GiB at once
  if (pidfd < 0)
    return failed(Reason::unsupported, pid, bytes, "the kernel has no descriptor of it", "pidfd");
  auto* at = static_cast<std::byte*>(to);
  int error = 0;
  std::size_t left = bytes;
  while (left > 0 && error == 0) {
    const std::size_t some = std::min(left, kMost);
    iovec local{at, some}, remote{reinterpret_cast<void*>(from), some};
    const ssize_t moved = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (moved <= 0) {
      if (moved == 0 || errno != EINTR) error = moved < 0 ? errno : EFAULT;
      continue;
    }
    at += moved, from += static_cast<std::uint64_t>(moved), left -= static_cast<std::size_t>(moved);
  }
  // The check follows the read: a process that is still alive now has had this pid all the time.
  if (error == ESRCH || ended(pidfd)) return failed(Reason::peer_dead, pid, bytes, "it has ended", "pidfd");
  if (error != 0) return failed(Reason::resource, pid, bytes, std::strerror(error), "process_vm_readv");
  return {};
}

Fd open_pagemap() { return Fd(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)); }

bool on_huge_pages(int pagemap, const void* p, std::size_t bytes) {
  // linux/fs.h of the build machine may be older than the kernel, so the request of 6.7 is declared here.
  struct Region {
    std::uint64_t start, end, categories;
  };
  struct Scan {
    std::uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, category_inverted,
        category_mask, category_anyof_mask, return_mask;
  };
  constexpr std::uint64_t kHuge = 1u << 6;
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));  // both ends must be page-aligned
  if (pagemap < 0 || bytes == 0) return false;
  const auto begin = reinterpret_cast<std::uint64_t>(p) / page * page;
  const std::uint64_t end = (reinterpret_cast<std::uint64_t>(p) + bytes + page - 1) / page * page;
  Region regions[64];
  std::uint64_t huge = 0, from = begin;
  for (int turn = 0; from < end && turn < 4096; ++turn) {
    Scan scan{};
    scan.size = sizeof scan, scan.start = from, scan.end = end;
    scan.vec = reinterpret_cast<std::uint64_t>(regions), scan.vec_len = std::size(regions);
    scan.category_mask = kHuge, scan.return_mask = kHuge;
    const int found = ioctl(pagemap, _IOWR('f', 16, Scan), &scan);
    if (found < 0) return false;
    for (int i = 0; i < found; ++i) huge += regions[i].end - regions[i].start;
    if (scan.walk_end <= from) break;
    from = scan.walk_end;
  }
  return huge * 10 >= (end - begin) * 9;
}

}  // namespace ouro::transport
