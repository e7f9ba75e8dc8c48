// Layout and pinning of the words of GPU operations. See gpu_words.h.
#include "runtime/exec/gpu/gpu_words.h"

#include <condition_variable>
#include <map>
#include <mutex>

#include "transport/cuda_ipc/quiet.h"

namespace ouro::rt {
namespace {

constexpr std::size_t kPage = 4096;
std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

/// What is pinned in this process. A segment is mapped once a process, so it can be pinned only once too:
/// ranks that are threads share it. A driver may wait for all work of the process when it unpins, and that
/// work may wait for what another thread is about to enqueue: so no lock is held meanwhile.
class Pins {
 public:
  static Pins& all() {
    static auto& pins = *new Pins;  // groups may outlive static objects
    return pins;
  }
  /// The address on the devices.
  Result<void*> take(std::byte* host, std::size_t bytes) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !pins_[host].changing; });
    Pin& pin = pins_[host];
    if (pin.users == 0) {
      pin.changing = true;
      lock.unlock();
      const std::shared_ptr<void> done(nullptr, [&](void*) {  // also where memory is short
        lock.lock();
        pin.changing = false;
        changed_.notify_all();
      });
      OURO_ASSIGN(pin.device, gpu::gpu().register_host(host, bytes));
    }
    ++pin.users;
    return pin.device;
  }
  void give_back(std::byte* host) {
    std::unique_lock lock(mutex_);
    Pin& pin = pins_[host];
    if (--pin.users > 0) return;
    pin.changing = true;
    lock.unlock();
    (void)gpu::gpu().unregister_host(host).ok();
    lock.lock();
    pins_.erase(host);
    changed_.notify_all();
  }

 private:
  struct Pin {
    void* device = nullptr;
    int users = 0;
    bool changing = false;  ///< somebody is with the driver because of it
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::byte*, Pin> pins_;
};

struct PinnedWords {
  explicit PinnedWords(std::shared_ptr<device::Segment> of) : segment(std::move(of)) {}
  ~PinnedWords() {
    if (at) Pins::all().give_back(at);
  }
  PinnedWords(const PinnedWords&) = delete;
  PinnedWords& operator=(const PinnedWords&) = delete;
  const std::shared_ptr<device::Segment> segment;
  std::byte* at = nullptr;
};

}  // namespace

std::size_t GpuWords::bytes(int n) {
  return whole_pages(sizeof(Head)) + whole_pages(count(n) * sizeof(std::uint32_t)) +
         whole_pages(static_cast<std::size_t>(n) * kArrivals * sizeof(GpuArrival));
}

Result<std::shared_ptr<GpuWords>> GpuWords::open(std::shared_ptr<device::Segment> segment, int n) {
  auto words = std::shared_ptr<GpuWords>(new GpuWords);
  std::byte* at = segment->data();
  words->n_ = n;
  words->head_ = reinterpret_cast<Head*>(at);
  at += whole_pages(sizeof(Head));
  words->words_ = reinterpret_cast<std::uint32_t*>(at);
  const std::size_t word_bytes = whole_pages(count(n) * sizeof(std::uint32_t));
  words->arrivals_ = reinterpret_cast<GpuArrival*>(at + word_bytes);
  transport::expect_release();
  const auto pin = std::make_shared<PinnedWords>(std::move(segment));  // as in staged_path.cc
  OURO_ASSIGN(words->device_words_, Pins::all().take(at, word_bytes));
  pin->at = at;
  words->pin_ = pin;
  return words;
}

GpuWords::~GpuWords() { transport::release_when_quiet(std::move(pin_)); }

void GpuWords::set_all(std::uint32_t value) const {
  for (std::size_t i = 0; i < count(n_); ++i)
    std::atomic_ref(words_[i]).store(value, std::memory_order_release);
}

}  // namespace ouro::rt
