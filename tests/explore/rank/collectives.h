// Programs whose ranks run collective operations and check every output. Used by the protocols of links,
// staging buffers and registered memory.
#pragma once
#include <vector>

#include "tests/explore/rank/rank.h"

namespace explore {

struct CollectivesSetting {
  int ranks = 2;
  std::vector<Call> calls;            ///< made one after another, by all ranks
  int ahead = 0;                      ///< number of first calls that rank 0 completes before the others start
  int last = -1;                      ///< number of calls after which the other ranks end; -1: all
  std::vector<bool> registered = {};  ///< by rank: its buffers are registered; empty: none
  bool sleeps = false, brief = false;
  bool wakes = false;  ///< no sleeper may miss its wake-up, except in the window of decision 0003
  int dies = -1;       ///< a rank that may die at any step
  int spurious = 0;    ///< number of spurious wake-ups
};

/// Ranks that run the same operations. Either the outputs are right, or the operation has failed because of
/// a death.
class Collectives final : public Program {
 public:
  explicit Collectives(CollectivesSetting);
  int fibers() const override { return s_.ranks + (s_.dies >= 0); }
  Rules rules() const override;
  void set_up() override;
  void run(int fiber) override;
  void finish() override;

 private:
  struct Buffers {
    std::uint64_t *in, *out;
  };
  static constexpr std::uint64_t kWords = 64;
  static std::uint64_t value(int rank, int call, std::uint64_t i) {
    return (static_cast<std::uint64_t>(rank + 1) << 32) + (static_cast<std::uint64_t>(call + 1) << 16) + i;
  }
  bool is_registered(int rank) const {
    return !s_.registered.empty() && s_.registered[static_cast<std::size_t>(rank)];
  }
  ouro::Status perform(int rank, int call);
  void check_output(int rank, int call);
  void bury();

  CollectivesSetting s_;
  std::vector<const ouro::rt::Members*> members_;
  std::vector<Buffers> own_;                         // private buffers, by rank
  std::vector<std::vector<ouro::rt::Plan*>> plans_;  // by rank and call; used with private buffers
  struct Run;
  Run* run_ = nullptr;  // state of the current execution
};

}  // namespace explore
