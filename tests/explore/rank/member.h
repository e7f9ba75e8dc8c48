// A member of a group with its control page: what finds failures, agrees on survivors and carries messages,
// as it is in the library. Used by the protocols of pages and messages.
#pragma once
#include <memory>
#include <vector>

#include "runtime/group/failure_detector.h"
#include "runtime/group/mailbox.h"
#include "runtime/group/survivors.h"
#include "tests/explore/rank/rank.h"

namespace explore {

/// Control pages of all ranks of an execution, in the arena; to be made first. `key` is the group's.
class Pages {
 public:
  static constexpr std::uint64_t kKey = 77;
  explicit Pages(int ranks);
  std::vector<std::shared_ptr<ouro::device::Segment>> segments;
  ouro::rt::ControlPage& page(int r) const {
    return *reinterpret_cast<ouro::rt::ControlPage*>(segments[static_cast<std::size_t>(r)]->data());
  }
};

/// A context of which its records are there and nothing else.
ouro::rt::Context& bare_context(ouro::rt::ControlPage& own);

/// One member; made in set_up(), for each execution. What its threads share lies in the arena.
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
