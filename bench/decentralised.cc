// Compares a decentralised training step with the greater of its computation and its communication, and the
// fused mix, AccumAdamW and message with the same in separate passes. Run by hand: bin/bench_decentralised
// [ranks ...] (threads; 2 unless given), or ouro-run -n 2 bin/bench_decentralised
#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "bench/ranks.h"
#include "ouro/train/gossip.hpp"

namespace ouro::bench {
namespace {

constexpr std::size_t kParameters = 16;
constexpr int kRounds = 15, kWarmUp = 3;

/// Forward and backward pass: two pieces for each parameter, which together last a given time. They run on
/// the caller's core, in its cache; or "away", as on an accelerator: the caller sleeps until a piece is done.
class Compute {
 public:
  Compute(double us, bool away) : away_(away), piece_us_(us / (2 * kParameters)) {
    prctl(PR_SET_TIMERSLACK, 1);
    run(200);
    const auto begin = Clock::now();
    run(200);
    turns_ = static_cast<int>(piece_us_ / (us_since(begin) / 200)) + 1;
  }
  void start() { done_ = Clock::now(); }
  void piece() {
    if (!away_) return run(turns_);
    done_ += std::chrono::nanoseconds(static_cast<std::int64_t>(piece_us_ * 1e3));
    std::this_thread::sleep_until(done_);
  }

