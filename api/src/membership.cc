// Who has left a group. See membership.h.
#include "api/src/membership.h"

#include "runtime/group/group.h"

namespace ouro {

std::uint64_t key_of(const Group& g) { return g.valid() ? g.impl()->spec().key : 0; }

bool keeps_memory(const Group& g) {
  if (!g.valid()) return false;
  const rt::JobMembers& job = g.impl()->context()->members();
  for (const int r : g.ranks()) {
    if (r == job.rank()) return g.size() > 1;
    if (!job.is_remote(r)) return false;
  }
  return false;
}

bool others_left(const Group& g) {
  if (!g.valid()) return true;
  const rt::JobMembers& job = g.impl()->context()->members();
  for (const int r : g.ranks()) {
    if (r == job.rank() || job.is_remote(r) || job.has_closed(r) || job.is_dead(r)) continue;
    const rt::GroupRecord* const record = job.find_record(r, key_of(g));
    // Without a record it has yet to make the group, or has left it so long ago that the record serves
    // another.
    if (!record || record->state.get() == static_cast<std::uint32_t>(rt::GroupState::open)) return false;
  }
  return true;
}

void say_left(const Context& c) {
  if (!c.impl() || c.impl()->inherited()) return;
  c.impl()->members().own_page().state.set(static_cast<std::uint32_t>(rt::ContextState::closed));
  c.impl()->tell();
}

}  // namespace ouro
