// Detection of a group's first error. See failure_detector.h.
#include "runtime/group/failure_detector.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/core/log.h"
#include "runtime/core/process.h"
#include "runtime/group/mismatch.h"
#include "runtime/network/network.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr auto kExplainMismatch = 500ms;
constexpr auto kCheckProcesses = 250ms, kStalled = 750ms;

double in_seconds(std::chrono::milliseconds t) { return std::chrono::duration<double>(t).count(); }

}  // namespace

Status FailureDetector::status() const {
  std::lock_guard lock(mutex_);
  return error_;
}

int FailureDetector::from_world(int world_rank) const {
  for (int r = 0; r < members_.size(); ++r)
    if (members_.world_rank(r) == world_rank) return r;
  return -1;
}

/// Adds to an error what is known of the group, the operation and the rank that it names.
void FailureDetector::complete(Failure* f, const InFlight* op) {
  // An error that the context has found on a control socket names a rank of the job.
  if (f->detector == "socket" && f->rank >= 0) f->rank = from_world(f->rank);
  if (f->group.empty()) f->group = settings_.group;
  f->generation = settings_.generation;
  if (op && f->op.empty() && op->seq > 0) {
    f->op = name(op->plan->op.collective);
    f->seq = op->seq;
    if (f->elapsed_s == 0 && op->start != Clock::time_point{}) f->elapsed_s = op->elapsed();
  }
  if (f->rank >= 0 && f->rank < members_.size() && f->pid == 0) {
    const Peer& p = members_.peer(f->rank);
    f->host = p.host;
    f->pid = p.pid;
  }
  if (f->dead.empty())
    for (int r = 0; r < members_.size(); ++r)
      if (members_.is_dead(r)) f->dead.push_back(r);
}

Status FailureDetector::fail(Failure f, const InFlight* op, bool notify_peers) {
  const Collective collective = op ? op->plan->op.collective : Collective::none;
  Status first;
  try {
    // A rank that leaves because of an error publishes it first, and that error is the cause of this failure.
    if (notify_peers && f.reason == Reason::peer_dead) adopt_errors();
    if (f.reason == Reason::resource && f.rank < 0) f.rank = members_.rank();
    complete(&f, op);
    first = Status(std::move(f));
  } catch (const std::bad_alloc&) {
    first = no_memory();
  }
  return keep(std::move(first), collective, notify_peers);
}

