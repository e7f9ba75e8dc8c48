// RLIMIT_NOFILE of the launcher. Used through open_files.h.
#include "tools/run/open_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "tools/run/system.h"

namespace ouro::run {
namespace {

std::optional<rlimit> given;  // one thread starts processes

/// The highest open descriptor and those below it: a gap may stay open or not, and costs at most a higher
/// limit.
std::size_t open_now() {
  int highest = 2;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error))
    highest = std::max(highest, std::atoi(entry.path().filename().c_str()));
  return static_cast<std::size_t>(highest) + 1;
}

}  // namespace

Status make_room(std::size_t more) {
  rlimit now{};
  if (::getrlimit(RLIMIT_NOFILE, &now) != 0) return system_error("cannot read the limit of open files");
  const rlim_t need = open_now() + more;
  if (now.rlim_cur == RLIM_INFINITY || need <= now.rlim_cur) return {};
  if (now.rlim_max != RLIM_INFINITY && need > now.rlim_max)
    return {Reason::resource,
            fmt::format("{} open files needed, hard limit {}: start fewer ranks here, or raise the limit "
                        "(`ulimit -Hn`, limits.conf)",
                        need, now.rlim_max)};
  const rlimit raised{need, now.rlim_max};
  if (::setrlimit(RLIMIT_NOFILE, &raised) != 0) return system_error("cannot raise the limit of open files");
  if (!given) given = now;
  return {};
}

const rlimit* given_limit() { return given ? &*given : nullptr; }

}  // namespace ouro::run
