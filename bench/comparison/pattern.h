// Inputs whose results are known exactly, and the stores and loads of an application around a call.
// Used by harness.cc (before and after timing) and by methods.cc (within it).
#pragma once
#include <cstddef>
#include <cstdint>

#include "bench/comparison/peer.h"

namespace ouro::compare {

/// Fills this rank's input with small integers that depend on rank, position and salt, and its output with
/// NaN.
void fill(const Call&, int rank, std::uint32_t salt);
/// Elements of this rank's output that differ from the exact result.
std::int64_t wrong(const Call&, int rank, int ranks, std::uint32_t salt);
/// Sets all to zero: repeated sums in place would otherwise overflow to infinity during timing.
void clear(const Call&);

/// Writes the whole buffer with ordinary stores, a different value in each turn.
void rewrite(void* data, std::size_t bytes, unsigned turn);
/// Reads the whole buffer.
std::uint64_t read(const void* data, std::size_t bytes);

}  // namespace ouro::compare
