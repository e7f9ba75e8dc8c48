// How the group of a communicator ends when that ends. Used by communicator.cc.
#pragma once
#include <memory>

#include "api/nccl/communicator.h"

namespace ouro::nccl {

/// Ends a group of a communicator without waiting for its peers. Where messages were sent, or memory of GPUs
/// has to be given back, it is closed `aside`: beside the program, which waits for that, two seconds at most,
/// when it exits.
void leave(std::shared_ptr<Family>, Group, UserStreams, bool aside);

}  // namespace ouro::nccl
