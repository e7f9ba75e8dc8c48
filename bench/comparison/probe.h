// The current limits of the machine: hand-off of a cache line, bandwidth between the caches of cores,
// bandwidth of the memory. Used by harness.cc (the hand-off, around each point) and probe_main.cc (all).
#pragma once
#include <vector>

namespace ouro::compare {

/// One way, between the two cores, best of 20 batches of 100. 0 with fewer than two cores.
double handoff_ns(const std::vector<int>& cores);

/// GB/s of two cores together, counted in bytes that the application reads and writes.
struct Memory {
  double read = 0;
  double copy = 0;      ///< 1 read, 1 non-temporal write
  double sum = 0;       ///< 2 reads, 1 non-temporal write: a reduction
  double spread = 0;    ///< 1 read, 2 non-temporal writes
  double in_place = 0;  ///< 4 reads, 3 writes to lines just read
};
Memory memory_gbs(const std::vector<int>& cores);

/// GB/s of one core while its peer does the same, buffers of 64 KiB that move between their caches; medians.
struct Coherence {
  double copy_in = 0;    ///< rep movsb into lines that the peer has read
  double read_peer = 0;  ///< read lines that are dirty in the peer's cache
  double store = 0;      ///< ordinary stores to lines that the peer has read
};
Coherence coherence_gbs(const std::vector<int>& cores);

}  // namespace ouro::compare
