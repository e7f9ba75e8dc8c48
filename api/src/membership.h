// What libraries on top of ouro ask of groups beyond the public interface: who has left, and who is needed by
// those that stay. Used by libnccl.
#pragma once
#include <cstdint>

#include "ouro/groups.hpp"

namespace ouro {

/// Names this group among all groups of its job: the same number on every member. 0 for an empty handle.
std::uint64_t key_of(const Group&);

/// Whether the other members on this host get the group's shared memory from this rank, some of it only when
/// they first need it: a handle of the group must live for as long as any of them may communicate.
bool keeps_memory(const Group&);

/// Whether all other members on this host have left the group, or have died. Never blocks.
bool others_left(const Group&);

/// Tells all ranks of the job that this one has left in good order, while what its context serves to them
/// goes on until the context ends. No group of the context may be in use any more.
void say_left(const Context&);

}  // namespace ouro
