// Ends the group of a communicator that ends. Used by communicator.cc.
#pragma once
#include <memory>

#include "api/nccl/communicator.h"

namespace ouro::nccl {

/// Ends a group of a communicator without waiting for its peers. If messages were sent, or GPU memory must be
/// returned, the group is closed `aside`: in a background thread, for which the program waits two seconds at
/// most when it exits.
void leave(std::shared_ptr<Family>, Group, UserStreams, bool aside);

}  // namespace ouro::nccl
