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
#include "runtime/health/revision.h"

namespace ouro::rt {

/// Watches one operation in 64, on the first member of this host: if they keep missing what is expected of
/// them, it measures with others of the host at the ends of such operations, and if its processors have
/// moved, it proposes another record, which all members of the host take into use with the same operation
/// (revision.h). All calls are of the thread whose turn it is, but those that say otherwise.
class Adaptation {
  friend struct TestAccess;

 public:
  /// Nothing is watched where the record is pinned, off or not known, or does not serve the group. `waiter`:
  /// how its operations wait.
  Adaptation(Context&, const Members&, MemberRecords&, Planner&, Waiter& waiter);

  /// The first ticket of which looks() is to be asked; 0 where all are carried out with care.
  std::uint64_t due() const { return due_; }
  /// Whether the operation is a look. The same on all members.
  bool looks(const Plan&, std::uint64_t ticket);
  /// Operation `seq`, a look, has ended so; returns that outcome. Errors: resource, where there is no memory
  /// to take a record.
  Status after(const Plan&, std::uint64_t seq, std::chrono::nanoseconds took, Status outcome);
  /// The group leaves, at rest; failed: no member takes anything into use any more.
  void leave(bool failed);

  /// What the group reckons with. Thread-safe.
  Calibration record() const;
  /// Since which operation, if it is not the record that the ranks joined with; or "". Thread-safe.
  std::string since() const;

 private:
  void look(std::uint64_t seq);
  void lead(const Plan&, std::chrono::nanoseconds took);
  void sample(const Plan&, std::chrono::nanoseconds took);
  double expected(const Plan&, double took);
  void check_with(int partner);
  void conclude();  ///< all partners have been asked
  void invite(std::uint64_t from);
  void withdraw();
  void take(const Calibration&, std::uint64_t seq);
  Looks looks_of_all();

  Context& context_;
  const Members& members_;
  MemberRecords& records_;
  Planner& planner_;
  Waiter& waiter_;
  const int first_;  // member of this host
  bool watches_ = false, covers_host_ = false;
  std::uint64_t due_, next_;
  RevisionRegister* register_ = nullptr;  // the first member's, once it is known

  // Of the first member.
  Misses misses_[2];                                    // of operations that all depend on, and of others
  Misses* heard_ = misses_;                             // because of which it measures
  std::vector<int> partners_;                           // with whom
  std::size_t asking_;                                  // the next of them; their number: none
  int in_vain_ = 0;                                     // invitations
  bool invited_ = false;                                // to the next look
  std::optional<PairCosts> slowest_;                    // of the partners so far
  std::uint32_t wake_ = 0;                              // the longest of theirs; 0: not known
  std::optional<Calibration> proposal_;                 // to be made
  std::uint64_t last_ = 0, proposed_ = 0;               // look, and number, of the newest in force
  std::function<std::optional<PairCosts>(int)> probe_;  // for tests: instead of other ranks
  struct Known {
    std::uint64_t plan = 0;
    double ns = 0;
    int samples = 0;  // still to come until `ns`, the least of them, counts
  };
  std::vector<Known> known_;  // what is expected, by plan

  mutable std::mutex mutex_;  // of what is below, written in turn
  Calibration record_;
  std::uint64_t revision_ = 0, since_ = 0;
};

}  // namespace ouro::rt
