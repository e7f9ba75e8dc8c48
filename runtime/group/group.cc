// Groups: how calls are submitted, and the end of a group. See group.h.
#include "runtime/group/group.h"

#include <fmt/format.h>

#include <exception>
#include <set>
#include <thread>
#include <utility>

#include "runtime/core/deadline.h"
#include "runtime/group/survivors.h"
#include "runtime/group/turn.h"
#include "runtime/network/network.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;

/// The host of each of these ranks of the job.
std::vector<int> hosts_of(const Context& context, const std::vector<int>& ranks) {
  std::vector<int> hosts;
  for (const int r : ranks) hosts.push_back(context.members().peer(r).node);
  return hosts;
}

transport::Fabric* fabric_of(const Context& context, const Members& members) {
  return members.one_host() ? nullptr : &context.network()->fabric();
}

/// Refuses capture of an operation on the host: its ticket is taken once, but a graph would run
/// it repeatedly.
Status not_captured(Stream& stream) {
  GpuStream* const on = stream.gpu();
  if (!on) return {};
  OURO_ASSIGN(const auto capture, gpu::gpu().capturing(on->get()));
  if (capture == 0) return {};
  return unsupported("an operation on memory of the host cannot be captured in a graph of a device");
}

}  // namespace

Result<std::shared_ptr<Group>> Group::create(std::shared_ptr<Context> context, GroupSpec spec) {
  OURO_TRY(context->usable());
  OURO_ASSIGN(const int rank, index_in(spec, context->rank(), context->size()));
  auto hosts = hosts_of(*context, spec.ranks);
  const auto distinct = std::set<int>(hosts.begin(), hosts.end()).size();
  OURO_ASSIGN(std::string algorithm, Planner::job_algorithm());
  auto selector = Planner::make_selector(*context, context->calibration(), spec.ranks,
                                         static_cast<int>(distinct), std::move(algorithm));
  OURO_ASSIGN(GroupRecord* const record, context->records().claim(spec.key));
  spec.deadline = bounded(spec.deadline);
  std::unique_ptr<Group, decltype(&Group::end)> made(nullptr, &Group::end);
  try {
    made.reset(new Group(context, std::move(spec), rank, std::move(hosts), *record, std::move(selector)));
  } catch (const std::exception&) {
    record->state.set(static_cast<std::uint32_t>(GroupState::closed));  // another group may claim it
    return no_memory();
  }
  try {  // from here on the group itself closes its record, only once: it may be another's right after
    std::shared_ptr<Group> group = std::move(made);
    context->observers().enrol(group->detector_);
    return group;
  } catch (const std::exception&) {
    return no_memory();
  }
}

Group::Group(std::shared_ptr<Context> context, GroupSpec spec, int rank, std::vector<int> hosts,
             GroupRecord& record, std::unique_ptr<Selector> selector)
    : context_(std::move(context)),
      spec_(std::move(spec)),
      members_(rank, spec_.ranks, hosts),
      record_(record),
      records_(context_->members(), members_, spec_.key, record),
      detector_(*context_, records_,
                {.group = spec_.name,
                 .generation = spec_.generation,
                 .deadline = spec_.deadline,
                 .late_after = context_->spec().join.late_after,
                 .under_way = members_.one_host() ? FailureDetector::kCauseFirst
                                                  : context_->network()->options().silent_fail,
                 .silent_fail = context_->spec().silent_fail,
                 .one_host = members_.one_host()}),
      waiter_(detector_, context_->cores()),
      resources_(*context_, members_, spec_.key, waiter_),
      planner_(std::move(selector), members_, resources_, spec_.numerics, spec_.name),
      adaptation_(*context_, members_, records_, planner_, waiter_),
      watchers_(adaptation_, context_->faults(), spec_.of_another),
      sequencer_(detector_, waiter_, record, planner_, resources_.wiring, watchers_),
      host_(planner_, sequencer_, detector_, resources_),
      gpu_(*context_, members_, spec_.key, planner_, sequencer_, detector_, waiter_, host_,
           [this] { return make_inner(); }),
      exchanges_(*context_, members_, records_, spec_.key, detector_, waiter_),
      gpu_messages_(*context_, members_),
      mailbox_(context_->cores(), records_, detector_, fabric_of(*context_, members_), context_->faults(),
               [this] { return resources_.wiring.make_message_links(); }) {
  if (!one_host()) waiter_.drive(&context_->network()->fabric());
}

void Group::end(Group* g) {
  if (g->context_->inherited()) return;  // a forked child cannot destroy its copy
  if (!g->would_wait_for_itself()) {
    delete g;
    return;
  }
  g->abort_in_flight();
  run_aside([g] { delete g; });
}

bool Group::busy() {
  if (closed()) return false;
  return sequencer_.busy() || !gpu_.idle() || !exchanges_.idle() || mailbox_.in_flight().any();
}

