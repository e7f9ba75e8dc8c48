// What a group does when something goes wrong: disagreement, late and dead ranks, abort, close.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <thread>

#include "runtime/core/log.h"
#include "runtime/group/group_waiters.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr auto kGatherSignatures = 50ms;  // so that the message names every rank that is about to arrive
constexpr auto kExplainMismatch = 500ms;

}  // namespace

Status Group::status() const {
  std::lock_guard lock(error_mutex_);
  return error_;
}

/// The first error wins: completes it with what the group knows, keeps it, raises the abort word.
Status Group::fail(Failure f, const InFlight* in_flight, bool tell_peers) {
  // Who left because of an error has said so first, and the error is the cause of what was found out here.
  if (tell_peers && f.reason == Reason::peer_dead) adopt_errors();
  // What the context found out on a control socket names a rank of the job.
  if (f.detector == "socket" && f.rank >= 0) f.rank = from_global(f.rank).value_or(-1);
  if (f.group.empty()) f.group = spec_.name;
  f.generation = spec_.generation;
  if (in_flight && f.op.empty() && in_flight->seq > 0) {
    f.op = name(in_flight->plan->op.collective);
    f.seq = in_flight->seq;
    if (f.elapsed_s == 0 && in_flight->start != Clock::time_point{}) f.elapsed_s = in_flight->elapsed();
  }
  if (f.rank >= 0 && f.rank < size() && f.pid == 0) {
    const Peer& p = context_->members().peer(world_rank(f.rank));
    f.host = p.host;
    f.pid = p.pid;
  }
  if (f.dead.empty())
    for (int r = 0; r < size(); ++r)
      if (context_->members().is_dead(world_rank(r))) f.dead.push_back(r);
  const Collective op = in_flight ? in_flight->plan->op.collective : Collective::none;
  {
    std::lock_guard lock(error_mutex_);
    if (!error_.ok()) return error_;
    error_ = Status(f);
  }
  std::atomic_ref(abort_word_).store(1, std::memory_order_release);
  {
    std::lock_guard lock(gpu_mutex_);
    if (gpu_) gpu_->pending().release(Status(f));
  }
  if (tell_peers && context_->records().publish(record_, f, op)) context_->tell();
  OURO_INFO(COLL, "{}", Status(f).message());
  return Status(std::move(f));
}

GroupRecord* Group::record_of(int r) {
  std::lock_guard lock(records_mutex_);
  GroupRecord*& record = records_[static_cast<std::size_t>(r)];
  if (!record) record = context_->members().find_record(world_rank(r), spec_.key);
  return record;
}

bool Group::has_left(int r, GroupRecord* record) const {
  if (context_->members().page(world_rank(r)).state.get() == static_cast<std::uint32_t>(ContextState::closed))
    return true;
  return record && (record->key.get() != spec_.key ||
                    record->state.get() != static_cast<std::uint32_t>(GroupState::open));
}

void Group::adopt_errors() {
  if (!status().ok()) return;
  for (int r = 0; r < size(); ++r) {
    GroupRecord* record = r == rank_ ? nullptr : record_of(r);
    if (!record || record->key.get() != spec_.key) continue;
    const std::uint32_t i = record->error.get();
    if (i == 0 || i > kErrors) continue;
    const ErrorRecord& e = context_->members().page(world_rank(r)).errors[i - 1];
    Failure f;
    f.reason = e.reason <= Reason::device ? e.reason : Reason::ring_corrupt;
    f.rank = e.rank >= 0 && e.rank < size() ? e.rank : -1;
    f.seq = e.seq;
    if (e.op != Collective::none && static_cast<int>(e.op) < kCollectives) f.op = name(e.op);
    f.elapsed_s = e.elapsed_s;
    f.detector.assign(e.detector, strnlen(e.detector, sizeof e.detector));
    f.text.assign(e.text, strnlen(e.text, sizeof e.text));
    (void)fail(std::move(f), nullptr, false);
    return;
  }
}

void Group::on_losses(const std::vector<Loss>& losses) {
  const Loss* first = nullptr;
  int rank = -1;
  for (const Loss& loss : losses)
    if (const auto r = from_global(loss.rank); r && (!first || *r < rank)) first = &loss, rank = *r;
  if (!first) return;
  Failure f{.reason = first->reason, .text = first->text, .rank = rank, .detector = first->detector};
  if (const std::uint64_t seq = record_.entered.get(); seq > record_.completed.get() && seq > 0) {
    if (const auto s = entered_as(record_, seq)) {
      f.op = name(static_cast<Collective>(s->what & 0xff));
      f.seq = seq;
    }
  }
  // On one host every member sees it by a pidfd of its own; between hosts some hear of it before others.
  (void)fail(std::move(f), nullptr, !one_host());
}

