// Parts in multicast objects. See gpu_multicast.h.
#include "runtime/device_memory/gpu_multicast.h"

#include "runtime/core/no_memory.h"
#include "runtime/device_memory/deferred_free.h"

namespace ouro::rt {

Result<std::shared_ptr<GpuMulticast>> GpuMulticast::create(int device, int ranks, std::size_t bytes) {
  const auto part = free_when_idle(std::shared_ptr<GpuMulticast>(new GpuMulticast));
  OURO_ASSIGN(part->object_, gpu::gpu().multicast_create(device, ranks, bytes));
  part->made_ = true;
  return part;
}

Result<std::shared_ptr<GpuMulticast>> GpuMulticast::import(int device, const Fd& object, std::size_t bytes) {
  const auto part = free_when_idle(std::shared_ptr<GpuMulticast>(new GpuMulticast));
  OURO_ASSIGN(part->object_, gpu::gpu().multicast_import(device, object, bytes));
  part->made_ = true;
  return part;
}

GpuMulticast::~GpuMulticast() {
  if (made_) (void)gpu::gpu().free_multicast(object_).ok();  // before the memory that is bound
}

Status GpuMulticast::join() {
  if (joined_ || !failed_.ok()) return failed_;
  failed_ = no_memory();  // stays if the next line throws
  failed_ = gpu::gpu().multicast_join(object_);
  joined_ = failed_.ok();
  return failed_;
}

Status GpuMulticast::bind() {
  if (bound_ || !failed_.ok()) return failed_;
  if (!joined_) return invalid("a GPU binds memory to a multicast object that it has joined");
  failed_ = no_memory();  // stays if what follows throws
  auto memory = GpuBlock::create(object_.device, object_.bytes);
  failed_ = memory.status();
  if (failed_.ok() && !(*memory)->shareable()) failed_ = unsupported("this GPU has no shareable memory");
  if (failed_.ok()) {
    memory_ = *memory;
    failed_ = gpu::gpu().multicast_bind(&object_, memory_->region());
  }
  bound_ = failed_.ok();
  return failed_;
}

Result<ExportHandles> GpuMulticast::handles() const {
  ExportHandles handles;
  handles.bytes = object_.bytes;
  OURO_ASSIGN(handles.fd, gpu::gpu().export_fd(object_));
  return handles;
}

}  // namespace ouro::rt
