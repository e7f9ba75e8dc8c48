// The bodies of the optimiser kernels and surveys as devices run them, with many lanes and barriers in
// shuffled order, beside the half that the host runs.
#include "kernels/gpu/optim_list.h"
#include "tests/kernels/gpu_optim_world.h"
#include "tests/kernels/lanes.h"

namespace ouro::gpu {
namespace {

using kernels::optim::all_calls;
using Body = void (*)(const void* args, const FiberBlock&, void* scratch);

template <class V>
void update_lanes(const void* args, const FiberBlock& at, void* scratch) {
  using Scratch = optim::BlockScratch<typename V::L::Computed>;
  optim::update_body<V>(at, *static_cast<const UpdateArgs*>(args), *static_cast<Scratch*>(scratch));
}
template <class T>
void survey_lanes(const void* args, const FiberBlock& at, void* scratch) {
  optim::survey_body<T>(at, *static_cast<const SurveyArgs*>(args),
                        *static_cast<optim::SurveyScratch*>(scratch));
}
/// In the order of optim_kernels().
const std::vector<Body>& bodies() {
  static const std::vector<Body> all = [] {
    std::vector<Body> list;
    optim::each_variant([&](auto v) { list.push_back(&update_lanes<decltype(v)>); });
    optim::each_survey([&](auto t) { list.push_back(&survey_lanes<decltype(t)>); });
    return list;
  }();
  return all;
}

class GpuOptimLanes : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "under ThreadSanitizer: it does not follow lanes that change stacks";
#endif
  }
  /// Runs blocks one after the other, in any order.
  void run(const Launch& launch, const void* args) {
    const auto which = static_cast<std::size_t>(launch.kernel - optim_kernels().data());
    ran_.insert(which);
    const int lanes = kLanes[turn_++ % std::size(kLanes)], blocks = launch.shape.blocks;
    std::vector<int> order(static_cast<std::size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    for (const int b : order) {
      alignas(16) std::byte scratch[4096];
      std::memset(scratch, 0x5a, sizeof scratch);
      fibers_.run(lanes, [&](int t) {
        bodies()[which](args, FiberBlock{&fibers_, t, lanes, b, blocks}, scratch);
      });
    }
  }
  static constexpr int kLanes[] = {32, 2, 64, 8, 5};
  static_assert(sizeof(optim::SurveyScratch) <= 4096 && sizeof(optim::BlockScratch<double>) <= 4096);
  Fibers fibers_{5};
  std::mt19937_64 random_{3};
  std::size_t turn_ = 0;
  std::set<std::size_t> ran_;
};

TEST_F(GpuOptimLanes, UpdatesEqualTheHostHalf) {
  std::uint64_t turn = 0;
  for (const Call& call : all_calls())
    for (const auto layout : kLayouts)
      for (const Form form : {Form::plain, Form::exchange, Form::leader}) {
        const std::vector<std::size_t> counts =
            turn / 3 % 3 == 0
                ? std::vector<std::size_t>{33, 0, 2500, 1, 260}
                : std::vector<std::size_t>{turn / 3 % 3 == 1 ? std::size_t{1} : std::size_t{517}};
        ++turn;
        const UpdateCase c{.call = call,
                           .layout = layout,
                           .form = form,
                           .ranks = form == Form::leader ? 1 + turn % 8 : 1,
                           .counts = counts,
                           .shift = turn % 4 == 0 ? std::size_t{8} : 0,
                           .skip = turn % 11 == 0,
                           .in_memory = turn % 2 == 0};
        UpdateWorld want(c, turn), got(c, turn);
        const Result<Launch> launch = update(want.args, 2);
        ASSERT_TRUE(launch.ok()) << launch.status().message();
        gpu::run(*launch, &want.args);
        run(*launch, &got.args);
        const auto wrong = got.differs(want);
        ASSERT_FALSE(wrong) << launch->kernel->name << ", " << text_of(c) << ": " << *wrong;
      }
  EXPECT_EQ(ran_.size(), optim::kUpdates) << "a kernel did not run";
}

TEST_F(GpuOptimLanes, SurveysEqualTheHostHalf) {
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const std::size_t count : {0, 1, 63, 4097, 70002}) {
      Arrays a({t, false}, count, 8, count, count % 2 == 1);
      SurveyState want, got;
      const auto args = [&](SurveyState& state) {
        return SurveyArgs{
            .dtype = t, .inverse = 0.3, .state = &state, .gradient = a.at(a.gradient), .count = count};
      };
      const SurveyArgs host = args(want), lanes = args(got);
      gpu::run(*survey(host), &host);
      for (int again = 0; again < 3; ++again) {
        run(*survey(lanes), &lanes);
        EXPECT_EQ(std::memcmp(&want, &got, offsetof(SurveyState, chain)), 0) << name(t) << ' ' << count;
      }
    }
}

}  // namespace
}  // namespace ouro::gpu
