// The PTX memory model. See memory.h and docs/design/ptx.md.
#include "tests/ptx/memory.h"

#include <algorithm>
#include <cstring>

namespace ptx {
namespace {

std::uint64_t read_bytes(std::uint64_t address, int bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, reinterpret_cast<const void*>(address), static_cast<std::size_t>(bytes));
  return value;
}
bool mutual(const Place& a, Scope of_a, const Place& b, Scope of_b) {
  return includes(of_a, a, b) && includes(of_b, b, a);
}
std::uint64_t apply(Atomic op, std::uint64_t old, std::uint64_t by, std::uint64_t desired) {
  switch (op) {
    case Atomic::add:
      return old + by;
    case Atomic::exch:
      return by;
    case Atomic::cas:
      return old == by ? desired : old;
    case Atomic::bit_or:
      return old | by;
    case Atomic::bit_and:
      return old & by;
    case Atomic::bit_xor:
      return old ^ by;
    case Atomic::min:
      return std::min(old, by);
    case Atomic::max:
      return std::max(old, by);
  }
  return old;
}

}  // namespace

Memory::Memory(Chooser& chooser, int threads)
    : chooser_(chooser), nothing_(std::make_shared<std::vector<Tick>>(static_cast<std::size_t>(threads))) {
  sc_system_ = nothing_;
}

void Memory::add(void* at, std::size_t bytes, Space space, std::string name) {
  const auto begin = reinterpret_cast<std::uint64_t>(at);
  regions_.push_back(std::make_unique<Region>(Region{begin, begin + bytes, space, std::move(name), nullptr}));
  if (space == Space::global || space == Space::shared)
    regions_.back()->cells = std::make_unique<Cell[]>(bytes);
}
void Memory::remove(void* at) {
  std::erase_if(regions_, [&](const auto& r) { return r->begin == reinterpret_cast<std::uint64_t>(at); });
  last_ = nullptr;
}

Memory::Region& Memory::region(std::uint64_t address, const Access& a) {
  if (address % a.bytes != 0) throw Violation("an address that is not aligned to " + std::to_string(a.bytes));
  const auto holds = [&](const Region& r) { return address >= r.begin && address + a.bytes <= r.end; };
  if (last_ == nullptr || !holds(*last_)) {
    const auto found =
        std::find_if(regions_.begin(), regions_.end(), [&](const auto& r) { return holds(*r); });
    if (found == regions_.end()) throw Violation("an access outside all memory");
    last_ = found->get();
  }
  if (a.space != Space::generic && a.space != last_->space)
    throw Violation("an access to " + last_->name + " by the wrong state space");
  return *last_;
}

void Memory::race(const Observer& o, const Region& r, std::uint64_t address, const char* what,
                  const char* with, int thread) const {
  throw Violation("race: " + std::string(what) + " by thread " + std::to_string(o.place.id) + " and " + with +
                  " by thread " + std::to_string(thread) + " at byte " + std::to_string(address - r.begin) +
                  " of " + r.name);
}

void Memory::weak_read(Observer& o, Region& r, std::uint64_t address, const Access& a) {
  Cell* const c = cells(r, address);
  int location = -1;
  for (int i = 0; i < a.bytes; ++i) {
    Cell& cell = c[i];
    if (!o.covers(cell.writer, cell.write)) race(o, r, address + i, "a read", "a write", cell.writer);
    check_aliases(o, r, address + i, a, false);
    if (a.read_only) {
      if (cell.writer >= 0 && (*o.launched)[static_cast<std::size_t>(cell.writer)] < cell.write)
        race(o, r, address + i, "a non-coherent read", "a write of the running grid", cell.writer);
      cell.read_only = o.grid;
    }
    if (cell.location >= 0 && cell.location != location) {
      location = cell.location;
      for (const Seen& w : locations_[static_cast<std::size_t>(location)]->writes)
        if (!before(o, *locations_[static_cast<std::size_t>(location)], w))
          race(o, r, address + i, "a weak read", "a strong write", w.place.id);
    }
    if (cell.reader == -2) {
      auto& all = readers_[cell.read];
      std::erase_if(all, [&](const auto& x) { return o.covers(x.first, x.second); });
      all.emplace_back(o.place.id, o.tick);
    } else if (o.covers(cell.reader, cell.read)) {
      cell.reader = o.place.id, cell.read = o.tick;
    } else {
      readers_.push_back({{cell.reader, cell.read}, {o.place.id, o.tick}});
      cell.reader = -2, cell.read = static_cast<Tick>(readers_.size() - 1);
    }
  }
}

