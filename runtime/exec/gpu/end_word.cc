// The pool of words. See end_word.h.
#include "runtime/exec/gpu/end_word.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/core/per_process.h"
#include "runtime/exec/gpu/setter_streams.h"

namespace ouro::rt {

struct EndWord::Pool {
  std::mutex mutex;
  std::vector<Line> lines;
  std::size_t made = 0;  // all that were made fit in: returning one needs no memory
};

EndWord::Pool& EndWord::pool() {
  static constinit PerProcess<Pool> pool;
  return *pool;
}

Result<std::shared_ptr<EndWord>> EndWord::take(int device) {
  constexpr std::size_t kMany = 64, kApart = 32;  // lines, of 128 bytes: two of the host's
  const auto end = std::shared_ptr<EndWord>(new EndWord);
  OURO_ASSIGN(end->asked_, setter_stream(device, 1));
  Pool& all = pool();
  std::unique_lock lock(all.mutex);
  if (all.lines.empty()) {
    all.lines.reserve(all.made += kMany);
    lock.unlock();  // pinning may wait for the device
    OURO_ASSIGN(void* const memory, gpu::gpu().alloc_pinned(kMany * kApart * sizeof(std::uint32_t)));
    auto* const words = static_cast<std::uint32_t*>(memory);
    std::fill_n(words, kMany * kApart, 0u);
    lock.lock();
    for (std::size_t i = 0; i < kMany; ++i) all.lines.push_back({words + i * kApart, 0});
  }
  end->line_ = all.lines.back();
  all.lines.pop_back();
  lock.unlock();
  std::atomic_ref(*end->late_word()).store(0, std::memory_order_relaxed);
  return end;
}

EndWord::~EndWord() {
  if (!line_.words || forks_ != forks()) return;
  Pool& all = pool();
  std::lock_guard lock(all.mutex);
  all.lines.push_back(line_);
}

}  // namespace ouro::rt
