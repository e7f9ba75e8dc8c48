// The pool of words. See end_word.h.
#include "runtime/exec/gpu/end_word.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/core/per_process.h"
#include "runtime/exec/gpu/setter_streams.h"

namespace ouro::rt {

struct EndWord::Pool {
  struct Shelf {
    std::vector<Line> lines;
    std::size_t made = 0;  // all that were made fit in: returning one needs no memory
  };
  std::mutex mutex;
  std::map<const gpu::Gpu*, Shelf> shelves;  // tests install others
};

EndWord::Pool& EndWord::pool() {
  static constinit PerProcess<Pool> pool;
  return *pool;
}

Result<std::shared_ptr<EndWord>> EndWord::take(int device) {
  constexpr std::size_t kMany = 64, kApart = 32;  // lines, of 128 bytes: two of the host's
  const auto end = std::shared_ptr<EndWord>(new EndWord);
  OURO_ASSIGN(end->asked_, setter_stream(device, 1));
  std::unique_lock lock(pool().mutex);
  Pool::Shelf& shelf = pool().shelves[end->gpu_];
  if (shelf.lines.empty()) {
    shelf.lines.reserve(shelf.made += kMany);
    lock.unlock();  // pinning may wait for the device
    OURO_ASSIGN(void* const memory, gpu::gpu().alloc_pinned(kMany * kApart * sizeof(std::uint32_t)));
    auto* const words = static_cast<std::uint32_t*>(memory);
    std::fill_n(words, kMany * kApart, 0u);
    lock.lock();
    for (std::size_t i = 0; i < kMany; ++i) shelf.lines.push_back({words + i * kApart, 0});
  }
  end->line_ = shelf.lines.back();
  shelf.lines.pop_back();
  lock.unlock();
  std::atomic_ref(*end->late_word()).store(0, std::memory_order_relaxed);
  return end;
}

EndWord::~EndWord() {
  if (!line_.words || forks_ != forks()) return;
  std::lock_guard lock(pool().mutex);
  pool().shelves[gpu_].lines.push_back(line_);
}

}  // namespace ouro::rt