void Memory::weak_write(Observer& o, Region& r, std::uint64_t address, const Access& a) {
  Cell* const c = cells(r, address);
  for (int i = 0; i < a.bytes; ++i) {
    Cell& cell = c[i];
    if (!o.covers(cell.writer, cell.write)) race(o, r, address + i, "a write", "a write", cell.writer);
    if (cell.reader == -2) {
      for (const auto& [thread, tick] : readers_[cell.read])
        if (!o.covers(thread, tick)) race(o, r, address + i, "a write", "a read", thread);
    } else if (!o.covers(cell.reader, cell.read)) {
      race(o, r, address + i, "a write", "a read", cell.reader);
    }
    check_aliases(o, r, address + i, a, true);
    if (cell.read_only != 0 && cell.read_only == o.grid)
      race(o, r, address + i, "a write", "a non-coherent read of the same grid", cell.reader);
    if (cell.location >= 0) forget(o, r, cell.location, true);
    cell.writer = o.place.id, cell.write = o.tick;
    cell.reader = -1;
  }
}

/// All accesses of a location precede this one, or it races with them: afterwards the location is
/// plain bytes.
void Memory::forget(Observer& o, Region& r, int location, bool writes) {
  Location& l = *locations_[static_cast<std::size_t>(location)];
  for (const Seen& w : l.writes)
    if (!before(o, l, w)) race(o, r, l.address, "an access of another kind", "a strong write", w.place.id);
  if (writes)
    for (const Seen& x : l.reads)
      if (!before(o, l, x)) race(o, r, l.address, "a write of another kind", "a strong read", x.place.id);
  Cell* const c = cells(r, l.address);
  for (int i = 0; i < l.bytes; ++i) {
    c[i].location = -1;
    if (!l.writes.empty()) c[i].writer = l.writes.back().place.id, c[i].write = l.writes.back().tick;
  }
}

Memory::Location& Memory::strong_at(Observer& o, Region& r, std::uint64_t address, const Access& a,
                                    bool writes) {
  ++strong;
  Cell* const c = cells(r, address);
  for (int i = 0; i < a.bytes; ++i) {
    Cell& cell = c[i];
    if (!o.covers(cell.writer, cell.write))
      race(o, r, address + i, "a strong access", "a weak write", cell.writer);
    if (writes && cell.reader == -2) {
      for (const auto& [thread, tick] : readers_[cell.read])
        if (!o.covers(thread, tick)) race(o, r, address + i, "a strong write", "a weak read", thread);
    } else if (writes && !o.covers(cell.reader, cell.read)) {
      race(o, r, address + i, "a strong write", "a weak read", cell.reader);
    }
    if (cell.location < 0) continue;
    const Location& l = *locations_[static_cast<std::size_t>(cell.location)];
    if (l.address != address || l.bytes != a.bytes) forget(o, r, cell.location, writes);
  }
  if (c[0].location < 0) {
    auto made = std::make_unique<Location>();
    made->address = address, made->bytes = a.bytes;
    made->stores.push_back({numbers_++, -1, 0, read_bytes(address, a.bytes), {}});
    for (int i = 0; i < a.bytes; ++i) c[i].location = static_cast<int>(locations_.size());
    locations_.push_back(std::move(made));
  }
  Location& l = *locations_[static_cast<std::size_t>(c[0].location)];
  const auto check = [&](const std::vector<Seen>& of, const char* with) {
    for (const Seen& s : of)
      if (!o.covers(s.place.id, s.tick) && !mutual(o.place, a.scope, s.place, s.scope))
        race(o, r, address, "a strong access", with, s.place.id);
  };
  check(l.writes, "a strong write, whose scopes do not include each other,");
  if (writes) check(l.reads, "a strong read, whose scopes do not include each other,");
  return l;
}

