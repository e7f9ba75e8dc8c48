// PTX as it is run: functions of decoded instructions over numbered registers. Made by parse.cc, run by
// machine.cc.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ptx {

/// What is wrong with a program or with what it did; the text names the instruction.
class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Space : std::uint8_t { generic, global, shared, local, param };
/// Which threads a strong operation is morally strong with. In order of size.
enum class Scope : std::uint8_t { cta, gpu, sys };
enum class Order : std::uint8_t { weak, relaxed, acquire, release, acq_rel, sc };
enum class Atomic : std::uint8_t { add, exch, cas, bit_or, bit_and, bit_xor, min, max };

struct Lane;
struct Instr;
struct Function;
using Run = void (*)(Lane&, const Instr&);

/// What a load, store, atomic operation or fence is.
struct Access {
  Order order = Order::weak;
  Scope scope = Scope::sys;
  Space space = Space::generic;
  bool read_only = false;  ///< .nc: nothing writes it while the grid runs
  std::uint8_t bytes = 4;  ///< of an element
  std::uint8_t width = 1;  ///< elements, each an access of its own
  bool is_signed = false;
  bool multicast = false;  ///< by a multicast address, an alias
};

/// An operand is a register; so are constants and the addresses of symbols, which a lane gets when it starts.
struct Instr {
  Run run = nullptr;
  int guard = -1;       ///< a predicate, or -1
  bool unless = false;  ///< runs where the guard is false
  int to[4] = {-1, -1, -1, -1};
  int from[4] = {-1, -1, -1, -1};
  std::int64_t offset = 0;  ///< of an address
  Access access;
  Atomic atomic = Atomic::add;
  bool strong = false;  ///< others may see it, or through it
  int which = 0;        ///< what else tells instructions of one `run` apart
  int target = -1;
  const Function* callee = nullptr;
  std::vector<int> arguments;  ///< of a call: addresses of parameters
  int line = 0;
};

/// A parameter of a function, or where it lies among them.
struct Variable {
  std::string name;
  Space space;
  std::uint64_t at, bytes;  ///< within the memory of its space
  int slot;                 ///< the register that holds its address
};

struct Function {
  std::string name;
  bool is_entry = false;
  std::vector<Instr> code;
  int registers = 0;
  std::vector<std::pair<int, std::uint64_t>> constants;
  std::vector<Variable> variables;
  int parameters = 0;    ///< the first of the variables
  bool returns = false;  ///< a function's first variable after its parameters is its result
  std::uint64_t parameter_bytes = 0, shared_bytes = 0, local_bytes = 0;
  std::vector<std::string> lines;  ///< of its text
  /// Where instruction `i` stands.
  std::string place(const Instr& i) const;
};

/// What nvcc made of one .cu. Functions are parsed when they are asked for.
class Module {
 public:
  explicit Module(std::string text);
  /// The names of all entries, as in the text.
  std::vector<std::string> entries() const;
  const Function& function(const std::string& name);
  const std::string& text() const { return text_; }
  /// Where a function's text begins and ends.
  std::pair<std::size_t, std::size_t> extent(const std::string& name) const;

 private:
  std::string text_;
  std::map<std::string, std::pair<std::size_t, std::size_t>> at_;
  std::map<std::string, std::unique_ptr<Function>> parsed_;
};

/// An operand as it is written.
struct Operand {
  enum class Kind : std::uint8_t { slot, address, list, label } kind = Kind::slot;
  int slot = -1;  ///< -1 in a list: nobody wants it
  std::int64_t offset = 0;
  std::vector<int> slots;
  std::string text;
  bool negated = false;
};

/// Fills in what an opcode means; a Violation names the opcode that is not known, or what is wrong with it.
void decode(const std::string& opcode, std::vector<Operand>& operands, Instr& instr);
/// Parts of it: false where the opcode is none of theirs.
bool decode_arithmetic(const std::string& opcode, std::vector<Operand>& operands, Instr& instr);
bool decode_access(const std::string& opcode, std::vector<Operand>& operands, Instr& instr);
bool decode_multimem(const std::string& opcode, std::vector<Operand>& operands, Instr& instr);
void run_branch(Lane&, const Instr&);
void run_return(Lane&, const Instr&);
void run_call(Lane&, const Instr&);

std::vector<std::string_view> split(std::string_view text, char at);

}  // namespace ptx
