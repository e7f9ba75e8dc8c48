// Atomic operations, plain accesses and futexes of fibers. See machine.h.
#include <cerrno>
#include <cstring>

#include "tests/explore/engine/operations.h"

namespace explore {
namespace {
// Consecutive loads without anything new, after which the fiber waits for a change.
constexpr int kIdle = 400;
constexpr int kQueue = kLocations, kSc = 2 * kLocations + kFibers;

/// The low half of a word: the kernel compares only that.
std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
}  // namespace

Operations* Operations::running = nullptr;

Operations& Operations::the() {
  static auto* const operations = new Operations(Machine::the(), Machine::the().memory_);
  return *operations;
}

Footprint Operations::touch(int location, bool changes, Order o) {
  Footprint f;
  // A sequentially consistent load bounds what later loads of the same location may read, so it does not
  // commute with them.
  f.add(location, changes || o == Order::seq_cst);
  if (o == Order::seq_cst) f.add(kSc, false);
  return f;
}

const Fault* Operations::fault_at(int location, Fault::At at, const void* site) const {
  if (!m_.fault_ || m_.fault_->at != at) return nullptr;
  if (m_.fault_->site && m_.fault_->site != site) return nullptr;
  return location < 0 || std::strcmp(m_.fault_->label, memory_.at(location).label) == 0 ? m_.fault_ : nullptr;
}

void Operations::saw(int location, Fault::At at, Order o, const void* site) {
  if (!survey) return;
  const char* const label = location < 0 ? "" : memory_.at(location).label;
  for (const Site& s : *survey)
    if (s.at == site && s.kind == at && s.label == label) return;
  const heap::Outside outside;
  survey->push_back({site, label, at, o});
}

void Operations::trace(int location, const char* what, Order o, std::uint64_t value, const void* site,
                       bool old) {
  if (!m_.tracing_) return;
  const std::string where = location < 0
                                ? std::string()
                                : memory_.name(reinterpret_cast<const void*>(memory_.at(location).address));
  m_.note(what, o, where, value, site, old);
}

void Operations::check(int location, bool writes, const void* site) {
  std::string race;
  if (memory_.atomic(m_.me().knows, location, writes, &race)) return;
  trace(location, "races", Order::relaxed, 0, site);
  m_.fail(std::move(race));
}

void Operations::note_read(Machine::Fiber& f, int location, int store) {
  auto& last = f.last_read[location];
  const bool known = last == store || (last < 0 && memory_.store(store).fiber < 0);
  last = static_cast<std::int16_t>(store);
  if (!known) m_.news(f);
}

std::uint64_t Operations::perform_read(int location, Order o, int which) {
  const std::uint64_t value = memory_.read(m_.me().knows, location, which, o);
  note_read(m_.me(), location, which);
  return value;
}

std::uint64_t Operations::load(void* p, int size, Order o, const void* site) {
  Machine::Fiber& f = m_.me();
  int m = memory_.find(p, size);
  // A load that is repeated while nothing new has been seen returns the same value and is not a step. A fiber
  // sees later changes when it yields.
  for (Machine::Seen& s : f.seen)
    if (s.location == m && (s.site == site || m_.rules_.brief)) {
      s.looked = f.mark;
      const std::uint64_t value = memory_.store(s.store).value;
      if (++f.idle == kIdle / 2) ++f.mark;
      if (f.idle > kIdle) {
        m_.forget_older();
        m_.await(true);
      }
      return value;
    }
  saw(m, Fault::At::load, o, site);
  const Fault* const fault = fault_at(m, Fault::At::load, site);
  if (fault && fault->what == Fault::What::relax) o = Order::relaxed;
  Footprint touched = touch(m, false, o);
  m_.step(touched);
  m = memory_.find(p, size);
  std::uint16_t stores[Location::kStores];
  const int n = memory_.readable(f.knows, m, o, false, stores);
  const int which = stores[m_.search_->pick(n)];
  check(m, false, site);
  std::uint64_t value = perform_read(m, o, which);
  f.seen.push_back({site, m, which, f.mark});
  if (fault && fault->what == Fault::What::add) value += static_cast<std::uint64_t>(fault->by);
  trace(m, "loads", o, value, site, which != memory_.newest(m));
  return value;
}

void Operations::store(void* p, int size, std::uint64_t value, Order o, const void* site) {
  Machine::Fiber& f = m_.me();
  int m = memory_.find(p, size);
  saw(m, Fault::At::store, o, site);
  const Fault* const fault = fault_at(m, Fault::At::store, site);
  if (fault && fault->what == Fault::What::drop) return;
  if (fault && fault->what == Fault::What::relax) o = Order::relaxed;
  if (fault && fault->what == Fault::What::add) value += static_cast<std::uint64_t>(fault->by);
  Footprint touched = touch(m, true, o);
  m_.step(touched);
  m = memory_.find(p, size);
  std::uint16_t places[Location::kStores];
  const int n = memory_.places(f.knows, m, o, places);
  const int place = places[m_.search_->pick(n)];
  check(m, true, site);
  f.last_read[m] = static_cast<std::int16_t>(memory_.write(f.knows, m, place, value, o));
  m_.news(f);
  trace(m, "stores", o, value, site, place != memory_.at(m).count - 2);
}

std::uint64_t Operations::change(void* p, int size, std::uint64_t (*change)(std::uint64_t, std::uint64_t),
                                 std::uint64_t by, Order o, const void* site) {
  Machine::Fiber& f = m_.me();
  int m = memory_.find(p, size);
  saw(m, Fault::At::change, o, site);
  const Fault* const fault = fault_at(m, Fault::At::change, site);
  if (fault && fault->what == Fault::What::relax) o = Order::relaxed;
  if (fault && fault->what == Fault::What::tear) {
    f.seen.clear();
    const std::uint64_t old = load(p, size, o, nullptr);
    store(p, size, change(old, by), o, site);
    return old;
  }
  Footprint touched = touch(m, true, o);
  m_.step(touched);
  m = memory_.find(p, size);
  std::uint16_t stores[Location::kStores];
  const int n = memory_.readable(f.knows, m, o, true, stores);
  const int which = stores[m_.search_->pick(n)];
  check(m, true, site);
  const std::uint64_t old = perform_read(m, o, which);
  const Location& x = memory_.at(m);
  int place = x.count - 1;
  while (x.order[place] != which) --place;
  if (!(fault && fault->what == Fault::What::drop))
    f.last_read[m] = static_cast<std::int16_t>(memory_.write(f.knows, m, place, change(old, by), o, which));
  m_.news(f);
  trace(m, "changes to", o, change(old, by), site);
  return old;
}

bool Operations::exchange_if(void* p, int size, std::uint64_t* expected, std::uint64_t desired, Order o,
                             Order otherwise, const void* site) {
  Machine::Fiber& f = m_.me();
  int m = memory_.find(p, size);
  saw(m, Fault::At::change, o, site);
  const Fault* const fault = fault_at(m, Fault::At::change, site);
  if (fault && fault->what == Fault::What::relax) o = otherwise = Order::relaxed;
  if (fault && fault->what == Fault::What::tear) {
    f.seen.clear();
    const std::uint64_t old = load(p, size, o, nullptr), wanted = *expected;
    *expected = old;
    if (old == wanted) store(p, size, desired, o, site);
    return old == wanted;
  }
  Footprint touched = touch(m, true, o);
  m_.step(touched);
  m = memory_.find(p, size);
  std::uint16_t stores[Location::kStores];
  int n = memory_.readable(f.knows, m, o, false, stores), kept = 0;
  for (int i = 0; i < n; ++i)
    if (!(memory_.store(stores[i]).followed && memory_.store(stores[i]).value == *expected))
      stores[kept++] = stores[i];
  const int which = stores[m_.search_->pick(kept)];
  const bool same = memory_.store(which).value == *expected;
  check(m, same, site);
  const std::uint64_t old = perform_read(m, same ? o : otherwise, which);
  if (!same) {
    *expected = old;
    trace(m, "does not exchange", otherwise, old, site, which != memory_.newest(m));
    return false;
  }
  const Location& x = memory_.at(m);
  int place = x.count - 1;
  while (x.order[place] != which) --place;
  f.last_read[m] = static_cast<std::int16_t>(memory_.write(f.knows, m, place, desired, o, which));
  m_.news(f);
  trace(m, "exchanges for", o, desired, site);
  return true;
}

void Operations::fence(Order o, const void* site) {
  saw(-1, Fault::At::fence, o, site);
  if (const Fault* const fault = fault_at(-1, Fault::At::fence, site); fault) return;
  if (o == Order::seq_cst) {
    Footprint all;
    all.add(kSc, true);
    m_.step(all);
  }
  memory_.fence(m_.me().knows, o);
  m_.news(m_.me());
  trace(-1, "fences", o, 0, site);
}

/// The lock's state is its first word: 0 means free.
void Operations::lock(void* mutex, const void* site) {
  for (std::uint64_t free = 0; !exchange_if(mutex, 4, &free, 1, Order::acquire, Order::relaxed, site);
       free = 0) {
    const int m = memory_.find(mutex, 4);
    m_.me().seen.clear();
    m_.me().seen.push_back({site, m, m_.me().last_read[m], m_.me().mark});
    m_.await(true);
  }
}
void Operations::unlock(void* mutex, const void* site) { store(mutex, 4, 0, Order::release, site); }

void Operations::plain(const void* p, std::size_t bytes, bool writes, const void* site) {
  std::string race;
  if (bytes == 0 || memory_.plain(m_.me().knows, p, bytes, writes, &race)) return;
  m_.note(writes ? "writes" : "reads", Order::relaxed, memory_.name(p), 0, site, false);
  m_.fail(std::move(race));
}

int Operations::futex_wait(void* p, std::uint32_t expected, bool timed, const void* site) {
  Machine::Fiber& f = m_.me();
  int m = memory_.find(p, 8);
  saw(m, Fault::At::wait, Order::relaxed, site);
  const Fault* const fault = fault_at(m, Fault::At::wait, site);
  Footprint touched;
  touched.add(m, false);
  touched.add(kQueue + m, true);
  m_.step(touched);
  m = memory_.find(p, 8);
  const bool same = low(memory_.store(memory_.newest(m)).value) == expected;
  // The kernel has read the word on behalf of this fiber, which therefore reads no older values afterwards.
  memory_.catch_up(f.knows, m);
  m_.news(f);
  const bool spurious = same && m_.spurious_ < m_.rules_.spurious && m_.search_->pick(2) == 1;
  if (spurious) ++m_.spurious_;
  if ((!same && !fault) || spurious) {
    trace(m, spurious ? "wakes without cause on" : "does not sleep on", Order::relaxed, expected, site);
    errno = same ? EINTR : EAGAIN;
    return -1;
  }
  trace(m, "sleeps on", Order::relaxed, expected, site);
  f.state = Machine::State::asleep;
  f.on = m;
  f.expected = expected;
  f.timed = timed;
  f.timed_out = false;
  f.next.count = 0;
  m_.dispatch();
  if (++m_.steps_ > static_cast<std::uint64_t>(m_.rules_.steps)) m_.fail("it does not end");
  m_.search_->account(m_.current_, f.next);
  memory_.catch_up(f.knows, m);
  m_.news(f);
  trace(m, f.timed_out ? "has slept its time on" : "is woken on", Order::relaxed, expected, site);
  errno = ETIMEDOUT;
  return f.timed_out ? -1 : 0;
}

int Operations::futex_wake(void* p, const void* site) {
  int m = memory_.find(p, 8);
  saw(m, Fault::At::wake, Order::relaxed, site);
  if (fault_at(m, Fault::At::wake, site)) return 0;
  Footprint touched;
  touched.add(kQueue + m, true);
  m_.step(touched);
  int woken = 0;
  for (int i = 0; i < m_.count_; ++i) {
    Machine::Fiber& x = m_.fibers_[i];
    if (x.state != Machine::State::asleep || x.on != m) continue;
    x.state = Machine::State::ready;
    m_.search_->order(m_.current_, i);
    ++woken;
  }
  m_.news(m_.me());
  trace(m, "wakes sleepers of", Order::relaxed, static_cast<std::uint64_t>(woken), site);
  return woken;
}

}  // namespace explore
