// The key of a group, for libraries on top of ouro that derive names from it. Used by libnccl.
#pragma once
#include <cstdint>

#include "ouro/groups.hpp"

namespace ouro {

/// Identifies this group among all groups of its job: the same number on every member. 0 for an empty handle.
std::uint64_t key_of(const Group&);

}  // namespace ouro
