// Imports: exports of another process that are mapped here. Used by PeerImports and the GPU executors.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/device/gpu.h"
#include "runtime/core/status.h"
#include "runtime/device_memory/export_handles.h"

namespace ouro::rt {

/// The mapping of one export of another process, which lasts as long as this object. It is unmapped when the
/// process is idle (free_when_idle), because a driver may wait for all work when it unmaps, and work may be
/// using the memory.
class GpuImport {
 public:
  /// Calls `request` for the pieces that `handles` lacks. Keeps `token` until the memory has been unmapped.
  static Result<std::shared_ptr<GpuImport>> map(int device, const ExportHandles& handles,
                                                const RequestHandles& request, std::shared_ptr<void> token);
  ~GpuImport();
  GpuImport(const GpuImport&) = delete;
  GpuImport& operator=(const GpuImport&) = delete;
  std::byte* data() const { return data_; }
  /// The size that the driver has mapped, at most the size that the peer stated.
  std::size_t bytes() const { return bytes_; }
  /// Returns whether the export has ended, so that no later operation names it.
  bool export_ended() const { return export_ended_.load(std::memory_order_relaxed); }
  void note_export_ended() { export_ended_.store(true, std::memory_order_relaxed); }
  /// Expires when the memory has been unmapped.
  std::weak_ptr<void> while_mapped() const { return token_; }

 private:
  explicit GpuImport(std::shared_ptr<void> token) : token_(std::move(token)) {}
  Status map_pieces(int device, const ExportHandles&, const RequestHandles&);
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  int device_ = -1;
  bool legacy_ = false;
  gpu::Region region_;
  gpu::MappedRange range_;
  std::atomic<bool> export_ended_{false};
  const std::shared_ptr<void> token_;
};

/// The imports from one other process, by export. Thread-safe.
class GpuImports {
 public:
  /// Makes an object for each import before it is mapped; the object lives until it has been unmapped.
  using MakeToken = std::function<std::shared_ptr<void>()>;
  explicit GpuImports(MakeToken make_token = [] { return std::make_shared<char>(); })
      : make_token_(std::move(make_token)) {}

  /// An address in an import. It is valid for the operations under way, and as long as `keep` lives.
  struct Mapped {
    std::byte* data = nullptr;
    std::shared_ptr<GpuImport> keep;
  };
  /// Returns the local address of `bytes` bytes at `ref`. Maps the export on first use and calls `request`
  /// for its handles. Error ring-corrupt: the bytes are not within the memory that is mapped.
  Result<Mapped> map(int device, const GpuRef& ref, std::size_t bytes, const RequestHandles& request);
  /// Releases the import of an export that has ended. It is unmapped when nothing uses it any more.
  void release_ended(std::uint64_t id);
  /// Releases all imports. `exports_ended`: owners that keep imports release them, too; otherwise these
  /// imports last as long as they are kept.
  void release_all(bool exports_ended);
  /// Returns whether the export is mapped here, which includes that it waits to be unmapped. Does not
  /// wait for map().
  bool is_mapped(std::uint64_t id);

 private:
  const MakeToken make_token_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<GpuImport>> imports_;
  std::mutex tokens_mutex_;                                   // taken after mutex_
  std::multimap<std::uint64_t, std::weak_ptr<void>> tokens_;  // by export, until it is unmapped
};

}  // namespace ouro::rt
