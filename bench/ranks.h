// Ranks of a benchmark: processes under ouro-run, else threads of this program; and reductions of figures
// over all of them. Used by bench_batch, bench_decentralised and bench_overlap.
#pragma once
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/arguments.h"
#include "ouro/ouro.hpp"
#include "runtime/join/launch.h"
#include "tools/measure/figures.h"

namespace ouro::bench {

using Clock = std::chrono::steady_clock;
using measure::median;
inline double us_since(Clock::time_point t) {
  return std::chrono::duration<double, std::micro>(Clock::now() - t).count();
}

/// Combines the values of all ranks element by element with `pick`: std::max gives those of the slowest rank,
/// std::plus sums. Collective.
template <class Pick>
Result<std::vector<double>> combine(Group& g, const std::vector<double>& mine, Pick pick) {
  std::vector<double> all(mine.size() * static_cast<std::size_t>(g.size()));
  OURO_TRY(all_gather(g, std::span<const double>(mine), std::span(all)));
  std::vector<double> combined(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(mine.size()));
  for (std::size_t i = mine.size(); i < all.size(); ++i)
    combined[i % mine.size()] = pick(combined[i % mine.size()], all[i]);
  return combined;
}
inline Result<std::vector<double>> slowest(Group& g, const std::vector<double>& mine) {
  return combine(g, mine, [](double a, double b) { return std::max(a, b); });
}

inline int processors() { return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)); }

/// Share of the processors that programs other than the ranks have taken since this object was made.
class Others {
 public:
  explicit Others(bool processes) : processes_(processes) {}
  Result<double> share(Group& g) const {
    const double all = measure::host_cpu_seconds() - all_, wall = us_since(begin_) * 1e-6;
    const auto ours = combine(g, {measure::process_cpu_seconds() - own_},
                              [this](double a, double b) { return processes_ ? a + b : a; });
    if (!ours) return ours.status();
    return std::max(0.0, (all - (*ours)[0]) / wall / processors());
  }

 private:
  const bool processes_;
  const Clock::time_point begin_ = Clock::now();
  const double all_ = measure::host_cpu_seconds(), own_ = measure::process_cpu_seconds();
};

/// Runs `rank(context, processes)` on each rank of each job: of this process's under a launcher, else of as
/// many threads as each argument says, or `counts` if there is none. The exit code.
inline int run_ranks(int argc, char** argv, std::vector<int> counts,
                     const std::function<Status(Context&, bool processes)>& rank) {
  const auto one = [&](Context& c, bool processes) {
    Status s = rank(c, processes);
    if (s) s = c.close();
    if (!s) {
      fmt::print(stderr, "{}: rank {}: {}\n", argv[0], c.rank(), s.message());
      c.world().abort("a rank gave up");
    }
    return s ? 0 : 1;
  };
  const std::string usage = fmt::format("{0} [RANKS...]   (threads; default {1}), or ouro-run -n N {0}",
                                        argv[0], fmt::join(counts, " "));
  if (const auto code = help_or_refuse(argc, argv, true, usage.c_str())) return *code;
  const auto launch = discover();
  if (launch && launch->launcher != "none") {
    auto context = Context::from_env();
    if (context) return one(*context, true);
    fmt::print(stderr, "{}: {}\n", argv[0], context.status().message());
    return 1;
  }
  if (argc > 1) counts.clear();
  for (int i = 1; i < argc; ++i) {
    const std::optional<int> n = number(argc, argv, i, 0, 1, 256);
    if (const auto code = help_or_refuse(argc, argv, n.has_value(), usage.c_str())) return *code;
    counts.push_back(*n);
  }
  std::atomic<int> worst = 0;  // joined before it is read: no ordering needed
  for (const int n : counts) {
    auto contexts = Context::threads(n);
    if (!contexts) {
      fmt::print(stderr, "{}: {}\n", argv[0], contexts.status().message());
      return 1;
    }
    std::vector<std::jthread> threads;
    for (Context& c : *contexts)
      threads.emplace_back([&] {
        if (one(c, false) != 0) worst.store(1, std::memory_order_relaxed);
      });
  }
  return worst.load(std::memory_order_relaxed);
}

}  // namespace ouro::bench
