// Exports on first use, and the detection of frees. See first_use_exports.h.
#include "runtime/device_memory/first_use_exports.h"

namespace ouro::rt {

bool is_in_allocation(const void* p, std::uint64_t allocation) {
  const auto info = gpu::gpu().pointer(p);
  return info.ok() && info->kind == gpu::MemoryKind::device && info->allocation == allocation;
}

void FirstUseExports::end(ByBase::iterator it) {
  const std::uint64_t id = it->second;
  by_base_.erase(it);
  table_.end(id);
}

std::uint64_t FirstUseExports::find_or_export(const gpu::PointerInfo& info) {
  const auto base = reinterpret_cast<std::uint64_t>(info.base);
  if (const auto known = by_base_.find(base); known != by_base_.end()) {
    if (table_.at(known->second).allocation == info.allocation) return known->second;
    end(known);  // the program has freed it, and the driver has reused the address
  }
  const auto handle = gpu::gpu().ipc_export(info.base);
  if (!handle.ok()) return 0;
  const std::uint64_t id = table_.add({.base = static_cast<std::byte*>(info.base),
                                       .bytes = info.bytes,
                                       .allocation = info.allocation,
                                       .ipc_handle = *handle,
                                       .has_ipc_handle = true});
  by_base_[base] = id;
  return id;
}

void FirstUseExports::check_next() {
  if (by_base_.empty()) return;
  auto next = by_base_.upper_bound(checked_base_);
  if (next == by_base_.end()) next = by_base_.begin();
  checked_base_ = next->first;
  const std::uint64_t allocation = table_.at(next->second).allocation;
  if (!is_in_allocation(reinterpret_cast<const void*>(next->first), allocation)) end(next);
}

std::uint64_t FirstUseExports::forget(const std::byte* base) {
  const auto known = by_base_.find(reinterpret_cast<std::uint64_t>(base));
  if (known == by_base_.end()) return 0;
  const std::uint64_t id = known->second;
  by_base_.erase(known);
  return id;
}

}  // namespace ouro::rt
