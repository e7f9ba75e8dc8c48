// Host functions enqueued on device streams, owned until they are called or their device is lost. Used by GPU
// streams and by the staged path.
#pragma once
#include <cstddef>
#include <memory>

#include "kernels/device/gpu.h"

namespace ouro::rt {

/// A function that a device stream calls once. A lost device does not call the functions that are still
/// queued in its streams.
class HostCall : public std::enable_shared_from_this<HostCall> {
 public:
  virtual ~HostCall() = default;
  /// Called in stream order, on a thread of the driver. Must not block and may not call the driver.
  virtual void begin() = 0;
  /// Called instead if begin() will never be called because the device is lost.
  virtual void give_up(const Status& why) = 0;
};

/// Stores `call` and enqueues it on the stream. The driver is passed a number, not a pointer: of the driver
/// and give_up_calls(), the first to remove the number from the table owns the call, and the other finds no
/// entry, however late it runs. Errors: those of the device; `call` is not called then.
Status call_later(const gpu::Stream&, std::shared_ptr<HostCall> call);
/// The device is lost: gives up and releases the calls that its streams have not begun.
void give_up_calls(int device, const Status& why);
/// Number of calls of a device that have neither begun nor been given up.
std::size_t calls_kept(int device);

}  // namespace ouro::rt
