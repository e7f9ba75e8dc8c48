// File descriptors and their limits. See descriptors.h.
#include "runtime/join/descriptors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <string>
#include <utility>

#include "runtime/core/log.h"
#include "runtime/core/per_process.h"

namespace ouro::rt {
namespace {

// Descriptors of a process: its listeners, those of asio for each thread (epoll, an event, a timer), the
// segments of the first groups, and connections that are not of this job.
constexpr std::size_t kOwn = 32;
constexpr std::size_t kRoom = 256;  // reserve beyond the need, when the limit is raised

std::size_t open_now() {
  std::error_code e;
  const auto all = std::distance(std::filesystem::directory_iterator("/proc/self/fd", e),
                                 std::filesystem::directory_iterator());
  if (!e && all > 0) return static_cast<std::size_t>(all - 1);  // one of them reads the folder
  std::size_t open = 0;                                         // no /proc, or no descriptor left to read it
  for (int fd = 0; fd < 1 << 16; ++fd) open += fcntl(fd, F_GETFD) >= 0;
  return open;
}

std::atomic<int> g_provided{0};  // how many Provided live in this process
[[maybe_unused]] const int g_forgets_provided = pthread_atfork(nullptr, nullptr, [] { g_provided.store(0); });

std::string text(rlim_t limit) { return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit); }

}  // namespace

std::size_t descriptors_to_join(int world, bool network, int lines) {
  const auto others = static_cast<std::size_t>(std::max(world - 1, 0));
  return others * (network ? 3 + static_cast<std::size_t>(std::max(lines, 1)) : 3) + kOwn;
}

std::size_t descriptors_of_threads(int world) {
  // For each rank a page, two ends of its connection to rank 0, a listener, a request in flight, and
  // three of asio.
  return static_cast<std::size_t>(std::max(world, 0)) * 9 + kOwn;
}

Status provide_descriptors(std::size_t more, const char* what_for) {
  if (g_provided.load() > 0) return {};
  static constinit PerProcess<std::mutex> one_at_a_time;
  const std::lock_guard lock(*one_at_a_time);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  const std::size_t open = open_now(), needed = open + more;
  if (limit.rlim_cur == RLIM_INFINITY || needed <= limit.rlim_cur) return {};
  if (limit.rlim_max != RLIM_INFINITY && needed > limit.rlim_max)
    return {Reason::resource,
            fmt::format(
                "{} file descriptors needed for {} ({} are open already), {} available: raise the hard limit "
                "(`ulimit -Hn`, LimitNOFILE= of a service, --ulimit nofile= of a container)",
                needed, what_for, open, limit.rlim_max)};
  const rlim_t before = std::exchange(limit.rlim_cur, std::min<rlim_t>(limit.rlim_max, needed + kRoom));
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
    return {
        Reason::resource,
        fmt::format(
            "{} file descriptors needed for {} ({} are open already), {} available, and the limit cannot be "
            "raised to {}: {}; raise `ulimit -n`",
            needed, what_for, open, before, limit.rlim_cur, std::strerror(errno))};
  OURO_INFO(INIT, "{} file descriptors needed for {}: the soft limit was {} and is {} now (hard limit {})",
            needed, what_for, before, limit.rlim_cur, text(limit.rlim_max));
  return {};
}

Provided::Provided() { ++g_provided; }
Provided::~Provided() { --g_provided; }

bool descriptors_lack(int error) { return error == EMFILE || error == ENFILE; }

Status no_descriptor(const char* what) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return {Reason::resource,
          fmt::format("{}: no file descriptor is left; {} are open, the limit is {} (hard limit {}): "
                      "raise `ulimit -n`",
                      what, open_now(), text(limit.rlim_cur), text(limit.rlim_max))};
}

}  // namespace ouro::rt