int Memory::index_of(const Location& l, int store) {
  for (std::size_t i = 0; i < l.stores.size(); ++i)
    if (l.stores[i].number == store) return static_cast<int>(i);
  return 0;
}
bool Memory::before(const Observer& o, const Location& l, const Seen& x) {
  if (o.covers(x.place.id, x.tick)) return true;
  int at = -1;
  for (const Seen& s : l.reads)
    if (s.place.id == o.place.id) at = std::max(at, index_of(l, s.store));
  for (; at >= 0; --at) {
    const Store& s = l.stores[static_cast<std::size_t>(at)];
    if (s.thread == x.place.id && s.tick == x.tick) return true;
    if (!s.atomic) break;
  }
  return false;
}
/// Index of the oldest store that a thread may still read.
int Memory::oldest(const Observer& o, const Location& l) const {
  int at = static_cast<int>(l.stores.size()) - 1;
  while (at > 0 && !o.covers(l.stores[static_cast<std::size_t>(at)].thread,
                             l.stores[static_cast<std::size_t>(at)].tick))
    --at;
  for (const Seen& s : l.reads)
    if (o.covers(s.place.id, s.tick)) at = std::max(at, index_of(l, s.store));
  return at;
}
void Memory::note(std::vector<Seen>& list, const Observer& o, Scope scope, int store) {
  for (Seen& s : list)
    if (s.place.id == o.place.id && s.scope == scope) {
      s.tick = o.tick, s.store = store;
      return;
    }
  list.push_back({o.place, scope, o.tick, store});
}

void Memory::merge(Clock& into, const Clock& other) const {
  if (other == nullptr || other == into || other == nothing_) return;
  if (into == nullptr) {
    into = other;
    return;
  }
  std::shared_ptr<std::vector<Tick>> merged;
  for (std::size_t i = 0; i < other->size(); ++i)
    if ((*other)[i] > (*into)[i]) {
      if (merged == nullptr) merged = std::make_shared<std::vector<Tick>>(*into);
      (*merged)[i] = (*other)[i];
    }
  if (merged != nullptr) into = merged;
}
void Memory::join(Observer& o, const Clock& other) { merge(o.known, other); }
void Memory::acquire(Observer& o, const Messages& messages, Scope scope) {
  for (const auto& m : messages)
    if (mutual(o.place, scope, m->from, m->scope)) join(o, m->clock), merge(o.aliased, m->aliased);
}
std::shared_ptr<const Message> Memory::message(Observer& o, Scope scope) {
  auto clock = std::make_shared<std::vector<Tick>>(*o.known);
  (*clock)[static_cast<std::size_t>(o.place.id)] = o.tick++;
  return std::make_shared<Message>(Message{clock, o.place, scope, o.aliased});
}

std::uint64_t Memory::load(Observer& o, std::uint64_t address, const Access& a) {
  Region& r = region(address, a);
  if (r.cells == nullptr) return read_bytes(address, a.bytes);
  if (a.order == Order::weak) {
    weak_read(o, r, address, a);
    return read_bytes(address, a.bytes);
  }
  Location& l = strong_at(o, r, address, a, false);
  const int first = oldest(o, l), newest = static_cast<int>(l.stores.size()) - 1;
  int at = newest;
  if (first < newest && chooser_.pick(2) == 0) at = newest - chooser_.pick(newest - first + 1);
  if (at != newest) ++stale;
  const Store& s = l.stores[static_cast<std::size_t>(at)];
  note(l.reads, o, a.scope, s.number);
  if (a.order == Order::acquire) {
    acquire(o, s.messages, a.scope);
  } else if (o.pending.size() < 64) {
    for (const auto& m : s.messages)
      if (std::find(o.pending.begin(), o.pending.end(), m) == o.pending.end()) o.pending.push_back(m);
  }
  return s.value;
}

void Memory::insert(Observer& o, Location& l, int at, std::uint64_t value, const Access& a,
                    const Messages& inherited, bool is_atomic) {
  Store s{numbers_++, o.place.id, o.tick, value, inherited, is_atomic};
  note(l.writes, o, a.scope, s.number);
  if (o.fenced != nullptr) s.messages.push_back(o.fenced);
  std::erase_if(l.released,
                [&](const auto& m) { return m->from.id == o.place.id && a.order >= Order::release; });
  if (a.order == Order::release || a.order == Order::acq_rel) l.released.push_back(message(o, a.scope));
  for (const auto& m : l.released)
    if (m->from.id == o.place.id) s.messages.push_back(m);
  l.stores.insert(l.stores.begin() + at, std::move(s));
  if (l.stores.size() > 24) l.stores.erase(l.stores.begin());
  std::memcpy(reinterpret_cast<void*>(l.address), &l.stores.back().value, static_cast<std::size_t>(l.bytes));
}

