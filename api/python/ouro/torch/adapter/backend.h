// The backend of torch.distributed: implements c10d's operations with those of an ouro group. Used
// by module.cc.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lanes.h"
#include "options.h"
#include "ouro/ouro.hpp"
#include "python_block.h"
#include "segments.h"
#include "tensors.h"
#include "work.h"

namespace ouro::adapter {

/// The job of a group that init_process_group or new_group has made. Groups split off from it share the job;
/// the last one leaves it.
struct Job {
  explicit Job(Context c) : context(std::move(c)), segments(Segments::follow(context)) {}
  Context context;
  const std::unique_ptr<Segments> segments;  ///< ends before the context
};

#ifdef C10D_BACKEND_HAS_HOOKS  // 2.15
constexpr auto kGatheredTogether = c10d::OpType::ALLGATHER_INTO_TENSOR_COALESCED;
constexpr auto kScatteredTogether = c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED;
#else
constexpr auto kGatheredTogether = c10d::OpType::COALESCED, kScatteredTogether = c10d::OpType::COALESCED;
#endif

class Backend final : public c10d::Backend {
  using Options = c10d::Backend::Options;

 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensor = at::Tensor;
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<std::vector<at::Tensor>>;

  /// `name`: the backend name in PyTorch: "ouro", or the backend for which it stands in.
  Backend(std::shared_ptr<Job>, Group, c10::intrusive_ptr<OptionsAsGloo>, std::string name);
  ~Backend() override;
  /// Call before the interpreter ends, without the GIL: operations in flight in any group of this process end
  /// as revoked, and no thread needs Python any more.
  static void end_all();

  const std::string getBackendName() const override { return "ouro"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  void setTimeout(std::chrono::milliseconds t) override { options_->timeout = t; }
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return seq_; }
  /// Registers the storage of a tensor on this rank's GPU: operations of this job use it in place.
  Result<Registration> register_memory(const Tensor&);
  /// Bytes of the caching allocator that are registered in this job.
  std::size_t registered() const { return job_->segments ? job_->segments->bytes() : 0; }
  c10d::ErrorType getError() override;
  /// The text of the group's failure, and the ranks that are known to be dead or unreachable.
  std::pair<std::string, std::vector<int>> lost() const;
  void abort() override;
  void shutdown() override;
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>&,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>&) override;

  WorkPtr broadcast(Tensors&, const c10d::BroadcastOptions&) override;
  WorkPtr allreduce(Tensors&, const c10d::AllreduceOptions&) override;
  WorkPtr allreduce_coalesced(Tensors&, const c10d::AllreduceCoalescedOptions&) override;
  WorkPtr reduce(Tensors&, const c10d::ReduceOptions&) override;
  WorkPtr allgather(Lists&, Tensors&, const c10d::AllgatherOptions&) override;
  WorkPtr allgather_coalesced(Lists&, Tensors&, const c10d::AllgatherOptions&) override;
  WorkPtr gather(Lists&, Tensors&, const c10d::GatherOptions&) override;
  WorkPtr scatter(Tensors&, Lists&, const c10d::ScatterOptions&) override;
  WorkPtr reduce_scatter(Tensors&, Lists&, const c10d::ReduceScatterOptions&) override;
  WorkPtr alltoall(Tensors&, Tensors&, const c10d::AllToAllOptions&) override;
  WorkPtr barrier(const c10d::BarrierOptions&) override;
  void monitoredBarrier(const c10d::BarrierOptions&, bool wait_all_ranks) override;
  WorkPtr send(Tensors&, int to, int tag) override;
  WorkPtr recv(Tensors&, int from, int tag) override;
  WorkPtr recvAnysource(Tensors&, int tag) override;

