// Threads and the primitives by which they wait for each other: threads are fibers. See real.h.
#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "tests/simulate/os/real.h"

OURO_REAL(int, __cxa_guard_acquire, std::int64_t*);
OURO_REAL(void, __cxa_guard_release, std::int64_t*);
OURO_REAL(void, __cxa_guard_abort, std::int64_t*);
OURO_REAL(int, pthread_mutex_lock, pthread_mutex_t*);
OURO_REAL(int, pthread_mutex_unlock, pthread_mutex_t*);
OURO_REAL(int, pthread_cond_wait, pthread_cond_t*, pthread_mutex_t*);
OURO_REAL(int, pthread_cond_clockwait, pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
OURO_REAL(int, pthread_cond_signal, pthread_cond_t*);
OURO_REAL(int, pthread_cond_broadcast, pthread_cond_t*);
OURO_REAL(int, pthread_setname_np, pthread_t, const char*);
OURO_REAL(int, pthread_sigmask, int, const sigset_t*, sigset_t*);
OURO_REAL(void, _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE, std::condition_variable*,
          std::unique_lock<std::mutex>*);
OURO_REAL(void, _ZNSt18condition_variable10notify_oneEv, std::condition_variable*);
OURO_REAL(void, _ZNSt18condition_variable10notify_allEv, std::condition_variable*);
OURO_REAL(void, _ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE,
          std::thread*, std::unique_ptr<std::thread::_State>*, void (*)());
OURO_REAL(void, _ZNSt6thread4joinEv, std::thread*);
OURO_REAL(void, _ZNSt6thread6detachEv, std::thread*);

namespace simulate {

bool sleep_on(const void* word, Nanos until);
int wake_all(const void* word, std::size_t most);

namespace {

std::map<pthread_t, Fiber*>& threads() {
  static auto* const all = new std::map<pthread_t, Fiber*>;
  return *all;
}

int wait_with(const void* condition, pthread_mutex_t* mutex, Nanos until) {
  (void)__real_pthread_mutex_unlock(mutex);
  (void)wake_all(mutex, 1);
  const bool woken = sleep_on(condition, until);
  while (pthread_mutex_trylock(mutex) != 0) (void)sleep_on(mutex, kNever);
  return woken ? 0 : ETIMEDOUT;
}

}  // namespace
}  // namespace simulate

using namespace simulate;

extern "C" {

/// A static object is constructed by one process for all of them: no process may die or be
/// preempted meanwhile.
int __wrap___cxa_guard_acquire(std::int64_t* guard) {
  const int make = __real___cxa_guard_acquire(guard);
  if (simulated()) world->running()->undivided += make;
  return make;
}
void __wrap___cxa_guard_release(std::int64_t* guard) {
  __real___cxa_guard_release(guard);
  if (simulated()) --world->running()->undivided;
}
void __wrap___cxa_guard_abort(std::int64_t* guard) {
  __real___cxa_guard_abort(guard);
  if (simulated()) --world->running()->undivided;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t* m) {
  if (!simulated()) return __real_pthread_mutex_lock(m);
  while (pthread_mutex_trylock(m) != 0) (void)sleep_on(m, kNever);
  return 0;
}
int __wrap_pthread_mutex_unlock(pthread_mutex_t* m) {
  const int result = __real_pthread_mutex_unlock(m);
  if (simulated()) (void)wake_all(m, 1);
  return result;
}

int __wrap_pthread_cond_wait(pthread_cond_t* c, pthread_mutex_t* m) {
  return simulated() ? wait_with(c, m, kNever) : __real_pthread_cond_wait(c, m);
}
int __wrap_pthread_cond_clockwait(pthread_cond_t* c, pthread_mutex_t* m, clockid_t clock,
                                  const timespec* end) {
  if (!simulated()) return __real_pthread_cond_clockwait(c, m, clock, end);
  const Nanos left = end->tv_sec * kSecond + end->tv_nsec - self().local(world->now());
  return wait_with(c, m, world->now() + self().global(left > 0 ? left : 0));
}
int __wrap_pthread_cond_signal(pthread_cond_t* c) {
  if (!simulated()) return __real_pthread_cond_signal(c);
  (void)wake_all(c, 1);
  return 0;
}
int __wrap_pthread_cond_broadcast(pthread_cond_t* c) {
  if (!simulated()) return __real_pthread_cond_broadcast(c);
  (void)wake_all(c, SIZE_MAX);
  return 0;
}
void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(std::condition_variable* c,
                                                                      std::unique_lock<std::mutex>* lock) {
  if (!simulated()) return __real__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(c, lock);
  (void)wait_with(c->native_handle(), lock->mutex()->native_handle(), kNever);
}
void __wrap__ZNSt18condition_variable10notify_oneEv(std::condition_variable* c) {
  if (!simulated()) return __real__ZNSt18condition_variable10notify_oneEv(c);
  (void)wake_all(c->native_handle(), 1);
}
void __wrap__ZNSt18condition_variable10notify_allEv(std::condition_variable* c) {
  if (!simulated()) return __real__ZNSt18condition_variable10notify_allEv(c);
  (void)wake_all(c->native_handle(), SIZE_MAX);
}

/// The wait of std::promise and std::future. The top bit of the word says that there is a waiter.
bool __wrap__ZNSt28__atomic_futex_unsigned_base19_M_futex_wait_untilEPjjbNSt6chrono8durationIlSt5ratioILl1ELl1EEEENS2_IlS3_ILl1ELl1000000000EEEE(
    void*, unsigned* word, unsigned seen, bool has_end, std::chrono::seconds s, std::chrono::nanoseconds ns) {
  const Nanos end = has_end ? world->now() + self().global(s.count() * kSecond + ns.count()) : kNever;
  while (*word == seen)
    if (!sleep_on(word, end)) return false;
  return true;
}
void __wrap__ZNSt28__atomic_futex_unsigned_base19_M_futex_notify_allEPj(unsigned* word) {
  (void)wake_all(word, SIZE_MAX);
}

int __wrap_pthread_setname_np(pthread_t thread, const char* name) {
  if (!simulated()) return __real_pthread_setname_np(thread, name);
  world->running()->name = std::to_string(self().rank) + "." + name;
  return 0;
}
int __wrap_pthread_sigmask(int how, const sigset_t* set, sigset_t* before) {
  return simulated() ? 0 : __real_pthread_sigmask(how, set, before);
}

void __wrap__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(
    std::thread* thread, std::unique_ptr<std::thread::_State>* state, void (*depend)()) {
  if (!simulated())
    return __real__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(
        thread, state, depend);
  const std::shared_ptr<std::thread::_State> body(state->release());
  Fiber& f = world->spawn(self(), "thread", [body] { body->_M_run(); });
  const auto number = static_cast<pthread_t>(threads().size() + 1);
  threads()[number] = &f;
  *reinterpret_cast<pthread_t*>(thread) = number;  // a pthread_t holds only the number
}
void __wrap__ZNSt6thread4joinEv(std::thread* thread) {
  if (!simulated()) return __real__ZNSt6thread4joinEv(thread);
  Fiber& f = *threads().at(thread->native_handle());
  while (!f.over) {
    f.joining.push_back(world->running());
    (void)world->wait(kNever);
  }
  *reinterpret_cast<pthread_t*>(thread) = 0;
}
void __wrap__ZNSt6thread6detachEv(std::thread* thread) {
  if (!simulated()) return __real__ZNSt6thread6detachEv(thread);
  *reinterpret_cast<pthread_t*>(thread) = 0;
}

}  // extern "C"
