// Virtual time, events and fibers. See world.h.
#include "tests/simulate/engine/world.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "tests/simulate/engine/thread_locals.h"

namespace simulate {
namespace {

constexpr Nanos kShort = 3 * kMilli;             // longest sleep that counts as polling, not as a real delay
constexpr Nanos kLongest = 40 * kMilli;          // maximum to which such a sleep is stretched
constexpr int kMostDoublings = 7, kStirred = 4;  // maximum number of doublings of such a sleep, and the
                                                 // maximum after something has happened

}  // namespace

World::World(std::uint64_t seed) : random_(seed) {}
World::~World() = default;

void World::at(Nanos when, std::function<void()> f) {
  queue_.push({std::max(when, now_), order_++, std::move(f)});
}

Fiber& World::spawn(Process& p, std::string name, std::function<void()> body) {
  Fiber& f = *fibers_.emplace_back(std::make_unique<Fiber>());
  f.process = &p;
  f.name = std::move(name);
  f.body = std::move(body);
  f.thread_locals = fresh_thread_locals();
  f.context.start(&World::enter);
  wake(f);
  return f;
}

/// Entry point of each fiber; never returns.
void World::enter() {
  Fiber& f = *world->running_;
  f.body();
  f.body = nullptr;
  f.over = true;
  for (Fiber* const other : std::exchange(f.joining, {})) world->wake(*other);
  for (;;) world->back_to_world();
}

void World::load(Fiber& f) {
  if (loaded_ == &f) return;
  const auto here = thread_locals();
  void** const words = exception_words();
  if (loaded_) {
    std::copy(here.begin(), here.end(), loaded_->thread_locals.begin());
    std::copy_n(words, 2, loaded_->exceptions);
  }
  std::copy(f.thread_locals.begin(), f.thread_locals.end(), here.begin());
  std::copy_n(f.exceptions, 2, words);
  loaded_ = &f;
}

void World::resume(Fiber& f, std::uint64_t wait) {
  if (f.over || f.process->dead || f.waits != wait) return;
  if (f.process->stops > 0) {
    held_.emplace_back(&f, wait);
    return;
  }
  load(f);
  ++f.waits;
  running_ = &f;
  own_.switch_to(f.context);
  running_ = nullptr;
}

void World::back_to_world() { running_->context.switch_to(own_); }

bool World::wait(Nanos until) {
  Fiber& f = *running_;
  f.woken = false;
  if (until != kNever) at(until, [this, &f, mine = f.waits] { resume(f, mine); });
  back_to_world();
  return f.woken;
}

void World::wake(Fiber& f) {
  f.woken = true;
  f.process->calm = std::min(f.process->calm, kStirred);
  at(now_ + random_.between(0, most_latency), [this, &f, mine = f.waits] { resume(f, mine); });
}

void World::step() {
  if (!running_ || running_->undivided > 0 || !random_.chance(preempted)) return;
  // Keeps a wake-up that is meant for a later wait.
  const bool woken = running_->woken;
  pass(random_.spread(kMicro, 10 * most_latency));
  running_->woken = woken;
}

Nanos World::stretched(Nanos sleep) {
  if (sleep > kShort) return sleep;
  Process& p = *running_->process;
  const Nanos longer = std::min(sleep << p.calm, std::max(sleep, kLongest));
  if (p.calm < kMostDoublings && random_.chance(0.5)) ++p.calm;
  return longer;
}

std::size_t World::alive(const Process& p) const {
  return static_cast<std::size_t>(std::count_if(fibers_.begin(), fibers_.end(),
                                                [&](const auto& f) { return f->process == &p && !f->over; }));
}

void World::stop(Process& p) { ++p.stops; }

void World::go_on(Process& p) {
  if (--p.stops > 0) return;
  std::vector<std::pair<Fiber*, std::uint64_t>> others;
  for (const auto& [fiber, wait] : std::exchange(held_, {})) {
    if (fiber->process != &p) {
      others.emplace_back(fiber, wait);
      continue;
    }
    at(now_ + random_.between(0, most_latency), [this, f = fiber, w = wait] { resume(*f, w); });
  }
  for (const auto& h : others) held_.push_back(h);
}

void World::run(Nanos until, const std::function<bool()>& done) {
  while (!queue_.empty() && !done()) {
    // top() returns a constant reference, but the event is removed right away.
    Event e = std::move(const_cast<Event&>(queue_.top()));
    queue_.pop();
    if (e.when > until) return;
    now_ = std::max(now_, e.when);
    ++events_;
    e.f();
  }
}

void World::note(std::string_view what, std::int64_t a, std::int64_t b, std::int64_t c) {
  const auto mix = [this](std::uint64_t x) { digest_ = (digest_ ^ x) * 0x100000001b3 ^ digest_ >> 29; };
  for (const char ch : what) mix(static_cast<unsigned char>(ch));
  for (const std::int64_t x : {now_, a, b, c}) mix(static_cast<std::uint64_t>(x));
  if (!tracing) return;
  const Fiber* const f = running_;
  std::fprintf(stderr, "%13.6f %-14s %.*s %lld %lld %lld\n", static_cast<double>(now_) / kSecond,
               f ? f->name.c_str() : "", static_cast<int>(what.size()), what.data(),
               static_cast<long long>(a), static_cast<long long>(b), static_cast<long long>(c));
}

}  // namespace simulate
