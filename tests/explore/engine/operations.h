// The operations of fibers on memory: atomic operations, plain accesses, locks, and the futexes that they
// sleep on. The front end is hooks.cc, which the compiler calls for each access; another front end, for
// example for compiled GPU code, would call the same functions.
#pragma once
#include <cstdint>

#include "tests/explore/engine/machine.h"

namespace explore {

/// Operations of the running fiber. `site`: return address of the call in its program.
class Operations {
 public:
  static Operations& the();
  /// The operations while fibers run; otherwise nullptr.
  static Operations* running;
  bool holds(const void* p) const { return memory_.holds(p); }

  std::uint64_t load(void* p, int size, Order, const void* site);
  void store(void* p, int size, std::uint64_t, Order, const void* site);
  /// `change` computes the new value from the old one; returns the old value.
  std::uint64_t change(void* p, int size, std::uint64_t (*change)(std::uint64_t, std::uint64_t),
                       std::uint64_t by, Order, const void* site);
  bool exchange_if(void* p, int size, std::uint64_t* expected, std::uint64_t desired, Order, Order otherwise,
                   const void* site);
  void fence(Order, const void* site);
  void plain(const void* p, std::size_t bytes, bool writes, const void* site);
  int futex_wait(void* p, std::uint32_t expected, bool timed, const void* site);
  int futex_wake(void* p, const void* site);
  void lock(void* mutex, const void* site);
  void unlock(void* mutex, const void* site);

  /// If set, collects the sites of atomic operations in the order of their first call.
  SiteList* survey = nullptr;

 private:
  Operations(Machine& m, Memory& memory) : m_(m), memory_(memory) {}
  static Footprint touch(int location, bool changes, Order);
  void note_read(Machine::Fiber&, int location, int store);
  std::uint64_t perform_read(int location, Order, int which);
  void check(int location, bool writes, const void* site);
  const Fault* fault_at(int location, Fault::At, const void* site) const;
  void saw(int location, Fault::At, Order, const void* site);
  void trace(int location, const char* what, Order, std::uint64_t value, const void* site, bool old = false);

  Machine& m_;
  Memory& memory_;
};

}  // namespace explore
