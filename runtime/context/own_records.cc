// The records that this rank publishes about its groups. See own_records.h.
#include "runtime/context/own_records.h"

#include <fmt/format.h>

namespace ouro::rt {

Result<GroupRecord*> OwnRecords::claim(std::uint64_t key) {
  std::lock_guard lock(mutex_);
  for (std::uint32_t i = 0; i < kRecords; ++i) {
    GroupRecord& r = page_.groups[(next_ + i) % kRecords];
    if (in_use(r)) continue;
    if (const auto* revised = find_revision(page_, r, r.key.get()); revised && revised->kept.get()) continue;
    next_ = (next_ + i + 1) % kRecords;
    r.key.set(0);
    r.error.set(0), r.entered.set(0), r.completed.set(0), r.shrinking.set(0), r.decided.set(0),
        r.resume.set(0), r.vote.set(0), r.revised.set(0), r.revision_point.set(0);
    for (auto& h : r.history) h.tag.set(0);
    for (auto& d : r.dead) d.set(0);
    r.state.set(static_cast<std::uint32_t>(GroupState::open));
    r.key.set(key);
    return &r;
  }
  return Status(Reason::resource,
                fmt::format("{} groups are open on this rank, which is the limit", kRecords));
}

bool OwnRecords::publish(GroupRecord& record, const Failure& f, Collective op) {
  std::lock_guard lock(publish_mutex_);
  const std::uint32_t i = page_.errors_used.get();
  if (i >= kErrors) return false;
  ErrorRecord& e = page_.errors[i];
  e.reason = f.reason, e.rank = f.rank, e.pid = f.pid, e.op = op, e.seq = f.seq, e.elapsed_s = f.elapsed_s;
  f.detector.copy(e.detector, sizeof e.detector - 1);
  f.text.copy(e.text, sizeof e.text - 1);
  record.error.set(i + 1);
  page_.errors_used.set(i + 1);
  return true;
}

std::uint64_t OwnRecords::instance(std::uint64_t name_hash) {
  std::lock_guard lock(mutex_);
  return instances_[name_hash]++;
}

}  // namespace ouro::rt
