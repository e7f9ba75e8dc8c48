// GroupSpec: the parameters from which a group is made. Used by Group and the API.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/status.h"
#include "runtime/core/types.h"
#include "transport/wire/frames.h"

namespace ouro::rt {

struct GroupSpec {
  std::vector<int> ranks;  ///< world rank of each member, in the group's order
  std::string name;
  std::uint64_t generation = 0;
  std::uint64_t key = 0;  ///< names this group on control pages; equal on all members, never 0
  std::chrono::milliseconds deadline{0};
  Numerics numerics = Numerics::fast;
  bool of_another = false;  ///< its operations are parts of another group's, to which OURO_FAULT applies
};

/// The index of rank `self` of a job of `world` ranks among the members. Errors: invalid (no members, ranks
/// that are not in the job or named twice, `self` is not among them).
Result<int> index_in(const GroupSpec&, int self, int world);

/// The key of a group over `ranks` called `name`.
std::uint64_t group_key(const wire::Nonce& job, const std::vector<int>& ranks, const std::string& name,
                        std::uint64_t generation, std::uint64_t instance);

}  // namespace ouro::rt
