// Which process this is. See process.h.
#include "runtime/core/process.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <fstream>
#include <sstream>
#include <string>

#include "runtime/core/per_process.h"

namespace ouro {
namespace {

/// /proc/PID/stat from field 3 on, that is, after the process name, which may contain any characters.
std::istringstream stat_of(const std::string& pid) {
  std::string stat;
  std::getline(std::ifstream("/proc/" + pid + "/stat"), stat);
  return std::istringstream(stat.substr(std::min(stat.rfind(')') + 1, stat.size())));
}

struct Number {
  std::uint64_t value = drawn();

  static std::uint64_t drawn() {
    std::uint64_t n = 0;
    ssize_t got = 0;
    do got = getrandom(&n, sizeof n, 0);
    while (got < 0 && errno == EINTR);
    if (got != sizeof n)  // forbidden, or an old kernel
      n = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) ^
          static_cast<std::uint64_t>(getpid()) << 48 ^ reinterpret_cast<std::uint64_t>(&n);
    return n == 0 ? 1 : n;
  }
};

}  // namespace

std::uint64_t process_number() {
  static PerProcess<Number> number;
  return number->value;
}

std::uint64_t pid_namespace() {
  struct stat space {};
  return stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0;
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
  if (char name[HOST_NAME_MAX + 1] = {}; boot.empty() && gethostname(name, sizeof name - 1) == 0) boot = name;
  struct stat net {};
  if (stat("/proc/self/ns/net", &net) != 0) net.st_ino = 0;
  return boot + "/" + std::to_string(net.st_ino);
}

}  // namespace ouro
