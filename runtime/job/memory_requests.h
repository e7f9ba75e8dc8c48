// Requests for memory of other ranks of this host, over their sockets. Used by HostMemory and DeviceMemory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/wait.h"
#include "runtime/job/job_members.h"
#include "transport/wire/frames.h"

namespace ouro::rt {

/// The requesting side: one connection to the watch thread of the rank that has the memory, one request,
/// one answer.
class MemoryRequests {
 public:
  using Kind = wire::Fetch::Kind;
  static constexpr std::size_t kMaxSegment = std::size_t{16}
                                             << 30;  ///< the links of kMaxRanks ranks stay below this

  MemoryRequests(const JobMembers& members, const wire::Nonce& job) : members_(members), job_(job) {}
  const wire::Nonce& job() const { return job_; }

  /// Errors: unsupported (a rank of another host), peer-dead, refused and others that the rank answers,
  /// deadline (10 s, or earlier at `until`), resource. Fills in the job; `give`: descriptors to send with
  /// the request.
  Result<wire::Frame> ask(int r, wire::Fetch request, std::vector<Fd>* fds, const std::vector<int>& give = {},
                          Clock::time_point until = Clock::time_point::max()) const;
  /// Requests one descriptor; *got: size of the memory, in bytes.
  Result<Fd> fetch(int r, Kind, std::uint64_t key, std::uint64_t bytes, std::uint64_t* got) const;

 private:
  Result<wire::Frame> ask_once(int r, const wire::Fetch&, std::vector<Fd>* fds, const std::vector<int>& give,
                               Clock::time_point until) const;
  const JobMembers& members_;
  const wire::Nonce job_;
};

}  // namespace ouro::rt