void Group::abort_in_flight() {
  if (status().ok()) abort("its group was destroyed with operations in flight");
}

Group::~Group() {
  end_in_flight();
  leave();
  context_->observers().dismiss(detector_);
}

HostStream& Group::own_stream() {
  std::lock_guard lock(own_stream_mutex_);
  if (!own_stream_) own_stream_ = std::make_unique<HostStream>("ouro-group", 0);
  return *own_stream_;
}

// ---- operations -----------------------------------------------------------------------------------

Status Group::ready() const {
  if (!context_->ready()) return context_->usable();
  if (closed()) return gone();
  return detector_.ok() ? Status() : status();
}

Status Group::gone() const { return {Reason::revoked, fmt::format("group '{}' is closed", spec_.name)}; }

/// An error like a lack of memory fails the group, as its members wait for the operation.
Status Group::plan(const Operation& op, Plan* made) {
  Status s = planner_.make(op, made);
  return s.ok() ? s : detector_.stick(s);
}

Status Group::submit(const Operation& op, Stream* stream, std::shared_ptr<WorkState>* work) try {
  const auto unusual = unusual_.load(std::memory_order_acquire);
  if (unusual != 0 || !context_->ready() || failed()) [[unlikely]] {
    OURO_TRY(ready());
    OURO_TRACE(CALL, "rank {} of group {} calls {}, {} {} in, {} out, {}", rank(), spec_.name,
               name(op.collective), op.in.count, name(op.in.dtype), op.out.count,
               stream ? "on a stream" : "blocking");
  }
  GpuStream* const gpu_stream = stream ? stream->gpu() : nullptr;
  const Plan* const kept = stream && !gpu_stream ? nullptr : planner_.kept_plan(op);
  if (!stream && kept && kept->host) return host_.execute(*kept);
  if (on_device(op) || (gpu_stream && op.collective == Collective::barrier)) {
    OURO_TRY(gpu_.check(op, stream));
    if (!stream || gpu_stream) return gpu_.submit(op, kept, gpu_stream, work, !stream);
    return gpu_.submit(op, *stream, work);
  }
  if (!stream) {
    if (kept) return host_.execute(*kept);
    Plan plan;
    OURO_TRY(this->plan(op, &plan));
    return host_.execute(plan);
  }
  OURO_TRY(not_captured(*stream));
  const auto owned = std::make_shared<const KeptOperation>(op);  // the plan refers to it
  Plan plan;
  OURO_TRY(this->plan(owned->get(), &plan));
  *work = enqueue_turn(sequencer_, 1, *stream,
                       [this, owned, plan](Turn turn) { return host_.execute(plan, std::move(turn)); });
  return {};
} catch (const std::exception&) {  // a turn that was taken by then has been passed on
  return detector_.out_of_memory();
}

Status Group::submit(std::shared_ptr<const FusedOperation> fused, bool can, Stream* stream,
                     std::shared_ptr<WorkState>* work) try {
  OURO_TRY(ready());
  Plan plan;
  OURO_TRY(this->plan(fused->get(), &plan));
  // One ticket for the agreement and for the operations as one, and one for each of them one by one: the same
  // number on all ranks, so that sequence numbers stay equal.
  const std::uint64_t tickets = can ? 1 + fused->parts().size() : 1;
  if (!stream)
    return host_.execute(*fused, plan, can, Turn(sequencer_, sequencer_.take_ticket(tickets), tickets));
  OURO_TRY(not_captured(*stream));
  *work = enqueue_turn(sequencer_, tickets, *stream, [this, fused = std::move(fused), plan, can](Turn turn) {
    return host_.execute(*fused, plan, can, std::move(turn));
  });
  return {};
} catch (const std::exception&) {
  return detector_.out_of_memory();
}

Status Group::run_parts(const Operation& op, const Plan& whole, const NextPart& next) {
  OURO_TRY(ready());
  Plan plan;
  OURO_TRY(this->plan(op, &plan));
  plan.signature = whole.signature, plan.folded = whole.folded;
  return host_.execute(plan, next, Turn(sequencer_, sequencer_.take_ticket()));
}

void Group::give_up(const Status& why) {
  (void)detector_.fail({.reason = Reason::revoked, .text = why.message(), .detector = "group"}, nullptr,
                       false);
}

Result<std::string> Group::explain(const Operation& asked) {
  Operation op = asked;
  op.numerics = planner_.numerics_of(asked);
  if (on_device(op)) return gpu_.explain(op);
  Choice choice;
  std::string why;
  OURO_TRY(planner_.choose(op, &choice, &why));
  if (const std::string took = planner_.predicted(adaptation_.record(), op, choice); !took.empty())
    why += "; predicted: " + took;
  if (const std::string since = adaptation_.since(); !since.empty()) why += "; " + since;
  return why;
}

