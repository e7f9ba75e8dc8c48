// Registered memory among the exports. See gpu_exports.h.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/core/log.h"
#include "runtime/device_memory/gpu_exports.h"

namespace ouro::rt {

Result<GpuExport> GpuExports::make_export(const std::byte* p, std::size_t bytes, const gpu::PointerInfo& info,
                                          Reach reach) {
  GpuExport e{.base = const_cast<std::byte*>(p), .bytes = bytes, .allocation = info.allocation};
  if (info.legacy_ipc) {
    if (!reach.processes) return e;
    OURO_ASSIGN(e.ipc_handle, gpu::gpu().ipc_export(info.base));
    e.has_ipc_handle = true;
    e.base = static_cast<std::byte*>(info.base);
    e.bytes = info.bytes;
    return e;
  }
  for (const std::byte* at = p; at < p + bytes;) {
    if (e.pieces.size() == ExportHandles::kMaxPieces)
      return Status(Reason::resource, fmt::format("{} bytes at {} are more than {} pieces of cuMemMap", bytes,
                                                  fmt::ptr(p), ExportHandles::kMaxPieces));
    OURO_ASSIGN(const auto here, gpu::gpu().pointer(at));
    if (here.kind != gpu::MemoryKind::device || here.device != info.device || !here.base)
      return invalid(fmt::format("of {} bytes at {}, those from byte {} on are not memory of GPU {}", bytes,
                                 fmt::ptr(p), at - p, info.device));
    gpu::Region piece{.device = here.device, .data = here.base, .bytes = here.bytes};
    if (reach.processes) {
      OURO_ASSIGN(auto retained, RetainedPiece::retain(at));
      piece = retained->region();
      e.pieces.push_back(std::move(retained));
    }
    if (reach.devices) OURO_TRY(gpu::gpu().open_to_peers(piece));
    at = static_cast<std::byte*>(piece.data) + piece.bytes;
  }
  if (e.pieces.empty()) return e;
  e.base = e.pieces.front()->begin();
  e.bytes = static_cast<std::size_t>(e.pieces.back()->end() - e.base);
  return e;
}

Result<std::uint64_t> GpuExports::register_range(const void* data, std::size_t bytes, int device,
                                                 Reach reach) {
  const auto* p = static_cast<const std::byte*>(data);
  OURO_ASSIGN(const auto info, gpu::gpu().pointer(p));
  if (info.kind == gpu::MemoryKind::managed)
    return unsupported(fmt::format(
        "the memory at {} is managed (cudaMallocManaged), which no other process can map", fmt::ptr(p)));
  if (info.kind != gpu::MemoryKind::device || !info.base)
    return invalid(fmt::format("{} is not memory of a GPU", fmt::ptr(p)));
  if (info.device != device)
    return invalid(fmt::format("{} is memory of GPU {}, not of GPU {}", fmt::ptr(p), info.device, device));
  const auto* base = static_cast<const std::byte*>(info.base);
  const auto* end = base + info.bytes;
  if (info.legacy_ipc && p + bytes > end)
    return invalid(fmt::format("{} bytes at {} reach beyond their allocation, which has {} more", bytes,
                               fmt::ptr(p), end - p));
  // The lock is not held: a driver may wait for all work when it opens memory to other devices, and that work
  // may wait for a thread that searches for a buffer or takes handles.
  OURO_ASSIGN(GpuExport made, make_export(p, bytes, info, reach));
  std::lock_guard lock(mutex_);
  std::uint64_t id = made.has_ipc_handle ? table_.registered_allocation(base, info.allocation) : 0;
  if (id == 0) id = table_.add(std::move(made));
  ++table_.at(id).users;
  return ranges_.add_range(p, p + bytes, id, info.allocation);
}

GpuRef GpuExports::in_range(const std::byte* p, std::size_t bytes) {
  std::uint64_t id = ranges_.export_around(p, bytes);
  if (id == 0) id = unite_around(p, bytes);
  const auto address = reinterpret_cast<std::uint64_t>(p);
  if (id == 0) return {0, 0, address};
  return {id, static_cast<std::uint64_t>(p - table_.at(id).base), address};
}

/// A union has the whole run, in both directions. So one export serves every buffer that lies across ranges,
/// and a segment that grows by one registration needs one more export.
std::uint64_t GpuExports::unite_around(const std::byte* p, std::size_t bytes) {
  const auto run = ranges_.run_around(p, bytes);
  if (!run) return 0;
  const std::uint64_t id = export_of_run(*run);
  if (id == 0) {
    ranges_.forbid_union(*run);
    return 0;
  }
  ranges_.add_union(*run, id);
  ++table_.at(id).users;
  return id;
}

/// Returns 0 if other processes cannot map the run as one export.
std::uint64_t GpuExports::export_of_run(RegisteredRanges::Run run) {
  GpuExport joined{.base = const_cast<std::byte*>(run.begin),
                   .bytes = static_cast<std::size_t>(run.end - run.begin)};
  auto& pieces = joined.pieces;
  bool by_handle = false, one_export = true;
  std::uint64_t last = 0;
  ranges_.for_each_range(run, [&](const RegisteredRanges::Range& range) {
    const GpuExport& e = table_.at(range.export_id);
    one_export &= last == 0 || last == range.export_id;
    last = range.export_id;
    by_handle |= e.has_ipc_handle;
    pieces.insert(pieces.end(), e.pieces.begin(), e.pieces.end());
  });
  if (one_export) return last;
  if (!pieces.empty()) {
    const auto key = [](const auto& piece) { return piece->begin(); };
    std::ranges::sort(pieces, {}, key);
    const auto repeated = std::ranges::unique(pieces, {}, key);
    pieces.erase(repeated.begin(), repeated.end());
    for (std::size_t i = 1; i < pieces.size(); ++i)
      if (pieces[i - 1]->end() != pieces[i]->begin()) return 0;
    if (pieces.size() > ExportHandles::kMaxPieces) return 0;
    joined.base = pieces.front()->begin();
    joined.bytes = static_cast<std::size_t>(pieces.back()->end() - joined.base);
    if (run.begin < joined.base || run.end > joined.base + joined.bytes) return 0;
  } else if (by_handle) {
    return 0;  // importers map two allocations of cudaMalloc at unrelated addresses
  }
  return table_.add(std::move(joined));
}

void GpuExports::check_next_registration() {
  const std::uint64_t number = ranges_.registration_after(checked_registration_);
  if (number == 0) return;
  checked_registration_ = number;
  const RegisteredRanges::Range* const range = ranges_.range_of(number);
  if (!range || is_in_allocation(range->begin, range->allocation)) return;
  // Pieces of memory of cuMemMap are retained, so other ranks that have mapped them access memory that still
  // exists. This rank's own operations fault where the memory was unmapped.
  if (table_.at(range->export_id).pieces.empty())
    OURO_WARN(
        "the memory registered at {} ({} bytes) was freed before its registration ended: ranks no longer "
        "reach it, and what they did there since is undefined",
        fmt::ptr(range->begin), range->end - range->begin);
  else
    OURO_INFO(REG, "the memory registered at {} ({} bytes) was unmapped before its registration ended",
              fmt::ptr(range->begin), range->end - range->begin);
  reserve_ending();
  remove_range(number);
}

void GpuExports::reserve_ending() { ending_.reserve(ending_.size() + 2 * ranges_.size()); }

/// Adds up to two exports to ending_ for each range and union that it removes.
void GpuExports::remove_range(std::uint64_t registration) {
  ranges_.remove_range(registration, [&](std::uint64_t id) {
    GpuExport& e = table_.at(id);
    if (--e.users > 0) return;
    // The leader's path may have exported the allocation before it was registered.
    if (const std::uint64_t other = e.has_ipc_handle ? first_use_.forget(e.base) : 0; other != 0)
      ending_.push_back(other);
    ending_.push_back(id);
  });
}

Result<std::vector<std::uint64_t>> GpuExports::deregister(std::uint64_t registration) {
  std::vector<std::uint64_t> to_be_closed;
  {
    std::lock_guard lock(mutex_);
    if (!ranges_.has_registration(registration)) return invalid("this registration has ended already");
    // Everything that throws precedes the first change, so that the caller can try again.
    reserve_ending();
    to_be_closed.reserve(2 * ranges_.size());
    const std::size_t before = ending_.size();
    checked_registration_ = registration - 1;
    check_next_registration();  // warns if the program has freed the memory already
    remove_range(registration);
    ranges_.end_registration(registration);
    for (std::size_t i = before; i < ending_.size(); ++i)
      if (table_.at(ending_[i]).has_ipc_handle) to_be_closed.push_back(ending_[i]);
  }
  end_when_idle();
  return to_be_closed;
}

}  // namespace ouro::rt
