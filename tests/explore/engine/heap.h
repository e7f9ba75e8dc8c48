// Memory from the heap while an execution runs: taken from the front of a region, and all given back at its
// end. Used by the hooks and by the machine.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <vector>

namespace explore::heap {

/// As operator new: of the region between begin() and end(), of malloc elsewhere.
void* take(std::size_t bytes, std::size_t alignment);
void give(void*);
/// Until the next call: of the arena, by this name; nullptr: not.
void to_arena(const char* label);
/// An execution begins, or ends.
void begin();
void end();
/// The engine's own memory, in an execution, outlives it.
class Outside {
 public:
  Outside();
  ~Outside();
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;

 private:
  bool was_;
};

/// What the engine keeps never comes from the region.
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
