// Layout and pinning of the words of GPU operations. See gpu_words.h.
#include "runtime/exec/gpu/gpu_words.h"

#include <map>
#include <mutex>

namespace ouro::rt {
namespace {
constexpr std::size_t kPage = 4096;
std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
std::mutex g_pins_mutex;
}  // namespace

/// A segment is mapped once a process, so it can be pinned only once too: ranks that are threads share this.
struct GpuWords::Pin {
  std::byte* host = nullptr;
  void* device = nullptr;
  ~Pin() {
    if (device) (void)gpu::gpu().unregister_host(host).ok();
  }
  static std::map<std::byte*, std::weak_ptr<Pin>>& all() {
    static auto* const pins =
        new std::map<std::byte*, std::weak_ptr<Pin>>;  // groups may outlive static objects
    return *pins;
  }
  static Result<std::shared_ptr<Pin>> get(std::byte* host, std::size_t bytes) {
    std::lock_guard lock(g_pins_mutex);
    std::weak_ptr<Pin>& known = all()[host];
    if (auto pin = known.lock()) return pin;
    auto address = gpu::gpu().register_host(host, bytes);
    if (!address.ok()) return address.status();
    auto pin = std::make_shared<Pin>();
    pin->host = host, pin->device = *address;
    known = pin;
    return pin;
  }
};

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
  auto pin = Pin::get(at, word_bytes);
  if (!pin.ok()) return pin.status();
  words->pin_ = *pin;
  words->device_words_ = (*pin)->device;
  words->segment_ = std::move(segment);
  return words;
}

GpuWords::~GpuWords() {
  // The last pin goes under the lock, so that nobody finds it while it is taken down.
  std::lock_guard lock(g_pins_mutex);
  pin_.reset();
}

void GpuWords::set_all(std::uint32_t value) const {
  for (std::size_t i = 0; i < count(n_); ++i)
    std::atomic_ref(words_[i]).store(value, std::memory_order_release);
}

}  // namespace ouro::rt