void Memory::store(Observer& o, std::uint64_t address, std::uint64_t value, const Access& a) {
  Region& r = region(address, a);
  if (r.space == Space::param) throw Violation("a store to a parameter");
  if (a.order == Order::weak || r.cells == nullptr) {
    if (r.cells != nullptr) weak_write(o, r, address, a);
    std::memcpy(reinterpret_cast<void*>(address), &value, a.bytes);
    return;
  }
  Location& l = strong_at(o, r, address, a, true);
  if (a.bytes < 8) value &= (std::uint64_t{1} << (8 * a.bytes)) - 1;
  insert(o, l, static_cast<int>(l.stores.size()), value, a, {}, false);
}

std::uint64_t Memory::change(Observer& o, std::uint64_t address, const Access& a, Atomic op, std::uint64_t by,
                             std::uint64_t desired) {
  Region& r = region(address, a);
  if (r.cells == nullptr) throw Violation("an atomic operation on " + r.name);
  Location& l = strong_at(o, r, address, a, true);
  const std::uint64_t mask = a.bytes < 8 ? (std::uint64_t{1} << (8 * a.bytes)) - 1 : ~std::uint64_t{0};
  const Store& s = l.stores.back();
  const std::uint64_t old = s.value;
  note(l.reads, o, a.scope, s.number);
  const Messages inherited = s.messages;
  if (a.order == Order::acquire || a.order == Order::acq_rel)
    acquire(o, inherited, a.scope);
  else
    o.pending.insert(o.pending.end(), inherited.begin(), inherited.end());
  if (op != Atomic::cas || old == (by & mask))
    insert(o, l, static_cast<int>(l.stores.size()), apply(op, old, by & mask, desired) & mask, a, inherited,
           true);
  return old;
}

void Memory::fence(Observer& o, Order order, Scope scope) {
  std::erase_if(o.pending, [&](const auto& m) {
    if (!mutual(o.place, scope, m->from, m->scope)) return false;
    join(o, m->clock), merge(o.aliased, m->aliased);
    return true;
  });
  const auto domain = [&](std::vector<std::pair<int, Clock>>& of, int which) -> Clock& {
    for (auto& [key, clock] : of)
      if (key == which) return clock;
    return of.emplace_back(which, nothing_).second;
  };
  if (order == Order::sc) {
    join(o, domain(sc_blocks_, o.place.block));
    if (scope >= Scope::gpu) join(o, domain(sc_devices_, o.place.device));
    if (scope == Scope::sys) join(o, sc_system_);
  }
  o.fenced = message(o, scope);
  if (order != Order::sc) return;
  Observer sum;  // what earlier fences have published, and this one
  const auto add = [&](Clock& to) {
    sum.known = to;
    join(sum, o.fenced->clock);
    to = sum.known;
  };
  add(domain(sc_blocks_, o.place.block));
  if (scope >= Scope::gpu) add(domain(sc_devices_, o.place.device));
  if (scope == Scope::sys) add(sc_system_);
}

void Memory::meet(const std::vector<Observer*>& all) {
  auto merged = std::make_shared<std::vector<Tick>>(*nothing_);
  const std::vector<Tick>* last = nullptr;
  for (Observer* o : all) {
    if (o->known.get() != last)
      for (std::size_t i = 0; i < merged->size(); ++i) (*merged)[i] = std::max((*merged)[i], (*o->known)[i]);
    last = o->known.get();
  }
  for (Observer* o : all) {
    Tick& own = (*merged)[static_cast<std::size_t>(o->place.id)];
    own = std::max(own, o->tick);
  }
  Clock aliased;
  for (const Observer* o : all) merge(aliased, o->aliased);
  for (Observer* o : all) o->known = merged, o->aliased = aliased, ++o->tick;
}

void Memory::follow(Observer& one, const Observer& other) {
  auto clock = std::make_shared<std::vector<Tick>>(*other.known);
  (*clock)[static_cast<std::size_t>(other.place.id)] = other.tick;
  join(one, clock);
  if (other.aliased != nullptr) merge(one.aliased, clock);  // between launches aliases are ordered
}

}  // namespace ptx
