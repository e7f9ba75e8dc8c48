// One step on a GPU: copy, all-reduce, update and copy in one stream, and one wait. See device_model.h.
#include "tools/train/device_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace ouro::tools {

template <class T>
Result<std::unique_ptr<DeviceModel<T>>> DeviceModel<T>::make(Context& c, const TrainOptions& o,
                                                             std::span<const T> initial) {
  if (c.device().kind != Device::Kind::cuda)
    return unsupported(fmt::format("--device cuda: rank {} has no GPU: {}", c.rank(), gpu::gpu().version()));
  std::unique_ptr<DeviceModel> model(new DeviceModel(c, o, initial.size()));
  OURO_TRY(model->prepare(o, initial));
  return model;
}

template <class T>
Status DeviceModel<T>::prepare(const TrainOptions& o, std::span<const T> initial) {
  auto stream = Stream::create(context_.device());
  if (!stream.ok()) return stream.status();
  stream_ = std::move(*stream);
  const std::size_t bytes = count_ * sizeof(T);
  for (const auto& [memory, size] : {std::pair{&values_, bytes},
                                     {&gradients_, bytes + sizeof(T)},
                                     {&velocity_, bytes},
                                     {&control_, sizeof(gpu::Control)}}) {
    auto made = context_.alloc(size, context_.device());  // zero-filled
    if (!made.ok()) return made.status();
    *memory = std::move(*made);
  }
  for (T** pinned : {&up_, &down_}) {
    auto made = gpu::gpu().alloc_pinned(std::max(bytes + sizeof(T), sizeof(gpu::Control)));
    if (!made.ok()) return made.status();
    *pinned = static_cast<T*>(*made);
  }
  std::copy(initial.begin(), initial.end(), down_);
  OURO_TRY(gpu::gpu().copy(values_.data(), down_, bytes, this->stream()));
  const gpu::Control control{.step = 0, .lr = o.lr};
  std::memcpy(static_cast<void*>(up_), &control, sizeof control);
  OURO_TRY(gpu::gpu().copy(control_.data(), up_, sizeof control, this->stream()));
  OURO_TRY(stream_.synchronize());

  args_.family = gpu::Family::sgd;
  args_.dtype = DTypeOf<T>::value;
  args_.recipe.sgd = {.lr = o.lr, .momentum = o.momentum};
  args_.control = static_cast<gpu::Control*>(control_.data());
  args_.scale[0].inverse = 1.0 / o.batch;
  args_.one[0] = {.value = values_.data(),
                  .gradient = gradients_.data(),
                  .state = {o.momentum > 0 ? velocity_.data() : nullptr},
                  .count = count_};
  const auto properties = gpu::gpu().properties(context_.device().index);
  if (!properties.ok()) return properties.status();
  const auto update = gpu::update(args_, properties->multiprocessors);
  if (!update.ok()) return update.status();
  update_ = *update;
  return {};
}

template <class T>
DeviceModel<T>::~DeviceModel() {
  if (stream_.valid()) (void)stream_.synchronize().ok();  // after a failure, too, all waits in it end
  for (T* pinned : {up_, down_})
    if (pinned) (void)gpu::gpu().free_pinned(pinned).ok();
}

template <class T>
Result<T> DeviceModel<T>::step(std::span<const double> sums) {
  for (std::size_t i = 0; i < sums.size(); ++i) up_[i] = static_cast<T>(sums[i]);
  gpu::Gpu& gpu = gpu::gpu();
  OURO_TRY(gpu.copy(gradients(), up_, sums.size() * sizeof(T), stream()));
  const View all(gradients(), sums.size(), DTypeOf<T>::value, context_.device());
  const Result<Work> reduced =
      all_reduce(context_.world(), all, all, ReduceOp::sum, stream_, {.numerics = numerics_});
  if (!reduced.ok()) return reduced.status();
  OURO_TRY(gpu.launch(*update_.kernel, update_.shape, &args_, stream()));
  OURO_TRY(gpu.copy(down_, values_.data(), count_ * sizeof(T), stream()));
  OURO_TRY(gpu.copy(down_ + count_, gradients() + count_, sizeof(T), stream()));
  OURO_TRY(reduced->wait());
  OURO_TRY(stream_.synchronize());
  return down_[count_];
}

template class DeviceModel<float>;
template class DeviceModel<double>;

}  // namespace ouro::tools
