// Runs executions: fibers alternate step by step, sleep and wake. See machine.h.
#include "tests/explore/engine/operations.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace explore {
namespace {
// Bytes of the arena; large sparse objects are behind them.
constexpr std::size_t kDense = std::size_t{1} << 20;
constexpr std::int64_t kStart = 1'000'000'000'000, kPassing = 5'000'000;  // ns
FiberSet only(int f) { return FiberSet{1} << f; }
}  // namespace

Machine* Machine::running = nullptr;

Machine& Machine::the() {
  static auto* const machine = new Machine;
  return *machine;
}
Machine::Machine() { events_.reserve(64); }

End Machine::run(Program& program, Search& search, const Fault* fault, bool trace) {
  program_ = &program;
  search_ = &search;
  fault_ = fault;
  rules_ = program.rules();
  tracing_ = trace;
  violation_.clear();
  events_.clear();
  time_ = kStart;
  steps_ = 0;
  quiet_ = spurious_ = missed_ = 0;
  Operations& operations = Operations::the();
  heap::begin();
  most_locations_ = std::max(most_locations_, memory_.locations());
  memory_.begin(used_);
  used_ = 0;
  used_sparse_ = kDense;
  end_ = End::well;
  count_ = program.fibers();
  program.set_up();
  for (int f = 0; f < count_; ++f) {
    Fiber& x = fibers_[f];
    x.knows.clear(f, most_locations_);  // wide enough for all earlier executions, so that no old views remain
    x.seen.clear();
    std::fill_n(x.last_read, kLocations, std::int16_t{-1});
    x.news = 1;
    x.yielded = x.awaited = 0;
    x.idle = x.naps = x.mark = 0;
    x.state = State::ready;
    x.next.count = 0;
    x.timed_out = false;
    x.context.start(enter);
  }
  // Runs each fiber up to its first step; everything before it is private to the fiber.
  starting_ = true;
  running = this;
  Operations::running = &operations;
  for (current_ = 0; current_ < count_ && end_ == End::well; ++current_) main_.switch_to(me().context);
  starting_ = false;
  if (end_ == End::well) {
    current_ = 0;
    current_ = choose();
    if (current_ >= 0) main_.switch_to(me().context);
  }
  running = nullptr;
  Operations::running = nullptr;
  for (int f = 0; f < count_; ++f)
    if (fibers_[f].state != State::ended) search_->pending(f, fibers_[f].next);
  if (end_ == End::well) program.finish();
  if (end_ == End::well && !memory_.is_true()) fail("something has written to the arena unseen");
  heap::end();
  return end_;
}

void Machine::enter() {
  Machine& m = the();
  m.program_->run(m.current_);
  m.me().state = State::ended;
  if (m.starting_)
    m.me().context.switch_to(m.main_);
  else
    m.dispatch();
  std::abort();
}

void Machine::fail(std::string what) {
  {
    const heap::Outside outside;
    if (violation_.empty()) violation_ = std::string(what.data(), what.size());
  }
  if (running) leave(End::violation);
  end_ = End::violation;
}

void Machine::leave(End end) {
  end_ = end;
  Context gone;
  gone.switch_to(main_);
  std::abort();
}

void Machine::step(Footprint& f) {
  if (rules_.mortal & only(current_)) f.add(2 * kLocations + current_, false);
  me().next.assign(f);
  if (starting_)
    me().context.switch_to(main_);
  else
    dispatch();
  if (++steps_ > static_cast<std::uint64_t>(rules_.steps)) fail("it does not end");
  search_->account(current_, me().next);
  me().next.count = 0;
}

FiberSet Machine::enabled() const {
  FiberSet s = 0;
  for (int f = 0; f < count_; ++f) {
    const Fiber& x = fibers_[f];
    if (x.state == State::ready || (x.state == State::awaiting && has_changed(x))) s |= only(f);
  }
  return s;
}

bool Machine::is_old(const Seen& s) const {
  return memory_.store(memory_.newest(s.location)).key > memory_.store(s.store).key;
}
bool Machine::has_changed(const Fiber& f) const {
  return std::any_of(f.seen.begin(), f.seen.end(), [this](const Seen& s) { return is_old(s); });
}

/// Chooses the fiber that makes the next step; -1: all have ended.
int Machine::choose() {
  FiberSet on = enabled();
  while (!on && unblock()) on = enabled();
  if (!on) return -1;
  const Footprint* next[kFibers];
  for (int f = 0; f < count_; ++f) next[f] = &fibers_[f].next;
  const int chosen = search_->schedule(on, current_, next);
  if (chosen < 0) leave(End::redundant);
  fibers_[chosen].state = State::ready;
  return chosen;
}

/// Resumes the fiber whose turn it is; returns when that is the calling fiber.
void Machine::dispatch() {
  const int before = current_, chosen = choose();
  if (chosen < 0) leave(End::well);
  current_ = chosen;
  if (chosen != before) fibers_[before].context.switch_to(fibers_[chosen].context);
}

