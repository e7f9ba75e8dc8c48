// The parts of a message for memory of a GPU. See device_receipt.h.
#include "runtime/exec/gpu/device_receipt.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/gpu/collect.h"
#include "runtime/core/per_process.h"
#include "runtime/core/wait.h"
#include "runtime/stream/gpu_stream.h"

namespace ouro::rt {
namespace {

/// What copies from a device to the host need. Made with the first receipt, as making it may wait for the
/// work of the process.
struct Bounce {
  static constexpr std::size_t kBytes = 1 << 20;
  std::shared_ptr<void> memory;
  gpu::Stream stream;
  Status open(int device) {
    if (memory) return {};
    OURO_ASSIGN(stream, gpu::gpu().create_stream(device, 0));
    auto pinned = take_pinned(kBytes);
    if (pinned.ok())
      memory = std::move(*pinned);
    else
      (void)gpu::gpu().destroy_stream(stream).ok();
    return pinned.status();
  }
};
struct Bounces {
  std::mutex mutex;
  std::map<int, Bounce> of;  // by device
};
constinit PerProcess<Bounces> g_bounces;

}  // namespace

Result<std::shared_ptr<DeviceReceipt>> DeviceReceipt::make(int device, std::size_t bytes, std::size_t chunk) {
  std::shared_ptr<DeviceReceipt> r(new DeviceReceipt);
  r->device_ = device, r->bytes_ = bytes;
  r->most_runs_ = (bytes + chunk - 1) / chunk;
  r->parts_.reserve(r->most_runs_);
  OURO_ASSIGN(r->on_device_, take_device(device, bytes));
  OURO_ASSIGN(r->pinned_, take_pinned(bytes));
  OURO_ASSIGN(r->list_, take_pinned(sizeof(std::uint64_t) + r->most_runs_ * sizeof(gpu::Run)));
  *static_cast<std::uint64_t*>(r->list_.get()) = 0;
  {
    std::lock_guard lock(g_bounces->mutex);
    OURO_TRY(g_bounces->of[device].open(device));
  }
  r->on_host_ = static_cast<std::byte*>(r->pinned_.get());
  return r;
}

/// Parts that follow each other on the same side become one. Parts from ranks of this host arrive in
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

/// Nothing waits for work of another stream that can itself wait for this thread, so this polls the copy,
/// for a bounded time. What a copy that is late has is left to it.
Status copy_to_host(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr auto kPatience = std::chrono::seconds(2);
  OURO_ASSIGN(const gpu::PointerInfo info, gpu::gpu().pointer(from));
  OURO_TRY(gpu::gpu().flush_arrivals(info.device));
  std::lock_guard lock(g_bounces->mutex);
  Bounce& bounce = g_bounces->of[info.device];
  for (std::size_t done = 0, some = 0; done < bytes; done += some) {
    some = std::min(bytes - done, Bounce::kBytes);
    OURO_TRY(bounce.open(info.device));
    OURO_TRY(gpu::gpu().copy(bounce.memory.get(), from + done, some, bounce.stream));
    for (const auto end = Clock::now() + kPatience;; std::this_thread::yield()) {
      OURO_ASSIGN(const bool ended, gpu::gpu().query(bounce.stream));
      if (ended) break;
      if (Clock::now() < end) continue;
      (void)new Bounce(std::exchange(bounce, {}));
      return {
          Reason::device,
          "data that had come for a receive on a device could not be copied to the host within 2 s: the copy "
          "lies behind a stream that waits, in a hardware queue that they share "
          "(CUDA_DEVICE_MAX_CONNECTIONS)"};
    }
    std::memcpy(to + done, bounce.memory.get(), some);
  }
  return {};
}

}  // namespace ouro::rt
