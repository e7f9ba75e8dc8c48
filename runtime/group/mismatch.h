// Finds a mismatch of an operation between ranks and describes it. Used by FailureDetector.
#pragma once
#include <cstdint>
#include <optional>

#include "runtime/group/member_records.h"

namespace ouro::rt {

/// Compares what the members have entered as operation `seq`; this rank has entered `mine`. The text has all
/// sides, and the failure names a rank of the smallest. nullopt: the members that have entered it agree. On a
/// mismatch it waits 50 ms for others that are about to enter.
std::optional<Failure> find_mismatch(MemberRecords&, std::uint64_t seq, const Signature& mine);

}  // namespace ouro::rt
