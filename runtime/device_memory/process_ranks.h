// The ranks of this process that have GPUs, which reach each other's device memory by address. Used by
// Context, DeviceMemory and MulticastObjects.
#pragma once
#include <functional>

#include "runtime/core/status.h"
#include "transport/wire/keys.h"

namespace ouro::rt {

class DeviceMemory;

/// Exists from before a rank joins until it has been published, or has failed to join. Meanwhile ranks of
/// this process that joined earlier wait for it, instead of concluding that it has left.
class JoiningRank {
 public:
  /// `device`: the rank's GPU, or -1: then this does nothing.
  JoiningRank(const wire::Nonce& job, int rank, int device);
  ~JoiningRank();
  JoiningRank(const JoiningRank&) = delete;
  JoiningRank& operator=(const JoiningRank&) = delete;

 private:
  const wire::Nonce job_;
  const int rank_, device_;
};

/// Lets other ranks of this process find the memory of a rank until `withdraw_rank`.
void publish_rank(const wire::Nonce& job, int rank, DeviceMemory&);
void withdraw_rank(const wire::Nonce& job, int rank);
/// Calls f with the memory of a rank, which is not withdrawn meanwhile. Errors: those of f;
/// never-joined, peer-dead.
Status with_rank_memory(const wire::Nonce& job, int rank, const std::function<Status(DeviceMemory&)>& f);

}  // namespace ouro::rt
