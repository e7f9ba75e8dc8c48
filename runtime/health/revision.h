// How the members of a group on one host take a record into use in mid-run, all with the same operation and
// without waiting for each other. Used by group.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>

#include "runtime/health/control_page.h"

namespace ouro::rt {

// A *look* is an operation, the same on all of these members, at whose end each of them says on its page that
// it has come so far, and then looks at the word of the revision that it has not got yet, on the page of the
// first of them. Members may be any number of operations apart: a root runs ahead of its readers.
//
// The first member proposes revision k + 1 for the look after the newest that any member has come to, writes
// that into the word, and only then looks again how far they are. If none has come to the look meanwhile, the
// proposal is in force: whoever comes to it later says so before it reads the word, and both are sequentially
// consistent, so one of the two sees what the other has written. A member that comes to the look while the
// first has yet to decide calls the proposal off, by the same word, and goes on; the first tries again at its
// next look. So with the look that the word names either all take the record or none does, and nobody waits.
//
// The first proposes k + 2 when all have come to the look of k + 1, so the word and the record of k + 1 stay
// until nobody reads them.

/// A member, at the end of look `seq` of group `key`, with its record `mine`; it has the revision before this
/// one. `first`: where the first member proposes. nullopt: it is not to be taken now; or the register has
/// gone to another group.
std::optional<Calibration> look(GroupRecord& mine, RevisionRegister& first, std::uint64_t key,
                                std::uint64_t revision, std::uint64_t seq);

/// The newest looks that members have come to since they know the register; 0: one does not know it yet.
struct Looks {
  std::uint64_t oldest = ~std::uint64_t{0}, newest = 0;
};
/// Adds the member that has this record.
void add(Looks&, const GroupRecord&);
/// The first member, which has the revision before this one since look `last` (0: it is the first revision).
/// The look from which on the record is in force, or 0: not now, and it may be tried again at a later look.
std::uint64_t propose(RevisionRegister&, std::uint64_t revision, std::uint64_t last, const Calibration&,
                      const std::function<Looks()>& looks);

}  // namespace ouro::rt
