// Copies a GPU's parameters to and from pinned memory, through one stream. See bridge.h.
#include "tools/train/bridge.h"

#include <fmt/format.h>

#include <cstring>

#include "kernels/device/gpu.h"

namespace ouro::tools {

Result<std::unique_ptr<Bridge>> Bridge::make(Context& c, Task& task, bool device) {
  std::unique_ptr<Bridge> bridge(new Bridge);
  bridge->here_ = bridge->there_ = task.params();
  Status mine;
  if (device && c.device().kind != Device::Kind::cuda)
    mine = unsupported(fmt::format("--device cuda: rank {} has no GPU: {}", c.rank(), gpu::gpu().version()));
  else if (device)
    mine = bridge->prepare(c);
  OURO_TRY(agree(c.world(), mine));
  return bridge;
}

Status Bridge::prepare(Context& c) {
  constexpr std::size_t kAlign = 256;  // alignment of each tensor, in bytes
  const auto padded = [](const View& v) { return (v.bytes() + kAlign - 1) / kAlign * kAlign; };
  std::size_t half = 0;
  for (const train::Param& p : here_) half += padded(p.value);
  OURO_ASSIGN(stream_, Stream::create(c.device()));
  OURO_ASSIGN(memory_, c.alloc(2 * half, c.device()));
  OURO_ASSIGN(auto pinned, gpu::gpu().alloc_pinned(2 * half));
  pinned_ = static_cast<std::byte*>(pinned);
  auto* device = static_cast<std::byte*>(memory_.data());
  std::size_t at = 0;
  for (std::size_t i = 0; i < here_.size(); ++i) {
    train::Param &here = here_[i], &there = there_[i];
    const View start = here.value;
    const std::size_t count = start.count;
    here.value = View(pinned_ + at, count, start.dtype),
    here.grad = View(pinned_ + half + at, count, start.dtype);
    there.value = View(device + at, count, start.dtype, c.device());
    there.grad = View(device + half + at, count, start.dtype, c.device());
    std::memcpy(here.value.data, start.data, start.bytes());
    OURO_TRY(copy(there.value.data, here.value.data, start.bytes()));
    at += padded(start);
  }
  return stream_.synchronize();
}

Bridge::~Bridge() {
  if (stream_.valid()) (void)stream_.synchronize().ok();  // all waits in the stream end, even after a failure
  if (pinned_) (void)gpu::gpu().free_pinned(pinned_).ok();
}

Status Bridge::copy(void* to, const void* from, std::size_t bytes) {
  return gpu::gpu().copy(to, from, bytes, {stream_.device().index, stream_.cuda_handle()});
}

Result<std::span<const train::Param>> Bridge::down(std::span<const train::Param> at) {
  if (!pinned_) return at;
  for (std::size_t i = 0; i < at.size(); ++i)
    OURO_TRY(copy(here_[i].value.data, at[i].value.data, at[i].value.bytes()));
  OURO_TRY(stream_.synchronize());
  return std::span<const train::Param>(here_);
}

Status Bridge::up(std::span<const train::Param> at, std::size_t i) {
  return pinned_ ? copy(at[i].grad.data, here_[i].grad.data, at[i].grad.bytes()) : Status{};
}

}  // namespace ouro::tools
