// Litmus shapes: a few threads of a few operations, written as PTX. All executions that the axioms of the PTX
// memory model allow (axioms.cc), and all that the interpreter's memory can make (drive.cc). Used by
// litmus_test.cc and litmus_main.cc.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tests/ptx/memory.h"

namespace ptx::litmus {

/// One thread. Lines: [if R=N:] OPCODE OPERANDS, registers r1 ..., locations in brackets: `[flag]`. A
/// location is 0 at first. `if`: what follows is done where the register, of any thread, has that value; what
/// was not done leaves its register empty.
struct Thread {
  int device = 0, block = 0;
  std::string text;
};
struct Weakening {
  const char* what;
  std::string from, to;  ///< in every thread's text, all places
  bool beyond = false;   ///< what it allows, the interpreter does not make
};
struct Shape {
  const char* name;
  const char* stands_for;  ///< which protocol has it
  std::vector<Thread> threads;
  /// Outcomes that must not be: values of registers, "r1=1 r2=0"; "race": two accesses of one location, one a
  /// write, that neither are ordered nor know of each other.
  std::vector<std::string> never;
  /// Outcomes that the model must allow: what nobody may rely on.
  std::vector<std::string> may;
  std::vector<Weakening> weakenings;  ///< each must allow an outcome of `never`
  /// The interpreter makes fewer outcomes: nothing is read before it is written there, and stores of one
  /// location are in the order in which they are made.
  bool narrower = false;
};
const std::vector<Shape>& shapes();

struct Operation {
  enum class Kind : std::uint8_t { load, store, atomic, fence, barrier } kind;
  int thread = 0;
  int location = -1;
  int to = -1;                ///< register of a load or atomic operation
  std::uint64_t value = 0;    ///< stored, added, or-ed
  std::uint64_t desired = 0;  ///< of a cas
  Access access;
  Atomic atomic = Atomic::add;
  int guard = -1;  ///< a register
  std::uint64_t guarded_by = 0;
};
struct Program {
  std::vector<Place> places;  ///< of the threads
  std::vector<std::vector<Operation>> threads;
  int locations = 0, registers = 0;
};
/// A Violation names what is not known.
Program parse(const Shape&);

/// "r1=1 r2=0", of all registers in order, "-" for an empty one; or "race".
using Outcomes = std::set<std::string>;
struct Found {
  Outcomes outcomes;
  std::uint64_t executions = 0;
};
Found by_axioms(const Program&);
Found by_interpreter(const Program&);

/// Whether `outcome` has all values of `pattern`.
bool matches(const std::string& outcome, const std::string& pattern);

/// The first outcome of `never` that a weakening allows, or nothing.
struct Weaker {
  const char* what;
  std::string by_axioms, by_interpreter;
};
struct Verdict {
  Found model, made;  ///< by the axioms, by the interpreter
  std::vector<Weaker> weaker;
  std::vector<std::string> failures;  ///< where this is not what the shape says
};
Verdict judge(const Shape&);

}  // namespace ptx::litmus
