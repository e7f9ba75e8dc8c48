// Parameters of an optimiser that step together on a device: one step count and one launch for all of them.
// Used by optimizer.cc and optimizer_state.cc.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "api/train/optim/update.h"

namespace ouro::train {

/// A list of tensors in device memory, as kernels read it. It is rewritten in stream order when the tensors
/// have changed; a list captured by a graph does not change.
class TensorList {
 public:
  explicit TensorList(Device d) : device_(d) {}
  ~TensorList();
  TensorList(const TensorList&) = delete;
  TensorList& operator=(const TensorList&) = delete;

  /// A list for the next launch to be enqueued, and the contents that `send` still has to copy.
  struct Staged {
    gpu::List list;
    std::vector<gpu::Tensor> contents;
    Upload* upload = nullptr;  // null: nothing to copy
  };
  /// Does everything that may allocate memory; enqueues nothing. Waits if four changes are in flight. `kind`:
  /// as for gpu::lay_out. Errors: resource, device.
  Result<Staged> stage(const gpu::UpdateArgs& kind, std::vector<gpu::Tensor>, bool captured);
  Status send(const Staged&, gpu::Stream);

 private:
  Result<gpu::List> freeze(const gpu::UpdateArgs& kind, std::span<const gpu::Tensor>);

  const Device device_;
  std::vector<gpu::Tensor> contents_;
  gpu::List list_;
  ZeroedBytes home_;
  std::size_t home_bytes_ = 0;
  Upload uploads_[4];  // used in rotation
  unsigned next_ = 0;
  std::vector<ZeroedBytes> kept_;  // captured, or replaced by a larger one while launches may still read it
};

/// The Control of parameters that step together, and their tensor list.
class Cohort {
 public:
  /// Makes a cohort that has taken `steps` steps. Waits for its memory. Errors: resource, device.
  static Result<std::shared_ptr<Cohort>> make(Device, std::int64_t steps);
  Cohort(Device d, ZeroedBytes control, std::int64_t steps)
      : device_(d), control_(std::move(control)), list_(d), steps(steps) {}

  /// Prepares `enqueue` of these updates, which must differ only in their arrays. Errors: resource, device.
  Result<TensorList::Staged> stage(std::span<const Update>, bool captured);
  /// Enqueues the step of all members in one launch, as step `begin` + 1 if that is given. With `counts`
  /// false: only the mix of a step without gradients, which counts nothing.
  Status enqueue(std::span<const Update>, const TensorList::Staged&, std::optional<std::int64_t> begin,
                 double lr, bool counts, gpu::Stream);
  /// The steps taken, including those of graphs. Waits for a copy.
  Result<std::int64_t> count() const;
  Device device() const { return device_; }

 private:
  gpu::Control* control() const { return reinterpret_cast<gpu::Control*>(control_.data()); }

  const Device device_;
  const ZeroedBytes control_;
  TensorList list_;

 public:
  std::int64_t steps = 0;     ///< steps enqueued, without those of graphs
  std::size_t members = 0;    ///< number of states counted here
  bool captured = false;      ///< a graph has captured it and steps all members at each replay
  std::optional<Queue> last;  ///< the queue of its last launch, which may not have run yet
};

}  // namespace ouro::train
