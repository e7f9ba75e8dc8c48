// Optimisers that own their state: the same bits as the functions, missing gradients, decay groups, exchange,
// factories, and what is saved and loaded.
#include <cmath>

#include "kernels/arith/floats.h"
#include "tests/api/train/arrays.h"

namespace ouro::train {
namespace {

using namespace ouro::test;

/// Three tensors with their gradients, on one device.
struct Model {
  static constexpr std::size_t kCounts[] = {300, 1, 17};
  static constexpr const char* kNames[] = {"fc.weight", "fc.bias", "bn.weight"};
  std::vector<std::unique_ptr<Array>> values, grads;
  std::vector<Param> params;

  explicit Model(Device d = {}) {
    for (unsigned i = 0; i < std::size(kCounts); ++i) {
      values.push_back(std::make_unique<Array>(d, numbers<float>(kCounts[i], i)));
      grads.push_back(std::make_unique<Array>(d, kCounts[i], DType::f32));
      params.push_back({.name = kNames[i], .value = values[i]->view(), .grad = grads[i]->view()});
    }
  }
  void set_gradients(unsigned t) {
    for (unsigned i = 0; i < grads.size(); ++i) grads[i]->write(numbers<float>(kCounts[i], 1000 * t + i));
  }
  std::vector<std::vector<float>> contents() const {
    std::vector<std::vector<float>> all;
    for (const auto& v : values) all.push_back(v->read<float>());
    return all;
  }
};

constexpr AccumAdamOptions kAccum{
    .lr = 0.01, .beta2 = 0.98, .weight_decay = 0.1, .accum_iter = 3, .decoupled = true};

TEST(Optimizers, StepsEqualTheStepFunctions) {
  for (const Where where : kEverywhere) {
    Model got(device_of(where)), want;
    auto made = make_optimizer(kAccum, {.decay_rule = DecayRule::standard});
    ASSERT_TRUE(ok(made));
    std::vector<std::unique_ptr<Array>> s;
    for (int k = 0; k < 3; ++k)
      for (const std::size_t n : Model::kCounts)
        s.push_back(std::make_unique<Array>(Device{}, n, DType::f32));
    Array steps({}, 3, DType::i64);
    for (unsigned t = 0; t < 7; ++t) {
      got.set_gradients(t);
      want.set_gradients(t);
      const double lr = t < 3 ? 0.01 : 0.001;
      ASSERT_TRUE(ok((*made)->step(got.params, {.lr = lr}, stream_of(where))));
      ASSERT_TRUE(ok(stream_of(where).synchronize()));
      EXPECT_EQ((*made)->lr(), lr);
      for (std::size_t i = 0; i < 3; ++i) {
        AccumAdamOptions o = kAccum;
        o.lr = lr;
        o.weight_decay = i == 0 ? 0.1 : 0;
        AccumAdamState state{View(static_cast<std::int64_t*>(steps.view().data) + i, 1, DType::i64),
                             s[i]->view(),
                             s[3 + i]->view(),
                             s[6 + i]->view(),
                             {}};
        ASSERT_TRUE(ok(accum_adam(want.params[i].value, want.params[i].grad, state, o)));
      }
      ASSERT_EQ(got.contents(), want.contents()) << name(where) << " step " << t;
    }
  }
}

/// A parameter without a gradient is not changed, and its step count starts when it has one.
TEST(Optimizers, ParameterWithoutGradientIsNotChangedOrCounted) {
  for (const Where where : {Where::host, Where::gpu}) {
    Model late(device_of(where)), alone(device_of(where));
    auto one = *make_optimizer(kAccum), other = *make_optimizer(kAccum);
    const View grad = late.params[0].grad;
    for (unsigned t = 0; t < 8; ++t) {
      late.set_gradients(t);
      alone.set_gradients(t);
      late.params[0].grad.data = t < 2 ? nullptr : grad.data;
      const auto before = late.contents();
      ASSERT_TRUE(ok(one->step(late.params)));
      EXPECT_EQ(late.contents()[0] == before[0], t < 2);
      EXPECT_NE(late.contents()[2], before[2]);
      if (t >= 2) {
        ASSERT_TRUE(ok(other->step({alone.params.data(), 1})));
      }
      EXPECT_EQ(late.contents()[0], alone.contents()[0]) << "step " << t;
    }
  }
}

TEST(Optimizers, ExchangeGivesTheResultOfTheHost) {
  for (const Where where : kEverywhere) {
    const Device d = device_of(where);
    Model got(d), want;
    auto one = *make_optimizer(kAccum), other = *make_optimizer(kAccum);
    const Row row{.self = 0.25, .in = {{1, 0.75}}, .out = {1}};
    std::vector<std::unique_ptr<Array>> rooms;
    std::vector<CView> in, in_want;
    std::vector<View> out;
    for (unsigned i = 0; i < 3; ++i) {
      for (const Device at : {d, Device{}})
        rooms.push_back(std::make_unique<Array>(at, numbers<float>(Model::kCounts[i], 90 + i)));
      in.push_back(rooms[rooms.size() - 2]->view());
      in_want.push_back(rooms.back()->view());
      rooms.push_back(std::make_unique<Array>(d, Model::kCounts[i], DType::f32));
      out.push_back(rooms.back()->view());
    }
    const ouro::train::Exchange exchange{&row, 0.5, in, out};
    for (unsigned t = 0; t < 5; ++t) {
      got.set_gradients(t);
      want.set_gradients(t);
      got.params[1].grad.data = nullptr;  // mixed nevertheless
      want.params[1].grad.data = nullptr;
      ASSERT_TRUE(ok(one->step(got.params, {.exchange = &exchange}, stream_of(where))));
      ASSERT_TRUE(ok(stream_of(where).synchronize()));
      for (std::size_t i = 0; i < 3; ++i) {
        Array unused({}, Model::kCounts[i], DType::f32);
        ASSERT_TRUE(ok(mix_and_pack(want.params[i].value, {}, row, in_want[i], 0.5, unused.view())));
      }
      ASSERT_TRUE(ok(other->step(want.params)));
      ASSERT_EQ(got.contents(), want.contents()) << name(where) << " step " << t;
      for (std::size_t i = 0; i < 3; ++i)
        EXPECT_EQ(rooms[3 * i + 2]->read<float>(), want.contents()[i]) << "message " << i;
    }
    const ouro::train::Exchange few{&row, 0.5, {in.data(), 2}, out};
    EXPECT_EQ(one->step(got.params, {.exchange = &few}).code(), Code::invalid);
    const ouro::train::Exchange no_row{nullptr, 0.5, in, out};
    EXPECT_EQ(one->step(got.params, {.exchange = &no_row}).code(), Code::invalid);
  }
}

/// Every kind of optimiser, saved in the middle of a window, on the host or on a device, and loaded on the
/// other: the same bits as without saving.
TEST(Optimizers, LoadedStateContinuesBitForBit) {
  const auto kinds = [] {
    std::vector<std::unique_ptr<Optimizer>> all;
    all.push_back(*make_optimizer(SgdOptions{.lr = 0.1}));
    all.push_back(*make_optimizer(SgdOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5}));
    all.push_back(*make_optimizer(AdamOptions{.weight_decay = 0.1}));
    all.push_back(*make_optimizer(kAccum));
    return all;
  };
  for (const Device from : {Device{}, kGpu})
    for (const Device to : {Device{}, kGpu})
      for (std::size_t k = 0; k < kinds().size(); ++k)
        for (unsigned saved_at = 0; saved_at < 5; ++saved_at) {
          Model first(from), second(to), straight;
          auto one = std::move(kinds()[k]), two = std::move(kinds()[k]), all = std::move(kinds()[k]);
          for (unsigned t = 0; t < 8; ++t) {
            straight.set_gradients(t);
            ASSERT_TRUE(ok(all->step(straight.params, {.lr = 0.01 * (t + 1)})));
            if (t == saved_at) {
              auto bytes = one->save();
              ASSERT_TRUE(ok(bytes));
              ASSERT_TRUE(ok(two->load(*bytes)));
              EXPECT_EQ(*two->save(), *bytes);  // before any step
              EXPECT_EQ(two->lr(), one->lr());
              for (unsigned i = 0; i < 3; ++i) second.values[i]->write(first.contents()[i]);
            }
            Model& now = t < saved_at ? first : second;
            now.set_gradients(t);
            ASSERT_TRUE(ok((t < saved_at ? one : two)->step(now.params, {.lr = 0.01 * (t + 1)})));
          }
          ASSERT_EQ(second.contents(), straight.contents()) << "kind " << k << " saved at " << saved_at;
          EXPECT_EQ(*two->save(), *all->save());
        }
}

/// A captured step is replayed: it counts, and uses the rate of its capture.
TEST(Optimizers, CapturedStepCountsAndKeepsItsRateOnReplay) {
  const Stream& stream = stream_of(Where::gpu_stream);
  const gpu::Stream handle{kGpu.index, stream.cuda_handle()};
  Model got(kGpu), want;
  auto one = *make_optimizer(kAccum), other = *make_optimizer(kAccum);
  Array p(kGpu, numbers<float>(100, 1)), g(kGpu, numbers<float>(100, 2)), m(kGpu, 100, DType::f32),
      v(kGpu, 100, DType::f32), step(kGpu, 1, DType::i64);
  Array p_want({}, numbers<float>(100, 1)), m_want({}, 100, DType::f32), v_want({}, 100, DType::f32),
      step_want({}, 1, DType::i64);
  AdamState state{step.view(), m.view(), v.view(), {}},
      state_want{step_want.view(), m_want.view(), v_want.view(), {}};
  const auto both = [&](double lr) {
    const Status s = one->step(got.params, {.lr = lr}, stream);
    return s.ok() ? adam(p.view(), g.view(), state, {.lr = lr}, stream) : s;
  };
  got.set_gradients(1), want.set_gradients(1);
  ASSERT_TRUE(ok(both(0.1)));
  ASSERT_TRUE(ok(stream.synchronize()));
  ASSERT_TRUE(ok(gpu::gpu().begin_capture(handle)));
  ASSERT_TRUE(ok(both(0.02)));
  auto graph = gpu::gpu().end_capture(handle);
  ASSERT_TRUE(ok(graph));
  ASSERT_TRUE(ok(both(0.1)));
  for (int k = 0; k < 3; ++k) {
    ASSERT_TRUE(ok(gpu::gpu().launch(*graph, handle)));
  }
  ASSERT_TRUE(ok(both(0.1)));
  ASSERT_TRUE(ok(stream.synchronize()));
  const Array g_want({}, numbers<float>(100, 2));
  for (const double lr : {0.1, 0.1, 0.02, 0.02, 0.02, 0.1}) {
    ASSERT_TRUE(ok(other->step(want.params, {.lr = lr})));
    ASSERT_TRUE(ok(adam(p_want.view(), g_want.view(), state_want, {.lr = lr})));
  }
  EXPECT_EQ(got.contents(), want.contents());
  EXPECT_EQ(p.read<float>(), p_want.read<float>());
  EXPECT_EQ(step.read<std::int64_t>()[0], 6);
  EXPECT_EQ(*one->save(), *other->save());
  EXPECT_TRUE(ok(gpu::gpu().destroy_graph(*graph)));
}

TEST(Optimizers, DamagedOrForeignStateIsRefused) {
  Model model;
  model.set_gradients(1);
  auto one = *make_optimizer(kAccum);
  ASSERT_TRUE(ok(one->step(model.params)));
  const Bytes good = *one->save();
  const auto refused = [&](Optimizer& o, CBytes bytes) {
    const Bytes before = *o.save();
    EXPECT_EQ(o.load(bytes).code(), Code::invalid);
    EXPECT_EQ(*o.save(), before);
  };
  for (std::size_t n = 0; n < good.size(); n += n < 200 ? 1 : 97) {
    refused(*one, CBytes(good).first(n));
    Bytes bad = good;
    bad[n] ^= std::byte{4};
    refused(*one, bad);
  }
  for (auto& other : {make_optimizer(SgdOptions{.momentum = 0.9}), make_optimizer(AdamOptions{}),
                      make_optimizer(AccumAdamOptions{.accum_iter = 4})})
    refused(*other.value(), good);
}

TEST(Optimizers, MasterIsMadeAtTheFirstStep) {
  for (const Where where : {Where::host, Where::gpu}) {
    const auto start = bf16_numbers(100, 1);
    Array low(device_of(where), start, DType::bf16), low_grad(device_of(where), 100, DType::bf16);
    std::vector<float> wider;
    for (const std::uint16_t bits : start) {
      const std::uint32_t x = static_cast<std::uint32_t>(bits) << 16;
      std::memcpy(&wider.emplace_back(), &x, 4);
    }
    Array high({}, wider), high_grad({}, 100, DType::f32);
    auto one = *make_optimizer(AdamOptions{.lr = 1e-4}, {.master = true});
    auto other = *make_optimizer(AdamOptions{.lr = 1e-4});
    const Param p{.name = "w", .value = low.view(), .grad = low_grad.view()},
        q{.name = "w", .value = high.view(), .grad = high_grad.view()};
    low_grad.write(std::vector<std::uint16_t>(100, 0x3f80));
    high_grad.write(std::vector<float>(100, 1));
    for (int t = 0; t < 30; ++t) {  // each step is less than bf16 can represent
      ASSERT_TRUE(ok(one->step({&p, 1})));
      ASSERT_TRUE(ok(other->step({&q, 1})));
    }
    const auto got = low.read<std::uint16_t>();
    const auto want = high.read<float>();
    for (std::size_t i = 0; i < 100; ++i) {
      const std::uint32_t x = static_cast<std::uint32_t>(got[i]) << 16;
      float f;
      std::memcpy(&f, &x, 4);
      EXPECT_NEAR(f, want[i], std::fabs(want[i]) / 256) << i;  // half a unit in the last place
    }
    EXPECT_NE(got, start);
  }
}

TEST(Optimizers, InvalidStepsAreRefusedWithoutChange) {
  Model model;
  auto one = *make_optimizer(kAccum);
  auto twice = model.params;
  twice[1].name = twice[0].name;
  EXPECT_EQ(one->step(twice).code(), Code::invalid);
  EXPECT_EQ(one->step(model.params, {.lr = std::nan("")}).code(), Code::invalid);
  auto wrong = model.params;
  wrong[2].grad.count = 3;
  const auto before = model.contents();
  EXPECT_EQ(one->step(wrong, {.lr = 5}).code(), Code::invalid);
  EXPECT_EQ(model.contents(), before);
  EXPECT_EQ(one->lr(), kAccum.lr);
  ASSERT_TRUE(ok(one->step(model.params)));
  auto grown = model.params;
  std::swap(grown[0].value, grown[2].value), std::swap(grown[0].grad, grown[2].grad);
  EXPECT_EQ(one->step(grown).code(), Code::invalid) << "a state of another size";
  EXPECT_TRUE(ok(one->step({})));
  EXPECT_EQ(make_optimizer(AccumAdamOptions{.accum_iter = 0}).status().code(), Code::invalid);
  EXPECT_EQ(make_optimizer(AdamOptions{.eps = -1}).status().code(), Code::invalid);
  EXPECT_EQ(make_optimizer(SgdOptions{.nesterov = true}).status().code(), Code::invalid);
}

/// A step that a device refuses leaves rate and states unchanged.
TEST(Optimizers, StepThatADeviceRefusesChangesNothing) {
  if (gpu::gpu().devices() == 0) GTEST_SKIP() << "no CUDA device";
  auto made = make_optimizer(kAccum);
  ASSERT_TRUE(ok(made));
  Model model(kGpu);
  model.set_gradients(1);
  ASSERT_TRUE(ok((*made)->step({model.params.data(), 1})));
  const auto before = (*made)->save();
  ASSERT_TRUE(ok(before));
  Param odd = model.params[2];  // not aligned to its elements
  odd.name = "odd";
  odd.value.data = static_cast<std::byte*>(odd.value.data) + 1, --odd.value.count;
  odd.grad.data = static_cast<std::byte*>(odd.grad.data) + 1, --odd.grad.count;
  const Param both[] = {model.params[0], odd};
  EXPECT_EQ((*made)->step(both, {.lr = 0.5}).code(), Code::invalid);
  EXPECT_EQ((*made)->lr(), kAccum.lr);
  const auto after = (*made)->save();
  ASSERT_TRUE(ok(after));
  EXPECT_EQ(*before, *after);
}

/// Parameters of type half: the same bits as on the host everywhere, close to float, and closer with a
/// master copy.
TEST(Optimizers, HalfStaysCloseToFloatOnHostAndGpu) {
  constexpr std::size_t kMany = 500;
  const auto half = [](const std::vector<float>& v) {
    std::vector<std::uint16_t> bits;
    for (const float x : v) bits.push_back(arith::to_bits(arith::narrow<arith::Half>(x)));
    return bits;
  };
  for (const bool master : {false, true}) {
    std::vector<std::uint16_t> host;
    for (const Where where : kEverywhere) {
      Array x(device_of(where), half(numbers<float>(kMany, 1)), DType::f16),
          g(device_of(where), kMany, DType::f16);
      Array wide({}, numbers<float>(kMany, 1)), wide_g({}, kMany, DType::f32);
      auto narrow = make_optimizer(kAccum, {.master = master}), full = make_optimizer(kAccum);
      const Param p{.name = "x", .value = x.view(), .grad = g.view()},
          q{.name = "x", .value = wide.view(), .grad = wide_g.view()};
      for (unsigned t = 0; t < 8; ++t) {
        g.write(half(numbers<float>(kMany, 10 + t)));
        wide_g.write(numbers<float>(kMany, 10 + t));
        ASSERT_TRUE(ok((*narrow)->step({&p, 1}, {}, stream_of(where))));
        ASSERT_TRUE(ok(stream_of(where).synchronize()));
        ASSERT_TRUE(ok((*full)->step({&q, 1})));
      }
      const auto got = x.read<std::uint16_t>();
      if (where == Where::host) host = got;
      EXPECT_EQ(got, host) << name(where) << " master " << master;
      double worst = 0;
      for (std::size_t i = 0; i < kMany; ++i)
        worst = std::max(worst, std::abs(double{arith::widen(arith::from_bits<arith::Half>(got[i]))} -
                                         double{wide.read<float>()[i]}));
      EXPECT_GT(worst, 0);
      EXPECT_LT(worst, master ? 2e-3 : 8e-3) << name(where);
    }
  }
}

TEST(Optimizers, DecayGroupsAreSplitByNameAndRule) {
  const std::vector<std::string> names{"fc.weight", "fc.bias", "layer.bn1.weight", "embed", "bn"};
  const std::vector<std::size_t> plain{0, 3}, special{1, 2, 4};
  EXPECT_EQ(decay_groups(names).decay, plain);
  EXPECT_EQ(decay_groups(names).no_decay, special);
  EXPECT_EQ(decay_groups(names, DecayRule::upstream_inverted).decay, special);
  EXPECT_EQ(decay_groups(names, DecayRule::upstream_inverted).no_decay, plain);
  EXPECT_TRUE(decay_groups({}).decay.empty());
}

TEST(Optimizers, FactoriesHaveTheirDefaults) {
  struct Case {
    OptimizerFactory factory;
    double decay;
    int window;
    bool decoupled;
  };
  const Case cases[] = {{optim_fn_adam(), 1.0 / 32768, 1, false},
                        {optim_fn_adamw(), 0.1, 1, true},
                        {optim_fn_accum_adam(), 1.0 / 32768, 4, false},
                        {optim_fn_accum_adamw(), 0.1, 4, true}};
  for (const Case& c : cases) {
    Model got, want;
    auto one = *c.factory(got.params);
    auto other = *make_optimizer(
        AccumAdamOptions{.weight_decay = c.decay, .accum_iter = c.window, .decoupled = c.decoupled},
        {.decay_rule = DecayRule::standard});
    EXPECT_EQ(one->lr(), 1e-3);
    for (unsigned t = 0; t < 6; ++t) {
      got.set_gradients(t), want.set_gradients(t);
      ASSERT_TRUE(ok(one->step(got.params)));
      ASSERT_TRUE(ok(other->step(want.params)));
      for (std::size_t i = 0; i < 3; ++i)
        for (std::size_t j = 0; j < Model::kCounts[i]; ++j)
          ASSERT_NEAR(got.contents()[i][j], want.contents()[i][j], 1e-6);
    }
    EXPECT_TRUE(ok(c.factory({}))) << "an empty group";
  }
  Model model;
  model.set_gradients(0);
  auto sgd = *optim_fn_sgd({.lr = 0.5})(model.params);
  const float before = model.contents()[1][0], g = model.grads[1]->read<float>()[0];
  ASSERT_TRUE(ok(sgd->step(model.params)));
  EXPECT_EQ(model.contents()[1][0], before - 0.5f * g);
}

}  // namespace
}  // namespace ouro::train
