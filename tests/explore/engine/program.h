// An explored program: a few fibers, and the services that they may request from the engine. Used by
// instrumented code, which sees no other part of the engine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace explore {

/// What an explored program may assume, and the bounds of its exploration.
struct Rules {
  bool sleeps = true;  ///< a waiting fiber may go down its ladder of waits to its end and sleep; false: it
                       ///< polls until something changes
  /// A repeated load without anything new returns the same value at any site of the program, not only at the
  /// same one: for waits that poll a counter at several sites in turn.
  bool brief = false;
  /// A sleeper whose word has changed may not be woken, and then its time-out must end.
  bool may_miss_wakes = false;
  int spurious = 0;  ///< spurious wake-ups allowed in one execution
  int naps = 2;      ///< naps of a fiber that may end immediately; others end when no fiber can move
  /// Sleeps that time out while no fiber can move, in one execution; more count as a hang.
  int timeouts = 12;
  int steps = 20000;         ///< steps of one execution; more count as a hang
  std::uint32_t mortal = 0;  ///< bit mask of the fibers that kill() may end
};

/// A program of a few fibers over shared objects in the arena. set_up makes everything anew for each
/// execution; at the end of the execution all allocations are dropped without calls of destructors.
class Program {
 public:
  virtual ~Program() = default;
  virtual int fibers() const = 0;
  virtual Rules rules() const { return {}; }
  /// Makes the shared objects (make) before the fibers start.
  virtual void set_up() = 0;
  virtual void run(int fiber) = 0;
  /// Called when all fibers have ended.
  virtual void finish() {}
  /// The result that `finish` found, if executions may differ.
  virtual std::string outcome() { return {}; }
};

/// Zeroed memory of the arena, with its name in traces and faults; call in set_up(). `late` false: readers of
/// its atomic words see the newest store.
void* place(std::size_t bytes, const char* label, bool late = true, std::size_t alignment = 64);
template <class T>
T* make(const char* label, std::size_t n = 1, bool late = true) {
  return static_cast<T*>(place(n * sizeof(T), label, late, alignof(T) > 64 ? alignof(T) : 64));
}
/// The same for large objects of which an execution uses little: only the parts that fibers have used are
/// zeroed for the next execution, so set_up() must write to the same places each time.
void* place_sparse(std::size_t bytes, const char* label);
/// While an object lives, in set_up(), operator new allocates from the arena: for objects that threads of one
/// process share, with their locks.
class InArena {
 public:
  explicit InArena(const char* label);
  ~InArena();
  InArena(const InArena&) = delete;
  InArena& operator=(const InArena&) = delete;
};
/// Gives a part of placed memory its own name; the last label of an address counts.
void label(const void* p, std::size_t bytes, const char* text, bool late = true);
/// Ends another fiber permanently, between any two of its steps; everything that it did happens before the
/// caller's next step.
void kill(int fiber);
/// Reports a violation and ends the execution.
void fail(const char* what);
inline void check(bool right, const char* what) {
  if (!right) fail(what);
}

}  // namespace explore
