// How much of an all-reduce on a stream overlaps with the caller's own work, in cache or bound by memory.
// Run by hand: bin/bench_overlap [ranks ...] (threads; 2 unless given), or ouro-run -n 2 bin/bench_overlap
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "bench/ranks.h"
#include "ouro/ouro.hpp"

namespace ouro::bench {
namespace {

constexpr std::size_t kSizes[] = {64 << 10, 1 << 20, 16 << 20};
constexpr int kRounds = 15;
constexpr std::size_t kCacheFloats = 4096;       // 16 KiB: L1
constexpr std::size_t kMemoryFloats = 16 << 20;  // 64 MiB: above the caches of a core
constexpr std::size_t kPieceFloats = 16 << 10;   // one piece of work bound by memory: 64 KiB read and written

/// Work that the caller has besides communication, in pieces of some microseconds.
class Compute {
 public:
  explicit Compute(bool memory) : memory_(memory), data_(memory ? kMemoryFloats : kCacheFloats, 1.0f) {}
  void run(std::size_t pieces) {
    for (std::size_t i = 0; i < pieces; ++i) {
      const std::size_t n = memory_ ? kPieceFloats : kCacheFloats;
      if (at_ + n > data_.size()) at_ = 0;
      float* p = data_.data() + at_;
      for (std::size_t k = 0; k < n; ++k) p[k] = p[k] * 0.999f + 0.001f;
      at_ += n;
      sink_ = p[0];
    }
  }
  /// How many pieces take about `us`.
  std::size_t pieces_for(double us) {
    constexpr std::size_t kTrial = 200;
    run(kTrial);
    const auto begin = Clock::now();
    run(kTrial);
    return std::max<std::size_t>(1, static_cast<std::size_t>(us / (us_since(begin) / kTrial)));
  }

 private:
  bool memory_;
  std::vector<float> data_;
  std::size_t at_ = 0;
  volatile float sink_ = 0;
};

class Bench {
 public:
  Bench(Context& context, StreamPool pool, bool processes)
      : group_(context.world()), pool_(std::move(pool)), processes_(processes) {}
  Status run();

 private:
  Status row(std::size_t bytes, bool memory);

  Group& group_;
  StreamPool pool_;
  const bool processes_;
  std::vector<float> in_, out_;
};

Status Bench::row(std::size_t bytes, bool memory) {
  const std::size_t count = bytes / sizeof(float);
  in_.assign(count, static_cast<float>(group_.rank() + 1));
  out_.assign(count, -1);
  const Stream stream = pool_.next();
  Compute compute(memory);
  const auto start = [&] {
    return all_reduce(group_, std::span<const float>(in_), std::span(out_), ReduceOp::sum, stream);
  };
  const auto alone = [&]() -> Status {
    const auto work = start();
    return work ? work->wait() : work.status();
  };
  // The work lasts as long as the collective: shorter work cannot hide it, longer work makes that easier.
  std::vector<double> first;
  for (int i = 0; i < kRounds; ++i) {
    OURO_TRY(barrier(group_));
    const auto begin = Clock::now();
    OURO_TRY(alone());
    first.push_back(us_since(begin));
  }
  const auto wanted = slowest(group_, {median(first)});
  if (!wanted) return wanted.status();
  const auto counted = slowest(group_, {static_cast<double>(compute.pieces_for((*wanted)[0]))});
  if (!counted) return counted.status();
  const auto pieces = static_cast<std::size_t>((*counted)[0]);

  enum Way { kCompute, kCollective, kBoth, kWays };
  std::vector<double> mine(kWays * kRounds);
  double wrong = 0;
  for (int round = 0; round < kRounds; ++round)
    for (int k = 0; k < kWays; ++k) {
      const int way = round % 2 == 0 ? k : kWays - 1 - k;
      if (way != kCompute) std::fill(out_.begin(), out_.end(), -1.0f);
      OURO_TRY(barrier(group_));
      const auto begin = Clock::now();
      if (way == kCompute) {
        compute.run(pieces);
      } else if (way == kCollective) {
        OURO_TRY(alone());
      } else {
        const auto work = start();
        if (!work) return work.status();
        compute.run(pieces);
        OURO_TRY(work->wait());
      }
      mine[static_cast<std::size_t>(way * kRounds + round)] = us_since(begin);
      const auto sum = static_cast<float>(group_.size() * (group_.size() + 1) / 2);
      if (way != kCompute)
        wrong +=
            static_cast<double>(count - static_cast<std::size_t>(std::count(out_.begin(), out_.end(), sum)));
    }
  const auto wrong_anywhere = slowest(group_, {wrong});
  if (!wrong_anywhere) return wrong_anywhere.status();
  if ((*wrong_anywhere)[0] > 0)
    return Status(Reason::data_corrupt, fmt::format("wrong results at {} bytes", bytes));
  const auto us = slowest(group_, mine);
  if (!us) return us.status();
  if (group_.rank() != 0) return {};
  std::vector<double> of[kWays], hidden;
  for (int round = 0; round < kRounds; ++round) {
    const auto at = [&](int way) { return (*us)[static_cast<std::size_t>(way * kRounds + round)]; };
    for (int way = 0; way < kWays; ++way) of[way].push_back(at(way));
    hidden.push_back((at(kCompute) + at(kCollective) - at(kBoth)) / at(kCollective));
  }
  fmt::print("{:>10}  {:<8}  {:>10.1f}  {:>10.1f}  {:>10.1f}  {:>6.2f}\n", bytes, memory ? "memory" : "cache",
             median(of[kCompute]), median(of[kCollective]), median(of[kBoth]), median(hidden));
  std::fflush(stdout);
  return {};
}

Status Bench::run() {
  const int n = group_.size(), cpus = processors();
  if (group_.rank() == 0) {
    fmt::print(
        "# {} ranks ({}), each a caller and a stream's thread, on {} processors. float sum, private "
        "buffers,\n"
        "# results checked; medians of {} rounds in turn, us; work as long as the collective alone.\n",
        n, processes_ ? "processes" : "threads", cpus, kRounds);
    fmt::print(
        "# hidden = (compute + collective - both) / collective, in the median round: 1 all of it, 0 nothing, "
        "below 0 worse.\n");
    if (2 * n > cpus)
      fmt::print(
          "# {} threads want to run on {} processors: a stream's copying and adding takes its processor from "
          "the\n"
          "# caller, so only waiting can be hidden here. About 0 is what this machine allows.\n",
          2 * n, cpus);
    fmt::print("#{:>9}  {:<8}  {:>10}  {:>10}  {:>10}  {:>6}\n", "bytes", "bound by", "compute", "collective",
               "both", "hidden");
  }
  for (const bool memory : {false, true})
    for (const std::size_t bytes : kSizes) OURO_TRY(row(bytes, memory));
  return {};
}

}  // namespace
}  // namespace ouro::bench

int main(int argc, char** argv) {
  return ouro::bench::run_ranks(argc, argv, {2}, [](ouro::Context& context, bool processes) -> ouro::Status {
    auto pool = ouro::StreamPool::create();
    if (!pool) return pool.status();
    return ouro::bench::Bench(context, std::move(*pool), processes).run();
  });
}
