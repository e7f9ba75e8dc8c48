// What this rank has mapped of the other processes of its host. Used by DeviceMemory and ExportListing.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/core/status.h"
#include "runtime/device_memory/gpu_imports.h"
#include "runtime/job/job_members.h"

namespace ouro::rt {

/// The imports of one rank from all others, and when they are released. Each rank lists on its control page
/// which of its exports have ended; importers release these mappings and no others. Thread-safe.
class PeerImports {
 public:
  /// `device`: this rank's GPU, or -1.
  PeerImports(JobMembers&, int device);

  /// Maps `ref` of rank r, of another process. Errors: revoked (closed), those of GpuImports::map.
  Result<GpuImports::Mapped> map_export(int r, const GpuRef& ref, std::size_t bytes, const RequestHandles&);
  /// Maps the block `key` of rank r, of another process, or returns the mapping that some `keep` holds. It is
  /// mapped as long as a `keep` lives. Errors: those of map_export.
  Result<GpuImports::Mapped> map_block(int r, std::uint64_t key, std::size_t bytes, const RequestHandles&);

  /// Releases imports whose exports rank r lists as ended; from then on only a `keep` holds them. Returns
  /// false if the list of ended exports overflowed; then all imports from r were released.
  bool release_ended(int r);
  /// Does the same for all ranks, and notifies the keepers. Called on the watch thread and
  /// before allocations.
  void release_all_ended();
  /// Releases the imports from rank r that can be released now, and returns whether this process still maps
  /// its export `id`. Called on the watch thread.
  bool still_maps(int r, std::uint64_t id);
  /// The number of mappings that this rank has made so far, those that failed and that have ended included.
  /// Thread-safe, for instruments: a mapping takes far longer than an operation.
  std::uint64_t mappings() const { return mappings_.load(std::memory_order_relaxed); }
  /// Maps nothing from now on and releases all imports, except those that an owner keeps for a graph.
  void close();

 private:
  friend class ImportKeeper;
  struct FromRank {
    explicit FromRank(GpuImports::MakeToken make_token) : exports(std::move(make_token)) {}
    std::atomic<std::uint64_t> endings_seen{0};  // set under mutex_
    bool list_overflowed = false;
    GpuImports exports;
    std::map<std::uint64_t, std::weak_ptr<GpuImport>> blocks;  // by key; under mutex_
  };
  class OpenCount;
  FromRank& from_rank(int r) { return *from_ranks_[static_cast<std::size_t>(r)]; }
  void read_endings(int r);
  void notify_keepers();

  JobMembers& members_;
  const int device_;
  const std::shared_ptr<OpenCount> open_count_;
  std::atomic<std::uint64_t> mappings_{0};
  std::mutex mutex_;
  bool closed_ = false;  // under mutex_
  std::vector<std::unique_ptr<FromRank>> from_ranks_;
  std::mutex keepers_mutex_;
  std::list<std::function<void()>> keepers_;
};

/// An owner that keeps imports beyond an operation. As long as this object exists, `release_ended` is called,
/// from any thread, when exports may have ended; it then releases their imports.
class ImportKeeper {
 public:
  ImportKeeper(PeerImports&, std::function<void()> release_ended);
  ~ImportKeeper();
  ImportKeeper(const ImportKeeper&) = delete;
  ImportKeeper& operator=(const ImportKeeper&) = delete;

 private:
  PeerImports& imports_;
  std::list<std::function<void()>>::iterator at_;
};

}  // namespace ouro::rt
