// Survivors: after a failure, the remaining ranks agree on which of them remain. Used by Group::shrink.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "runtime/context/context.h"
#include "runtime/group/member_records.h"
#include "runtime/health/agreement.h"

namespace ouro::rt {

/// The agreement of the members of a failed group: which of them are dead, and where the others resume. On
/// one host it uses the control pages, which all ranks see directly; between hosts, Agreement.
class Survivors {
 public:
  struct Settings {
    std::string group;             ///< its name, for messages
    std::uint64_t generation = 0;  ///< likewise
    std::chrono::milliseconds deadline{0};
    std::chrono::milliseconds patience{5000};  ///< with live ranks because of which the group failed
    Status why = {};                           ///< the group's error
  };
  Survivors(Context& context, MemberRecords& members, Settings settings)
      : context_(context), members_(members), settings_(std::move(settings)) {}

  /// Collective over the remaining ranks. Precondition: this rank's part of the group is at rest. Errors:
  /// fenced (the others have continued without this rank), deadline (names the ranks that have not called, or
  /// voted), no-quorum, resource.
  Result<Verdict> agree(bool one_host);

 private:
  Result<Verdict> agree_here();
  Result<Verdict> agree_between_hosts();
  void read_member(int r, Agreement::Member*);
  Status timed_out(const std::vector<int>& waiting, const char* for_what) const;
  bool fenced() const;
  /// Whether rank r lives, but has caused the group's error and has been waited for long enough.
  bool left_behind(int r, const GroupRecord*);

  Context& context_;
  MemberRecords& members_;
  const Settings settings_;
  const Clock::time_point start_ = Clock::now();
};

}  // namespace ouro::rt
