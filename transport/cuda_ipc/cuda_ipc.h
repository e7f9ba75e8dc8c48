// Device memory between the ranks of a node: what one rank exports, others map, by VMM descriptor, by legacy
// IPC handle, or, within a process, by its address. Used by the context (sockets) and the GPU executors.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/device/gpu.h"
#include "runtime/core/fd.h"
#include "runtime/core/status.h"
#include "transport/cuda_ipc/quiet.h"

namespace ouro::transport {

/// Where a buffer lies: export `id` of a rank (0: others cannot map it), at `offset`; and its address there,
/// which is good within that process.
struct GpuRef {
  std::uint64_t id = 0, offset = 0;
  std::uint64_t address = 0;
};

/// What lets another process map an export. Travels over the authenticated local socket and nowhere else.
struct GpuOffer {
  std::uint64_t bytes = 0;
  Fd fd;  ///< of VMM memory; else the handle holds
  gpu::IpcHandle handle = {};
};

/// Device memory of this library's own making. It is freed after the last owner, when the process is quiet
/// (when_quiet): a driver may wait for all work when it frees.
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

/// What this rank exports. Thread-safe: the watch thread makes offers.
class GpuExports {
 public:
  /// `dropped` is told of each export that has ended, so that importers let go of it; one call at a time.
  explicit GpuExports(std::function<void(std::uint64_t id)> dropped) : dropped_(std::move(dropped)) {}
  /// Exports a block until `withdraw`.
  std::uint64_t add(std::shared_ptr<GpuBlock>);
  void withdraw(std::uint64_t id);
  /// Finds, or makes, the export that holds [p, p + bytes): a block, or any memory that has a legacy handle.
  /// Id 0: it cannot be shared. Error invalid: not device memory of `device`, or not all of it.
  Result<GpuRef> find(const void* p, std::size_t bytes, int device);
  /// The same among blocks only. Id 0: none holds it.
  Result<GpuRef> find_block(const void* p, std::size_t bytes) const;
  Result<GpuOffer> offer(std::uint64_t id) const;

 private:
  struct Entry {
    std::byte* base = nullptr;
    std::size_t bytes = 0;
    std::shared_ptr<GpuBlock> block;  // or a stranger's memory:
    std::uint64_t allocation = 0;
    gpu::IpcHandle handle = {};
  };
  // With mutex_ held.
  GpuRef in_block(const std::byte* p, std::size_t bytes) const;
  /// Nobody says when a stranger frees his memory: a call looks now and then whether the next of it is still
  /// what was exported.
  void look_for_freed();
  void drop(std::map<std::uint64_t, std::uint64_t>::iterator by_base);

  std::function<void(std::uint64_t)> dropped_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Entry> entries_;
  std::map<std::uint64_t, std::uint64_t> by_base_;  // address of a stranger's memory -> id
  std::uint64_t next_ = 1;
  std::uint64_t calls_ = 0, looked_at_ = 0;  // the address of a stranger's memory
};

/// What another process exported, mapped here as long as this lives. A driver may wait for all work when it
/// unmaps, and work may be using it: it goes when the process is quiet (when_quiet).
class GpuImport {
 public:
  static Result<std::shared_ptr<GpuImport>> map(int device, const GpuOffer&);
  ~GpuImport();
  GpuImport(const GpuImport&) = delete;
  GpuImport& operator=(const GpuImport&) = delete;
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  GpuImport() = default;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  int device_ = -1;
  bool legacy_ = false;
  gpu::Region region_;
};

/// What this rank has mapped of one other process's exports.
class GpuImports {
 public:
  /// Where `bytes` bytes at `ref` are here; asks `fetch` for an offer the first time. Bounds are checked
  /// against what was mapped. The address is good for the operations under way, and as long as `keep` lives.
  struct At {
    std::byte* data = nullptr;
    std::shared_ptr<GpuImport> keep;
  };
  Result<At> map(int device, const GpuRef& ref, std::size_t bytes,
                 const std::function<Result<GpuOffer>()>& fetch);
  /// The export has ended: it is unmapped when nothing uses it any more, and mapped anew if it is asked for.
  void retire(std::uint64_t id);
  void retire_all();

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<GpuImport>> mapped_;
};

}  // namespace ouro::transport
