// Going on after a failure: who is left agrees on who is left. Used by Group::shrink.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "runtime/context/context.h"
#include "runtime/group/member_records.h"
#include "runtime/health/agreement.h"

namespace ouro::rt {

/// What the members of a group that has failed come to: who of them is dead, and where the others go on. On
/// one host over pages that all see as they are, between hosts by Agreement.
class Survivors {
 public:
  struct Settings {
    std::string group;             ///< its name, for messages
    std::uint64_t generation = 0;  ///< likewise
    std::chrono::milliseconds deadline{0};
    std::chrono::milliseconds patience{5000};  ///< with those because of whom the group failed, who live
    Status why = {};                           ///< the group's error
  };
  Survivors(Context& context, MemberRecords& members, Settings settings)
      : context_(context), members_(members), settings_(std::move(settings)) {}

  /// Collective over those who are left; this rank's part of the group is at rest. Errors: fenced (the others
  /// have gone on without this rank), deadline (who has not called, or voted), no-quorum, resource.
  Result<Verdict> agree(bool one_host);

 private:
  Result<Verdict> agree_here();
  Result<Verdict> agree_between_hosts();
  void look_at(int r, Agreement::Member*);
  Status timed_out(const std::vector<int>& waiting, const char* for_what) const;
  bool fenced() const;
  /// Whether rank r lives, is the reason for the group's error, and has been waited for.
  bool left_behind(int r, const GroupRecord*);

  Context& context_;
  MemberRecords& members_;
  const Settings settings_;
  const Clock::time_point start_ = Clock::now();
};

}  // namespace ouro::rt
