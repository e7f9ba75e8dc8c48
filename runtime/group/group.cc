// Groups: order of operations and their execution. Failures are in group_failure.cc. See group.h.
#include "runtime/group/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/context/machine.h"
#include "runtime/core/deadline.h"
#include "runtime/core/env.h"
#include "runtime/core/log.h"
#include "runtime/exec/host/by_reference.h"
#include "runtime/group/group_waiters.h"

namespace ouro::rt {
namespace {

std::atomic<std::uint64_t> g_groups{0};

/// Where the last-level cache is no longer worth writing to: 3/4 of it, if nobody has measured.
std::size_t stream_bytes(const Rules& rules) {
  constexpr std::size_t kUnknownCache = 32 << 20;
  if (rules.stream_bytes > 0) return rules.stream_bytes;
  const std::size_t cache = machine().l3_bytes;
  return (cache > 0 ? cache : kUnknownCache) / 4 * 3;
}

/// The host of each of these ranks of the job.
std::vector<int> hosts_of(const Context& context, const std::vector<int>& ranks) {
  std::vector<int> hosts;
  for (const int r : ranks) hosts.push_back(context.members().peer(r).node);
  return hosts;
}

}  // namespace

std::uint64_t group_key(const wire::Nonce& job, const std::vector<int>& ranks, const std::string& name,
                        std::uint64_t generation, std::uint64_t instance) {
  std::uint64_t h = XXH3_64bits(job.data(), job.size());
  h = XXH3_64bits_withSeed(ranks.data(), ranks.size() * sizeof(int), h);
  h = XXH3_64bits_withSeed(name.data(), name.size(), h);
  const std::uint64_t words[] = {generation, instance};
  h = XXH3_64bits_withSeed(words, sizeof words, h);
  return h == 0 ? 1 : h;
}

Result<std::shared_ptr<Group>> Group::create(std::shared_ptr<Context> context, GroupSpec spec) {
  OURO_TRY(context->usable());
  if (spec.ranks.empty()) return invalid(fmt::format("group '{}' has no members", spec.name));
  auto sorted = spec.ranks;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] < 0 || sorted[i] >= context->size())
      return invalid(fmt::format("group '{}': rank {} is not in the job (0..{})", spec.name, sorted[i],
                                 context->size() - 1));
    if (i > 0 && sorted[i] == sorted[i - 1])
      return invalid(fmt::format("group '{}': rank {} is named twice", spec.name, sorted[i]));
  }
  const auto me = std::find(spec.ranks.begin(), spec.ranks.end(), context->rank());
  if (me == spec.ranks.end())
    return invalid(fmt::format("group '{}': this rank ({}) is not a member; only members make a group",
                               spec.name, context->rank()));
  const int rank = static_cast<int>(me - spec.ranks.begin());
  auto record = context->records().claim(spec.key);
  if (!record.ok()) return record.status();
  spec.deadline = bounded(spec.deadline);
  auto group = std::shared_ptr<Group>(new Group(context, std::move(spec), rank, **record), &Group::end);
  auto algorithm = env::text("OURO_ALGO");
  if (!algorithm.ok()) return algorithm.status();
  const std::string wanted = algorithm->value_or("");
  if (!wanted.empty() && !flow::parse_algorithm(wanted)) {
    std::string names;
    for (int i = 0; i < flow::kAlgorithms; ++i)
      names += fmt::format("{}{}", i ? ", " : "", flow::name(static_cast<flow::Algorithm>(i)));
    return invalid(fmt::format("OURO_ALGO={}: there is no such algorithm; expected {}", wanted, names));
  }
  const Rules& rules = context->spec().rules;
  group->selector_ = std::make_unique<Selector>(rules, group->size(), group->members_.hosts(),
                                                context->cores().enough_for(group->spec_.ranks),
                                                stream_bytes(rules), wanted);
  group->late_after_ = context->spec().join.late_after;
  context->observers().enrol(*group);
  return group;
}

Group::Group(std::shared_ptr<Context> context, GroupSpec spec, int rank, GroupRecord& record)
    : context_(std::move(context)),
      spec_(std::move(spec)),
      rank_(rank),
      members_(rank, spec_.ranks, hosts_of(*context_, spec_.ranks)),
      record_(record),
      records_(spec_.ranks.size(), nullptr),
      serial_(g_groups.fetch_add(1, std::memory_order_relaxed) + 1),
      waiter_(std::make_unique<OpWaiter>(*this)),
      host_(*context_, members_, spec_.key, *waiter_) {
  records_[static_cast<std::size_t>(rank)] = &record_;
  if (!one_host()) waiter_->drive(&context_->network()->fabric());
}

