// A rank of an explored program: the library's own host part of a group, over links and staging buffers in
// the arena. The layer below (wiring, registered memory, loops) is in below.cc. Used by the protocols.
#pragma once
#include <memory>
#include <vector>

#include "runtime/exec/host/host_resources.h"
#include "tests/explore/engine/program.h"

namespace explore {

/// State that all ranks of an execution share; made anew for each.
struct Job {
  int ranks = 2;
  std::uint32_t slots = 2;  ///< slots of a link
  bool late_sleepers =
      true;  ///< a writer may miss a sleeper that is just registering; false: as if a fence separated them
  // Indexed by rank, or by pair (from * ranks + to).
  std::vector<ouro::LinkView> links;
  std::vector<ouro::StagingView> staging;
  std::vector<ouro::Counter*> doorbells;
  std::vector<std::uint32_t*> aborts;
  std::shared_ptr<ouro::SharedSegment> device_words;
  std::vector<std::byte*> registered;  ///< memory that other ranks may use in place
  static constexpr std::size_t kSlotBytes = 64, kStagingBytes = 256, kRingBytes = 320, kRegisteredBytes = 512;

  void make_links();
  void make_staging();
  void make_registered();
};
extern Job* job;  // of the current execution

/// Labels the words of a counter.
void label(ouro::Counter& c, const char* value, const char* sleepers, bool late_sleepers);

/// Links of the job behind the transport interface.
std::unique_ptr<ouro::transport::Links> links_of(int rank);

/// Waits as operations do. The check during the wait finds the failure that `failed` names, if any.
class RankWaiter final : public ouro::Waiter {
 public:
  explicit RankWaiter(const std::uint32_t* abort) : Waiter(abort, ouro::Patience{}), abort_(abort) {}

 protected:
  ouro::Status check(ouro::Clock::duration) override;

 private:
  const std::uint32_t* abort_;
};

/// A rank with the objects that it needs for operations on the host.
class Rank {
 public:
  explicit Rank(const ouro::rt::Members& members);  ///< this rank among all ranks
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ouro::Status run(const ouro::rt::Plan& plan, std::uint64_t seq);
  RankWaiter waiter;
  ouro::rt::HostResources resources;
  std::uint64_t history = 0;  // folded hash of the operations so far (InFlight)
};

/// Makes the plan of a call with this algorithm; made once for all executions.
struct Call {
  ouro::Collective collective = ouro::Collective::all_reduce;
  ouro::flow::Algorithm algorithm{};
  bool staging = false, try_zero_copy = false;
  std::size_t count = 1;  ///< elements (uint64), as the collective counts them
  int root = 0;
  std::size_t slot = Job::kStagingBytes;  ///< maximum bytes of a staging slot that posts use
  std::size_t eager = 64;                 ///< bytes of an eager slot; a longer post uses a staging slot
  bool ring = false;                      ///< posts go round the ring, which has room for five of 64 bytes
};
ouro::rt::Plan plan_of(const Call&, const ouro::rt::Members&, const void* in, void* out);
/// All members of a job on one host, as each of them sees them.
const ouro::rt::Members& members_of(int rank, int ranks);

}  // namespace explore
