// The table of this rank's exports. See export_table.h.
#include "runtime/device_memory/export_table.h"

namespace ouro::rt {

std::uint64_t ExportTable::add(GpuExport e) {
  exports_[next_id_] = std::move(e);
  return next_id_++;
}

GpuExport* ExportTable::find(std::uint64_t id) {
  const auto it = exports_.find(id);
  return it == exports_.end() ? nullptr : &it->second;
}

GpuRef ExportTable::in_block(const std::byte* p, std::size_t bytes) const {
  const auto address = reinterpret_cast<std::uint64_t>(p);
  for (const auto& [id, e] : exports_)
    if (e.block && p >= e.base && p + bytes <= e.base + e.bytes)
      return {id, static_cast<std::uint64_t>(p - e.base), address};
  return {0, 0, address};
}

std::uint64_t ExportTable::registered_allocation(const std::byte* base, std::uint64_t allocation) const {
  for (const auto& [id, e] : exports_)
    if (e.users > 0 && e.base == base && e.allocation == allocation) return id;
  return 0;
}

/// An export that was never handed out is mapped nowhere. An announcement of its end would only displace
/// older ones that importers still need.
ExportTable::Removed ExportTable::end(std::uint64_t id) {
  auto removed = exports_.extract(id);
  if (!removed) return removed;
  endings_.fetch_add(1, std::memory_order_acq_rel);
  if (removed.mapped().handed_out) announce_end_(id);
  return removed;
}

}  // namespace ouro::rt
