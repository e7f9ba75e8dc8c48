// The exports of one rank: device memory that other ranks of the host may map. Used by DeviceMemory and
// the GPU executors.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/device/gpu.h"
#include "runtime/core/status.h"
#include "runtime/device_memory/export_handles.h"
#include "runtime/device_memory/export_table.h"
#include "runtime/device_memory/first_use_exports.h"
#include "runtime/device_memory/owned_memory.h"
#include "runtime/device_memory/registered_ranges.h"

namespace ouro::rt {

/// Exports of three kinds of memory: blocks that this library allocated, memory that the program registered,
/// and, for the leader's path, other memory of the program that has a legacy handle. Thread-safe: the watch
/// thread takes handles.
class GpuExports {
 public:
  /// `announce_end` is called for each export that has ended, so that importers release it. Calls
  /// do not overlap.
  explicit GpuExports(std::function<void(std::uint64_t id)> announce_end);
  ~GpuExports();
  GpuExports(const GpuExports&) = delete;
  GpuExports& operator=(const GpuExports&) = delete;

  /// Exports a block until `withdraw`. Returns 0 if it can be used in this process only.
  std::uint64_t add(std::shared_ptr<GpuBlock>);
  void withdraw(std::uint64_t id);
  /// Withdraws the export when the process is idle (free_when_idle), because operations in flight may
  /// have named the block to ranks that have not reached them. If memory is short, the export lasts as
  /// long as this object.
  void withdraw_when_idle(std::uint64_t id) noexcept;

  /// Returns a reference to [p, p + bytes) in the export that holds it. If the memory is neither a block nor
  /// registered, makes an export by legacy handle. Id 0: the memory cannot be shared. Error invalid: it is
  /// not device memory of `device`, or not all of it.
  Result<GpuRef> find(const void* p, std::size_t bytes, int device);
  /// Searches blocks and registered memory only, which are not freed without this library's knowledge. Id 0:
  /// none of them holds [p, p + bytes).
  Result<GpuRef> find_lasting(const void* p, std::size_t bytes);
  /// Returns the handles of an export. If it is in pieces, returns those of at most `most`, from `first` on.
  /// Error refused: the export has ended, or is for this process only.
  Result<ExportHandles> handles_of(std::uint64_t id, std::size_t first, std::size_t most);

  /// The other users of registered memory, besides this rank's device.
  struct Reach {
    bool processes = false;  ///< other processes of this host
    bool devices = false;    ///< other devices of this process
  };
  /// Registers [p, p + bytes) and returns the number of the registration. The caller keeps the memory
  /// allocated until `deregister`. A buffer that lies across adjacent or overlapping registered ranges is
  /// found, too. Errors: invalid (not memory of `device`, or only in part), unsupported (other processes need
  /// access and cannot map it; the text says why), resource.
  Result<std::uint64_t> register_range(const void* p, std::size_t bytes, int device, Reach);
  /// Ends a registration: later operations do not find it. Operations of this process that are in flight
  /// may have named it to ranks that have not reached them. So its exports end, and importers release
  /// them, when the process is idle (free_when_idle). Returns the exports that all importers must close
  /// before the program frees the memory, as CUDA requires for legacy handles. Error invalid: the
  /// registration has ended already.
  Result<std::vector<std::uint64_t>> deregister(std::uint64_t registration);

  /// Returns whether an export has ended. Those that can end now do so first.
  bool ended(std::uint64_t id);
  /// Returns whether an export has not ended.
  bool exists(std::uint64_t id);
  /// The number of exports that have ended so far.
  std::uint64_t endings() const { return table_.endings(); }

 private:
  // The caller holds mutex_.
  GpuRef in_range(const std::byte* p, std::size_t bytes);
  /// Makes one export of the run of ranges around `p`, if the run holds [p, p + bytes). Returns 0 if it does
  /// not, or if other processes cannot map it as one.
  std::uint64_t unite_around(const std::byte* p, std::size_t bytes);
  std::uint64_t export_of_run(RegisteredRanges::Run);
  void check_next_registration();
  /// Removes a range. Exports that nothing uses any more are added to ending_. Allocates nothing
  /// after reserve_ending.
  void remove_range(std::uint64_t registration);
  void reserve_ending();

  // The caller does not hold mutex_.
  /// Makes the export of a range: all pieces of VMM memory that it overlaps, or the whole allocation.
  static Result<GpuExport> make_export(const std::byte* p, std::size_t bytes, const gpu::PointerInfo&, Reach);
  /// Detects memory that the program has freed: each fourth call checks one registration and one
  /// other allocation.
  void check_for_freed();
  /// Ends the exports in ending_ when the process is idle (free_when_idle). If memory is short, a later call
  /// ends those that are left.
  void end_when_idle() noexcept;

  /// Refers to this object as long as it exists, for objects that end an export later.
  struct BackReference {
    std::mutex mutex;
    GpuExports* exports;
  };
  struct WithdrawsOnDestruction;

  std::mutex mutex_;
  ExportTable table_;
  FirstUseExports first_use_{table_};
  RegisteredRanges ranges_;
  std::vector<std::uint64_t> ending_;  // exports that nothing names any more and that end_when_idle is to end
  std::uint64_t calls_ = 0;            // of check_for_freed
  std::uint64_t checked_registration_ = 0;
  const std::shared_ptr<BackReference> back_reference_ = std::make_shared<BackReference>();
};

}  // namespace ouro::rt
