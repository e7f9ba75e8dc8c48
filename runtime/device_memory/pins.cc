// Who has pinned what. See pins.h.
#include "runtime/device_memory/pins.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/device/gpu.h"
#include "runtime/core/per_process.h"
#include "runtime/device_memory/deferred_free.h"

namespace ouro::rt {
namespace {

/// What is pinned in this process. A segment is mapped once a process, so it can be pinned only once too:
/// ranks that are threads share it. A driver may wait for all work of the process when it unpins, and that
/// work may wait for what another thread is about to enqueue: so no lock is held meanwhile.
class Pins {
 public:
  static Pins& all() {
    static constinit PerProcess<Pins> pins;
    return *pins;
  }
  /// The address on the devices.
  Result<void*> take(std::byte* at, std::size_t bytes) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !known_[at].changing; });
    const auto it = known_.find(at);
    if (it->second.users == 0) {
      const Change change(*this, it, lock);
      OURO_ASSIGN(it->second.on_device, gpu::gpu().register_host(at, bytes));
      it->second.users = 1;
    } else {
      ++it->second.users;
    }
    return it->second.on_device;
  }
  void give_back(std::byte* at) {
    std::unique_lock lock(mutex_);
    const auto it = known_.find(at);
    if (--it->second.users > 0) return;
    const Change change(*this, it, lock);
    (void)gpu::gpu().unregister_host(at).ok();
  }

 private:
  struct Known {
    void* on_device = nullptr;
    int users = 0;
    bool changing = false;  ///< a thread is in the driver because of it, and alone touches the rest
  };
  using At = std::map<std::byte*, Known>::iterator;
  /// Exists while a thread is in the driver. Afterwards entries without users are removed.
  class Change {
   public:
    Change(Pins& pins, At at, std::unique_lock<std::mutex>& lock) : pins_(pins), at_(at), lock_(lock) {
      at_->second.changing = true;
      lock_.unlock();
    }
    ~Change() {
      lock_.lock();
      at_->second.changing = false;
      if (at_->second.users == 0) pins_.known_.erase(at_);
      pins_.changed_.notify_all();
    }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    Pins& pins_;
    const At at_;
    std::unique_lock<std::mutex>& lock_;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::byte*, Known> known_;
};

struct Pinned {
  explicit Pinned(std::shared_ptr<SharedSegment> of) : segment(std::move(of)) {}
  ~Pinned() {
    if (at) Pins::all().give_back(at);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  const std::shared_ptr<SharedSegment> segment;
  std::byte* at = nullptr;
};

}  // namespace

Result<std::shared_ptr<void>> pin(std::shared_ptr<SharedSegment> segment, std::byte* at, std::size_t bytes,
                                  void** on_device) {
  // All that unpinning needs is there before it is pinned: to unpin it at once, for want of memory, would
  // wait for streams that wait for this rank.
  const auto pinned = free_when_idle(std::make_shared<Pinned>(std::move(segment)));
  OURO_ASSIGN(void* const there, Pins::all().take(at, bytes));
  pinned->at = at;
  if (on_device) *on_device = there;
  return std::shared_ptr<void>(pinned);
}

}  // namespace ouro::rt
