// Device memory between the ranks of a node: what one rank exports, others map, by VMM descriptor, by legacy
// IPC handle, or, within a process, by its address. Used by the context (sockets) and the GPU executors.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/device/gpu.h"
#include "runtime/core/fd.h"
#include "runtime/core/status.h"
#include "runtime/device_memory/deferred_free.h"

namespace ouro::rt {

/// Where a buffer lies: export `id` of a rank (0: others cannot map it), at `offset`; and its address there,
/// which is good within that process.
struct GpuRef {
  std::uint64_t id = 0, offset = 0;
  std::uint64_t address = 0;
};

/// What lets another process map an export. Travels over the authenticated local socket and nowhere else.
struct ExportHandles {
  struct Piece {
    std::uint64_t bytes = 0;
    Fd fd;
  };
  std::uint64_t bytes = 0;
  Fd fd;                      ///< of VMM memory in one piece
  std::vector<Piece> pieces;  ///< of VMM memory in several, some of them in order; else the handle holds
  gpu::IpcHandle handle = {};
};
/// Requests the offer of an export. Where the export is in pieces, the offer has some of them, from piece
/// `first` on.
using RequestHandles = std::function<Result<ExportHandles>(std::size_t first)>;

/// Device memory that this library allocates. It is freed after the last owner is destroyed, when the process
/// is idle (free_when_idle): a driver may wait for all work when it frees.
class GpuBlock {
 public:
  /// Zero-filled. Shareable where the device can; else ordinary memory, which legacy handles may still share.
  static Result<std::shared_ptr<GpuBlock>> create(int device, std::size_t bytes);
  ~GpuBlock();
  GpuBlock(const GpuBlock&) = delete;
  GpuBlock& operator=(const GpuBlock&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(region_.data); }
  std::size_t bytes() const { return bytes_; }
  int device() const { return region_.device; }
  bool shareable() const { return shareable_; }
  const gpu::Region& region() const { return region_; }

 private:
  GpuBlock() = default;
  gpu::Region region_;
  std::size_t bytes_ = 0;
  bool shareable_ = false;
};

/// A reference to one piece of VMM memory that the program allocated. It keeps the memory allocated, even if
/// the program unmaps it. It is released when the process is idle (free_when_idle), as that may free the
/// memory.
class RetainedPiece {
 public:
  /// The piece around `p`. Errors: those of gpu::Gpu::retain_piece.
  static Result<std::shared_ptr<RetainedPiece>> retain(const void* p);
  ~RetainedPiece();
  RetainedPiece(const RetainedPiece&) = delete;
  RetainedPiece& operator=(const RetainedPiece&) = delete;
  const gpu::Region& region() const { return region_; }
  std::byte* begin() const { return static_cast<std::byte*>(region_.data); }
  std::byte* end() const { return begin() + region_.bytes; }

 private:
  RetainedPiece() = default;
  gpu::Region region_;
  bool retained_ = false;
};

/// The exports of this rank: blocks that this library allocated, memory that the program registered, and, for
/// the leader's path, any memory that has a legacy handle. Thread-safe: the watch thread makes offers.
class GpuExports {
 public:
  static constexpr std::size_t kMaxPieces = 65'536;  ///< of an export

  /// `dropped` is called for each export that has ended, so that importers release it; one call at a time.
  explicit GpuExports(std::function<void(std::uint64_t id)> dropped) : dropped_(std::move(dropped)) {
    alive_->exports = this;
  }
  ~GpuExports();
  GpuExports(const GpuExports&) = delete;
  GpuExports& operator=(const GpuExports&) = delete;
  /// Exports a block until `withdraw`.
  std::uint64_t add(std::shared_ptr<GpuBlock>);
  void withdraw(std::uint64_t id);
  /// The same when the process is idle (free_when_idle): operations in flight may have named the block to
  /// ranks that have not reached them. If memory is short, it is exported as long as this object lives.
  void withdraw_when_idle(std::uint64_t id) noexcept;
  /// Finds, or makes, the export that holds [p, p + bytes): a block, or any memory that has a legacy handle.
  /// Id 0: it cannot be shared. Error invalid: not device memory of `device`, or not all of it.
  Result<GpuRef> find(const void* p, std::size_t bytes, int device);
  /// Finds the export that holds [p, p + bytes) among blocks and registered memory only. Id 0: none does.
  Result<GpuRef> find_lasting(const void* p, std::size_t bytes);
  /// Returns the offer of an export. Where it is in pieces, the offer has at most `most`, from `first` on.
  Result<ExportHandles> offer(std::uint64_t id, std::size_t first, std::size_t most);

