// Faults that a user has asked for (OURO_FAULT), for tests of how a program takes them: their grammar, and
// what carries them out. Used by Context, groups, the API and ouro-run.
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

/// One fault of one rank: what happens, and when.
struct Fault {
  enum class Action : std::uint8_t { kill, stop, delay, corrupt, cut, error };
  enum class At : std::uint8_t { operation, join, shrink, close };
  Action action = Action::kill;
  int rank = -1;            ///< of the job
  At at = At::operation;    ///< what this rank is about to do
  std::uint64_t op = 1;     ///< the operation, from 1: collectives that it begins and messages that it posts
  std::uint64_t every = 0;  ///< again with each so manieth operation after that; 0: once
  std::chrono::milliseconds pause{0};  ///< of a delay
  bool exits = false;                  ///< error: the process ends; else the rank finds no memory
  int code = 0;                        ///< with which it exits
  std::string text;                    ///< as it was written
};

/// The faults that OURO_FAULT, or `source`, asks for, separated by semicolons:
///
///   ACTION:rank=R[,op=N|,at=join|shrink|close][,every=M][,ms=T][,what=memory|exit][,code=C]
///
/// Errors: invalid; the text has the word that cannot be read and what was expected there.
Result<std::vector<Fault>> parse_faults(std::string_view text, std::string_view source = "OURO_FAULT");
/// invalid if one is of a rank that a job of `world` ranks does not have, or cuts lines that it does not
/// have.
Status check_faults(const std::vector<Fault>&, int world, bool several_hosts,
                    std::string_view source = "OURO_FAULT");

/// Carries out the faults of one rank, each with a warning that says so. Thread-safe.
class Faults {
 public:
  /// nullptr if none of them is of this rank.
  static std::unique_ptr<Faults> of(const std::vector<Fault>&, int rank);

  /// An operation begins, or a message is posted: `what` names it. Errors: what the operation is to return;
  /// or it is to be damaged (is_damage).
  Status strike(std::string_view what);
  /// A part of an operation begins that has begun: it is to be damaged (is_damage), or nothing.
  Status strike_part() { return damage_.exchange(false) ? to_be_damaged() : Status(); }
  /// This rank is about to join, shrink or close.
  Status strike(Fault::At);
  /// What was to be damaged sends nothing: the next operation is, instead. `within_host`: it sends nothing to
  /// other hosts, so the next is damaged within this one.
  void postpone_damage(bool within_host = false) { within_host_ = within_host, damage_ = true; }
  bool damages_within_host() const { return within_host_; }
  static bool is_damage(const Status&);

  /// How the lines to other hosts are cut.
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
