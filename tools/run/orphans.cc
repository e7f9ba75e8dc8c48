// Orphans. See orphans.h.
#include "tools/run/orphans.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

namespace ouro::run {
namespace {

/// The children that a caller waits for.
std::set<pid_t>& kept() {
  static std::set<pid_t> pids;
  return pids;
}

std::vector<pid_t> children_of_this_process() {
  std::vector<pid_t> all;
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    std::ifstream list(task.path() / "children");
    for (pid_t pid; list >> pid;) all.push_back(pid);
  }
  return all;
}

}  // namespace

void keep_child(pid_t pid) { kept().insert(pid); }

void forget_child(pid_t pid) { kept().erase(pid); }

void keep_children() {
  for (const pid_t pid : children_of_this_process()) keep_child(pid);
}

void reap_orphans() {
  for (siginfo_t what{};; what = {}) {
    if (::waitid(P_ALL, 0, &what, WEXITED | WNOHANG | WNOWAIT) != 0 || what.si_pid == 0) return;
    if (kept().contains(what.si_pid)) break;  // it is reaped later, and there may be others behind it
    ::waitpid(what.si_pid, nullptr, WNOHANG);
  }
  for (const pid_t pid : children_of_this_process())
    if (!kept().contains(pid)) ::waitpid(pid, nullptr, WNOHANG);
}

void end_orphans() {
  for (int round = 0; round < 50; ++round) {
    bool any = false;
    for (const pid_t pid : children_of_this_process()) {
      if (kept().contains(pid)) continue;
      any = true;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, WNOHANG);
    }
    if (!any) return;
    ::poll(nullptr, 0, 20);
  }
}

}  // namespace ouro::run
