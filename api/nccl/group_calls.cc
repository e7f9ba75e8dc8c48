// Groups of calls. See group_calls.h.
#include "api/nccl/group_calls.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "runtime/core/thread.h"

namespace ouro::nccl {
namespace {

/// The calls of one communicator as one batch, on the thread of its stream.
Status run_share(const std::vector<Call>& calls) {
  group_start();
  Status first;
  for (const Call& c : calls)
    if (Status s = run(c); first.ok() && !s.ok()) first = s;
  Status end = group_end();
  return first.ok() ? end : first;
}

/// On the communicator's own stream; ncclCommGetAsyncError tells the end.
ncclResult_t enqueue(ncclComm_t comm, std::vector<Call> calls) {
  comm->pending.fetch_add(1, std::memory_order_relaxed);
  const Work work = comm->stream.run([calls = std::move(calls)] { return run_share(calls); });
  work.then([comm](const Status& s) {
    if (!s.ok()) (void)note(comm, "a non-blocking operation", s);
    comm->pending.fetch_sub(1, std::memory_order_release);
  });
  return ncclInProgress;
}

}  // namespace

ncclResult_t submit(const char* function, const Call& call) {
  if (GroupCalls* group = GroupCalls::current()) {
    group->add(call);
    return ncclSuccess;
  }
  const ncclComm_t comm = call.comm;
  if ((call.kind == Kind::send || call.kind == Kind::recv) && call.root == comm->rank)
    return invalid_usage(comm, function,
                         "a message of rank {} to itself outside a group; expected its other half in "
                         "the same group",
                         comm->rank);
  if (!comm->config.blocking) return enqueue(comm, {call});
  const Inside inside(comm);
  if (Status s = run(call); !s.ok()) [[unlikely]]
    return note(comm, function, s);
  return ncclSuccess;
}

void GroupCalls::start() {
  if (!t_current) t_current = new GroupCalls;
  ++t_current->depth_;
}

ncclResult_t GroupCalls::end() {
  if (!t_current) return invalid_usage(nullptr, "ncclGroupEnd", "without ncclGroupStart");
  if (--t_current->depth_ > 0) return t_current->error_;
  const std::unique_ptr<GroupCalls> group(t_current);
  t_current = nullptr;  // what runs now is no longer deferred
  return group->run_all();
}

ncclResult_t GroupCalls::drop() {
  if (!t_current) return invalid_usage(nullptr, "ncclGroupSimulateEnd", "without ncclGroupStart");
  if (--t_current->depth_ > 0) return ncclSuccess;
  const std::unique_ptr<GroupCalls> group(t_current);
  t_current = nullptr;
  for (Job& job : group->jobs_) job.drop();
  return ncclSuccess;
}

void GroupCalls::forget(ncclComm_t comm) {
  std::erase_if(calls_, [&](const Call& c) { return c.comm == comm; });
}

ncclResult_t GroupCalls::check_all() const {
  if (error_ != ncclSuccess) return error_;
  const bool makes = std::any_of(jobs_.begin(), jobs_.end(), [](const Job& j) { return j.makes; });
  if (makes && !calls_.empty())
    return invalid_usage(nullptr, "ncclGroupEnd",
                         "the group makes communicators and communicates; expected a group for each");
  std::map<ncclComm_t, int> to_itself;
  for (const Call& c : calls_) {
    if (c.comm->config.blocking != calls_.front().comm->config.blocking)
      return invalid_argument(c.comm, "ncclGroupEnd", "blocking and non-blocking communicators in one group");
    if (c.root != c.comm->rank) continue;
    if (c.kind == Kind::send) ++to_itself[c.comm];
    if (c.kind == Kind::recv) --to_itself[c.comm];
  }
  for (const auto& [comm, left] : to_itself)
    if (left != 0)
      return invalid_usage(
          comm, "ncclGroupEnd",
          "rank {} sends {} messages to itself {} than it receives in this group; expected as many",
          comm->rank, std::abs(left), left > 0 ? "more" : "fewer");
  return ncclSuccess;
}

ncclResult_t GroupCalls::run_all() {
  if (const ncclResult_t wrong = check_all(); wrong != ncclSuccess) {
    for (Job& job : jobs_) job.drop();
    return wrong;
  }
  const ncclResult_t calls = calls_.empty() ? ncclSuccess : run_calls();
  const ncclResult_t jobs = jobs_.empty() ? ncclSuccess : run_jobs();
  return calls != ncclSuccess && calls != ncclInProgress ? calls : jobs != ncclSuccess ? jobs : calls;
}

ncclResult_t GroupCalls::run_calls() {
  std::vector<ncclComm_t> comms;
  for (const Call& c : calls_)
    if (std::find(comms.begin(), comms.end(), c.comm) == comms.end()) comms.push_back(c.comm);
  if (!comms.front()->config.blocking) {
    for (const ncclComm_t comm : comms) {
      std::vector<Call> share;
      std::copy_if(calls_.begin(), calls_.end(), std::back_inserter(share),
                   [&](const Call& c) { return c.comm == comm; });
      enqueue(comm, std::move(share));
    }
    return ncclInProgress;
  }
  std::vector<std::unique_ptr<Inside>> inside;
  for (const ncclComm_t comm : comms) inside.push_back(std::make_unique<Inside>(comm));
  const Status outcome = run_share(calls_);
  if (outcome.ok()) return ncclSuccess;
  for (const ncclComm_t comm : comms)
    if (Status s = comm->group.status(); !s.ok()) (void)note(comm, "ncclGroupEnd", s);
  return note(comms.front(), "ncclGroupEnd", outcome);
}

/// Each may wait for the others, so there is a thread for each.
ncclResult_t GroupCalls::run_jobs() {
  if (jobs_.size() == 1) return jobs_.front().run();
  std::vector<ncclResult_t> results(jobs_.size(), ncclSuccess);
  std::vector<Thread> threads;
  ncclResult_t first = ncclSuccess;
  try {
    threads.reserve(jobs_.size());
    for (std::size_t k = 0; k < jobs_.size(); ++k)
      threads.emplace_back("ouro-nccl-job", [&, k] { results[k] = jobs_[k].run(); });
  } catch (const std::exception& e) {
    for (std::size_t k = threads.size(); k < jobs_.size(); ++k) jobs_[k].drop();
    first = fail(nullptr, "ncclGroupEnd",
                 Status(Reason::resource,
                        fmt::format("{} of {} threads: {}", threads.size(), jobs_.size(), e.what())));
  }
  for (Thread& t : threads) t.join();
  for (const ncclResult_t r : results)
    if (r != ncclSuccess && (first == ncclSuccess || first == ncclInProgress)) first = r;
  return first;
}

ncclResult_t begin(ncclComm_t polled, Job job) {
  if (!polled->config.blocking) {
    // Begins at once in a group, too: nobody waits for it there.
    polled->pending.fetch_add(1, std::memory_order_relaxed);
    const Work work = polled->stream.run([run = std::move(job.run)] {
      (void)run();
      return Status();
    });
    work.then([polled](const Status&) { polled->pending.fetch_sub(1, std::memory_order_release); });
    return ncclInProgress;
  }
  if (GroupCalls* group = GroupCalls::current()) {
    group->add(std::move(job));
    return ncclSuccess;
  }
  return job.run();
}

}  // namespace ouro::nccl

