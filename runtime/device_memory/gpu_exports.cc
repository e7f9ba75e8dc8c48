// Blocks, exports on first use, handles, and the ends of exports. See gpu_exports.h; registered memory
// is in registration.cc.
#include "runtime/device_memory/gpu_exports.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "runtime/device_memory/deferred_free.h"

namespace ouro::rt {
namespace {

/// Returns whether [at, end) is memory of the device. A buffer in memory of cuMemMap may lie across mappings.
bool is_mapped_up_to(const std::byte* at, const std::byte* end, int device) {
  while (at < end) {
    const auto next = gpu::gpu().pointer(at);
    if (!next.ok() || next->kind != gpu::MemoryKind::device || next->device != device || next->legacy_ipc ||
        !next->base)
      return false;
    at = static_cast<const std::byte*>(next->base) + next->bytes;
  }
  return true;
}

Status check_buffer(const std::byte* p, std::size_t bytes, int device, const gpu::PointerInfo& info) {
  if (info.kind != gpu::MemoryKind::device && info.kind != gpu::MemoryKind::managed)
    return invalid(fmt::format("{} is not memory of a GPU, though its view says so", fmt::ptr(p)));
  if (info.device != device)
    return invalid(fmt::format("a buffer on GPU {}, in a view that says GPU {}", info.device, device));
  const auto* end = static_cast<const std::byte*>(info.base) + info.bytes;
  if (info.base && p + bytes > end && (info.legacy_ipc || !is_mapped_up_to(end, p + bytes, device)))
    return invalid(
        fmt::format("a buffer of {} bytes reaches beyond its allocation of {}", bytes, info.bytes));
  return {};
}

}  // namespace

GpuExports::GpuExports(std::function<void(std::uint64_t id)> announce_end) : table_(std::move(announce_end)) {
  back_reference_->exports = this;
}

GpuExports::~GpuExports() {
  std::lock_guard lock(back_reference_->mutex);
  back_reference_->exports = nullptr;
}

std::uint64_t GpuExports::add(std::shared_ptr<GpuBlock> block) {
  GpuExport e{.base = block->data(), .bytes = block->bytes()};
  if (!block->shareable()) {
    auto handle = gpu::gpu().ipc_export(block->data());
    if (!handle.ok()) return 0;
    e.ipc_handle = *handle;
    e.has_ipc_handle = true;
  }
  e.block = std::move(block);
  std::lock_guard lock(mutex_);
  return table_.add(std::move(e));
}

void GpuExports::withdraw(std::uint64_t id) {
  ExportTable::Removed removed;  // destroyed after the lock is released
  std::lock_guard lock(mutex_);
  removed = table_.end(id);
}

Result<GpuRef> GpuExports::find_lasting(const void* p, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  const auto* at = static_cast<const std::byte*>(p);
  const GpuRef in_block = table_.in_block(at, bytes);
  return in_block.id != 0 || ranges_.empty() ? in_block : in_range(at, bytes);
}

Result<GpuRef> GpuExports::find(const void* p, std::size_t bytes, int device) {
  const auto* at = static_cast<const std::byte*>(p);
  const auto address = reinterpret_cast<std::uint64_t>(p);
  check_for_freed();
  std::lock_guard lock(mutex_);
  if (const GpuRef in_block = table_.in_block(at, bytes); in_block.id != 0) return in_block;
  if (!ranges_.empty())
    if (const GpuRef registered = in_range(at, bytes); registered.id != 0) return registered;
  OURO_ASSIGN(const gpu::PointerInfo info, gpu::gpu().pointer(p));
  OURO_TRY(check_buffer(at, bytes, device, info));
  if (!info.legacy_ipc || !info.base) return GpuRef{0, 0, address};
  const std::uint64_t id = first_use_.find_or_export(info);
  return GpuRef{id, id != 0 ? address - reinterpret_cast<std::uint64_t>(info.base) : 0, address};
}

Result<ExportHandles> GpuExports::handles_of(std::uint64_t id, std::size_t first, std::size_t most) {
  ExportHandles handles;
  std::shared_ptr<GpuBlock> block;
  std::vector<std::shared_ptr<RetainedPiece>> pieces;
  {
    std::lock_guard lock(mutex_);
    GpuExport* const e = table_.find(id);
    if (!e) return Status(Reason::refused, "this memory was freed");
    handles.bytes = e->bytes;
    if (e->block && e->block->shareable()) {
      block = e->block;
    } else if (!e->pieces.empty()) {
      if (first >= e->pieces.size()) return Status(Reason::refused, "this memory has fewer pieces");
      const auto from = e->pieces.begin() + static_cast<std::ptrdiff_t>(first);
      pieces.assign(from, from + static_cast<std::ptrdiff_t>(std::min(most, e->pieces.size() - first)));
    } else if (e->has_ipc_handle) {
      handles.ipc_handle = e->ipc_handle;
    } else {
      return Status(Reason::refused, "this memory is for its own process only");
    }
    e->handed_out = true;
  }
  if (block) {
    OURO_ASSIGN(handles.fd, gpu::gpu().export_fd(block->region()));
    handles.bytes = block->region().bytes;
  }
  for (const auto& piece : pieces) {
    OURO_ASSIGN(Fd fd, gpu::gpu().export_piece(piece->region()));
    handles.pieces.push_back({piece->region().bytes, std::move(fd)});
  }
  return handles;
}

void GpuExports::check_for_freed() {
  constexpr std::uint64_t kEvery =
      4;  // calls: a check costs as much as a call that finds the program's memory
  {
    std::lock_guard lock(mutex_);
    if (first_use_.empty() && !ranges_.has_registrations()) return;
    if (++calls_ % kEvery != 0) return;
    check_next_registration();
    first_use_.check_next();
  }
  end_when_idle();
}

// ---- ends of exports ------------------------------------------------------------------------------

struct GpuExports::WithdrawsOnDestruction {
  std::shared_ptr<BackReference> back_reference;
  std::uint64_t id = 0;  // 0: none yet
  explicit WithdrawsOnDestruction(std::shared_ptr<BackReference> b) : back_reference(std::move(b)) {}
  WithdrawsOnDestruction(const WithdrawsOnDestruction&) = delete;
  WithdrawsOnDestruction& operator=(const WithdrawsOnDestruction&) = delete;
  ~WithdrawsOnDestruction() {
    if (id == 0) return;
    std::lock_guard lock(back_reference->mutex);
    if (back_reference->exports) back_reference->exports->withdraw(id);
  }
};

void GpuExports::end_when_idle() noexcept try {
  // Destroyed after the lock is released; if the process is idle, that withdraws the exports.
  std::vector<std::shared_ptr<WithdrawsOnDestruction>> withdrawals;
  std::lock_guard lock(mutex_);
  withdrawals.reserve(ending_.size());
  while (!ending_.empty()) {
    withdrawals.push_back(free_when_idle(std::make_shared<WithdrawsOnDestruction>(back_reference_)));
    withdrawals.back()->id = ending_.back();
    ending_.pop_back();
  }
} catch (const std::bad_alloc&) {  // the rest stays in ending_ for the next call
}

void GpuExports::withdraw_when_idle(std::uint64_t id) noexcept {
  try {
    std::lock_guard lock(mutex_);
    if (table_.contains(id)) ending_.push_back(id);
  } catch (const std::bad_alloc&) {
    return;
  }
  end_when_idle();
}

bool GpuExports::ended(std::uint64_t id) {
  end_when_idle();
  std::lock_guard lock(mutex_);
  return !table_.contains(id);
}

bool GpuExports::exists(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  return table_.contains(id);
}

}  // namespace ouro::rt