 private:
  void run(int turns) {
    for (int i = 0; i < turns; ++i) {
      for (float& x : data_) x = x * 0.999f + 0.001f;
      sink_ = data_[0];
    }
  }
  const bool away_;
  const double piece_us_;
  std::vector<float> data_ = std::vector<float>(4096, 1.0f);
  int turns_ = 1;
  Clock::time_point done_;  // when the accelerator is done with all pieces so far
  volatile float sink_ = 0;
};

struct Model {
  std::vector<std::vector<float>> values, grads;
  std::vector<train::Param> params;
  explicit Model(std::size_t count) : values(kParameters), grads(kParameters) {
    for (std::size_t i = 0; i < kParameters; ++i) {
      values[i].assign(count, 1.0f);
      grads[i].assign(count, 1e-3f);
      params.push_back({fmt::format("{}", i), std::span(values[i]), std::span(grads[i]), {}});
    }
  }
};

Status step(train::GossipTrainer& t, Compute& compute) {
  OURO_TRY(t.begin_step());
  compute.start();
  for (std::size_t i = 0; i < kParameters; ++i) compute.piece();  // forward
  for (std::size_t i = kParameters; i-- > 0;) {
    compute.piece();
    OURO_TRY(t.grad_ready(static_cast<int>(i)));
  }
  return t.end_backward();
}

/// Runs `run` on all ranks at once. Returns the median of the slowest rank.
template <class F>
Result<double> time_of(Group& g, F&& run) {
  std::vector<double> us;
  for (int round = -kWarmUp; round < kRounds; ++round) {
    OURO_TRY(barrier(g));
    const auto begin = Clock::now();
    OURO_TRY(run());
    if (round >= 0) us.push_back(us_since(begin));
  }
  const auto all = slowest(g, {median(us)});
  OURO_TRY(all.status());
  return (*all)[0];
}

Result<train::GossipTrainer> trainer(Group& g, Model& model, const train::Topology& topology) {
  const double parameter_mb = static_cast<double>(model.params[0].value.bytes()) / (1 << 20);
  return train::GossipTrainer::create(g, model.params, {},
                                      {.topology = topology,
                                       .optimizer = train::optim_fn_accum_adamw(),
                                       .bucket_mb = 4 * parameter_mb});  // four buckets
}

/// `work`: duration of the passes, in exchanges.
Status row(Group& g, const char* name, std::size_t bytes, bool away, int work) {
  const std::size_t count = bytes / kParameters / sizeof(float);
  const auto topology = train::Topology::make(name, g.size());
  OURO_TRY(topology.status());
  const auto alone = train::Topology::make("complete", 1);
  OURO_TRY(alone.status());
  auto myself = g.split(g.rank(), 0);
  OURO_TRY(myself.status());

  std::vector<float> block(bytes / sizeof(float), 1.0f);
  int turn = 0;
  const auto exchange = time_of(g, [&] {
    const train::Row row = topology->row(turn++, g.rank());
    return train::mix(g, {0, row.in, row.out}, std::span<const float>(block), std::span(block));
  });
  OURO_TRY(exchange.status());
  Compute compute(*exchange * work, away);
  const auto timed = [&](const train::Topology& t) -> Result<double> {
    Model model(count);
    auto made = trainer(t.size() == 1 ? *myself : g, model, t);
    OURO_TRY(made.status());
    const auto us = time_of(g, [&] { return step(*made, compute); });
    OURO_TRY(us.status());
    OURO_TRY(made->close());
    return *us;
  };
  const auto computing = timed(*alone), both = timed(*topology);
  OURO_TRY(computing.status());
  OURO_TRY(both.status());
  if (g.rank() == 0)
    fmt::print("{:>10}  {:<9}  {:<6} {:>4}  {:>10.0f}  {:>10.0f}  {:>10.0f}  {:>8.3f}  {:>8.3f}\n", bytes,
               name, away ? "away" : "here", work, *computing, *exchange, *both,
               *both / std::max(*computing, *exchange), *both / (*computing + *exchange));
  std::fflush(stdout);
  return {};
}

/// One rank alone: mixing, AccumAdamW and the next message, fused and one after the other.
Status fused(Group& g) {
  if (g.rank() != 0) return barrier(g);
  constexpr std::size_t kCount = 8 << 20;
  std::vector<float> p(kCount, 1), grad(kCount, 1e-3f), m(kCount), v(kCount), a(kCount),
      message(kCount, 0.5f);
  std::int64_t steps = 0;
  const auto view = [](std::vector<float>& x) { return View(std::span(x)); };
  train::AccumAdamState state{View(std::span(&steps, 1)), view(m), view(v), view(a), {}};
  const train::AccumAdamOptions options{
      .lr = 1e-4, .weight_decay = 0.1, .decoupled = true, .lazy_zero = true};
  const train::Row row{0.5, {{1, 0.5}}, {1}};
  const auto in_one = [&] {
    return train::mix_accum_adam(view(p), view(grad), row, view(message), 1, view(message), state, options);
  };
  const auto apart = [&]() -> Status {
    float *x = p.data(), *in = message.data();
    for (std::size_t i = 0; i < kCount; ++i) x[i] *= 0.5f;
    for (std::size_t i = 0; i < kCount; ++i) x[i] += in[i];
    OURO_TRY(train::accum_adam(view(p), view(grad), state, options));
    std::memcpy(in, x, kCount * sizeof(float));
    for (std::size_t i = 0; i < kCount; ++i) in[i] *= 0.5f;
    return {};
  };
  const auto ms = [&](auto&& run) -> Result<double> {
    std::vector<double> us;
    for (int round = 0; round < kRounds; ++round) {
      const auto begin = Clock::now();
      for (int k = 0; k < 4; ++k) OURO_TRY(run());  // a window
      us.push_back(us_since(begin) / 4);
    }
    return median(us) / 1e3;
  };
  const auto one = ms(in_one), five = ms(apart);
  OURO_TRY(one.status());
  OURO_TRY(five.status());
  fmt::print(
      "# mix, AccumAdamW (K = 4), message, {} M float parameters, one thread: fused {:.2f} ms, in passes "
      "{:.2f} "
      "ms, {:.2f} times\n",
      kCount >> 20, *one, *five, *five / *one);
  return barrier(g);
}

Status run(Context& context, bool processes) {
  Group& g = context.world();
  if (g.rank() == 0) {
    fmt::print(
        "# {} ranks ({}), each a caller and four streams' threads, on {} processors. float, AccumAdamW, "
        "four buckets;\n# medians of {} steps, us, the slowest rank's. computing: the passes, and the update "
        "with no neighbours.\n# Passes last as many exchanges as told: here, on the caller's core, or away, "
        "as on an accelerator.\n",
        g.size(), processes ? "processes" : "threads", processors(), kRounds);
    if (2 * g.size() > processors())
      fmt::print(
          "# {} threads want to run on {} processors: what copies for the exchange takes its processor from "
          "a caller that\n# computes here, so the sum, not the maximum, is what this machine allows.\n",
          2 * g.size(), processors());
    fmt::print("#{:>9}  {:<9}  {:<6} {:>4}  {:>10}  {:>10}  {:>10}  {:>8}  {:>8}\n", "bytes", "topology",
               "passes", "last", "computing", "exchange", "step", "of max", "of sum");
  }
  for (const bool away : {false, true})
    for (const char* name : {"ring", "complete"})
      for (const std::size_t bytes : {std::size_t{1} << 20, std::size_t{16} << 20})
        for (const int work : {2, 16, 64}) OURO_TRY(row(g, name, bytes, away, work));
  return fused(g);
}

}  // namespace
}  // namespace ouro::bench

int main(int argc, char** argv) { return ouro::bench::run_ranks(argc, argv, {2}, ouro::bench::run); }
