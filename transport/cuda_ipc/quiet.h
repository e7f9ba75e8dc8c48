// When nothing of this process waits on a device for other ranks: only then is given back what a driver may
// wait for all work over. Used by GPU executors, which wait, and by owners of what is given back.
#pragma once
#include <chrono>
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
/// copy of the owner goes, at a later call of release_if_quiet(), or by a Releaser. Operations that begin
/// meanwhile wait until it has gone. Letting go needs no memory; this call throws bad_alloc, and has then let
/// go of `what`: so call it before the driver is asked for what `what` will hold. `what` keeps no context
/// alive, which would then leave its job late. A forked child never lets go of what is its parent's.
std::shared_ptr<void> when_quiet(std::shared_ptr<void> what);
template <class T>
std::shared_ptr<T> when_quiet(std::shared_ptr<T> what) {
  T* const at = what.get();
  return {when_quiet(std::shared_ptr<void>(std::move(what))), at};
}
/// Lets go of what waits for it, if no operation is on a device now.
void release_if_quiet() noexcept;

/// As long as one lives, a thread of the process ("ouro-unmap") lets go of what waits as soon as the last
/// operation on a device is known to have ended.
class Releaser {
 public:
  /// The one of this process; nullptr if the system has no thread for it.
  static std::shared_ptr<Releaser> of_process();
  ~Releaser();  ///< joins the thread; what waits then goes by a later call
  Releaser(const Releaser&) = delete;
  Releaser& operator=(const Releaser&) = delete;

 private:
  Releaser();
  class Loop;
  const std::unique_ptr<Loop> loop_;
};
/// While one lives, the calling thread lets go of nothing: what would go by it waits for a Releaser, or for a
/// call of another thread. For threads that must not wait for a driver.
class NeverReleases {
 public:
  NeverReleases();
  ~NeverReleases();
  NeverReleases(const NeverReleases&) = delete;
  NeverReleases& operator=(const NeverReleases&) = delete;
};
/// Has the Releaser let go of what waits, if no operation is on a device now, and waits at most so long until
/// nothing is left. May be called by threads that never release.
void release_soon(std::chrono::milliseconds at_most) noexcept;
/// As release_if_quiet(); waits, too, for another thread that is letting go of something now. Does nothing on
/// threads that never release. Must not be called by what goes.
void finish_releasing() noexcept;
/// The process has captured operations in a graph. Their replays are not known as operations, so that from
/// now on a Releaser acts only when it is asked to (release_soon).
void graphs_exist() noexcept;

}  // namespace ouro::transport