void Group::on_fenced(int by) {
  if (std::find(spec_.ranks.begin(), spec_.ranks.end(), by) == spec_.ranks.end()) return;
  std::atomic_ref(record_.shrinking.value).store(static_cast<std::uint32_t>(Shrinking::fenced));
  (void)fail({.reason = Reason::fenced,
              .text = "the others gave this rank up and have gone on without it",
              .rank = rank_,
              .detector = "peer"},
             nullptr, false);
}

void Group::abort(const std::string& why) {
  if (context_->inherited()) return;  // the group is the parent's
  OURO_LOG(abort, COLL, "group {} is aborted here{}{}", spec_.name, why.empty() ? "" : ": ", why);
  (void)fail({.reason = Reason::revoked,
              .text = why.empty() ? fmt::format("aborted by rank {}", rank_)
                                  : fmt::format("aborted by rank {}: {}", rank_, why),
              .rank = rank_,
              .detector = "abort()"},
             nullptr, true);
}

/// Asked from time to time while an operation waits.
Status Group::look(InFlight& in_flight) {
  adopt_errors();
  OURO_TRY(status());
  OURO_TRY(look_for_mismatch(in_flight));
  std::vector<int> absent;
  for (int r = 0; r < size(); ++r) {
    GroupRecord* record = r == rank_ ? nullptr : record_of(r);
    if (r == rank_ || (record && record->key.get() == spec_.key && record->entered.get() >= in_flight.seq))
      continue;
    absent.push_back(r);
    if (!has_left(r, record)) continue;
    if (in_flight.left_since == Clock::time_point{}) in_flight.left_since = Clock::now();
    if (Clock::now() - in_flight.left_since >= kCauseFirst)
      return fail({.reason = Reason::peer_dead,
                   .text = "it left the group before it entered this operation",
                   .rank = r,
                   .detector = "control page"},
                  &in_flight, true);
  }
  const double elapsed = in_flight.elapsed();
  if (!in_flight.late_said && !absent.empty() &&
      elapsed >= std::chrono::duration<double>(late_after_).count()) {
    in_flight.late_said = true;
    OURO_WARN("ranks {{{}}} have not entered {} seq {} of group {}; {} ranks wait, {:.1f} s",
              fmt::join(absent, ","), name(in_flight.plan->op.collective), in_flight.seq, spec_.name,
              size() - static_cast<int>(absent.size()), elapsed);
  }
  if (elapsed < std::chrono::duration<double>(spec_.deadline).count()) return {};
  if (absent.empty() && in_flight.plan->op.traits().neighbours())
    return fail(
        {.reason = Reason::deadline,
         .text = fmt::format("all ranks entered, and this one {} rank {}: their rows do not match, or it "
                             "is slow",
                             in_flight.awaited.sends ? "got no vector of" : "could not give its vector to",
                             in_flight.awaited.peer),
         .rank = in_flight.awaited.peer,
         .detector = "deadline"},
        &in_flight, true);
  return fail(
      {.reason = Reason::deadline,
       .text = absent.empty() ? "all ranks entered, and it did not end in time"
                              : fmt::format("ranks {{{}}} have not entered it", fmt::join(absent, ",")),
       .rank = absent.empty() ? -1 : absent.front(),
       .detector = "deadline"},
      &in_flight, true);
}

/// Compares what all ranks entered as this operation; prints both sides, the minority named.
Status Group::look_for_mismatch(const InFlight& in_flight) {
  const auto gather = [&](std::map<int, Signature>* seen) {
    bool differ = false;
    for (int r = 0; r < size(); ++r) {
      GroupRecord* record = record_of(r);
      if (!record || record->key.get() != spec_.key) continue;
      if (const auto s = entered_as(*record, in_flight.seq)) {
        (*seen)[r] = *s;
        differ |= *s != in_flight.plan->signature;
      }
    }
    return differ;
  };
  std::map<int, Signature> seen;
  if (!gather(&seen)) return {};
  for (const auto until = Clock::now() + kGatherSignatures;
       seen.size() < spec_.ranks.size() && Clock::now() < until;) {
    std::this_thread::sleep_for(2ms);
    gather(&seen);
  }
  struct Side {
    Signature signature;
    std::vector<int> ranks;
  };
  std::vector<Side> sides;
  for (const auto& [r, s] : seen) {
    auto side = std::find_if(sides.begin(), sides.end(), [&](const Side& x) { return x.signature == s; });
    if (side == sides.end()) sides.push_back({s, {}}), side = std::prev(sides.end());
    side->ranks.push_back(r);
  }
  std::stable_sort(sides.begin(), sides.end(),
                   [](const Side& a, const Side& b) { return a.ranks.size() > b.ranks.size(); });
  // Calls that say the same and are carried out differently: there the user has no call to mend.
  const bool same_calls = std::all_of(sides.begin(), sides.end(), [&](const Side& x) {
    return x.signature.text() == sides.front().signature.text();
  });
  std::string text = same_calls ? "ranks have chosen different algorithms: " : "ranks disagree: ";
  for (std::size_t i = 0; i < sides.size(); ++i)
    text += fmt::format("{}ranks {{{}}} called {}{}", i ? "; " : "", fmt::join(sides[i].ranks, ","),
                        sides[i].signature.text(), same_calls ? ": " + sides[i].signature.how_text() : "");
  if (same_calls) text += ". OURO_ALGO, or the call, can name one for all";
  return fail({.reason = Reason::mismatch,
               .text = text,
               .rank = sides.back().ranks.front(),
               .detector = "control page"},
              &in_flight, true);
}

