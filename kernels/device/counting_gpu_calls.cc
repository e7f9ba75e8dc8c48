// The calls that CountingGpu counts in one way: each is counted and handed on. See counting_gpu.h.
#include "kernels/device/counting_gpu_call.h"

namespace ouro::gpu {

Status CountingGpu::enable_peer(int device, int peer) {
  const Call call(*this, GpuCall::peers);
  return of_.enable_peer(device, peer);
}
Result<std::vector<Uuid>> CountingGpu::reachable(int device) {
  const Call call(*this, GpuCall::peers);
  return of_.reachable(device);
}
Result<int> CountingGpu::current_device() {
  const Call call(*this, GpuCall::current_device);
  return of_.current_device();
}
Status CountingGpu::set_current_device(int device) {
  const Call call(*this, GpuCall::set_current_device);
  return of_.set_current_device(device);
}

Result<void*> CountingGpu::alloc(int device, std::size_t bytes) {
  const Call call(*this, GpuCall::alloc);
  return of_.alloc(device, bytes);
}
Status CountingGpu::free(void* p) {
  const Call call(*this, GpuCall::free);
  return of_.free(p);
}
Result<Region> CountingGpu::alloc_shareable(int device, std::size_t bytes) {
  const Call call(*this, GpuCall::alloc);
  return of_.alloc_shareable(device, bytes);
}
Result<Fd> CountingGpu::export_fd(const Region& r) {
  const Call call(*this, GpuCall::export_memory);
  return of_.export_fd(r);
}
Result<Region> CountingGpu::import_fd(int device, const Fd& fd, std::size_t bytes) {
  const Call call(*this, GpuCall::map);
  return of_.import_fd(device, fd, bytes);
}
Status CountingGpu::free_region(const Region& r) {
  const Call call(*this, GpuCall::free);
  return of_.free_region(r);
}
Result<IpcHandle> CountingGpu::ipc_export(void* base) {
  const Call call(*this, GpuCall::export_memory);
  return of_.ipc_export(base);
}
Result<void*> CountingGpu::ipc_open(int device, const IpcHandle& handle) {
  const Call call(*this, GpuCall::map);
  return of_.ipc_open(device, handle);
}
Status CountingGpu::ipc_close(int device, void* p) {
  const Call call(*this, GpuCall::unmap);
  return of_.ipc_close(device, p);
}
Result<void*> CountingGpu::alloc_pinned(std::size_t bytes) {
  const Call call(*this, GpuCall::alloc);
  return of_.alloc_pinned(bytes);
}
Status CountingGpu::free_pinned(void* p) {
  const Call call(*this, GpuCall::free);
  return of_.free_pinned(p);
}
Result<void*> CountingGpu::register_host(void* p, std::size_t bytes) {
  const Call call(*this, GpuCall::alloc);
  return of_.register_host(p, bytes);
}
Status CountingGpu::unregister_host(void* p) {
  const Call call(*this, GpuCall::free);
  return of_.unregister_host(p);
}

Result<Region> CountingGpu::retain_piece(const void* p) {
  const Call call(*this, GpuCall::piece_of_program);
  return of_.retain_piece(p);
}
Status CountingGpu::release_piece(const Region& r) {
  const Call call(*this, GpuCall::piece_of_program);
  return of_.release_piece(r);
}
Result<Fd> CountingGpu::export_piece(const Region& r) {
  const Call call(*this, GpuCall::export_memory);
  return of_.export_piece(r);
}
Status CountingGpu::open_to_peers(const Region& r) {
  const Call call(*this, GpuCall::piece_of_program);
  return of_.open_to_peers(r);
}
Result<MappedRange> CountingGpu::reserve_range(int device, std::size_t bytes) {
  const Call call(*this, GpuCall::map);
  return of_.reserve_range(device, bytes);
}
Status CountingGpu::map_piece(MappedRange* r, const Fd& fd, std::size_t bytes) {
  const Call call(*this, GpuCall::map);
  return of_.map_piece(r, fd, bytes);
}
Status CountingGpu::free_range(const MappedRange& r) {
  const Call call(*this, GpuCall::unmap);
  return of_.free_range(r);
}

Result<Multicast> CountingGpu::multicast_create(int device, int devices, std::size_t bytes) {
  const Call call(*this, GpuCall::multicast);
  return of_.multicast_create(device, devices, bytes);
}
Result<Fd> CountingGpu::export_fd(const Multicast& m) {
  const Call call(*this, GpuCall::multicast);
  return of_.export_fd(m);
}
Result<Multicast> CountingGpu::multicast_import(int device, const Fd& fd, std::size_t bytes) {
  const Call call(*this, GpuCall::multicast);
  return of_.multicast_import(device, fd, bytes);
}
Status CountingGpu::multicast_join(const Multicast& m) {
  const Call call(*this, GpuCall::multicast);
  return of_.multicast_join(m);
}
Status CountingGpu::multicast_bind(Multicast* m, const Region& r) {
  const Call call(*this, GpuCall::multicast);
  return of_.multicast_bind(m, r);
}
Status CountingGpu::free_multicast(const Multicast& m) {
  const Call call(*this, GpuCall::multicast);
  return of_.free_multicast(m);
}

Status CountingGpu::flush_arrivals(int device) {
  const Call call(*this, GpuCall::flush_arrivals);
  return of_.flush_arrivals(device);
}
Result<std::shared_ptr<void>> CountingGpu::scope(int device) {
  const Call call(*this, GpuCall::scope);
  return of_.scope(device);
}
Result<Stream> CountingGpu::create_stream(int device, int priority) {
  const Call call(*this, GpuCall::create_stream);
  return of_.create_stream(device, priority);
}
Status CountingGpu::destroy_stream(Stream s) {
  const Call call(*this, GpuCall::destroy_stream);
  return of_.destroy_stream(s);
}
Status CountingGpu::synchronize(Stream s) {
  const Call call(*this, GpuCall::synchronize_stream);
  return of_.synchronize(s);
}
Result<Event> CountingGpu::create_event(int device, bool timing) {
  const Call call(*this, GpuCall::create_event);
  return of_.create_event(device, timing);
}
Status CountingGpu::destroy_event(Event e) {
  const Call call(*this, GpuCall::destroy_event);
  return of_.destroy_event(e);
}
Status CountingGpu::record(Event e, Stream s) {
  const Call call(*this, GpuCall::record);
  return of_.record(e, s);
}
Status CountingGpu::wait(Stream s, Event e) {
  const Call call(*this, GpuCall::wait);
  return of_.wait(s, e);
}
Status CountingGpu::synchronize(Event e) {
  const Call call(*this, GpuCall::synchronize_event);
  return of_.synchronize(e);
}
Result<float> CountingGpu::elapsed_ms(Event from, Event to) {
  const Call call(*this, GpuCall::elapsed);
  return of_.elapsed_ms(from, to);
}

Status CountingGpu::copy(void* to, const void* from, std::size_t bytes, Stream s) {
  const Call call(*this, GpuCall::copy);
  return of_.copy(to, from, bytes, s);
}
Status CountingGpu::set(void* to, std::uint8_t byte, std::size_t bytes, Stream s) {
  const Call call(*this, GpuCall::set);
  return of_.set(to, byte, bytes, s);
}
Status CountingGpu::launch(const Kernel& kernel, Shape shape, const void* args, Stream s) {
  const Call call(*this, GpuCall::launch);
  return of_.launch(kernel, shape, args, s);
}
Status CountingGpu::call_host(Stream s, void (*f)(void*), void* data) {
  const Call call(*this, GpuCall::call_host);
  return of_.call_host(s, f, data);
}

Status CountingGpu::begin_capture(Stream s) {
  const Call call(*this, GpuCall::capture);
  return of_.begin_capture(s);
}
Result<Graph> CountingGpu::end_capture(Stream s) {
  const Call call(*this, GpuCall::capture);
  return of_.end_capture(s);
}
Status CountingGpu::launch(Graph g, Stream s) {
  const Call call(*this, GpuCall::launch_graph);
  return of_.launch(g, s);
}
Status CountingGpu::destroy_graph(Graph g) {
  const Call call(*this, GpuCall::destroy_graph);
  return of_.destroy_graph(g);
}
Result<KernelInfo> CountingGpu::info(const Kernel& kernel, int device) {
  const Call call(*this, GpuCall::kernel_info);
  return of_.info(kernel, device);
}
Status CountingGpu::reserve_stack(int device, std::size_t bytes) {
  const Call call(*this, GpuCall::reserve_stack);
  return of_.reserve_stack(device, bytes);
}
Result<int> CountingGpu::resident_blocks(const Kernel& kernel, int threads, int device) {
  const Call call(*this, GpuCall::kernel_info);
  return of_.resident_blocks(kernel, threads, device);
}

}  // namespace ouro::gpu
