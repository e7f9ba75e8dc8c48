// The pools of a process. See device_pools.h.
#include "runtime/stream/device_pools.h"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "runtime/core/per_process.h"

namespace ouro::rt {
namespace {

/// The unused objects of one kind. It has room for all that were made, so that returning one needs no memory.
template <class T>
struct Shelf {
  std::vector<T> free;
  std::size_t made = 0;
  void expect(std::size_t more) {
    if (free.capacity() < made + more) free.reserve(2 * made + more + 16);
    made += more;
  }
};

/// Objects are never returned to the driver: it may wait for all work of the process when it frees something,
/// and ranks that are threads would then wait for each other.
struct Pool {
  std::mutex mutex;
  std::map<int, Shelf<gpu::Event>> events;
  std::vector<std::uint32_t*> words;           // pinned, 0
  std::size_t words_made = 0;                  // all that were made fit in: returning one needs no memory
  std::map<std::size_t, Shelf<void*>> pinned;  // by size, a power of two
  std::map<std::tuple<const gpu::Gpu*, int, std::size_t>, Shelf<void*>> device;  // by device and size
};
constinit PerProcess<Pool> g_pool;  // in a forked child, objects of the driver belong to the parent
Pool& pool_of_process() { return *g_pool; }

}  // namespace

Result<std::shared_ptr<PooledEvent>> PooledEvent::take(int device) {
  Pool& pool = pool_of_process();
  const auto event = std::shared_ptr<PooledEvent>(new PooledEvent(device));  // its destructor takes the lock
  {
    std::lock_guard lock(pool.mutex);
    Shelf<gpu::Event>& shelf = pool.events[device];
    if (!shelf.free.empty()) {
      event->event_ = shelf.free.back();
      shelf.free.pop_back();
      return event;
    }
    shelf.expect(1);
  }
  auto made = gpu::gpu().create_event(device, false);
  if (!made.ok()) return made.status();
  event->event_ = *made;
  return event;
}

PooledEvent::~PooledEvent() {
  if (!event_ || forks_ != forks()) return;  // in a forked child, objects of the driver belong to the parent
  Pool& pool = pool_of_process();
  std::lock_guard lock(pool.mutex);
  pool.events[device_].free.push_back(*event_);
}

Result<std::shared_ptr<void>> take_pinned(std::size_t bytes) {
  constexpr std::size_t kSmallest = 256, kChunk = 64 << 10;  // small ones are made many at a time
  Pool& pool = pool_of_process();
  const std::size_t size = std::bit_ceil(std::max(bytes, kSmallest));
  const std::size_t many = std::max<std::size_t>(kChunk / size, 1);
  void* memory = nullptr;
  std::unique_lock lock(pool.mutex);
  if (Shelf<void*>& shelf = pool.pinned[size]; shelf.free.empty()) {
    shelf.expect(many);
    lock.unlock();  // it may take long
    OURO_ASSIGN(memory, gpu::gpu().alloc_pinned(many * size));
    lock.lock();
    for (std::size_t i = 1; i < many; ++i) shelf.free.push_back(static_cast<std::byte*>(memory) + i * size);
  } else {
    memory = shelf.free.back();
    shelf.free.pop_back();
  }
  lock.unlock();
  return std::shared_ptr<void>(memory, [&pool, size, made = forks()](void* p) {
    if (made != forks()) return;
    std::lock_guard lock(pool.mutex);
    pool.pinned[size].free.push_back(p);
  });
}

Result<std::shared_ptr<std::byte>> take_device(int device, std::size_t bytes) {
  constexpr std::size_t kSmallest = 64 << 10;
  Pool& pool = pool_of_process();
  // Sizes are rounded up to sixteenths of a power of two, so that little is wasted and pieces can be reused.
  const std::size_t step = std::max(std::bit_ceil(bytes) / 16, kSmallest);
  const std::size_t size = (bytes + step - 1) / step * step;
  const std::tuple key(&gpu::gpu(), device, size);  // tests install others
  void* memory = nullptr;
  std::unique_lock lock(pool.mutex);
  if (Shelf<void*>& shelf = pool.device[key]; shelf.free.empty()) {
    shelf.expect(1);
    lock.unlock();  // it may take long
    OURO_ASSIGN(memory, gpu::gpu().alloc(device, size));
  } else {
    memory = shelf.free.back();
    shelf.free.pop_back();
    lock.unlock();
  }
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory),
                                    [&pool, key, made = forks()](std::byte* p) {
                                      if (made != forks()) return;
                                      std::lock_guard returning(pool.mutex);
                                      pool.device[key].free.push_back(p);
                                    });
}

/// Making words may wait for the device. It must not happen under a lock, because
/// functions that the device runs on the host could need that lock.
Result<std::uint32_t*> take_word() {
  Pool& pool = pool_of_process();
  std::unique_lock lock(pool.mutex);
  if (pool.words.empty()) {
    constexpr std::size_t kMany = 64, kApart = 16;  // words, a line each
    pool.words.reserve(pool.words_made += kMany);
    lock.unlock();
    OURO_ASSIGN(void* const memory, gpu::gpu().alloc_pinned(kMany * kApart * sizeof(std::uint32_t)));
    auto* const words = static_cast<std::uint32_t*>(memory);
    std::fill_n(words, kMany * kApart, 0u);
    lock.lock();
    for (std::size_t i = 0; i < kMany; ++i) pool.words.push_back(words + i * kApart);
  }
  std::uint32_t* const word = pool.words.back();
  pool.words.pop_back();
  return word;
}
void put_back_word(std::uint32_t* word) {
  Pool& pool = pool_of_process();
  std::lock_guard lock(pool.mutex);
  pool.words.push_back(word);
}

}  // namespace ouro::rt
