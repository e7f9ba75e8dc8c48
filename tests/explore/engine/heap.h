// Heap memory during an execution: allocated from the front of a region, and released all at once at its end.
// Used by the hooks and by the machine.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <vector>

namespace explore::heap {

/// Implements operator new: allocates from the region between begin() and end(), with malloc otherwise.
void* take(std::size_t bytes, std::size_t alignment);
void give(void*);
/// Until the next call, allocations come from the arena, with this label; nullptr ends this.
void to_arena(const char* label);
/// Call at the start and at the end of an execution.
void begin();
void end();
/// While an object lives, allocations are the engine's own and outlive the execution.
class Outside {
 public:
  Outside();
  ~Outside();
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;

 private:
  bool was_;
};

/// Allocates outside of the region; for data that the engine keeps.
template <class T>
struct OutsideAllocator {
  using value_type = T;
  OutsideAllocator() = default;
  template <class U>
  OutsideAllocator(const OutsideAllocator<U>&) {}
  T* allocate(std::size_t n) {
    void* const p = std::malloc(n * sizeof(T));
    if (!p) std::abort();
    return static_cast<T*>(p);
  }
  void deallocate(T* p, std::size_t) { std::free(p); }
  friend bool operator==(OutsideAllocator, OutsideAllocator) { return true; }
};

}  // namespace explore::heap

namespace explore {
template <class T>
using Kept = std::vector<T, heap::OutsideAllocator<T>>;
}
