// Disagreement about an operation, put into words. Used by FailureDetector.
#pragma once
#include <cstdint>
#include <optional>

#include "runtime/group/member_records.h"

namespace ouro::rt {

/// Compares what all members entered as operation `seq`, of which this rank entered `mine`; both sides are in
/// the text, and the minority is named. nullopt: as far as they have entered it they agree. Where they do
/// not, it waits 50 ms for others that are about to enter.
std::optional<Failure> find_mismatch(MemberRecords&, std::uint64_t seq, const Signature& mine);

}  // namespace ouro::rt
