// Work of PyTorch over operations of ouro. See work.h.
#include "work.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include "signals.h"

namespace ouro::adapter {

std::exception_ptr exception_of(const Status& s) {
  // Programs look for the word: c10d's backends have it.
  const char* const more = s.code() == Code::timeout ? "; the timeout of its process group or call" : "";
  return std::make_exception_ptr(c10::DistBackendError(
      {__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, c10::str(s.message(), more)));
}

Work::Work(int rank, c10d::OpType op, const std::string& title, std::vector<at::Tensor> inputs,
           std::vector<at::Tensor> outputs, Group group, std::uint64_t seq, std::optional<Milliseconds> limit)
    : c10d::Work(rank, op, title.c_str(), inputs.empty() ? outputs : inputs),  // what profilers show
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      group_(std::move(group)),
      title_(title),
      seq_(seq),
      limit_(limit) {
  if (limit) until_ = Clock::now() + *limit;
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
    inputs_.clear();
    if (recordFunctionEndCallback_) {
      recordFunctionEndCallback_();
      recordFunctionEndCallback_ = nullptr;
    }
  }
  cv_.notify_all();
  for (const auto& f : after) f(s);
  if (future) error ? future->setError(error) : future->markCompleted(c10::IValue(outputs_));
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
  std::unique_lock lock(mutex_);
  const auto own =
      timeout > std::chrono::milliseconds(0) ? std::optional(Clock::now() + timeout) : std::nullopt;
  while (!completed_) {
    auto next = Clock::now() + kSignalsEvery;
    if (own) next = std::min(next, *own);
    if (until_) next = std::min(next, *until_);
    if (cv_.wait_until(lock, next, [this] { return completed_; })) break;
    lock.unlock();
    if (until_ && Clock::now() >= *until_) {
      group_.abort(c10::str(title_, " was not over after ", limit_->count(), " ms, its time-out"));
      until_.reset();
    } else if (own && Clock::now() >= *own) {
      C10_THROW_ERROR(DistBackendError,
                      c10::str("ouro: deadline: ", title_, " seq ", seq_, " in group ", group_.name(),
                               ": not over after ", timeout.count(), " ms of waiting; it goes on"));
    } else {
      take_signals();
    }
    lock.lock();
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  const std::lock_guard lock(mutex_);
  if (!future_) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    if (completed_)
      exception_ ? future_->setError(exception_) : future_->markCompleted(c10::IValue(outputs_));
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
