// The cores that a rank is bound to while it measures (--bind). Used by the rank program and by the tuner.
#pragma once
#include <fmt/format.h>

#include <string>

#include "runtime/context/machine.h"
#include "tools/cli/output.h"

namespace ouro::perf {

/// Binds the calling thread to its place while an object lives, and then restores the place that it
/// had before.
class Bound {
 public:
  Bound(rt::Bind policy, int local_rank, int local_size) {
    if (policy == rt::Bind::none) return;
    place_ = rt::machine().place(local_rank, local_size, policy);
    before_.cpus = rt::affinity_of(0);
    status_ = rt::bind_this_thread(place_);
  }
  ~Bound() {
    if (place_.cpus.empty()) return;
    if (const Status s = rt::bind_this_thread(before_); !s)
      // A failure is not fatal: only a probe after the run is less precise.
      tools::complain("ouro-perf: {}\n", s.message());
  }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;
  const Status& status() const { return status_; }
  /// ", bound to 0-3"; "" if the thread is not bound.
  std::string text() const {
    if (place_.cpus.empty()) return "";
    return fmt::format(", bound to {}{}", rt::to_text(place_.cpus), place_.shared ? " with others" : "");
  }

 private:
  rt::Placement place_, before_;
  Status status_;
};

}  // namespace ouro::perf
