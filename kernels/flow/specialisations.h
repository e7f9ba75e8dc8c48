// Hand-written loops that replace flows: which flow each loop replaces, by name, and which conditions it
// requires. Executors choose by this table; tests/runtime/exec/host/specialisations_test.cc compares each
// entry with its flow.
#pragma once
#include "kernels/flow/list.h"

namespace ouro::flow {

/// single_round: single_round of the host executor (runtime/exec/host/single_round.h).
/// fused: the kernel that reads and writes the buffers of all ranks (kernels/gpu/fused_body.h).
/// packets: data and flags in the same 16 bytes (kernels/gpu/resident_packets.h).
/// multimem: through a switch that reduces and multicasts (kernels/gpu/resident_switch.h).
enum class Specialisation : std::uint8_t { single_round, fused, packets, multimem };
constexpr std::string_view name(Specialisation s) {
  constexpr std::string_view kNames[] = {"single_round", "fused", "packets", "multimem"};
  return kNames[static_cast<int>(s)];
}

/// Properties of an operation, determined by the executor.
enum Condition : std::uint32_t {
  kSeveralRanks = 1u << 0,
  kOneRound = 1u << 1,        // the whole operation fits into the slots at once
  kEven = 1u << 2,            // all blocks have the same length
  kOneBuffer = 1u << 3,       // the operation is not a batch that runs as one
  kCached = 1u << 4,          // outputs are written through the caches
  kAllReached = 1u << 5,      // one device can access the buffers of all ranks
  kFits = 1u << 6,            // the packets of a channel have room for its share
  kMulticastBound = 1u << 7,  // all ranks have bound memory to a multicast object
};
inline constexpr std::uint32_t kHandRound = kSeveralRanks | kOneRound | kEven | kOneBuffer | kCached;

/// X(specialisation, collective, algorithm, conditions). single_round serves the staged flows whose ranks
/// post inputs only. If two flows compute the same result, the fused kernel is listed for the one whose name
/// implies no medium.
#define OURO_SPECIALISATIONS(X)                       \
  X(single_round, all_reduce, inlined, kHandRound)    \
  X(single_round, all_reduce, oneshot, kHandRound)    \
  X(single_round, reduce_scatter, direct, kHandRound) \
  X(single_round, all_gather, direct, kHandRound)     \
  X(single_round, broadcast, inlined, kHandRound)     \
  X(single_round, broadcast, direct, kHandRound)      \
  X(single_round, reduce, direct, kHandRound)         \
  X(single_round, gather, direct, kHandRound)         \
  X(single_round, scatter, direct, kHandRound)        \
  X(single_round, all_to_all, direct, kHandRound)     \
  X(fused, all_reduce, oneshot, kAllReached)          \
  X(fused, reduce_scatter, direct, kAllReached)       \
  X(fused, all_gather, direct, kAllReached)           \
  X(fused, broadcast, direct, kAllReached)            \
  X(fused, reduce, direct, kAllReached)               \
  X(fused, gather, direct, kAllReached)               \
  X(fused, scatter, direct, kAllReached)              \
  X(fused, all_to_all, direct, kAllReached)           \
  X(packets, all_reduce, oneshot, kFits)              \
  X(multimem, all_reduce, nvls, kMulticastBound)      \
  X(multimem, reduce_scatter, nvls, kMulticastBound)  \
  X(multimem, all_gather, nvls, kMulticastBound)      \
  X(multimem, broadcast, nvls, kMulticastBound)

/// Calls f(Specialisation, Collective, Algorithm, conditions) for every entry.
template <class F>
constexpr void for_each_specialisation(F&& f) {
#define OURO_X(s, c, a, conditions) \
  f(Specialisation::s, Collective::c, Algorithm::a, std::uint32_t{conditions});
  OURO_SPECIALISATIONS(OURO_X)
#undef OURO_X
}

/// Whether `s` may replace this flow under the conditions `holds`.
constexpr bool specialised(Specialisation s, Collective c, Algorithm a, std::uint32_t holds) {
  bool found = false;
  for_each_specialisation(
      [&](Specialisation of, Collective collective, Algorithm algorithm, std::uint32_t needs) {
        found |= of == s && collective == c && algorithm == a && (needs & ~holds) == 0;
      });
  return found;
}
/// The same for a specialisation that needs no chosen algorithm: it has one entry per collective.
constexpr bool specialised(Specialisation s, Collective c, std::uint32_t holds) {
  bool found = false;
  for_each_specialisation([&](Specialisation of, Collective collective, Algorithm, std::uint32_t needs) {
    found |= of == s && collective == c && (needs & ~holds) == 0;
  });
  return found;
}

#define OURO_X(s, c, a, conditions) &&visit(Collective::c, Algorithm::a, [](auto) {})
static_assert(true OURO_SPECIALISATIONS(OURO_X), "each stands for a flow of the list");
#undef OURO_X

}  // namespace ouro::flow
