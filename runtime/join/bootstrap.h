// Bootstrap: the ranks of a job find each other. Those of one host exchange control segments and pidfds; over
// several hosts, the first of each brings its host's ranks to the rendezvous. Used by the context, once.
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

/// What a rank knows of another once the job is complete.
struct Peer {
  int pid = 0;
  std::string host, server;
  Fd pidfd;  ///< readable when the process has ended; invalid for ranks of this process and on old kernels
  std::shared_ptr<device::Segment> control;  ///< of a rank on another host: a copy
  int node = 0;               ///< which host; 0 has rank 0, others in the order of their first ranks
  std::string endpoint = {};  ///< of a rank on another host, where it takes connections
  wire::Bytes address = {};
  bool remote() const { return !endpoint.empty(); }
};

struct JoinOptions {
  wire::Nonce job{};
  int rank = 0, world = 1;
  std::string settings;  ///< must be equal on all ranks
  std::chrono::milliseconds deadline{300'000}, late_after{10'000};
  Network* network = nullptr;                            ///< of a job on several hosts
  bool leads_host = true;                                ///< the first rank of its host; so is rank 0
  std::shared_ptr<const std::atomic<bool>> cancel = {};  ///< true: joining ends, `revoked`
  bool cancelled() const { return cancel && cancel->load(std::memory_order_relaxed); }
  std::shared_ptr<const Roll> roll = {};  ///< of the launcher that started exactly this job, if it has one
};

struct Joined {
  std::vector<Peer> peers;  ///< by rank; this rank's own entry included
  Fd rendezvous;  ///< of whoever gathered the host: still listening, so that latecomers can be refused
};

/// The abstract name on which rank 0, or the first rank of the host, gathers the ranks of this host.
std::string rendezvous_name(const wire::Nonce&, const std::string& host_id = "");

/// Collective over all ranks. Errors: refused (duplicate rank, other user, closed, not ours), mismatch (world
/// sizes or settings differ; both sides in the text), never-joined (who is missing; at once where `roll`
/// knows that it ended), peer-dead, resource.
Result<Joined> join(const JoinOptions&, const std::string& server, std::shared_ptr<device::Segment> control);

}  // namespace ouro::rt
