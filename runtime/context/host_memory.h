// Memory that the ranks of a host share. Used by Context, groups and the host executor.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/link_view.h"
#include "runtime/core/segment.h"
#include "runtime/job/job_members.h"
#include "runtime/job/memory_requests.h"

namespace ouro::rt {

/// Host memory between the ranks of a host: segments of groups, registered allocations of this rank and of
/// its peers, and private memory of peers that this rank may read. Thread-safe.
class HostMemory {
 public:
  HostMemory(JobMembers& members, const MemoryRequests& requests)
      : members_(members), requests_(requests), imported_(static_cast<std::size_t>(members.size())) {}

  /// The segment `key` of `bytes` bytes, which rank `owner` holds and makes on first demand.
  Result<std::shared_ptr<SharedSegment>> segment(std::uint64_t key, std::size_t bytes, int owner);
  void drop_segment(std::uint64_t key);

  /// Registered memory of this rank; it exists until forget(id).
  struct Registered {
    std::uint64_t id;
    std::shared_ptr<SharedSegment> segment;
  };
  Result<Registered> allocate(std::size_t bytes);
  void forget(std::uint64_t id);
  /// The reference to [p, p + bytes), if all of it is registered memory of this rank; id 0 otherwise.
  MemoryRef reference_to(const void* p, std::size_t bytes) const;
  /// The local address of a rank's registered memory; checked against its size.
  struct Resolved {
    std::byte* data;
    std::shared_ptr<SharedSegment> keep;  ///< mapped at least as long as this lives
  };
  Result<Resolved> resolve(int r, MemoryRef, std::size_t bytes);
  /// Whether this rank may read the private memory of all the given ranks; tried once for each of them.
  bool reaches(const std::vector<int>& ranks);
  /// Copies from an address in the process of a rank that reaches() has found readable; from this process by
  /// memcpy. Errors: those of transport::read_process().
  Status copy(int rank, std::uint64_t from, void* to, std::size_t bytes) const;
  /// Likewise for any rank of this host; false if this rank may not read it, or the copy fails.
  bool read(int rank, std::uint64_t from, void* to, std::size_t bytes);

  /// Whether at least nine tenths of [p, p + bytes) are on huge pages, as far as the kernel says.
  bool on_huge_pages(const void* p, std::size_t bytes);

  /// Serves a peer's request for a segment or an allocation; called on the watch thread.
  Status serve(int line, const wire::Fetch&);

 private:
  bool may_read(int rank) const;

  JobMembers& members_;
  const MemoryRequests& requests_;

  std::mutex segments_mutex_;
  std::map<std::uint64_t, std::shared_ptr<SharedSegment>> segments_;  // those that this rank owns

  struct Exported {
    std::byte* base;
    std::size_t bytes;
    std::shared_ptr<SharedSegment> segment;
  };
  mutable std::shared_mutex exported_mutex_;
  std::atomic<std::size_t> exported_count_{0};
  std::map<std::uint64_t, Exported> exported_;  // by id
  std::uint64_t next_allocation_ = 1;

  struct Imported {
    std::uint64_t freed_seen = 0;
    std::map<std::uint64_t, std::shared_ptr<SharedSegment>> segments;
  };
  std::mutex imported_mutex_;
  std::vector<Imported> imported_;  // by rank

  std::mutex reach_mutex_;
  std::map<int, bool> reach_;  // by rank
  std::once_flag pagemap_once_;
  Fd pagemap_;  // opened by the first question, since most jobs ask none
};

}  // namespace ouro::rt
