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
  /// `group`, `generation`: for messages.
  Survivors(Context& context, MemberRecords& members, std::string group, std::uint64_t generation,
            std::chrono::milliseconds deadline)
      : context_(context),
        members_(members),
        group_(std::move(group)),
        generation_(generation),
        deadline_(deadline) {}

  /// Collective over those who are left; this rank's part of the group is at rest. Errors: fenced (the others
  /// have gone on without this rank), deadline (who has not called, or voted), no-quorum, resource.
  Result<Verdict> agree(bool one_host);

 private:
  Result<Verdict> agree_here();
  Result<Verdict> agree_between_hosts();
  void look_at(int r, Agreement::Member*);
  Status timed_out(const std::vector<int>& waiting, const char* for_what) const;
  bool fenced() const;

  Context& context_;
  MemberRecords& members_;
  const std::string group_;
  const std::uint64_t generation_;
  const std::chrono::milliseconds deadline_;
};

}  // namespace ouro::rt
