// PyTorch's Work for operations of ouro. See work.h.
#include "work.h"

#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <pthread.h>

#include <algorithm>
#include <atomic>

#include "signals.h"

namespace ouro::adapter {

std::exception_ptr exception_of(const Status& s) {
  // Programs search for the word "timeout", which the texts of c10d's backends contain.
  const char* const more = s.code() == Code::timeout ? "; the timeout of its process group or call" : "";
  return std::make_exception_ptr(c10::DistBackendError(
      {__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, c10::str(s.message(), more)));
}

namespace {

/// The number of forks between the process that loaded this and the calling one.
std::atomic<unsigned> forks{0};
[[maybe_unused]] const int counts_forks = pthread_atfork(nullptr, nullptr, [] { ++forks; });

}  // namespace

Work::Work(int rank, c10d::OpType op, const std::string& title, std::vector<at::Tensor> inputs,
           std::vector<at::Tensor> outputs, Group group, std::uint64_t seq, std::optional<Milliseconds> limit)
    : c10d::Work(rank, op, title.c_str(), inputs.empty() ? outputs : inputs),  // what profilers show
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      group_(std::move(group)),
      title_(title),
      seq_(seq),
      limit_(limit),
      forks_(forks) {
  if (limit) until_ = after(*limit);
}

Work::~Work() {
  // Its tensors may be returned to the stream in which they were made, which has not waited for
  // the operation.
  for (const auto& e : enqueued_) {
    if (e->waited) continue;
    const c10::impl::VirtualGuardImpl guard(e->over.device_type());
    for (const auto* const tensors : {&inputs_, &outputs_})
      for (const at::Tensor& t : *tensors)
        if (t.device() == e->over.device()) try {
            guard.recordDataPtrOnStream(t.storage().data_ptr(), e->over);
          } catch (const std::exception&) {  // the device is lost, and with it the tensor
          }
  }
}

void Work::enqueued(c10::Device device, bool async) {
  const c10::Stream over = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  enqueued_.emplace_back(new Enqueued{over, c10::Event(device.type())});
  if (async) enqueued_.back()->end.record(over);
}

void Work::enqueued_with(const Work& part) {
  if (part.enqueued_.empty()) return;
  enqueued_.insert(enqueued_.end(), part.enqueued_.begin(), part.enqueued_.end());
  for (const auto* const tensors : {&part.inputs_, &part.outputs_})
    inputs_.insert(inputs_.end(), tensors->begin(), tensors->end());
}

void Work::let_wait() {
  if (enqueued_.empty()) return;
  for (const auto& e : enqueued_) {
    e->waited = true;
    const c10::Stream current =
        c10::impl::VirtualGuardImpl(e->over.device_type()).getStream(e->over.device());
    if (current == e->over) continue;
    if (!e->end.was_marked_for_recording()) e->end.record(e->over);
    e->end.block(current);
  }
  const std::lock_guard lock(mutex_);
  inputs_.clear();
}

void Work::mark(c10::ivalue::Future& future) {
  std::vector<c10::Stream> streams;
  for (const auto& e : enqueued_)  // each once: with duplicates, the guard would leave one of them current
    if (std::find(streams.begin(), streams.end(), e->over) == streams.end()) streams.push_back(e->over);
  const c10::MultiStreamGuard guard(streams);  // the future ends when these streams have passed
  future.markCompleted(c10::IValue(outputs_));
}

void Work::complete(const Status& s) {
  c10::intrusive_ptr<c10::ivalue::Future> future, outcome;
  std::vector<std::function<void(const Status&)>> after;
  const std::exception_ptr error = s.ok() ? nullptr : exception_of(s);
  {
    const std::lock_guard lock(mutex_);
    if (completed_) return;
    completed_ = true;
    exception_ = error;
    status_ = s;
    after.swap(after_);
    future = future_, outcome = outcome_;
    if (enqueued_.empty()) inputs_.clear();  // otherwise they are kept until a thread waits
    if (recordFunctionEndCallback_) {
      recordFunctionEndCallback_();
      recordFunctionEndCallback_ = nullptr;
    }
  }
  cv_.notify_all();
  for (const auto& f : after) f(s);
  if (future) error ? future->setError(error) : mark(*future);
  if (outcome)
    outcome->markCompleted(c10::IValue(
        static_cast<std::int64_t>(error ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS)));
}

void Work::then(std::function<void(const Status&)> f) {
  {
    const std::lock_guard lock(mutex_);
    if (!completed_) {
      after_.push_back(std::move(f));
      return;
    }
  }
  f(status_);
}

bool Work::isSuccess() const {
  const std::lock_guard lock(mutex_);
  return completed_ && !exception_;
}

bool Work::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (forks_ == forks) {
    lock.lock();
  } else if (!lock.try_lock() ||
             !completed_) {  // a thread of the parent may have held it, and none here ends the work
    std::rethrow_exception(
        exception_of({Reason::forked, c10::str(title_, " was begun by the process that forked this one")}));
  }
  const auto own = timeout > std::chrono::milliseconds(0) ? std::optional(after(timeout)) : std::nullopt;
  while (!completed_) {
    auto next = Clock::now() + kSignalsEvery;
    if (own) next = std::min(next, *own);
    if (until_) next = std::min(next, *until_);
    if (cv_.wait_until(lock, next, [this] { return completed_; })) break;
    const bool over = until_ && Clock::now() >= *until_;
    if (over) until_.reset();  // only one waiter aborts
    lock.unlock();
    if (over) {
      group_.abort(c10::str(title_, " was not over after ", limit_->count(), " ms, its time-out"));
    } else if (own && Clock::now() >= *own) {
      C10_THROW_ERROR(DistBackendError,
                      c10::str("ouro: deadline: ", title_, " seq ", seq_, " in group ", group_.name(),
                               ": not over after ", timeout.count(), " ms of waiting; it continues"));
    } else {
      take_signals();
    }
    lock.lock();
  }
  if (exception_) std::rethrow_exception(exception_);
  lock.unlock();
  let_wait();
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  const std::lock_guard lock(mutex_);
  if (!future_) {
    std::vector<c10::Device> devices;
    if (!outputs_.empty() && outputs_.front().is_cuda()) devices.push_back(outputs_.front().device());
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                       std::move(devices));
    if (completed_) exception_ ? future_->setError(exception_) : mark(*future_);
  }
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFutureResult() {
  const std::lock_guard lock(mutex_);
  if (!outcome_) {
    outcome_ = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
    if (completed_)
      outcome_->markCompleted(c10::IValue(
          static_cast<std::int64_t>(exception_ ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS)));
  }
  return outcome_;
}

}  // namespace ouro::adapter
