// compare_probe: prints the current limits of the machine as one JSON object. Started by bench/compare before
// and after. Usage: compare_probe CORES, for example compare_probe 0,1
#include <cstdio>

#include "bench/comparison/harness.h"
#include "bench/comparison/probe.h"

int main(int argc, char** argv) {
  using namespace ouro::compare;
  if (argc != 2) {
    std::fprintf(stderr, "usage: compare_probe CORES, for example compare_probe 0,1\n");
    return 2;
  }
  die_with_parent(60);
  const std::vector<int> cores = parse_cores(argv[1]);
  const double handoff = handoff_ns(cores);
  const Memory m = memory_gbs(cores);
  const Coherence c = coherence_gbs(cores);
  std::printf(
      "{\"handoff_ns\":%.1f,\"read_gbs\":%.2f,\"copy_gbs\":%.2f,\"sum_gbs\":%.2f,\"spread_gbs\":%.2f,"
      "\"in_place_gbs\":%.2f,\"copy_in_gbs\":%.2f,\"read_peer_gbs\":%.2f,\"store_gbs\":%.2f}\n",
      handoff, m.read, m.copy, m.sum, m.spread, m.in_place, c.copy_in, c.read_peer, c.store);
  return 0;
}
