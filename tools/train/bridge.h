// Connects a trainer's parameters to the network, which computes on the host: does nothing if they are on the
// host, and copies if they are on a GPU. Used by sharded.cc.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "tools/train/task.h"

namespace ouro::tools {

class Bridge {
 public:
  /// Places the parameters, with their initial values, on the rank's GPU (`device`), or leaves them in the
  /// task's memory, which must outlive the bridge. Errors: unsupported (no GPU), resource, those of
  /// the device.
  static Result<std::unique_ptr<Bridge>> make(Context&, Task&, bool device);
  ~Bridge();
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;

  std::vector<train::Param> params() const { return there_; }
  /// Returns the parameters `at`, wherever a trainer has moved them, in memory where the network can read
  /// values and write gradients. On a GPU, copies the values to the host and waits.
  Result<std::span<const train::Param>> down(std::span<const train::Param> at);
  /// Copies gradient i back to `at`; enqueued on `stream`, so it is complete when the work that is now in the
  /// stream has run.
  Status up(std::span<const train::Param> at, std::size_t i);
  const Stream& stream() const { return stream_; }  ///< invalid on the host

 private:
  Bridge() = default;
  Status prepare(Context&);
  Status copy(void* to, const void* from, std::size_t bytes);

  std::vector<train::Param> here_, there_;  // seen by the network, seen by the trainer; equal on the host
  Stream stream_;
  Memory memory_;                // holds there_
  std::byte* pinned_ = nullptr;  // holds here_
};

}  // namespace ouro::tools
