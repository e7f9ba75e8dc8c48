// Whole lists of parameters in one launch: the number of launches of a step, the same bits as steps one by
// one, and parameters that step separately, with and without graphs.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "kernels/device/fake/fake_gpu.h"
#include "tests/api/train/arrays.h"

namespace ouro::train {
namespace {

using namespace ouro::test;

constexpr AccumAdamOptions kRule{
    .lr = 0.01, .beta2 = 0.98, .weight_decay = 0.1, .accum_iter = 3, .decoupled = true};

/// Tensors of several sizes, of float and of bf16 with master copies, some of which do not decay.
struct Tensors {
  static constexpr std::size_t kMany = 12;
  std::vector<std::unique_ptr<Array>> values, grads;
  std::vector<Param> params;

  explicit Tensors(Device d) {
    for (unsigned i = 0; i < kMany; ++i) {
      const std::size_t n = 1 + i * i * 37 % 3000;
      const DType t = narrow(i) ? DType::bf16 : DType::f32;
      values.push_back(std::make_unique<Array>(d, n, t));
      grads.push_back(std::make_unique<Array>(d, n, t));
      write(*values[i], i);
      params.push_back({.name = fmt::format("{}.{}", i % 3 == 0 ? "bias" : "weight", i),
                        .value = values[i]->view(),
                        .grad = grads[i]->view()});
    }
  }
  static bool narrow(unsigned i) { return i % 2 == 1; }
  static void write(Array& a, unsigned seed) {
    const std::size_t n = a.view().count;
    if (a.view().dtype == DType::f32)
      a.write(numbers<float>(n, seed));
    else
      a.write(bf16_numbers(n, seed));
  }
  void set_gradients(unsigned t) {
    for (unsigned i = 0; i < kMany; ++i) write(*grads[i], 1000 * t + i);
  }
  std::vector<std::vector<std::byte>> contents() const {
    std::vector<std::vector<std::byte>> all;
    for (const auto& v : values) all.push_back(v->bytes());
    return all;
  }
};

struct OptimizerLists : ::testing::Test {
  const Stream& stream = stream_of(Where::gpu_stream);
  const gpu::Stream handle{kGpu.index, stream.cuda_handle()};
  Tensors got{kGpu}, want{Device{}};

