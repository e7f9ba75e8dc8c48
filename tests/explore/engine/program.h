// What is explored: a program of a few fibers, and what it may ask of the engine. Used by instrumented code,
// which sees no more of the engine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace explore {

/// What an explored program may count on, and within which bounds it is explored.
struct Rules {
  bool sleeps = true;  ///< who waits may go down the ladder to its end; else it looks until something changes
  bool brief = false;  ///< a look that has shown nothing new shows the same at any place of the program, not
                       ///< at the same one only: for waits that look at a counter at several places in turn
  bool may_miss_wakes = false;  ///< a sleeper whose word has changed may have to wait for its time to end
  int spurious = 0;             ///< wake-ups that nobody sent, in one execution
  int naps = 2;                 ///< of a fiber that are over at once; others end when nobody else can move
  int timeouts = 12;            ///< of sleeps while nobody can move, in one execution; more is a hang
  int steps = 20000;            ///< of one execution; more is a hang
  std::uint32_t mortal = 0;     ///< fibers that kill() may end; bits
};

/// A program of a few fibers over shared objects in the arena. All of it is made anew for each execution, by
/// set_up; what it allocates is gone without a destructor's call when the execution ends.
class Program {
 public:
  virtual ~Program() = default;
  virtual int fibers() const = 0;
  virtual Rules rules() const { return {}; }
  /// Makes the shared objects (make) before the fibers start.
  virtual void set_up() = 0;
  virtual void run(int fiber) = 0;
  /// When all fibers have ended.
  virtual void finish() {}
  /// What `finish` found, where executions may differ.
  virtual std::string outcome() { return {}; }
};

/// Zeroed memory of the arena, by its name in traces and faults; for set_up(). `late` false: readers of its
/// atomic words see the newest store.
void* place(std::size_t bytes, const char* label, bool late = true, std::size_t alignment = 64);
template <class T>
T* make(const char* label, std::size_t n = 1, bool late = true) {
  return static_cast<T*>(place(n * sizeof(T), label, late, alignof(T) > 64 ? alignof(T) : 64));
}
/// The same for large objects of which an execution uses little: only what fibers have used is zeroed for the
/// next one, so set_up() writes to the same places each time.
void* place_sparse(std::size_t bytes, const char* label);
/// While it lives, in set_up(), what operator new gives lies in the arena: objects that threads of one
/// process share, with their locks.
class InArena {
 public:
  explicit InArena(const char* label);
  ~InArena();
  InArena(const InArena&) = delete;
  InArena& operator=(const InArena&) = delete;
};
/// A part of what was placed gets a name of its own; the last one counts.
void label(const void* p, std::size_t bytes, const char* text, bool late = true);
/// Ends another fiber for good, between any two of its steps; what it did happens before what follows.
void kill(int fiber);
/// A violation; ends the execution.
void fail(const char* what);
inline void check(bool right, const char* what) {
  if (!right) fail(what);
}

}  // namespace explore
