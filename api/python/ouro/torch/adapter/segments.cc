// Following PyTorch's caching allocator. See segments.h.
#include "segments.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#ifdef OURO_TORCH_CUDA  // build.py has found the headers of CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

namespace ouro::adapter {
namespace {

/// All objects that exist. The allocator gets one callback, which cannot be removed.
struct Followers {
  std::mutex mutex;
  std::vector<Segments*> all;
};
Followers& followers() {
  static auto* const one = new Followers;  // never destroyed: the allocator may call during exit
  return *one;
}

bool wanted() {
  const char* const set = std::getenv("OURO_TORCH_REGISTER");
  return !set || std::string_view(set) != "0";
}

}  // namespace

std::unique_ptr<Segments> Segments::follow([[maybe_unused]] Context& context) {
#ifdef OURO_TORCH_CUDA
  namespace allocator = c10::cuda::CUDACachingAllocator;
  if (context.device().kind != Device::Kind::cuda || !wanted() || !allocator::get()) return nullptr;
  std::unique_ptr<Segments> made(new Segments(context));
  {
    const std::lock_guard lock(followers().mutex);
    followers().all.push_back(made.get());
  }
  static const bool followed = [] {
    allocator::attachAllocatorTraceTracker([](const allocator::TraceEntry& entry) {
      const bool maps = entry.action_ == allocator::TraceEntry::SEGMENT_MAP;
      if (!maps && entry.action_ != allocator::TraceEntry::SEGMENT_UNMAP) return;
      const std::lock_guard lock(followers().mutex);
      for (Segments* s : followers().all) {
        if (s->device() != entry.device_) continue;
        if (maps)
          s->mapped(entry.addr_, entry.size_);
        else
          s->unmapped(entry.addr_, entry.size_);
      }
    });
    return true;
  }();
  (void)followed;
  for (const auto& segment : allocator::snapshot().segments)  // what was mapped before
    if (segment.is_expandable && segment.device == made->device())
      made->mapped(segment.address, segment.total_size);
  return made;
#else
  (void)wanted;
  return nullptr;
#endif
}

Segments::~Segments() {
  const std::lock_guard lock(followers().mutex);
  std::erase(followers().all, this);
}

void Segments::add(std::uintptr_t address, std::size_t bytes) {
  auto made = context_.register_memory(reinterpret_cast<const void*>(address), bytes, context_.device());
  if (made.ok()) {
    pieces_.insert_or_assign(address, Piece{bytes, std::move(*made)});
  } else if (!std::exchange(told_, true) && context_.active()) {
    log_warning("segments of PyTorch's allocator are copied through slots: " + made.status().message());
  }
}

/// Registered memory may be reported again, as a whole, in part, or as part of more: by an event and by the
/// snapshot that follow() takes.
void Segments::mapped(std::uintptr_t address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::uintptr_t end = address + bytes;
  std::vector<std::pair<std::uintptr_t, std::size_t>> lacking;
  for (const auto& [from, piece] : pieces_) {  // in order, and disjoint
    if (from >= end) break;
    if (from > address) lacking.emplace_back(address, from - address);
    address = std::max(address, from + piece.bytes);
  }
  if (address < end) lacking.emplace_back(address, end - address);
  for (const auto& [at, many] : lacking) add(at, many);
}

void Segments::unmapped(std::uintptr_t address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::uintptr_t end = address + bytes;
  std::vector<std::pair<std::uintptr_t, std::size_t>> stays;
  for (auto it = pieces_.begin(); it != pieces_.end() && it->first < end;) {
    const std::uintptr_t from = it->first, to = from + it->second.bytes;
    if (to <= address) {
      ++it;
      continue;
    }
    if (from < address) stays.emplace_back(from, address - from);
    if (to > end) stays.emplace_back(end, to - end);
    it = pieces_.erase(it);
  }
  for (const auto& [at, many] : stays) add(at, many);
}

std::size_t Segments::bytes() {
  const std::lock_guard lock(mutex_);
  std::size_t all = 0;
  for (const auto& [at, piece] : pieces_) all += piece.bytes;
  return all;
}

}  // namespace ouro::adapter