void Group::end(Group* g) {
  if (g->context_->inherited()) return;  // what a child has of it cannot be taken apart there
  if (!g->would_wait_for_itself()) {
    delete g;
    return;
  }
  g->abort_in_flight();
  run_aside([g] { delete g; });
}

bool Group::busy() {
  if (closed_.load(std::memory_order_acquire)) return false;
  if (load(turn_) != tickets_.load(std::memory_order_acquire)) return true;
  std::unique_lock lock(gpu_mutex_);
  GpuExecutor* const gpu = gpu_.get();
  lock.unlock();  // looking at operations may end them, and the group
  return gpu && !gpu->pending().idle();
}

/// A destructor waits for no peer: what is still under way ends here and, told so, on the other ranks too.
void Group::abort_in_flight() {
  if (status().ok()) abort("its group was destroyed with operations in flight");
}

Group::~Group() {
  if (busy()) abort_in_flight();
  leave();
  context_->observers().dismiss(*this);
  gpu_.reset();
}

HostStream& Group::own_stream() {
  std::lock_guard lock(own_stream_mutex_);
  if (!own_stream_) own_stream_ = std::make_unique<HostStream>("ouro-group", 0);
  return *own_stream_;
}

// ---- operations -----------------------------------------------------------------------------------

Status Group::make_plan(const Operation& op, Plan* plan) const {
  if (op.segments.empty()) OURO_TRY(rt::check(op, rank_, size()));
  plan->op = op;
  if (op.numerics == Numerics::inherit) plan->op.numerics = spec_.numerics;
  const bool canonical = plan->op.numerics == Numerics::canonical;
  std::string why;
  const bool tell = log::enabled(log::Level::info, log::Subsystem::TUNING);
  OURO_TRY(selector_->select(op, rank_, canonical, &plan->choice, tell ? &why : nullptr));
  plan->signature = signature(op, rank_, size(), canonical,
                              op.algorithm.empty() ? 0 : static_cast<int>(plan->choice.algorithm) + 1);
  // On a device the host's choice counts only where the call has named it.
  if (!on_device(op)) plan->signature = plan->signature.by(plan->choice.code());
  plan->folded = plan->signature.folded();
  plan->idle = moves_nothing(op, rank_, size());
  if (!plan->idle && !on_device(op))
    plan->host = make_execution_plan(*plan, members_, host_.wiring.slot_bytes(), host_.single_rounds);
  keep_plan(serial_, op, plan);
  if (!why.empty()) OURO_INFO(TUNING, "{} in group {}: {}", name(op.collective), spec_.name, why);
  return {};
}

Status Group::ready() const {
  if (!context_->ready()) return context_->usable();
  if (closed_.load(std::memory_order_acquire))
    return {Reason::revoked, fmt::format("group '{}' is closed", spec_.name)};
  return std::atomic_ref(const_cast<std::uint32_t&>(abort_word_)).load(std::memory_order_acquire) != 0
             ? status()
             : Status();
}

Status Group::submit(const Operation& op, Stream* stream, std::shared_ptr<WorkState>* work) {
  OURO_TRY(ready());
  if (traced_) [[unlikely]]
    OURO_TRACE(CALL, "rank {} of group {} calls {}, {} {} in, {} out, {}", rank_, spec_.name,
               name(op.collective), op.in.count, name(op.in.dtype), op.out.count,
               stream ? "on a stream" : "blocking");
  if (on_device(op) || (stream && stream->gpu() && op.collective == Collective::barrier))
    return submit_gpu(op, stream, work, !stream);
  if (!stream) {
    if (const Plan* known = find_plan(serial_, op)) return execute(*known, take_ticket());
    Plan plan;
    OURO_TRY(make_plan(op, &plan));
    return execute(plan, take_ticket());
  }
  const auto kept = std::make_shared<const KeptOperation>(op);  // the plan refers to it
  Plan plan;
  OURO_TRY(make_plan(kept->get(), &plan));
  enqueue(1, *stream, work, [this, kept, plan](std::uint64_t ticket) { return execute(plan, ticket); });
  return {};
}

