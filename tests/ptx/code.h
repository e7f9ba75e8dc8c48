// Executable form of PTX: functions of decoded instructions over numbered registers. Created by parse.cc,
// executed by machine.cc.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ptx {

/// An error in a program or in its execution; the text names the instruction.
class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Space : std::uint8_t { generic, global, shared, local, param };
/// The threads with which a strong operation is morally strong. In ascending order.
enum class Scope : std::uint8_t { cta, gpu, sys };
enum class Order : std::uint8_t { weak, relaxed, acquire, release, acq_rel, sc };
enum class Atomic : std::uint8_t { add, exch, cas, bit_or, bit_and, bit_xor, min, max };

struct Lane;
struct Instr;
struct Function;
using Run = void (*)(Lane&, const Instr&);

/// The attributes of a load, store, atomic operation or fence.
struct Access {
  Order order = Order::weak;
  Scope scope = Scope::sys;
  Space space = Space::generic;
  bool read_only = false;  ///< .nc: nothing may write it while the grid runs
  std::uint8_t bytes = 4;  ///< bytes of one element
  std::uint8_t width = 1;  ///< number of elements, each of which is an access of its own
  bool is_signed = false;
  bool multicast = false;  ///< through a multicast address, which is an alias
};

/// An operand is a register; constants and the addresses of symbols are registers too, which a lane gets when
/// it starts.
struct Instr {
  Run run = nullptr;
  int guard = -1;       ///< index of a predicate, or -1
  bool unless = false;  ///< runs if the guard is false
  int to[4] = {-1, -1, -1, -1};
  int from[4] = {-1, -1, -1, -1};
  std::int64_t offset = 0;  ///< offset of an address
  Access access;
  Atomic atomic = Atomic::add;
  bool strong = false;  ///< its effects are visible to other threads
  int which = 0;        ///< distinguishes instructions with the same `run`
  int target = -1;
  const Function* callee = nullptr;
  std::vector<int> arguments;  ///< for a call: addresses of parameters
  int line = 0;
};

/// A parameter or variable of a function, and its location.
struct Variable {
  std::string name;
  Space space;
  std::uint64_t at, bytes;  ///< offset and size in the memory of its space
  int slot;                 ///< register that holds its address
};

struct Function {
  std::string name;
  bool is_entry = false;
  std::vector<Instr> code;
  int registers = 0;
  std::vector<std::pair<int, std::uint64_t>> constants;
  std::vector<Variable> variables;
  int parameters = 0;    ///< number of parameters, which are the first variables
  bool returns = false;  ///< the first variable after the parameters is the result
  std::uint64_t parameter_bytes = 0, shared_bytes = 0, local_bytes = 0;
  std::vector<std::string> lines;  ///< lines of its text
  /// The place of instruction `i` in the text.
  std::string place(const Instr& i) const;
};

/// The PTX of one .cu file. Functions are parsed on demand.
class Module {
 public:
  explicit Module(std::string text);
  /// The names of all entries, as in the text.
  std::vector<std::string> entries() const;
  const Function& function(const std::string& name);
  const std::string& text() const { return text_; }
  /// Start and end of a function's text.
  std::pair<std::size_t, std::size_t> extent(const std::string& name) const;

 private:
  std::string text_;
  std::map<std::string, std::pair<std::size_t, std::size_t>> at_;
  std::map<std::string, std::unique_ptr<Function>> parsed_;
};

/// An operand as written.
struct Operand {
  enum class Kind : std::uint8_t { slot, address, list, label } kind = Kind::slot;
  int slot = -1;  ///< -1 in a list: the value is discarded
  std::int64_t offset = 0;
  std::vector<int> slots;
  std::string text;
  bool negated = false;
};

/// Sets the members of `instr` that follow from the opcode; a Violation names an unknown opcode, or what is
/// wrong with it.
void decode(const std::string& opcode, std::vector<Operand>& operands, Instr& instr);
/// Parts of decode; false if the opcode is not theirs.
bool decode_arithmetic(const std::string& opcode, std::vector<Operand>& operands, Instr& instr);
bool decode_access(const std::string& opcode, std::vector<Operand>& operands, Instr& instr);
bool decode_multimem(const std::string& opcode, std::vector<Operand>& operands, Instr& instr);
void run_branch(Lane&, const Instr&);
void run_return(Lane&, const Instr&);
void run_call(Lane&, const Instr&);

std::vector<std::string_view> split(std::string_view text, char at);

}  // namespace ptx
