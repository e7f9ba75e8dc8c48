// The allocation functions of the test program, and pthread_create. See scarcity.h.
#include "tests/runtime/failure/scarcity.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <atomic>

#include <cstdlib>
#include <new>

#if defined(__SANITIZE_THREAD__)
/// Emulated devices live as long as the process, and so do their threads.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "report_thread_leaks=0";
}
#endif

namespace {

thread_local constinit int t_left = -1;  // allocations before the refused one; negative: none is refused
thread_local constinit bool t_refused = false;
thread_local constinit bool t_no_threads = false;
std::atomic<bool> g_no_threads{false};
thread_local constinit int t_threads_refused = 0;

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (t_left >= 0 && t_left-- == 0) {
    t_refused = true;
    return nullptr;
  }
  if (bytes == 0) bytes = 1;
  if (alignment <= alignof(std::max_align_t)) return std::malloc(bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* const p = allocate(bytes, alignment)) return p;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t n) { return allocate_or_throw(n, 1); }
void* operator new[](std::size_t n) { return allocate_or_throw(n, 1); }
void* operator new(std::size_t n, std::align_val_t a) {
  return allocate_or_throw(n, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t n, std::align_val_t a) {
  return allocate_or_throw(n, static_cast<std::size_t>(a));
}
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return allocate(n, 1); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return allocate(n, 1); }
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate(n, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate(n, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                              void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto next = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (t_no_threads || g_no_threads) {
    ++t_threads_refused;
    return EAGAIN;
  }
  return next(thread, attributes, body, argument);
}

namespace ouro::test {

void refuse_memory(int n) {
  t_refused = false;
  t_left = n;
}
bool allow_memory() {
  t_left = -1;
  return t_refused;
}
bool has_refused() { return t_refused; }

NoThreads::NoThreads(For whom) {
  t_threads_refused = 0;
  t_no_threads = true;
  g_no_threads = whom == For::all;
}
NoThreads::~NoThreads() { t_no_threads = g_no_threads = false; }
int NoThreads::refused() const { return t_threads_refused; }

}  // namespace ouro::test
