// The cost of groups before they are used: the 33 of a federated layout with 15 streams, and 1,000
// sub-groups. Run by hand: bin/bench_groups [ranks] (4 unless given)
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "bench/arguments.h"
#include "ouro/train/layout.hpp"

namespace ouro::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRounds = 9, kMany = 1000, kStreams = 15;

/// Milliseconds that this rank took to create the groups; they are destroyed afterwards.
Result<double> layout_ms(Context& c) {
  auto layout = train::ParallelLayout::make({.rank = c.rank(),
                                             .world_size = c.world_size(),
                                             .federations = {c.world_size() / 2, c.world_size() / 2},
                                             .hsdp = 1,
                                             .streams = kStreams});
  OURO_TRY(layout.status());
  const auto begin = Clock::now();
  auto groups = train::create_groups(c, *layout);
  const std::chrono::duration<double, std::milli> took = Clock::now() - begin;
  OURO_TRY(groups.status());
  return took.count();
}
Result<double> many_ms(Context& c) {
  std::vector<Group> groups;
  groups.reserve(kMany);
  const std::vector<int> all(c.world().ranks().begin(), c.world().ranks().end());
  const auto begin = Clock::now();
  for (int k = 0; k < kMany; ++k) {
    auto g = c.group(all, "sub");
    OURO_TRY(g.status());
    groups.push_back(std::move(*g));
  }
  const std::chrono::duration<double, std::milli> took = Clock::now() - begin;
  return took.count();
}

/// Creation does not communicate, so one thread makes the groups of one rank after the other.
Status run(int ranks) {
  auto contexts = Context::threads(ranks);
  OURO_TRY(contexts.status());
  // One kind after the other: the destruction of 1,000 groups slows down the next few.
  const auto rounds = [&contexts](const auto& once) -> Result<std::vector<double>> {
    std::vector<double> ms;
    for (int k = 0; k < kRounds; ++k)
      for (Context& c : *contexts) {
        auto took = once(c);
        OURO_TRY(took.status());
        ms.push_back(*took);
      }
    return ms;
  };
  auto layouts = rounds(layout_ms), manies = rounds(many_ms);
  OURO_TRY(layouts.status());
  OURO_TRY(manies.status());
  fmt::print("a rank of {}; ms: best, median, worst of {}\n", ranks, layouts->size());
  const auto line = [](const char* what, std::vector<double> ms) {
    std::sort(ms.begin(), ms.end());
    fmt::print("{:<40} {:>8.3f} {:>8.3f} {:>8.3f}\n", what, ms.front(), ms[ms.size() / 2], ms.back());
  };
  line("33 groups of a federated layout", *layouts);
  line("1000 sub-groups", *manies);
  return {};
}

}  // namespace
}  // namespace ouro::bench

int main(int argc, char** argv) {
  const std::optional<int> ranks = ouro::bench::number(argc, argv, 1, 4, 2, 256);
  const bool right = ranks && *ranks % 2 == 0 && argc <= 2;
  if (const auto code =
          ouro::bench::help_or_refuse(argc, argv, right, "bench_groups [RANKS]   (even; default 4)"))
    return *code;
  const ouro::Status s = ouro::bench::run(*ranks);
  if (!s.ok()) fmt::print(stderr, "{}\n", s.message());
  return s.ok() ? 0 : 1;
}
