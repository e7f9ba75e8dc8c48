// Memory as the PTX model defines it: for each word with strong accesses a history of stores, clocks that
// define what comes before what, and for each byte the last thread that accessed it. Used by access.cc
// and machine.cc.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/ptx/code.h"

namespace ptx {

using Tick = std::uint32_t;
/// The knowledge of a thread: for each thread, the tick up to which everything precedes what this one
/// does next.
using Clock = std::shared_ptr<const std::vector<Tick>>;

/// Source of choices.
class Chooser {
 public:
  virtual ~Chooser() = default;
  virtual int pick(int n) = 0;  ///< 0 to n - 1
};

/// The position of a thread in the hierarchy of scopes.
struct Place {
  int id = 0, block = -1, device = -1;
};
inline bool includes(Scope scope, const Place& a, const Place& b) {
  return scope == Scope::sys ||
         (scope == Scope::gpu ? a.device == b.device && a.device >= 0 : a.block == b.block && a.block >= 0);
}

/// The knowledge that a release passes to a thread that acquires it.
struct Message {
  Clock clock;
  Place from;
  Scope scope;
  Clock aliased;
};
using Messages = std::vector<std::shared_ptr<const Message>>;

/// The state of a thread with respect to memory.
struct Observer {
  Place place;
  Clock known;  ///< ticks of other threads; its own is `tick`
  Tick tick = 1;
  Clock launched;                         ///< what preceded the start of its grid
  int grid = 0;                           ///< unique for each launch
  Messages pending;                       ///< messages of strong reads that were not acquired yet
  std::shared_ptr<const Message> fenced;  ///< message of its last releasing fence
  Clock aliased;                          ///< what preceded its last fence.proxy.alias; or null
  bool covers(int thread, Tick t) const {
    return thread < 0 || thread == place.id || (*known)[static_cast<std::size_t>(thread)] >= t;
  }
};

class Memory {
 public:
  Memory(Chooser& chooser, int threads);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Adds memory of the host that programs may access, at its own address.
  void add(void* at, std::size_t bytes, Space space, std::string name);
  void remove(void* at);

  std::uint64_t load(Observer&, std::uint64_t address, const Access&);
  void store(Observer&, std::uint64_t address, std::uint64_t value, const Access&);
  /// Returns the old value.
  std::uint64_t change(Observer&, std::uint64_t address, const Access&, Atomic, std::uint64_t by,
                       std::uint64_t desired);
  void fence(Observer&, Order, Scope);
  void fence_aliases(Observer&);
  /// Adds a multicast address: its `bytes` from `at` on represent those from each of `members` on.
  void add_multicast(std::uint64_t at, std::uint64_t bytes, std::vector<std::uint64_t> members);
  /// The target addresses of an access at a multicast address, one for each member.
  std::vector<std::uint64_t> members(std::uint64_t address, std::uint64_t bytes) const;
  /// A barrier: everything that each did precedes what each does next.
  void meet(const std::vector<Observer*>&);
  /// Everything that `other` did precedes what `one` does next.
  void follow(Observer& one, const Observer& other);
  Clock nothing() const { return nothing_; }

  std::uint64_t stale = 0;  ///< number of loads that did not read the newest store
  std::uint64_t strong = 0;

 private:
  struct Store {
    int number, thread;
    Tick tick;
    std::uint64_t value;
    Messages messages;
    /// Made by an atomic operation: a thread that reads it has also observed the store before it.
    bool atomic = false;
  };
  /// The last access of a thread at a scope.
  struct Seen {
    Place place;
    Scope scope;
    Tick tick;
    int store;
  };
  struct Location {
    std::uint64_t address;
    int bytes;
    std::vector<Store> stores;  ///< in modification order
    std::vector<Seen> reads, writes;
    Messages released;  ///< messages of release operations here, for later strong writes of the same thread
  };
  struct Cell {
    int writer = -1, reader = -1;  ///< thread of the last weak access; reader -2: several, in readers_[read]
    Tick write = 0, read = 0;
    int location = -1, read_only = 0;
    /// Bit masks. 1: through its own address, 2: through a multicast one.
    std::uint8_t written_by = 0, read_by = 0;
  };
  struct Multicast {
    std::uint64_t at, bytes;
    std::vector<std::uint64_t> members;
  };
  struct Region {
    std::uint64_t begin, end;
    Space space;
    std::string name;
    std::unique_ptr<Cell[]> cells;
  };

  Region& region(std::uint64_t address, const Access&);
  static Cell* cells(Region& r, std::uint64_t address) { return &r.cells[address - r.begin]; }
  void weak_read(Observer&, Region&, std::uint64_t address, const Access&);
  void weak_write(Observer&, Region&, std::uint64_t address, const Access&);
  /// Checks for races and returns the location of a strong access.
  Location& strong_at(Observer&, Region&, std::uint64_t address, const Access&, bool writes);
  void forget(Observer&, Region&, int location, bool writes);
  int oldest(const Observer&, const Location&) const;
  /// Whether an access precedes what the thread does next: by its clock, or because the thread has read the
  /// store that the access made, or one that atomic operations derived from it.
  static bool before(const Observer&, const Location&, const Seen&);
  static int index_of(const Location&, int store);
  void note(std::vector<Seen>&, const Observer&, Scope, int store);
  /// Checks that accesses of the byte through other aliases are separated from this one by a fence
  /// of aliases.
  void check_aliases(const Observer&, const Region&, std::uint64_t address, const Access&, bool writes);
  void acquire(Observer&, const Messages&, Scope);
  void join(Observer&, const Clock&);
  void merge(Clock& into, const Clock&) const;
  std::shared_ptr<const Message> message(Observer&, Scope);
  void insert(Observer&, Location&, int at, std::uint64_t value, const Access&, const Messages& inherited,
              bool is_atomic);
  [[noreturn]] void race(const Observer&, const Region&, std::uint64_t address, const char* what,
                         const char* with, int thread) const;

  Chooser& chooser_;
  Clock nothing_;
  std::vector<std::unique_ptr<Region>> regions_;
  Region* last_ = nullptr;
  std::vector<std::unique_ptr<Location>> locations_;
  std::vector<Multicast> multicasts_;
  std::vector<std::vector<std::pair<int, Tick>>> readers_;
  int numbers_ = 0;
  // Clocks of fence.sc by scope: of a block, of a device, of the system.
  std::vector<std::pair<int, Clock>> sc_blocks_, sc_devices_;
  Clock sc_system_;
};

}  // namespace ptx
