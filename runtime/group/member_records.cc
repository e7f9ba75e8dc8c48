// What the members of a group publish of themselves. See member_records.h.
#include "runtime/group/member_records.h"

namespace ouro::rt {

MemberRecords::MemberRecords(JobMembers& job, const Members& members, std::uint64_t key, GroupRecord& mine)
    : job_(job),
      members_(members),
      key_(key),
      mine_(mine),
      found_(static_cast<std::size_t>(members.size()), nullptr) {
  found_[static_cast<std::size_t>(members.rank())] = &mine;
}

GroupRecord* MemberRecords::find(int r) {
  std::lock_guard lock(mutex_);
  GroupRecord*& record = found_[static_cast<std::size_t>(r)];
  if (!record) record = job_.find_record(world_rank(r), key_);
  return record;
}

GroupRecord* MemberRecords::find_ours(int r) {
  GroupRecord* const record = find(r);
  return record && record->key.get() == key_ ? record : nullptr;
}

bool MemberRecords::has_left(int r, const GroupRecord* record) const {
  if (job_.has_closed(world_rank(r))) return true;
  return record && (record->key.get() != key_ || !in_use(*record));
}

bool MemberRecords::has_finished(int r) {
  const GroupRecord* const record = find(r);
  return has_left(r, record) ||
         (record && record->state.get() == static_cast<std::uint32_t>(GroupState::finishing));
}

}  // namespace ouro::rt
