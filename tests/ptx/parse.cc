// Parses the text of PTX: functions, variables, labels, operands. access.cc and arithmetic.cc decode opcodes.
#include <algorithm>
#include <cctype>
#include <charconv>

#include "tests/ptx/code.h"

namespace ptx {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.';
}

class Parser {
 public:
  Parser(std::string_view text, Module& module, Function& f) : text_(text), module_(module), f_(f) {
    for (std::string_view line : split(text, '\n')) f_.lines.emplace_back(line);
  }

  void run() {
    header();
    scopes_.emplace_back();
    while (!scopes_.empty()) statement();
    for (auto& [instr, label] : branches_) {
      const auto found = labels_.find(label);
      if (found == labels_.end()) throw Violation(f_.name + ": no label " + label);
      f_.code[instr].target = found->second;
    }
    emit("ret", {});
    f_.registers = registers_;
  }

 private:
  struct Scope {
    std::map<std::string, int, std::less<>> names;
    std::map<std::string, std::pair<int, int>, std::less<>> ranges;  // for %r: first, count
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw Violation(f_.name + " line " + std::to_string(line_ + 1) + ": " + what + ": " +
                    f_.lines[static_cast<std::size_t>(line_)]);
  }
  void skip() {
    while (at_ < text_.size()) {
      if (text_[at_] == '\n')
        ++line_, ++at_;
      else if (std::isspace(static_cast<unsigned char>(text_[at_])))
        ++at_;
      else if (text_.substr(at_, 2) == "//")
        at_ = std::min(text_.find('\n', at_), text_.size());
      else
        return;
    }
  }
  std::string_view next() {
    skip();
    if (at_ >= text_.size()) fail("the text ends");
    const std::size_t begin = at_++;
    if (text_[begin] == '"') {
      at_ = text_.find('"', at_) + 1;
    } else if (is_word(text_[begin])) {
      while (at_ < text_.size() && (is_word(text_[at_]) || text_.substr(at_, 2) == "::"))
        at_ += is_word(text_[at_]) ? 1 : 2;
    }
    return text_.substr(begin, at_ - begin);
  }
  bool accept(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(std::string("expected ") + c);
  }
  std::int64_t number(std::string_view word) const {
    const bool hex = word.size() > 2 && word[0] == '0' && (word[1] == 'x' || word[1] == 'X');
    if (hex) word.remove_prefix(2);
    if (!word.empty() && word.back() == 'U') word.remove_suffix(1);
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value, hex ? 16 : 10);
    if (error != std::errc{} || end != word.data() + word.size()) fail("no number: " + std::string(word));
    return static_cast<std::int64_t>(value);
  }
  static std::uint64_t bytes_of(std::string_view type) {
    return type.ends_with("64") ? 8 : type.ends_with("32") ? 4 : type.ends_with("16") ? 2 : 1;
  }

  /// Parses what follows the space: [.align N] .type name [ '[' N ']' ].
  Variable variable(Space space) {
    std::uint64_t align = 0, bytes = 0;
    std::string_view word = next();
    while (word[0] == '.') {
      if (word == ".align")
        align = static_cast<std::uint64_t>(number(next()));
      else if (word == ".ptr" || word == ".global")
        fail("a parameter with attributes");
      else
        bytes = bytes_of(word);
      word = next();
    }
    if (align == 0) align = bytes;
    Variable v{std::string(word), space, 0, bytes, registers_++};
    if (accept('[')) {
      v.bytes *= static_cast<std::uint64_t>(number(next()));
      expect(']');
    }
    std::uint64_t& end = space == Space::shared  ? f_.shared_bytes
                         : space == Space::param ? f_.parameter_bytes
                                                 : f_.local_bytes;
    v.at = (end + align - 1) / align * align;
    end = v.at + v.bytes;
    scopes_.back().names[v.name] = v.slot;
    f_.variables.push_back(v);
    return v;
  }

  void header() {
    scopes_.emplace_back();
    std::string_view word = next();
    while (word == ".visible" || word == ".weak") word = next();
    f_.is_entry = word == ".entry";
    std::vector<Variable> result;
    const Space space = f_.is_entry ? Space::param : Space::local;
    const auto list = [&](int& count) {
      while (!accept(')')) {
        if (next() != ".param") fail("expected .param");
        variable(space);
        ++count;
        accept(',');
      }
    };
    int results = 0;
    if (!f_.is_entry && accept('(')) list(results);
    if (results > 1) fail("more than one result");
    f_.returns = results == 1;
    f_.name = next();
    if (accept('(')) list(f_.parameters);
    if (f_.returns) std::rotate(f_.variables.begin(), f_.variables.begin() + 1, f_.variables.end());
    while (!accept('{')) next();  // skips .maxntid and the like
  }

  void statement() {
    skip();
    if (accept('{')) return void(scopes_.emplace_back());
    if (accept('}')) {
      scopes_.pop_back();
      if (scopes_.size() == 1) scopes_.clear();
      return;
    }
    if (accept(';')) return;
    Instr instr;
    instr.line = line_;
    if (accept('@')) {
      instr.unless = accept('!');
      instr.guard = slot(next());
      instr.line = line_;
    }
    const std::string word(next());
    if (word[0] == '.') return directive(word);
    if (accept(':')) {
      labels_[word] = static_cast<int>(f_.code.size());
      return;
    }
    std::vector<Operand> operands;
    if (word.starts_with("call")) return call(word, instr);
    while (!accept(';')) {
      operands.push_back(operand(word.starts_with("bra")));
      if (!accept(',') && accept('|')) fail("a second result is not known");
    }
    if (word == "bra" || word == "bra.uni") {
      instr.run = run_branch;
      branches_.emplace_back(f_.code.size(), operands.at(0).text);
      f_.code.push_back(instr);
      return;
    }
    emit(word, std::move(operands), instr);
  }
  void emit(const std::string& opcode, std::vector<Operand> operands, Instr instr = {}) {
    try {
      decode(opcode, operands, instr);
    } catch (const Violation& v) {
      fail(v.what());
    } catch (const std::out_of_range&) {
      fail("operands are missing");
    }
    f_.code.push_back(std::move(instr));
  }

  void directive(const std::string& word) {
    if (word == ".pragma" || word == ".loc" || word == ".file") {
      while (!accept(';')) next();
      return;
    }
    if (word == ".reg") {
      next();  // skips its type, because instructions have types
      do {
        const std::string name(next());
        if (accept('<')) {
          const int count = static_cast<int>(number(next()));
          expect('>');
          scopes_.back().ranges[name] = {registers_, count};
          registers_ += count;
        } else {
          scopes_.back().names[name] = registers_++;
        }
      } while (accept(','));
      return expect(';');
    }
    if (word == ".shared")
      variable(Space::shared);
    else if (word == ".local" || word == ".param")
      variable(Space::local);
    else
      fail("unknown directive " + word);
    expect(';');
  }

  int constant(std::uint64_t value) {
    const auto [at, fresh] = constants_.try_emplace(value, registers_);
    if (fresh) f_.constants.emplace_back(registers_++, value);
    return at->second;
  }
  /// The register that an operand is or is stored in; -1 for `_`.
  int slot(std::string_view word) {
    if (word == "_") return -1;
    const char c = word[0];
    if (c == '-') return constant(static_cast<std::uint64_t>(-number(next())));
    if (c == '0' && word.size() > 2 && (word[1] == 'f' || word[1] == 'd' || word[1] == 'F' || word[1] == 'D'))
      return constant(static_cast<std::uint64_t>(number("0x" + std::string(word.substr(2)))));
    if (std::isdigit(static_cast<unsigned char>(c)))
      return constant(static_cast<std::uint64_t>(number(word)));
    std::size_t digits = word.size();
    while (digits > 0 && std::isdigit(static_cast<unsigned char>(word[digits - 1]))) --digits;
    for (auto s = scopes_.rbegin(); s != scopes_.rend(); ++s) {
      if (const auto found = s->names.find(word); found != s->names.end()) return found->second;
      if (digits == word.size()) continue;
      const auto range = s->ranges.find(word.substr(0, digits));
      if (range == s->ranges.end()) continue;
      const auto i = number(word.substr(digits));
      if (i < range->second.second) return range->second.first + static_cast<int>(i);
    }
    return -2;
  }
  Operand operand(bool label) {
    Operand o;
    if (label) {
      o.kind = Operand::Kind::label;
      o.text = next();
      return o;
    }
    if (accept('[')) {
      o.kind = Operand::Kind::address;
      o.slot = known(next());
      if (accept('+')) o.offset = accept('-') ? -number(next()) : number(next());
      expect(']');
      return o;
    }
    if (accept('{')) {
      o.kind = Operand::Kind::list;
      while (!accept('}')) {
        o.slots.push_back(known(next()));
        accept(',');
      }
      return o;
    }
    o.negated = accept('!');
    o.text = next();
    o.slot = slot(o.text);
    if (o.slot == -2 && o.text[0] != '%') fail("unknown name " + o.text);
    return o;
  }
  int known(std::string_view word) {
    const int s = slot(word);
    if (s == -2) fail("unknown name " + std::string(word));
    return s;
  }

  /// Parses call [(result),] name, (arguments);
  void call(const std::string& opcode, Instr instr) {
    if (opcode != "call.uni" && opcode != "call") fail("unknown opcode " + opcode);
    const auto list = [&] {
      while (!accept(')')) {
        instr.arguments.push_back(known(next()));
        accept(',');
      }
    };
    std::vector<int> result;
    if (accept('(')) {
      list();
      accept(',');
      result.swap(instr.arguments);
    }
    instr.callee = &module_.function(std::string(next()));
    if (accept(',') && accept('(')) list();
    expect(';');
    if (!result.empty()) instr.to[0] = result[0];
    instr.run = run_call;
    f_.code.push_back(instr);
  }

  std::string_view text_;
  Module& module_;
  Function& f_;
  std::size_t at_ = 0;
  int line_ = 0, registers_ = 0;
  std::vector<Scope> scopes_;
  std::map<std::uint64_t, int> constants_;
  std::map<std::string, int> labels_;
  std::vector<std::pair<std::size_t, std::string>> branches_;
};

}  // namespace

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

