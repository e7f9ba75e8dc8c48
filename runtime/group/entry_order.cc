// Waiting for a place. See entry_order.h.
#include "runtime/group/entry_order.h"

#include <chrono>

namespace ouro::rt {

bool EntryOrder::await(std::uint64_t place) {
  if (left_.load(std::memory_order_acquire) >= place) return true;
  constexpr std::chrono::milliseconds kCheckEvery{5};
  const LentCore lent;
  std::unique_lock lock(mutex_);
  while (!cv_.wait_for(lock, kCheckEvery, [&] { return left_.load(std::memory_order_acquire) >= place; }))
    if (!detector_.ok()) return false;
  return true;
}

void EntryOrder::leave(std::uint64_t place) {
  {
    std::lock_guard lock(mutex_);
    left_.store(place + 1, std::memory_order_release);
  }
  cv_.notify_all();
}

}  // namespace ouro::rt