  static std::unique_ptr<Optimizer> make(bool decay_rule = true) {
    return *make_optimizer(
        kRule,
        {.decay_rule = decay_rule ? std::optional(DecayRule::standard) : std::nullopt, .master = true});
  }
  /// Steps `got` with `one`, and `want` on the host with `other`, without the `absent` ones.
  void both(Optimizer& one, Optimizer& other, unsigned t, const std::vector<std::size_t>& absent = {},
            double lr = 0.01) {
    got.set_gradients(t), want.set_gradients(t);
    std::vector<Param> g = got.params, w = want.params;
    for (const std::size_t i : absent) g[i].grad.data = w[i].grad.data = nullptr;
    ASSERT_TRUE(ok(one.step(g, {.lr = lr}, stream)));
    ASSERT_TRUE(ok(other.step(w, {.lr = lr})));
    ASSERT_TRUE(ok(stream.synchronize()));
    ASSERT_EQ(got.contents(), want.contents()) << "step " << t;
  }
  static std::vector<Param> some(const Tensors& of, const std::vector<std::size_t>& indices) {
    std::vector<Param> list;
    for (const std::size_t i : indices) list.push_back(of.params[i]);
    return list;
  }
  /// Makes kernels take this long on an emulated device; 0 ends it.
  static void slow_kernels(int milliseconds) {
    if (auto* const fake = dynamic_cast<gpu::FakeGpu*>(&gpu::gpu()))
      fake->delay(gpu::FakeOp::kernel, std::chrono::milliseconds(milliseconds));
  }
  Result<gpu::Graph> capture(Optimizer& one, std::span<const Param> params) {
    OURO_TRY(gpu::gpu().begin_capture(handle));
    const Status stepped = one.step(params, {}, stream);
    auto graph = gpu::gpu().end_capture(handle);
    OURO_TRY(stepped);
    return graph;
  }
  /// Number of launches of a step of these parameters, with their learning rates. -1: this device does not
  /// report it.
  long launches(Optimizer& one, std::span<const Param> params) {
    auto* const fake = dynamic_cast<gpu::FakeGpu*>(&gpu::gpu());
    auto graph = capture(one, params);
    EXPECT_TRUE(ok(graph));
    if (fake == nullptr || !graph.ok()) return -1;
    const auto nodes = fake->nodes(*graph);
    EXPECT_TRUE(ok(gpu::gpu().destroy_graph(*graph)));
    return nodes.ok() ? static_cast<long>(*nodes / 2) : -1;
  }
};

/// Two types, decaying or not: four lists, however many tensors there are.
TEST_F(OptimizerLists, OneLaunchForEachTypeAndDecay) {
  if (dynamic_cast<gpu::FakeGpu*>(&gpu::gpu()) == nullptr)
    GTEST_SKIP() << "emulated devices only (OURO_FAKE_GPUS)";
  for (const bool rule : {true, false}) {
    auto one = make(rule), other = make(rule);
    for (unsigned t = 0; t < 5; ++t) both(*one, *other, t);
    EXPECT_EQ(launches(*one, got.params), rule ? 4 : 2);
    got = Tensors(kGpu), want = Tensors({});
  }
}

/// Gradients are at new addresses: the list is written again while the stream still reads the old one.
TEST_F(OptimizerLists, GradientsAtNewAddressesRewriteTheList) {
  auto one = make(), other = make();
  auto* const fake = dynamic_cast<gpu::FakeGpu*>(&gpu::gpu());
  if (fake != nullptr) fake->delay(gpu::FakeOp::kernel, std::chrono::milliseconds(2));
  std::vector<std::unique_ptr<Tensors>> apart;
  for (unsigned t = 0; t < 9; ++t) {
    apart.push_back(std::make_unique<Tensors>(kGpu));
    apart.back()->set_gradients(t);
    std::vector<Param> now = got.params;
    for (std::size_t i = 0; i < now.size(); ++i) now[i].grad = apart.back()->params[i].grad;
    ASSERT_TRUE(ok(one->step(now, {}, stream)));
    want.set_gradients(t);
    ASSERT_TRUE(ok(other->step(want.params)));
  }
  ASSERT_TRUE(ok(stream.synchronize()));
  if (fake != nullptr) fake->delay(gpu::FakeOp::kernel, std::chrono::microseconds(0));
  EXPECT_EQ(got.contents(), want.contents());
}

/// A parameter that misses a step has its own step count from then on; one that has caught up shares the
/// count of the others again.
TEST_F(OptimizerLists, ParameterThatMissesAStepHasItsOwnCount) {
  auto one = make(), other = make();
  const std::vector<std::vector<std::size_t>> absent = {{}, {2, 4}, {2}, {}, {0, 1, 3, 5, 6, 7, 8, 9, 10, 11},
                                                        {}, {4},    {},  {}};
  for (unsigned t = 0; t < absent.size(); ++t) both(*one, *other, t, absent[t]);
  EXPECT_EQ(*one->save(), *other->save());
  auto again = make();  // continues from the saved state
  ASSERT_TRUE(ok(again->load(*one->save())));
  for (unsigned t = 20; t < 24; ++t) both(*again, *other, t);
}

/// Weights 2, 4, 8 and 10 are in one list. All of them step, then two of them twice, then the other
/// two twice.
TEST_F(OptimizerLists, ParameterThatHasCaughtUpRejoinsTheList) {
  if (dynamic_cast<gpu::FakeGpu*>(&gpu::gpu()) == nullptr)
    GTEST_SKIP() << "emulated devices only (OURO_FAKE_GPUS)";
  const auto of = [&](std::vector<std::size_t> some) {
    std::vector<Param> list;
    for (const std::size_t i : some) list.push_back(got.params[i]);
    return list;
  };
  got.set_gradients(1);
  const auto all = of({2, 4, 8, 10}), first = of({2, 4}), second = of({8, 10});
  for (const bool level : {true, false}) {
    auto one = make();
    for (int round = 0; round < 3; ++round) {
      ASSERT_TRUE(ok(one->step(all, {}, stream)));
      for (int k = 0; k < 2; ++k) ASSERT_TRUE(ok(one->step(first, {}, stream)));
      for (int k = 0; k < 2 && level; ++k) ASSERT_TRUE(ok(one->step(second, {}, stream)));
    }
    EXPECT_EQ(launches(*one, all), level ? 1 : 2);
  }
}

/// Weight 4 rejoins weight 2, so the count that it leaves has no owner while its launches are still pending.
/// A step on another stream meanwhile must not reuse that count.
TEST_F(OptimizerLists, StepsOnTwoStreamsDoNotShareACount) {
  auto one = make(), other = make();
  const Stream second = *Stream::create(kGpu);
  got.set_gradients(1), want.set_gradients(1);
  slow_kernels(10);
  const std::vector<std::vector<std::size_t>> steps = {{2, 4}, {2}, {4}, {2, 4}, {8}, {8, 10}};
  for (const auto& indices : steps) {
    const bool apart = indices[0] == 8;
    const StepOptions options{.lr = apart ? 0.5 : 0.01};
    ASSERT_TRUE(ok(one->step(some(got, indices), options, apart ? second : stream)));
    ASSERT_TRUE(ok(other->step(some(want, indices), options)));
  }
  ASSERT_TRUE(ok(stream.synchronize()));
  ASSERT_TRUE(ok(second.synchronize()));
  slow_kernels(0);
  EXPECT_EQ(got.contents(), want.contents());
  EXPECT_EQ(*one->save(), *other->save());
}

/// A mere mix has no step count; two streams that mix at the same time have separate lists.
TEST_F(OptimizerLists, MixesOnTwoStreamsHaveTheirOwnLists) {
  const Row row{.self = 0.25, .in = {{1, 0.75}}, .out = {1}};
  auto one = make(), other = make();
  const Stream second = *Stream::create(kGpu);
  const Tensors in(kGpu), in_want({}), out(kGpu), out_want({});
  const auto mix = [&](Optimizer& by, const Tensors& values, const Tensors& sums, const Tensors& messages,
                       const std::vector<std::size_t>& indices, const Stream& on) {
    std::vector<Param> params = some(values, indices);
    std::vector<CView> neighbours;
    std::vector<View> next;
    for (Param& p : params) p.grad.data = nullptr;
    for (const Param& p : some(sums, indices)) neighbours.push_back(p.value);
    for (const Param& p : some(messages, indices)) next.push_back(p.value);
    const ouro::train::Exchange exchange{&row, 0.5, neighbours, next};
    return by.step(params, {.exchange = &exchange}, on);
  };
  slow_kernels(10);
  // The longer list comes first, so that the other one would fit into its place.
  for (const bool first : {true, false}) {
    std::vector<std::size_t> indices = {2, 4};
    if (first) indices = {8, 10};
    ASSERT_TRUE(ok(mix(*one, got, in, out, indices, first ? stream : second)));
    ASSERT_TRUE(ok(mix(*other, want, in_want, out_want, indices, {})));
  }
  ASSERT_TRUE(ok(stream.synchronize()));
  ASSERT_TRUE(ok(second.synchronize()));
  slow_kernels(0);
  EXPECT_EQ(got.contents(), want.contents());
  EXPECT_EQ(out.contents(), out_want.contents());
}

/// A step that cannot allocate memory, for the second of its counts or for a list, must not have counted
/// anything nor lost a count.
TEST_F(OptimizerLists, FailedAllocationChangesNoStepCount) {
  auto* const fake = dynamic_cast<gpu::FakeGpu*>(&gpu::gpu());
  if (fake == nullptr) GTEST_SKIP() << "emulated devices only (OURO_FAKE_GPUS)";
  auto one = make(), other = make();
  got.set_gradients(1), want.set_gradients(1);
  const auto step = [&](const std::vector<std::size_t>& indices) {
    ASSERT_TRUE(ok(one->step(some(got, indices), {}, stream)));
    ASSERT_TRUE(ok(other->step(some(want, indices))));
  };
  const auto refused = [&](const std::vector<std::size_t>& indices) {
    fake->fail_next(gpu::FakeOp::alloc, Reason::resource);
    EXPECT_EQ(one->step(some(got, indices), {}, stream).reason(), Reason::resource);
    EXPECT_EQ(*one->save(), *other->save());
  };
  // Weight 4 takes the count that 4 and 8 have left; the bf16 parameters of its step cannot get one.
  for (const auto& indices : std::vector<std::vector<std::size_t>>{{1, 2, 4, 5, 8}, {2}, {4, 8}, {2, 4, 8}})
    step(indices);
  refused({4, 1});
  for (const auto& indices : std::vector<std::vector<std::size_t>>{{4, 1}, {1, 2, 4, 5, 8}}) step(indices);
  EXPECT_EQ(*one->save(), *other->save());
  // Two parameters that have counted separately, each without a list.
  one = make(), other = make();
  step({2}), step({4});
  refused({2, 4});
  step({2}), step({4}), step({2, 4});
  EXPECT_EQ(*one->save(), *other->save());
  EXPECT_EQ(got.contents(), want.contents());
}

/// A graph steps its list and counts for all of it, with the addresses of its capture, whatever addresses
/// other steps use. A step of only some of its parameters would count twice for them: it is refused, and
/// changes nothing.
TEST_F(OptimizerLists, GraphStepsCountForTheWholeList) {
  auto one = make(), other = make();
  for (unsigned t = 0; t < 2; ++t) both(*one, *other, t);
  const Tensors moved(kGpu);
  std::vector<Param> elsewhere = got.params;
  for (std::size_t i = 0; i < elsewhere.size(); ++i) elsewhere[i].grad = moved.params[i].grad;
  auto graph = capture(*one, got.params);
  ASSERT_TRUE(ok(graph));
  const auto outside = [&](std::unique_ptr<Optimizer>& o, std::span<const Param> p, const Stream& s) {
    return o->step(p, {.lr = 0.01}, s);
  };
  Tensors zeros({});
  for (std::size_t i = 0; i < zeros.params.size(); ++i) zeros.params[i].value = want.params[i].value;
  for (auto& g : zeros.grads) g->write(std::vector<std::byte>(g->bytes().size()));
  for (int k = 0; k < 3; ++k) {
    ASSERT_TRUE(ok(outside(one, elsewhere, stream)));  // no gradient has been written there, so it is zeros
    ASSERT_TRUE(ok(outside(other, zeros.params, {})));
    ASSERT_TRUE(ok(gpu::gpu().launch(*graph, handle)));
    ASSERT_TRUE(ok(outside(other, want.params, {})));
  }
  ASSERT_TRUE(ok(stream.synchronize()));
  EXPECT_EQ(got.contents(), want.contents());
  EXPECT_EQ(*one->save(), *other->save());

  const Status refused = one->step({got.params.data(), 4}, {.lr = 0.5}, stream);
  EXPECT_EQ(refused.code(), Code::invalid);
  EXPECT_THAT(refused.message(), ::testing::HasSubstr("captured graph steps"));
  EXPECT_THAT(refused.message(), ::testing::HasSubstr("bias.0"));
  EXPECT_EQ(*one->save(), *other->save());
  EXPECT_EQ(one->lr(), 0.01);
  EXPECT_TRUE(ok(gpu::gpu().destroy_graph(*graph)));
}

/// The first step is in a graph: its replays count from the first one.
TEST_F(OptimizerLists, FirstStepInAGraphCountsFromItsFirstReplay) {
  auto one = *make_optimizer(kRule), other = *make_optimizer(kRule);
  std::vector<Param> mine, theirs;
  for (const std::size_t i : {0, 2, 4, 6}) {
    mine.push_back(got.params[i]);
    theirs.push_back(want.params[i]);
  }
  got.set_gradients(3), want.set_gradients(3);
  auto graph = capture(*one, mine);
  ASSERT_TRUE(ok(graph));
  for (int k = 0; k < 4; ++k) {
    ASSERT_TRUE(ok(gpu::gpu().launch(*graph, handle)));
    ASSERT_TRUE(ok(other->step(theirs)));
  }
  ASSERT_TRUE(ok(stream.synchronize()));
  EXPECT_EQ(got.contents(), want.contents());
  EXPECT_EQ(*one->save(), *other->save());
  EXPECT_TRUE(ok(gpu::gpu().destroy_graph(*graph)));
}

/// A later save waits for replays of what was captured before an earlier save.
TEST_F(OptimizerLists, SaveWaitsForReplays) {
  auto one = make(), other = make();
  both(*one, *other, 1);
  auto graph = capture(*one, got.params);
  ASSERT_TRUE(ok(graph));
  for (int k = 0; k < 2; ++k) {
    EXPECT_EQ(*one->save(), *other->save());
    slow_kernels(10);
    ASSERT_TRUE(ok(gpu::gpu().launch(*graph, handle)));
    ASSERT_TRUE(ok(other->step(want.params)));
  }
  EXPECT_EQ(*one->save(), *other->save());
  slow_kernels(0);
  EXPECT_TRUE(ok(gpu::gpu().destroy_graph(*graph)));
}

}  // namespace
}  // namespace ouro::train
