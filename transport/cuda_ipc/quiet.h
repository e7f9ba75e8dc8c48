// When nothing of this process waits on a device for other ranks: only then is given back what a driver may
// wait for all work over. Used by GPU executors, which wait, and by owners of what is given back.
#pragma once
#include <memory>
#include <utility>

#include "runtime/core/fork.h"

namespace ouro::transport {

/// While one lives, an operation is between its call and its end on a device. It may wait there for other
/// ranks, and these for a thread of this process.
class OnDevice {
 public:
  OnDevice();
  ~OnDevice();
  OnDevice(OnDevice&& other) noexcept
      : forks_(other.forks_), counted_(std::exchange(other.counted_, false)) {}
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  OnDevice& operator=(OnDevice&&) = delete;
  void end();  ///< before it goes

 private:
  unsigned forks_ = forks();
  bool counted_ = true;
};

/// An owner of `what` that lets go of it only when no operation of the process is on a device: as the last
/// copy of the owner goes, or at a later call of release_if_quiet(). Operations that begin meanwhile wait
/// until it has gone. Letting go needs no memory; this call throws bad_alloc, and has then let go of `what`:
/// so call it before the driver is asked for what `what` will hold. `what` keeps no context alive, which
/// would then leave its job late. A forked child never lets go of what is its parent's.
std::shared_ptr<void> when_quiet(std::shared_ptr<void> what);
template <class T>
std::shared_ptr<T> when_quiet(std::shared_ptr<T> what) {
  T* const at = what.get();
  return {when_quiet(std::shared_ptr<void>(std::move(what))), at};
}
/// Lets go of what waits for it, if no operation is on a device now.
void release_if_quiet() noexcept;

}  // namespace ouro::transport
