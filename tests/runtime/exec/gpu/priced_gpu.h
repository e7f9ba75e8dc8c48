// PricedGpu: virtual time over emulated devices. Each call of the driver has a price, and what streams wait
// for orders their work; kernels and copies take no time, unless bytes have a price. Used by the tests of
// costs.
#pragma once
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/device/counting_gpu.h"
#include "kernels/gpu/collect.h"

namespace ouro::test {

/// In microseconds. `piece`: handing work to a stream, under the lock of its device. `query`: one query, or
/// one look at a pinned word, that finds that something has ended; waiting for it costs no queries. `map`:
/// mapping memory of another process. `hop`: one stage of a stream that waits, or that runs a kernel, before
/// its next one begins. `byte`: one that the fused kernel of an all-reduce reads or writes.
struct GpuPrices {
  double piece = 0, query = 0, map = 0, hop = 0, byte = 0;
};

/// Each thread has a clock. A piece of work begins when the thread is there and the device's lock is free,
/// and sets both clocks to its end. Streams are chains of stages; a stage begins when it has been enqueued,
/// the stage before it has ended, and so have those that it waits for: the last record of an event, the write
/// of a word, by a stream or by a kernel (MeetArgs, LaunchEnd). The k-th resident kernels of all streams meet
/// and end together. Real time has no influence but one: threads take the lock in the order in which they do
/// so in reality.
class PricedGpu final : public gpu::CountingGpu {
 public:
  PricedGpu(Gpu& of, GpuPrices prices) : CountingGpu(of), prices_(prices) {}
  /// The clock of the calling thread.
  double now();
  /// The calling thread has seen a word which says that the last work of the stream has ended.
  void saw_end(gpu::Stream);
  /// The same of all streams of its device.
  void saw_all_end(int device);

  Result<gpu::Region> import_fd(int device, const Fd&, std::size_t bytes) override;
  Result<void*> ipc_open(int device, const gpu::IpcHandle&) override;
  Status synchronize(gpu::Stream) override;
  Result<bool> query(gpu::Stream) override;
  Status record(gpu::Event, gpu::Stream) override;
  Status wait(gpu::Stream, gpu::Event) override;
  Status synchronize(gpu::Event) override;
  Result<bool> query(gpu::Event) override;
  Status copy(void* to, const void* from, std::size_t bytes, gpu::Stream) override;
  Status set(void* to, std::uint8_t byte, std::size_t bytes, gpu::Stream) override;
  Status enqueue(std::span<const gpu::MemOp>, gpu::Stream) override;
  Status launch(const gpu::Kernel&, gpu::Shape, const void* args, gpu::Stream) override;
  Status call_host(gpu::Stream, void (*f)(void*), void* data) override;
  Status launch(gpu::Graph, gpu::Stream) override;

 private:
  struct Stage {
    double enqueued = 0;
    double takes = 0;
    int before = -1;                     // in its stream
    int event = -1;                      // the stage that recorded the event that it waits for
    int meeting = -1;                    // the kernels that it meets
    double end = -1;                     // once computed
    std::vector<gpu::MemOp> words = {};  // that it waits for
    std::size_t nth = 0;                 // of the waits for an equal value of this word
  };
  using Key = std::pair<int, void*>;  // device, handle
  struct Word {
    std::vector<std::pair<std::uint32_t, int>> writes;  // values and stages
    std::map<std::uint32_t, std::size_t> waits;         // for equal values
  };

  static Key key(gpu::Stream s) { return {s.device, s.handle}; }
  Stage& piece_locked(gpu::Stream);  ///< the piece's price; returns a stage without a wait
  Stage& add_locked(gpu::Stream, double enqueued);
  /// The stage that writes what this one waits for; -1: the host did.
  int written_locked(const gpu::MemOp&, std::size_t nth) const;
  void write_locked(const gpu::NumberedWord&, int stage);
  void meet_locked(const gpu::MeetArgs&, gpu::Stream);
  double start_locked(int stage);
  double end_locked(int stage);
  void arrive(int stage);  ///< the calling thread has found that the stage has ended
  void pass(double us);    ///< the calling thread was busy

  const GpuPrices prices_;
  std::mutex mutex_;
  std::map<std::thread::id, double> clocks_;
  std::map<int, double> locks_;  // when they are free, by device
  std::vector<Stage> stages_;
  std::map<Key, int> last_;      // of streams
  std::map<void*, int> events_;  // the stage of the last record
  std::map<const void*, Word> words_;
  std::map<Key, std::size_t> spinning_;     // kernels so far, of streams
  std::vector<std::vector<int>> meetings_;  // the k-th spinning kernels
};

}  // namespace ouro::test
