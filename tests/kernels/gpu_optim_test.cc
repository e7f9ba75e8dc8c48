// The optimiser kernels, run by the host, against the host loops, bit for bit: runs, lists, ranks that share
// a device, surveys; what a launch reads and writes in device memory; what is refused.
#include "tests/kernels/gpu_optim.h"

namespace ouro::gpu {
namespace {

using kernels::Fused;
using kernels::optim::all_calls;
using kernels::optim::label;

/// Every call of the host, each layout, counts around all limits, with and without mixing and scaling.
TEST(GpuOptim, EqualsTheHostLoop) {
  for (const Call& call : all_calls())
    for (const auto layout : kLayouts)
      for (const std::size_t count : {0, 1, 3, 17, 4099})
        for (const std::size_t shift : {0, 8})  // 8: aligned to elements, not to 16 bytes
          for (const bool mixed : {false, true}) {
            Arrays want(layout, count, shift, count + shift), got = want;
            const kernels::Exchange there = want.exchange();
            const Fused fused{.scale = {.inverse = 1.0 / 3, .clip = 0.7},
                              .exchange = mixed ? &there : nullptr};
            const bool finite = perform(call, want, fused)->finite;
            Control control;
            UpdateArgs args = args_of(call, layout, control);
            args.scale[0] = fused.scale;
            args.one[0] = tensor_of(got);
            if (mixed) args.form = Form::exchange, args.weights = there.weights;
            EXPECT_EQ(launch_update(args, count % 2 == 0 ? 1 : 5), finite);
            EXPECT_EQ(control.step, call.recipe.step);
            ASSERT_TRUE(got == want) << call.name << ", " << label(layout) << ", " << count << " elements, "
                                     << shift << " bytes off, " << (mixed ? "mixed" : "not mixed");
          }
}

/// The same for runs of many chunks.
TEST(GpuOptim, LongRunsEqualTheHostLoop) {
  const std::size_t count = 5 * 2048 * 4 + 13;
  for (const auto layout : kLayouts) {
    const Call call = all_calls().back();
    Arrays want(layout, count, 0, 3), got = want;
    const kernels::Exchange there = want.exchange();
    ASSERT_TRUE(perform(call, want, {.exchange = &there}).ok());
    Control control;
    UpdateArgs args = args_of(call, layout, control);
    args.form = Form::exchange, args.weights = there.weights;
    args.one[0] = tensor_of(got);
    launch_update(args, 2);
    ASSERT_TRUE(got == want) << label(layout);
  }
}

/// The next message may overwrite the neighbours' values.
TEST(GpuOptim, ExchangeInPlaceEqualsTheHostLoop) {
  for (const auto layout : kLayouts) {
    const Call call = all_calls()[8];
    Arrays want(layout, 1500, 0, 12), got = want;
    kernels::Exchange there = want.exchange();
    there.message = want.at(want.neighbours);
    ASSERT_TRUE(perform(call, want, {.exchange = &there}).ok());
    Control control;
    UpdateArgs args = args_of(call, layout, control);
    args.form = Form::exchange, args.weights = there.weights;
    args.one[0] = tensor_of(got);
    args.one[0].message = got.at(got.neighbours);
    launch_update(args);
    ASSERT_TRUE(got == want) << label(layout);
  }
}

/// One launch handles a list with the same result as one call for each tensor, whatever the sizes; some
/// tensors are empty.
TEST(GpuOptim, ListsEqualOneCallForEachTensor) {
  for (const std::size_t tensors : {1, 2, 7, 50})
    for (const auto layout : kLayouts)
      for (const Call& call : all_calls()) {
        const bool mixed = tensors % 2 == 0;
        std::vector<Arrays> want;
        for (std::size_t t = 0; t < tensors; ++t) {
          const std::size_t count = t % 5 == 3 ? 0 : (t * 97 + 1) % 311 + (t == 1 ? 2048 * 2 + 5 : 0);
          want.emplace_back(layout, count, t % 3 == 1 ? 8 : 0, 70 + t);
        }
        std::vector<Arrays> got = want;
        std::vector<Tensor> records;
        bool finite = true;
        for (std::size_t t = 0; t < tensors; ++t) {
          const kernels::Exchange there = want[t].exchange();
          finite &= perform(call, want[t], {.exchange = mixed ? &there : nullptr})->finite;
          records.push_back(tensor_of(got[t]));
        }
        Control control;
        UpdateArgs args = args_of(call, layout, control);
        if (mixed) args.form = Form::exchange, args.weights = want[0].exchange().weights;
        Metadata metadata;
        args.list = metadata.lay_out(args, records);
        EXPECT_EQ(launch_update(args, 3), finite);
        for (std::size_t t = 0; t < tensors; ++t)
          ASSERT_TRUE(got[t] == want[t])
              << call.name << ", " << label(layout) << ", tensor " << t << " of " << tensors;
      }
}

/// x_r <- sum of matrix[r][s] x_s in rank order, with one rounding for each operation, as C and then as it
/// is stored.
template <class C>
void mix_ranks(std::vector<Arrays>& ranks, const double (&matrix)[8][8]) {
  const kernels::optim::Layout layout = ranks[0].layout;
  const DType type = layout.master ? DType::f32 : layout.dtype;
  const auto home = [&](Arrays& a) { return layout.master ? a.at(a.master) : a.at(a.value); };
  for (std::size_t i = 0; i < ranks[0].count; ++i) {
    std::vector<C> x;
    for (Arrays& a : ranks)
      x.push_back(static_cast<C>(reference::decode(type, reference::load(type, home(a), i))));
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      volatile C sum = static_cast<C>(matrix[r][0]) * x[0];
      for (std::size_t s = 1; s < ranks.size(); ++s) {
        volatile C term = static_cast<C>(matrix[r][s]) * x[s];
        sum = sum + term;
      }
      reference::store(type, home(ranks[r]), i, reference::encode(type, sum));
      if (layout.master)
        reference::store(layout.dtype, ranks[r].at(ranks[r].value), i, reference::encode(layout.dtype, sum));
    }
  }
}

/// Ranks that share a device: mixed by a matrix, then each updated with its own gradient and scale.
TEST(GpuOptim, LeaderMixesAndUpdatesAllRanks) {
  for (const auto layout : kLayouts)
    for (const Call& call : all_calls())
      for (const std::size_t ranks : {1, 2, 3, 4, 5, 8}) {
        const std::size_t count = ranks == 3 ? 2500 : 301;
        double matrix[8][8] = {};
        for (std::size_t r = 0; r < ranks; ++r)
          for (std::size_t s = 0; s < ranks; ++s)
            matrix[r][s] = (1 + static_cast<double>((3 * r + s) % 5)) / (3.0 * static_cast<double>(ranks));
        for (const bool skip : {false, true}) {
          std::vector<Arrays> want;
          for (std::size_t r = 0; r < ranks; ++r) want.emplace_back(layout, count, r == 2 ? 8 : 0, 30 + r);
          std::vector<Arrays> got = want;
          Control control;
          UpdateArgs args = args_of(call, layout, control);
          args.form = Form::leader, args.ranks = static_cast<int>(ranks);
          std::memcpy(args.matrix, matrix, sizeof matrix);
          layout.dtype == DType::f64 ? mix_ranks<double>(want, matrix) : mix_ranks<float>(want, matrix);
          bool finite = true;
          for (std::size_t r = 0; r < ranks; ++r) {
            args.scale[r] = {.inverse = 1.0 / static_cast<double>(r + 1), .clip = 0.9};
            if (!skip) finite &= perform(call, want[r], {.scale = args.scale[r]})->finite;
            args.one[r] = tensor_of(got[r]);
          }
          const std::uint32_t flag = skip;
          args.skip = &flag;
          EXPECT_EQ(launch_update(args, 2), finite);
          EXPECT_EQ(control.step, call.recipe.step - skip);
          for (std::size_t r = 0; r < ranks; ++r)
            ASSERT_TRUE(got[r] == want[r]) << call.name << ", " << label(layout) << ", rank " << r << " of "
                                           << ranks << (skip ? ", skipped" : "");
        }
      }
}

/// In a list for a leader, the records of a tensor's ranks are adjacent; matrix and scales are read
/// from memory.
TEST(GpuOptim, LeaderMixesAndUpdatesListsOfAllRanks) {
  const double matrix[3][3] = {{0.5, 0.25, 0.25}, {0.125, 0.75, 0.125}, {0, 0.5, 0.5}};
  double wide[8][8] = {};
  for (int r = 0; r < 3; ++r) std::copy(matrix[r], matrix[r] + 3, wide[r]);
  const arith::GradientScale scale[3] = {{.clip = 0.5}, {.inverse = 2}, {.inverse = 0.25, .clip = 0.75}};
  for (const auto layout : kLayouts) {
    const Call call = all_calls()[8];
    std::vector<std::vector<Arrays>> want(3), got;
    std::vector<Tensor> records;
    for (std::size_t t = 0; t < 9; ++t)
      for (std::size_t r = 0; r < 3; ++r) want[r].emplace_back(layout, t * 131 % 700, 0, 10 * t + r);
    got = want;
    for (std::size_t t = 0; t < 9; ++t) {
      std::vector<Arrays> row = {want[0][t], want[1][t], want[2][t]};
      layout.dtype == DType::f64 ? mix_ranks<double>(row, wide) : mix_ranks<float>(row, wide);
      for (std::size_t r = 0; r < 3; ++r) {
        ASSERT_TRUE(perform(call, row[r], {.scale = scale[r]}).ok());
        want[r][t] = row[r];
        records.push_back(tensor_of(got[r][t]));
      }
    }
    Control control;
    UpdateArgs args = args_of(call, layout, control);
    args.form = Form::leader, args.ranks = 3;
    args.matrix_at = &matrix[0][0], args.scale_at = scale;
    Metadata metadata;
    args.list = metadata.lay_out(args, records);
    launch_update(args, 1);
    for (std::size_t r = 0; r < 3; ++r)
      for (std::size_t t = 0; t < 9; ++t) ASSERT_TRUE(got[r][t] == want[r][t]) << label(layout) << r << t;
    // What a survey of one rank reads from the list.
    std::vector<kernels::Gradient> gradients;
    for (Arrays& a : got[1]) gradients.push_back({a.at(a.gradient), a.count});
    SurveyState state;
    const SurveyArgs look{
        .dtype = layout.dtype, .inverse = 3, .state = &state, .list = args.list, .ranks = 3, .rank = 1};
    run(*survey(look), &look);
    const auto found = kernels::survey(layout.dtype, gradients, {.inverse = 3});
    EXPECT_EQ(std::bit_cast<std::uint64_t>(state.squares), std::bit_cast<std::uint64_t>(found->squares));
    EXPECT_EQ(state.nonfinite == 0, found->finite);
  }
}

TEST(GpuOptim, SurveysHaveTheBitsOfTheHost) {
  for (const auto layout : {kLayouts[0], kLayouts[1], kLayouts[2], kLayouts[4]})
    for (const bool odd : {false, true})
      for (const std::size_t count : {0, 1, 3, 17, 63, 64, 65, 4095, 4096, 4097, 70001}) {
        Arrays a(layout, count, 8, count, odd);
        SurveyState state;
        const SurveyArgs args{.dtype = layout.dtype,
                              .inverse = 0.3,
                              .state = &state,
                              .gradient = a.at(a.gradient),
                              .count = count};
        for (int again = 0; again < 2; ++again) {
          run(*survey(args), &args);
          const auto want = kernels::survey(layout.dtype, a.at(a.gradient), count, {.inverse = 0.3});
          EXPECT_EQ(std::bit_cast<std::uint64_t>(state.squares), std::bit_cast<std::uint64_t>(want->squares))
              << label(layout) << ' ' << count;
          EXPECT_EQ(state.nonfinite == 0, want->finite);
          EXPECT_EQ(state.pending + state.ended, 0u);
        }
      }
}
/// There are more blocks than chains: each chain adds several blocks in turn.
TEST(GpuOptim, LongSurveysHaveTheBitsOfTheHost) {
  const std::size_t count = std::size_t{arith::kSurveyBlock} * (2 * arith::kSurveyChains + 77) + 13;
  std::vector<float> g(count);
  std::mt19937_64 random(1);
  for (float& x : g) x = static_cast<float>(random() % 1000003) / 1000003;
  SurveyState state;
  const SurveyArgs args{.state = &state, .gradient = g.data(), .count = count};
  run(*survey(args), &args);
  const double want = kernels::survey(DType::f32, g.data(), count)->squares;
  EXPECT_EQ(state.squares, want);
  double plain = 0;
  for (const float x : g) plain += static_cast<double>(x) * static_cast<double>(x);
  EXPECT_NEAR(want, plain, 1e-9 * plain);
  EXPECT_NE(want, plain);  // otherwise the test would not detect a wrong order
}
TEST(GpuOptim, SurveysOfListsEqualThoseOfTheHost) {
  for (const auto layout : kLayouts)
    for (const std::size_t tensors : {1, 2, 7, 50}) {
      std::vector<Arrays> arrays;
      for (std::size_t t = 0; t < tensors; ++t)
        arrays.emplace_back(layout, (t * 1009 + 4) % 9001, t % 2 * 8, t, t == 40);
      std::vector<Tensor> records;
      std::vector<kernels::Gradient> gradients;
      for (Arrays& a : arrays) {
        records.push_back(tensor_of(a));
        gradients.push_back({a.at(a.gradient), a.count});
      }
      UpdateArgs kind{.dtype = layout.dtype, .master = layout.master};
      Metadata metadata;
      SurveyState state;
      arith::GradientScale scale{.inverse = 0.5, .clip = 77};
      const SurveyArgs args{.dtype = layout.dtype,
                            .scale_at = &scale,
                            .clip_norm = 0.1,
                            .state = &state,
                            .list = metadata.lay_out(kind, records)};
      run(*survey(args), &args);
      const auto want = kernels::survey(layout.dtype, gradients, {.inverse = 0.5});
      EXPECT_EQ(std::bit_cast<std::uint64_t>(state.squares), std::bit_cast<std::uint64_t>(want->squares));
      EXPECT_EQ(state.nonfinite == 0, want->finite);
      EXPECT_EQ(want->finite, tensors < 41);
      EXPECT_EQ(scale.inverse, 0.5);
      if (want->finite) {
        EXPECT_EQ(scale.clip, arith::clip_factor(std::sqrt(want->squares), 0.1));
      } else {
        EXPECT_FALSE(scale.clip > 0);
      }
    }
}

TEST(GpuOptim, InvalidArgumentsAreRefusedBeforeALaunch) {
  alignas(16) float array[8] = {};
  Control control;
  const Tensor tensor{.value = array,
                      .gradient = array,
                      .state = {array, array, array},
                      .neighbours = array,
                      .message = array,
                      .count = 8};
  UpdateArgs good{.control = &control};
  good.one[0] = tensor;
  const auto code = [&](auto change) {
    UpdateArgs args = good;
    change(args);
    return update(args, 1).status().code();
  };
  EXPECT_EQ(code([](UpdateArgs&) {}), Code::ok);
  EXPECT_EQ(code([](auto& a) { a.dtype = DType::i32; }), Code::invalid);
  EXPECT_EQ(code([](auto& a) { a.master = true; }), Code::invalid);
  // The tensor has no master.
  EXPECT_EQ(code([](auto& a) { a.dtype = DType::bf16, a.master = true; }), Code::invalid);
  EXPECT_EQ(code([](auto& a) { a.control = nullptr; }), Code::invalid);
  EXPECT_EQ(code([](auto& a) { a.skip = &a.control->nonfinite; }), Code::invalid);
  EXPECT_EQ(code([](auto& a) { a.recipe.adam.beta1 = 1; }), Code::invalid);
  EXPECT_EQ(code([](auto& a) { a.recipe.adam.beta2 = NAN; }), Code::invalid);
  EXPECT_EQ(code([](auto& a) { a.recipe.adam.eps = -1; }), Code::invalid);
  EXPECT_EQ(code([](auto& a) { a.family = Family::accum_adam, a.recipe.accum_iter = 0; }), Code::invalid);
  EXPECT_EQ(code([](auto& a) { a.family = Family::sgd, a.recipe.sgd.nesterov = true; }), Code::invalid);
  EXPECT_EQ(code([](auto& a) { a.ranks = 2; }), Code::invalid);
  EXPECT_EQ(code([](auto& a) { a.form = Form::leader, a.ranks = 9; }), Code::invalid);
  EXPECT_EQ(code([](auto& a) { a.form = Form::leader, a.ranks = 2; }), Code::invalid);  // unequal counts
  EXPECT_EQ(code([](auto& a) { a.one[0].value = nullptr; }), Code::invalid);
  EXPECT_EQ(code([](auto& a) { a.one[0].gradient = nullptr; }), Code::invalid);
  EXPECT_EQ(code([](auto& a) { a.one[0].state[1] = nullptr; }), Code::invalid);
  EXPECT_EQ(code([](auto& a) { a.one[0].state[2] = nullptr; }), Code::ok);  // Adam has only two states
  EXPECT_EQ(code([](auto& a) { a.form = Form::exchange, a.one[0].message = nullptr; }), Code::invalid);
  EXPECT_EQ(code([](auto& a) { a.one[0].state[1] = 2 + reinterpret_cast<char*>(a.one[0].state[1]); }),
            Code::invalid);
  EXPECT_EQ(code([](auto& a) { a.one[0] = {}; }), Code::ok);  // without elements no arrays are needed
  SurveyState state;
  const auto look = [](const SurveyArgs& a) { return survey(a).status().code(); };
  EXPECT_EQ(look({.state = &state, .gradient = array, .count = 8}), Code::ok);
  EXPECT_EQ(look({.dtype = DType::i8, .state = &state, .gradient = array, .count = 8}), Code::invalid);
  EXPECT_EQ(look({.gradient = array, .count = 8}), Code::invalid);
  EXPECT_EQ(look({.state = &state, .count = 8}), Code::invalid);
  EXPECT_EQ(look({.state = &state, .gradient = array, .count = 8, .ranks = 2, .rank = 2}), Code::invalid);
  const std::vector<Tensor> list(3, tensor);
  alignas(16) std::byte room[1024];
  EXPECT_TRUE(lay_out(good, list, room, room).ok());
  EXPECT_FALSE(lay_out(good, list, room + 8, room).ok());
  EXPECT_FALSE(lay_out(good, list, room, nullptr).ok());
  UpdateArgs pairs = good;
  pairs.form = Form::leader, pairs.ranks = 2;
  // 3 records cannot be tensors of 2 ranks each.
  EXPECT_EQ(lay_out(pairs, list, room, room).status().code(), Code::invalid);
  EXPECT_EQ(control.step, 0);
}

TEST(GpuOptim, EveryKernelHasANameAndAHostHalf) {
  for (const Kernel& k : optim_kernels()) {
    EXPECT_NE(k.name[0], 0);
    EXPECT_NE(k.host, nullptr) << k.name;
    EXPECT_FALSE(k.spins);
    for (const Kernel& other : optim_kernels())
      if (&other != &k) {
        EXPECT_STRNE(other.name, k.name);
      }
  }
}

}  // namespace
}  // namespace ouro::gpu
