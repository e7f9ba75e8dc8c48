// The heap region of an execution. See heap.h.
#include "tests/explore/engine/heap.h"

#include <cstdint>
#include <cstdlib>

#include "tests/explore/engine/machine.h"

namespace explore::heap {
namespace {
constexpr std::size_t kBytes = std::size_t{8} << 20;
alignas(4096) std::byte g_region[kBytes];
std::size_t g_used = 0;
bool g_inside = false;
const char* g_arena = nullptr;
}  // namespace

void* take(std::size_t bytes, std::size_t alignment) {
  if (!g_inside) {
    void* const p = alignment <= alignof(std::max_align_t)
                        ? std::malloc(bytes ? bytes : 1)
                        : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (!p) std::abort();
    return p;
  }
  if (g_arena) return place(bytes, g_arena, true, alignment < 64 ? 64 : alignment);
  g_used = (g_used + alignment - 1) / alignment * alignment;
  if (g_used + bytes > kBytes) std::abort();
  void* const p = g_region + g_used;
  g_used += bytes;
  return p;
}

void give(void* p) {
  if (reinterpret_cast<std::uintptr_t>(p) - reinterpret_cast<std::uintptr_t>(g_region) < kBytes) return;
  if (!Machine::the().holds(p)) std::free(p);
}
void to_arena(const char* label) { g_arena = label; }

void begin() {
  g_used = 0;
  g_inside = true;
}
void end() { g_inside = false; }

Outside::Outside() : was_(g_inside) { g_inside = false; }
Outside::~Outside() { g_inside = was_; }

}  // namespace explore::heap
