// Groups of calls. See group_calls.h.
#include "api/nccl/group_calls.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>

#include "api/nccl/environment.h"
#include "api/nccl/estimate.h"
#include "api/nccl/gpu_calls.h"
#include "api/nccl/pointers.h"
#include "runtime/core/thread.h"

namespace ouro::nccl {
namespace {

/// A batch of the C++ interface; the destructor ends it if end() did not.
class OpenBatch {
 public:
  OpenBatch() { group_start(); }
  ~OpenBatch() {
    if (open_) (void)group_end();
  }
  OpenBatch(const OpenBatch&) = delete;
  OpenBatch& operator=(const OpenBatch&) = delete;
  Status end() {
    open_ = false;
    return group_end();
  }

 private:
  bool open_ = true;
};

/// Runs the calls as one batch and returns the outcome of each. A call with wrong arguments drops all of them
/// and is the only one whose outcome is not ok.
std::vector<Status> run_together(const std::vector<Call>& calls) {
  std::vector<Status> outcomes(calls.size());
  std::vector<Work> works(calls.size());
  bool refused = false;
  OpenBatch batch;
  for (std::size_t k = 0; k < calls.size(); ++k) {
    auto work = enqueue_or_defer(calls[k]);
    if (work.ok())
      works[k] = std::move(*work);
    else
      outcomes[k] = work.status(), refused = true;
  }
  const Status end = batch.end();
  if (refused) return outcomes;
  bool reported = end.ok();
  for (std::size_t k = 0; k < calls.size(); ++k) {
    outcomes[k] = works[k].wait();
    reported = reported || !outcomes[k].ok();
  }
  if (!reported) outcomes.front() = end;
  return outcomes;
}

/// The first outcome that is not ok.
Status first_of(const std::vector<Status>& outcomes) {
  const auto wrong = std::find_if(outcomes.begin(), outcomes.end(), [](const Status& s) { return !s.ok(); });
  return wrong == outcomes.end() ? Status() : *wrong;
}

/// Counts a call on a non-blocking communicator that has not ended.
class Pending {
 public:
  explicit Pending(ncclComm_t comm) : comm_(comm) { comm_->pending.fetch_add(1, std::memory_order_relaxed); }
  ~Pending() { comm_->pending.fetch_sub(1, std::memory_order_release); }  // pairs with await_calls
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

