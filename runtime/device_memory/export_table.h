// The table of this rank's exports. Used by GpuExports.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/device/gpu.h"
#include "runtime/device_memory/export_handles.h"
#include "runtime/device_memory/owned_memory.h"

namespace ouro::rt {

/// One export: memory that other processes may map. Either `block`, `pieces` or `ipc_handle` backs it, or
/// nothing does, and it serves this process only.
struct GpuExport {
  std::byte* base = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<GpuBlock> block;                     ///< set for blocks
  std::vector<std::shared_ptr<RetainedPiece>> pieces;  ///< set for registered VMM memory
  std::uint64_t allocation = 0;                        ///< PointerInfo::allocation of the program's memory
  gpu::IpcHandle ipc_handle = {};
  bool has_ipc_handle = false;
  int users = 0;            ///< number of registered ranges, and of unions of such, that use the export
  bool handed_out = false;  ///< its handles have been sent, so another process may have mapped it
};

/// The exports of this rank by number. Not thread-safe: the owner holds a lock. Only `endings` may be
/// called without it.
class ExportTable {
 public:
  using Removed = std::map<std::uint64_t, GpuExport>::node_type;

  /// `announce_end` is called for each export that has ended and was handed out, so that importers
  /// release it.
  explicit ExportTable(std::function<void(std::uint64_t id)> announce_end)
      : announce_end_(std::move(announce_end)) {}

  /// Adds an export and returns its id, which is never used again.
  std::uint64_t add(GpuExport);
  bool contains(std::uint64_t id) const { return exports_.contains(id); }
  /// Returns nullptr if the export has ended.
  GpuExport* find(std::uint64_t id);
  /// Requires that the export has not ended.
  GpuExport& at(std::uint64_t id) { return exports_.at(id); }
  /// Returns a reference to [p, p + bytes), if a block holds it; id 0 otherwise.
  GpuRef in_block(const std::byte* p, std::size_t bytes) const;
  /// Returns the export of registered ranges for this allocation; 0 if there is none.
  std::uint64_t registered_allocation(const std::byte* base, std::uint64_t allocation) const;
  /// Removes an export, announces its end, and returns it, if there was one. The caller destroys the result
  /// after it has released its lock, since that may free memory.
  Removed end(std::uint64_t id);
  /// The number of exports that have ended so far.
  std::uint64_t endings() const { return endings_.load(std::memory_order_acquire); }

 private:
  const std::function<void(std::uint64_t)> announce_end_;
  std::map<std::uint64_t, GpuExport> exports_;
  std::uint64_t next_id_ = 1;
  std::atomic<std::uint64_t> endings_{0};
};

}  // namespace ouro::rt