// ---- messages -------------------------------------------------------------------------------------

Status Group::exchange(const std::vector<Message*>& messages, std::chrono::milliseconds deadline) {
  OURO_TRY(ready());
  const MessagesInFlight::One held(mailbox_.in_flight());
  return held ? exchange_held(messages, deadline) : gone();
}

Status Group::exchange_held(const std::vector<Message*>& messages, std::chrono::milliseconds deadline) {
  if (!context_->ready()) OURO_TRY(context_->usable());
  OURO_TRY(mailbox_.post(messages));
  return mailbox_.complete(messages, deadline);
}

Status Group::exchange_if_there(const std::weak_ptr<Group>& weak, const std::vector<Message*>& messages,
                                std::chrono::milliseconds deadline) {
  auto self = weak.lock();  // a captured graph does not keep its group alive
  if (!self) return {Reason::revoked, "the group of a message was destroyed before it moved"};
  Group& group = *self;
  const MessagesInFlight::One held(group.mailbox_.in_flight());
  if (!held) return group.gone();
  // Drops this handle, so that the last one is a user's: when that is destroyed, messages in flight end. A
  // stream that runs its functions in the caller's thread keeps its handle, as that thread cannot wait
  // for itself.
  if (serving_stream()) self.reset();
  return group.exchange_held(messages, deadline);
}

std::function<Status()> Group::submit(std::vector<std::shared_ptr<Message>> messages, Stream* on) {
  const auto raw = [](const std::vector<std::shared_ptr<Message>>& of) {
    std::vector<Message*> all;
    for (const auto& m : of) all.push_back(m.get());
    return all;
  };
  if (on && on->gpu())
    return [weak = weak_from_this(), raw, messages = std::move(messages)] {
      return exchange_if_there(weak, raw(messages), 0ms);
    };
  auto held = std::make_shared<MessagesInFlight::One>(mailbox_.in_flight());
  if (!*held) return [closed = gone()] { return closed; };
  return [this, raw, held = std::move(held), messages = std::move(messages)] {
    Status outcome = exchange_held(raw(messages), 0ms);
    held->end();
    return outcome;
  };
}

Result<std::optional<Envelope>> Group::probe(int source, int tag) {
  OURO_TRY(mailbox_.check({.peer = source, .tag = tag}));
  OURO_TRY(ready());
  const MessagesInFlight::One held(mailbox_.in_flight());
  if (!held) return gone();
  return mailbox_.probe(source, tag);
}

Result<std::optional<Messages::Match>> Group::match(int source, int tag) {
  OURO_TRY(mailbox_.check({.peer = source, .tag = tag}));
  OURO_TRY(ready());
  const MessagesInFlight::One held(mailbox_.in_flight());
  if (!held) return gone();
  return mailbox_.match(source, tag);
}

Result<std::shared_ptr<WorkState>> Group::run_on_gpu(std::vector<std::shared_ptr<Message>> messages,
                                                     const std::shared_ptr<GpuStream>& stream,
                                                     std::chrono::milliseconds deadline) {
  for (const auto& m : messages) OURO_TRY(check(*m));
  return gpu_messages_.run(std::move(messages), stream,
                           [weak = weak_from_this(), deadline](const std::vector<Message*>& raw) {
                             return exchange_if_there(weak, raw, deadline);
                           });
}

// ---- the end of a group ---------------------------------------------------------------------------

void Group::abort(const std::string& why) {
  if (context_->inherited()) return;  // the group is the parent's
  OURO_LOG(abort, COLL, "group {} is aborted here{}{}", spec_.name, why.empty() ? "" : ": ", why);
  (void)detector_.fail({.reason = Reason::revoked,
                        .text = why.empty() ? fmt::format("aborted by rank {}", rank())
                                            : fmt::format("aborted by rank {}: {}", rank(), why),
                        .rank = rank(),
                        .detector = "abort()"},
                       nullptr, true);
}

Status Group::check_wait(const char* what) {
  if (!would_wait_for_itself()) return {};
  return invalid(
      fmt::format("group '{}': {} on the thread of a stream, behind which operations of the group may be "
                  "queued; expected another thread, or a group at rest",
                  spec_.name, what));
}

void Group::await_rest() {
  sequencer_.await_rest();
  gpu_.drain();
  exchanges_.drain();
}

Status Group::close() {
  if (closed()) return {};
  if (!context_->inherited()) {
    OURO_TRY(check_wait("close()"));
    await_rest();
  }
  leave();
  return {};
}

