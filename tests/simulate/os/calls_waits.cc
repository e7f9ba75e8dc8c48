// Calls that wait, or return the time or random numbers. See real.h.
#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstring>
#include <map>

#include "tests/simulate/os/real.h"

OURO_REAL(int, poll, pollfd*, nfds_t, int);
OURO_REAL(int, ppoll, pollfd*, nfds_t, const timespec*, const sigset_t*);
OURO_REAL(int, epoll_create1, int);
OURO_REAL(int, epoll_ctl, int, int, int, epoll_event*);
OURO_REAL(int, epoll_wait, int, epoll_event*, int, int);
OURO_REAL(int, nanosleep, const timespec*, timespec*);
OURO_REAL(int, sched_yield);
OURO_REAL(long, syscall, long, ...);
OURO_REAL(ssize_t, getrandom, void*, size_t, unsigned);
OURO_REAL(std::chrono::steady_clock::time_point, _ZNSt6chrono3_V212steady_clock3nowEv);
OURO_REAL(std::chrono::system_clock::time_point, _ZNSt6chrono3_V212system_clock3nowEv);

namespace simulate {
namespace {

constexpr int kLooksAtClock = 400;  // clock reads without a wait, after which another fiber runs

Nanos duration_of(const timespec& t) { return t.tv_sec * kSecond + t.tv_nsec; }

/// The end of a wait of this length, which is in the clock of its process.
Nanos end_of(Nanos wait) { return wait < 0 ? kNever : world->now() + world->stretched(self().global(wait)); }

int poll_for(pollfd* fds, nfds_t count, Nanos wait) {
  world->step();
  const auto look = [&] {
    int ready = 0;
    for (nfds_t i = 0; i < count; ++i) {
      const auto file = fds[i].fd >= Files::kFirst ? files->find(fds[i].fd) : nullptr;
      fds[i].revents = file ? static_cast<short>(file->ready() & (fds[i].events | POLLERR | POLLHUP)) : 0;
      ready += fds[i].revents != 0;
    }
    return ready;
  };
  Fiber* const me = world->running();
  const auto enlist = [&](bool on) {
    for (nfds_t i = 0; i < count; ++i)
      if (const auto file = fds[i].fd >= Files::kFirst ? files->find(fds[i].fd) : nullptr) {
        std::erase(file->sleepers, me);
        if (on) file->sleepers.push_back(me);
      }
  };
  const Nanos end = wait == 0 ? 0 : end_of(wait);
  for (;;) {
    const int ready = look();
    if (ready > 0 || world->now() >= end) return ready;
    enlist(true);
    (void)world->wait(end);
    enlist(false);
  }
}

std::map<const void*, std::vector<Fiber*>>& futexes() {
  static auto* const all = new std::map<const void*, std::vector<Fiber*>>;
  return *all;
}

}  // namespace

bool sleep_on(const void* word, Nanos until) {
  Fiber* const me = world->running();
  futexes()[word].push_back(me);
  const bool woken = world->wait(until);
  if (const auto at = futexes().find(word); at != futexes().end()) {
    std::erase(at->second, me);
    if (at->second.empty()) futexes().erase(at);
  }
  return woken;
}

int wake_all(const void* word, std::size_t most) {
  const auto at = futexes().find(word);
  if (at == futexes().end()) return 0;
  auto& all = at->second;
  const std::size_t n = std::min(all.size(), most);
  for (std::size_t i = 0; i < n; ++i) world->wake(*all[i]);
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n));
  if (all.empty()) futexes().erase(at);
  return static_cast<int>(n);
}

}  // namespace simulate

using namespace simulate;

