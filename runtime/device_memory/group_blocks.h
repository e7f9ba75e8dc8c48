// The blocks that this rank provides to its groups. Used by DeviceMemory.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "runtime/core/status.h"
#include "runtime/device_memory/gpu_exports.h"
#include "runtime/device_memory/owned_memory.h"

namespace ouro::rt {

/// Exported blocks by key. Whoever needs a block first, this rank or a peer, makes it. Thread-safe.
class GroupBlocks {
 public:
  GroupBlocks(GpuExports& exports, int device) : exports_(exports), device_(device) {}
  struct Exported {
    std::shared_ptr<GpuBlock> block;
    std::uint64_t export_id = 0;
  };
  /// Returns the block, which is made with this size if there is none.
  Result<Exported> find_or_create(std::uint64_t key, std::size_t bytes);
  /// Ends the block's export. Importers keep the memory as long as they map it.
  void drop(std::uint64_t key);

 private:
  GpuExports& exports_;
  const int device_;
  std::mutex mutex_;
  std::condition_variable created_;
  std::set<std::uint64_t> in_creation_;
  std::map<std::uint64_t, Exported> blocks_;
};

}  // namespace ouro::rt
