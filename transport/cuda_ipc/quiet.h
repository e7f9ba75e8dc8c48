// When nothing of this process waits on a device for other ranks: only then is given back what a driver may
// wait for all work over. Used by GPU executors, which wait, and by owners of what is given back.
#pragma once
#include <memory>

namespace ouro::transport {

/// While one lives, an operation is between its call and its end on a device. It may wait there for other
/// ranks, and these for a thread of this process.
class OnDevice {
 public:
  OnDevice();
  ~OnDevice();
  OnDevice(OnDevice&& other) noexcept : counted_(other.counted_) { other.counted_ = false; }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  OnDevice& operator=(OnDevice&&) = delete;
  void end();  ///< before it goes

 private:
  bool counted_ = true;
};

/// Makes room for one more that will be let go. Throws bad_alloc.
void expect_release();
/// Lets go of `what` when no operation of the process is on a device: now, or at a later call of either
/// function. Operations that begin meanwhile wait until it has gone. It keeps no context alive, which would
/// then leave its job late.
/// Needs no memory if expect_release() was called for it.
void release_when_quiet(std::shared_ptr<void> what) noexcept;
/// Lets go of what waits for it, if no operation is on a device now.
void release_if_quiet() noexcept;

}  // namespace ouro::transport
