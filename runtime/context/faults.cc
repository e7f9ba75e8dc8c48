// Faults that a user has requested. See faults.h; docs/guide/failures.md has the grammar for users.
#include "runtime/context/faults.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/core/log.h"
#include "runtime/core/types.h"

namespace ouro::rt {
namespace {

using Action = Fault::Action;
using At = Fault::At;

constexpr const char* kDamage = "OURO_FAULT";  // the detector of a failure that requests damage
constexpr std::uint64_t kMost = 1'000'000'000'000;

constexpr std::pair<std::string_view, Action> kActions[] = {
    {"kill", Action::kill},       {"stop", Action::stop}, {"delay", Action::delay},
    {"corrupt", Action::corrupt}, {"cut", Action::cut},   {"error", Action::error}};
constexpr std::pair<std::string_view, At> kPlaces[] = {
    {"join", At::join}, {"shrink", At::shrink}, {"close", At::close}};

/// Removes the text before the first `separator` from `text`, and returns it.
std::string_view cut_off(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const std::string_view first = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return first;
}

template <class Value, std::size_t n>
std::optional<Value> one_of(const std::pair<std::string_view, Value> (&table)[n], std::string_view word) {
  for (const auto& [name, value] : table)
    if (name == word) return value;
  return {};
}

std::optional<std::uint64_t> number(std::string_view text, std::uint64_t least, std::uint64_t most) {
  std::uint64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < least || n > most) return {};
  return n;
}

/// Parses one fault, word by word.
class Reader {
 public:
  Reader(std::string_view text, std::string_view source) : source_(source) { fault_.text = text; }

  Result<Fault> read() {
    std::string_view rest = fault_.text;
    const std::string_view action = cut_off(rest, ':');
    const auto known = one_of(kActions, action);
    if (!known) return wrong(action, "kill, stop, delay, corrupt, cut or error, and a colon");
    fault_.action = *known;
    if (rest.empty()) return wrong(fault_.text, "rank=R behind the colon");
    while (!rest.empty()) OURO_TRY(take(cut_off(rest, ',')));
    return complete();
  }

 private:
  Status wrong(std::string_view word, std::string_view expected) const {
    return invalid(fmt::format("{}: '{}' in '{}': expected {}", source_, word, fault_.text, expected));
  }

  Status take(std::string_view word) {
    std::string_view value = word;
    const std::string_view key = cut_off(value, '=');
    const auto counts = [&](std::uint64_t least, std::uint64_t most, auto&& set) -> Status {
      const auto n = number(value, least, most);
      if (!n) return wrong(word, fmt::format("{}= and a number from {} to {}", key, least, most));
      set(*n);
      return {};
    };
    if (std::find(seen_.begin(), seen_.end(), key) != seen_.end())
      return wrong(word, fmt::format("{} once", key));
    seen_.push_back(key);
    if (key == "rank")
      return counts(0, kMaxRanks - 1, [&](std::uint64_t n) { fault_.rank = static_cast<int>(n); });
    if (key == "op") return counts(1, kMost, [&](std::uint64_t n) { fault_.op = n; });
    if (key == "at") {
      const auto at = one_of(kPlaces, value);
      if (!at) return wrong(word, "at=join, at=shrink or at=close");
      fault_.at = *at;
      return {};
    }
    if (key == "every" && fault_.action == Action::delay)
      return counts(1, kMost, [&](std::uint64_t n) { fault_.every = n; });
    if (key == "ms" && fault_.action == Action::delay)
      return counts(1, 86'400'000, [&](std::uint64_t n) { fault_.pause = std::chrono::milliseconds(n); });
    if (key == "what" && fault_.action == Action::error) {
      if (value != "memory" && value != "exit") return wrong(word, "what=memory or what=exit");
      fault_.exits = value == "exit";
      return {};
    }
    if (key == "code" && fault_.action == Action::error)
      return counts(0, 255, [&](std::uint64_t n) { fault_.code = static_cast<int>(n); });
    return wrong(word, fault_.action == Action::delay   ? "rank=R, op=N, at=PLACE, every=M or ms=T"
                       : fault_.action == Action::error ? "rank=R, op=N, at=PLACE, what=memory|exit or code=C"
                                                        : "rank=R, op=N or at=PLACE");
  }

  bool has(std::string_view key) const { return std::find(seen_.begin(), seen_.end(), key) != seen_.end(); }

