// bench_nccl: the cost of a call of libnccl.so.2 in host mode compared with the same call of the C++
// interface, in one process, in turn. Usage: bench_nccl [RANKS [ROUNDS]]; ranks are threads.
#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "api/nccl/nccl.h"
#include "bench/arguments.h"
#include "ouro/ouro.hpp"
#include "tools/measure/figures.h"

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct Size {
  std::size_t bytes;
  int calls;  // in a round
};
constexpr Size kSizes[] = {{8, 2000}, {1 << 10, 2000}, {64 << 10, 300}, {1 << 20, 30}, {16 << 20, 4}};

[[noreturn]] void give_up(const std::string& why) {
  fmt::print(stderr, "bench_nccl: {}\n", why);
  std::exit(1);
}

/// Nanoseconds of a call of each interface, measured by rank 0 in alternating rounds.
struct Times {
  std::vector<double> ouro, nccl;
};

template <class F>
double time_of(int calls, std::barrier<>& all, F&& call) {
  all.arrive_and_wait();
  const auto begin = Clock::now();
  for (int i = 0; i < calls; ++i) call();
  return 1e9 * Seconds(Clock::now() - begin).count() / calls;
}

void run_rank(ouro::Group& group, ncclComm_t comm, const Size& size, int rounds, std::barrier<>& all,
              Times* times) {
  const std::size_t count = size.bytes / sizeof(float);
  std::vector<float> in(count, 1), out(count);
  const auto by_ouro = [&] {
    if (auto s = ouro::all_reduce(group, ouro::CView(in.data(), count, ouro::DType::f32),
                                  ouro::View(out.data(), count, ouro::DType::f32), ouro::ReduceOp::sum);
        !s.ok())
      give_up(s.message());
  };
  const auto by_nccl = [&] {
    if (ncclAllReduce(in.data(), out.data(), count, ncclFloat32, ncclSum, comm, nullptr) != ncclSuccess)
      give_up(ncclGetLastError(comm));
  };
  for (int round = -2; round < rounds; ++round) {  // two to warm up
    const bool first = round % 2 == 0;             // the order alternates, too
    double a = 0, b = 0;
    if (first) a = time_of(size.calls, all, by_ouro);
    b = time_of(size.calls, all, by_nccl);
    if (!first) a = time_of(size.calls, all, by_ouro);
    if (times && round >= 0) times->ouro.push_back(a), times->nccl.push_back(b);
  }
}

double least(const std::vector<double>& v) { return *std::min_element(v.begin(), v.end()); }

}  // namespace

int main(int argc, char** argv) {
  const auto wanted = ouro::bench::number(argc, argv, 1, 2, 1, 64),
             times_each = ouro::bench::number(argc, argv, 2, 41, 1, 10'000);
  if (const auto end = ouro::bench::help_or_refuse(argc, argv, argc <= 3 && wanted && times_each,
                                                   "bench_nccl [RANKS [ROUNDS]]"))
    return *end;
  const int ranks = *wanted, rounds = *times_each;
  setenv("OURO_NCCL_HOST", "1", 0);
  auto contexts = ouro::Context::threads(ranks);
  if (!contexts.ok()) give_up(contexts.status().message());
  std::vector<ncclComm_t> comms(static_cast<std::size_t>(ranks));
  if (ncclCommInitAll(comms.data(), ranks, nullptr) != ncclSuccess) give_up(ncclGetLastError(nullptr));
  fmt::print("{}\nall_reduce, float, {} ranks as threads, {} rounds in turn; ns a call\n\n",
             ouro_nccl_identity(), ranks, rounds);
  fmt::print("{:>10} {:>12} {:>12} {:>10} {:>12} {:>12} {:>10}\n", "bytes", "C++ median", "nccl median",
             "more", "C++ least", "nccl least", "more");
  for (const Size& size : kSizes) {
    std::barrier<> all(ranks);
    Times times;
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        const auto i = static_cast<std::size_t>(r);
        run_rank((*contexts)[i].world(), comms[i], size, rounds, all, r == 0 ? &times : nullptr);
      });
    for (auto& t : threads) t.join();
    const double a = ouro::measure::median(times.ouro), b = ouro::measure::median(times.nccl);
    fmt::print("{:>10} {:>12.0f} {:>12.0f} {:>10.0f} {:>12.0f} {:>12.0f} {:>10.0f}\n", size.bytes, a, b,
               b - a, least(times.ouro), least(times.nccl), least(times.nccl) - least(times.ouro));
  }
  for (const ncclComm_t c : comms) (void)ncclCommDestroy(c);
  return 0;
}
