// DeviceReceipt: which parts of a message for memory of a GPU have arrived, and where they are: on the
// device, where the network has put them, or on the host. Used by MessageCarrier and GpuMessages.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/device/gpu.h"
#include "runtime/core/status.h"

namespace ouro::rt {

/// Memory that stands in for that of a receive: on the device, which the network may write for as long as it
/// likes, and pinned on the host, for the rest. A kernel behind the message in the user's stream collects
/// both. Not thread-safe; MessageCarrier uses it under the lock of Messages, GpuMessages while no call has
/// the message.
class DeviceReceipt {
 public:
  /// `chunk`: the size of the parts that arrive; all but the last have it. Errors: resource.
  static Result<std::shared_ptr<DeviceReceipt>> make(int device, std::size_t bytes, std::size_t chunk);
  DeviceReceipt(const DeviceReceipt&) = delete;
  DeviceReceipt& operator=(const DeviceReceipt&) = delete;

  const std::shared_ptr<std::byte>& on_device() const { return on_device_; }
  std::byte* on_host() const { return on_host_; }
  /// Bytes `at` and on have arrived, on the device or on the host. Called in order of `at`.
  void arrived(std::size_t at, std::size_t bytes, bool on_device);
  /// The message is what `other` has received, which stays as it is from now on.
  void take_over(const std::shared_ptr<DeviceReceipt>& other);
  /// Copies to the host what has arrived. Waits for the device. Errors: those of Gpu::copy.
  Status copy_to(std::byte* to) const;
  /// Lists what has arrived for the kernel, which touches nothing before. Errors: those
  /// of Gpu::flush_arrivals.
  Status finish();
  /// Enqueues the kernel that copies what finish() will have listed to `to`. Errors: those of Gpu::launch.
  Status enqueue(std::byte* to, const gpu::Stream&) const;

 private:
  struct Part {
    std::size_t at, bytes;
    bool on_device;
  };
  DeviceReceipt() = default;
  const std::byte* where(const Part& p) const { return (p.on_device ? on_device_.get() : on_host_) + p.at; }

  int device_ = -1;
  std::size_t bytes_ = 0, most_runs_ = 0;
  std::shared_ptr<std::byte> on_device_;
  std::shared_ptr<void> pinned_, list_;
  std::byte* on_host_ = nullptr;
  std::vector<Part> parts_;
  std::shared_ptr<const DeviceReceipt> other_;
};

/// Copies from memory of a device, that a network may have written, to the host. Returns when that has ended,
/// or after 2 s: device, where the copy lies behind a stream that waits. Other errors: those of Gpu::copy.
Status copy_to_host(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace ouro::rt
