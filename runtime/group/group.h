// Group: an ordered set of ranks. Orders operations, runs them, finds disagreement, late and dead ranks, and
// keeps the first error. Used by the API (ouro::Group is a handle on this).
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/context/context.h"
#include "runtime/core/log.h"
#include "runtime/exec/gpu/gpu_executor.h"
#include "runtime/exec/host/host_resources.h"
#include "runtime/group/messages.h"
#include "runtime/health/agreement.h"
#include "runtime/plan/operation.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/select.h"
#include "runtime/stream/gpu_stream.h"
#include "runtime/stream/host_stream.h"

namespace ouro::rt {

struct GroupSpec {
  std::vector<int> ranks;  ///< world rank of each member, in the group's order
  std::string name;
  std::uint64_t generation = 0;
  std::uint64_t key = 0;  ///< names this group on control pages; equal on all members, never 0
  std::chrono::milliseconds deadline{0};
  Numerics numerics = Numerics::fast;
};

struct ShrinkOutcome {
  std::vector<int> dead;  // ranks of the old group
  std::uint64_t resume_seq = 0;
};

class Group final : public std::enable_shared_from_this<Group>, public MemberObserver {
  friend struct TestAccess;

 public:
  static Result<std::shared_ptr<Group>> create(std::shared_ptr<Context>, GroupSpec);
  ~Group();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(spec_.ranks.size()); }
  const GroupSpec& spec() const { return spec_; }
  const std::shared_ptr<Context>& context() const { return context_; }
  bool one_host() const { return members_.one_host(); }
  /// Whether OURO_ALGO names the algorithm of this collective.
  bool forces(Collective c) const { return selector_->forces(c); }
  std::optional<int> from_global(int world_rank) const { return members_.find(world_rank); }

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

  // Messages. All Message objects live until they are done or the call has returned.
  Status post(std::vector<Message*> messages);  ///< checks and hands over; does not wait
  /// Drives traffic until all are done; those that are not when it fails are withdrawn. 0: the group's
  /// deadline.
  Status complete(const std::vector<Message*>& messages, std::chrono::milliseconds deadline);
  Result<std::optional<Envelope>> probe(int source, int tag);
  /// As probe; what is found is set aside. See Messages::match.
  Result<std::optional<Messages::Match>> match(int source, int tag);
  void put_back(std::uint64_t key);
  /// What is wrong with a message's arguments.
  Status check(const Message&) const;
  /// Posts and completes, in stream order, messages some of which lie on this rank's GPU: through pinned
  /// memory, which is filled before and emptied after. `stream`: of that GPU. `done` is called on a thread of
  /// the stream's with the outcome of what the host did; the returned work ends when the device has the data,
  /// too.
  Result<std::shared_ptr<WorkState>> run_on_gpu(std::vector<std::shared_ptr<Message>> messages,
                                                const std::shared_ptr<GpuStream>& stream,
                                                std::function<void(const Status&)> done = {});

  /// How many operations on device memory this rank has enqueued on a path.
  std::uint64_t gpu_ran(GpuPath);

  Status status() const;
  /// Whether status() is a failure: one load.
  bool failed() const {
    return std::atomic_ref(const_cast<std::uint32_t&>(abort_word_)).load(std::memory_order_acquire) != 0;
  }
  void abort(const std::string& why);
  Status close();
  /// Whether the caller is a thread of a stream, and operations are in flight: they may be queued behind the
  /// caller, which thus must not wait for them.
  bool would_wait_for_itself() { return serving_stream() && busy(); }
  Result<std::shared_ptr<Group>> shrink(ShrinkOutcome*);
  /// A group of some of this group's members, given by their ranks here, in order; `salt` tells siblings
  /// apart.
  Result<std::shared_ptr<Group>> derive(const std::vector<int>& members, const std::string& name,
                                        std::uint64_t salt, std::uint64_t generation,
                                        std::chrono::milliseconds deadline, Numerics);
  Numerics numerics() const { return spec_.numerics; }
  /// For operations of a group_end() that several groups share: each goes on its own stream.
  HostStream& own_stream();
  /// For work on this rank's GPU that was given no stream of it.
  Result<std::shared_ptr<GpuStream>> own_gpu_stream();

  // Called by the context, possibly from its watch thread.
  void on_losses(const std::vector<Loss>&) override;
  /// World rank `by` and others have gone on without this rank.
  void on_fenced(int by) override;
  void adopt_errors() override;
  void look_at_gpu() override;

