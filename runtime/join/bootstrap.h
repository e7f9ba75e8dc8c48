// Bootstrap: the ranks of a job find each other. Those of one host exchange control segments and pidfds; in a
// job over several hosts, the first rank of each host brings its host's ranks to the rendezvous. Used by the
// context, once.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/segment.h"
#include "runtime/core/status.h"
#include "runtime/core/wait.h"
#include "transport/wire/frames.h"

namespace ouro::rt {

class Network;
class Roll;

/// A rank's record of another rank once the job is complete.
struct Peer {
  int pid = 0;
  std::uint64_t process = 0;  ///< its process_number(); of ranks of this host known from the start
  std::string host, server;
  Fd pidfd;  ///< readable when the process has ended; invalid for ranks of this process and on old kernels
  std::shared_ptr<SharedSegment> control;  ///< of a rank on another host: a replica
  int node = 0;               ///< its host; hosts are numbered in the order of their lowest ranks
  std::string endpoint = {};  ///< where a rank on another host listens; else ""
  wire::Bytes address = {};
  bool remote() const { return !endpoint.empty(); }
};

struct JoinOptions {
  wire::Nonce job{};
  int rank = 0, world = 1;
  std::string settings;  ///< must be equal on all ranks
  std::chrono::milliseconds deadline{300'000}, late_after{10'000};
  Network* network = nullptr;                            ///< for a job on several hosts; else nullptr
  bool leads_host = true;                                ///< this is the first rank of its host, as rank 0 is
  std::shared_ptr<const std::atomic<bool>> cancel = {};  ///< true: joining ends with `revoked`
  bool cancelled() const { return cancel && cancel->load(std::memory_order_relaxed); }
  std::shared_ptr<const Roll> roll = {};  ///< of the launcher that started exactly this job, if it has one
};

struct Joined {
  std::vector<Peer> peers;  ///< by rank; this rank's own entry included
  Fd rendezvous;  ///< on the rank that gathered the host: still listens, so that latecomers can be refused
};

/// The abstract name on which rank 0, or the first rank of the host, gathers the ranks of this host.
std::string rendezvous_name(const wire::Nonce&, const std::string& host_id = "");

/// Collective over all ranks. Errors: refused (duplicate rank, another user, the job is closed, no request of
/// this job), mismatch (world sizes or settings differ; the text has both sides), never-joined (names the
/// missing ranks; at once if `roll` knows that one has ended), peer-dead, resource, revoked (cancelled).
Result<Joined> join(const JoinOptions&, const std::string& server, std::shared_ptr<SharedSegment> control);

}  // namespace ouro::rt
