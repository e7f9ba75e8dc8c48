// What a communicator leaves behind when it ends: messages that others have not taken, and shared memory that
// they may still ask for. Used by communicator.cc.
#pragma once
#include <memory>

#include "api/nccl/communicator.h"

namespace ouro::nccl {

/// Ends a group of a communicator without waiting for its peers. Where messages were sent, or memory of GPUs
/// has to be given back, it is closed `aside`: beside the program, which waits for that, two seconds at most,
/// when it exits. Where the others get their shared memory from this rank, its group and context stay,
/// closed, until the last of them has left, so that they can go on communicating with each other.
void leave(std::shared_ptr<Family>, Group, UserStreams, bool aside);

}  // namespace ouro::nccl
