// Mapping and unmapping of imports. See gpu_imports.h.
#include "runtime/device_memory/gpu_imports.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/device_memory/deferred_free.h"

namespace ouro::rt {

Status GpuImport::map_pieces(int device, const ExportHandles& handles, const RequestHandles& request) {
  OURO_ASSIGN(range_, gpu::gpu().reserve_range(device, handles.bytes));
  data_ = static_cast<std::byte*>(range_.data);
  std::size_t pieces = 0;
  const auto map_all = [&](const ExportHandles& some) -> Status {
    if (some.pieces.empty()) return {Reason::refused, "a peer offered device memory with a piece missing"};
    pieces += some.pieces.size();
    for (const ExportHandles::Piece& piece : some.pieces)
      OURO_TRY(gpu::gpu().map_piece(&range_, piece.fd, piece.bytes));
    return {};
  };
  OURO_TRY(map_all(handles));
  while (range_.mapped < range_.bytes) {
    if (pieces >= ExportHandles::kMaxPieces)
      return {Reason::refused, "a peer offered memory in too many pieces"};
    OURO_ASSIGN(const ExportHandles next, request(pieces));
    OURO_TRY(map_all(next));
  }
  return {};
}

Result<std::shared_ptr<GpuImport>> GpuImport::map(int device, const ExportHandles& handles,
                                                  const RequestHandles& request,
                                                  std::shared_ptr<void> token) {
  const auto imported = free_when_idle(std::shared_ptr<GpuImport>(new GpuImport(std::move(token))));
  imported->device_ = device;
  imported->bytes_ = handles.bytes;
  if (!handles.pieces.empty()) {
    OURO_TRY(imported->map_pieces(device, handles, request));
  } else if (handles.fd) {
    OURO_ASSIGN(imported->region_, gpu::gpu().import_fd(device, handles.fd, handles.bytes));
    imported->data_ = static_cast<std::byte*>(imported->region_.data);
  } else {
    OURO_ASSIGN(void* const data, gpu::gpu().ipc_open(device, handles.ipc_handle));
    imported->data_ = static_cast<std::byte*>(data);
    imported->legacy_ = true;
    // The peer stated the size and may be wrong. For the other kinds of handles the driver checks the size.
    OURO_ASSIGN(const auto here, gpu::gpu().pointer(data));
    const auto* const end = static_cast<const std::byte*>(here.base) + here.bytes;
    if (here.kind != gpu::MemoryKind::device || !here.base || end <= imported->data_)
      return Status(Reason::refused, "a peer offered device memory, and its handle opened something else");
    imported->bytes_ = std::min(imported->bytes_, static_cast<std::size_t>(end - imported->data_));
  }
  return imported;
}

GpuImport::~GpuImport() {
  if (!data_) return;
  if (range_.data)
    (void)gpu::gpu().free_range(range_).ok();
  else
    (void)(legacy_ ? gpu::gpu().ipc_close(device_, data_) : gpu::gpu().free_region(region_)).ok();
}

Result<GpuImports::Mapped> GpuImports::map(int device, const GpuRef& ref, std::size_t bytes,
                                           const RequestHandles& request) {
  std::lock_guard lock(mutex_);
  auto it = imports_.find(ref.id);
  if (it == imports_.end()) {
    OURO_ASSIGN(const ExportHandles handles, request(0));
    OURO_ASSIGN(auto imported, GpuImport::map(device, handles, request, make_token_()));
    {
      std::lock_guard tokens(tokens_mutex_);
      std::erase_if(tokens_, [](const auto& t) { return t.second.expired(); });
      tokens_.emplace(ref.id, imported->while_mapped());
    }
    it = imports_.emplace(ref.id, std::move(imported)).first;
  }
  const GpuImport& imported = *it->second;
  // A peer wrote the reference, so it is checked against the size that is mapped.
  if (ref.offset > imported.bytes() || bytes > imported.bytes() - ref.offset)
    return Status(Reason::ring_corrupt, fmt::format("a peer posted {} bytes at {} of device memory of {}",
                                                    bytes, ref.offset, imported.bytes()));
  return Mapped{imported.data() + ref.offset, it->second};
}

void GpuImports::release_ended(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  const auto it = imports_.find(id);
  if (it == imports_.end()) return;
  it->second->note_export_ended();
  imports_.erase(it);
}

void GpuImports::release_all(bool exports_ended) {
  std::lock_guard lock(mutex_);
  if (exports_ended)
    for (const auto& [id, imported] : imports_) imported->note_export_ended();
  imports_.clear();
}

bool GpuImports::is_mapped(std::uint64_t id) {
  std::lock_guard lock(tokens_mutex_);
  std::erase_if(tokens_, [](const auto& t) { return t.second.expired(); });
  return tokens_.contains(id);
}

}  // namespace ouro::rt
