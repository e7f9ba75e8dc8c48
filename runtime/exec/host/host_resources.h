// HostResources: what the operations of a group share on the host; one operation uses it at a time. Owned by
// group, passed to the host executors.
#pragma once
#include "runtime/exec/host/staging_rounds.h"
#include "runtime/exec/host/wiring.h"

namespace ouro::rt {

/// Memory that executors reuse from one operation to the next.
struct Scratch {
  /// Bytes that are reduced at a time before they are written with non-temporal stores: few enough that the
  /// processor overlaps the next reads with the writes.
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
  std::vector<std::byte> bytes;              // accumulators, or tiles of pulled data
  std::vector<const void*> sources, posted;  // by rank: data to fold, and the start of its first part
  std::vector<Scalar> factors;               // by rank; premulsum only
  std::vector<HostMemory::Resolved> inputs, outputs;  // by rank: registered buffers
  alignas(64) std::byte tile[kTile];                  // reduced data, before its non-temporal store
};

/// The objects that an operation uses to run on the host; the running operation has exclusive use
/// of all of it.
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
  /// Whether plans may use single_round.h. Tests clear it to compare single rounds with their flows.
  bool single_rounds = true;
};

}  // namespace ouro::rt
