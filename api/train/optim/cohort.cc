// One launch for parameters that step together. See cohort.h.
#include "api/train/optim/cohort.h"

#include <algorithm>

namespace ouro::train {
namespace {

bool same(const gpu::Tensor& a, const gpu::Tensor& b) {
  return a.value == b.value && a.gradient == b.gradient && a.master == b.master &&
         std::equal(std::begin(a.state), std::end(a.state), b.state) && a.neighbours == b.neighbours &&
         a.message == b.message && a.count == b.count;
}

}  // namespace

TensorList::~TensorList() {
  for (Upload& u : uploads_) give_upload(device_.index, u);
}

Result<gpu::List> TensorList::freeze(const gpu::UpdateArgs& kind, std::span<const gpu::Tensor> tensors) {
  // The graph needs its own list, written now, because its launches read it at every replay.
  const std::size_t bytes = gpu::list_bytes(tensors);
  OURO_ASSIGN(auto home, ZeroedBytes::make(device_, bytes));
  std::vector<gpu::Tensor> staging(bytes / sizeof(gpu::Tensor) + 1);  // vector of tensors for the alignment
  auto* const copy = reinterpret_cast<std::byte*>(staging.data());
  OURO_ASSIGN(auto list, gpu::lay_out(kind, tensors, copy, home.data()));
  OURO_TRY(copy_and_wait(device_.index, home.data(), copy, bytes));
  kept_.push_back(std::move(home));
  return list;
}

Result<TensorList::Staged> TensorList::stage(const gpu::UpdateArgs& kind, std::vector<gpu::Tensor> tensors,
                                             bool captured) {
  if (captured) {
    OURO_ASSIGN(const auto list, freeze(kind, tensors));
    return Staged{list};
  }
  if (std::equal(tensors.begin(), tensors.end(), contents_.begin(), contents_.end(), same))
    return Staged{list_};
  const std::size_t bytes = gpu::list_bytes(tensors);
  contents_.clear();
  if (home_bytes_ < bytes) {
    OURO_ASSIGN(auto home, ZeroedBytes::make(device_, bytes));
    if (home_bytes_ > 0) kept_.push_back(std::move(home_));
    home_ = std::move(home);
    home_bytes_ = bytes;
  }
  Upload& u = uploads_[next_++ % std::size(uploads_)];
  if (u.bytes < bytes) {
    give_upload(device_.index, u);
    u = {};
    OURO_ASSIGN(u, take_upload(device_.index, bytes));
  }
  OURO_TRY(gpu::gpu().synchronize(u.copied));
  OURO_ASSIGN(const auto list, gpu::lay_out(kind, tensors, u.staging, home_.data()));
  return Staged{list, std::move(tensors), &u};
}

Status TensorList::send(const Staged& staged, gpu::Stream s) {
  if (staged.upload == nullptr) return {};
  const std::size_t bytes = gpu::list_bytes(staged.contents);
  OURO_TRY(gpu::gpu().copy(home_.data(), staged.upload->staging, bytes, s));
  OURO_TRY(gpu::gpu().record(staged.upload->copied, s));
  contents_ = staged.contents;
  list_ = staged.list;
  return {};
}

Result<std::shared_ptr<Cohort>> Cohort::make(Device device, std::int64_t steps) {
  OURO_ASSIGN(auto memory, ZeroedBytes::make(device, sizeof(gpu::Control)));
  if (steps != 0) {
    gpu::Control begin;
    begin.step = steps;
    OURO_TRY(copy_and_wait(device.index, memory.data(), &begin, sizeof begin));
  }
  return std::make_shared<Cohort>(device, std::move(memory), steps);
}

Result<std::int64_t> Cohort::count() const {
  gpu::Control now;
  OURO_TRY(copy_and_wait(device_.index, &now, control_.data(), sizeof now));
  return now.step;
}

Result<TensorList::Staged> Cohort::stage(std::span<const Update> of, bool in_capture) {
  if (of.size() == 1) return TensorList::Staged{};  // one tensor is passed in the launch arguments
  std::vector<gpu::Tensor> tensors;
  for (const Update& u : of) tensors.push_back(tensor_of(u));
  return list_.stage(args_of(of[0], control()), std::move(tensors), in_capture);
}

Status Cohort::enqueue(std::span<const Update> of, const TensorList::Staged& staged,
                       std::optional<std::int64_t> begin, double lr, bool counts, gpu::Stream s) {
  if (begin) OURO_TRY(write_steps(control(), *begin, s));
  // Written each time, because a graph replayed in between has left its own rate.
  if (counts) OURO_TRY(write_rate(control(), lr, s));
  OURO_TRY(list_.send(staged, s));
  gpu::UpdateArgs args = args_of(of[0], control());
  args.list = staged.list;
  return launch_update(args, !counts, s);
}

}  // namespace ouro::train
