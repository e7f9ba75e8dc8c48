// The pins of this process and their users. See pinned_segment.h.
#include "runtime/device_memory/pinned_segment.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/device/gpu.h"
#include "runtime/core/per_process.h"
#include "runtime/device_memory/deferred_free.h"

namespace ouro::rt {
namespace {

/// The pinned memory of this process. A process maps a segment once, so it can be pinned only once, too:
/// ranks that are threads share the pin. A driver may wait for all work of the process when it unpins, and
/// that work may wait for another thread that is about to enqueue something. So no lock is held meanwhile.
class ProcessPins {
 public:
  static ProcessPins& all() {
    static constinit PerProcess<ProcessPins> pins;
    return *pins;
  }
  /// Adds a user of the pin and returns its address on the devices.
  Result<void*> add_user(std::byte* at, std::size_t bytes) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !by_address_[at].in_driver; });
    const auto it = by_address_.find(at);
    if (it->second.users == 0) {
      const InDriver in_driver(*this, it, lock);
      OURO_ASSIGN(it->second.on_device, gpu::gpu().register_host(at, bytes));
      it->second.users = 1;
    } else {
      ++it->second.users;
    }
    return it->second.on_device;
  }
  void remove_user(std::byte* at) {
    std::unique_lock lock(mutex_);
    const auto it = by_address_.find(at);
    if (--it->second.users > 0) return;
    const InDriver in_driver(*this, it, lock);
    (void)gpu::gpu().unregister_host(at).ok();
  }

 private:
  struct Pin {
    void* on_device = nullptr;
    int users = 0;
    bool in_driver = false;  ///< a thread pins or unpins it in the driver; only that thread accesses the rest
  };
  using At = std::map<std::byte*, Pin>::iterator;
  /// Exists while a thread is in the driver. Its destructor removes a pin without users.
  class InDriver {
   public:
    InDriver(ProcessPins& pins, At at, std::unique_lock<std::mutex>& lock)
        : pins_(pins), at_(at), lock_(lock) {
      at_->second.in_driver = true;
      lock_.unlock();
    }
    ~InDriver() {
      lock_.lock();
      at_->second.in_driver = false;
      if (at_->second.users == 0) pins_.by_address_.erase(at_);
      pins_.changed_.notify_all();
    }
    InDriver(const InDriver&) = delete;
    InDriver& operator=(const InDriver&) = delete;

   private:
    ProcessPins& pins_;
    const At at_;
    std::unique_lock<std::mutex>& lock_;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::byte*, Pin> by_address_;
};

/// One user of a pin, who keeps the segment.
struct PinUser {
  explicit PinUser(std::shared_ptr<SharedSegment> s) : segment(std::move(s)) {}
  ~PinUser() {
    if (at) ProcessPins::all().remove_user(at);
  }
  PinUser(const PinUser&) = delete;
  PinUser& operator=(const PinUser&) = delete;
  const std::shared_ptr<SharedSegment> segment;
  std::byte* at = nullptr;
};

}  // namespace

Result<std::shared_ptr<void>> pin_segment(std::shared_ptr<SharedSegment> segment, std::byte* at,
                                          std::size_t bytes, void** on_device) {
  // Everything that unpinning needs exists before the memory is pinned. Otherwise a lack of memory would
  // unpin it at once, which would wait for streams that wait for this rank.
  const auto user = free_when_idle(std::make_shared<PinUser>(std::move(segment)));
  OURO_ASSIGN(void* const address, ProcessPins::all().add_user(at, bytes));
  user->at = at;
  if (on_device) *on_device = address;
  return std::shared_ptr<void>(user);
}

}  // namespace ouro::rt
