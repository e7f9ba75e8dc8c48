// What a process keeps of devices for reuse: events, pinned memory and words, memory of devices. Nothing is
// returned to the driver. Used by streams, and by all that enqueues work.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/device/gpu.h"
#include "runtime/core/fork.h"
#include "runtime/core/status.h"

namespace ouro::rt {

/// An event of a device; its destructor returns it to a pool of this process.
class PooledEvent {
 public:
  static Result<std::shared_ptr<PooledEvent>> take(int device);
  ~PooledEvent();
  PooledEvent(const PooledEvent&) = delete;
  PooledEvent& operator=(const PooledEvent&) = delete;
  gpu::Event get() const { return *event_; }

 private:
  explicit PooledEvent(int device) : device_(device) {}
  const unsigned forks_ = forks();
  int device_;
  std::optional<gpu::Event> event_;  ///< none while it is being made
};

/// Pinned memory of the host, of at least `bytes`; its destructor returns it to a pool of this process.
Result<std::shared_ptr<void>> take_pinned(std::size_t bytes);
/// Memory of a device, of at least `bytes`. Its destructor returns it to a pool of this process. It is never
/// freed, so memory that a network has registered is valid as long as the process.
Result<std::shared_ptr<std::byte>> take_device(int device, std::size_t bytes);

/// A pinned word, 0, of a line of its own, for a stream that waits for the host.
Result<std::uint32_t*> take_word();
/// It is 0 again, and no stream will use it.
void put_back_word(std::uint32_t*);

}  // namespace ouro::rt
