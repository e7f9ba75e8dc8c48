// A member of a group with its control page, and the library's own code that detects failures, agrees on
// survivors and carries messages. Used by the protocols of pages and messages.
#pragma once
#include <memory>
#include <vector>

#include "runtime/group/failure_detector.h"
#include "runtime/group/mailbox.h"
#include "runtime/group/survivors.h"
#include "tests/explore/rank/rank.h"

namespace explore {

/// Control pages of all ranks of an execution, in the arena; must be made first. `key` is the group's.
class Pages {
 public:
  static constexpr std::uint64_t kKey = 77;
  explicit Pages(int ranks);
  std::vector<std::shared_ptr<ouro::SharedSegment>> segments;
  ouro::rt::ControlPage& page(int r) const {
    return *reinterpret_cast<ouro::rt::ControlPage*>(segments[static_cast<std::size_t>(r)]->data());
  }
};

/// A context with its records only.
ouro::rt::Context& bare_context(ouro::rt::ControlPage& own);

/// One member; made in set_up(), for each execution. Objects that its threads share are in the arena.
class Member {
 public:
  Member(const Pages&, const ouro::rt::Members&);
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  ouro::rt::Context& context;
  ouro::rt::JobMembers& job_members;
  ouro::rt::GroupRecord& record;
  ouro::rt::MemberRecords& records;
  ouro::rt::FailureDetector& detector;
  ouro::rt::Survivors survivors;
  ouro::rt::Mailbox mailbox;  ///< over the links of the job
};

}  // namespace explore
