// The step of sharded training, bit for bit against the same training by one rank alone: numbers of ranks,
// meshes, types, buckets, optimisers; steps as users write them; devices.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "ouro/train/average.hpp"
#include "tests/api/train/arrays.h"
#include "tests/api/train/shard_ranks.h"

namespace ouro::train {
namespace {

using namespace ouro::test;  // NOLINT

struct Variation {
  double bucket_mb = 25;
  bool values = true, grads = false;
};
constexpr Variation kVariations[] = {
    {0, true, false}, {0.0005, false, false}, {0.001, true, true}, {1000, false, true}};

OptimizerFactory factory(std::string_view name) {
  if (name == "sgd")
    return optim_fn_sgd({.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
  if (name == "adamw") return optim_fn_adamw({.lr = 0.01, .master = true});
  return optim_fn_accum_adam({.lr = 0.01, .weight_decay = 0.1, .accum_iter = 2});
}

template <class T>
std::string exact(Context& c, int shards, const char* optimiser) {
  for (const Variation& v : kVariations) {
    ShardModel<T> model;
    ShardOptions o = shard_options(v.bucket_mb);
    o.optimizer = factory(optimiser);
    o.params_in_bucket = v.values, o.grads_in_bucket = v.grads;
    auto made = make_trainer(c, shards, model.params(), o);
    OURO_RANK_OK(made);
    Serial<T> alone(c.world_size(), shards, o.optimizer);
    for (int step = 0; step < 4; ++step) {
      OURO_RANK_OK(shard_step<T>(*made, c.rank(), step));
      OURO_RANK_OK(alone.step(step));
      OURO_RANK_CHECK(same_bits(flat<T>(made->params()), alone.values()),
                      "{} of {} ranks, buckets of {} MiB, step {}", optimiser, shards, v.bucket_mb, step);
    }
    OURO_RANK_CHECK(made->steps() == 4, "{}", made->steps());
    OURO_RANK_OK(made->close());
  }
  return "";
}
std::string exact_in_all_types(Context& c, int shards) {
  for (const auto& said :
       {exact<double>(c, shards, "adamw"), exact<float>(c, shards, "sgd"), exact<float>(c, shards, "accum"),
        exact<BFloat16>(c, shards, "adamw"), exact<Half>(c, shards, "sgd")})
    if (!said.empty()) return said;
  return "";
}

TEST(ShardStep, EqualsOneRankAlone) {
  for (const int n : {1, 2, 3, 4, 5})
    EXPECT_EQ(run_threads(n, [&](Context& c) { return exact_in_all_types(c, n); }), "") << n;
}
TEST(ShardStep, EqualsOneRankAloneInProcesses) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(Mode::processes);
  for (const int n : {2, 3})
    EXPECT_EQ(run_processes(n, [&](Context& c) { return exact<float>(c, n, "adamw"); }), "") << n;
}
TEST(ShardStep, MeshEqualsOneRankAlone) {
  EXPECT_EQ(run_threads(4, [](Context& c) { return exact_in_all_types(c, 2); }), "");
  EXPECT_EQ(run_threads(6, [](Context& c) { return exact<float>(c, 3, "adamw"); }), "");
  EXPECT_EQ(run_threads(6, [](Context& c) { return exact<float>(c, 2, "adamw"); }), "");
}

/// Sharded, plain data parallel, and average_gradients with one optimiser over all: the same bits.
TEST(ShardStep, EqualsDataParallel) {
  const auto body = [](Context& c) -> std::string {
    ShardModel<float> a, b, plain;
    ShardOptions o = shard_options(0.001);
    o.numerics = Numerics::inherit;  // canonical, as set for the job
    auto sharded = make_trainer(c, c.world_size(), a.params(), o);
    OURO_RANK_OK(sharded);
    auto parallel = make_trainer(c, 1, b.params(), o);
    OURO_RANK_OK(parallel);
    const std::vector<Param> params = plain.params();
    auto optimizer = o.optimizer(params);
    for (int step = 0; step < 5; ++step) {
      OURO_RANK_OK(shard_step<float>(*sharded, c.rank(), step));
      OURO_RANK_OK(shard_step<float>(*parallel, c.rank(), step));
      fill_gradients<float>(params, c.rank(), step);
      OURO_RANK_OK(average_gradients(c.world(), params));
      OURO_RANK_OK((*optimizer)->step(params));
      const std::vector<float> want = flat<float>(params);
      OURO_RANK_CHECK(same_bits(flat<float>(sharded->params()), want), "sharded, step {}", step);
      OURO_RANK_CHECK(same_bits(flat<float>(parallel->params()), want), "data parallel, step {}", step);
    }
    OURO_RANK_OK(sharded->close());
    return text(parallel->close()) == "ok" ? "" : "close";
  };
  InitOptions canonical = quick_options();
  canonical.numerics = Numerics::canonical;
  for (const int n : {2, 5}) EXPECT_EQ(run_threads(n, body, canonical), "") << n;
}

/// With the fast contract, all ranks have the same bits, close to those of one rank alone.
TEST(ShardStep, FastNumericsAreTheSameOnAllRanks) {
  const auto body = [](Context& c) -> std::string {
    ShardModel<double> model;
    ShardOptions o = shard_options();
    o.numerics = Numerics::fast;
    auto made = make_trainer(c, 2, model.params(), o);
    OURO_RANK_OK(made);
    Serial<double> alone(4, 2, o.optimizer);
    for (int step = 0; step < 3; ++step) {
      OURO_RANK_OK(shard_step<double>(*made, c.rank(), step));
      OURO_RANK_OK(alone.step(step));
    }
    const std::vector<double> mine = flat<double>(made->params()), want = alone.values();
    std::vector<double> most(mine), least(mine);
    OURO_RANK_OK(all_reduce(c.world(), std::span<const double>(mine), std::span(most), ReduceOp::max));
    OURO_RANK_OK(all_reduce(c.world(), std::span<const double>(mine), std::span(least), ReduceOp::min));
    for (std::size_t k = 0; k < mine.size(); ++k)
      OURO_RANK_CHECK(most[k] == least[k] && std::abs(mine[k] - want[k]) < 1e-12, "element {}", k);
    return text(made->close()) == "ok" ? "" : "close";
  };
  EXPECT_EQ(run_threads(4, body), "");
}

// ---- steps as users make them ---------------------------------------------------------------------

TEST(ShardStep, AccumulatesMicroBatches) {
  const auto body = [](Context& c) -> std::string {
    for (const bool in_bucket : {false, true}) {
      ShardModel<double> model, once;
      ShardOptions o = shard_options(0.001);
      o.grads_in_bucket = in_bucket;
      auto made = make_trainer(c, 3, model.params(), o);
      OURO_RANK_OK(made);
      auto other = make_trainer(c, 3, once.params(), o);
      OURO_RANK_OK(other);
      for (int step = 0; step < 3; ++step) {
        OURO_RANK_OK(other->begin_step());
        fill_gradients<double>(other->params(), c.rank(), step);
        for (const Param& p : other->params())
          for (std::size_t k = 0; k < p.grad.count; ++k) static_cast<double*>(p.grad.data)[k] *= 2;
        for (int i = 0; i < 7; ++i) OURO_RANK_OK(other->grad_ready(i));
        OURO_RANK_OK(other->end_backward());
        for (int micro = 0; micro < 2; ++micro) {  // the same batch twice
          made->set_accumulate(micro == 0);
          OURO_RANK_OK(made->begin_step());
          std::vector<double> sums;
          for (const Param& p : made->params())
            for (std::size_t k = 0; k < p.grad.count; ++k)
              sums.push_back(static_cast<double*>(p.grad.data)[k]);
          fill_gradients<double>(made->params(), c.rank(), step);
          std::size_t at = 0;
          for (const Param& p : made->params())
            for (std::size_t k = 0; k < p.grad.count; ++k, ++at)
              if (micro == 1) static_cast<double*>(p.grad.data)[k] += sums[at];
          for (int i = 0; i < 7; ++i) OURO_RANK_OK(made->grad_ready(i));
          OURO_RANK_OK(made->end_backward());
          OURO_RANK_CHECK(made->steps() == step + micro, "{} steps", made->steps());
        }
        OURO_RANK_CHECK(same_bits(flat<double>(made->params()), flat<double>(other->params())), "step {}",
                        step);
      }
      OURO_RANK_OK(made->close());
      OURO_RANK_OK(other->close());
    }
    return "";
  };
  EXPECT_EQ(run_threads(3, body), "");
}

TEST(ShardStep, BeginsBeforeTheBackwardPassEnds) {
  const auto body = [](Context& c) -> std::string {
    ShardModel<float> model;
    ShardOptions o = shard_options(0);
    Serial<float> alone(2, 2, o.optimizer);
    std::atomic<std::size_t> updated{0};
    o.optimizer = counting(o.optimizer, updated);
    o.order = {3, 0, 1, 2, 4, 5, 6};
    auto made = make_trainer(c, 2, model.params(), o);
    OURO_RANK_OK(made);
    OURO_RANK_CHECK(made->buckets().front().params.front() == 3, "not in the order given");
    OURO_RANK_OK(made->begin_step());
    fill_gradients<float>(made->params(), c.rank(), 0);
    OURO_RANK_OK(made->grad_ready(6));  // of the last bucket, which waits for those before it
    OURO_RANK_OK(made->grad_ready(3));
    for (int i = 0; i < 20'000 && updated == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    OURO_RANK_CHECK(updated == (c.rank() == 0 ? 64 : 99 - 64), "{} elements updated beside the backward pass",
                    updated.load());
    for (const int i : {0, 1, 2, 4, 5}) OURO_RANK_OK(made->grad_ready(i));
    OURO_RANK_OK(made->end_backward());
    OURO_RANK_OK(alone.step(0));
    OURO_RANK_CHECK(same_bits(flat<float>(made->params()), alone.values()), "");
    return text(made->close()) == "ok" ? "" : "close";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

/// Gradients that a stream of the user is still computing when they are reported ready.
TEST(ShardStep, WaitsForTheUsersStream) {
  const auto body = [](Context& c) -> std::string {
    ShardModel<float> model;
    ShardOptions o = shard_options(0.0005);
    auto made = make_trainer(c, 2, model.params(), o);
    OURO_RANK_OK(made);
    auto stream = Stream::create();
    OURO_RANK_OK(stream);
    Serial<float> alone(2, 2, o.optimizer);
    for (int step = 0; step < 2; ++step) {
      OURO_RANK_OK(made->begin_step());
      const std::vector<Param> params(made->params().begin(), made->params().end());
      for (const Param& p : params) std::memset(p.grad.data, 0, p.grad.bytes());
      (void)stream->run([params, step, rank = c.rank()]() -> Status {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        fill_gradients<float>(params, rank, step);
        return {};
      });
      for (int i = 7; i-- > 0;) OURO_RANK_OK(made->grad_ready(i, *stream));
      OURO_RANK_OK(made->end_backward(*stream));
      OURO_RANK_OK(alone.step(step));
    }
    OURO_RANK_CHECK(same_bits(flat<float>(made->params()), alone.values()), "");
    return text(made->close()) == "ok" ? "" : "close";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

/// Two types in one model: separate buckets, but one norm.
TEST(ShardStep, TwoTypesHaveSeparateBucketsButOneNorm) {
  const auto body = [](Context& c) -> std::string {
    ShardModel<float> wide({{"a", {40}}, {"b", {70}}});
    ShardModel<double> double_wide({{"c", {33}}});
    std::vector<Param> params = wide.params();
    params.push_back(double_wide.params()[0]);
    ShardOptions o = shard_options();
    o.optimizer = optim_fn_sgd({.lr = 1});
    o.clip_norm = 1;
    auto made = make_trainer(c, 2, params, o);
    OURO_RANK_OK(made);
    OURO_RANK_CHECK(made->buckets().size() == 2, "{} buckets", made->buckets().size());
    OURO_RANK_OK(made->begin_step());
    for (const auto& p : made->params())
      for (std::size_t k = 0; k < p.grad.count; ++k)
        if (p.value.dtype == DType::f32)
          static_cast<float*>(p.grad.data)[k] = 1;
        else
          static_cast<double*>(p.grad.data)[k] = 2;
    for (const int i : {2, 1, 0}) OURO_RANK_OK(made->grad_ready(i));
    OURO_RANK_OK(made->end_backward());
    OURO_RANK_CHECK(std::abs(made->grad_norm() - std::sqrt(110 + 4 * 33)) < 1e-12, "{}", made->grad_norm());
    return text(made->close()) == "ok" ? "" : "close";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

/// On fake devices in ctest: the same calls give the same bits as on the host.
TEST(ShardDevice, HasTheBitsOfTheHost) {
  if (gpu::gpu().devices() == 0) GTEST_SKIP() << "no CUDA device";
  const auto body = [](Context& c) -> std::string {
    for (const bool in_bucket : {true, false}) {
      std::vector<std::vector<float>> ends;
      for (const Device device : {Device{}, c.device()}) {
        const test::Array x(device, std::vector<float>(500, 1)), g(device, std::vector<float>(500));
        const test::Array y(device, std::vector<float>(33, 2)), h(device, std::vector<float>(33));
        ShardOptions o = shard_options(0);
        o.params_in_bucket = in_bucket;
        o.scaler = GradScaler{.scale = 8};
        auto made = make_trainer(c, c.world_size(),
                                 {{"x", x.view(), g.view(), {500}}, {"y", y.view(), h.view(), {33}}}, o);
        OURO_RANK_OK(made);
        for (int step = 0; step < 4; ++step) {
          OURO_RANK_OK(made->begin_step());
          for (const test::Array* a : {&g, &h}) {
            std::vector<float> gradient(a->view().count);
            for (std::size_t k = 0; k < gradient.size(); ++k)
              gradient[k] = step == 2 && c.rank() + 1 == c.world_size()
                                ? INFINITY
                                : std::sin(static_cast<float>(step + c.rank()) + static_cast<float>(k));
            const_cast<test::Array*>(a)->write(gradient);
          }
          for (const int i : {1, 0}) OURO_RANK_OK(made->grad_ready(i));
          OURO_RANK_OK(made->end_backward());
        }
        OURO_RANK_CHECK(made->scale() == 4, "{}", made->scale());
        const auto saved = made->save();
        OURO_RANK_OK(saved);
        ends.emplace_back();
        for (const Param& p : made->params()) {
          std::vector<float> end(p.value.count);
          if (device.kind == Device::Kind::host) {
            std::memcpy(end.data(), p.value.data, p.value.bytes());
          } else {
            auto s = gpu::gpu().create_stream(device.index, 0);
            OURO_RANK_CHECK(s.ok() && gpu::gpu().copy(end.data(), p.value.data, p.value.bytes(), *s).ok() &&
                                gpu::gpu().synchronize(*s).ok() && gpu::gpu().destroy_stream(*s).ok(),
                            "no copy");
          }
          ends.back().insert(ends.back().end(), end.begin(), end.end());
        }
        OURO_RANK_OK(made->close());
      }
      OURO_RANK_CHECK(same_bits(ends[0], ends[1]) && ends[0][0] != 1, "other bits on the device");
    }
    return "";
  };
  for (const int n : {1, 2, 3}) EXPECT_EQ(run_threads(n, body), "") << n;
}

}  // namespace
}  // namespace ouro::train
