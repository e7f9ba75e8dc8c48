// Segments on memfd: create, seal, check, map once per process. Used through segment.h.
#include "runtime/core/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <sstream>
#include <string>

#include "runtime/core/file_size.h"
#include "runtime/core/per_process.h"

namespace ouro {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct Identity {
  dev_t dev;
  ino_t ino;
  auto operator<=>(const Identity&) const = default;
};
struct Registry {
  std::mutex mutex;
  std::map<Identity, std::weak_ptr<SharedSegment>> mapped;
};
constinit PerProcess<Registry> g_registry;  // what a parent has mapped is not mapped in its child

bool read_number(const std::string& file, std::size_t& out) {
  return static_cast<bool>(std::ifstream(file) >> out);
}

}  // namespace

std::size_t available_memory() {
  std::size_t available = std::numeric_limits<std::size_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string word; meminfo >> word;)
    if (std::size_t kib = 0; word == "MemAvailable:" && meminfo >> kib) {
      available = kib * 1024;
      break;
    }
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    std::istringstream in(line);
    std::string id, controllers, path;
    std::getline(in, id, ':'), std::getline(in, controllers, ':'), std::getline(in, path);
    const bool v2 = id == "0" && controllers.empty();
    if (!v2 && controllers.find("memory") == std::string::npos) continue;
    for (;;) {  // terminates: path gets shorter each time
      const std::string base = (v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory") + path;
      std::size_t limit = 0, used = 0;
      if (read_number(base + (v2 ? "/memory.max" : "/memory.limit_in_bytes"), limit) &&
          read_number(base + (v2 ? "/memory.current" : "/memory.usage_in_bytes"), used))
        available = std::min(available, limit > used ? limit - used : 0);
      if (path.empty() || path == "/") break;
      path.erase(path.rfind('/'));
    }
  }
  return available;
}

Result<std::shared_ptr<SharedSegment>> SharedSegment::create(std::size_t bytes, const char* what) {
  if (const std::size_t available = available_memory(); bytes > available)
    return Status(Reason::resource,
                  fmt::format("{}: {} bytes of shared memory needed, {} available (memory cgroup or machine)",
                              what, bytes, available));
  Fd fd(static_cast<int>(syscall(SYS_memfd_create, "ouro", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (!fd)
    return Status(Reason::resource,
                  fmt::format("{}: memfd_create failed: {} (a seccomp filter may forbid it)", what,
                              std::strerror(errno)));
  // Reserves the pages now, so that a full memory file system is an error here and not a SIGBUS at the
  // first write.
  int error = EINTR;
  {
    const NoFileSizeSignal quiet;
    while (error == EINTR) error = posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  }
  if (error != 0)
    return Status(Reason::resource, fmt::format("{}: cannot reserve {} bytes of shared memory: {}", what,
                                                bytes, file_error(error)));
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    return Status(Reason::resource,
                  fmt::format("{}: cannot seal shared memory: {}", what, std::strerror(errno)));
  return map(std::move(fd), bytes);
}

Result<std::shared_ptr<SharedSegment>> SharedSegment::attach(Fd fd, std::size_t bytes) {
  struct stat info {};
  if (!fd || fstat(fd.get(), &info) != 0)
    return Status(Reason::refused, "a peer passed no usable descriptor");
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid())
    return Status(Reason::refused, fmt::format("a peer passed a descriptor of mode {:o} and user {}; "
                                               "expected memory of user {}",
                                               info.st_mode, info.st_uid, geteuid()));
  if (fcntl(fd.get(), F_GET_SEALS) < 0 || (fcntl(fd.get(), F_GET_SEALS) & kSeals) != kSeals)
    return Status(Reason::refused, "a peer passed shared memory without seals");
  if (static_cast<std::size_t>(info.st_size) != bytes)
    return Status(Reason::refused,
                  fmt::format("a peer passed {} bytes of shared memory; expected {}", info.st_size, bytes));
  return map(std::move(fd), bytes);
}

Result<std::shared_ptr<SharedSegment>> SharedSegment::map(Fd fd, std::size_t bytes) {
  struct stat info {};
  if (fstat(fd.get(), &info) != 0)
    return Status(Reason::resource, fmt::format("fstat of shared memory failed: {}", std::strerror(errno)));
  const auto segment =
      std::shared_ptr<SharedSegment>(new SharedSegment);  // before `lock`: its destructor locks, too
  Registry& r = *g_registry;
  std::lock_guard lock(r.mutex);
  auto& known = r.mapped[{info.st_dev, info.st_ino}];
  if (auto existing = known.lock()) return existing;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (p == MAP_FAILED)
    return Status(Reason::resource,
                  fmt::format("cannot map {} bytes of shared memory: {}", bytes, std::strerror(errno)));
  // A forked child must not write into a live group.
  madvise(p, bytes, MADV_DONTFORK);
  segment->fd_ = std::move(fd);
  segment->data_ = static_cast<std::byte*>(p);
  segment->bytes_ = bytes;
  known = segment;
  return segment;
}

void SharedSegment::populate() const {
#ifdef MADV_POPULATE_WRITE
  (void)madvise(data_, bytes_, MADV_POPULATE_WRITE);
#endif
}

SharedSegment::~SharedSegment() {
  if (forks_ != forks()) return;  // a forked child has no such pages; others may be at their addresses by now
  Registry& r = *g_registry;
  std::lock_guard lock(r.mutex);
  struct stat info {};
  if (fstat(fd_.get(), &info) == 0)
    if (auto it = r.mapped.find({info.st_dev, info.st_ino}); it != r.mapped.end() && it->second.expired())
      r.mapped.erase(it);
  if (data_) munmap(data_, bytes_);
}

}  // namespace ouro
