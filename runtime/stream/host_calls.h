// Functions that streams of devices are to call, kept until they are called or their device is lost. Used by
// streams of GPUs and by the staged path.
#pragma once
#include <cstddef>
#include <memory>

#include "kernels/device/gpu.h"

namespace ouro::rt {

/// What a stream of a device is to call once. A device that is lost calls nothing of what waits in its
/// streams.
class HostCall : public std::enable_shared_from_this<HostCall> {
 public:
  virtual ~HostCall() = default;
  /// In stream order, on a thread of the driver's, which must not be held up and may not call the driver.
  virtual void begin() = 0;
  /// It will never begin: its device is lost.
  virtual void give_up(const Status& why) = 0;
};

/// Keeps `call` and has the stream call it. The driver gets a number, no pointer: of the driver and
/// give_up_calls(), whoever takes the number out of the table first owns the call, and the other finds
/// nothing, however late it comes. Errors: those of the device; the call does not begin then.
Status call_later(const gpu::Stream&, std::shared_ptr<HostCall> call);
/// The device is lost: gives up and lets go of what its streams have not called.
void give_up_calls(int device, const Status& why);
/// Of a device, those that have neither begun nor been given up.
std::size_t calls_kept(int device);

}  // namespace ouro::rt
