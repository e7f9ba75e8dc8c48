// The records that this rank publishes about its groups. Used by Context and groups.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>

#include "runtime/health/control_page.h"

namespace ouro::rt {

/// The records of this rank's groups on its control page, and the groups' first errors. Thread-safe.
class OwnRecords {
 public:
  explicit OwnRecords(ControlPage& mine) : page_(mine) {}
  /// Returns a fresh record, which is open from now on. Errors: resource (all are open).
  Result<GroupRecord*> claim(std::uint64_t key);
  /// Publishes a group's first error for its peers to adopt. Returns false if there is no room; peers then
  /// have to rely on their own deadlines and detectors.
  bool publish(GroupRecord&, const Failure&, Collective op);
  /// Number of groups of this name and membership that this rank has made before.
  std::uint64_t instance(std::uint64_t name_hash);

 private:
  ControlPage& page_;
  std::mutex mutex_, publish_mutex_;
  std::map<std::uint64_t, std::uint64_t> instances_;
  std::uint32_t next_ = 0;
};

}  // namespace ouro::rt
