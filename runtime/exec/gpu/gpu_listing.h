// The allocations in which the ranks of a group have had buffers, and who has mapped them: by their numbers
// resident kernels tell each other where their buffers lie. Used by the resident path.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/gpu/resident_ref.h"
#include "runtime/core/segment.h"
#include "runtime/exec/gpu/gpu_team.h"

namespace ouro::rt {

/// What this rank has listed, and what it has mapped of the others' lists. Nobody waits: a buffer is named
/// once every other rank has said from which operation on its kernels know the allocation. What its
/// owner has freed is unmapped when nothing of the process is on a device, unless a graph may have captured
/// it.
class GpuListing {
 public:
  explicit GpuListing(GpuTeam& team)
      : team_(team), keeper_(team.context.device_memory(), [this] { let_go(); }) {}
  ~GpuListing();
  GpuListing(const GpuListing&) = delete;
  GpuListing& operator=(const GpuListing&) = delete;

  /// Makes the lists, once. Others are asked for them.
  Status open();
  /// What operation `seq` calls [p, p + bytes); kNone, if not all ranks' kernels know it by then. A new
  /// allocation is listed, and stays in the list. No bytes: 0. Errors: invalid, where this is no memory of
  /// the rank's device.
  Result<std::uint64_t> refer(const void* p, std::size_t bytes, std::uint64_t seq);
  /// Maps what the others have listed since, as far as there is room, for a launch to enter it. Returns how
  /// many.
  int learn(std::span<gpu::ResidentEntry> room);
  /// The launch of operation `seq` enters what learn() has given last: the others are told. Without this it
  /// is given again.
  void entered(std::uint64_t seq);
  /// A graph captures what has been mapped by now.
  void captured() { keeps_all_.store(true, std::memory_order_relaxed); }

 private:
  using Ref = gpu::ResidentRef;
  /// In shared memory: written by its owner before `listed` counts it.
  struct Allocation {
    std::uint64_t id, base;
  };
  struct List {
    std::uint64_t listed;
    Allocation allocation[Ref::kListed];
  };
  /// What a launch is to enter; not mapped where it has been freed meanwhile.
  struct Learning {
    int owner, number;
    bool mapped;
    std::shared_ptr<transport::GpuImport> keep;
  };
  static std::size_t bytes(int n);
  List& list(int r) const { return reinterpret_cast<List*>(segment_->data())[r]; }
  /// The first operation in which kernels of `reader` know allocation `number` of `owner`: 0 not yet, kNone
  /// never.
  std::uint64_t& known_from(int owner, int number, int reader) const;
  void let_go();        ///< releases mappings whose exports have ended; from any thread
  void drop_retired();  ///< the same; the caller holds kept_mutex_

  GpuTeam& team_;
  std::shared_ptr<device::Segment> segment_;
  std::vector<Allocation> mine_;       // a peer could change what is shared
  std::vector<std::uint64_t> learnt_;  // by rank, how many of its list
  std::vector<Learning> learning_;
  std::mutex kept_mutex_;
  std::vector<std::shared_ptr<transport::GpuImport>> kept_;  // under the lock
  std::atomic<bool> keeps_all_{false};                       // set by the thread of the call
  const DeviceMemory::Keeper keeper_;                        // last: it uses the above
};

}  // namespace ouro::rt
