// Which process this is. See process.h.
#include "runtime/core/process.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace ouro {
namespace {

constexpr int kStatStart = 22;  // field of /proc/PID/stat: ticks from boot to the start of the process

/// /proc/PID/stat from field 3 on, that is, after the process name, which may contain any characters.
std::istringstream stat_of(const std::string& pid) {
  std::string stat;
  std::getline(std::ifstream("/proc/" + pid + "/stat"), stat);
  return std::istringstream(stat.substr(std::min(stat.rfind(')') + 1, stat.size())));
}

}  // namespace

std::uint64_t process_start() {
  std::istringstream after_name = stat_of("self");
  std::string field;
  for (int i = 3; i < kStatStart; ++i) after_name >> field;
  std::uint64_t ticks = 0;
  after_name >> ticks;
  return ticks;
}

Fd self_pidfd() { return Fd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))); }

bool is_stopped(const Fd& pidfd) {
  if (!pidfd) return false;
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(pidfd.get()));
  std::string word, pid, state;
  while (info >> word)
    if (word == "Pid:") info >> pid;
  if (pid.empty() || pid[0] == '-' || pid == "0") return false;  // it has ended, or is in another namespace
  stat_of(pid) >> state;
  return state == "T";
}

std::string own_host_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat net {};
  if (stat("/proc/self/ns/net", &net) != 0) net.st_ino = 0;
  return boot + "/" + std::to_string(net.st_ino);
}

}  // namespace ouro
