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
constexpr int kStatStart = 22;  // field of /proc/PID/stat: ticks from the boot of the system to the start
}  // namespace

std::uint64_t process_start() {
  std::string stat;
  std::getline(std::ifstream("/proc/self/stat"), stat);
  std::istringstream after_name(stat.substr(std::min(stat.rfind(')') + 1, stat.size())));
  std::string field;
  for (int i = 3; i < kStatStart; ++i) after_name >> field;
  std::uint64_t ticks = 0;
  after_name >> ticks;
  return ticks;
}

Fd self_pidfd() { return Fd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))); }

std::string own_host_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat net {};
  if (stat("/proc/self/ns/net", &net) != 0) net.st_ino = 0;
  return boot + "/" + std::to_string(net.st_ino);
}

}  // namespace ouro
