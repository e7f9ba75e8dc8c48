// Parameters of an optimiser that step together on a device: one count of steps and one launch for all of
// them. Used by optimizer.cc and optimizer_state.cc.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "api/train/optim/update.h"

namespace ouro::train {

/// What kernels read of a list of tensors, in memory of a device. It is written again where the tensors have
/// changed, in stream order; what a graph has captured stays as it is.
class TensorList {
 public:
  explicit TensorList(Device d) : device_(d) {}
  ~TensorList();
  TensorList(const TensorList&) = delete;
  TensorList& operator=(const TensorList&) = delete;

  /// A list for the launch that is enqueued next, and what `send` still has to copy.
  struct Staged {
    gpu::List list;
    std::vector<gpu::Tensor> contents;
    Upload* upload = nullptr;  // null: nothing
  };
  /// All that can want memory: nothing is enqueued yet. Waits where four changes are under way. `kind`: as
  /// for gpu::lay_out. Errors: resource, device.
  Result<Staged> stage(const gpu::UpdateArgs& kind, std::vector<gpu::Tensor>, bool captured);
  Status send(const Staged&, gpu::Stream);

 private:
  Result<gpu::List> freeze(const gpu::UpdateArgs& kind, std::span<const gpu::Tensor>);

  const Device device_;
  std::vector<gpu::Tensor> contents_;
  gpu::List list_;
  ZeroedBytes home_;
  std::size_t home_bytes_ = 0;
  Upload uploads_[4];  // in turn
  unsigned next_ = 0;
  std::vector<ZeroedBytes> kept_;  // captured, or outgrown while launches may read it
};

/// The Control of parameters that step together, and their list.
class Cohort {
 public:
  /// One that has taken `steps` steps. Waits for memory. Errors: resource, device.
  static Result<std::shared_ptr<Cohort>> make(Device, std::int64_t steps);
  Cohort(Device d, ZeroedBytes control, std::int64_t steps)
      : device_(d), control_(std::move(control)), list_(d), steps(steps) {}

  /// What `enqueue` of these needs. The updates differ in their arrays alone. Errors: resource, device.
  Result<TensorList::Staged> stage(std::span<const Update>, bool captured);
  /// Enqueues the step of all members, in one launch, as the one after `begin` if that is given; or what
  /// remains of steps without gradients, which counts nothing.
  Status enqueue(std::span<const Update>, const TensorList::Staged&, std::optional<std::int64_t> begin,
                 double lr, bool counts, gpu::Stream);
  /// Steps taken, those of graphs too. Waits for a copy.
  Result<std::int64_t> count() const;
  Device device() const { return device_; }

 private:
  gpu::Control* control() const { return reinterpret_cast<gpu::Control*>(control_.data()); }

  const Device device_;
  const ZeroedBytes control_;
  TensorList list_;

 public:
  std::int64_t steps = 0;     ///< enqueued; what graphs did is not in it
  std::size_t members = 0;    ///< states that count here
  bool captured = false;      ///< by a graph, which steps all members whenever it is replayed
  std::optional<Queue> last;  ///< where its last launch was enqueued, and may be still to come
};

}  // namespace ouro::train