 private:
  class OpWaiter;
  class MessageWaiter;
  Group(std::shared_ptr<Context>, GroupSpec, int rank, GroupRecord&);

  static void end(Group*);  ///< the last handle has gone
  bool busy();              ///< operations are in flight
  void abort_in_flight();
  std::uint64_t take_ticket(std::uint64_t many = 1) {
    return tickets_.fetch_add(many, std::memory_order_acq_rel);
  }
  Status make_plan(const Operation&, Plan*) const;
  Status ready() const;  ///< for operations
  /// `owner` keeps what the plan refers to.
  template <class F>
  void enqueue(std::uint64_t tickets, Stream&, std::shared_ptr<WorkState>*, F&& execute);
  Status execute(const Plan&, std::uint64_t ticket);
  Status execute(const FusedOperation&, const Plan&, bool can, std::uint64_t ticket);
  Status end_turn(Status outcome, std::uint64_t next);
  /// `wait`: until the operation has ended.
  Status submit_gpu(const Operation&, Stream*, std::shared_ptr<WorkState>*, bool wait);
  Status check_device(const Operation&, Stream*) const;
  Status submit_staged(const Operation&, std::uint64_t ticket, const std::shared_ptr<GpuStream>&,
                       std::shared_ptr<WorkState>*);
  /// Waits until it is the ticket's turn, and says on the control page what this rank begins. The group's
  /// error, if it has one.
  Status begin_turn(const Plan&, std::uint64_t ticket);
  /// The error of an operation becomes the group's, unless it leaves the group usable (invalid, unsupported).
  Status stick(Status outcome);
  /// Finds out who disagrees with whom, where an executor suspects that a peer is in another operation.
  Status resolve(const Failure& suspected);
  GpuExecutor& gpu_executor();
  Result<std::string> explain_gpu(const Operation&);
  Status look(InFlight&);
  Status look_for_mismatch(const InFlight&);
  Status fail(Failure, const InFlight*, bool tell_peers);
  GroupRecord* record_of(int r);
  // What shrink() comes to, on one host and between hosts.
  Result<Verdict> agree_here();
  Result<Verdict> agree_between_hosts();
  void look_at_member(int r, Agreement::Member*);
  Status shrink_timed_out(const std::vector<int>& waiting, const char* for_what) const;
  /// Whether rank r has left in good order: nothing more will come from it.
  bool has_left(int r, GroupRecord* record) const;
  /// A rank leaves early because of an error, too: the cause gets this long to be seen before the leaver is
  /// named.
  static constexpr std::chrono::milliseconds kCauseFirst{100};

  int world_rank(int r) const { return members_.world_rank(r); }
  Result<Messages*> messages();
  Status check_wait(const char* what);  ///< whether the caller may wait for what is in flight
  void await_rest();
  void await_receivers();
  void leave();  ///< close() without waiting for peers

  std::shared_ptr<Context> context_;
  GroupSpec spec_;
  int rank_;
  const Members members_;
  GroupRecord& record_;  // mine, on my control page
  std::mutex records_mutex_;
  std::vector<GroupRecord*> records_;  // of the members, found on demand
  std::unique_ptr<Selector> selector_;
  const bool traced_ = log::enabled(log::Level::trace, log::Subsystem::CALL);
  const std::uint64_t serial_;  // of this object among all groups of the process, never 0
  std::chrono::milliseconds late_after_;

  std::mutex submit_mutex_;  // a ticket and a place on a stream are taken together
  std::atomic<std::uint64_t> tickets_{0};
  Counter turn_{};              // tickets that are done
  std::atomic<int> inside_{0};  // threads of streams that may still touch this after the end of their tickets
  std::atomic<bool> closed_{false};

  std::uint32_t abort_word_ = 0;  // non-zero once the group has failed; every wait watches it
  mutable std::mutex error_mutex_;
  Status error_;  // the first one

  std::unique_ptr<OpWaiter> waiter_;  // of the operation at hand
  HostResources host_;                // whose turn it is uses them
  std::mutex gpu_mutex_;
  std::unique_ptr<GpuExecutor> gpu_;
  std::mutex messages_mutex_;
  std::unique_ptr<Messages> messages_;
  std::mutex own_stream_mutex_;
  std::unique_ptr<HostStream> own_stream_;
  std::shared_ptr<GpuStream> own_gpu_stream_;
};

/// The key of a group over `ranks` called `name`.
std::uint64_t group_key(const wire::Nonce& job, const std::vector<int>& ranks, const std::string& name,
                        std::uint64_t generation, std::uint64_t instance);

}  // namespace ouro::rt
