// Changes that the launcher makes to its process while a job runs, and undoes afterwards. Used by
// launcher.cc, agent.cc and guardian.cc.
#pragma once
#include <signal.h>
#include <sys/prctl.h>

#include "tools/run/orphans.h"

namespace ouro::run {

/// While an object lives, processes whose parent dies are reparented to this process; Signals reaps those
/// that end meanwhile, and the end of this object kills those that are left.
class Subreaper {
 public:
  Subreaper() {
    keep_children();
    ::prctl(PR_GET_CHILD_SUBREAPER, &old_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~Subreaper() {
    end_orphans();
    ::prctl(PR_SET_CHILD_SUBREAPER, old_);
  }
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;

 private:
  int old_ = 0;
};

/// While an object lives, children can be waited for even if this process was started with SIGCHLD ignored.
class ChildrenCount {
 public:
  ChildrenCount() { old_ = ::signal(SIGCHLD, SIG_DFL); }
  ~ChildrenCount() {
    if (old_ != SIG_ERR) ::signal(SIGCHLD, old_);
  }
  ChildrenCount(const ChildrenCount&) = delete;
  ChildrenCount& operator=(const ChildrenCount&) = delete;

 private:
  void (*old_)(int);
};

}  // namespace ouro::run
