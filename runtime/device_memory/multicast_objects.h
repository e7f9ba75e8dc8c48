// Multicast objects between the ranks of a host. Used by DeviceMemory and the resident path.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "runtime/core/fd.h"
#include "runtime/core/status.h"
#include "runtime/device_memory/export_handles.h"
#include "runtime/device_memory/gpu_multicast.h"
#include "runtime/job/job_members.h"
#include "runtime/job/memory_requests.h"

namespace ouro::rt {

/// This rank's parts in multicast objects, by the key of the object, and the steps by which all ranks
/// make one. Thread-safe.
class MulticastObjects {
 public:
  /// `device`: this rank's GPU.
  MulticastObjects(const JobMembers& members, const MemoryRequests& requests, int device)
      : members_(members), requests_(requests), device_(device) {}

  /// Returns the multicast object `key` of these ranks of the job, including this one. All ranks must pass
  /// the same order. On return every rank has joined and bound memory. Peers do this from their watch
  /// threads, so they need not be in this call. A rank that has failed returns its error to all that ask.
  Result<std::shared_ptr<GpuMulticast>> bound_object(std::span<const int> ranks, std::uint64_t key,
                                                     std::size_t bytes);
  /// Ends this rank's part. Peers that request a step later receive an error.
  void drop_object(std::uint64_t key);
  /// Carries out the step that a peer requests, and answers. Called on the watch thread.
  Status serve_step(int line, const wire::Fetch&, std::span<const Fd> given);

 private:
  using Step = wire::Fetch::Kind;
  struct Key {
    std::uint64_t key;
    std::size_t bytes;
    int ranks;
    wire::Fetch request(Step step) const {
      return {.kind = step, .key = key, .bytes = bytes, .ranks = static_cast<std::uint32_t>(ranks)};
    }
  };
  struct Part {
    std::shared_ptr<GpuMulticast> object;
    Status failed;  // the error, if there is no object
  };
  struct Dropped {
    std::uint64_t key;
    Status why;
  };
  /// The number of dropped objects that are remembered. A late request for one of these must not make an
  /// object that would never be dropped.
  static constexpr std::size_t kDropped = 256;

  // The caller holds mutex_.
  Status why_dropped(std::uint64_t key) const;
  template <class Make>
  Result<std::shared_ptr<GpuMulticast>> find_or_make(std::uint64_t key, Make&& make);

  // Steps of this rank.
  Result<ExportHandles> create(const Key&);
  Status join(const Key&, const Fd& object);
  Status bind(const Key&);
  // Steps of any rank of this host.
  Result<ExportHandles> create_at(int creator, const Key&);
  Status step_at(int r, Step, const Key&, const Fd& object);

  const JobMembers& members_;
  const MemoryRequests& requests_;
  const int device_;
  std::mutex mutex_;
  std::map<std::uint64_t, Part> parts_;
  std::deque<Dropped> dropped_;  // the latest
};

}  // namespace ouro::rt
