// The three ways to time a call: application loop (A), call by call (B), back to back (C).
// Used by harness.cc.
#pragma once
#include <cstdint>

#include "bench/comparison/peer.h"
#include "bench/comparison/shared.h"

namespace ouro::compare {

enum class Method : std::uint8_t { application, call_by_call, back_to_back };

/// How long one point may take. Slow peers get fewer calls in a block, never fewer than one.
struct Effort {
  int blocks = 7;           ///< of method A; method C takes as many
  double block_ms = 150;    ///< longest block wanted
  double samples_ms = 300;  ///< of method B, at least kLeastSamples samples
};

struct Timing {
  double us = 0;           ///< of one call: median of blocks (A, C) or samples (B), without `overhead_us`
  double p99_us = 0;       ///< 99th percentile of the same; of less than 100 blocks it is the worst
  double overhead_us = 0;  ///< what was subtracted: the loop without the call, the empty operation; 0 in C
  std::int64_t calls = 0;  ///< in total
  bool failed = false;
};

/// Collective over all ranks of the harness; the same result on all of them.
Timing time(Method, Peer&, const Call&, Shared&, Waiting, const Effort&);

}  // namespace ouro::compare
