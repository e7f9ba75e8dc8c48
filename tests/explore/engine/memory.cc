// Histories of locations: which stores may be read, where new stores may be placed, what happens before what.
// See memory.h.
#include "tests/explore/engine/memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace explore {
namespace {

constexpr Key kGap = 1 << 16;  // distance of neighbouring keys, which leaves room for stores in between

template <class T>
T* map(std::size_t bytes) {
  void* const p =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) std::abort();
  return static_cast<T*>(p);
}

/// The mask of a word of `size` bytes.
std::uint64_t mask(int size) { return ~std::uint64_t{0} >> (64 - 8 * size); }

template <class T>
std::uint64_t peek_as(std::uintptr_t p) {
  return *reinterpret_cast<const T*>(p);
}
std::uint64_t peek(std::uintptr_t p, int size) {
  return size == 8   ? peek_as<std::uint64_t>(p)
         : size == 4 ? peek_as<std::uint32_t>(p)
         : size == 2 ? peek_as<std::uint16_t>(p)
                     : peek_as<std::uint8_t>(p);
}
template <class T>
void poke_as(std::uintptr_t p, std::uint64_t value) {
  *reinterpret_cast<T*>(p) = static_cast<T>(value);
}
void poke(std::uintptr_t p, int size, std::uint64_t value) {
  size == 8   ? poke_as<std::uint64_t>(p, value)
  : size == 4 ? poke_as<std::uint32_t>(p, value)
  : size == 2 ? poke_as<std::uint16_t>(p, value)
              : poke_as<std::uint8_t>(p, value);
}

}  // namespace

Memory::Memory()
    : arena_(map<std::byte>(kBytes)),
      cells_(map<Cell>(kBytes / kGranule * sizeof(Cell))),
      locations_(kLocations) {
  stores_.reserve(4096);
  views_.reserve(1 << 16);
  touched_.reserve(4096);
}

void Memory::begin(std::size_t used) {
  std::memset(arena_, 0, used);
  for (const std::uint32_t i : touched_) {
    std::memset(&cells_[i], 0, sizeof(Cell));
    poke_as<std::uint32_t>(reinterpret_cast<std::uintptr_t>(arena_) + i * kGranule, 0);
  }
  touched_.clear();
  stores_.clear();
  views_.clear();
  labels_.clear();
  used_ = 0;
}

void Memory::label(const void* p, std::size_t bytes, const char* text, bool late) {
  labels_.push_back({static_cast<const std::byte*>(p), bytes, text, late});
}

const Memory::Label* Memory::find_label(const void* p) const {
  const auto* const at = static_cast<const std::byte*>(p);
  for (std::size_t i = labels_.size(); i-- > 0;)
    if (const Label& l = labels_[i]; at >= l.at && at < l.at + l.bytes) return &l;
  return nullptr;
}

std::string Memory::name(const void* p) const {
  const Label* const l = find_label(p);
  const auto offset = static_cast<const std::byte*>(p) - (l ? l->at : arena_);
  return std::string(l ? l->text : "arena") + (offset ? "+" + std::to_string(offset) : "");
}

Memory::Cell& Memory::cell(std::size_t i) {
  Cell& c = cells_[i];
  if (!c.touched) {
    c.touched = true;
    std::fill_n(c.location, kGranule, std::int16_t{-1});
    touched_.push_back(static_cast<std::uint32_t>(i));
  }
  return c;
}

int Memory::find(const void* p, int size) {
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(p) - arena_);
  std::int16_t& known = cell(offset / kGranule).location[offset % kGranule];
  if (known < 0) {
    if (used_ == kLocations) {
      std::fprintf(stderr, "explore: more than %d atomic words\n", kLocations);
      std::abort();
    }
    const Label* const l = find_label(p);
    const int location = used_++;
    Location& m = locations_[static_cast<std::size_t>(location)];
    m.address = reinterpret_cast<std::uintptr_t>(p);
    m.size = size;
    m.label = l ? l->text : "arena";
    m.late = !l || l->late;
    m.written = false;
    m.sc = 0;
    m.count = 0;
    known = static_cast<std::int16_t>(location);
    if (size > 4) cell(offset / kGranule + 1).location[0] = known;
    append(location, -1, peek(m.address, size), -1);
  }
  if (locations_[static_cast<std::size_t>(known)].written) absorb(known);
  return known;
}

