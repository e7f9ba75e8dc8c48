// Faults that a user requests (OURO_FAULT), to test how a program handles them: their grammar, and their
// execution. Used by Context, groups, the API and ouro-run.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/status.h"

namespace ouro::rt {

/// One fault of one rank: its effect, and when it happens.
struct Fault {
  enum class Action : std::uint8_t { kill, stop, delay, corrupt, cut, error };
  enum class At : std::uint8_t { operation, join, shrink, close };
  Action action = Action::kill;
  int rank = -1;          ///< rank in the job
  At at = At::operation;  ///< the event before which it happens
  std::uint64_t op =
      1;  ///< number of the operation, from 1: collectives that the rank begins and messages that it posts
  std::uint64_t every = 0;             ///< repeats with every M-th operation after that; 0: once
  std::chrono::milliseconds pause{0};  ///< length of a delay
  bool exits = false;                  ///< error: the process exits; otherwise the rank runs out of memory
  int code = 0;                        ///< exit code
  std::string text;                    ///< the fault as written by the user
};

/// Parses the faults that OURO_FAULT, or `source`, requests, separated by semicolons:
///
///   ACTION:rank=R[,op=N|,at=join|shrink|close][,every=M][,ms=T][,what=memory|exit][,code=C]
///
/// Errors: invalid; the text names the word that cannot be parsed and what was expected.
Result<std::vector<Fault>> parse_faults(std::string_view text, std::string_view source = "OURO_FAULT");
/// Error invalid: a fault names a rank outside a job of `world` ranks, or cuts lines to other hosts in a job
/// on one host.
Status check_faults(const std::vector<Fault>&, int world, bool several_hosts,
                    std::string_view source = "OURO_FAULT");

/// Executes the faults of one rank, each with a warning that announces it. Thread-safe.
class Faults {
 public:
  /// nullptr if none of them is for this rank.
  static std::unique_ptr<Faults> of(const std::vector<Fault>&, int rank);

  /// Called when an operation begins, or a message is posted; `what` names it. Errors: the error that the
  /// operation is to return; or a request to damage its data (is_damage).
  Status strike(std::string_view what);
  /// Called when a further part of an operation begins; returns a pending request to damage data
  /// (is_damage), or ok.
  Status strike_part() { return damage_.exchange(false) ? to_be_damaged() : Status(); }
  /// Called when this rank is about to join, shrink or close.
  Status strike(Fault::At);
  /// The operation that was to be damaged sends nothing, so the next one is damaged instead. `within_host`:
  /// it sends nothing to other hosts, so the next one is damaged within this host.
  void postpone_damage(bool within_host = false) { within_host_ = within_host, damage_ = true; }
  bool damages_within_host() const { return within_host_; }
  static bool is_damage(const Status&);

  /// Sets the function that cuts the lines to other hosts.
  void when_cut(std::function<void()> cut) { cut_ = std::move(cut); }

 private:
  explicit Faults(int rank) : rank_(rank) {}
  static Status to_be_damaged();
  Status carry_out(const Fault&, const std::string& where, bool first);

  const int rank_;
  std::vector<Fault> faults_;
  std::function<void()> cut_;
  std::atomic<std::uint64_t> operations_{0};
  std::atomic<bool> damage_{false}, within_host_{false};
};

}  // namespace ouro::rt