/// No fiber can move: ends the sleeps of those that sleep with a time-out. False: all have ended.
bool Machine::unblock() {
  bool any = false, timed = false, stuck = false;
  for (int f = 0; f < count_; ++f) {
    const Fiber& x = fibers_[f];
    if (x.state == State::ended) continue;
    any = true;
    timed |= x.state == State::napping || (x.state == State::asleep && x.timed);
    stuck |= x.state == State::awaiting && !x.spins;
  }
  if (!any) return false;
  // A fiber that yields and polls again although nothing has changed ends up sleeping, and that path is tried
  // as well.
  if (stuck && search_->exhaustive()) leave(End::redundant);
  if (stuck) {
    for (int f = 0; f < count_; ++f)
      if (fibers_[f].state == State::awaiting && !fibers_[f].spins) {
        fibers_[f].state = State::ready;
        fibers_[f].timed_out = true;
      }
    return true;
  }
  if (!timed) fail("nobody can move any more");
  if (++quiet_ > rules_.timeouts) fail("it hangs: nobody moves but by the end of sleeps");
  time_ += kPassing;
  for (int f = 0; f < count_; ++f) {
    Fiber& x = fibers_[f];
    if (x.state == State::asleep && x.timed) {
      const auto word = static_cast<std::uint32_t>(memory_.store(memory_.newest(x.on)).value);
      if (word != x.expected) {
        ++missed_;
        if (!rules_.may_miss_wakes) {
          current_ = f;
          fail(std::string("a sleeper was not woken: ") + memory_.at(x.on).label + " has changed");
        }
      }
    } else if (x.state != State::napping) {
      continue;
    }
    x.state = State::ready;
    x.timed_out = true;
    x.next.count = 0;
    memory_.catch_up(x.knows);
    news(x);
  }
  return true;
}

void Machine::news(Fiber& f) {
  f.seen.clear();
  f.idle = 0;
  ++f.news;
}

void Machine::kill(int fiber) {
  Footprint f;
  f.add(2 * kLocations + fiber, true);
  step(f);
  fibers_[fiber].state = State::ended;
  memory_.join(me().knows, fibers_[fiber].knows);
  news(me());
  note("ends", Order::relaxed, "fiber " + std::to_string(fiber), 0, nullptr, false);
}

/// Forgets values that the current loop of this fiber does not poll: they cannot end it.
void Machine::forget_older() {
  Fiber& f = me();
  std::erase_if(f.seen, [&f](const Seen& s) { return s.looked != f.mark; });
}

/// Blocks the fiber until a value that it has read since it last saw something new has changed.
void Machine::await(bool spins) {
  Fiber& f = me();
  if (f.awaited == f.news) leave(End::redundant);  // it resumed, but read the same values again
  Footprint p;
  for (const Seen& s : f.seen) p.add(s.location, false);
  f.state = State::awaiting;
  f.spins = spins;
  f.timed_out = false;
  const std::uint64_t before = f.news;
  step(p);
  if (f.timed_out) return;
  if (!search_->exhaustive()) {  // it must see at least one of the changes; it may see the others late
    int changed = 0;
    for (const Seen& x : f.seen) changed += is_old(x);
    int which = search_->pick(changed);
    for (const Seen& x : f.seen)
      if (is_old(x) && which-- == 0) memory_.catch_up(f.knows, x.location);
  }
  f.seen.clear();
  f.idle = 0;
  f.awaited = before;
}

void Machine::yield() {
  Fiber& f = me();
  if (f.awaited == f.news) leave(End::redundant);
  // Acts on the second yield since something new was seen: between the two, the fiber has polled everything
  // that its loop polls.
  if (f.yielded != f.news) f.yields = 0;
  f.yielded = f.news;
  if (++f.yields == 1) ++f.mark;
  if (f.yields != 2) return;
  forget_older();
  if (f.seen.empty()) return;
  if (!rules_.sleeps || search_->pick(2) == 0) await(!rules_.sleeps);
}

void Machine::nap() {
  Fiber& f = me();
  if (f.naps < rules_.naps && search_->pick(2) == 1) {  // this nap ends immediately
    ++f.naps;
    return news(f);
  }
  f.state = State::napping;
  Footprint nothing;
  step(nothing);
}

void Machine::note(const char* what, Order o, const std::string& where, std::uint64_t value, const void* site,
                   bool old) {
  if (!tracing_) return;
  const heap::Outside outside;
  events_.push_back({current_, what, o, std::string(where.data(), where.size()), value, site, old});
}

void* place(std::size_t bytes, const char* text, bool late, std::size_t alignment) {
  return Machine::the().place(bytes, text, late, alignment);
}
void* place_sparse(std::size_t bytes, const char* text) { return Machine::the().place_sparse(bytes, text); }
InArena::InArena(const char* text) { heap::to_arena(text); }
InArena::~InArena() { heap::to_arena(nullptr); }
void label(const void* p, std::size_t bytes, const char* text, bool late) {
  Machine::the().label(p, bytes, text, late);
}
void kill(int fiber) { Machine::the().kill(fiber); }
void fail(const char* what) { Machine::the().fail(what); }

void* Machine::place(std::size_t bytes, const char* text, bool late, std::size_t alignment) {
  used_ = (used_ + alignment - 1) / alignment * alignment;
  if (used_ + bytes > kDense) std::abort();
  void* const p = memory_.arena() + used_;
  used_ += bytes;
  memory_.label(p, bytes, text, late);
  return p;
}

void* Machine::place_sparse(std::size_t bytes, const char* text) {
  if (used_sparse_ + bytes > Memory::kBytes) std::abort();
  void* const p = memory_.arena() + used_sparse_;
  used_sparse_ += (bytes + 4095) / 4096 * 4096;
  memory_.label(p, bytes, text, true);
  return p;
}

void Machine::label(const void* p, std::size_t bytes, const char* text, bool late) {
  memory_.label(p, bytes, text, late);
}

}  // namespace explore
