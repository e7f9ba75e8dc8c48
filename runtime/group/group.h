// Group: an ordered set of ranks that call operations together. Used by the API (ouro::Group is a
// handle to one).
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/context/context.h"
#include "runtime/core/log.h"
#include "runtime/exec/host/host_resources.h"
#include "runtime/group/adaptation.h"
#include "runtime/group/failure_detector.h"
#include "runtime/group/gpu_exchanges.h"
#include "runtime/group/gpu_messages.h"
#include "runtime/group/gpu_operations.h"
#include "runtime/group/group_spec.h"
#include "runtime/group/host_operations.h"
#include "runtime/group/inner_group.h"
#include "runtime/group/mailbox.h"
#include "runtime/group/member_records.h"
#include "runtime/group/operation_watchers.h"
#include "runtime/group/planner.h"
#include "runtime/group/sequencer.h"
#include "runtime/stream/host_stream.h"

namespace ouro::rt {

struct ShrinkOutcome {
  std::vector<int> dead;         // ranks of the old group
  std::uint64_t resume_seq = 0;  // lowest sequence number that a survivor did not complete
};

/// One rank's side of a group. Composes a sequencer, a failure detector, the wiring and the parts that run
/// operations and messages, and is made, closed and shrunk as a whole.
class Group final : public InnerGroup, public std::enable_shared_from_this<Group> {
  friend struct TestAccess;
  friend class MessageSet;

 public:
  /// Makes this rank's side of a group, without communication; all members call it with equal specs. Errors:
  /// invalid (the spec, OURO_ALGO), resource, those of Context::usable().
  static Result<std::shared_ptr<Group>> create(std::shared_ptr<Context>, GroupSpec);
  ~Group() override;

  int rank() const { return members_.rank(); }
  int size() const { return members_.size(); }
  const GroupSpec& spec() const { return spec_; }
  const std::shared_ptr<Context>& context() const { return context_; }
  bool one_host() const { return members_.one_host(); }
  /// Whether OURO_ALGO names the algorithm of this collective.
  bool forces(const Operation& o) const { return planner_.forces(o); }
  /// The rank in this group of a rank of the job; nullopt: it is not a member.
  std::optional<int> from_global(int world_rank) const { return members_.group_rank(world_rank); }
  Numerics numerics() const { return spec_.numerics; }

  /// Checks, orders and runs one operation: in the caller (stream == nullptr; *work stays untouched), or on
  /// the stream. Errors of the arguments are returned at once and are not sticky. Operations on device memory
  /// are put into a stream of that device: into `stream` if it is one, else into the group's own, for which
  /// the caller or the host stream `stream` then waits.
  Status submit(const Operation&, Stream* stream, std::shared_ptr<WorkState>* work);
  /// Submits operations of a batch that may run as one. All ranks find the same such operations; they have
  /// been checked. `can`: this rank can run them as one. This call then runs them, as one if all other ranks
  /// can, too, else one by one. Without `can` it only notifies the others that this rank cannot, and the
  /// caller submits the operations one by one next.
  Status submit(std::shared_ptr<const FusedOperation>, bool can, Stream* stream,
                std::shared_ptr<WorkState>* work);
  /// Says which algorithm or path an operation would use, and why.
  Result<std::string> explain(const Operation&);
  // As the inner group of another group.
  Status run_parts(const Operation& op, const Plan& whole, const NextPart& next) override;
  void give_up(const Status& why) override;
  int world_rank(int rank) const override {
    return rank >= 0 && rank < size() ? members_.world_rank(rank) : -1;
  }

  // Messages: see Mailbox.
  /// Posts messages and waits for them. `deadline` 0: the group's.
  Status exchange(const std::vector<Message*>&, std::chrono::milliseconds deadline);
  /// Returns a function that does the same when stream `on` reaches it, under the group's deadline. The
  /// messages are in flight from now on and hold no handle to the group: close() waits for them, and when the
  /// last handle is destroyed they end as revoked. A device stream may never reach the function, or reach it
  /// repeatedly (in a graph); there they are in flight only while it runs.
  std::function<Status()> submit(std::vector<std::shared_ptr<Message>>, Stream* on);
  Mailbox& mailbox() { return mailbox_; }
  /// The earliest message from `source` (or MessageRequest::kAny) with this tag that has begun to arrive and
  /// has no receive; nullopt: there is none.
  Result<std::optional<Envelope>> probe(int source, int tag);
  /// As probe, but sets the message that it finds aside. See Messages::match.
  Result<std::optional<Messages::Match>> match(int source, int tag);
  void put_back(std::uint64_t key) {
    if (!context_->inherited()) mailbox_.put_back(key);
  }
  Status check(const Message& m) const { return mailbox_.check(m); }
  /// Posts and completes, in stream order, messages of which some are in memory of this rank's GPU
  /// (GpuMessages). `stream`: of that GPU. `deadline`: as in exchange, from when the stream reaches them.
  Result<std::shared_ptr<WorkState>> run_on_gpu(std::vector<std::shared_ptr<Message>> messages,
                                                const std::shared_ptr<GpuStream>& stream,
                                                std::chrono::milliseconds deadline = {});

  // Exchanges.
  /// Sends and receives that match by pairs of ranks and order, and never with other messages. All are in
  /// memory of the host, or all `on_device`: then by kernels if all ranks can (GpuExchanges), else as
  /// messages with a tag of their own. Only the ranks that are named take part. stream == nullptr: returns
  /// when all have ended; *work stays untouched then. Errors of the arguments are returned at once and are
  /// not sticky.
  Status check(const Transfer&) const;
  Status exchange(std::span<const Transfer>, bool on_device, Stream* stream,
                  std::shared_ptr<WorkState>* work);
  /// The number of exchanges that this rank has enqueued as kernels.
  std::uint64_t exchanged_by_kernels() { return exchanges_.ran(); }