Status FailureDetector::fail(const Status& s) {
  try {
    return fail(*s.failure(), nullptr, true);
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

Status FailureDetector::keep(Status first, Collective collective, bool notify_peers) noexcept {
  {
    std::lock_guard lock(mutex_);
    if (!error_.ok()) return error_;
    error_ = first;
  }
  std::atomic_ref(abort_word_).store(1, std::memory_order_release);
  const auto best_effort = [](auto&& f) {
    try {
      f();
    } catch (const std::exception&) {
      return;  // the next heartbeat of the lines, or the next poll of the device, repeats it
    }
  };
  best_effort([&] {
    std::lock_guard lock(release_mutex_);
    for (const auto& [by, release] : releases_) best_effort([&] { release(first); });
  });
  best_effort([&] {
    if (notify_peers && context_.records().publish(members_.mine(), *first.failure(), collective))
      context_.notify_other_hosts();
  });
  best_effort([&] { OURO_INFO(COLL, "{}", first.message()); });
  return first;
}

void FailureDetector::when_failed(const void* by, std::function<void(const Status&)> release) {
  std::lock_guard lock(release_mutex_);
  if (!release) {
    releases_.erase(by);
    return;
  }
  const auto& kept = releases_[by] = std::move(release);
  if (const Status s = status(); !s.ok()) kept(s);
}

void FailureDetector::adopt_errors() {
  if (!status().ok()) return;
  for (int r = 0; r < members_.size(); ++r) {
    const GroupRecord* const record = r == members_.rank() ? nullptr : members_.find_ours(r);
    if (!record) continue;
    const std::uint32_t i = record->error.get();
    if (i == 0 || i > kErrors) continue;
    const ErrorRecord& e = members_.page(r).errors[i - 1];
    Failure f;
    // The page may hold anything, and change. An error without a reason would pass for success.
    const Reason said = e.reason;
    f.reason = said > Reason::none && said <= Reason::device ? said : Reason::ring_corrupt;
    f.rank = e.rank >= 0 && e.rank < members_.size() ? e.rank : -1;
    if (f.rank < 0 && f.reason == Reason::resource) f.rank = r;  // rank r had no memory to say more
    f.seq = e.seq;
    if (e.op != Collective::none && static_cast<int>(e.op) < kCollectives) f.op = name(e.op);
    f.elapsed_s = e.elapsed_s;
    f.detector.assign(e.detector, strnlen(e.detector, sizeof e.detector));
    f.text.assign(e.text, strnlen(e.text, sizeof e.text));
    (void)fail(std::move(f), nullptr, false);
    return;
  }
}

void FailureDetector::on_losses(const std::vector<LostRank>& losses) {
  const LostRank* first = nullptr;
  int rank = -1;
  for (const LostRank& loss : losses)
    if (const int r = from_world(loss.rank); r >= 0 && (!first || r < rank)) first = &loss, rank = r;
  if (!first) return;
  Failure f{.reason = first->reason, .text = first->text, .rank = rank, .detector = first->detector};
  const GroupRecord& mine = members_.mine();
  if (const std::uint64_t seq = mine.entered.get(); seq > mine.completed.get() && seq > 0) {
    if (const auto s = entered_as(mine, seq)) {
      f.op = name(static_cast<Collective>(s->what & 0xff));
      f.seq = seq;
    }
  }
  // On one host every member notices a death by its own pidfd; between hosts some members learn of it
  // before others.
  (void)fail(std::move(f), nullptr, !settings_.one_host);
}

void FailureDetector::on_fenced(int by) {
  if (from_world(by) < 0) return;
  std::atomic_ref(members_.mine().shrinking.value).store(static_cast<std::uint32_t>(Shrinking::fenced));
  (void)fail({.reason = Reason::fenced,
              .text = "the others gave this rank up and have gone on without it",
              .rank = members_.rank(),
              .detector = "peer"},
             nullptr, false);
}

Status FailureDetector::check(InFlight& op) {
  adopt_errors();
  OURO_TRY(status());
  OURO_TRY(check_for_mismatch(op));
  std::vector<int> absent;
  for (int r = 0; r < members_.size(); ++r) {
    if (r == members_.rank()) continue;
    const GroupRecord* const ours = members_.find_ours(r);
    if (ours && ours->entered.get() >= op.seq) continue;
    absent.push_back(r);
    if (!members_.has_left(r)) continue;
    if (op.left_since == Clock::time_point{}) op.left_since = Clock::now();
    if (Clock::now() - op.left_since >= kCauseFirst)
      return fail({.reason = Reason::peer_dead,
                   .text = "it left the group before it entered this operation",
                   .rank = r,
                   .detector = "control page"},
                  &op, true);
  }
  OURO_TRY(check_awaited(op));
  OURO_TRY(check_stopped(op));
  const Collective collective = op.plan->op.collective;
  const double elapsed = op.elapsed();
  if (elapsed >= in_seconds(settings_.late_after)) {
    // Absent ranks are news once for each operation; slow links are as often as their Repeat says.
    const bool absence_is_news = !absent.empty() && !op.late_said;
    const std::string slow = slow_links(!absence_is_news);
    op.late_said |= absence_is_news;
    if (absence_is_news || (!absent.empty() && !slow.empty()))
      OURO_WARN("ranks {{{}}} have not entered {} seq {} of group {}; {} ranks wait, {:.1f} s{}",
                fmt::join(absent, ","), name(collective), op.seq, settings_.group,
                members_.size() - static_cast<int>(absent.size()), elapsed, slow);
    else if (!slow.empty())
      OURO_WARN("all ranks have entered {} seq {} of group {}, which has not ended after {:.1f} s{}",
                name(collective), op.seq, settings_.group, elapsed, slow);
  }
  if (elapsed < in_seconds(settings_.deadline)) return {};
  if (absent.empty() && op.plan->op.traits().neighbours())
    return fail(
        {.reason = Reason::deadline,
         .text =
             fmt::format("all ranks entered, and this one {} rank {}: their rows do not match, or it is slow",
                         op.awaited.sends ? "got no vector of" : "could not give its vector to",
                         op.awaited.peer) +
             slow_links(false),
         .rank = op.awaited.peer,
         .detector = "deadline"},
        &op, true);
  return fail(
      {.reason = Reason::deadline,
       .text = (absent.empty() ? "all ranks entered, and it did not end in time"
                               : fmt::format("ranks {{{}}} have not entered it", fmt::join(absent, ","))) +
               slow_links(false),
       .rank = absent.empty() ? -1 : absent.front(),
       .detector = "deadline"},
      &op, true);
}

std::string FailureDetector::slow_links(bool news) {
  std::string text;
  if (!context_.network()) return text;
  bool due = false;
  const auto now = Clock::now();
  for (const SlowHost& s : context_.network()->slow_hosts()) {
    if (std::ranges::none_of(s.ranks, [&](int rank) { return from_world(rank) >= 0; })) continue;
    text += (text.empty() ? "; data moves slowly: " : "; ") + s.text();
    std::lock_guard lock(mutex_);
    due |= said_slow_[s.host].due(1 / s.what.rate, now);  // also where the text is for another message
  }
  return due || !news ? text : "";
}

/// A rank that has entered the operation may leave as soon as it has done its part: its data has arrived, or
/// may be in flight for as long as a path may be silent.
Status FailureDetector::check_awaited(InFlight& op) {
  InFlight::Awaited& awaited = op.awaited;
  if (awaited.peer < 0 || !members_.has_closed(awaited.peer)) return {};
  if (awaited.left_since == Clock::time_point{}) awaited.left_since = Clock::now();
  if (Clock::now() - awaited.left_since < settings_.under_way) return {};
  return fail({.reason = Reason::peer_dead,
               .text = awaited.sends ? "it left, and what it had to send for this operation has not come"
                                     : "it left before it took what this operation has for it",
               .rank = awaited.peer,
               .detector = "control page"},
              &op, true);
}

/// The kernel answers for a stopped process, so nothing else reveals the stop on its own host.
Status FailureDetector::check_stopped(InFlight& op) {
  InFlight::Stopped& stopped = op.stopped;
  const auto now = Clock::now(), before = stopped.checked;
  if (now - before < kCheckProcesses) return {};
  stopped.checked = now;
  // Times a stop anew if this process itself was stopped since the last check, or if operations have
  // ended meanwhile.
  if (now - before > kStalled || stopped.seq != op.seq) stopped.rank = -1;
  stopped.seq = op.seq;
  int found = -1;
  for (int r = 0; r < members_.size() && found < 0; ++r)
    if (r != members_.rank() && members_.is_here(r) && !members_.is_dead(r) &&
        is_stopped(members_.peer(r).pidfd))
      found = r;
  if (found < 0 || found != stopped.rank) {
    stopped.rank = found, stopped.since = now;
    return {};
  }
  if (now - stopped.since < settings_.silent_fail) return {};
  return fail({.reason = Reason::peer_unresponsive,
               .text = fmt::format("its process has stood still (state T) for {:.1f} s",
                                   std::chrono::duration<double>(now - stopped.since).count()),
               .rank = found,
               .detector = "/proc"},
              &op, true);
}

Status FailureDetector::check_for_mismatch(const InFlight& op) {
  auto found = find_mismatch(members_, op.seq, op.plan->signature);
  return found ? fail(std::move(*found), &op, true) : Status();
}

Status FailureDetector::stick(Status outcome, const InFlight& op) {
  if (!ok()) return status();
  if (outcome.ok()) return outcome;
  // A call that is wrong in itself leaves the group usable. An error that names a rank comes from a
  // comparison with that rank's call, and that rank waits.
  if ((outcome.reason() == Reason::invalid || outcome.reason() == Reason::unsupported) &&
      outcome.failure()->rank < 0)
    return outcome;
  try {
    const Failure& f = *outcome.failure();
    return is_suspicion(f) ? resolve(f, op) : fail(f, &op, true);
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

Status FailureDetector::stick(const Status& outcome) {
  if (!ok()) return status();
  if (outcome.ok() || outcome.reason() == Reason::invalid || outcome.reason() == Reason::unsupported)
    return outcome;
  return fail(outcome);
}

Status FailureDetector::resolve(const Failure& suspected, const InFlight& op) {
  const int with = suspected.rank;
  for (const auto until = Clock::now() + kExplainMismatch; Clock::now() < until;
       std::this_thread::sleep_for(1ms)) {
    adopt_errors();
    OURO_TRY(status());
    OURO_TRY(check_for_mismatch(op));
  }
  // Ranks that took part in different operations, in which neither had to wait for the other, find out later.
  for (std::uint64_t seq = op.seq - 1; seq > 0 && seq + kHistory > op.seq; --seq)
    if (const auto mine = entered_as(members_.mine(), seq)) {
      auto found = find_mismatch(members_, seq, *mine);
      if (!found) continue;
      found->op = name(static_cast<Collective>(mine->what & 0xff));
      found->seq = seq;
      return fail(std::move(*found), &op, true);
    }
  const GroupRecord* const record = members_.find_ours(with);
  const auto theirs = record ? entered_as(*record, op.seq) : std::nullopt;
  // Ranks that made the same call have written the same signature, except neighbours that skip each other.
  if (theirs && *theirs == op.plan->signature && !op.plan->op.traits().neighbours())
    return fail({.reason = Reason::ring_corrupt,
                 .text = fmt::format("it is in the same operation as this rank, {}, and what it has written "
                                     "there for others bears another signature",
                                     op.plan->signature.text()),
                 .rank = with,
                 .detector = suspected.detector},
                &op, true);
  return fail({.reason = Reason::mismatch,
               .text = fmt::format(
                   "this rank is in operation {}, {}; rank {} is in another, and has come to operation {}",
                   op.seq, op.plan->signature.text(), with, record ? record->entered.get() : 0),
               .rank = with,
               .detector = suspected.detector},
              &op, true);
}

}  // namespace ouro::rt
