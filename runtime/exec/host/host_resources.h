// HostResources: what the operations of a group share on the host, one operation at a time. Owned by group,
// passed to the host executors.
#pragma once
#include "runtime/exec/host/staging_rounds.h"
#include "runtime/exec/host/wiring.h"

namespace ouro::rt {

/// Memory that executors keep from operation to operation.
struct Scratch {
  /// Bytes that are reduced at once on their way past the caches: so few that the processor has the next
  /// reads under way during the writes.
  static constexpr std::size_t kTile = 512;
  explicit Scratch(int ranks)
      : sources(static_cast<std::size_t>(ranks)),
        posted(sources.size()),
        factors(sources.size()),
        inputs(sources.size()),
        outputs(sources.size()) {}
  std::byte* need(std::size_t size) {
    if (bytes.size() < size) bytes.resize(size);
    return bytes.data();
  }
  std::vector<std::byte> bytes;              // accumulators, or what was pulled
  std::vector<const void*> sources, posted;  // by rank: what is folded, and where its first part lies
  std::vector<Scalar> factors;               // by rank, of premulsum
  std::vector<HostMemory::Resolved> inputs, outputs;  // by rank: registered buffers
  alignas(64) std::byte tile[kTile];                  // what is reduced on its way past the caches
};

/// What an operation uses to run on the host; whose turn it is has all of it.
struct HostResources {
  HostResources(Context& c, const Members& m, std::uint64_t key, Waiter& w)
      : context(c),
        members(m),
        waiter(w),
        wiring(c, m, key, w),
        rounds(wiring, m, w, c.cores().enough_here()),
        scratch(m.size()) {}
  Context& context;
  const Members& members;
  Waiter& waiter;
  Wiring wiring;
  StagingRounds rounds;
  Scratch scratch;
  /// Whether plans may run single rounds by hand. Tests clear it to compare it with the flow.
  bool single_rounds = true;
};

}  // namespace ouro::rt
