// Adaptation: notices in mid-run that a group's record is wrong, measures again and replaces it. Used by
// Group and its watchers.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/calibration/misses.h"
#include "runtime/context/context.h"
#include "runtime/group/member_records.h"
#include "runtime/group/planner.h"
#include "runtime/health/revision.h"

namespace ouro::rt {

/// On the first member of each host, watches one operation in 64. If these keep missing their expected times,
/// the first member measures with other members of the host at the ends of such operations. If its processors
/// have moved, it proposes another record, which all members of the host adopt with the same operation
/// (revision.h). Calls are made by the thread whose turn it is, unless stated otherwise.
class Adaptation {
  friend struct TestAccess;

 public:
  /// Watches nothing if the record is pinned, off or not known, or does not serve the group. `waiter`: that
  /// of the group's operations.
  Adaptation(Context&, const Members&, MemberRecords&, Planner&, Waiter& waiter);

  /// The first ticket for which is_revision_point() is to be called.
  std::uint64_t due() const { return due_; }
  /// Whether the operation is a revision point (revision.h). The same on all members.
  bool is_revision_point(const Plan&, std::uint64_t ticket);
  /// Called when operation `seq`, a revision point, has ended with `outcome`; returns that outcome. Errors:
  /// resource, if there is no memory to adopt a record.
  Status after(const Plan&, std::uint64_t seq, std::chrono::nanoseconds took, Status outcome);
  /// Called when the group, which is at rest, leaves. `failed`: no member adopts a record any more.
  void leave(bool failed);

  /// The record that the group uses. Thread-safe.
  Calibration record() const;
  /// Says since which operation the record is in use; "" if the ranks joined with it. Thread-safe.
  std::string since() const;

 private:
  void pass_revision_point(std::uint64_t seq);
  void lead(const Plan&, std::chrono::nanoseconds took);
  void sample(const Plan&, std::chrono::nanoseconds took);
  struct Known;
  Known* known(const Plan&);
  void check_with(int partner);
  void conclude();  ///< all partners have measured
  void invite(std::uint64_t from);
  void withdraw();
  bool read_first(std::uint64_t from, void* to, std::size_t bytes);
  void take(const Calibration&, std::uint64_t seq);
  RevisionPoints points_of_all();

  Context& context_;
  const Members& members_;
  MemberRecords& records_;
  Planner& planner_;
  Waiter& waiter_;
  const int first_;  // first member of this host
  bool watches_ = false, covers_host_ = false;
  std::uint64_t due_;
  RevisionRegister* register_ = nullptr;  // the first member's, once it is known

  // Used by the first member only.
  /// Ratios to what the model predicts, and to what the same plan took before.
  struct Ratios {
    Misses to_model, to_before = Misses::of_repetitions();
  } ratios_[2];  // of operations in which ranks wait for all others, and of other operations
  Misses* heard_ = &ratios_[0].to_model;   // the one because of which it measures
  std::vector<int> partners_;              // with which it measures
  std::size_t asking_;                     // index of the next; their number: none
  int in_vain_ = 0;                        // failed invitations
  bool invited_ = false;                   // a partner, to the next revision point
  std::optional<PairCosts> slowest_;       // of the partners measured so far
  std::uint32_t wake_ = 0;                 // the longest of the partners; 0: not known
  std::optional<Calibration> proposal_;    // the record to propose
  std::uint64_t last_ = 0, proposed_ = 0;  // revision point, and number, of the newest revision in force
  std::function<std::optional<PairCosts>(int)> probe_;  // for tests: instead of other ranks
  struct Known {
    std::uint64_t plan = 0;
    double model = 0;  // predicted nanoseconds; 0: the model does not know this operation
    double least = 0;  // nanoseconds of the first Misses::kWindow samples
    int samples = 0;   // of these, so far
  };
  std::vector<Known> known_;  // by plan

  mutable std::mutex mutex_;  // guards the members below, which are written in turn
  Calibration record_;
  std::uint64_t revision_ = 0, since_ = 0;
};

}  // namespace ouro::rt
