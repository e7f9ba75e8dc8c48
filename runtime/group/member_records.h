// MemberRecords: what the members of a group publish of themselves. Used by the parts of Group.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

#include "runtime/job/job_members.h"
#include "runtime/plan/members.h"

namespace ouro::rt {

/// The members of one group as their control pages show them: each one's record of the group, whether it has
/// left, and whether it has died. Ranks are those of the group. Thread-safe.
class MemberRecords {
 public:
  /// `mine`: this rank's record of group `key`.
  MemberRecords(JobMembers& job, const Members& members, std::uint64_t key, GroupRecord& mine);

  int rank() const { return members_.rank(); }
  std::uint64_t key() const { return key_; }
  int size() const { return members_.size(); }
  int world_rank(int r) const { return members_.world_rank(r); }
  GroupRecord& mine() const { return mine_; }
  ControlPage& page(int r) const { return job_.page(world_rank(r)); }
  const Peer& peer(int r) const { return job_.peer(world_rank(r)); }
  bool is_here(int r) const { return members_.local(r) >= 0; }
  bool has_closed(int r) const { return job_.has_closed(world_rank(r)); }  ///< whether it closed its context
  bool is_dead(int r) const { return job_.is_dead(world_rank(r)); }

  /// The record of rank r; nullptr while it has not made the group. It may belong to another group by now.
  GroupRecord* find(int r);
  /// The same, or nullptr if it belongs to another group by now.
  GroupRecord* find_ours(int r);
  /// Whether rank r has left in good order: it sends nothing more.
  bool has_left(int r) { return has_left(r, find(r)); }
  bool has_left(int r, const GroupRecord* record) const;
  /// Whether rank r has left, or closes the group and sends no more messages.
  bool has_finished(int r);

 private:
  JobMembers& job_;
  const Members& members_;
  const std::uint64_t key_;
  GroupRecord& mine_;
  std::mutex mutex_;
  std::vector<GroupRecord*> found_;  // filled on demand
};

}  // namespace ouro::rt
