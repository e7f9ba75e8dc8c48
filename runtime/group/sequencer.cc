// The order of a group's operations. See sequencer.h.
#include "runtime/group/sequencer.h"

namespace ouro::rt {

void Sequencer::await(std::uint64_t ticket) {
  const LentCore lent;
  wait_patiently(turn_, ticket);
}

}  // namespace ouro::rt