/// Adds a plain store to an atomic word to the history. Every later access knows it; otherwise it was a race.
void Memory::absorb(int location) {
  Location& m = at(location);
  m.written = false;
  m.order[0] = static_cast<std::uint16_t>(append(location, m.count - 1, peek(m.address, m.size), -1));
  m.count = 1;
}

int Memory::append(int location, int place, std::uint64_t value, int fiber) {
  Location& m = at(location);
  value &= mask(m.size);
  if (m.count == Location::kStores) {
    std::fprintf(stderr, "explore: more than %d stores to %s\n", Location::kStores, m.label);
    std::abort();
  }
  const Key before = place < 0 ? 0 : store(m.order[place]).key;
  const bool last = place == m.count - 1;
  const Key key = last ? before + kGap : before + (store(m.order[place + 1]).key - before) / 2;
  std::memmove(m.order + place + 2, m.order + place + 1,
               static_cast<std::size_t>(m.count - place - 1) * sizeof *m.order);
  const auto s = static_cast<std::uint16_t>(stores_.size());
  m.order[place + 1] = s;
  ++m.count;
  stores_.push_back({.value = value, .key = key, .fiber = static_cast<std::int8_t>(fiber)});
  if (last && fiber >= 0) poke(m.address, m.size, value);
  return s;
}

int Memory::readable(const Knowledge& k, int location, Order o, bool change, std::uint16_t* stores) const {
  const Location& m = at(location);
  Key floor = k.view.at[location];
  if (o == Order::seq_cst) floor = std::max(floor, m.sc);
  int n = 0;
  for (int i = m.count - 1; i >= 0; --i) {
    const Store& s = stores_[m.order[i]];
    if (s.key < floor) break;
    if (!(change && s.followed)) stores[n++] = m.order[i];
    if (!m.late && n > 0) break;
  }
  return n;
}

int Memory::places(const Knowledge& k, int location, Order o, std::uint16_t* places) const {
  const Location& m = at(location);
  Key floor = k.view.at[location];
  if (o == Order::seq_cst) floor = std::max(floor, m.sc);
  int n = 0;
  for (int i = m.count - 1; i >= 0; --i) {
    const Store& s = stores_[m.order[i]];
    if (s.key < floor) break;
    const bool room = i == m.count - 1 || stores_[m.order[i + 1]].key - s.key > 1;
    if (!s.followed && room) places[n++] = static_cast<std::uint16_t>(i);
    if (!m.late) break;
  }
  return n;
}

std::uint64_t Memory::read(Knowledge& k, int location, int which, Order o) {
  const Store& s = store(which);
  k.view.at[location] = std::max(k.view.at[location], s.key);
  if (o == Order::seq_cst) at(location).sc = std::max(at(location).sc, s.key);
  if (!s.speaks) return s.value;
  if (acquires(o)) {
    k.clock.join(s.clock);
    k.view.join(&views_[s.view], static_cast<int>(s.locations));
  } else {
    k.unacquired.join(s.clock);
    k.unacquired_view.join(&views_[s.view], static_cast<int>(s.locations));
    k.has_unacquired = true;
  }
  return s.value;
}

std::uint32_t Memory::keep(const View& v) {
  const auto at = static_cast<std::uint32_t>(views_.size());
  views_.insert(views_.end(), v.at, v.at + used_);
  return at;
}

