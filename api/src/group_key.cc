// The key of a group. See group_key.h.
#include "api/src/group_key.h"

#include "runtime/group/group.h"

namespace ouro {

std::uint64_t key_of(const Group& g) { return g.valid() ? g.impl()->spec().key : 0; }

}  // namespace ouro
