// What has come of a message for memory of a GPU. See device_receipt.h.
#include "runtime/exec/gpu/device_receipt.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "kernels/gpu/collect.h"
#include "runtime/stream/gpu_stream.h"

namespace ouro::rt {

Result<std::shared_ptr<DeviceReceipt>> DeviceReceipt::make(int device, std::size_t bytes, std::size_t chunk) {
  std::shared_ptr<DeviceReceipt> r(new DeviceReceipt);
  r->device_ = device, r->bytes_ = bytes;
  r->most_runs_ = (bytes + chunk - 1) / chunk;
  r->parts_.reserve(r->most_runs_);
  OURO_ASSIGN(r->on_device_, take_device(device, bytes));
  OURO_ASSIGN(r->pinned_, take_pinned(bytes));
  OURO_ASSIGN(r->list_, take_pinned(sizeof(std::uint64_t) + r->most_runs_ * sizeof(gpu::Run)));
  *static_cast<std::uint64_t*>(r->list_.get()) = 0;
  r->on_host_ = static_cast<std::byte*>(r->pinned_.get());
  return r;
}

/// Parts that follow each other on the same side become one. What comes from ranks of this host comes in
/// smaller parts, all on the host.
void DeviceReceipt::arrived(std::size_t at, std::size_t bytes, bool on_device) {
  if (bytes == 0) return;
  if (!parts_.empty() && parts_.back().on_device == on_device &&
      parts_.back().at + parts_.back().bytes == at) {
    parts_.back().bytes += bytes;
    return;
  }
  parts_.push_back({at, bytes, on_device});
}

void DeviceReceipt::take_over(const std::shared_ptr<DeviceReceipt>& other) { other_ = other; }

Status DeviceReceipt::copy_to(std::byte* to) const {
  for (const Part& p : parts_)
    if (p.on_device)
      OURO_TRY(copy_to_host(to + p.at, where(p), p.bytes));
    else
      std::memcpy(to + p.at, where(p), p.bytes);
  return {};
}

Status DeviceReceipt::finish() {
  const DeviceReceipt& from = other_ ? *other_ : *this;
  auto* const count = static_cast<std::uint64_t*>(list_.get());
  auto* const runs = reinterpret_cast<gpu::Run*>(count + 1);
  bool any = false;
  std::uint64_t many = 0;
  for (const Part& p : from.parts_) {
    if (many == most_runs_)
      return {Reason::ring_corrupt, fmt::format("a message for a device in more than {} parts", most_runs_)};
    runs[many++] = {from.where(p), p.at, p.bytes};
    any |= p.on_device;
  }
  if (any) OURO_TRY(gpu::gpu().flush_arrivals(device_));
  *count = many;
  return {};
}

Status DeviceReceipt::enqueue(std::byte* to, const gpu::Stream& stream) const {
  OURO_ASSIGN(const gpu::Properties properties, gpu::gpu().properties(device_));
  const gpu::Launch launch = gpu::gather_runs(bytes_, properties.multiprocessors);
  const auto* const count = static_cast<const std::uint64_t*>(list_.get());
  const gpu::GatherArgs args{count, reinterpret_cast<const gpu::Run*>(count + 1), to};
  return gpu::gpu().launch(*launch.kernel, launch.shape, &args, stream);
}

Status copy_to_host(std::byte* to, const std::byte* from, std::size_t bytes) {
  OURO_ASSIGN(const gpu::PointerInfo info, gpu::gpu().pointer(from));
  OURO_ASSIGN(const gpu::Stream stream, gpu::gpu().create_stream(info.device, 0));
  Status copied = gpu::gpu().copy(to, from, bytes, stream);
  const Status ended = gpu::gpu().synchronize(stream);
  (void)gpu::gpu().destroy_stream(stream).ok();
  return copied.ok() ? ended : copied;
}

}  // namespace ouro::rt
