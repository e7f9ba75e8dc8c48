// Groups. Used by the API (ouro::Group is a handle on one).
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/context/context.h"
#include "runtime/core/log.h"
#include "runtime/exec/host/host_resources.h"
#include "runtime/group/adaptation.h"
#include "runtime/group/failure_detector.h"
#include "runtime/group/gpu_operations.h"
#include "runtime/group/group_spec.h"
#include "runtime/group/host_operations.h"
#include "runtime/group/mailbox.h"
#include "runtime/group/member_records.h"
#include "runtime/group/planner.h"
#include "runtime/group/sequencer.h"
#include "runtime/stream/host_stream.h"

namespace ouro::rt {

struct ShrinkOutcome {
  std::vector<int> dead;  // ranks of the old group
  std::uint64_t resume_seq = 0;
};

/// An ordered set of ranks that call operations together: it composes a sequencer, a failure detector, the
/// wiring and what runs operations and messages, and is made, closed and shrunk as a whole.
class Group final : public std::enable_shared_from_this<Group> {
  friend struct TestAccess;

 public:
  static Result<std::shared_ptr<Group>> create(std::shared_ptr<Context>, GroupSpec);
  ~Group();

  int rank() const { return members_.rank(); }
  int size() const { return members_.size(); }
  const GroupSpec& spec() const { return spec_; }
  const std::shared_ptr<Context>& context() const { return context_; }
  bool one_host() const { return members_.one_host(); }
  /// Whether OURO_ALGO names the algorithm of this collective.
  bool forces(const Operation& o) const { return planner_.forces(o); }
  std::optional<int> from_global(int world_rank) const { return members_.find(world_rank); }
  Numerics numerics() const { return spec_.numerics; }

  /// Checks, orders and runs one operation: in the caller (stream == nullptr; *work stays untouched), or on
  /// the stream. Errors of the arguments are returned at once and do not stick. Operations on device memory
  /// go into a stream of that device: the one given, or one of the group's own, and somebody waits for it.
  Status submit(const Operation&, Stream* stream, std::shared_ptr<WorkState>* work);
  /// For operations of a batch that may run as one, which all ranks know alike; they were checked. can: this
  /// rank can do so, and runs them here, as one if all others can, too. Else it only tells the others, who
  /// then run them one by one: they are submitted so, next.
  Status submit(std::shared_ptr<const FusedOperation>, bool can, Stream* stream,
                std::shared_ptr<WorkState>* work);
  Result<std::string> explain(const Operation&);
  /// For a group of which this one's members are a part: its operation `whole`, of which this one runs `op`,
  /// in parts. Disagreements come out as those of `whole`.
  Status run_parts(const Operation& op, const Plan& whole, const NextPart& next) {
    OURO_TRY(ready());
    Plan plan;
    OURO_TRY(this->plan(op, &plan));
    plan.signature = whole.signature, plan.folded = whole.folded;
    return host_.execute(plan, next, sequencer_.take_ticket());
  }
  /// The group whose part this is has failed, and has told its members.
  void give_up(const Status& why) {
    (void)detector_.fail({.reason = Reason::revoked, .text = why.message(), .detector = "group"}, nullptr,
                         false);
  }

  // Messages: see Mailbox.
  /// Posts them and waits for them. 0: the group's deadline.
  Status exchange(const std::vector<Message*>&, std::chrono::milliseconds deadline);
  /// The same when `on` comes to it, under the group's deadline. They are in flight from now on, and hold no
  /// handle of the group: close() waits for them, and with the last handle they end as revoked. On a stream
  /// of a device, which may never come to it or come again and again, they are in flight while it is there.
  std::function<Status()> submit(std::vector<std::shared_ptr<Message>>, Stream* on);
  Mailbox& mailbox() { return mailbox_; }
  Result<std::optional<Envelope>> probe(int source, int tag);
  /// As probe; what is found is set aside. See Messages::match.
  Result<std::optional<Messages::Match>> match(int source, int tag);
  void put_back(std::uint64_t key) {
    if (!context_->inherited()) mailbox_.put_back(key);
  }
  Status check(const Message& m) const { return mailbox_.check(m); }
  /// Posts and completes, in stream order, messages some of which lie on this rank's GPU (GpuOperations).
  /// `stream`: of that GPU. `deadline` as in exchange, from when the stream comes to them.
  Result<std::shared_ptr<WorkState>> run_on_gpu(std::vector<std::shared_ptr<Message>> messages,
                                                const std::shared_ptr<GpuStream>& stream,
                                                std::chrono::milliseconds deadline = {});

