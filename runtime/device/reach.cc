// Memory of other processes. See reach.h.
#include "runtime/device/reach.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/core/fd.h"

namespace ouro::device {

Status read_process(pid_t pid, std::uint64_t from, void* to, std::size_t bytes) {
  if (pid == getpid()) {
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return {};
  }
  constexpr std::size_t kMost = std::size_t{1}
                                << 30;  // of one call; the system moves less than 2 GiB at once
  auto* at = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const std::size_t some = std::min(bytes, kMost);
    iovec local{at, some}, remote{reinterpret_cast<void*>(from), some};
    const ssize_t moved = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (moved <= 0) {
      if (moved < 0 && errno == EINTR) continue;
      const int error = moved < 0 ? errno : EFAULT;
      return Status(Failure{
          .reason = error == ESRCH ? Reason::peer_dead : Reason::resource,
          .text = fmt::format("cannot read {} bytes of process {}: {}", bytes, pid, std::strerror(error)),
          .pid = static_cast<int>(pid),
          .detector = "process_vm_readv"});
    }
    at += moved, from += static_cast<std::uint64_t>(moved), bytes -= static_cast<std::size_t>(moved);
  }
  return {};
}

bool on_huge_pages(const void* p, std::size_t bytes) {
  // linux/fs.h of the build machine may be older than the kernel: the request of 6.7 in our own words.
  struct Region {
    std::uint64_t start, end, categories;
  };
  struct Scan {
    std::uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, category_inverted,
        category_mask, category_anyof_mask, return_mask;
  };
  constexpr std::uint64_t kHuge = 1u << 6, kPage = 4096;
  static const Fd pagemap(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!pagemap || bytes == 0) return false;
  const auto begin = reinterpret_cast<std::uint64_t>(p) / kPage * kPage;
  const std::uint64_t end = (reinterpret_cast<std::uint64_t>(p) + bytes + kPage - 1) / kPage * kPage;
  Region regions[64];
  std::uint64_t huge = 0, from = begin;
  for (int turn = 0; from < end && turn < 4096; ++turn) {
    Scan scan{};
    scan.size = sizeof scan, scan.start = from, scan.end = end;
    scan.vec = reinterpret_cast<std::uint64_t>(regions), scan.vec_len = std::size(regions);
    scan.category_mask = kHuge, scan.return_mask = kHuge;
    const int found = ioctl(pagemap.get(), _IOWR('f', 16, Scan), &scan);
    if (found < 0) return false;
    for (int i = 0; i < found; ++i) huge += regions[i].end - regions[i].start;
    if (scan.walk_end <= from) break;
    from = scan.walk_end;
  }
  return huge * 10 >= (end - begin) * 9;
}

}  // namespace ouro::device