  /// What has to access registered memory besides this rank's device.
  struct Reach {
    bool processes = false;  ///< other processes of this host
    bool devices = false;    ///< other devices of this process
  };
  /// Registers [p, p + bytes). The caller keeps the memory allocated until `deregister`. A buffer that lies
  /// across registered ranges that are adjacent or overlap is found, too. Returns the number of the
  /// registration. Errors: invalid (not memory of `device`, or only in part), unsupported (other processes
  /// need access and cannot map it; the text says why), resource.
  Result<std::uint64_t> register_range(const void* p, std::size_t bytes, int device, Reach);
  /// Ends a registration: later operations do not find it. Operations of this process that are in flight may
  /// have named it to ranks that have not reached them, so its exports end, and importers release them, when
  /// the process is idle (free_when_idle). Returns the exports that all importers must close before the
  /// memory is freed (CUDA requires that of legacy handles). Error invalid: the registration has ended
  /// already.
  Result<std::vector<std::uint64_t>> deregister(std::uint64_t registration);
  /// Whether an export has ended. Those that can end now do so first.
  bool ended(std::uint64_t id);
  /// Whether an export has not ended.
  bool exists(std::uint64_t id);
  /// How many exports have ended so far.
  std::uint64_t endings() const { return endings_.load(std::memory_order_acquire); }

 private:
  struct Entry {
    std::byte* base = nullptr;
    std::size_t bytes = 0;
    std::shared_ptr<GpuBlock> block;                     // set for blocks
    std::vector<std::shared_ptr<RetainedPiece>> pieces;  // set for registered VMM memory
    std::uint64_t allocation = 0;
    gpu::IpcHandle handle = {};
    bool has_handle = false;
    int users = 0;         // number of ranges that use the export
    bool offered = false;  // another process may have mapped it
  };
  /// A registered range.
  struct Range {
    const std::byte* end;
    std::uint64_t id;          // of the export that holds it
    std::uint64_t number;      // of the registration
    std::uint64_t allocation;  // number of the allocation at its beginning, when it was registered
  };
  using Ranges = std::multimap<const std::byte*, Range>;  // by their beginnings
  /// An export of adjacent ranges: of all in [begin, end) with a lower number of their registration.
  struct Union {
    const std::byte *begin, *end;
    std::uint64_t id;
    std::uint64_t number;
    bool has(const Range& r, const std::byte* from) const {
      return r.number < number && from >= begin && r.end <= end;
    }
  };
  /// Addresses that adjacent ranges cover without a gap.
  struct Chain {
    const std::byte* end;
    bool joins = true;  // false: other processes cannot map it as one export
  };
  // With mutex_ held.
  GpuRef in_block(const std::byte* p, std::size_t bytes) const;
  GpuRef in_range(const std::byte* p, std::size_t bytes);
  /// The export of the registered range, or of the union of ranges, that holds [p, p + bytes); 0: there is
  /// none. Of several, the oldest: it is what ranks may have listed already.
  std::uint64_t export_around(const std::byte* p, std::size_t bytes) const;
  /// Makes one export of all registrations that are adjacent around `p`, if together they hold
  /// [p, p + bytes). Returns 0 if they do not.
  std::uint64_t join(const std::byte* p, std::size_t bytes);
  /// Adds the union to unions_, and its export, if it is a new one. False: other processes cannot map it.
  bool unite(const std::byte* begin, const std::byte* end);
  void add_range(const std::byte* begin, Range);
  /// Removes a range, and the unions that it is a part of. Exports that nothing uses then have to end
  /// (stop_using). Allocates nothing after make_room_to_end.
  void drop_range(Ranges::const_iterator);
  /// If no other range or union uses the export, it has to end, and so does the one that the leader's path
  /// has made of the same allocation: both are added to ending_.
  void stop_using(std::uint64_t id);
  void make_room_to_end();
  void check_for_freed_range();
  static bool still(const void* p, std::uint64_t allocation);
  /// Returns the export, if there was one: the caller drops it after the lock, since the memory of its pieces
  /// may be freed with it.
  std::map<std::uint64_t, Entry>::node_type end(std::uint64_t id);
  void drop(std::map<std::uint64_t, std::uint64_t>::iterator by_base);
  // Without it.
  static Result<Entry> entry_of(const std::byte* p, std::size_t bytes, const gpu::PointerInfo&, Reach);
  /// Ends the exports in ending_ when the process is idle (free_when_idle). If memory is short, those that
  /// are left end after a later call.
  void end_when_idle() noexcept;
  /// Says whether the exports still exist, for objects that end an export later (EndsWithIt).
  struct Alive {
    std::mutex mutex;
    GpuExports* exports;
  };
  struct EndsWithIt;
  /// The program does not notify this library when it frees memory, so each fourth call re-checks one
  /// exported allocation.
  void check_for_freed();

