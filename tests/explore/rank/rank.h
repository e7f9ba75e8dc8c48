// A rank of an explored program: the host's part of a group as it is in the library, over links and staging
// buffers in the arena. What lies beneath (wiring, registered memory, loops) is in below.cc. Used by the
// protocols.
#pragma once
#include <memory>
#include <vector>

#include "runtime/exec/host/host_resources.h"
#include "tests/explore/engine/program.h"

namespace explore {

/// What all ranks of an execution share; made anew for each.
struct Job {
  int ranks = 2;
  std::uint32_t slots = 2;  ///< of a link
  bool late_sleepers =
      true;  ///< a writer may miss who registers at the very moment; else as if behind a fence
  // By rank, or by pair (from * ranks + to).
  std::vector<ouro::LinkView> links;
  std::vector<ouro::StagingView> staging;
  std::vector<ouro::Counter*> doorbells;
  std::vector<std::uint32_t*> aborts;
  std::shared_ptr<ouro::device::Segment> device_words;
  std::vector<std::byte*> registered;  ///< memory that others may use in place
  static constexpr std::size_t kSlotBytes = 64, kStagingBytes = 256, kRegisteredBytes = 512;

  void make_links();
  void make_staging();
  void make_registered();
};
extern Job* job;  // of this execution

/// Names the words of a counter.
void label(ouro::Counter& c, const char* value, const char* sleepers, bool late_sleepers);

/// Links of the job as the transport interface has them.
std::unique_ptr<ouro::transport::Links> links_of(int rank);

/// Waits as operations do. The look finds the failure that `failed` names, if any.
class RankWaiter final : public ouro::Waiter {
 public:
  explicit RankWaiter(const std::uint32_t* abort) : Waiter(abort, ouro::Patience{}), abort_(abort) {}

 protected:
  ouro::Status look(ouro::Clock::duration) override;

 private:
  const std::uint32_t* abort_;
};

/// A rank with what it needs to run operations of the host.
class Rank {
 public:
  explicit Rank(const ouro::rt::Members& members);  ///< this rank among all
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ouro::Status run(const ouro::rt::Plan& plan, std::uint64_t seq);
  RankWaiter waiter;
  ouro::rt::HostResources resources;
  std::uint64_t history = 0;  // of the operations so far, folded (InFlight)
};

/// What a call amounts to, with this algorithm; made once for all executions.
struct Call {
  ouro::Collective collective = ouro::Collective::all_reduce;
  ouro::flow::Algorithm algorithm{};
  bool staging = false, try_zero_copy = false;
  std::size_t count = 1;  ///< elements (uint64), as the collective counts them
  int root = 0;
  std::size_t slot = Job::kStagingBytes;  ///< bytes of a staging slot that posts take, at most
  std::size_t eager = 64;  ///< bytes of an eager slot; if a post is longer, it goes to a staging slot
};
ouro::rt::Plan plan_of(const Call&, const ouro::rt::Members&, const void* in, void* out);
/// All members of a job on one host, as each of them sees them.
const ouro::rt::Members& members_of(int rank, int ranks);

}  // namespace explore
