// Compares the optimiser kernels on a device, launched and replayed as graphs, with their host versions,
// bit for bit. Runs on the emulated device everywhere, which checks the launches, and on CUDA if there is
// a device.
#include <memory>

#include "kernels/device/fake/fake_gpu.h"
#include "tests/kernels/gpu_optim.h"

namespace ouro::gpu {
namespace {

using kernels::optim::all_calls;
using kernels::optim::label;

template <class T>
T must(Result<T> r) {
  if (!r.ok()) throw std::runtime_error(r.status().message());
  return std::move(*r);
}
void must(const Status& s) {
  if (!s.ok()) throw std::runtime_error(s.message());
}

class OptimDevice : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "fake") {
      fake_ = std::make_unique<FakeGpu>();
      g_ = fake_.get();
    } else {
      std::string why;
      g_ = cuda(&why);
      if (g_ == nullptr || g_->devices() == 0) GTEST_SKIP() << "no CUDA device: " << why;
    }
    multiprocessors_ = must(g_->properties(0)).multiprocessors;
    stream_ = must(g_->create_stream(0, 0));
  }
  void TearDown() override {
    if (stream_.device < 0) return;
    release();
    must(g_->destroy_stream(stream_));
  }
  /// Frees the memory that `put` allocated.
  void release() {
    must(g_->synchronize(stream_));
    for (void* p : owned_) must(g_->free(p));
    owned_.clear();
  }

  void* put(const void* from, std::size_t bytes) {
    owned_.push_back(must(g_->alloc(0, std::max<std::size_t>(bytes, 1))));
    if (bytes > 0) must(g_->copy(owned_.back(), from, bytes, stream_));
    return owned_.back();
  }
  template <class T>
  T* put(const T& x) {
    return static_cast<T*>(put(&x, sizeof x));
  }
  void get(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) must(g_->copy(to, from, bytes, stream_));
    must(g_->synchronize(stream_));
  }
  /// Copies of arrays on the device, which can be copied back.
  struct Copy {
    Arrays* home;
    std::vector<std::pair<Bytes*, std::byte*>> parts;
    Tensor tensor;
  };
  Copy put(Arrays& a) {
    Copy c{&a, {}, {}};
    const auto one = [&](Bytes& b) {
      c.parts.emplace_back(&b, static_cast<std::byte*>(put(b.data(), b.size())));
      return c.parts.back().second + a.shift;
    };
    c.tensor = {.value = one(a.value), .gradient = one(a.gradient), .count = a.count};
    if (a.layout.master) c.tensor.master = reinterpret_cast<float*>(one(a.master));
    for (int k = 0; k < 3; ++k) c.tensor.state[k] = one(a.state[k]);
    c.tensor.neighbours = one(a.neighbours);
    c.tensor.message = one(a.message);
    return c;
  }
  void get(const Copy& c) {
    for (const auto& [to, from] : c.parts) get(to->data(), from, to->size());
  }
  template <class Args>
  void launch(const Result<Launch>& l, const Args& args) {
    ASSERT_TRUE(l.ok()) << l.status().message();
    must(g_->launch(*l->kernel, l->shape, &args, stream_));
  }

  std::unique_ptr<FakeGpu> fake_;
  Gpu* g_ = nullptr;
  int multiprocessors_ = 1;
  Stream stream_;
  std::vector<void*> owned_;
};
INSTANTIATE_TEST_SUITE_P(Gpu, OptimDevice, testing::Values("fake", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

/// Three launches of every call, layout, form and alignment; then compares states, reports and steps.
TEST_P(OptimDevice, UpdatesGiveTheBitsOfTheHost) {
  for (const auto layout : kLayouts)
    for (const Call& call : all_calls())
      for (const std::size_t count : {17, 4099})
        for (const Form form : {Form::plain, Form::exchange, Form::leader}) {
          const std::size_t ranks = form == Form::leader ? 1 + count % 7 : 1;
          std::vector<Arrays> want, got;
          for (std::size_t r = 0; r < ranks; ++r)
            want.emplace_back(layout, count, count % 2 * 8 * (r % 2), count + r);
          got = want;
          Control there, here;
          UpdateArgs args = args_of(call, layout, here);
          args_of(call, layout, there);
          args.form = form, args.ranks = static_cast<int>(ranks);
          args.weights = want[0].exchange().weights;
          for (std::size_t r = 0; r < ranks; ++r) {
            args.scale[r] = {.inverse = 0.3, .clip = 1.0 / static_cast<double>(r + 1)};
            for (std::size_t s = 0; s < ranks; ++s)
              args.matrix[r][s] = static_cast<double>(1 + (r + s) % 3) / (2.0 * static_cast<double>(ranks));
          }
          UpdateArgs host = args;
          host.control = &there;
          std::vector<Copy> copies;
          for (std::size_t r = 0; r < ranks; ++r) {
            copies.push_back(put(got[r]));
            args.one[r] = copies.back().tensor;
            host.one[r] = tensor_of(want[r]);
          }
          args.control = put(here);
          for (int k = 0; k < 3; ++k) {
            launch(update(args, multiprocessors_), args);
            run(*update(host, 2), &host);
          }
          for (const Copy& c : copies) get(c);
          get(&here, args.control, sizeof here);
          EXPECT_EQ(here.step, there.step);
          EXPECT_EQ(here.nonfinite, there.nonfinite);
          for (std::size_t r = 0; r < ranks; ++r)
            ASSERT_TRUE(got[r] == want[r]) << call.name << ", " << label(layout) << ", form "
                                           << static_cast<int>(form) << ", " << count << ", rank " << r;
          release();
        }
}

/// Survey and update of a list in one graph, replayed: the device alone ends windows and skips steps
/// with infinities.
TEST_P(OptimDevice, GraphsCountTheirSteps) {
  for (const auto layout : kLayouts) {
    std::vector<Arrays> want;
    for (std::size_t t = 0; t < 12; ++t) want.emplace_back(layout, t * 997 % 5003, 0, t, false);
    std::vector<Arrays> got = want;
    std::vector<Copy> copies;
    std::vector<Tensor> there, here;
    for (std::size_t t = 0; t < 12; ++t) {
      copies.push_back(put(got[t]));
      here.push_back(copies.back().tensor);
      there.push_back(tensor_of(want[t]));
    }
    Control control;
    SurveyState state;
    arith::GradientScale scale{.inverse = 0.5};
    const auto arguments = [&](Control* c, SurveyState* s, arith::GradientScale* g) {
      return std::pair{
          UpdateArgs{.family = Family::accum_adam,
                     .dtype = layout.dtype,
                     .master = layout.master,
                     .recipe = {.adam = {.weight_decay = 0.1, .decoupled = true}, .accum_iter = 4},
                     .control = c,
                     .skip = &s->nonfinite,
                     .scale_at = g},
          SurveyArgs{.dtype = layout.dtype, .scale_at = g, .clip_norm = 1, .state = s}};
    };
    auto [host, host_look] = arguments(&control, &state, &scale);
    auto [args, look] = arguments(put(control), put(state), put(scale));
    Metadata metadata;
    host.list = host_look.list = metadata.lay_out(host, there);
    std::vector<Tensor> staging(list_bytes(here) / sizeof(Tensor) + 1);
    void* const home = put(staging.data(), staging.size() * sizeof(Tensor));
    args.list = look.list = must(lay_out(args, here, reinterpret_cast<std::byte*>(staging.data()), home));
    must(g_->copy(home, staging.data(), staging.size() * sizeof(Tensor), stream_));
    must(g_->synchronize(stream_));

    must(g_->begin_capture(stream_));
    launch(survey(look), look);
    launch(update(args, multiprocessors_), args);
    const Graph graph = must(g_->end_capture(stream_));
    for (std::uint64_t k = 1; k <= 9; ++k) {
      for (std::size_t t = 0; t < 12; ++t) {
        const Bytes gradient = Arrays(layout, want[t].count, 0, 50 * k + t, k == 4 && t == 7).gradient;
        std::copy(gradient.begin(), gradient.end(), want[t].gradient.begin());
        got[t].gradient = gradient;
        must(g_->copy(copies[t].parts[1].second, gradient.data(), gradient.size(), stream_));
        must(g_->synchronize(stream_));
      }
      must(g_->launch(graph, stream_));
      run(*survey(host_look), &host_look);
      run(*update(host, 3), &host);
      SurveyState found;
      Control counted;
      arith::GradientScale clipped;
      get(&found, look.state, sizeof found);
      get(&counted, args.control, sizeof counted);
      get(&clipped, args.scale_at, sizeof clipped);
      EXPECT_EQ(std::bit_cast<std::uint64_t>(found.squares), std::bit_cast<std::uint64_t>(state.squares));
      EXPECT_EQ(found.nonfinite, k == 4);
      EXPECT_EQ(std::bit_cast<std::uint64_t>(clipped.clip), std::bit_cast<std::uint64_t>(scale.clip));
      EXPECT_EQ(counted.step, static_cast<std::int64_t>(k < 4 ? k : k - 1));
      for (const Copy& c : copies) get(c);
      for (std::size_t t = 0; t < 12; ++t)
        ASSERT_TRUE(got[t] == want[t]) << label(layout) << ", replay " << k << ", tensor " << t;
    }
    must(g_->destroy_graph(graph));
    release();
  }
}

/// More blocks than chains, all running at once.
TEST_P(OptimDevice, SurveyOfMoreBlocksThanChainsMatchesTheHost) {
  const std::size_t count = std::size_t{arith::kSurveyBlock} * (arith::kSurveyChains + 77) + 13;
  std::vector<float> g(count);
  std::mt19937_64 random(1);
  for (float& x : g) x = static_cast<float>(random() % 1000003) / 1000003;
  SurveyState state;
  const SurveyArgs args{.state = put(state),
                        .gradient = static_cast<float*>(put(g.data(), count * sizeof(float))),
                        .count = count};
  launch(survey(args), args);
  get(&state, args.state, sizeof state);
  EXPECT_EQ(state.squares, kernels::survey(DType::f32, g.data(), count)->squares);
}

}  // namespace
}  // namespace ouro::gpu
