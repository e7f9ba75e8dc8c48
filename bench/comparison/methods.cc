// Blocks and samples, and what is subtracted from them. Every decision is made on values that all ranks
// share. Used by harness.cc.
#include "bench/comparison/methods.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "bench/comparison/pattern.h"
#include "tools/measure/figures.h"

namespace ouro::compare {
namespace {

constexpr std::int64_t kLeastSamples = 15;
constexpr int kLeastBlocks = 3;
constexpr double kLongPoint =
    8;  // if a point takes longer than this many blocks of the wanted length, kLeastBlocks suffice

/// Nearest rank.
double percentile(std::vector<double> v, double p) {
  std::sort(v.begin(), v.end());
  const auto at = static_cast<std::size_t>(std::ceil(p * static_cast<double>(v.size())));
  return v[std::max<std::size_t>(at, 1) - 1];
}

using measure::median;

class Clock {
 public:
  Clock(Peer& peer, const Call& call, Shared& all, Waiting how, const Effort& effort)
      : peer_(peer), call_(call), all_(all), how_(how), effort_(effort) {
    sends_ = call.collective != Collective::broadcast || all.rank() == 0;
  }

  Timing application();
  Timing call_by_call();
  Timing back_to_back();

 private:
  /// Nanoseconds of one loop of `calls`, the slowest rank's.
  double loop(std::int64_t calls, bool with_call, bool with_data);
  /// Number of calls in a block: `wanted`, or as many as fit into the effort. Makes a few calls, which also
  /// warms up.
  std::int64_t fit(std::int64_t wanted, bool with_data);
  int blocks(double block_ns) const;
  std::vector<double> samples(std::int64_t n, bool with_call);
  Timing broken() const { return {.failed = true}; }

  Peer& peer_;
  const Call& call_;
  Shared& all_;
  Waiting how_;
  Effort effort_;
  bool sends_ = true;
  bool ok_ = true;
  volatile std::uint64_t sink_ = 0;
};

double Clock::loop(std::int64_t calls, bool with_call, bool with_data) {
  all_.barrier(how_);
  std::uint64_t seen = 0;
  const std::int64_t begin = now_ns();
  for (std::int64_t i = 0; i < calls; ++i) {
    if (with_data && sends_) rewrite(call_.in, call_.in_bytes(), static_cast<unsigned>(i));
    if (with_call) ok_ = peer_.run(call_) && ok_;
    if (with_data) seen += read(call_.out, call_.out_bytes());
  }
  const std::int64_t mine = now_ns() - begin;
  sink_ = seen;
  return static_cast<double>(all_.max(mine, how_));
}

std::int64_t Clock::fit(std::int64_t wanted, bool with_data) {
  const std::int64_t few = std::min<std::int64_t>(wanted, 4);
  double each = loop(1, true, with_data);
  if (each < effort_.block_ms * 1e6 / 4)
    each = std::min(each, loop(few, true, with_data) / static_cast<double>(few));
  const auto room = static_cast<std::int64_t>(effort_.block_ms * 1e6 / std::max(each, 1.0));
  const std::int64_t calls = std::clamp<std::int64_t>(room, 1, wanted);
  if (static_cast<double>(calls) * each < effort_.block_ms * 1e6 / 2) loop(calls, true, with_data);
  return calls;
}

int Clock::blocks(double block_ns) const {
  if (block_ns * effort_.blocks > kLongPoint * effort_.block_ms * 1e6)
    return std::min(kLeastBlocks, effort_.blocks);
  return effort_.blocks;
}

Timing Clock::application() {
  const std::size_t bytes = std::max(call_.in_bytes(), call_.out_bytes());
  std::int64_t wanted = bytes <= 1024          ? 2000
                        : bytes <= 64 * 1024   ? 400
                        : bytes <= 1024 * 1024 ? 60
                        : bytes <= 16u << 20   ? 6
                                               : 2;
  if (how_ != Waiting::spin) wanted = std::max<std::int64_t>(wanted / 4, 2);
  const std::int64_t calls = fit(wanted, true);
  std::vector<double> with, without;
  int n = effort_.blocks;
  for (int b = 0; b < n; ++b) {
    with.push_back(loop(calls, true, true) / static_cast<double>(calls) / 1000);
    without.push_back(loop(calls, false, true) / static_cast<double>(calls) / 1000);
    if (b == 0) n = blocks(with[0] * static_cast<double>(calls) * 1000);
  }
  // A failure of one rank is a failure of all.
  if (all_.sum(ok_ ? 0 : 1, how_)) return broken();
  const double bare = median(without);
  return {.us = median(with) - bare,
          .p99_us = percentile(with, 0.99) - bare,
          .overhead_us = bare,
          .calls = calls * n};
}

std::vector<double> Clock::samples(std::int64_t n, bool with_call) {
  std::int64_t* mine = all_.samples(all_.rank());
  std::int64_t* releases = all_.samples(all_.ranks());
  for (std::int64_t i = 0; i < n; ++i) {
    all_.barrier(how_);
    if (with_call) ok_ = peer_.run(call_) && ok_;
    mine[i] = now_ns();
    if (all_.rank() == 0) releases[i] = all_.released_ns();
  }
  all_.barrier(how_);
  std::vector<double> us(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t end = 0;
    for (int r = 0; r < all_.ranks(); ++r) end = std::max(end, all_.samples(r)[i]);
    us[static_cast<std::size_t>(i)] = static_cast<double>(end - releases[i]) / 1000;
  }
  all_.barrier(how_);  // the rows may be written again
  return us;
}

Timing Clock::call_by_call() {
  constexpr auto kMost = static_cast<std::int64_t>(kMaxSamples);
  const double first = loop(1, true, false),
               each = std::min(first, loop(4, true, false) / 4) + 500;  // plus a barrier
  const auto n = std::clamp(static_cast<std::int64_t>(effort_.samples_ms * 1e6 / each), kLeastSamples, kMost);
  const std::vector<double> full = samples(n, true);
  const double empty = median(samples(std::min<std::int64_t>(n, 2000), false));
  if (all_.sum(ok_ ? 0 : 1, how_)) return broken();
  return {
      .us = median(full) - empty, .p99_us = percentile(full, 0.99) - empty, .overhead_us = empty, .calls = n};
}

Timing Clock::back_to_back() {
  const std::size_t bytes = std::max(call_.in_bytes(), call_.out_bytes());
  const std::int64_t calls = fit(bytes <= 64 * 1024 ? 50 : bytes <= 1024 * 1024 ? 10 : 4, false);
  std::vector<double> us;
  int n = bytes <= 1024 * 1024 ? effort_.blocks * 5 : effort_.blocks;  // short blocks: more of them
  for (int b = 0; b < n; ++b) {
    us.push_back(loop(calls, true, false) / static_cast<double>(calls) / 1000);
    if (b == 0 && blocks(us[0] * static_cast<double>(calls) * 1000) < effort_.blocks)
      n = std::min(n, kLeastBlocks);
  }
  if (all_.sum(ok_ ? 0 : 1, how_)) return broken();
  return {.us = median(us), .p99_us = percentile(us, 0.99), .calls = calls * n};
}

}  // namespace

Timing time(Method method, Peer& peer, const Call& call, Shared& all, Waiting how, const Effort& effort) {
  clear(call);
  Clock clock(peer, call, all, how, effort);
  switch (method) {
    case Method::application:
      return clock.application();
    case Method::call_by_call:
      return clock.call_by_call();
    case Method::back_to_back:
      return clock.back_to_back();
  }
  return {.failed = true};
}

}  // namespace ouro::compare
