// Litmus shapes: a few threads of a few operations each, written as PTX, with all executions that the axioms
// of the PTX memory model allow (axioms.cc), and all that the interpreter's memory can produce (drive.cc).
// Used by litmus_test.cc and litmus_main.cc.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tests/ptx/memory.h"

namespace ptx::litmus {

/// One thread. Lines: [if R=N:] OPCODE OPERANDS, with registers r1 ..., and locations in brackets: `[flag]`.
/// A location is 0 at first. `if`: the operation is executed only if the register, of any thread, has that
/// value; an operation that is not executed leaves its register empty.
struct Thread {
  int device = 0, block = 0;
  std::string text;
};
struct Weakening {
  const char* what;
  std::string from, to;  ///< replaced in every thread's text, at all matches
  bool beyond = false;   ///< the interpreter does not produce what the weakening allows
};
struct Shape {
  const char* name;
  const char* stands_for;  ///< protocol that has this shape
  std::vector<Thread> threads;
  /// Forbidden outcomes: values of registers, "r1=1 r2=0"; or "race": two accesses of one location, at least
  /// one a write, that are neither ordered nor morally strong with each other.
  std::vector<std::string> never;
  /// Outcomes that the model must allow: nobody may rely on their absence.
  std::vector<std::string> may;
  std::vector<Weakening> weakenings;  ///< each must allow an outcome of `never`
  /// The interpreter produces fewer outcomes: nothing is read before it has been written, and the stores of
  /// one location are in the order in which they are executed.
  bool narrower = false;
};
const std::vector<Shape>& shapes();

struct Operation {
  enum class Kind : std::uint8_t { load, store, atomic, fence, barrier } kind;
  int thread = 0;
  int location = -1;
  int to = -1;                ///< register of a load or atomic operation
  std::uint64_t value = 0;    ///< operand: stored, added, or-ed
  std::uint64_t desired = 0;  ///< new value of a cas
  Access access;
  Atomic atomic = Atomic::add;
  int guard = -1;  ///< a register
  std::uint64_t guarded_by = 0;
};
struct Program {
  std::vector<Place> places;  ///< one for each thread
  std::vector<std::vector<Operation>> threads;
  int locations = 0, registers = 0;
};
/// Throws a Violation that names what is unknown.
Program parse(const Shape&);

/// "r1=1 r2=0" with all registers in order, "-" for an empty one; or "race".
using Outcomes = std::set<std::string>;
struct Found {
  Outcomes outcomes;
  std::uint64_t executions = 0;
};
Found by_axioms(const Program&);
Found by_interpreter(const Program&);

/// Whether `outcome` contains all values of `pattern`.
bool matches(const std::string& outcome, const std::string& pattern);

/// For a weakening, the first outcome of `never` that it allows, or nothing.
struct Weaker {
  const char* what;
  std::string by_axioms, by_interpreter;
};
struct Verdict {
  Found model, made;  ///< by the axioms; by the interpreter
  std::vector<Weaker> weaker;
  std::vector<std::string> failures;  ///< where the results differ from the shape's claims
};
Verdict judge(const Shape&);

}  // namespace ptx::litmus
