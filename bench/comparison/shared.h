// The harness's own synchronisation: one mapping shared by all ranks, with a barrier that does not use the
// peer's library. Used by harness.cc and methods.cc.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/comparison/peer.h"

namespace ouro::compare {

inline constexpr int kMaxRanks = 64;
inline constexpr std::size_t kMaxSamples = 100'000;  ///< of one point of method B
inline constexpr std::size_t kIdBytes = 512;

/// How a rank waits for the others: on a core of its own, on a shared one, or on one that other threads need.
enum class Waiting : std::uint8_t { spin, yield, sleep };

std::int64_t now_ns();

class Shared {
 public:
  Shared() = default;
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared();
  /// Maps the file, which the first rank to arrive creates. Its name is removed once all have mapped it.
  Error open(const std::string& path, int rank, int ranks);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  /// Returns when all ranks have arrived. Their earlier writes are then visible. Has no deadline of its own:
  /// the launch has one (an alarm that ends the process).
  void barrier(Waiting);
  /// Time stamp of the last arrival at the barrier that this rank has just left.
  std::int64_t released_ns() const;
  /// The largest of all ranks' values, the same on all ranks. Takes two barriers.
  std::int64_t max(std::int64_t mine, Waiting);
  std::int64_t sum(std::int64_t mine, Waiting);
  /// Samples of method B: one row for each rank, and one for the releases (row `ranks`).
  std::int64_t* samples(int row);
  std::byte* id();  ///< kIdBytes

 private:
  struct Page;
  template <class Fold>
  std::int64_t fold(std::int64_t mine, Waiting, Fold);
  Page* page_ = nullptr;
  std::size_t bytes_ = 0;
  int rank_ = 0, ranks_ = 1;
};

}  // namespace ouro::compare