  Status status() const { return detector_.status(); }
  /// Whether status() is a failure: one load.
  bool failed() const override { return !detector_.ok(); }
  /// Fails the group because there is no memory for something that its members wait for. See FailureDetector.
  Status out_of_memory() { return detector_.out_of_memory(); }
  /// Fails the group with `revoked`, here and on the other ranks.
  void abort(const std::string& why);
  /// Waits until what is in flight has ended, and leaves the group. Idempotent. Errors: invalid (the caller
  /// would wait for itself).
  Status close() override;
  /// Whether the caller is a stream's thread and operations are in flight: these may be queued behind the
  /// caller, which therefore must not wait for them.
  bool would_wait_for_itself() { return serving_stream() && busy(); }
  /// For destructors, which wait for no peer: aborts what is in flight, here and on the other ranks.
  void end_in_flight() {
    if (busy()) abort_in_flight();
  }
  /// Collective over the remaining ranks: agrees on which are dead (Survivors) and makes the group of the
  /// others. Errors: those of Survivors::agree, revoked (closed), invalid (shrunk before, or the caller would
  /// wait for itself).
  Result<std::shared_ptr<Group>> shrink(ShrinkOutcome*);
  /// Makes a group of some of this group's members, given in order by their ranks here; `salt`
  /// distinguishes siblings.
  Result<std::shared_ptr<Group>> derive(const std::vector<int>& members, const std::string& name,
                                        std::uint64_t salt, std::uint64_t generation,
                                        std::chrono::milliseconds deadline, Numerics);
  /// The group's own host stream, on which its operations run if a group_end() involves several groups.
  HostStream& own_stream();
  /// The group's own stream of this rank's GPU, for work that was given none.
  Result<std::shared_ptr<GpuStream>> own_gpu_stream() { return gpu_.own_stream(); }
  /// The number of operations on device memory that this rank has enqueued on a path.
  std::uint64_t gpu_ran(GpuPath path) { return gpu_.ran(path); }
  std::uint64_t gpu_named() { return gpu_.named(); }

 private:
  Group(std::shared_ptr<Context>, GroupSpec, int rank, std::vector<int> hosts, GroupRecord&,
        std::unique_ptr<Selector>);

  static void end(Group*);  ///< the last handle is destroyed
  static Status exchange_if_there(const std::weak_ptr<Group>&, const std::vector<Message*>&,
                                  std::chrono::milliseconds deadline);
  bool busy();  ///< whether operations or messages are in flight
  void abort_in_flight();
  Status ready() const;  ///< whether operations and messages may begin
  Status gone() const;   ///< the error of calls after close()
  /// exchange() of messages that count as in flight already.
  Status exchange_held(const std::vector<Message*>&, std::chrono::milliseconds deadline);
  Status exchange_in_order(std::span<const Transfer>, bool on_device, Stream*, std::shared_ptr<WorkState>*);
  Status exchange_on_device(std::span<const Transfer>, const std::shared_ptr<GpuStream>&,
                            std::shared_ptr<WorkState>* work);
  Status exchange_on_host(std::span<const Transfer>, Stream&, std::shared_ptr<WorkState>* work);
  static std::vector<std::shared_ptr<Message>> messages_of(std::span<const Transfer>, bool on_device);
  void order_exchange(Stream&);
  Status exchanged(const Status& outcome);
  Status plan(const Operation&, Plan*);
  /// The spec of a group over some ranks of the job, which are members of this one, with the settings of this
  /// one. `salt` distinguishes groups of equal names.
  GroupSpec spec_over(std::vector<int> world_ranks, std::string name, std::uint64_t generation,
                      std::uint64_t salt) const;
  Result<std::shared_ptr<InnerGroup>> make_inner() const;
  Status check_wait(const char* what);  ///< whether the caller may wait for what is in flight
  void await_rest();
  void leave();  ///< close() without check_wait()

  const std::shared_ptr<Context> context_;
  const GroupSpec spec_;
  const Members members_;
  GroupRecord& record_;  // this rank's, on its control page
  // Both flags in one word, as every call checks both.
  static constexpr std::uint8_t kTraced = 1, kClosed = 2;
  std::atomic<std::uint8_t> unusual_{log::enabled(log::Level::trace, log::Subsystem::CALL) ? kTraced
                                                                                           : std::uint8_t{0}};
  std::atomic<bool> succeeded_{false};  // shrink() has made the succeeding group
  bool closed() const { return (unusual_.load(std::memory_order_acquire) & kClosed) != 0; }

  // In the order of their dependencies.
  MemberRecords records_;
  FailureDetector detector_;
  OperationWaiter waiter_;
  HostResources resources_;
  Planner planner_;
  Adaptation adaptation_;
  OperationWatchers watchers_;
  Sequencer sequencer_;
  HostOperations host_;
  GpuOperations gpu_;
  GpuExchanges exchanges_;
  GpuMessages gpu_messages_;
  Mailbox mailbox_;
  std::mutex exchange_mutex_;
  std::shared_ptr<WorkState> last_exchange_;  // by messages
  std::mutex own_stream_mutex_;
  std::unique_ptr<HostStream> own_stream_;
};

}  // namespace ouro::rt