  Result<Fault> complete() {
    if (fault_.rank < 0) return wrong(fault_.text, "rank=R");
    if (fault_.action == Action::delay && !has("ms")) return wrong(fault_.text, "ms=T");
    if (has("code") && !fault_.exits) return wrong(fault_.text, "code=C with what=exit only");
    if (fault_.at == At::operation) return std::move(fault_);
    if (has("op") || has("every")) return wrong(fault_.text, "op=N (and every=M) or at=PLACE, not both");
    if (fault_.action == Action::corrupt || fault_.action == Action::cut)
      return wrong(fault_.text, "op=N: what is damaged or cut is an operation's");
    if (fault_.at == At::close && fault_.action == Action::error && !fault_.exits)
      return wrong(fault_.text, "op=N, at=join or at=shrink: leaving needs no memory");
    return std::move(fault_);
  }

  const std::string_view source_;
  Fault fault_;
  std::vector<std::string_view> seen_;  // keys read so far
};

}  // namespace

Result<std::vector<Fault>> parse_faults(std::string_view text, std::string_view source) {
  std::vector<Fault> all;
  while (!text.empty()) {
    const std::string_view one = cut_off(text, ';');
    if (one.empty()) continue;
    OURO_ASSIGN(auto fault, Reader(one, source).read());
    all.push_back(std::move(fault));
  }
  return all;
}

Status check_faults(const std::vector<Fault>& faults, int world, bool several_hosts,
                    std::string_view source) {
  for (const Fault& f : faults) {
    if (f.rank >= world)
      return invalid(fmt::format("{}: 'rank={}' in '{}': expected a rank of 0 to {}", source, f.rank, f.text,
                                 world - 1));
    if (f.action == Action::cut && !several_hosts)
      return invalid(fmt::format("{}: '{}': expected a job on several hosts; here there is no line to cut",
                                 source, f.text));
  }
  return {};
}

std::unique_ptr<Faults> Faults::of(const std::vector<Fault>& all, int rank) {
  std::unique_ptr<Faults> mine(new Faults(rank));
  for (const Fault& f : all)
    if (f.rank == rank) mine->faults_.push_back(f);
  return mine->faults_.empty() ? nullptr : std::move(mine);
}

Status Faults::strike(std::string_view what) {
  const std::uint64_t n = operations_.fetch_add(1, std::memory_order_relaxed) + 1;
  bool damage = damage_.exchange(false);
  for (const Fault& f : faults_) {
    if (f.at != At::operation || n < f.op) continue;
    if (f.every == 0 ? n != f.op : (n - f.op) % f.every != 0) continue;
    if (f.action == Action::corrupt) damage = true;
    OURO_TRY(carry_out(f, fmt::format("operation {}, {}", n, what), n == f.op));
  }
  return damage ? to_be_damaged() : Status();
}

Status Faults::to_be_damaged() {
  return Status(
      Failure{.reason = Reason::ring_corrupt,
              .text = "what this rank sends is to be damaged, and no host carries this operation out",
              .rank = -1,
              .detector = kDamage});
}

Status Faults::strike(At at) {
  for (const Fault& f : faults_)
    if (f.at == at)
      OURO_TRY(carry_out(f, at == At::join ? "joining" : at == At::shrink ? "shrinking" : "closing", true));
  return {};
}

bool Faults::is_damage(const Status& s) { return !s.ok() && s.failure()->detector == kDamage; }

/// The one place where the library harms its own process, and only on request.
Status Faults::carry_out(const Fault& f, const std::string& where, bool first) {
  const auto say = [&](std::string_view what) {
    OURO_WARN("OURO_FAULT: rank {}, {}: {} ({})", rank_, where, what, f.text);
  };
  switch (f.action) {
    case Action::kill:
      say("this process kills itself");
      ::kill(getpid(), SIGKILL);
      ::_exit(128 + SIGKILL);  // the first process of a PID namespace cannot kill itself
    case Action::stop:
      say("this process stops itself; SIGCONT lets it go on");
      ::kill(getpid(), SIGSTOP);
      break;
    case Action::delay:
      if (first) say(fmt::format("delayed by {} ms", f.pause.count()));
      std::this_thread::sleep_for(f.pause);
      break;
    case Action::corrupt:
      say("the next thing that it sends is damaged");
      break;
    case Action::cut:
      if (!cut_)
        return invalid(fmt::format("OURO_FAULT: '{}': all ranks of the job are on one host", f.text));
      say("its lines to other hosts go silent");
      if (cut_) cut_();
      break;
    case Action::error:
      if (f.exits) {
        say(fmt::format("this process exits with code {} and closes nothing", f.code));
        ::_exit(f.code);
      }
      say("it finds no memory");
      return {Reason::resource, "out of memory, as OURO_FAULT asked for"};
  }
  return {};
}

}  // namespace ouro::rt
