// Allocation of a block, and views of its parts. See block.h.
#include "api/train/buckets/block.h"

#include <algorithm>

namespace ouro::train {

Result<Block> Block::make(DType dtype, Device device, std::size_t count) {
  OURO_ASSIGN(auto memory, ZeroedBytes::make(device, std::max<std::size_t>(count, 1) * size_of(dtype)));
  Block block;
  block.memory_ = std::move(memory);
  block.whole_ = {block.memory_.data(), count, dtype, device};
  return block;
}

View Block::view(std::size_t offset, std::size_t count) const {
  return {static_cast<std::byte*>(whole_.data) + offset * size_of(whole_.dtype), count, whole_.dtype,
          whole_.device};
}

}  // namespace ouro::train
