// Deferred freeing. Some driver calls wait for all work on the device: frees, unmappings, unpinnings. They
// are made only while no operation of this process is on a device, where it could wait for other ranks. Used
// by owners of memory, and by GPU executors, whose operations count.
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
  /// Ends the operation before this object is destroyed.
  void end();

 private:
  unsigned forks_ = forks();
  bool counted_ = true;
};

/// Returns a handle that frees `owner` after its last copy is destroyed and no operation of the process is on
/// a device: at once, in a later call of free_if_idle(), or by a DeferredFreeThread. Operations that begin
/// meanwhile wait until it has been freed. Freeing needs no memory. This call throws bad_alloc, and has then
/// freed `owner`. So it is made before the driver is asked for the memory that `owner` will hold. `owner`
/// must not keep a context alive, which would then leave its job late. A forked child never frees what
/// belongs to its parent.
std::shared_ptr<void> free_when_idle(std::shared_ptr<void> owner);
template <class T>
std::shared_ptr<T> free_when_idle(std::shared_ptr<T> owner) {
  T* const at = owner.get();
  return {free_when_idle(std::shared_ptr<void>(std::move(owner))), at};
}
/// Frees everything that is deferred, if no operation is on a device now.
void free_if_idle() noexcept;
/// Does the same, and waits for another thread that is freeing now. Does nothing on threads that free nothing
/// (NeverFrees). Must not be called from a destructor that this function runs.
void finish_freeing() noexcept;
/// Asks the DeferredFreeThread to free everything that is deferred, if no operation is on a device now. Waits
/// for at most `at_most` until nothing is left. Threads that free nothing may call it.
void free_soon(std::chrono::milliseconds at_most) noexcept;
/// Called when the process has captured operations in a graph. Replays of the graph do not count as
/// operations, so from now on a DeferredFreeThread frees only when free_soon() asks it to.
void note_graph_capture() noexcept;

/// As long as one exists, a thread of the process ("ouro-unmap") frees what is deferred as soon as the last
/// operation on a device is known to have ended.
class DeferredFreeThread {
 public:
  /// Returns the one of this process; nullptr if the system has no thread for it.
  static std::shared_ptr<DeferredFreeThread> of_process();
  ~DeferredFreeThread();  ///< joins the thread; later calls free what is still deferred
  DeferredFreeThread(const DeferredFreeThread&) = delete;
  DeferredFreeThread& operator=(const DeferredFreeThread&) = delete;

 private:
  DeferredFreeThread();
  class Loop;
  const std::unique_ptr<Loop> loop_;
};

/// As long as one exists, the calling thread frees nothing that is deferred: a DeferredFreeThread or a call
/// of another thread does. It serves threads that must not wait for a driver.
class NeverFrees {
 public:
  NeverFrees();
  ~NeverFrees();
  NeverFrees(const NeverFrees&) = delete;
  NeverFrees& operator=(const NeverFrees&) = delete;
};

}  // namespace ouro::rt