using namespace ouro::nccl;

OURO_NCCL(ncclResult_t, GroupStart, void) {
  return guarded(nullptr, "ncclGroupStart", [] {
    GroupCalls::start();
    return ncclSuccess;
  });
}

OURO_NCCL(ncclResult_t, GroupEnd, void) {
  return guarded(nullptr, "ncclGroupEnd", [] { return GroupCalls::end(); });
}

OURO_NCCL(ncclResult_t, GroupSimulateEnd, ncclSimInfo_t* simInfo) {
  return guarded(nullptr, "ncclGroupSimulateEnd", [&] {
    if (!simInfo)
      return invalid_argument(nullptr, "ncclGroupSimulateEnd", "simInfo is null; the group stays open");
    if (simInfo->magic != 0x74685283)
      return invalid_argument(
          nullptr, "ncclGroupSimulateEnd",
          "the magic number of simInfo is {:#x}; expected that of NCCL_SIM_INFO_INITIALIZER; the "
          "group stays open",
          simInfo->magic);
    if (const ncclResult_t dropped = GroupCalls::drop(); dropped != ncclSuccess) return dropped;
    return not_supported(nullptr, "ncclGroupSimulateEnd", "an estimate of the time",
                         "there is no cost model yet", "the group was dropped; measure it by ncclGroupEnd");
  });
}
