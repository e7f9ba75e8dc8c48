// The memory of explored programs, as C++20 defines it: a modification order for each location, stores that
// become visible late, and plain accesses that race. Used by the machine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/explore/engine/heap.h"
#include "tests/explore/engine/knowledge.h"

namespace explore {

/// One store in the history of a location. A reader that acquires takes in its message (the knowledge that a
/// release publishes).
struct Store {
  std::uint64_t value;
  Key key;
  std::int8_t fiber;  // -1: the initial value
  bool followed;      // an atomic read-modify-write read it, so nothing may be placed directly behind it
  bool speaks;        // it has a message
  VectorClock clock;  // clock of the message
  std::uint32_t view, locations;
};

/// A word that is accessed atomically, with its history.
struct Location {
  static constexpr int kStores = 512;
  std::uintptr_t address;
  int size;
  const char* label;
  bool late;     // other fibers may read old stores
  bool written;  // a plain access has written it since its last store
  Key sc;        // sequentially consistent accesses must not read stores older than this
  int count;
  std::uint16_t order[kStores];  // modification order
};

/// The arena for shared objects of explored programs, with the histories of its words. Memory outside is
/// private to a fiber and not tracked. The order S of sequentially consistent operations is the order of
/// execution, and nothing is read before it has been written (po and rf have no cycle).
class Memory {
 public:
  static constexpr std::size_t kBytes = std::size_t{8} << 20, kGranule = 4;
  Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Zeroes the `used` bytes of the last execution, and drops its histories.
  void begin(std::size_t used);
  std::byte* arena() const { return arena_; }
  bool holds(const void* p) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(p) - arena_) < kBytes;
  }
  /// Names a range for traces and faults. `late` false: readers see the newest store, as if a fence preceded
  /// each read.
  void label(const void* p, std::size_t bytes, const char* text, bool late = true);

  int find(const void* p, int size);
  Location& at(int location) { return locations_[location]; }
  const Location& at(int location) const { return locations_[location]; }
  int locations() const { return used_; }
  Store& store(int s) { return stores_[static_cast<std::size_t>(s)]; }
  const Store& store(int s) const { return stores_[static_cast<std::size_t>(s)]; }
  int newest(int location) const { return locations_[location].order[locations_[location].count - 1]; }

  /// Stores that a load may read, newest first; `change`: those that a read-modify-write may directly follow.
  int readable(const Knowledge&, int location, Order, bool change, std::uint16_t* stores) const;
  /// Positions in the modification order behind which a store may be placed, newest first: indices
  /// into `order`.
  int places(const Knowledge&, int location, Order, std::uint16_t* places) const;
  std::uint64_t read(Knowledge&, int location, int store, Order);
  /// `source`: for a read-modify-write, the store that it has read; else -1.
  int write(Knowledge&, int location, int place, std::uint64_t value, Order, int source = -1);
  void fence(Knowledge&, Order);
  /// Makes everything that `other` did happen before now: it has ended, and the system has reported that.
  void join(Knowledge&, const Knowledge& other);
  /// From now on this fiber reads the newest store of a location, or of all locations: time has passed.
  void catch_up(Knowledge&, int location);
  void catch_up(Knowledge&);

  /// A plain access. False if it races; `race` then describes the other access.
  bool plain(Knowledge&, const void* p, std::size_t bytes, bool writes, std::string* race);
  /// Checks an atomic access for races with plain ones.
  bool atomic(Knowledge&, int location, bool writes, std::string* race);
  /// The label of an address, or its offset.
  std::string name(const void* p) const;
  /// Whether memory agrees with the histories; otherwise code without instrumentation has written to it.
  bool is_true() const;

 private:
  struct Cell {
    Tick read[kFibers], write[kFibers], atomic_read[kFibers], atomic_write[kFibers];
    std::int16_t location[kGranule];  // location that includes this byte; -1: none
    bool touched;
  };
  struct Label {
    const std::byte* at;
    std::size_t bytes;
    const char* text;
    bool late;
  };
  Cell& cell(std::size_t i);
  const Label* find_label(const void* p) const;
  void absorb(int location);
  std::uint32_t keep(const View&);
  int append(int location, int place, std::uint64_t value, int fiber);
  static bool races(const Knowledge&, const Tick* of, int* with);

  std::byte* arena_;
  Cell* cells_;
  Kept<std::uint32_t> touched_;
  Kept<Location> locations_;
  int used_ = 0;
  Kept<Store> stores_;
  Kept<Key> views_;  // views of messages
  Kept<Label> labels_;
};

}  // namespace explore
