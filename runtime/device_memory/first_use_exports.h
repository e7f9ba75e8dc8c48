// Exports of the program's memory that are made when an operation first uses it. Used by GpuExports.
#pragma once
#include <cstdint>
#include <map>

#include "kernels/device/gpu.h"
#include "runtime/device_memory/export_table.h"

namespace ouro::rt {

/// Exports, by legacy handle, of allocations that the program made and did not register. The program does not
/// notify this library when it frees memory, so a freed allocation is detected by its number: the driver
/// gives a new allocation at the same address another one. Not thread-safe.
class FirstUseExports {
 public:
  explicit FirstUseExports(ExportTable& table) : table_(table) {}
  /// Returns the export of the allocation, which it makes on first use; 0 if the driver gives no handle.
  std::uint64_t find_or_export(const gpu::PointerInfo&);
  /// Checks the next allocation, in a cycle over all, and ends its export if the program has freed it.
  void check_next();
  /// Forgets the allocation at `base` and returns its export, which the caller ends; 0 if there is none.
  std::uint64_t forget(const std::byte* base);
  bool empty() const { return by_base_.empty(); }

 private:
  using ByBase = std::map<std::uint64_t, std::uint64_t>;
  void end(ByBase::iterator);

  ExportTable& table_;
  ByBase by_base_;  // address of the allocation -> export
  std::uint64_t checked_base_ = 0;
};

/// Returns whether `p` is in the allocation with this number, which it no longer is after a free.
bool is_in_allocation(const void* p, std::uint64_t allocation);

}  // namespace ouro::rt
