// The blocks that this rank provides to its groups. See group_blocks.h.
#include "runtime/device_memory/group_blocks.h"

#include <exception>

#include "runtime/core/no_memory.h"

namespace ouro::rt {

Result<GroupBlocks::Exported> GroupBlocks::find_or_create(std::uint64_t key, std::size_t bytes) {
  std::unique_lock lock(mutex_);
  created_.wait(lock, [&] { return !in_creation_.contains(key); });
  if (const auto known = blocks_.find(key); known != blocks_.end()) return known->second;
  in_creation_.insert(key);
  // The watch thread needs the lock to serve other ranks, and a driver may wait for its device.
  lock.unlock();
  auto made = Result<std::shared_ptr<GpuBlock>>(no_memory());
  try {
    made = GpuBlock::create(device_, bytes);
  } catch (const std::exception&) {  // the key must leave in_creation_, for which others wait
  }
  lock.lock();
  in_creation_.erase(key);
  created_.notify_all();
  if (!made.ok()) return made.status();
  return blocks_[key] = {*made, exports_.add(*made)};
}

void GroupBlocks::drop(std::uint64_t key) {
  decltype(blocks_)::node_type dropped;
  {
    std::unique_lock lock(mutex_);
    created_.wait(lock, [&] { return !in_creation_.contains(key); });
    dropped = blocks_.extract(key);
  }
  if (dropped) exports_.withdraw(dropped.mapped().export_id);
}

}  // namespace ouro::rt