  // PyTorch calls each of these by the first of its two names since version 2.15, before that by the second.
  WorkPtr gathered(Tensors outputs, Tensors inputs, const c10d::AllgatherOptions&, c10d::OpType);
  WorkPtr scattered(Tensors outputs, Tensors inputs, const c10d::ReduceScatterOptions&, c10d::OpType);
  WorkPtr exchanged(Tensor& out, Tensor& in, const std::vector<std::int64_t>& out_sizes,
                    const std::vector<std::int64_t>& in_sizes, const c10d::AllToAllOptions&);
#ifdef C10D_BACKEND_HAS_HOOKS  // 2.15
  WorkPtr all_gather_single(Tensor& out, Tensor& in, const c10d::AllgatherOptions& o) override {
    return gathered({out}, {in}, o, c10d::OpType::_ALLGATHER_BASE);
  }
  WorkPtr all_gather_single_coalesced(Tensors& out, Tensors& in, const c10d::AllgatherOptions& o) override {
    return gathered(out, in, o, kGatheredTogether);
  }
  WorkPtr reduce_scatter_single(Tensor& out, Tensor& in, const c10d::ReduceScatterOptions& o) override {
    return scattered({out}, {in}, o, c10d::OpType::_REDUCE_SCATTER_BASE);
  }
  WorkPtr reduce_scatter_single_coalesced(Tensors& out, Tensors& in,
                                          const c10d::ReduceScatterOptions& o) override {
    return scattered(out, in, o, kScatteredTogether);
  }
  WorkPtr all_to_all_single(Tensor& out, Tensor& in, std::vector<std::int64_t>& out_sizes,
                            std::vector<std::int64_t>& in_sizes, const c10d::AllToAllOptions& o) override {
    return exchanged(out, in, out_sizes, in_sizes, o);
  }
  WorkPtr gather_single(Tensor& out, Tensor& in, const c10d::GatherOptions&) override;
#endif
  WorkPtr _allgather_base(Tensor& out, Tensor& in, const c10d::AllgatherOptions& o) override {
    return gathered({out}, {in}, o, c10d::OpType::_ALLGATHER_BASE);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& out, Tensors& in,
                                          const c10d::AllgatherOptions& o) override {
    return gathered(out, in, o, kGatheredTogether);
  }
  WorkPtr _reduce_scatter_base(Tensor& out, Tensor& in, const c10d::ReduceScatterOptions& o) override {
    return scattered({out}, {in}, o, c10d::OpType::_REDUCE_SCATTER_BASE);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& out, Tensors& in,
                                          const c10d::ReduceScatterOptions& o) override {
    return scattered(out, in, o, kScatteredTogether);
  }
  WorkPtr alltoall_base(Tensor& out, Tensor& in, std::vector<std::int64_t>& out_sizes,
                        std::vector<std::int64_t>& in_sizes, const c10d::AllToAllOptions& o) override {
    return exchanged(out, in, out_sizes, in_sizes, o);
  }

 private:
  /// The work of an operation, on this stream; without a stream, in the calling thread.
  using Body = std::function<Status(const Stream&)>;
  /// The parts that c10d specifies for a call.
  struct Call {
    c10d::OpType op;
    const char* name;
    Tensors inputs, outputs;
    std::chrono::milliseconds timeout;
    bool async;
  };
  c10::intrusive_ptr<Work> make_work(const Call&);
  WorkPtr start(Call, Body);                   ///< a collective, in call order
  WorkPtr start_on_device(Call, const Body&);  ///< the same, for tensors on a GPU
  Result<MessageSet> messages();               ///< set_, made on first use
  using Posting = std::function<Status(MessageSet&, MessageSet::Then)>;
  /// Sends or receives: `post` begins that, and `store` runs when it has succeeded.
  WorkPtr on_host(const Call&, const Posting& post, std::function<void()> store);
  /// The same for tensors on a GPU: `body` runs on the current stream; then `store`, after it in the stream.
  WorkPtr on_gpu(const Call&, std::function<Status(const Stream&)> body, std::function<void()> store);
  WorkPtr from_any_to_gpu(const Call&, int tag, const Target&);
  WorkPtr receive(Tensors&, int from, int tag, c10d::OpType, const char* name);
  void end(const char* why);
  Group monitor();                                   ///< the group for the messages of monitoredBarrier
  Status run(const Body&, const Stream& over = {});  ///< in this thread; an exception ends the group
  WorkPtr sparse_reduced(const at::Tensor&, const c10d::AllreduceOptions&);
  Status as_long_as_roots(at::Tensor* in, int root);  ///< pads with zeros to the root's length; collective
  WorkPtr all_reduced(const char* name, c10d::OpType, Tensors, const c10d::AllreduceOptions&);
  std::size_t ranks() const { return static_cast<std::size_t>(size_); }

  std::shared_ptr<Job> job_;
  c10::intrusive_ptr<OptionsAsGloo> options_;  ///< PyTorch expects it at this offset, after one shared_ptr
  Group group_, monitor_;
  std::string name_;
  Stream stream_;     ///< made on first use
  std::mutex mutex_;  ///< guards the members below, and submission
  /// A message of tensors on a GPU between startCoalescing and endCoalescing. All are submitted together,
  /// because in one stream a receive would wait behind a send that waits for its receiver.
  struct Deferred {
    c10::intrusive_ptr<Work> work;
    c10::Stream current;  ///< the current stream at the call
    Stream over;          ///< the same, as an ouro stream
    std::function<Status(const Stream&)> body;
    std::function<void()> store;
  };
  void submit(const std::vector<Deferred>&);
  /// Ends a batch that an exception has left, which PyTorch does not report.
  void end_stale_batch();
  void drop_batch();
  std::vector<WorkPtr> coalesced_;
  std::vector<Deferred> deferred_;
  std::atomic<bool> coalescing_{false};
  PythonBlock batch_;             ///< the block in which it began; guarded by Python's lock
  std::atomic<int> pending_{0};   ///< collectives on stream_
  std::atomic<int> messages_{0};  ///< messages in set_ and lanes_
  /// Numbers of operations, and of monitored barriers among them.
  std::atomic<std::uint64_t> seq_{0}, barriers_{0};
  MessageSet set_;
  std::unique_ptr<Lanes> lanes_ = std::make_unique<Lanes>();  ///< destroyed before the group
};

}  // namespace ouro::adapter