Status Group::submit(std::shared_ptr<const FusedOperation> fused, bool can, Stream* stream,
                     std::shared_ptr<WorkState>* work) {
  OURO_TRY(ready());
  Plan plan;
  OURO_TRY(make_plan(fused->get(), &plan));
  // One ticket for the agreement, and for them as one; one each for them one by one. The same on all ranks,
  // so that sequence numbers stay alike.
  const std::uint64_t tickets = can ? 1 + fused->parts().size() : 1;
  if (!stream) return execute(*fused, plan, can, take_ticket(tickets));
  enqueue(tickets, *stream, work, [this, fused = std::move(fused), plan, can](std::uint64_t ticket) {
    return execute(*fused, plan, can, ticket);
  });
  return {};
}

template <class F>
void Group::enqueue(std::uint64_t tickets, Stream& stream, std::shared_ptr<WorkState>* work, F&& execute) {
  std::lock_guard lock(submit_mutex_);
  const std::uint64_t ticket = take_ticket(tickets);
  *work = stream.enqueue([this, ticket, execute = std::forward<F>(execute)] {
    inside_.fetch_add(1, std::memory_order_relaxed);  // before its ticket ends, which is a release
    Status outcome = execute(ticket);
    inside_.fetch_sub(1,
                      std::memory_order_release);  // pairs with await_rest(); nothing here is touched after
    return outcome;
  });
}

Status Group::begin_turn(const Plan& plan, std::uint64_t ticket) {
  // Operations run in the order of their tickets. Each one before this ends by itself, within its deadline.
  if (load(turn_) != ticket) {
    const LentCore lent;
    wait_patiently(turn_, ticket);
  }
  if (std::atomic_ref(abort_word_).load(std::memory_order_acquire) != 0) return status();
  waiter_->begin(plan, ticket + 1);
  enter(record_, ticket + 1, plan.signature);
  return {};
}

/// `next`: the ticket whose turn it is then.
Status Group::end_turn(Status outcome, std::uint64_t next) {
  if (outcome.ok())
    record_.completed.set(next);
  else
    outcome = stick(std::move(outcome));
  host_.wiring.settle();
  publish(turn_, next);
  return outcome;
}

Status Group::execute(const Plan& plan, std::uint64_t ticket) {
  Status outcome = begin_turn(plan, ticket);
  if (outcome.ok() && !plan.idle) {
    try {
      outcome = plan.host->run(host_, waiter_->in_flight());
    } catch (const std::bad_alloc&) {
      outcome = no_memory();
    }
  }
  return end_turn(std::move(outcome), ticket + 1);
}

Status Group::execute(const FusedOperation& fused, const Plan& plan, bool can, std::uint64_t ticket) {
  const std::uint64_t many = fused.parts().size();
  bool as_one = can;
  Status outcome = begin_turn(plan, ticket);
  if (outcome.ok() && !plan.idle) {
    try {
      outcome = run_as_one(host_, waiter_->in_flight(), &as_one);
    } catch (const std::bad_alloc&) {
      outcome = no_memory();
    }
  }
  if (!can) return end_turn(outcome, ticket + 1);  // the others follow on their own
  if (as_one || !outcome.ok()) return end_turn(outcome, ticket + 1 + many);
  (void)end_turn({}, ++ticket);
  for (std::uint64_t k = 0; k < many; ++k, ++ticket) {
    Plan part;
    Status planned = make_plan(fused.parts()[k], &part);
    // As one it has been planned, too; where that differs, the ranks have come apart.
    Status ended =
        planned.ok() ? execute(part, ticket) : end_turn(fail(*planned.failure(), nullptr, true), ticket + 1);
    if (outcome.ok()) outcome = ended;
  }
  return outcome;
}

Result<std::string> Group::explain(const Operation& asked) {
  const Numerics numerics = asked.numerics == Numerics::inherit ? spec_.numerics : asked.numerics;
  Operation op = asked;
  op.numerics = numerics;
  if (on_device(op)) return explain_gpu(op);
  Choice choice;
  std::string why;
  OURO_TRY(selector_->select(op, rank_, numerics == Numerics::canonical, &choice, &why));
  return why;
}

// ---- messages -------------------------------------------------------------------------------------

Result<Messages*> Group::messages() {
  std::lock_guard lock(messages_mutex_);
  if (!messages_) {
    OURO_ASSIGN(auto links, host_.wiring.make_message_links());
    messages_ = std::make_unique<Messages>(std::move(links), rank_, size());
    OURO_INFO(P2P, "group {} opens its links for messages", spec_.name);
  }
  return messages_.get();
}

}  // namespace ouro::rt