 private:
  const ncclComm_t comm_;
};

/// Runs `body` on the communicator's own stream; ncclCommGetAsyncError reports its end and outcome.
ncclResult_t enqueue(ncclComm_t comm, std::function<Status()> body) {
  auto pending = std::make_shared<Pending>(comm);
  comm->stream.run(std::move(body)).then([comm, pending](const Status& s) {
    if (!s.ok()) (void)note(comm, "a non-blocking call", s);  // includes exceptions it threw
  });
  return ncclInProgress;
}

ncclResult_t enqueue(ncclComm_t comm, std::vector<Call> calls) {
  return enqueue(comm, [calls = std::move(calls)] {
    return calls.size() == 1 ? run(calls.front()) : first_of(run_together(calls));
  });
}

/// Runs the job here, or on the stream of its communicator.
ncclResult_t run_job(Job& job) {
  const ncclComm_t comm = job.comm;
  return guarded(nullptr, "ncclGroupEnd", [&]() -> ncclResult_t {
    if (job.ends) return job.run();
    const Entry entry(comm, "ncclGroupEnd");
    if (entry.wrong != ncclSuccess) return entry.wrong;
    if (comm->config.blocking) return job.run();
    return enqueue(comm, [comm, run = std::move(job.run)] {
      keep(comm, run());
      return Status();
    });
  });
}

}  // namespace

ncclResult_t submit(const char* function, const Call& call) {
  if (checks_pointers() && !on_gpu(call.comm)) [[unlikely]]
    if (const ncclResult_t wrong = check_pointers(function, call); wrong != ncclSuccess) return wrong;
  if (GroupCalls* group = GroupCalls::current()) {
    group->add(call);
    return ncclSuccess;
  }
  const ncclComm_t comm = call.comm;
  if (call.half != MessageHalf::none && call.root == comm->rank)
    return invalid_usage(
        comm, function,
        "a message of rank {} to itself outside a group; expected its other half in the same group",
        comm->rank);
  if (on_gpu(comm)) {
    std::vector<Call> one{call};
    return note(comm, function, enqueue_on_gpus(one).front());
  }
  if (!comm->config.blocking) return enqueue(comm, std::vector<Call>{call});
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

ncclResult_t GroupCalls::simulate(float* microseconds) {
  if (!t_current) return invalid_usage(nullptr, "ncclGroupSimulateEnd", "without ncclGroupStart");
  if (--t_current->depth_ > 0) return t_current->error_;
  const std::unique_ptr<GroupCalls> group(t_current);
  t_current = nullptr;
  std::deque<Entry> entries;
  const ncclResult_t wrong = group->enter_all(&entries);
  for (Job& job : group->jobs_) job.drop();
  if (wrong == ncclSuccess) *microseconds = static_cast<float>(estimate(group->calls_));
  return wrong;
}

/// The communicators with operations, in the order of their first operations.
std::vector<ncclComm_t> GroupCalls::communicators() const {
  std::vector<ncclComm_t> comms;
  for (const Call& c : calls_)
    if (std::find(comms.begin(), comms.end(), c.comm) == comms.end()) comms.push_back(c.comm);
  return comms;
}

/// Enters all communicators, because another thread may end one meanwhile, and checks that the calls
/// fit together.
ncclResult_t GroupCalls::enter_all(std::deque<Entry>* entries) {
  for (const ncclComm_t comm : communicators())
    if (entries->emplace_back(comm, "ncclGroupEnd").wrong != ncclSuccess) refuse(entries->back().wrong);
  return check_all();
}

void GroupCalls::forget(ncclComm_t comm, bool ends) {
  std::erase_if(calls_, [&](const Call& c) { return c.comm == comm; });
  if (ends) std::erase_if(jobs_, [&](const Job& j) { return j.comm == comm; });
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
    if (c.half == MessageHalf::send) ++to_itself[c.comm];
    if (c.half == MessageHalf::recv) --to_itself[c.comm];
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
  const std::vector<ncclComm_t> comms = communicators();
  ncclResult_t calls = ncclSuccess;
  {
    std::deque<Entry> entries;
    if (const ncclResult_t wrong = enter_all(&entries); wrong != ncclSuccess) {
      for (Job& job : jobs_) job.drop();
      return wrong;
    }
    if (!comms.empty()) calls = run_calls(comms);
  }
  const ncclResult_t jobs = jobs_.empty() ? ncclSuccess : run_jobs();
  return calls != ncclSuccess && calls != ncclInProgress ? calls : jobs != ncclSuccess ? jobs : calls;
}

/// Each communicator keeps its own outcome; the first error is the result of the group.
ncclResult_t GroupCalls::run_calls(const std::vector<ncclComm_t>& comms) {
  const bool gpus = on_gpu(comms.front());
  if (!comms.front()->config.blocking && !gpus) {
    for (const ncclComm_t comm : comms) {
      std::vector<Call> share;
      std::copy_if(calls_.begin(), calls_.end(), std::back_inserter(share),
                   [&](const Call& c) { return c.comm == comm; });
      enqueue(comm, std::move(share));
    }
    return ncclInProgress;
  }
  const std::vector<Status> outcomes = gpus ? enqueue_on_gpus(calls_) : run_together(calls_);
  ncclResult_t first = ncclSuccess;
  for (const ncclComm_t comm : comms) {
    Status mine;
    for (std::size_t k = 0; k < calls_.size() && mine.ok(); ++k)
      if (calls_[k].comm == comm) mine = outcomes[k];
    const ncclResult_t code = note(comm, "ncclGroupEnd", mine);
    if (first == ncclSuccess) first = code;
  }
  return first;
}

/// The jobs of one communicator run in order. Each communicator may wait for the others, so each has its
/// own thread.
ncclResult_t GroupCalls::run_jobs() {
  struct Line {
    ncclComm_t comm;
    std::vector<Job*> jobs;
    ncclResult_t result = ncclSuccess;
    void run() {
      for (Job* job : jobs)
        if (const ncclResult_t r = run_job(*job); result == ncclSuccess || result == ncclInProgress)
          result = r == ncclSuccess ? result : r;
    }
  };
  std::vector<Line> lines;
  for (Job& job : jobs_) {
    auto line = std::find_if(lines.begin(), lines.end(), [&](const Line& l) { return l.comm == job.comm; });
    if (line == lines.end()) line = lines.insert(line, Line{job.comm, {}});
    line->jobs.push_back(&job);
  }
  std::vector<Thread> threads;
  ncclResult_t first = ncclSuccess;
  if (lines.size() == 1) {
    lines.front().run();
  } else {
    try {
      threads.reserve(lines.size());
      for (Line& line : lines) threads.emplace_back("ouro-nccl-job", [&line] { line.run(); });
    } catch (const std::exception& e) {
      for (std::size_t k = threads.size(); k < lines.size(); ++k)
        for (Job* job : lines[k].jobs) job->drop();
      first = fail(nullptr, "ncclGroupEnd",
                   Status(Reason::resource,
                          fmt::format("{} of {} threads: {}", threads.size(), lines.size(), e.what())));
    }
  }
  for (Thread& t : threads) t.join();
  for (const Line& line : lines)
    if (line.result != ncclSuccess && (first == ncclSuccess || first == ncclInProgress)) first = line.result;
  return first;
}

ncclResult_t begin(Job job) {
  GroupCalls* const group = GroupCalls::current();
  if (!group) return run_job(job);
  const bool blocking = job.comm->config.blocking;
  group->add(std::move(job));
  return blocking ? ncclSuccess : ncclInProgress;
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
  constexpr const char* me = "ncclGroupSimulateEnd";
  return guarded(nullptr, me, [&]() -> ncclResult_t {
    if (!simInfo) return invalid_argument(nullptr, me, "simInfo is null; the group stays open");
    constexpr std::size_t kLeast = offsetof(ncclSimInfo_t, estimatedTime) + sizeof simInfo->estimatedTime;
    if (simInfo->magic != 0x74685283 || simInfo->size < kLeast)
      return invalid_argument(nullptr, me,
                              "size {} and magic number {:#x} of simInfo; expected those of "
                              "NCCL_SIM_INFO_INITIALIZER; the group stays open",
                              simInfo->size, simInfo->magic);
    return GroupCalls::simulate(&simInfo->estimatedTime);
  });
}
