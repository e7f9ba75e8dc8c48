// A group's record in mid-run: noticed to be wrong, measured again, replaced. Used by Group and its host
// operations.
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

namespace ouro::rt {

/// Watches one operation in 64, on the first member: if they keep missing what the model says, it measures
/// with others, at the end of an operation in which all have met, and if its processors have moved, it
/// proposes another record, which all members take into use with the same operation (revision.h). All calls
/// are of the thread whose turn it is, but those that say otherwise.
class Adaptation {
  friend struct TestAccess;

 public:
  /// Nothing is watched where the record is pinned, off or not known, or does not serve the group.
  Adaptation(Context&, const Members&, MemberRecords&, Planner&);

  /// The first ticket of which meets() is to be asked; 0 where all are carried out with care.
  std::uint64_t due() const { return due_; }
  /// Whether the operation is one at which all members look at the record: they have all read something of
  /// each other when they have ended it. The same on all members.
  bool meets(const Plan&, std::uint64_t ticket);
  /// Around operation `seq`, if it meets. after() is told how it ended, and says so again. Errors: resource,
  /// where there is no memory to take a record.
  void before(std::uint64_t seq);
  Status after(const Plan&, std::uint64_t seq, std::chrono::nanoseconds took, Status outcome);

  /// What the group reckons with. Thread-safe.
  Calibration record() const;
  /// Since which operation, if it is not the record that the ranks joined with; or "". Thread-safe.
  std::string since() const;

 private:
  void look(const Plan&, std::uint64_t seq, std::chrono::nanoseconds took);
  void sample(const Plan&, std::chrono::nanoseconds took);
  void check_with(int partner);  ///< at the end of the operation to which it was invited
  void conclude();               ///< all partners have been asked
  Status take(const Calibration&, std::uint64_t seq);
  double predicted(const Plan&);

  Context& context_;
  const Members& members_;
  MemberRecords& records_;
  Planner& planner_;
  bool watches_ = false, covers_host_ = false;
  std::uint64_t due_, next_;
  const GroupRecord* first_ = nullptr;  // the first member's, once it was found

  // Of the first member.
  Misses misses_;
  std::vector<int> partners_;                           // with whom it measures
  std::size_t asking_;                                  // the next of them; their number: none
  int in_vain_ = 0;                                     // invitations
  bool invited_ = false;                                // to the operation under way
  std::optional<PairCosts> slowest_;                    // of the partners so far
  std::optional<Calibration> proposal_;                 // to be made with the next meeting
  std::function<std::optional<PairCosts>(int)> probe_;  // for tests: instead of other ranks
  struct Known {
    std::uint64_t plan = 0;
    double ns = 0;
  };
  std::vector<Known> known_;  // predictions, by plan

  mutable std::mutex mutex_;  // of what is below, written in turn
  Calibration record_;
  std::uint64_t revision_ = 0, since_ = 0;
};

}  // namespace ouro::rt
