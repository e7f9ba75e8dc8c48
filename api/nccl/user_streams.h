// The user's streams, as one communicator on a GPU sees them. Used by communicators and by what runs their
// operations.
#pragma once
#include <cstdint>
#include <deque>

#include "api/nccl/exports.h"
#include "ouro/ouro.hpp"

namespace ouro::nccl {

/// The streams that calls on one communicator have named, and the end of what was called on it last, so that
/// its operations keep their order over several streams; apart for what runs and for what a capture records.
/// Not thread-safe, as the communicator is not.
class UserStreams {
 public:
  /// The stream of ouro's that stands for the user's. Errors: invalid, device.
  Result<Stream> find(cudaStream_t, int device);
  /// What is enqueued on `s` from now on starts after what was called on the communicator before. (Between
  /// work that is captured and work that runs there is no such order: it is given where the graph is
  /// launched.)
  Status follow(const Stream& s);
  /// `last` is what was called last, on `s`.
  Status ran(const Stream& s, const Work& last);
  /// The same for all that is enqueued on `s`.
  Status ran(const Stream& s);
  /// Until all that was called and not captured has ended.
  void wait() const {
    if (run_.on.valid()) (void)run_.end.synchronize();
  }

 private:
  static constexpr std::size_t kKept = 16;
  std::deque<Stream> known_;  // the one that was used last is in front
  struct Last {
    Stream on;
    Event end;
  };
  Last& last(std::uint64_t capture);
  Last run_, captured_;
  std::uint64_t capture_ = 0;  // what captured_ is in
};

/// Which capture a stream is in; 0: none. Errors: invalid (a capture that is broken).
Result<std::uint64_t> capture_of(const Stream&);

}  // namespace ouro::nccl
