// Exchanges: sends and receives between GPUs of one host, by one kernel of each rank that takes part. Not
// collective; it runs beside the group's sequence of operations. Used by GpuOperations.
#pragma once
#include <array>
#include <atomic>
#include <bitset>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "kernels/gpu/exchange.h"
#include "runtime/exec/gpu/end_mark.h"
#include "runtime/exec/gpu/end_word.h"
#include "runtime/exec/gpu/gpu_path.h"
#include "runtime/exec/gpu/gpu_team.h"
#include "runtime/stream/gpu_stream.h"

namespace ouro::rt {

/// One message of an exchange, at one of its ends.
struct Transfer {
  int peer = 0;
  bool sends = false;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

/// Launches the exchanges of one rank, in the order of the calls, also where they are on different streams,
/// and keeps those that have not ended.
class ExchangePath {
 public:
  static constexpr int kMaxRanks = gpu::ExchangeLayout::kMaxRanks;
  using Ranks = std::bitset<kMaxRanks>;
  /// Why kernels cannot carry the exchanges of a group; nullptr: they can. The same on all ranks.
  static const char* obstacle(const GpuTopology&);

  ExchangePath(Context&, const Members&, Waiter&, std::uint64_t key, std::chrono::milliseconds deadline,
               const GpuTopology&);
  ~ExchangePath();
  /// Drops the arena that others may have had this rank make.
  static void drop_arena(Context&, std::uint64_t key, int rank);
  ExchangePath(const ExchangePath&) = delete;
  ExchangePath& operator=(const ExchangePath&) = delete;

  /// Enqueues the transfers, all in memory of this rank's GPU. `work` ends with them. Errors: invalid (memory
  /// elsewhere), resource, those of the device.
  Status run(std::span<const Transfer>, const std::shared_ptr<GpuStream>&, std::shared_ptr<WorkState>* work);
  /// How many have been enqueued.
  std::uint64_t ran() const { return ran_.load(std::memory_order_relaxed); }

  // Thread-safe.
  /// An exchange that has not ended.
  struct Pending {
    Ranks peers;
    Clock::time_point start, left_since = {};
    bool late_said = false;
  };
  /// The oldest, in f, and the ranks for which its kernel has waited since the call of this function before.
  void with_oldest(const std::function<void(Pending&, const Ranks& awaited)>& f);
  /// What a kernel of this rank has found out and the group does not know yet.
  std::optional<Failure> fault();
  /// The device's error of the first exchange that it did not end well.
  Status failure();
  /// The group has failed: kernels end early, and exchanges that have not ended end with `why`.
  void release(const Status& why);
  bool idle();
  /// Returns when all have ended; each does, within its deadline.
  void drain();

 private:
  class Mark;
  struct Shared;
  struct Entry {
    Pending pending;
    std::shared_ptr<Mark> mark;
  };
  Status open();
  /// The arena of a rank, which is made there on first demand.
  Status open_arena(int rank, Shared&);
  Status check_buffers(std::span<const Transfer>);
  /// Sorts the transfers by peer into the arguments of a launch. `many`: memory for more than fit there.
  Status pack(std::span<const Transfer>, gpu::ExchangeArgs*, std::shared_ptr<void>* many) const;
  Status enqueue(std::span<const Transfer>, const std::shared_ptr<GpuStream>&, std::shared_ptr<WorkState>*);
  void drop_ended();  ///< with mutex_ held

  GpuTeam team_;
  const GpuTopology topology_;
  std::mutex order_;  // of the calls; taken before mutex_
  std::shared_ptr<EndWord> end_word_;
  std::shared_ptr<GpuStream> last_stream_;
  std::shared_ptr<WorkState> last_mark_;
  /// Buffers that are known to be memory of this GPU.
  struct Known {
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  std::array<Known, 64> known_ = {};
  std::atomic<std::uint64_t> ran_{0};

  std::mutex mutex_;
  std::shared_ptr<Shared> shared_;  // null before the first exchange
  std::list<Entry> entries_;
  std::array<std::uint32_t, kMaxRanks> waits_ = {};  // as read last
  Status why_, failure_;
};

}  // namespace ouro::rt