Status Group::stick(Status outcome) {
  if (std::atomic_ref(abort_word_).load(std::memory_order_acquire) != 0) return status();
  if (outcome.ok() || outcome.reason() == Reason::invalid || outcome.reason() == Reason::unsupported)
    return outcome;
  const Failure& f = *outcome.failure();
  return is_suspicion(f) ? resolve(f) : fail(f, &waiter_->in_flight(), true);
}

Status Group::resolve(const Failure& suspected) {
  const InFlight& in_flight = waiter_->in_flight();
  const int with = suspected.rank;
  for (const auto until = Clock::now() + kExplainMismatch; Clock::now() < until;
       std::this_thread::sleep_for(1ms)) {
    adopt_errors();
    OURO_TRY(status());
    OURO_TRY(look_for_mismatch(in_flight));
  }
  GroupRecord* record = record_of(with);
  return fail({.reason = Reason::mismatch,
               .text = fmt::format(
                   "this rank is in operation {}, {}; rank {} is in another, and has come to operation {}",
                   in_flight.seq, in_flight.plan->signature.text(), with, record ? record->entered.get() : 0),
               .rank = with,
               .detector = suspected.detector},
              &in_flight, true);
}

// ---- the end of a group ---------------------------------------------------------------------------

Status Group::check_wait(const char* what) {
  if (!would_wait_for_itself()) return {};
  return invalid(
      fmt::format("group '{}': {} on the thread of a stream, behind which operations of the group may be "
                  "queued; expected another thread, or a group at rest",
                  spec_.name, what));
}

void Group::await_rest() {
  wait_patiently(turn_, tickets_.load(std::memory_order_acquire));
  while (inside_.load(std::memory_order_acquire) > 0) std::this_thread::yield();
  GpuExecutor* gpu = nullptr;
  {
    std::lock_guard lock(gpu_mutex_);
    gpu = gpu_.get();
  }
  if (gpu) gpu->pending().drain();
}

/// The first rank's messages lie in a segment that goes with it: it waits until they are taken, or nobody
/// will.
void Group::await_receivers() {
  const auto end = deadline_after(spec_.deadline);
  for (; status().ok() && Clock::now() < end; std::this_thread::sleep_for(500us)) {
    std::lock_guard lock(messages_mutex_);
    if (!messages_) return;
    const std::vector<int> owing = messages_->owing();
    if (std::all_of(owing.begin(), owing.end(), [&](int r) { return has_left(r, record_of(r)); })) return;
  }
}

Status Group::close() {
  if (closed_.load(std::memory_order_acquire)) return {};
  if (!context_->inherited()) {
    OURO_TRY(check_wait("close()"));
    await_rest();
    if (members_.keeps_segments()) await_receivers();
  }
  leave();
  return {};
}

void Group::leave() {
  if (closed_.exchange(true)) return;
  if (context_->inherited()) return;
  OURO_INFO(DESTROY, "rank {} of {} leaves group {} after {} operations", rank_, size(), spec_.name,
            record_.completed.get());
  await_rest();
  {
    std::lock_guard lock(own_stream_mutex_);
    own_stream_.reset();
  }
  // It runs under the lock of the fabric, which the network owns: it must not be what ends the context.
  const auto gone = [record = &record_, page = context_->members().peer(context_->rank()).control,
                     network = context_->network()](void*) {
    record->state.set(static_cast<std::uint32_t>(GroupState::closed));
    if (network) network->kick();
  };
  if (one_host()) return gone(nullptr);
  // To others this rank has left when they have what it sent.
  const std::shared_ptr<void> after(nullptr, gone);
  if (status().ok()) {
    host_.wiring.linger(after);
    std::lock_guard lock(messages_mutex_);
    if (messages_) messages_->linger(after);
  }
  host_.wiring.drop_links();
  std::lock_guard lock(messages_mutex_);
  messages_.reset();
}

Result<std::shared_ptr<Group>> Group::derive(const std::vector<int>& members, const std::string& name,
                                             std::uint64_t salt, std::uint64_t generation,
                                             std::chrono::milliseconds deadline, Numerics numerics) {
  GroupSpec spec;
  for (int m : members) spec.ranks.push_back(world_rank(m));
  spec.name = name;
  spec.generation = generation;
  spec.key = group_key(context_->spec().join.job, spec.ranks, name, generation, salt ^ spec_.key);
  spec.deadline = deadline.count() > 0 ? deadline : spec_.deadline;
  spec.numerics = numerics == Numerics::inherit ? spec_.numerics : numerics;
  return create(context_, std::move(spec));
}

}  // namespace ouro::rt
