// The list of the exports in which the ranks of a group have had buffers, and of the ranks that have mapped
// them. Resident kernels name their buffers by these numbers. Used by the resident path.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/gpu/resident_ref.h"
#include "runtime/core/segment.h"
#include "runtime/core/status.h"
#include "runtime/device_memory/device_memory.h"

namespace ouro::rt {

/// One rank's part of the list: it lists its own exports and maps those of the others. No rank waits for
/// another: an operation names a buffer once every other rank has published from which operation on its
/// kernels know the export. An import whose export has ended is unmapped when the process is idle, unless a
/// graph may have captured it.
///
/// Each listed export has one of Ref::kListed numbers. The owner gives the number of an export that has ended
/// to another one, if every rank has published that it knows the number, and no captured operation has named
/// it. The others enter the new export in an operation that follows the last in which the owner may have used
/// the number for the old one. So the kernel of an operation finds the export that the owner has named.
class ExportListing {
 public:
  /// `rank`: this rank, of the group; `world`: the ranks of the group, as ranks of the job.
  ExportListing(DeviceMemory&, int rank, std::vector<int> world, int device);
  ExportListing(const ExportListing&) = delete;
  ExportListing& operator=(const ExportListing&) = delete;

  /// The size of the segment for `n` ranks.
  static std::size_t segment_bytes(int n);
  /// `segment`: shared by all ranks of the group, and zero until the first has opened the list.
  void open(std::shared_ptr<SharedSegment> segment);
  bool is_open() const { return segment_ != nullptr; }

  /// Returns the name of [p, p + bytes) in operation `seq`, or kNone if not all ranks' kernels know the
  /// export by then. Lists the export if it is new and a number is free. Returns 0 for no bytes. Error
  /// invalid: this is not memory of the rank's device.
  Result<std::uint64_t> name_buffer(const void* p, std::size_t bytes, std::uint64_t seq, bool capturing);
  /// Maps exports that the others have listed since the last call, as many as there is room for. The launch
  /// of operation `seq` is to enter the result in its table. Returns the number of entries. An export that
  /// cannot be mapped for want of memory is tried again in later operations, with growing distance, and given
  /// up after kTries; if its owner did not answer, it is tried once more.
  int map_listed(std::span<gpu::ResidentEntry> room, std::uint64_t seq);
  /// Publishes that the launch of operation `seq` enters the last result of map_listed(). Without this call,
  /// that function returns the same exports again.
  void publish_mapped(std::uint64_t seq);
  /// Keeps everything that has been mapped by now, because a graph has captured it.
  void keep_all() { keeps_all_.store(true, std::memory_order_relaxed); }

 private:
  using Ref = gpu::ResidentRef;
  /// An export in shared memory. Its owner writes it before `listed` counts it.
  struct Listed {
    std::uint64_t id, base;
    std::uint64_t number;
    std::uint64_t from;  ///< the first operation in which ranks may enter it
  };
  /// The exports of one rank in the order in which they were listed: the k-th, from 0, at k mod kListed. The
  /// owner overwrites no entry that a rank has yet to read: each number has at most one such entry, and these
  /// are the latest.
  struct List {
    std::uint64_t listed;  // number of exports so far
    Listed entries[Ref::kListed];
  };
  /// An export of this rank that has a number.
  struct Numbered {
    std::uint64_t id = 0;
    bool captured = false;  // an operation that names it has been captured
  };
  /// An export of another rank that the next launch enters; not mapped if its owner has freed it meanwhile.
  struct NewImport {
    int owner, number;
    bool mapped;
    std::shared_ptr<GpuImport> keep;
  };
  /// The failed attempts to map the next export of a rank's list.
  struct Attempts {
    int failed = 0;
    std::uint64_t next = 0;  // the operation with the next attempt
  };
  static constexpr int kTries = 8;

  int size() const { return static_cast<int>(world_.size()); }
  int world_rank(int r) const { return world_[static_cast<std::size_t>(r)]; }
  bool in_process(int r) const { return memory_.members().is_thread(world_rank(r)); }
  List& list(int r) const { return reinterpret_cast<List*>(segment_->data())[r]; }
  /// The first operation in which kernels of `reader` know export `number` of `owner`: 0 not yet,
  /// kNone never.
  std::uint64_t& known_from(int owner, int number, int reader) const;
  /// Returns a number for an export that is listed now; -1: none is free.
  int free_number();
  /// Releases imports whose exports have ended. Called by any thread.
  void release_ended();
  void release_ended_locked();  ///< the caller holds kept_mutex_

  DeviceMemory& memory_;
  const int rank_, device_;
  const std::vector<int> world_;
  bool spans_processes_ = false;  // a member is of another process
  bool shares_process_ = false;   // another member is of this process
  std::shared_ptr<SharedSegment> segment_;
  std::vector<Numbered> own_;  // by number; not in shared memory, which a peer could change
  std::uint64_t listed_ = 0;
  std::uint64_t endings_ = 0;        // GpuExports::endings() when no number was free the last time
  std::vector<std::uint64_t> read_;  // by rank: how many exports of its list have been entered
  std::vector<Attempts> attempts_;   // by rank
  std::vector<NewImport> new_imports_;
  std::mutex kept_mutex_;
  std::vector<std::shared_ptr<GpuImport>> kept_;  // under kept_mutex_
  std::atomic<bool> keeps_all_{false};            // set by the thread of the call
  const ImportKeeper keeper_;                     // last: it uses the members above
};

}  // namespace ouro::rt
