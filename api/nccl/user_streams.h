// The user's streams, as seen by one communicator on a GPU. Used by communicators and by the code that runs
// their operations.
#pragma once
#include <cstdint>
#include <deque>

#include "api/nccl/exports.h"
#include "ouro/ouro.hpp"

namespace ouro::nccl {

/// The streams that calls on one communicator have named, and the end of the latest call, so that its
/// operations keep their order across several streams. Running and captured work are tracked separately. Not
/// thread-safe, like the communicator itself.
class UserStreams {
 public:
  /// The ouro stream that wraps the user's stream. Errors: invalid, device.
  Result<Stream> find(cudaStream_t, int device);
  /// Makes later work on `s` start after all earlier calls on the communicator. (Between captured and running
  /// work there is no such order: the launch of the graph determines it.)
  Status follow(const Stream& s);
  /// Records `last`, on `s`, as the latest call.
  Status ran(const Stream& s, const Work& last);
  /// The same for everything enqueued on `s` so far.
  Status ran(const Stream& s);
  /// Waits until all calls that were not captured have ended.
  void wait() const {
    if (run_.on.valid()) (void)run_.end.synchronize();
  }

 private:
  static constexpr std::size_t kKept = 16;
  std::deque<Stream> known_;  // most recently used first
  struct Last {
    Stream on;
    Event end;
  };
  Last& last(std::uint64_t capture);
  Last run_, captured_;
  std::uint64_t capture_ = 0;  // the capture that captured_ belongs to
};

/// The capture that a stream is in; 0: none. Errors: invalid (a broken capture).
Result<std::uint64_t> capture_of(const Stream&);

}  // namespace ouro::nccl