  std::function<void(std::uint64_t)> dropped_;
  std::mutex mutex_;
  std::map<std::uint64_t, Entry> entries_;
  std::vector<std::uint64_t> ending_;  // exports that nothing names any more, and end_when_idle is to end
  std::map<std::uint64_t, std::uint64_t> by_base_;  // address of the program's memory -> id
  std::uint64_t next_ = 1;
  std::atomic<std::uint64_t> endings_{0};
  std::uint64_t calls_ = 0, checked_at_ = 0;  // the address of the program's memory that was checked last
  Ranges ranges_;
  std::vector<Union> unions_;                                // the oldest first
  std::map<const std::byte*, Chain> chains_;                 // by their beginnings; none: ranges have changed
  std::size_t longest_ = 0;                                  // length of the longest range so far
  std::map<std::uint64_t, const std::byte*> registrations_;  // by number; nullptr: freed before its end
  std::uint64_t checked_registration_ = 0;
  const std::shared_ptr<Alive> alive_ = std::make_shared<Alive>();
};

/// An export of another process, mapped here as long as this object exists. It is unmapped when the process
/// is idle (free_when_idle): a driver may wait for all work when it unmaps, and work may be using the memory.
class GpuImport {
 public:
  /// Calls `more` for the pieces that the offer lacks. Keeps `token` until the memory has been unmapped.
  static Result<std::shared_ptr<GpuImport>> map(int device, const ExportHandles&, const RequestHandles& more,
                                                std::shared_ptr<void> token);
  ~GpuImport();
  GpuImport(const GpuImport&) = delete;
  GpuImport& operator=(const GpuImport&) = delete;
  std::byte* data() const { return data_; }
  /// As many as the driver has mapped, at most as many as were offered.
  std::size_t bytes() const { return bytes_; }
  /// Whether its export has ended, so that no later operation names it.
  bool retired() const { return retired_.load(std::memory_order_relaxed); }
  void retire() { retired_.store(true, std::memory_order_relaxed); }
  /// Expires when the memory has been unmapped.
  std::weak_ptr<void> mapped() const { return token_; }

 private:
  explicit GpuImport(std::shared_ptr<void> token) : token_(std::move(token)) {}
  Status map_pieces(int device, const ExportHandles&, const RequestHandles& more);
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  int device_ = -1;
  bool legacy_ = false;
  gpu::Region region_;
  gpu::MappedRange range_;
  std::atomic<bool> retired_{false};
  const std::shared_ptr<void> token_;
};

/// What this rank has mapped of one other process's exports.
class GpuImports {
 public:
  /// `token` makes, for each export before it is mapped, what lives until it has been unmapped.
  using Token = std::function<std::shared_ptr<void>()>;
  explicit GpuImports(Token token = [] { return std::make_shared<char>(); }) : token_(std::move(token)) {}
  /// Where `bytes` bytes at `ref` are here; asks `fetch` for an offer the first time. Bounds are checked
  /// against what was mapped. The address is good for the operations under way, and as long as `keep` lives.
  struct At {
    std::byte* data = nullptr;
    std::shared_ptr<GpuImport> keep;
  };
  Result<At> map(int device, const GpuRef& ref, std::size_t bytes, const RequestHandles& fetch);
  /// The export has ended: it is unmapped when nothing uses it any more, and mapped anew if it is asked for.
  void retire(std::uint64_t id);
  /// The same for all, as far as they are known by now. `marked`: owners that keep imports release them;
  /// else these stay as long as they are kept.
  void retire_all(bool marked);
  /// Whether the export is mapped here, which includes that it waits to be unmapped. Does not wait for map().
  bool holds(std::uint64_t id);

 private:
  const Token token_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<GpuImport>> mapped_;
  std::mutex held_mutex_;                                   // taken after mutex_
  std::multimap<std::uint64_t, std::weak_ptr<void>> held_;  // by id, until they are unmapped
};

}  // namespace ouro::rt
