// The life cycle of the backend: how operations run, timeouts, the end. See backend.h.
#include "backend.h"

#include <c10/core/StreamGuard.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <set>

#include "signals.h"
#include "tensors.h"

namespace ouro::adapter {
namespace {

std::mutex alive_mutex;
std::set<Backend*> alive;

thread_local const Backend* running_for = nullptr;  // the backend whose stream's thread this is

/// The limit of a PyTorch call with its own timeout: the shorter of that and the group's.
std::optional<Milliseconds> limit_of(std::chrono::milliseconds timeout, std::chrono::milliseconds of_group,
                                     const Group& group) {
  const auto wanted = timeout.count() > 0 ? timeout : of_group;
  return wanted.count() > 0 && wanted < group.deadline() ? std::optional<Milliseconds>(wanted) : std::nullopt;
}

void raise(const Status& s) {
  if (!s.ok()) std::rethrow_exception(exception_of(s));
}

}  // namespace

Backend::Backend(std::shared_ptr<Job> job, Group group, c10::intrusive_ptr<OptionsAsGloo> options,
                 std::string name)
    : c10d::Backend(group.rank(), group.size()),
      job_(std::move(job)),
      options_(std::move(options)),
      group_(std::move(group)),
      name_(std::move(name)) {
  init();
  const std::lock_guard lock(alive_mutex);
  alive.insert(this);
}

Backend::~Backend() {
  // Operations in flight end as revoked. Their callbacks may need the GIL, which this thread may hold.
  std::optional<pybind11::gil_scoped_release> unlocked;
  if (Py_IsInitialized() && PyGILState_Check()) unlocked.emplace();
  {
    const std::lock_guard lock(alive_mutex);
    alive.erase(this);
  }
  end("its process group was destroyed");
}

void Backend::end(const char* why) {
  if (pending_ > 0 || messages_ > 0) group_.abort(why);
  stream_ = {};
  set_ = {};
  lanes_ = std::make_unique<Lanes>();
}

void Backend::end_all() {
  const std::lock_guard lock(alive_mutex);
  for (Backend* const b : alive) b->end("the interpreter of its process ended");
}

c10::intrusive_ptr<Work> Backend::make_work(const Call& c) {
  return c10::make_intrusive<Work>(rank_, c.op, c10::str(name_, ":", c.name), c.inputs, c.outputs, group_,
                                   ++seq_, limit_of(c.timeout, options_->timeout, group_));
}

Status Backend::run(const Body& body, const Stream& over) {
  const at::AutoDispatchBelowADInplaceOrView plain;
  try {
    return body(over);
  } catch (const c10::Error& e) {  // such as no memory for a copy: the other ranks must not wait for this one
    group_.abort(e.what_without_backtrace());
  } catch (const std::exception& e) {
    group_.abort(e.what());
  }
  return group_.status();
}

Backend::WorkPtr Backend::start(Call call, Body body) {
  const Tensors& any = call.inputs.empty() ? call.outputs : call.inputs;
  end_stale_batch();
  if (!any.empty() && any.front().is_cuda()) return start_on_device(std::move(call), body);
  auto work = make_work(call);
  const bool limited = limit_of(call.timeout, options_->timeout, group_).has_value();
  std::unique_lock lock(mutex_);
  if (running_for == this || (!call.async && !limited && pending_ == 0 && !coalescing_)) {
    lock.unlock();
    const TakingSignals signals;
    work->complete(run(body));
    signals.rethrow();
    return work;
  }
  if (!stream_.valid()) {
    auto made = Stream::create(Priority::normal, "torch");
    raise(made.status());
    stream_ = *made;
  }
  ++pending_;
  if (coalescing_) coalesced_.push_back(work);
  const ouro::Work queued = stream_.run([this, work, body = std::move(body)]() -> Status {
    running_for = this;
    const Status s = run(body);
    --pending_;
    work->complete(s);
    return {};  // the Work reports failures
  });
  if (queued.test() && !queued.wait().ok()) {  // the task was not accepted: this is a forked child
    --pending_;
    work->complete(queued.wait());
  }
  return work;
}

Backend::WorkPtr Backend::start_on_device(Call call, const Body& body) {
  const at::Tensor any = (call.inputs.empty() ? call.outputs : call.inputs).front();
  const Stream over = current_stream(any);
  auto work = make_work(call);
  const Status s = run(body, over);
  const std::lock_guard lock(mutex_);
  work->enqueued(any.device(), call.async || coalescing_);
  work->complete(s);
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

void Backend::submit(const std::vector<Deferred>& messages) {
  if (messages.empty()) return;
  std::vector<Status> outcomes(messages.size());
  group_start();  // must be closed on every path: an open batch would defer everything this thread does later
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Deferred& m = messages[i];
    const c10::StreamGuard guard(m.current);
    outcomes[i] = run([&m](const Stream& over) { return m.body(over); }, m.over);
  }
  const Status all = group_end();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Deferred& m = messages[i];
    const c10::StreamGuard guard(m.current);
    Status s = outcomes[i].ok() ? all : outcomes[i];
    if (s.ok())
      s = run([&m](const Stream&) {
        m.store();
        return Status();
      });
    m.work->enqueued(m.current.device(), true);
    m.work->complete(s);
  }
}

