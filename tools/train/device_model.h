// The trainer's parameters on a GPU: gradients go up, are reduced and applied there, parameters come down.
// Used by digits_trainer.cc.
#pragma once
#include <memory>
#include <span>

#include "api/include/ouro/ouro.hpp"
#include "kernels/gpu/optim.h"
#include "runtime/device/gpu.h"
#include "tools/train/digits_trainer.h"

namespace ouro::tools {

/// T is float or double. All memory and the stream are on the context's GPU, which outlives this.
template <class T>
class DeviceModel {
 public:
  /// Error unsupported: the rank has no GPU.
  static Result<std::unique_ptr<DeviceModel>> make(Context&, const TrainOptions&, std::span<const T> initial);
  ~DeviceModel();
  DeviceModel(const DeviceModel&) = delete;
  DeviceModel& operator=(const DeviceModel&) = delete;

  /// `sums`: of this rank's gradients, then of its losses. All-reduces them and updates; returns the sum of
  /// all ranks' losses. Bits: those of the trainer on the host where 1 / batch is exact, given equal sums.
  Result<T> step(std::span<const double> sums);
  /// As they are after the last step, in memory of the host.
  std::span<const T> parameters() const { return {down_, count_}; }

 private:
  DeviceModel(Context& c, const TrainOptions& o, std::size_t count)
      : context_(c), numerics_(o.numerics), count_(count) {}
  Status prepare(const TrainOptions&, std::span<const T> initial);
  gpu::Stream stream() const { return {stream_.device().index, stream_.cuda_handle()}; }
  T* gradients() const { return static_cast<T*>(gradients_.data()); }

  Context& context_;
  Numerics numerics_;
  std::size_t count_;
  Stream stream_;
  Memory values_, gradients_, velocity_, control_;  // gradients_: the loss is behind them
  T *up_ = nullptr, *down_ = nullptr;               // pinned; count_ + 1 each
  gpu::UpdateArgs args_;
  gpu::Launch update_;
};

extern template class DeviceModel<float>;
extern template class DeviceModel<double>;

}  // namespace ouro::tools
