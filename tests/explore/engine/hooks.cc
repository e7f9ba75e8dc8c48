// Functions that instrumented code calls: the interface of ThreadSanitizer's instrumentation
// (-fsanitize=thread, without its library), the system calls by which ranks wait, and heap allocation.
// Accesses to the arena are passed to the machine. Linked into explored programs.
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/explore/engine/heap.h"
#include "tests/explore/engine/operations.h"

using explore::Machine;
using explore::Operations;
using explore::Order;

namespace {

Machine& machine() { return *Machine::running; }
Operations& operations() { return *Operations::running; }
bool ours(const volatile void* p) {
  return Operations::running && operations().holds(const_cast<const void*>(p));
}

Order order(int o) {
  switch (o) {
    case __ATOMIC_RELAXED:
      return Order::relaxed;
    case __ATOMIC_CONSUME:
    case __ATOMIC_ACQUIRE:
      return Order::acquire;
    case __ATOMIC_RELEASE:
      return Order::release;
    case __ATOMIC_ACQ_REL:
      return Order::acq_rel;
    default:
      return Order::seq_cst;
  }
}

using u64 = std::uint64_t;
u64 plus(u64 a, u64 b) { return a + b; }
u64 minus(u64 a, u64 b) { return a - b; }
u64 both(u64 a, u64 b) { return a & b; }
u64 either(u64 a, u64 b) { return a | b; }
u64 unlike(u64 a, u64 b) { return a ^ b; }
u64 second(u64, u64 b) { return b; }

}  // namespace

#define SITE __builtin_return_address(0)
#define PLAIN(name, bytes, writes)                           \
  void name(void* p) {                                       \
    if (ours(p)) operations().plain(p, bytes, writes, SITE); \
  }
#define PLAIN_OF(bytes)                             \
  PLAIN(__tsan_read##bytes, bytes, false)           \
  PLAIN(__tsan_write##bytes, bytes, true)           \
  PLAIN(__tsan_unaligned_read##bytes, bytes, false) \
  PLAIN(__tsan_unaligned_write##bytes, bytes, true) \
  PLAIN(__tsan_volatile_read##bytes, bytes, false)  \
  PLAIN(__tsan_volatile_write##bytes, bytes, true)

#define CHANGE(bits, T, name, f, real)                                                             \
  T __tsan_atomic##bits##_##name(volatile T* p, T v, int o) {                                      \
    if (!ours(p)) return real(p, v, __ATOMIC_SEQ_CST);                                             \
    return static_cast<T>(operations().change(const_cast<T*>(p), bits / 8, f, v, order(o), SITE)); \
  }
#define ATOMIC_OF(bits, T)                                                                                  \
  T __tsan_atomic##bits##_load(const volatile T* p, int o) {                                                \
    if (!ours(p)) return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                              \
    return static_cast<T>(operations().load(const_cast<T*>(p), bits / 8, order(o), SITE));                  \
  }                                                                                                         \
  void __tsan_atomic##bits##_store(volatile T* p, T v, int o) {                                             \
    if (!ours(p)) return __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                          \
    operations().store(const_cast<T*>(p), bits / 8, v, order(o), SITE);                                     \
  }                                                                                                         \
  CHANGE(bits, T, exchange, second, __atomic_exchange_n)                                                    \
  CHANGE(bits, T, fetch_add, plus, __atomic_fetch_add)                                                      \
  CHANGE(bits, T, fetch_sub, minus, __atomic_fetch_sub)                                                     \
  CHANGE(bits, T, fetch_and, both, __atomic_fetch_and)                                                      \
  CHANGE(bits, T, fetch_or, either, __atomic_fetch_or)                                                      \
  CHANGE(bits, T, fetch_xor, unlike, __atomic_fetch_xor)                                                    \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* expected, T desired, int o,           \
                                                    int fail) {                                             \
    if (!ours(p))                                                                                           \
      return __atomic_compare_exchange_n(p, expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);  \
    std::uint64_t seen = *expected;                                                                         \
    const bool done =                                                                                       \
        operations().exchange_if(const_cast<T*>(p), bits / 8, &seen, desired, order(o), order(fail), SITE); \
    *expected = static_cast<T>(seen);                                                                       \
    return done;                                                                                            \
  }                                                                                                         \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* expected, T desired, int o, int fail) { \
    return __tsan_atomic##bits##_compare_exchange_strong(p, expected, desired, o, fail);                    \
  }                                                                                                         \
  T __tsan_atomic##bits##_compare_exchange_val(volatile T* p, T expected, T desired, int o, int fail) {     \
    __tsan_atomic##bits##_compare_exchange_strong(p, &expected, desired, o, fail);                          \
    return expected;                                                                                        \
  }

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void** p, void*) {
  if (ours(p)) operations().plain(p, sizeof *p, true, SITE);
}
void __tsan_read_range(void* p, unsigned long bytes) {
  if (ours(p)) operations().plain(p, bytes, false, SITE);
}
void __tsan_write_range(void* p, unsigned long bytes) {
  if (ours(p)) operations().plain(p, bytes, true, SITE);
}
PLAIN_OF(1)
PLAIN_OF(2)
PLAIN_OF(4)
PLAIN_OF(8)
PLAIN_OF(16)
ATOMIC_OF(8, unsigned char)
ATOMIC_OF(16, unsigned short)
ATOMIC_OF(32, unsigned int)
ATOMIC_OF(64, unsigned long)
void __tsan_atomic_thread_fence(int o) {
  if (Machine::running) operations().fence(order(o), SITE);
}
void __tsan_atomic_signal_fence(int) {}