void Backend::startCoalescing() {
  drop_batch();
  batch_.enter();
  coalescing_ = true;
}

void Backend::end_stale_batch() {
  if (coalescing_ && running_for != this && batch_.left()) drop_batch();
}

void Backend::drop_batch() {
  std::vector<Deferred> left;
  std::vector<WorkPtr> works;
  {
    const std::lock_guard lock(mutex_);
    coalescing_ = false;
    works.swap(coalesced_);
    left.swap(deferred_);
  }
  for (const Deferred& m : left)
    m.work->complete(Status(Reason::revoked, "the batch of messages was not completed"));
}

Backend::WorkPtr Backend::endCoalescing() {
  std::vector<WorkPtr> works;
  std::vector<Deferred> messages;
  {
    const std::lock_guard lock(mutex_);
    coalescing_ = false;
    works.swap(coalesced_);
    messages.swap(deferred_);
  }
  submit(messages);
  Tensors outputs;
  auto all = c10::make_intrusive<Work>(rank_, c10d::OpType::COALESCED, name_ + ":coalesced", Tensors{},
                                       Tensors{}, group_, seq_.load(), std::nullopt);
  struct State {
    std::atomic<std::size_t> left;
    std::mutex mutex;
    Status first;
  };
  auto state = std::make_shared<State>();
  state->left = works.size();
  for (const WorkPtr& w : works) all->enqueued_with(static_cast<Work&>(*w));
  if (works.empty()) all->complete({});
  for (const WorkPtr& w : works)
    static_cast<Work&>(*w).then([state, all](const Status& s) {
      {
        const std::lock_guard lock(state->mutex);
        if (state->first.ok()) state->first = s;
      }
      if (--state->left == 0) all->complete(state->first);
    });
  return all;
}

Result<Registration> Backend::register_memory(const Tensor& t) {
  if (!t.is_cuda()) return invalid("a tensor that is not on a GPU is not registered");
  const auto& storage = t.storage();
  return job_->context.register_memory(storage.data(), storage.nbytes(),
                                       Device{Device::Kind::cuda, static_cast<int>(t.get_device())});
}

c10d::ErrorType Backend::getError() {
  const Status s = group_.status();
  if (s.ok()) return c10d::ErrorType::SUCCESS;
  if (s.code() == Code::timeout) return c10d::ErrorType::TIMEOUT;
  return s.code() == Code::peer_lost ? c10d::ErrorType::REMOTE_ERROR : c10d::ErrorType::COMM_ERROR;
}

std::pair<std::string, std::vector<int>> Backend::lost() const {
  const Status s = group_.status();
  if (s.code() != Code::peer_lost) return {};
  std::vector<int> ranks = s.failure()->dead;
  if (ranks.empty() && s.failure()->rank >= 0) ranks.push_back(s.failure()->rank);
  return {s.message(), std::move(ranks)};
}

void Backend::abort() {
  group_.abort("abort of its process group");
  if (monitor_.valid()) monitor_.abort("abort of its process group");
}

void Backend::shutdown() {
  if (stream_.valid()) (void)stream_.synchronize();
  // Receives without a message end here, so that the process group does not wait for them.
  MessageSet messages;
  {
    const std::lock_guard lock(mutex_);
    messages = set_;
  }
  messages.close();
  if (job_.use_count() == 1) (void)job_->context.close();
}

c10::intrusive_ptr<c10d::Backend> Backend::split(const c10::intrusive_ptr<c10d::Store>&,
                                                 const std::vector<int>& ranks,
                                                 const c10::intrusive_ptr<Options>& options) {
  // PyTorch calls this on all ranks of the group for the part that some of them make.
  if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) return nullptr;
  std::vector<int> world;
  for (const int r : ranks) {
    TORCH_CHECK_VALUE(r >= 0 && r < size_, "ouro: split: rank ", r, " of a group of ", size_);
    world.push_back(group_.ranks()[static_cast<std::size_t>(r)]);
  }
  auto made = job_->context.group(world, options->group_name, {.deadline = options->timeout});
  raise(made.status());
  auto own = c10::make_intrusive<OptionsAsGloo>(options->timeout, options->group_name);
  own->global_ranks_in_group = options->global_ranks_in_group;
  return c10::make_intrusive<Backend>(job_, *made, std::move(own), name_);
}

}  // namespace ouro::adapter
