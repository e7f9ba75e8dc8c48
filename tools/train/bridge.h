// Between a trainer's parameters and the network, which computes on the host: nothing where they are on the
// host, copies where they are on a GPU. Used by sharded.cc.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "tools/train/task.h"

namespace ouro::tools {

class Bridge {
 public:
  /// Parameters with their start values, on the rank's GPU or where the task has them; they outlive this.
  /// Errors: unsupported (no GPU), resource, those of the device.
  static Result<std::unique_ptr<Bridge>> make(Context&, Task&, bool device);
  ~Bridge();
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;

  std::vector<train::Param> params() const { return there_; }
  /// The parameters `at`, wherever a trainer has moved them, as the network may read them and write
  /// gradients.
  Result<std::span<const train::Param>> down(std::span<const train::Param> at);
  /// Gradient i goes back to `at`: it is there when what is on `stream` now has run.
  Status up(std::span<const train::Param> at, std::size_t i);
  const Stream& stream() const { return stream_; }  ///< none on the host

 private:
  Bridge() = default;
  Status prepare(Context&);
  Status copy(void* to, const void* from, std::size_t bytes);

  std::vector<train::Param> here_, there_;  // for the network, for the trainer; the same on the host
  Stream stream_;
  Memory memory_;                // of there_
  std::byte* pinned_ = nullptr;  // of here_
};

}  // namespace ouro::tools
