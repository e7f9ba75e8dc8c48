// How the members of a group on one host adopt a calibration record in mid-run, all with the same operation
// and without waiting for each other. Used by group.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>

#include "runtime/health/control_page.h"

namespace ouro::rt {

// Some operations, the same on all of these members, are *revision points*. At the end of a point each member
// publishes on its page that it has reached this point, and then reads, on the page of the first member, the
// word of the revision that it does not have yet. Members may be any number of operations apart: a root runs
// ahead of its readers.
//
// The first member proposes revision k + 1 for the point after the newest one that any member has reached. It
// writes the proposal into the word and only then checks again how far the members are. If none has reached
// the proposed point meanwhile, the proposal comes into force: a member that reaches that point later
// publishes this before it reads the word, and both are sequentially consistent, so one of the two sees what
// the other has written. A member that reaches the point before the first member has decided cancels the
// proposal, in the same word, and continues; the first member tries again at its next point. So at the point
// that the word names either all members take the record or none does, and no member waits.
//
// The first member proposes k + 2 only when all have reached the point of k + 1, so a word and a record stay
// until no member reads them any more.

/// Called by a member at the end of point `seq` of group `key`. `mine`: its group record. `first`: the
/// register in which the first member proposes. `revision`: the one after the revision that the member has.
/// Returns the record to adopt; nullopt: none is in force at this point, or the register now belongs to
/// another group.
std::optional<Calibration> pass_revision_point(GroupRecord& mine, RevisionRegister& first, std::uint64_t key,
                                               std::uint64_t revision, std::uint64_t seq);

/// The newest points that the members have reached since they know the register: the oldest and the newest of
/// these. 0: a member does not know the register yet.
struct RevisionPoints {
  std::uint64_t oldest = ~std::uint64_t{0}, newest = 0;
};
/// Adds the member that owns this record.
void add(RevisionPoints&, const GroupRecord&);
/// Called by the first member, which has had the revision before this one since point `last` (0: this is the
/// first revision). `points` reads how far the members are. Returns the point from which the record is in
/// force, or 0 if it is not; the first member may then try again at a later point.
std::uint64_t propose(RevisionRegister&, std::uint64_t revision, std::uint64_t last, const Calibration&,
                      const std::function<RevisionPoints()>& points);

}  // namespace ouro::rt