void decode(const std::string& opcode, std::vector<Operand>& operands, Instr& instr) {
  if (opcode == "ret" || opcode == "exit") {
    instr.run = run_return;
    instr.which = opcode == "exit";
  } else if (!decode_multimem(opcode, operands, instr) && !decode_access(opcode, operands, instr) &&
             !decode_arithmetic(opcode, operands, instr)) {
    throw Violation("unknown opcode " + opcode);
  }
}

std::string Function::place(const Instr& i) const {
  return name + " line " + std::to_string(i.line + 1) + ": " + lines[static_cast<std::size_t>(i.line)];
}

Module::Module(std::string text) : text_(std::move(text)) {
  // Definitions start in the first column and end with a brace there.
  std::size_t at = 0;
  while (at < text_.size()) {
    std::size_t end = text_.find('\n', at);
    if (end == std::string::npos) end = text_.size();
    std::string_view line(text_.data() + at, end - at);
    const std::size_t begin = at;
    for (std::string_view before : {".visible ", ".weak "})
      if (line.starts_with(before)) line.remove_prefix(before.size());
    const bool entry = line.starts_with(".entry"), function = line.starts_with(".func");
    at = end + 1;
    if (!entry && !function) continue;
    const std::size_t close = text_.find("\n}", begin), semicolon = text_.find(';', begin),
                      open = text_.find("\n{", begin);
    if (close == std::string::npos || semicolon < open) continue;  // a declaration
    std::size_t name =
        begin + static_cast<std::size_t>(line.data() - (text_.data() + begin)) + (entry ? 6 : 5);
    while (text_[name] == ' ') ++name;
    if (text_[name] == '(') name = text_.find(')', name) + 1;
    while (std::isspace(static_cast<unsigned char>(text_[name]))) ++name;
    std::size_t last = name;
    while (is_word(text_[last])) ++last;
    at_[text_.substr(name, last - name)] = {begin, close + 2};
    at = close + 2;
  }
}

std::vector<std::string> Module::entries() const {
  std::vector<std::string> names;
  for (const auto& [name, where] : at_)
    if (text_.substr(where.first, 30).find(".entry") != std::string::npos) names.push_back(name);
  return names;
}

std::pair<std::size_t, std::size_t> Module::extent(const std::string& name) const {
  const auto found = at_.find(name);
  if (found == at_.end()) throw Violation("no function " + name);
  return found->second;
}

const Function& Module::function(const std::string& name) {
  auto& f = parsed_[name];
  if (f == nullptr) {
    const auto [begin, end] = extent(name);
    f = std::make_unique<Function>();
    Parser(std::string_view(text_).substr(begin, end - begin), *this, *f).run();
  }
  return *f;
}

}  // namespace ptx
