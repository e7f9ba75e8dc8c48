// The Work that an operation of the backend returns to PyTorch. Used by backend.cc.
#pragma once
#include <c10/core/Event.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ouro/ouro.hpp"

namespace ouro::adapter {

/// The time point `wait` from now, at most a century: PyTorch's callers express "forever" with the
/// largest number.
inline std::chrono::steady_clock::time_point after(std::chrono::milliseconds wait) {
  return std::chrono::steady_clock::now() +
         std::min<std::chrono::milliseconds>(wait, std::chrono::hours(876'600));
}

/// c10d's exception for a failure, with ouro's text.
std::exception_ptr exception_of(const Status&);

/// One operation. It completes in the thread that ran it; a waiting Python thread runs signal
/// handlers meanwhile.
class Work final : public c10d::Work {
 public:
  /// `limit`: maximum time that a waiter waits, if shorter than the group's deadline; then the group
  /// is aborted.
  Work(int rank, c10d::OpType, const std::string& title, std::vector<at::Tensor> inputs,
       std::vector<at::Tensor> outputs, Group group, std::uint64_t seq, std::optional<Milliseconds> limit);
  ~Work() override;
  void complete(const Status&);                     ///< ends the operation
  void then(std::function<void(const Status&)> f);  ///< calls f with the outcome, immediately if it is known
  /// Call before complete(): the operation is in PyTorch's current stream of this GPU, and waiting makes the
  /// waiter's current stream wait for it. `async`: the caller continues, perhaps in another stream.
  void enqueued(c10::Device, bool async);
  void enqueued_with(const Work&);  ///< adds `part` to this one, which keeps its tensors
  void received_from(int rank) { source_ = rank; }
  bool wait(std::chrono::milliseconds timeout) override;
  bool isSuccess() const override;
  int sourceRank() const override { return source_; }
  std::vector<at::Tensor> result() override { return outputs_; }
  void synchronize() override { let_wait(); }
  void abort() override { group_.abort("by the work of " + title_); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  std::uint64_t getSequencenumber() const override { return seq_; }

 private:
  /// The stream of an operation on a GPU. Its end is recorded at once if it is async, or else when a thread
  /// waits in another stream.
  struct Enqueued {
    c10::Stream over;
    c10::Event end;
    std::atomic<bool> waited{false};  ///< the streams current at that time have waited for it
  };
  void let_wait();  ///< makes the current streams wait
  void mark(c10::ivalue::Future&);

  using Clock = std::chrono::steady_clock;
  std::vector<at::Tensor> inputs_, outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_, outcome_;  ///< made on first request
  Group group_;
  std::string title_;
  std::uint64_t seq_;
  std::optional<Clock::time_point> until_;
  std::optional<Milliseconds> limit_;
  const unsigned forks_;  // of the process that made it
  std::vector<std::function<void(const Status&)>> after_;
  std::vector<std::shared_ptr<Enqueued>> enqueued_;
  Status status_;
  std::atomic<int> source_{-1};
};

}  // namespace ouro::adapter
