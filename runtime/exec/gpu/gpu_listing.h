// The allocations in which the ranks of a group have had buffers, and who has mapped them: by their numbers
// resident kernels exchange where their buffers lie. Used by the resident path.
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
///
/// An allocation has one of Ref::kListed numbers. The owner gives the number of an export that has ended to
/// another one if every rank has said that it knows the number, and no captured operation has named it. The
/// others take the new allocation up in an operation that follows the last in which the owner may have used
/// the number for the old one, so the kernel of an operation finds the allocation that the owner has named.
class GpuListing {
 public:
  explicit GpuListing(GpuTeam& team)
      : team_(team), keeper_(team.context.device_memory(), [this] { release_retired(); }) {}
  ~GpuListing();
  GpuListing(const GpuListing&) = delete;
  GpuListing& operator=(const GpuListing&) = delete;

  /// Makes the lists, once. Others are asked for them.
  Status open();
  /// What operation `seq` calls [p, p + bytes); kNone, if not all ranks' kernels know it by then. A new
  /// allocation is listed, if there is a number for it. No bytes: 0. Errors: invalid, where this is no memory
  /// of the rank's device.
  Result<std::uint64_t> refer(const void* p, std::size_t bytes, std::uint64_t seq, bool capturing);
  /// Maps what the others have listed since, as far as there is room, for the launch of operation `seq` to
  /// enter it. Returns how many. What cannot be mapped now, for want of memory, is tried again in later
  /// operations, ever more rarely, and given up after kTries; for want of an answer, once more.
  int learn(std::span<gpu::ResidentEntry> room, std::uint64_t seq);
  /// The launch of operation `seq` enters what learn() has returned last: the others are notified. Without
  /// this call learn() returns it again.
  void entered(std::uint64_t seq);
  /// A graph captures what has been mapped by now.
  void captured() { keeps_all_.store(true, std::memory_order_relaxed); }

 private:
  using Ref = gpu::ResidentRef;
  /// In shared memory: written by its owner before `listed` counts it.
  struct Allocation {
    std::uint64_t id, base;
    std::uint64_t number;
    std::uint64_t from;  ///< the first operation in which ranks may take it up
  };
  /// Allocations in the order in which they were listed, the k-th, from 0, at k mod kListed. It is not
  /// overtaken: each number has at most one entry that some rank has not taken up, and the entries that a
  /// rank has not taken up are the latest.
  struct List {
    std::uint64_t listed;  // how many so far
    Allocation allocation[Ref::kListed];
  };
  struct Mine {
    std::uint64_t id = 0;
    bool captured = false;  // an operation that names it has been captured
  };
  /// What a launch is to enter; not mapped where it has been freed meanwhile.
  struct Learning {
    int owner, number;
    bool mapped;
    std::shared_ptr<GpuImport> keep;
  };
  /// The tries to map what another rank has listed next, of which the last has failed.
  struct Trying {
    int times = 0;
    std::uint64_t next = 0;  // the operation with the next try
  };
  static constexpr int kTries = 8;
  static std::size_t bytes(int n);
  List& list(int r) const { return reinterpret_cast<List*>(segment_->data())[r]; }
  /// The first operation in which kernels of `reader` know allocation `number` of `owner`: 0 not yet, kNone
  /// never.
  std::uint64_t& known_from(int owner, int number, int reader) const;
  /// A number for an allocation that is listed now; -1: there is none.
  int free_number();
  void release_retired();  ///< releases mappings whose exports have ended; from any thread
  void drop_retired();     ///< the same; the caller holds kept_mutex_

  GpuTeam& team_;
  std::shared_ptr<SharedSegment> segment_;
  std::vector<Mine> mine_;  // by number; a peer could change what is shared
  std::uint64_t listed_ = 0;
  std::uint64_t endings_ = 0;          // GpuExports::endings(), when no number was free the last time
  std::vector<std::uint64_t> learnt_;  // by rank, how many of its list
  std::vector<Trying> trying_;         // by rank
  std::vector<Learning> learning_;
  std::mutex kept_mutex_;
  std::vector<std::shared_ptr<GpuImport>> kept_;  // under the lock
  std::atomic<bool> keeps_all_{false};            // set by the thread of the call
  const DeviceMemory::Keeper keeper_;             // last: it uses the above
};

}  // namespace ouro::rt
