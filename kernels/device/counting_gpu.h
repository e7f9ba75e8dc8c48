// CountingGpu: a Gpu that hands every call to another one and counts it, by kind and by thread. Used by tests
// of costs, and by gpu() where OURO_GPU_TRACE is set.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "kernels/device/gpu.h"
#include "kernels/device/gpu_calls.h"

namespace ouro::gpu {

/// Calls that make other calls of the same object inside the implementation count once. Calls of kernels'
/// bodies (multicast_members) and of names are not counted. Work that a capture records counts as if it ran.
class CountingGpu : public Gpu {
 public:
  enum class Times : bool { off, on };
  /// `of` must outlive this object. Times::on also measures each call, which costs about 60 ns.
  explicit CountingGpu(Gpu& of, Times = Times::off);
  ~CountingGpu() override;
  CountingGpu(const CountingGpu&) = delete;
  CountingGpu& operator=(const CountingGpu&) = delete;

  /// The calls of the calling thread. Only differences have a meaning: a thread may continue the counters of
  /// one that has ended.
  CallCounts mine();
  /// The calls of all threads of this process, of those that have ended, too.
  CallCounts total() const;
  struct Report {
    CallCounts counts;
    std::array<std::uint64_t, kGpuCalls> total_ns{}, max_ns{};  ///< 0 without Times::on
  };
  /// The same by class of threads. A class is the name of its threads without digits at the end; threads of a
  /// program have its name unless it gave them another.
  std::map<std::string, Report> by_class() const;

  const char* name() const override { return of_.name(); }
  std::string version() const override { return of_.version(); }
  int devices() override { return of_.devices(); }
  Result<Properties> properties(int device) override;
  bool peer_access(int device, int peer) override;
  Status enable_peer(int device, int peer) override;
  Result<std::vector<Uuid>> reachable(int device) override;
  Result<int> current_device() override;
  Status set_current_device(int device) override;

  Result<void*> alloc(int device, std::size_t bytes) override;
  Status free(void*) override;
  Result<Region> alloc_shareable(int device, std::size_t bytes) override;
  Result<Fd> export_fd(const Region&) override;
  Result<Region> import_fd(int device, const Fd&, std::size_t bytes) override;
  Status free_region(const Region&) override;
  Result<IpcHandle> ipc_export(void* base) override;
  Result<void*> ipc_open(int device, const IpcHandle&) override;
  Status ipc_close(int device, void*) override;
  Result<PointerInfo> pointer(const void*) override;
  Result<void*> alloc_pinned(std::size_t bytes) override;
  Status free_pinned(void*) override;
  Result<void*> register_host(void*, std::size_t bytes) override;
  Status unregister_host(void*) override;

  Result<Region> retain_piece(const void*) override;
  Status release_piece(const Region&) override;
  Result<Fd> export_piece(const Region&) override;
  Status open_to_peers(const Region&) override;
  Result<MappedRange> reserve_range(int device, std::size_t bytes) override;
  Status map_piece(MappedRange*, const Fd&, std::size_t bytes) override;
  Status free_range(const MappedRange&) override;

  Result<Multicast> multicast_create(int device, int devices, std::size_t bytes) override;
  Result<Fd> export_fd(const Multicast&) override;
  Result<Multicast> multicast_import(int device, const Fd&, std::size_t bytes) override;
  Status multicast_join(const Multicast&) override;
  Status multicast_bind(Multicast*, const Region&) override;
  Status free_multicast(const Multicast&) override;
  int multicast_members(const void* address, std::byte** members) override {
    return of_.multicast_members(address, members);
  }

  Status flush_arrivals(int device) override;
  Result<std::shared_ptr<void>> scope(int device) override;

  Result<Stream> create_stream(int device, int priority) override;
  Status destroy_stream(Stream) override;
  Status check_context(Stream) override;
  Status synchronize(Stream) override;
  Result<bool> query(Stream) override;
  Result<Event> create_event(int device, bool timing) override;
  Status destroy_event(Event) override;
  Status record(Event, Stream) override;
  Status wait(Stream, Event) override;
  Status synchronize(Event) override;
  Result<bool> query(Event) override;
  Result<float> elapsed_ms(Event from, Event to) override;

  Status copy(void* to, const void* from, std::size_t bytes, Stream) override;
  Status set(void* to, std::uint8_t byte, std::size_t bytes, Stream) override;
  Status enqueue(std::span<const MemOp>, Stream) override;
  Status launch(const Kernel&, Shape, const void* args, Stream) override;
  Status call_host(Stream, void (*f)(void*), void* data) override;

  Result<std::uint64_t> capturing(Stream) override;
  Status begin_capture(Stream) override;
  Result<Graph> end_capture(Stream) override;
  Status launch(Graph, Stream) override;
  Status destroy_graph(Graph) override;

  Result<KernelInfo> info(const Kernel&, int device) override;
  Status reserve_stack(int device, std::size_t bytes) override;
  Result<int> resident_blocks(const Kernel&, int threads, int device) override;

 private:
  struct OfThread;
  struct Threads;
  struct Registry;
  class Call;
  OfThread& of_this_thread();
  static Registry& registry();

  Gpu& of_;
  const bool timed_;
  const std::uint64_t id_;  ///< of this object, never used again
};

}  // namespace ouro::gpu
