// How the members of a group take a record into use in mid-run, all with the same operation and without
// waiting for each other. Used by group.
#pragma once
#include <cstdint>
#include <optional>

#include "runtime/health/control_page.h"

namespace ouro::rt {

// A *meeting* is an operation whose result depends, on each member, on the input of every member: whoever has
// ended it knows that all have begun it, whatever its algorithm. The first member of the group proposes
// revision k + 1 before it begins meeting n, as one to be taken with n. Each member, when it has ended a
// meeting n and has revision k, looks once at the word of revision k + 1:
//   - it was proposed with n or earlier: it stood there before the first member began n, so every member
//     finds it, and all take it between n and n + 1;
//   - else it is not there or says a later meeting, and no member takes it: one that reads it late finds the
//     later number.
// So what a member decides depends on the operations of the group alone, not on when it looks. The word of
// k + 1 stays until k + 3 is proposed in its place, which the first member does after a meeting later than
// the one with which k + 2 was taken: all members have begun that, and are past their look for k + 1.
//
// All that look have to look at the same meetings.

/// The first member, before it begins meeting `seq`. `revision`: from 1; the one before was taken by this
/// rank.
void propose(RevisionRegister&, std::uint64_t revision, std::uint64_t seq, const Calibration&);
/// A member that has ended meeting `seq` of group `key` and has the revision before this one. nullopt: it is
/// not to be taken now; or the first member has left the group, of which no meeting will end any more.
std::optional<Calibration> proposed(const RevisionRegister&, std::uint64_t key, std::uint64_t revision,
                                    std::uint64_t seq);

}  // namespace ouro::rt
