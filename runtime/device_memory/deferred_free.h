// Deferred freeing. Some driver calls wait for all work on the device: frees, unmappings, unpinnings. They
// are made only while no operation of this process is on a device, where it could wait for other ranks. Used
// by GPU executors, whose operations count, and by owners of memory.
#pragma once
#include <chrono>
#include <memory>
#include <utility>

#include "runtime/core/fork.h"

namespace ouro::rt {

/// Exists while an operation is between its call and its end on a device. The operation may wait there for
/// other ranks, and these may wait for a thread of this process.
class OperationOnDevice {
 public:
  OperationOnDevice();
  ~OperationOnDevice();
  OperationOnDevice(OperationOnDevice&& other) noexcept
      : forks_(other.forks_), counted_(std::exchange(other.counted_, false)) {}
  OperationOnDevice(const OperationOnDevice&) = delete;
  OperationOnDevice& operator=(const OperationOnDevice&) = delete;
  OperationOnDevice& operator=(OperationOnDevice&&) = delete;
  void end();  ///< before the destructor

 private:
  unsigned forks_ = forks();
  bool counted_ = true;
};

/// Returns a handle that frees `what` after its last copy is destroyed and no operation of the process is on
/// a device: at once, in a later call of free_if_idle(), or by a DeferredFreeThread. Operations that begin
/// meanwhile wait until it has been freed. Freeing needs no memory. This call throws bad_alloc, and has then
/// freed `what`, so it is made before the driver is asked for what `what` will hold. `what` must not keep a
/// context alive, which would then leave its job late. A forked child never frees what belongs to its parent.
std::shared_ptr<void> free_when_idle(std::shared_ptr<void> what);
template <class T>
std::shared_ptr<T> free_when_idle(std::shared_ptr<T> what) {
  T* const at = what.get();
  return {free_when_idle(std::shared_ptr<void>(std::move(what))), at};
}
/// Frees everything that is deferred, if no operation is on a device now.
void free_if_idle() noexcept;

/// While one exists, a thread of the process ("ouro-unmap") frees what is deferred as soon as the last
/// operation on a device is known to have ended.
class DeferredFreeThread {
 public:
  /// The one of this process; nullptr if the system has no thread for it.
  static std::shared_ptr<DeferredFreeThread> of_process();
  ~DeferredFreeThread();  ///< joins the thread; later calls free what is still deferred
  DeferredFreeThread(const DeferredFreeThread&) = delete;
  DeferredFreeThread& operator=(const DeferredFreeThread&) = delete;

 private:
  DeferredFreeThread();
  class Loop;
  const std::unique_ptr<Loop> loop_;
};
/// While one exists, the calling thread frees nothing that is deferred: a DeferredFreeThread or a call of
/// another thread does. For threads that must not wait for a driver.
class NeverFrees {
 public:
  NeverFrees();
  ~NeverFrees();
  NeverFrees(const NeverFrees&) = delete;
  NeverFrees& operator=(const NeverFrees&) = delete;
};
/// Asks the DeferredFreeThread to free what is deferred, if no operation is on a device now, and waits for at
/// most `at_most` until nothing is left. May be called by threads that free nothing.
void free_soon(std::chrono::milliseconds at_most) noexcept;
/// As free_if_idle(), and waits for another thread that is freeing now. Does nothing on threads that free
/// nothing. Must not be called from a destructor that this function runs.
void finish_freeing() noexcept;
/// Called when the process has captured operations in a graph. Replays are not known as operations, so from
/// now on a DeferredFreeThread frees only when it is asked to (free_soon).
void note_graph_capture() noexcept;

}  // namespace ouro::rt
