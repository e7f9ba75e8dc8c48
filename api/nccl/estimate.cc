// The model of ncclGroupSimulateEnd. See estimate.h.
#include "api/nccl/estimate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

namespace ouro::nccl {
namespace {

// Microseconds until another rank sees written data: through memory; if ranks must share cores;
// over a network.
constexpr double kHandOver = 0.5, kSwitch = 4, kMessage = 30;
constexpr double kNetwork = 1e3;  // bytes per microsecond between two hosts: 8 Gbit/s

/// Bytes per microsecond that one core copies from uncached memory.
double copy_speed() {
  static const double speed = [] {
    const std::size_t bytes = 16 << 20;
    std::vector<char> from(bytes, 1), to(bytes, 2);
    double best = 1;
    for (int i = 0; i < 3; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      std::memcpy(to.data(), from.data(), bytes);
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
      best = std::max(best, static_cast<double>(bytes) / std::max(took.count(), 1.0));
      from[static_cast<std::size_t>(i)] = to[static_cast<std::size_t>(i)];
    }
    return best;
  }();
  return speed;
}

/// The work of one rank: rounds in which ranks wait for each other, bytes that it reads or writes in memory,
/// bytes that leave or reach a host.
struct Effort {
  double rounds = 0, moved = 0, sent = 0;
};

Effort effort_of(const Call& c, double n, double hosts) {
  const double m = static_cast<double>(c.count * size_of(c.type));  // bytes of one block
  const double log = std::ceil(std::log2(std::max(n, 2.0)));
  const double away = (hosts - 1) / hosts;  // share of evenly spread data that is on other hosts
  switch (c.collective) {
    case Collective::all_reduce:  // into shared memory, one part reduced, all parts out of it
      return {.rounds = 2, .moved = 4 * m, .sent = 2 * away * m};
    case Collective::reduce:
      return {.rounds = log, .moved = (1 + n) * m, .sent = away * m};
    case Collective::broadcast:
      return {.rounds = log, .moved = 2 * m, .sent = away * m};
    case Collective::all_gather:
      return {.rounds = 1, .moved = (1 + n) * m, .sent = away * n * m};
    case Collective::reduce_scatter:
      return {.rounds = 1, .moved = 2 * n * m, .sent = away * n * m};
    case Collective::all_to_all:
      return {.rounds = 1, .moved = 2 * n * m, .sent = away * n * m};
    case Collective::gather:
    case Collective::scatter:
      return {.rounds = 1, .moved = (1 + n) * m, .sent = away * n * m};
    default:  // a message
      return {.rounds = 1, .moved = m, .sent = hosts > 1 && c.root != c.comm->rank ? m : 0};
  }
}

}  // namespace

double estimate(const std::vector<Call>& calls) {
  std::map<ncclComm_t, double> times;
  for (const Call& c : calls) {
    const double n = c.comm->size;
    if (c.count == 0) continue;
    const double hosts = c.comm->hosts, here = n / hosts;
    const Effort w = effort_of(c, n, hosts);
    if (n == 1) {
      times[c.comm] += w.moved / 2 / copy_speed();
      continue;
    }
    const double cores = std::max(1u, std::thread::hardware_concurrency());
    // How often the ranks of a host take turns on the cores.
    const double turns = std::max(1.0, here / cores);
    times[c.comm] += w.rounds * (here > cores ? kSwitch * turns : kHandOver) + turns * w.moved / copy_speed();
    if (hosts > 1) times[c.comm] += w.rounds * kMessage + here * w.sent / kNetwork;
  }
  double longest = 0;
  for (const auto& [comm, time] : times) longest = std::max(longest, time);
  return longest;
}

}  // namespace ouro::nccl