int Memory::write(Knowledge& k, int location, int place, std::uint64_t value, Order o, int source) {
  const int which = append(location, place, value, k.fiber);
  Store& s = store(which);
  k.view.at[location] = std::max(k.view.at[location], s.key);
  if (o == Order::seq_cst) at(location).sc = std::max(at(location).sc, s.key);
  const VectorClock* clock = nullptr;
  View view;
  if (releases(o) || k.has_released) {
    clock = releases(o) ? &k.clock : &k.released;
    std::copy_n((releases(o) ? k.view : k.released_view).at, used_, view.at);
    view.at[location] = std::max(view.at[location], s.key);
  }
  if (clock) s.clock = *clock;
  s.speaks = clock != nullptr;
  if (source >= 0) {  // a read-modify-write continues a release sequence
    Store& from = store(source);
    from.followed = true;
    if (from.speaks) {
      s.clock.join(from.clock);
      view.join(&views_[from.view], static_cast<int>(from.locations));
      s.speaks = true;
    }
  }
  if (s.speaks) {
    s.locations = static_cast<std::uint32_t>(used_);
    s.view = keep(view);
  }
  if (releases(o)) ++k.clock.at[k.fiber];
  return which;
}

void Memory::fence(Knowledge& k, Order o) {
  if (acquires(o) && k.has_unacquired) {
    k.clock.join(k.unacquired);
    k.view.join(k.unacquired_view, used_);
  }
  if (o == Order::seq_cst)
    for (int i = 0; i < used_; ++i) at(i).sc = k.view.at[i] = std::max(k.view.at[i], at(i).sc);
  if (releases(o)) {
    k.released = k.clock;
    std::copy_n(k.view.at, used_, k.released_view.at);
    k.has_released = true;
    ++k.clock.at[k.fiber];
  }
}

void Memory::join(Knowledge& k, const Knowledge& other) {
  k.clock.join(other.clock);
  k.view.join(other.view, used_);
}

void Memory::catch_up(Knowledge& k, int location) { k.view.at[location] = store(newest(location)).key; }
void Memory::catch_up(Knowledge& k) {
  for (int i = 0; i < used_; ++i) catch_up(k, i);
}

bool Memory::is_true() const {
  for (int i = 0; i < used_; ++i) {
    const Location& m = at(i);
    if (!m.written && peek(m.address, m.size) != stores_[m.order[m.count - 1]].value) return false;
  }
  return true;
}

bool Memory::races(const Knowledge& k, const Tick* of, int* with) {
  for (int f = 0; f < kFibers; ++f)
    if (of[f] > k.clock.at[f] && f != k.fiber) {
      *with = f;
      return true;
    }
  return false;
}

bool Memory::plain(Knowledge& k, const void* p, std::size_t bytes, bool writes, std::string* race) {
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(p) - arena_);
  for (std::size_t i = offset / kGranule; i <= (offset + bytes - 1) / kGranule; ++i) {
    Cell& c = cell(i);
    int with = -1;
    if (races(k, c.write, &with) || races(k, c.atomic_write, &with) ||
        (writes && (races(k, c.read, &with) || races(k, c.atomic_read, &with)))) {
      *race = "plain " + std::string(writes ? "write" : "read") + " of " + name(arena_ + i * kGranule) +
              " races with fiber " + std::to_string(with);
      return false;
    }
    (writes ? c.write : c.read)[k.fiber] = k.clock.at[k.fiber];
    if (writes)
      for (const std::int16_t l : c.location)
        if (l >= 0) at(l).written = true;
  }
  return true;
}

bool Memory::atomic(Knowledge& k, int location, bool writes, std::string* race) {
  const Location& m = at(location);
  const auto first = (m.address - reinterpret_cast<std::uintptr_t>(arena_)) / kGranule;
  for (std::size_t i = first; i < first + (m.size > 4 ? 2 : 1); ++i) {
    Cell& c = cells_[i];
    int with = -1;
    if (races(k, c.write, &with) || (writes && races(k, c.read, &with))) {
      *race = "atomic " + std::string(writes ? "write" : "read") + " of " + name(arena_ + i * kGranule) +
              " races with a plain access of fiber " + std::to_string(with);
      return false;
    }
    (writes ? c.atomic_write : c.atomic_read)[k.fiber] = k.clock.at[k.fiber];
  }
  return true;
}

}  // namespace explore
