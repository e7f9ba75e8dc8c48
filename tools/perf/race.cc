// Runs blocks of calls in turn, and determines the winner. See race.h.
#include "tools/perf/race.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tools/perf/measure.h"

namespace ouro::perf {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kFirstCalls = 3;        // after these, one-time work of first calls is done
constexpr int kMostCalls = 400;       // in one block
constexpr double kLeastShare = 0.02;  // minimum share of the call in the time of a loop with writing and
                                      // reading, whatever noise suggests
constexpr double kLeastUs = 1e-3;
constexpr double kLongRoundUs = 1e6;  // of one round of all runners: from there on fewer rounds are enough
constexpr int kFewRounds = 5;
constexpr double kClearShare = 0.75;  // share of the rounds in which a winner must be ahead

/// Writes floats from 1 to 4: their sums are never near values that are slow to add, such as
/// denormal numbers.
void rewrite(std::span<std::byte> in, int i) {
  const float value = static_cast<float>(1 + i % 4);
  std::uint32_t half;
  std::memcpy(&half, &value, sizeof half);
  const std::uint64_t word = std::uint64_t{half} << 32 | half;
  std::size_t at = 0;
  for (; at + sizeof word <= in.size(); at += sizeof word) std::memcpy(in.data() + at, &word, sizeof word);
  if (at < in.size()) std::memcpy(in.data() + at, &word, in.size() - at);  // a barrier has no input
}

std::uint64_t read(std::span<const std::byte> out) {
  std::uint64_t sum = 0, word = 0;
  std::size_t at = 0;
  for (; at + sizeof word <= out.size(); at += sizeof word) {
    std::memcpy(&word, out.data() + at, sizeof word);
    sum += word;
  }
  return sum;
}

class Track {
 public:
  explicit Track(Group& world) : world_(world) {}

  /// us per call of `calls` calls on this rank with writing and reading; with `bare`, of the writing and
  /// reading alone.
  Result<double> block(const Runner& runner, int calls, bool bare = false) {
    OURO_TRY(barrier(world_, kAuto));
    std::uint64_t seen = 0;
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) {
      rewrite(runner.in, i);
      std::atomic_signal_fence(std::memory_order_seq_cst);  // keeps the compiler from merging the rewrites
      if (!bare) OURO_TRY(runner.call());
      seen += read(runner.out);
    }
    const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    sink_ = seen;
    return us / calls;
  }

  /// For each entry, the largest value of all ranks.
  Result<std::vector<double>> slowest(const std::vector<double>& mine) {
    const auto all = collect(world_, mine.data(), mine.size());
    if (!all) return all.status();
    std::vector<double> most(mine.size(), 0);
    for (std::size_t i = 0; i < all->size(); ++i)
      most[i % mine.size()] = std::max(most[i % mine.size()], (*all)[i]);
    return most;
  }

 private:
  Group& world_;
  volatile std::uint64_t sink_ = 0;
};

/// For each runner, the least time of a few calls on the slowest rank.
Result<std::vector<double>> first_calls(Track& track, std::span<const Runner> runners) {
  std::vector<double> least(runners.size(), std::numeric_limits<double>::max());
  for (std::size_t k = 0; k < runners.size(); ++k)
    for (int i = 0; i < kFirstCalls; ++i) {
      const auto us = track.block(runners[k], 1);
      if (!us) return us.status();
      least[k] = std::min(least[k], *us);
    }
  return track.slowest(least);
}

}  // namespace

double Trial::median() const { return measure::median(us); }

double ratio(const Trial& a, const Trial& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(a.us.size(), b.us.size()); ++i) ratios.push_back(a.us[i] / b.us[i]);
  return median(std::move(ratios));
}

double share_ahead(const Trial& a, const Trial& b) {
  const std::size_t rounds = std::min(a.us.size(), b.us.size());
  std::size_t ahead = 0;
  for (std::size_t i = 0; i < rounds; ++i) ahead += b.us[i] < a.us[i] ? 1 : 0;
  return rounds > 0 ? static_cast<double>(ahead) / static_cast<double>(rounds) : 0;
}

std::size_t winner(std::span<const Trial> trials, std::size_t usual, double margin) {
  std::size_t best = usual;
  for (std::size_t i = 0; i < trials.size(); ++i)
    if (!trials[i].us.empty() && trials[i].median() < trials[best].median()) best = i;
  const bool ahead = ratio(trials[usual], trials[best]) > 1 + margin &&
                     share_ahead(trials[usual], trials[best]) >= kClearShare;
  return ahead ? best : usual;
}

Result<std::vector<Trial>> race(Group& world, std::span<const Runner> runners, std::size_t keep,
                                const Effort& effort) {
  Track track(world);
  const auto first = first_calls(track, runners);
  if (!first) return first.status();
  const double best = *std::min_element(first->begin(), first->end());

  std::vector<Trial> trials;
  std::vector<std::size_t> running;  // indexes of the runners that were not given up
  std::vector<int> calls;            // calls in a block, by runner
  double round_us = 0;
  for (std::size_t k = 0; k < runners.size(); ++k) {
    const double us = std::max((*first)[k], kLeastUs);
    trials.push_back({runners[k].name, {}, us});
    calls.push_back(std::clamp(static_cast<int>(effort.block_ms * 1000 / us), 1, kMostCalls));
    if (k != keep && us > effort.block_ms * 1000 && us > effort.hopeless * best) continue;
    running.push_back(k);
    round_us += us * calls.back();
  }
  const int rounds = round_us > kLongRoundUs ? std::min(effort.rounds, kFewRounds) : effort.rounds;
  const int bare_calls = *std::max_element(calls.begin(), calls.end());

  // Each round has the bare loop, then each runner.
  std::vector<double> mine;
  for (int round = 0; round < rounds; ++round) {
    const auto bare = track.block(runners[0], bare_calls, true);
    if (!bare) return bare.status();
    mine.push_back(*bare);
    std::vector<double> us(running.size());
    for (std::size_t i = 0; i < running.size(); ++i) {
      const std::size_t k = round % 2 == 0 ? i : running.size() - 1 - i;
      // Brings its pages and slots into the caches, as in a loop of calls.
      OURO_TRY(runners[running[k]].call());
      const auto took = track.block(runners[running[k]], calls[running[k]]);
      if (!took) return took.status();
      us[k] = *took;
    }
    mine.insert(mine.end(), us.begin(), us.end());
  }
  const auto all = track.slowest(mine);
  if (!all) return all.status();
  const std::size_t width = running.size() + 1;
  std::vector<double> bare;
  for (std::size_t at = 0; at < all->size(); at += width) bare.push_back((*all)[at]);
  const double subtract = median(std::move(bare));
  for (std::size_t i = 0; i < running.size(); ++i)
    for (std::size_t at = i + 1; at < all->size(); at += width)
      trials[running[i]].us.push_back(std::max((*all)[at] - subtract, kLeastShare * (*all)[at]));
  return trials;
}

}  // namespace ouro::perf
