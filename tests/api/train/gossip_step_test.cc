// The step of decentralised training compared with its formula, for every topology and variation; the small
// cases in which ouro corrects the original; averages; devices. Ranks are threads.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "kernels/arith/floats.h"
#include "tests/api/train/arrays.h"
#include "tests/api/train/gossip_ranks.h"

namespace ouro::train {
namespace {

using namespace ouro::test;  // NOLINT

constexpr double kLr = 0.1;

/// The formulas, evaluated for all ranks.
struct Formula {
  Topology topology;
  double adaptive = 1, lr = kLr;
  std::vector<std::vector<double>> x, y;  // by rank; y is the second vector
  std::int64_t step = 0;

  explicit Formula(Topology t) : topology(std::move(t)) {
    x.assign(static_cast<std::size_t>(topology.size()), std::vector<double>(kCount, 0.5));
    y = x;
  }
  void advance() {
    const std::size_t n = x.size();
    const auto old_x = x, old_y = y;
    for (std::size_t r = 0; r < n; ++r) {
      const int rank = static_cast<int>(r);
      const Row row = topology.row(step - 1, rank);
      for (std::size_t k = 0; k < kCount; ++k) {
        if (step > 0 && topology.vectors() == 1) {
          double mixed = row.self * old_x[r][k];
          for (const auto& [from, weight] : row.in)
            mixed += weight * old_x[static_cast<std::size_t>(from)][k];
          x[r][k] = (1 - adaptive) * old_x[r][k] + adaptive * mixed;
        } else if (step > 0) {
          const PairRow p = *topology.pair(step - 1, rank);
          const auto& sent = p.send_x ? old_x : old_y;
          const double z = p.from < 0 ? 0 : sent[static_cast<std::size_t>(p.from)][k];
          x[r][k] = (1 - adaptive) * old_x[r][k] + adaptive * (p.x_self * old_x[r][k] + p.x_in * z);
          y[r][k] = (1 - adaptive) * old_y[r][k] + adaptive * (p.y_self * old_y[r][k] + p.y_in * z);
        }
        const double increment = -lr * (old_x[r][k] - centre(rank)[k]);
        x[r][k] += increment, y[r][k] += increment;
      }
    }
    ++step;
  }
};

Model vector_model(double start = 0.5) {
  Model m({{"x", {static_cast<std::int64_t>(kCount)}}});
  m.values[0].assign(kCount, start);
  return m;
}

/// Compares steps of the trainer with those of the formula.
std::string follow(Context& c, const Topology& topology, const std::string& name, double adaptive,
                   int steps) {
  Model model = vector_model();
  auto made = GossipTrainer::create(c.world(), model.params(), {},
                                    {.topology = topology, .optimizer = plain_sgd(kLr)});
  OURO_RANK_OK(made);
  OURO_RANK_OK(made->set_adaptive_factor(adaptive));
  Formula formula(topology);
  formula.adaptive = adaptive;
  const int order[] = {0};
  for (int step = 0; step < steps; ++step) {
    OURO_RANK_OK(train_step(*made, order, quadratic(centre(c.rank()))));
    formula.advance();
    const std::vector<double> x = flat(*made);
    for (std::size_t k = 0; k < kCount; ++k) {
      const double want = formula.x[static_cast<std::size_t>(c.rank())][k];
      OURO_RANK_CHECK(std::abs(x[k] - want) <= 1e-12, "{}, n = {}, step {}: {} in place of {}", name,
                      c.world_size(), step, x[k], want);
    }
    // mean X_{t+1} = mean X_t + mean U, whatever the topology: for a quadratic, a closed trajectory.
    const auto mean = mean_of(c.world(), x);
    OURO_RANK_OK(mean);
    double centres = 0;
    for (int r = 0; r < c.world_size(); ++r) centres += centre(r)[1] / c.world_size();
    const double want = centres + std::pow(1 - kLr, step + 1) * (0.5 - centres);
    OURO_RANK_CHECK(std::abs((*mean)[1] - want) <= 1e-12, "{}: mean {} in place of {}", name, (*mean)[1],
                    want);
  }
  OURO_RANK_OK(made->close());
  return "";
}

class Gossip : public testing::TestWithParam<int> {};

TEST_P(Gossip, EveryTopologyFollowsTheFormula) {
  std::atomic<int> runs{0};
  const auto body = [&](Context& c) -> std::string {
    for (const TopologyInfo& info : topologies())
      for (int variant = 1; variant <= 2; ++variant) {
        TopologyOptions o;
        if (variant > 1 && !info.by_peers && !(info.by_node && c.world_size() % variant == 0)) continue;
        if (info.by_peers) o.peers = variant;
        if (info.by_node) o.local_world_size = variant;
        const auto t = Topology::make(info.name, c.world_size(), o);
        if (!t.ok()) continue;
        const double adaptive = variant == 1 ? 1 : 0.25;
        if (std::string wrong = follow(c, *t, info.name, adaptive, std::min(2 * t->period() + 1, 9));
            !wrong.empty())
          return wrong;
        ++runs;
      }
    return "";
  };
  EXPECT_EQ(run_threads(GetParam(), body), "");
  EXPECT_GE(runs, 8 * GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ranks, Gossip, testing::Range(1, 10));

/// Checks that the tests above can fail: each of these trains differently from the formula.
TEST(GossipMutants, WrongTrainingIsDetected) {
  const auto body = [](Context& c) -> std::string {
    const auto two = [](double w) { return *Topology::from_rounds(2, {{{{0, 1}, w}}}); };
    const auto differs = [&](const Topology& trained, double adaptive, double first_lr) -> Result<bool> {
      Model model = vector_model();
      auto made =
          GossipTrainer::create(c.world(), model.params(), {},
                                {.topology = trained, .optimizer = plain_sgd(kLr), .schedule = [=](auto) {
                                   return Schedule([=](std::int64_t u) { return u == 0 ? first_lr : kLr; });
                                 }});
      OURO_TRY(made.status());
      OURO_TRY(made->set_adaptive_factor(adaptive));
      Formula formula(two(0.7));
      const int order[] = {0};
      bool other = false;
      for (int step = 0; step < 3; ++step) {
        auto loss = train_step(*made, order, quadratic(centre(c.rank())));
        OURO_TRY(loss.status());
        formula.advance();
        const double want = formula.x[static_cast<std::size_t>(c.rank())][0];
        other |= std::abs(flat(*made)[0] - want) > 1e-9;
      }
      OURO_TRY(made->close());
      return other;
    };
    const auto right = differs(two(0.7), 1, kLr), weight = differs(two(0.71), 1, kLr),
               adaptive = differs(two(0.7), 0.9, kLr), first = differs(two(0.7), 1, 0);
    OURO_RANK_OK(right);
    OURO_RANK_CHECK(!*right, "the right one is refused");
    OURO_RANK_CHECK(*weight && *adaptive && *first, "weight {}, adaptive factor {}, first gradient {}",
                    *weight, *adaptive, *first);
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

// ---- timing, devices ------------------------------------------------------------------------------

/// Parameters of two types and an odd bucket size; delays between steps, between the buckets of a step, and
/// on the user's stream: always the same bits.
TEST(GossipTiming, DelaysDoNotChangeTheResult) {
  const auto body = [](Context& c) -> std::string {
    std::vector<std::vector<double>> ends;
    std::mt19937 random(static_cast<unsigned>(c.rank()));
    const auto delay = [&] { std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000)); };
    for (int variant = 0; variant < 5; ++variant) {
      std::vector<double> a(100, 1), ga(100);
      std::vector<float> b(70, 2), gb(70), d(3, 3), gd(3);
      std::vector<Param> params = {{"a", std::span(a), std::span(ga), {100}},
                                   {"b", std::span(b), std::span(gb), {70}},
                                   {"d", std::span(d), std::span(gd), {3}}};
      GossipOptions o{.topology = *Topology::make("ring", c.world_size()),
                      .optimizer = optim_fn_accum_adamw({.lr = 0.01})};
      o.clip_norm = 0.5, o.clip_scope = ClipScope::global;
      o.bucket_mb = variant % 2 == 0 ? 0 : 1024;
      o.params_in_bucket = variant < 2;
      auto made = GossipTrainer::create(c.world(), params, {}, o);
      OURO_RANK_OK(made);
      auto stream = Stream::create();
      OURO_RANK_OK(stream);
      for (int step = 0; step < 6; ++step) {
        OURO_RANK_OK(made->begin_step());
        if (variant == 2)
          std::this_thread::sleep_for(std::chrono::milliseconds((c.rank() * 7 + step * 5) % 11));
        for (const int p : {2, 1, 0}) {
          const Param& q = made->params()[static_cast<std::size_t>(p)];
          (void)stream->run([&q, step, rank = c.rank(), variant] {
            if (variant == 3) std::this_thread::sleep_for(std::chrono::milliseconds(2));
            for (std::size_t k = 0; k < q.grad.count; ++k) {
              const double g = std::sin(step + rank + static_cast<double>(k));
              if (q.grad.dtype == DType::f64)
                static_cast<double*>(q.grad.data)[k] = g;
              else
                static_cast<float*>(q.grad.data)[k] = static_cast<float>(g);
            }
            return Status{};
          });
          if (variant == 4) delay();
          OURO_RANK_OK(made->grad_ready(p, *stream));
        }
        if (variant == 4) delay();
        OURO_RANK_OK(made->end_backward(*stream));
      }
      std::vector<double> end;
      for (const Param& p : made->params())
        for (std::size_t k = 0; k < p.value.count; ++k)
          end.push_back(p.value.dtype == DType::f64 ? static_cast<double*>(p.value.data)[k]
                                                    : double{static_cast<float*>(p.value.data)[k]});
      ends.push_back(end);
      OURO_RANK_CHECK(made->buckets().size() == (variant % 2 == 0 ? 3u : 2u), "{}", made->buckets().size());
      OURO_RANK_OK(made->close());
    }
    for (const auto& end : ends) OURO_RANK_CHECK(end == ends[0], "other bits");
    OURO_RANK_CHECK(ends[0][0] != 1, "nothing moved");
    return "";
  };
  EXPECT_EQ(run_threads(4, body), "");
}

/// 16-bit parameters, stored channels last, with f32 masters: close to a run in f32; a mean cannot be kept.
TEST(GossipTypes, SixteenBitsFollowFloat) {
  const auto body = [](Context& c) -> std::string {
    using arith::BFloat16;
    constexpr std::size_t kElements = 64;
    std::vector<float> x(kElements, 0.5f), gx(kElements);
    std::vector<BFloat16> y(kElements, arith::narrow<BFloat16>(0.5f)), gy(kElements);
    const auto half = [](std::vector<BFloat16>& v) { return View(v.data(), v.size(), DType::bf16); };
    GossipOptions o{.topology = *Topology::make("complete", 2),
                    .optimizer = optim_fn_adamw({.lr = 0.02, .master = true})};
    auto wide = GossipTrainer::create(c.world(), {{"x", std::span(x), std::span(gx), {}}}, {}, o);
    OURO_RANK_OK(wide);
    const Param narrow{"y", half(y), half(gy), {1, 4, 4, 4}, Order::channels_last};
    auto sixteen = GossipTrainer::create(c.world(), {narrow}, {}, o);
    OURO_RANK_OK(sixteen);
    double far = 0;
    for (int step = 0; step < 20; ++step) {
      OURO_RANK_OK(wide->begin_step());
      OURO_RANK_OK(sixteen->begin_step());
      const auto* a = static_cast<const float*>(wide->params()[0].value.data);
      const auto* b = static_cast<const BFloat16*>(sixteen->params()[0].value.data);
      for (std::size_t k = 0; k < kElements; ++k) {
        const float want = std::sin(static_cast<float>(k) + static_cast<float>(c.rank()));
        far = std::max(far, double{std::abs(a[k] - arith::widen(b[k]))});
        gx[k] = a[k] - want;
        gy[k] = arith::narrow<BFloat16>(arith::widen(b[k]) - want);
      }
      for (GossipTrainer* t : {&*wide, &*sixteen}) {
        OURO_RANK_OK(t->grad_ready(0));
        OURO_RANK_OK(t->end_backward());
      }
    }
    OURO_RANK_CHECK(far > 0 && far < 0.03, "as far as {}", far);
    OURO_RANK_CHECK(sixteen->global_average({.keep = true}).status().code() == Code::unsupported, "kept");
    OURO_RANK_OK(wide->close());
    return text(sixteen->close()) == "ok" ? "" : "close";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

/// On a fake device in ctest: exchanges pass through the host and updates run on the device, with the same
/// bits as on the host.
TEST(GossipDevice, HasTheBitsOfTheHost) {
  if (gpu::gpu().devices() == 0) GTEST_SKIP() << "no CUDA device";
  const auto body = [](Context& c) -> std::string {
    std::vector<std::vector<float>> ends;
    for (const Device device : {Device{}, c.device()}) {
      const Array x(device, std::vector<float>(50, 1)), g(device, std::vector<float>(50));
      GossipOptions o{.topology = *Topology::make("ring", c.world_size()),
                      .optimizer = optim_fn_accum_adamw({.lr = 0.01})};
      o.scaler = GradScaler{.scale = 8};
      auto made = GossipTrainer::create(c.world(), {{"x", x.view(), g.view(), {50}}}, {}, o);
      OURO_RANK_OK(made);
      std::vector<float> gradient(50);
      for (int step = 0; step < 5; ++step) {
        OURO_RANK_OK(made->begin_step());
        for (std::size_t k = 0; k < 50; ++k)
          gradient[k] = step == 2 && c.rank() == 1
                            ? INFINITY
                            : std::sin(static_cast<float>(step + c.rank()) + static_cast<float>(k));
        const_cast<Array&>(g).write(gradient);
        OURO_RANK_OK(made->grad_ready(0));
        OURO_RANK_OK(made->end_backward());
      }
      OURO_RANK_CHECK(made->scale() == 4, "{}", made->scale());
      auto average = made->global_average({.distance = true});
      OURO_RANK_OK(average);
      OURO_RANK_CHECK(average->distance > 0, "{}", average->distance);
      OURO_RANK_OK(average->revert());
      std::vector<float> end(50);
      const View v = made->params()[0].value;
      if (v.device.kind == Device::Kind::host) {
        std::memcpy(end.data(), v.data, v.bytes());
      } else {
        auto s = gpu::gpu().create_stream(v.device.index, 0);
        OURO_RANK_CHECK(s.ok() && gpu::gpu().copy(end.data(), v.data, v.bytes(), *s).ok() &&
                            gpu::gpu().synchronize(*s).ok() && gpu::gpu().destroy_stream(*s).ok(),
                        "no copy");
      }
      ends.push_back(end);
      OURO_RANK_OK(made->close());
    }
    OURO_RANK_CHECK(ends[0] == ends[1] && ends[0][0] != 1, "{} and {}", ends[0][0], ends[1][0]);
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

}  // namespace
}  // namespace ouro::train