void Group::leave() {
  if ((unusual_.fetch_or(kClosed) & kClosed) != 0) return;
  if (context_->inherited()) return;
  OURO_INFO(DESTROY, "rank {} of {} leaves group {} after {} operations", rank(), size(), spec_.name,
            record_.completed.get());
  await_rest();
  gpu_.leave();
  adaptation_.leave(failed());
  mailbox_.drain([this] {
    record_.state.set(static_cast<std::uint32_t>(GroupState::finishing));
    if (Network* const network = context_->network()) network->kick();
  });
  {
    std::lock_guard lock(own_stream_mutex_);
    own_stream_.reset();
  }
  // This runs under the lock of the fabric, which the network owns, so it must not hold the last reference to
  // the context.
  const auto gone = [record = &record_, page = context_->members().peer(context_->rank()).control,
                     network = context_->network()](void*) {
    record->state.set(static_cast<std::uint32_t>(GroupState::closed));
    if (network) network->kick();
  };
  if (one_host()) return gone(nullptr);
  // Others see that this rank has left once they have received what it sent.
  const std::shared_ptr<void> after(nullptr, gone);
  if (status().ok()) {
    resources_.wiring.linger(after);
    mailbox_.linger(after);
  }
  resources_.wiring.drop_links();
  mailbox_.close();
}

Result<std::shared_ptr<Group>> Group::shrink(ShrinkOutcome* outcome) {
  OURO_TRY(context_->usable());
  if (closed()) return Status(Reason::revoked, fmt::format("group '{}' is closed", spec_.name));
  if (succeeded_.load())  // that agreement may not hold any more, and its group has the next generation
    return invalid(
        fmt::format("group '{}' of generation {} has been shrunk before; "
                    "expected shrink() of the group that this returned",
                    spec_.name, spec_.generation));
  OURO_TRY(check_wait("shrink()"));
  if (status().ok())
    (void)detector_.fail({.reason = Reason::revoked,
                          .text = fmt::format("rank {} called shrink()", rank()),
                          .rank = rank(),
                          .detector = "shrink()"},
                         nullptr, true);
  await_rest();
  if (Faults* const faults = context_->faults()) OURO_TRY(faults->strike(Fault::At::shrink));
  Survivors survivors(*context_, records_,
                      {.group = spec_.name,
                       .generation = spec_.generation,
                       .deadline = spec_.deadline,
                       .patience = context_->spec().silent_fail,
                       .why = status()});
  OURO_ASSIGN(const Verdict verdict, survivors.agree(one_host()));
  std::vector<int> members;
  ShrinkOutcome result{{}, verdict.resume};
  for (int r = 0; r < size(); ++r) (verdict.dead.has(r) ? result.dead : members).push_back(r);
  // Ranks that only seemed dead are notified when they return.
  for (const int r : result.dead)
    if (context_->network()) context_->network()->fence(members_.world_rank(r));
  if (outcome) *outcome = std::move(result);
  auto next = derive(members, spec_.name, 0, spec_.generation + 1, spec_.deadline, spec_.numerics);
  if (next.ok()) succeeded_.store(true);
  return next;
}

Result<std::shared_ptr<Group>> Group::derive(const std::vector<int>& members, const std::string& name,
                                             std::uint64_t salt, std::uint64_t generation,
                                             std::chrono::milliseconds deadline, Numerics numerics) {
  std::vector<int> world_ranks;
  for (const int m : members) world_ranks.push_back(members_.world_rank(m));
  GroupSpec spec = spec_over(std::move(world_ranks), name, generation, salt);
  if (deadline.count() > 0) spec.deadline = deadline;
  if (numerics != Numerics::inherit) spec.numerics = numerics;
  return create(context_, std::move(spec));
}

GroupSpec Group::spec_over(std::vector<int> world_ranks, std::string name, std::uint64_t generation,
                           std::uint64_t salt) const {
  GroupSpec spec;
  spec.key = group_key(context_->spec().join.job, world_ranks, name, generation, salt ^ spec_.key);
  spec.ranks = std::move(world_ranks);
  spec.name = std::move(name);
  spec.generation = generation;
  spec.deadline = spec_.deadline;
  spec.numerics = spec_.numerics;
  return spec;
}

/// The members of equal index on all hosts.
Result<std::shared_ptr<InnerGroup>> Group::make_inner() const {
  const flow::HostLayout layout = members_.layout();
  std::vector<int> world_ranks;
  for (int host = 0; host < members_.hosts(); ++host) {
    const int at = layout.first[static_cast<std::size_t>(host)] + members_.local(rank());
    world_ranks.push_back(members_.world_rank(layout.order[static_cast<std::size_t>(at)]));
  }
  constexpr std::uint64_t kInner = 0x6265747765656e;  // distinguishes it from groups that users derive
  GroupSpec spec = spec_over(std::move(world_ranks), spec_.name + "/between hosts", spec_.generation, kInner);
  spec.of_another = true;
  OURO_ASSIGN(auto made, create(context_, std::move(spec)));
  return std::shared_ptr<InnerGroup>(std::move(made));
}

}  // namespace ouro::rt
