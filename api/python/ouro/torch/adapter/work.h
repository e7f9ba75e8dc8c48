// What an operation of the backend gives back to PyTorch. Used by backend.cc.
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

/// That far from now, or a century where it is more: PyTorch's callers say "for ever" with the largest
/// number.
inline std::chrono::steady_clock::time_point after(std::chrono::milliseconds wait) {
  return std::chrono::steady_clock::now() +
         std::min<std::chrono::milliseconds>(wait, std::chrono::hours(876'600));
}

/// c10d's exception for a failure, with ouro's text.
std::exception_ptr exception_of(const Status&);

/// One operation. It completes in the thread that ran it; a Python thread that waits takes signals meanwhile.
class Work final : public c10d::Work {
 public:
  /// `limit`: how long a waiter waits, if shorter than the group's deadline; then the group is aborted.
  Work(int rank, c10d::OpType, const std::string& title, std::vector<at::Tensor> inputs,
       std::vector<at::Tensor> outputs, Group group, std::uint64_t seq, std::optional<Milliseconds> limit);
  ~Work() override;
  void complete(const Status&);                     ///< ends it
  void then(std::function<void(const Status&)> f);  ///< runs it with the outcome, at once if that is known
  /// Before complete(): it is in PyTorch's current stream of this GPU, and who waits has their own current
  /// stream wait for it. `async`: the caller goes on, maybe in another stream.
  void enqueued(c10::Device, bool async);
  void enqueued_with(const Work&);  ///< as part of this one, which keeps its tensors
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
  /// Where an operation on a GPU is; its end is recorded when it is enqueued, or else when somebody waits in
  /// another stream.
  struct Enqueued {
    c10::Stream over;
    c10::Event end;
    std::atomic<bool> waited{false};  ///< the streams that were current then have waited for it
  };
  void let_wait();  ///< the current streams
  void mark(c10::ivalue::Future&);

  using Clock = std::chrono::steady_clock;
  std::vector<at::Tensor> inputs_, outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_, outcome_;  ///< made when asked for
  Group group_;
  std::string title_;
  std::uint64_t seq_;
  std::optional<Clock::time_point> until_;
  std::optional<Milliseconds> limit_;
  std::vector<std::function<void(const Status&)>> after_;
  std::vector<std::shared_ptr<Enqueued>> enqueued_;
  Status status_;
  std::atomic<int> source_{-1};
};

}  // namespace ouro::adapter