// Calls that the linker redirects here (--wrap), from instrumented code only.
void* __real_memcpy(void*, const void*, std::size_t);
void* __real_memmove(void*, const void*, std::size_t);
void* __real_memset(void*, int, std::size_t);
int __real_memcmp(const void*, const void*, std::size_t);
void* __wrap_memcpy(void* to, const void* from, std::size_t bytes) {
  if (ours(from)) operations().plain(from, bytes, false, SITE);
  if (ours(to)) operations().plain(to, bytes, true, SITE);
  return __real_memcpy(to, from, bytes);
}
void* __wrap_memmove(void* to, const void* from, std::size_t bytes) {
  if (ours(from)) operations().plain(from, bytes, false, SITE);
  if (ours(to)) operations().plain(to, bytes, true, SITE);
  return __real_memmove(to, from, bytes);
}
void* __wrap_memset(void* to, int value, std::size_t bytes) {
  if (ours(to)) operations().plain(to, bytes, true, SITE);
  return __real_memset(to, value, bytes);
}
int __wrap_memcmp(const void* a, const void* b, std::size_t bytes) {
  if (ours(a)) operations().plain(a, bytes, false, SITE);
  if (ours(b)) operations().plain(b, bytes, false, SITE);
  return __real_memcmp(a, b, bytes);
}

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...) {
  va_list args;
  va_start(args, number);
  long a[6];
  for (long& x : a) x = va_arg(args, long);
  va_end(args);
  auto* const p = reinterpret_cast<void*>(a[0]);
  if (number != SYS_futex || !ours(p)) return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  const long what = a[1] & FUTEX_CMD_MASK;
  if (what == FUTEX_WAIT)
    return operations().futex_wait(p, static_cast<std::uint32_t>(a[2]), a[3] != 0, SITE);
  if (what == FUTEX_WAKE) return operations().futex_wake(p, SITE);
  machine().fail("a call of futex() that the machine does not know");
  return -1;
}

int __real_pthread_mutex_lock(pthread_mutex_t*);
int __wrap_pthread_mutex_lock(pthread_mutex_t* m) {
  if (ours(m)) {
    operations().lock(m, SITE);
    return 0;
  }
  if (!Machine::running) return __real_pthread_mutex_lock(m);
  if (pthread_mutex_trylock(m) != 0) machine().fail("two fibers want a lock that is not in the arena");
  return 0;
}
int __real_pthread_mutex_unlock(pthread_mutex_t*);
int __wrap_pthread_mutex_unlock(pthread_mutex_t* m) {
  if (!ours(m)) return __real_pthread_mutex_unlock(m);
  operations().unlock(m, SITE);
  return 0;
}

int __real_sched_yield();
int __wrap_sched_yield() {
  if (!Machine::running) return __real_sched_yield();
  machine().yield();
  return 0;
}
int __real_nanosleep(const timespec*, timespec*);
int __wrap_nanosleep(const timespec* time, timespec* left) {
  if (!Machine::running) return __real_nanosleep(time, left);
  machine().nap();
  return 0;
}
std::int64_t __real__ZNSt6chrono3_V212steady_clock3nowEv();
std::int64_t __wrap__ZNSt6chrono3_V212steady_clock3nowEv() {
  return Machine::running ? machine().now() : __real__ZNSt6chrono3_V212steady_clock3nowEv();
}

}  // extern "C"

// The heap of an execution is a region that restarts empty for the next one, so abandoned fibers leave
// nothing behind, and addresses are the same each time.
void* operator new(std::size_t bytes) { return explore::heap::take(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t a) {
  return explore::heap::take(bytes, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t bytes) { return explore::heap::take(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes, std::align_val_t a) {
  return explore::heap::take(bytes, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept { explore::heap::give(p); }
void operator delete(void* p, std::size_t) noexcept { explore::heap::give(p); }
void operator delete(void* p, std::align_val_t) noexcept { explore::heap::give(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { explore::heap::give(p); }
void operator delete[](void* p) noexcept { explore::heap::give(p); }
void operator delete[](void* p, std::size_t) noexcept { explore::heap::give(p); }
void operator delete[](void* p, std::align_val_t) noexcept { explore::heap::give(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { explore::heap::give(p); }
