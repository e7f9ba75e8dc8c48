// What batching many small all-reduces is worth: one by one, in one group_start/group_end, both on a stream
// too. Run by hand: bin/bench_batch [ranks ...] (2 and 4 unless given)
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "ouro/ouro.hpp"
#include "runtime/launch.h"
#include "tools/perf/measure.h"
#include "tools/perf/probe.h"
#include "tools/perf/race.h"
#include "tools/run/launcher.h"

namespace ouro::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTensors = 200, kRounds = 31, kWarmup = 5;
constexpr double kLeastBytes = 64, kMostBytes = 64 << 10;
enum Way { kCalls, kGroup, kStreamCalls, kStreamGroup, kWays };
constexpr const char* kNames[kWays] = {"a  single calls", "b  one group",
                                       "c  single calls on a stream, one wait",
                                       "d  one group on a stream, one wait"};

/// Gradients of a small model: sizes log-uniform, the same on all ranks and in all runs.
std::vector<std::size_t> tensor_sizes() {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> log_bytes(std::log(kLeastBytes), std::log(kMostBytes));
  std::vector<std::size_t> counts(kTensors);
  for (std::size_t& c : counts) c = static_cast<std::size_t>(std::exp(log_bytes(random))) / sizeof(float);
  return counts;
}

struct Tensor {
  std::vector<float> in, out;
};

/// Small integers: every order of summation gives the same exact result.
float input(int rank, std::size_t tensor, std::size_t i, int round) {
  return static_cast<float>(
      (static_cast<std::size_t>(rank) * 3 + tensor + i + static_cast<std::size_t>(round)) % 8);
}

class Bench {
 public:
  Bench(Context& context, Stream stream) : group_(context.world()), stream_(std::move(stream)) {
    for (const std::size_t n : tensor_sizes())
      tensors_.push_back({std::vector<float>(n), std::vector<float>(n)});
  }
  Status run();

 private:
  void fill(int round) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      for (std::size_t i = 0; i < tensors_[t].in.size(); ++i)
        tensors_[t].in[i] = input(group_.rank(), t, i, round);
      std::fill(tensors_[t].out.begin(), tensors_[t].out.end(), -1.0f);
    }
  }
  std::size_t wrong(int round) const {
    std::size_t wrong = 0;
    for (std::size_t t = 0; t < tensors_.size(); ++t)
      for (std::size_t i = 0; i < tensors_[t].out.size(); ++i) {
        float sum = 0;
        for (int r = 0; r < group_.size(); ++r) sum += input(r, t, i, round);
        wrong += tensors_[t].out[i] != sum ? 1 : 0;
      }
    return wrong;
  }
  Status submit(bool on_stream) {
    for (Tensor& t : tensors_) {
      const CView in{std::span<const float>(t.in)};
      const View out{std::span<float>(t.out)};
      OURO_TRY(on_stream ? all_reduce(group_, in, out, ReduceOp::sum, stream_).status()
                         : all_reduce(group_, in, out));
    }
    return {};
  }
  Status go(Way way) {
    const bool grouped = way == kGroup || way == kStreamGroup, on_stream = way >= kStreamCalls;
    if (grouped) group_start();
    const Status submitted = submit(on_stream);
    const Status ended = grouped ? group_end() : Status();
    OURO_TRY(submitted);
    OURO_TRY(ended);
    return on_stream ? stream_.synchronize() : Status();
  }

  Group& group_;
  Stream stream_;
  std::vector<Tensor> tensors_;
};

