// Chooses the implementation of Gpu that this process uses; and the one for machines without GPUs. See gpu.h.
#include "kernels/device/gpu.h"

#include "kernels/device/gpu_trace.h"
#include "runtime/core/env.h"
#include "runtime/core/log.h"
#include "runtime/core/per_process.h"

namespace ouro::gpu {
namespace {

/// An implementation that has no devices, and says why.
class NoGpu final : public Gpu {
 public:
  explicit NoGpu(std::string why) : why_(std::move(why)) {}
  const char* name() const override { return "none"; }
  std::string version() const override { return why_; }
  int devices() override { return 0; }
  Result<Properties> properties(int) override { return none(); }
  bool peer_access(int, int) override { return false; }
  Status enable_peer(int, int) override { return none(); }
  Result<std::vector<Uuid>> reachable(int) override { return none(); }
  Result<int> current_device() override { return none(); }
  Status set_current_device(int) override { return none(); }

  Result<void*> alloc(int, std::size_t) override { return none(); }
  Status free(void*) override { return none(); }
  Result<Region> alloc_shareable(int, std::size_t) override { return none(); }
  Result<Fd> export_fd(const Region&) override { return none(); }
  Result<Region> import_fd(int, const Fd&, std::size_t) override { return none(); }
  Status free_region(const Region&) override { return none(); }
  Result<IpcHandle> ipc_export(void*) override { return none(); }
  Result<void*> ipc_open(int, const IpcHandle&) override { return none(); }
  Status ipc_close(int, void*) override { return none(); }
  Result<PointerInfo> pointer(const void*) override { return none(); }
  Result<void*> alloc_pinned(std::size_t) override { return none(); }
  Status free_pinned(void*) override { return none(); }
  Result<void*> register_host(void*, std::size_t) override { return none(); }
  Status unregister_host(void*) override { return none(); }

  Result<Stream> create_stream(int, int) override { return none(); }
  Status destroy_stream(Stream) override { return none(); }
  Status check_context(Stream) override { return none(); }
  Status synchronize(Stream) override { return none(); }
  Result<bool> query(Stream) override { return none(); }
  Result<Event> create_event(int, bool) override { return none(); }
  Status destroy_event(Event) override { return none(); }
  Status record(Event, Stream) override { return none(); }
  Status wait(Stream, Event) override { return none(); }
  Status synchronize(Event) override { return none(); }
  Result<bool> query(Event) override { return none(); }
  Result<float> elapsed_ms(Event, Event) override { return none(); }

  Status copy(void*, const void*, std::size_t, Stream) override { return none(); }
  Status set(void*, std::uint8_t, std::size_t, Stream) override { return none(); }
  Status enqueue(std::span<const MemOp>, Stream) override { return none(); }
  Status launch(const Kernel&, Shape, const void*, Stream) override { return none(); }
  Status call_host(Stream, void (*)(void*), void*) override { return none(); }

  Result<std::uint64_t> capturing(Stream) override { return none(); }
  Status begin_capture(Stream) override { return none(); }
  Result<Graph> end_capture(Stream) override { return none(); }
  Status launch(Graph, Stream) override { return none(); }
  Status destroy_graph(Graph) override { return none(); }

  Result<KernelInfo> info(const Kernel&, int) override { return none(); }
  Status reserve_stack(int, std::size_t) override { return none(); }
  Result<int> resident_blocks(const Kernel&, int, int) override { return none(); }

 private:
  Status none() const { return unsupported("no GPU can be used: " + why_); }
  const std::string why_;
};

Gpu* choose() {
  auto fakes = env::integer("OURO_FAKE_GPUS");
  if (!fakes.ok()) {
    OURO_WARN("{}", fakes.status().message());
    return no_gpu(fakes.status().message()).release();
  }
  if (const int n = static_cast<int>(fakes->value_or(0)); n > 0) return traced_if_set(emulated(n));
  occupy_standard_descriptors();  // before the driver opens its devices
  std::string why;
  if (Gpu* real = cuda(&why)) return traced_if_set(real);
  return no_gpu(std::move(why)).release();
}

Gpu* installed = nullptr;

Status no_pieces() {
  return unsupported("this GPU, or its driver, has no memory of cuMemMap that can be shared");
}
Status no_multicast() { return unsupported("this GPU, or its driver, has no multicast objects"); }

}  // namespace

Result<Region> Gpu::retain_piece(const void*) { return no_pieces(); }
Status Gpu::release_piece(const Region&) { return no_pieces(); }
Result<Fd> Gpu::export_piece(const Region&) { return no_pieces(); }
Status Gpu::open_to_peers(const Region&) { return no_pieces(); }
Result<MappedRange> Gpu::reserve_range(int, std::size_t) { return no_pieces(); }
Status Gpu::map_piece(MappedRange*, const Fd&, std::size_t) { return no_pieces(); }
Status Gpu::free_range(const MappedRange&) { return no_pieces(); }

Result<Multicast> Gpu::multicast_create(int, int, std::size_t) { return no_multicast(); }
Result<Fd> Gpu::export_fd(const Multicast&) { return no_multicast(); }
Result<Multicast> Gpu::multicast_import(int, const Fd&, std::size_t) { return no_multicast(); }
Status Gpu::multicast_join(const Multicast&) { return no_multicast(); }
Status Gpu::multicast_bind(Multicast*, const Region&) { return no_multicast(); }
Status Gpu::free_multicast(const Multicast&) { return no_multicast(); }
Result<std::shared_ptr<void>> Gpu::scope(int) { return std::shared_ptr<void>(); }
Status Gpu::flush_arrivals(int) {
  return unsupported("this GPU, or its driver, does not say when what a network has written is seen");
}
int Gpu::multicast_members(const void*, std::byte**) { return 0; }

Gpu& gpu() {
  if (installed != nullptr) return *installed;
  static constinit MadeOnce<Gpu*> chosen;
  return *chosen.get(choose);
}

void install(Gpu* g) { installed = g; }

std::unique_ptr<Gpu> no_gpu(std::string why) { return std::make_unique<NoGpu>(std::move(why)); }

}  // namespace ouro::gpu
