// Memory as the PTX model defines it: for each word that is accessed strongly a history of stores, clocks
// that say what comes before what, and for each byte who accessed it last. Used by access.cc and machine.cc.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/ptx/code.h"

namespace ptx {

using Tick = std::uint32_t;
/// What a thread knows of all threads: everything up to these ticks comes before what it does next.
using Clock = std::shared_ptr<const std::vector<Tick>>;

/// Where choices come from.
class Chooser {
 public:
  virtual ~Chooser() = default;
  virtual int pick(int n) = 0;  ///< 0 to n - 1
};

/// A thread, as scopes see it.
struct Place {
  int id = 0, block = -1, device = -1;
};
inline bool includes(Scope scope, const Place& a, const Place& b) {
  return scope == Scope::sys ||
         (scope == Scope::gpu ? a.device == b.device && a.device >= 0 : a.block == b.block && a.block >= 0);
}

/// What a release gives to who acquires it.
struct Message {
  Clock clock;
  Place from;
  Scope scope;
  Clock aliased;
};
using Messages = std::vector<std::shared_ptr<const Message>>;

/// What a thread has to do with memory.
struct Observer {
  Place place;
  Clock known;  ///< of others; its own tick is beside it
  Tick tick = 1;
  Clock launched;                         ///< what came before its grid began
  int grid = 0;                           ///< each launch has another number
  Messages pending;                       ///< of strong reads that have not acquired
  std::shared_ptr<const Message> fenced;  ///< of its last releasing fence
  Clock aliased;                          ///< what came before a fence.proxy.alias that came before; or null
  bool covers(int thread, Tick t) const {
    return thread < 0 || thread == place.id || (*known)[static_cast<std::size_t>(thread)] >= t;
  }
};

class Memory {
 public:
  Memory(Chooser& chooser, int threads);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Memory of the host that programs may touch, at its own address.
  void add(void* at, std::size_t bytes, Space space, std::string name);
  void remove(void* at);

  std::uint64_t load(Observer&, std::uint64_t address, const Access&);
  void store(Observer&, std::uint64_t address, std::uint64_t value, const Access&);
  /// Returns what was there.
  std::uint64_t change(Observer&, std::uint64_t address, const Access&, Atomic, std::uint64_t by,
                       std::uint64_t desired);
  void fence(Observer&, Order, Scope);
  void fence_aliases(Observer&);
  /// A multicast address: `bytes` from `at` on are those from each of `members` on.
  void add_multicast(std::uint64_t at, std::uint64_t bytes, std::vector<std::uint64_t> members);
  /// Where an access at a multicast address goes, member by member.
  std::vector<std::uint64_t> members(std::uint64_t address, std::uint64_t bytes) const;
  /// A barrier: all that each did comes before what each does next.
  void meet(const std::vector<Observer*>&);
  /// `one` learns all that `other` did.
  void follow(Observer& one, const Observer& other);
  Clock nothing() const { return nothing_; }

  std::uint64_t stale = 0;  ///< loads that read another store than the newest
  std::uint64_t strong = 0;

 private:
  struct Store {
    int number, thread;
    Tick tick;
    std::uint64_t value;
    Messages messages;
    bool atomic = false;  ///< whoever reads it has observed the one before it
  };
  /// The last access of a thread by a scope.
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
    Messages released;  ///< by release operations here, for later strong writes of the same thread
  };
  struct Cell {
    int writer = -1, reader = -1;  ///< of weak accesses; reader -2: several, in readers_[read]
    Tick write = 0, read = 0;
    int location = -1, read_only = 0;
    std::uint8_t written_by = 0, read_by = 0;  ///< 1: by its own address, 2: by a multicast one
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
  /// The location of a strong access, after a look for races.
  Location& strong_at(Observer&, Region&, std::uint64_t address, const Access&, bool writes);
  void forget(Observer&, Region&, int location, bool writes);
  int oldest(const Observer&, const Location&) const;
  /// Whether an access comes before what the thread does next: by its clock, or since the thread has read the
  /// store that it made, or one that atomic operations made of that.
  static bool before(const Observer&, const Location&, const Seen&);
  static int index_of(const Location&, int store);
  void note(std::vector<Seen>&, const Observer&, Scope, int store);
  /// That what other aliases did to the byte has come past a fence of aliases.
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
  // Clocks of fence.sc by how far they reach: of a block, of a device, of the system.
  std::vector<std::pair<int, Clock>> sc_blocks_, sc_devices_;
  Clock sc_system_;
};

}  // namespace ptx
