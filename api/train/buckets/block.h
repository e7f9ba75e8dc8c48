// Memory of one type and device for a bucket's elements. Used by the parts of GossipTrainer
// and ShardedTrainer.
#pragma once
#include <cstddef>

#include "api/train/optim/update.h"

namespace ouro::train {

/// Zeroed memory for `count` elements, on the host or a device.
class Block {
 public:
  static Result<Block> make(DType, Device, std::size_t count);
  View view(std::size_t offset, std::size_t count) const;
  View view() const { return whole_; }
  explicit operator bool() const { return whole_.data != nullptr; }

 private:
  View whole_;
  ZeroedBytes memory_;
};

}  // namespace ouro::train