  Status status() const { return detector_.status(); }
  /// Whether status() is a failure: one load.
  bool failed() const { return !detector_.ok(); }
  /// For whoever finds no memory for what members wait for. See FailureDetector.
  Status out_of_memory() { return detector_.out_of_memory(); }
  void abort(const std::string& why);
  Status close();
  /// Whether the caller is a thread of a stream, and operations are in flight: they may be queued behind the
  /// caller, which thus must not wait for them.
  bool would_wait_for_itself() { return serving_stream() && busy(); }
  /// A destructor waits for no peer: what is still under way ends and, told so, on the other ranks too.
  void end_in_flight() {
    if (busy()) abort_in_flight();
  }
  Result<std::shared_ptr<Group>> shrink(ShrinkOutcome*);
  /// A group of some of this group's members, given by their ranks here, in order; `salt` tells siblings
  /// apart.
  Result<std::shared_ptr<Group>> derive(const std::vector<int>& members, const std::string& name,
                                        std::uint64_t salt, std::uint64_t generation,
                                        std::chrono::milliseconds deadline, Numerics);
  /// For operations of a group_end() that several groups share: each goes on its own stream.
  HostStream& own_stream();
  /// For work on this rank's GPU that was given no stream of it.
  Result<std::shared_ptr<GpuStream>> own_gpu_stream() { return gpu_.own_stream(); }
  /// How many operations on device memory this rank has enqueued on a path.
  std::uint64_t gpu_ran(GpuPath path) { return gpu_.ran(path); }
  std::uint64_t gpu_named() { return gpu_.named(); }

 private:
  Group(std::shared_ptr<Context>, GroupSpec, int rank, std::vector<int> hosts, GroupRecord&,
        std::unique_ptr<Selector>);

  static void end(Group*);  ///< the last handle has gone
  static Status exchange_if_there(const std::weak_ptr<Group>&, const std::vector<Message*>&,
                                  std::chrono::milliseconds deadline);
  bool busy();  ///< operations are in flight
  void abort_in_flight();
  Status ready() const;  ///< for operations and messages
  Status gone() const;   ///< of what comes after close()
  /// Of messages that are held in flight.
  Status exchange_held(const std::vector<Message*>&, std::chrono::milliseconds deadline);
  Status plan(const Operation&, Plan*);
  Status check_wait(const char* what);  ///< whether the caller may wait for what is in flight
  void await_rest();
  void leave();  ///< close() without waiting for peers

  const std::shared_ptr<Context> context_;
  const GroupSpec spec_;
  const Members members_;
  GroupRecord& record_;  // mine, on my control page
  // One word, as every call looks at both.
  static constexpr std::uint8_t kTraced = 1, kClosed = 2;
  std::atomic<std::uint8_t> unusual_{log::enabled(log::Level::trace, log::Subsystem::CALL) ? kTraced
                                                                                           : std::uint8_t{0}};
  std::atomic<bool> succeeded_{false};  // shrink() has made the group that goes on
  bool closed() const { return (unusual_.load(std::memory_order_acquire) & kClosed) != 0; }

  // In the order in which they rely on each other.
  MemberRecords records_;
  FailureDetector detector_;
  OperationWaiter waiter_;
  Sequencer sequencer_;
  HostResources resources_;
  Planner planner_;
  Adaptation adaptation_;
  HostOperations host_;
  GpuOperations gpu_;
  Mailbox mailbox_;
  std::mutex own_stream_mutex_;
  std::unique_ptr<HostStream> own_stream_;
};

}  // namespace ouro::rt