Status Bench::run() {
  // Inputs are written and outputs checked in each round, outside the clock, as a training step would.
  std::vector<double> mine;
  double bad = 0;
  const double host = perf::host_cpu_seconds(), own = perf::process_cpu_seconds();
  const auto start = Clock::now();
  for (int round = -kWarmup; round < kRounds; ++round)
    for (int k = 0; k < kWays; ++k) {
      const auto way = static_cast<Way>(round % 2 == 0 ? k : kWays - 1 - k);
      fill(round + kWarmup);
      OURO_TRY(barrier(group_));
      const auto begin = Clock::now();
      OURO_TRY(go(way));
      const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
      bad += static_cast<double>(wrong(round + kWarmup));
      if (round >= 0 && mine.empty()) mine.resize(static_cast<std::size_t>(kRounds * kWays));
      if (round >= 0) mine[static_cast<std::size_t>(way * kRounds + round)] = us;
    }
  const double wall = std::chrono::duration<double>(Clock::now() - start).count();
  mine.insert(mine.end(), {bad, perf::process_cpu_seconds() - own});
  const auto all = perf::collect(group_, mine.data(), mine.size());
  if (!all) return all.status();
  if (group_.rank() != 0) return bad > 0 ? Status(Reason::data_corrupt, "wrong results") : Status();

  std::vector<perf::Trial> ways(kWays);
  const auto n = static_cast<std::size_t>(group_.size());
  const auto value = [&](std::size_t r, std::size_t i) { return (*all)[r * mine.size() + i]; };
  for (std::size_t i = 0; i + 2 < mine.size(); ++i) {
    double slowest = 0;
    for (std::size_t r = 0; r < n; ++r) slowest = std::max(slowest, value(r, i));
    ways[i / kRounds].us.push_back(slowest);
  }
  double wrong = 0, ours = 0;
  for (std::size_t r = 0; r < n; ++r) wrong += value(r, mine.size() - 2), ours += value(r, mine.size() - 1);
  std::size_t bytes = 0;
  for (const Tensor& t : tensors_) bytes += t.in.size() * sizeof(float);
  fmt::print(
      "# {} ranks (processes) on {} processors; {} tensors of 64 B to 64 KiB, log-uniform, {} bytes in all; "
      "float sum\n",
      n, perf::host_cpus(), kTensors, bytes);
  for (int k = 0; k < kWays; ++k) {
    std::vector<double> sorted = ways[static_cast<std::size_t>(k)].us;
    std::sort(sorted.begin(), sorted.end());
    fmt::print("{:<40} {:>9.1f} us   ({:.1f} to {:.1f} in the middle half of {} rounds)\n", kNames[k],
               perf::median(sorted), sorted[kRounds / 4], sorted[kRounds * 3 / 4], kRounds);
  }
  fmt::print("(b)/(a) {:.2f}   (d)/(c) {:.2f}   (c)/(a) {:.2f}   medians of the rounds' ratios\n",
             perf::ratio(ways[kGroup], ways[kCalls]), perf::ratio(ways[kStreamGroup], ways[kStreamCalls]),
             perf::ratio(ways[kStreamCalls], ways[kCalls]));
  const double others = std::max(0.0, (perf::host_cpu_seconds() - host - ours) / wall / perf::host_cpus());
  fmt::print("results: {}; other programs took {:.0f} % of the processors\n",
             wrong > 0 ? fmt::format("WRONG, {} elements", wrong) : "right, every element of every round",
             100 * others);
  return wrong > 0 ? Status(Reason::data_corrupt, "wrong results") : Status();
}

int run_rank() {
  auto context = Context::from_env();
  auto stream = Stream::create();
  Status s = !context ? context.status() : !stream ? stream.status() : Status();
  if (s) s = Bench(*context, std::move(*stream)).run();
  if (s) s = context->close();
  if (!s) fmt::print(stderr, "bench_batch: {}\n", s.message());
  return s ? 0 : 1;
}

}  // namespace
}  // namespace ouro::bench

int main(int argc, char** argv) {
  const auto launch = ouro::discover();
  if (launch && launch->launcher != "none") return ouro::bench::run_rank();
  std::vector<std::string> counts(argv + 1, argv + argc);
  if (counts.empty()) counts = {"2", "4"};
  for (const std::string& text : counts) {
    ouro::run::RunOptions options;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), options.ranks);
    if (error != std::errc{} || *end != '\0' || options.ranks < 1) {
      fmt::print(stderr, "bench_batch: '{}' is no number of ranks\n", text);
      return 2;
    }
    options.prefix = false, options.name = "bench_batch", options.timeout_s = 120;
    const auto code = ouro::run::run_ranks(options, {argv[0]});
    if (!code) fmt::print(stderr, "bench_batch: {}\n", code.status().message());
    if (!code || *code != 0) return code ? *code : 1;
  }
  return 0;
}