extern "C" {

int __wrap_poll(pollfd* fds, nfds_t count, int milliseconds) {
  if (!simulated()) return __real_poll(fds, count, milliseconds);
  return poll_for(fds, count, milliseconds < 0 ? -1 : milliseconds * kMilli);
}

int __wrap_ppoll(pollfd* fds, nfds_t count, const timespec* wait, const sigset_t* mask) {
  if (!simulated()) return __real_ppoll(fds, count, wait, mask);
  return poll_for(fds, count, wait ? duration_of(*wait) : -1);
}

int __wrap_epoll_create1(int flags) {
  if (!simulated()) return __real_epoll_create1(flags);
  return files->open(self(), std::make_shared<Epoll>());
}

int __wrap_epoll_ctl(int fd, int operation, int what, epoll_event* event) {
  if (!simulated()) return __real_epoll_ctl(fd, operation, what, event);
  const auto e = files->find_as<Epoll>(fd);
  const auto file = files->find(what);
  if (!e) return told(-EBADF);
  if (!file) return told(what < Files::kFirst ? 0 : -EBADF);  // real ones never become ready
  if (operation == EPOLL_CTL_DEL)
    e->remove(what);
  else
    e->add(what, file, event->events, event->data.u64);
  return 0;
}

int __wrap_epoll_wait(int fd, epoll_event* events, int most, int milliseconds) {
  if (!simulated()) return __real_epoll_wait(fd, events, most, milliseconds);
  world->step();
  const auto e = files->find_as<Epoll>(fd);
  if (!e) return told(-EBADF);
  const Nanos end = milliseconds == 0 ? 0 : end_of(milliseconds < 0 ? -1 : milliseconds * kMilli);
  for (;;) {
    const auto ready = e->take(static_cast<std::size_t>(most));
    for (std::size_t i = 0; i < ready.size(); ++i) {
      events[i].events = ready[i].events;
      events[i].data.u64 = ready[i].data;
    }
    if (!ready.empty() || world->now() >= end) return static_cast<int>(ready.size());
    e->waiting.push_back(world->running());
    (void)world->wait(end);
    std::erase(e->waiting, world->running());
  }
}

int __wrap_nanosleep(const timespec* wait, timespec* left) {
  if (!simulated()) return __real_nanosleep(wait, left);
  world->pass(world->stretched(self().global(duration_of(*wait))));
  return 0;
}

int __wrap_sched_yield() {
  if (!simulated()) return __real_sched_yield();
  world->pass(world->random().between(kMicro, 20 * kMicro));
  return 0;
}

long __wrap_syscall(long number, ...) {
  va_list arguments;
  va_start(arguments, number);
  long a[6];
  for (long& x : a) x = va_arg(arguments, long);
  va_end(arguments);
  if (!simulated()) return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  if (number == SYS_pidfd_open) return told<long>(-ENOSYS);
  if (number != SYS_futex) return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  const auto* const word = reinterpret_cast<const std::uint32_t*>(a[0]);
  if ((a[1] & FUTEX_CMD_MASK) == FUTEX_WAKE) return wake_all(word, static_cast<std::size_t>(a[2]));
  if (*word != static_cast<std::uint32_t>(a[2])) return told<long>(-EAGAIN);
  const auto* const wait = reinterpret_cast<const timespec*>(a[3]);
  return told<long>(sleep_on(word, end_of(wait ? duration_of(*wait) : -1)) ? 0 : -ETIMEDOUT);
}

ssize_t __wrap_getrandom(void* to, size_t bytes, unsigned flags) {
  if (!simulated()) return __real_getrandom(to, bytes, flags);
  auto* const at = static_cast<unsigned char*>(to);
  for (size_t i = 0; i < bytes; ++i) at[i] = static_cast<unsigned char>(world->random().next());
  return static_cast<ssize_t>(bytes);
}

std::chrono::steady_clock::time_point __wrap__ZNSt6chrono3_V212steady_clock3nowEv() {
  if (!simulated()) return __real__ZNSt6chrono3_V212steady_clock3nowEv();
  static int looks = 0;
  if (++looks % kLooksAtClock == 0 && world->running()->undivided == 0)
    world->pass(world->random().between(kMicro, 50 * kMicro));
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(self().local(world->now())));
}

/// The wall clock, wrong by hours or a day: nothing may depend on it.
std::chrono::system_clock::time_point __wrap__ZNSt6chrono3_V212system_clock3nowEv() {
  if (!simulated()) return __real__ZNSt6chrono3_V212system_clock3nowEv();
  const Nanos wrong = (self().clock_offset % 48 - 24) * 3600 * kSecond;
  return std::chrono::system_clock::time_point(
      std::chrono::nanoseconds(1'800'000'000 * kSecond + wrong + world->now()));
}

}  // extern "C"
