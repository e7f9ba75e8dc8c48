// Ranks as threads on emulated devices whose calls are counted. Used by the tests of costs.
#pragma once
#include <barrier>
#include <functional>
#include <vector>

#include "kernels/device/counting_gpu.h"
#include "tests/runtime/exec/gpu/device_arena.h"

namespace ouro::test {

/// Installs emulated devices, eight of them, and a CountingGpu over them, while an object lives. All objects
/// use the same devices, because pools of the process keep events of them.
class CountedGpus {
 public:
  CountedGpus() { gpu::install(&counting()); }
  ~CountedGpus() { gpu::install(nullptr); }
  CountedGpus(const CountedGpus&) = delete;
  CountedGpus& operator=(const CountedGpus&) = delete;
  static gpu::CountingGpu& counting();
  static gpu::FakeGpu& devices();
};

/// A rank that returns, also with an error, holds up no other one.
struct LeavesAtTheEnd {
  std::barrier<>& all;
  ~LeavesAtTheEnd() { all.arrive_and_drop(); }
};

/// How an operation is called by each rank.
struct CountedCase {
  const char* path = "leader";
  int ranks = 2;
  std::size_t count = 2;  ///< floats of a rank's arrays
  int calls = 1;          ///< in a row
  bool wait = false;      ///< for the stream, after each call
  bool checked = true;    ///< whether the path must have run, and no other
  bool one_gpu = false;   ///< for all ranks, as always on the leader's path
  From from = From::ouro;
  /// If set, ranks do not wait for their streams until it holds for the calls of all threads, and 0.2 s more.
  std::function<bool(const gpu::CallCounts&)> until = {};
};
/// What a rank has for it. Each array has `count` floats for each rank.
struct CountedRank {
  Group& group;
  std::size_t count;
  Floats in, out;
  Stream stream;
  View input(std::size_t n) const { return View(in.arena.data(), n, DType::f32, in.device); }
  View output(std::size_t n) const { return View(out.arena.data(), n, DType::f32, out.device); }
};
using CountedCall = std::function<Status(CountedRank&)>;

struct Counted {
  std::vector<gpu::CallCounts> ranks;  ///< of each rank's thread, the cheapest first
  gpu::CallCounts total;         ///< of all threads, until then, or until the streams of all ranks have ended
  std::uint64_t pieces() const;  ///< of the ranks' threads
};
/// Counts the calls of `each`, after three that are not counted. Fails the test if a rank fails, or if
/// another path ran.
Counted count_calls(const CountedCase&, const CountedCall& each);

}  // namespace ouro::test
