// The gain of batching many small all-reduces: one by one, and in one group_start/group_end, each also on a
// stream. Run by hand: bin/bench_batch [ranks ...] (threads; 2 and 4 unless given), or ouro-run -n 2
// bin/bench_batch
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "bench/ranks.h"
#include "ouro/ouro.hpp"

namespace ouro::bench {
namespace {

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
  Bench(Context& context, Stream stream, bool processes)
      : group_(context.world()), stream_(std::move(stream)), processes_(processes) {
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
  void report(const std::vector<double>& us, double others) const;
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
  const bool processes_;
  std::vector<Tensor> tensors_;
};

Status Bench::run() {
  // Inputs are written and outputs checked in each round, outside the clock, as a training step would.
  std::vector<double> mine(kWays * kRounds);
  double bad = 0;
  const Others others(processes_);
  for (int round = -kWarmup; round < kRounds; ++round)
    for (int k = 0; k < kWays; ++k) {
      const int way = round % 2 == 0 ? k : kWays - 1 - k, seed = round + kWarmup;
      fill(seed);
      OURO_TRY(barrier(group_));
      const auto begin = Clock::now();
      OURO_TRY(go(static_cast<Way>(way)));
      const double us = us_since(begin);
      OURO_TRY(
          barrier(group_));  // a rank that checks its results must not delay one that still works on its core
      bad += static_cast<double>(wrong(seed));
      if (round >= 0) mine[static_cast<std::size_t>(way * kRounds + round)] = us;
    }
  const auto share = others.share(group_);
  const auto us = slowest(group_, mine);
  const auto all_bad = combine(group_, {bad}, [](double a, double b) { return a + b; });
  for (const Status& s : {share.status(), us.status(), all_bad.status()}) OURO_TRY(s);
  if (group_.rank() == 0) report(*us, *share);
  if ((*all_bad)[0] > 0)
    return Status(Reason::data_corrupt, fmt::format("{} elements were wrong", (*all_bad)[0]));
  return {};
}

void Bench::report(const std::vector<double>& us, double others) const {
  std::size_t bytes = 0;
  for (const Tensor& t : tensors_) bytes += t.in.size() * sizeof(float);
  fmt::print(
      "# {} ranks ({}) on {} processors; {} tensors of 64 B to 64 KiB, log-uniform, {} bytes in all; float "
      "sum\n",
      group_.size(), processes_ ? "processes" : "threads", processors(), kTensors, bytes);
  const auto at = [&](int way, int round) { return us[static_cast<std::size_t>(way * kRounds + round)]; };
  for (int way = 0; way < kWays; ++way) {
    std::vector<double> sorted;
    for (int round = 0; round < kRounds; ++round) sorted.push_back(at(way, round));
    std::sort(sorted.begin(), sorted.end());
    fmt::print("{:<40} {:>9.1f} us   ({:.1f} to {:.1f} in the middle half of {} rounds)\n", kNames[way],
               median(sorted), sorted[kRounds / 4], sorted[kRounds * 3 / 4], kRounds);
  }
  const auto ratio = [&](Way a, Way b) {
    std::vector<double> ratios;
    for (int round = 0; round < kRounds; ++round) ratios.push_back(at(a, round) / at(b, round));
    return median(ratios);
  };
  fmt::print("(b)/(a) {:.2f}   (d)/(c) {:.2f}   (c)/(a) {:.2f}   medians of the rounds' ratios\n",
             ratio(kGroup, kCalls), ratio(kStreamGroup, kStreamCalls), ratio(kStreamCalls, kCalls));
  fmt::print("every element of every round is checked; other programs took {:.0f} % of the processors\n",
             100 * others);
  std::fflush(stdout);
}

}  // namespace
}  // namespace ouro::bench

int main(int argc, char** argv) {
  return ouro::bench::run_ranks(argc, argv, {2, 4},
                                [](ouro::Context& context, bool processes) -> ouro::Status {
                                  auto stream = ouro::Stream::create();
                                  if (!stream) return stream.status();
                                  return ouro::bench::Bench(context, std::move(*stream), processes).run();
                                });
}
