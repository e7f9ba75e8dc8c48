// Misuse of decentralised training, on one rank or on all, and ranks that die during an exchange.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>

#include "ouro/train/average.hpp"
#include "tests/api/train/arrays.h"
#include "tests/api/train/gossip_ranks.h"

namespace ouro::train {
namespace {

using namespace ouro::test;  // NOLINT

/// What rank 1 has differently from the others, and the error that all get.
struct Difference {
  const char* name;
  std::function<void(std::vector<Param>&, std::vector<Buffer>&, GossipOptions&)> make;
  std::string text;
};

TEST(GossipMisuse, DifferencesBetweenRanksAreReported) {
  static double buffer = 0;
  const std::vector<Difference> all = {
      {"order", [](auto& p, auto&, auto&) { std::swap(p[0], p[1]); },
       "rank 1 differs from rank 0 at parameter 0"},
      {"count", [](auto& p, auto&, auto&) { p.pop_back(); }, "rank 1 differs from rank 0 at parameter 1"},
      {"shape",
       [](auto& p, auto&, auto&) {
         p[1].shape = {1, 5};
       },
       "rank 1 differs from rank 0 at parameter 1"},
      {"name", [](auto& p, auto&, auto&) { p[1].name = "c"; }, "rank 1 differs from rank 0 at parameter 1"},
      {"frozen", [](auto& p, auto&, auto&) { p[0].grad = {}; }, "rank 1 differs from rank 0 at parameter 0"},
      {"dtype",
       [](auto& p, auto&, auto&) {
         p[0].value = {p[0].value.data, 5, DType::f32}, p[0].grad = {p[0].grad.data, 5, DType::f32};
       },
       "rank 1 differs from rank 0 at parameter 0"},
      {"topology", [](auto&, auto&, auto& o) { o.topology = *Topology::make("complete", 3); },
       "rank 1 has a topology with other weights than rank 0"},
      {"options", [](auto&, auto&, auto& o) { o.bucket_mb = 1; },
       "rank 1 has other options or buffers than rank 0"},
      {"buffers",
       [](auto&, auto& b, auto&) {
         b.push_back({"x", std::span<double>(&buffer, 1)});
       },
       "rank 1 has other options or buffers than rank 0"},
      {"refuses", [](auto& p, auto&, auto&) { p[1].name = "a"; }, "rank 1 refused its arguments"},
  };
  for (const Difference& d : all) {
    const auto body = [&](Context& c) -> std::string {
      Model model = two_vectors();
      std::vector<Param> params = model.params();
      std::vector<Buffer> buffers;
      GossipOptions o = options(3);
      if (c.rank() == 1) d.make(params, buffers, o);
      const Status s = GossipTrainer::create(c.world(), params, buffers, o).status();
      const std::string want =
          d.name == std::string("refuses") && c.rank() == 1 ? "two parameters are named 'a'" : d.text;
      OURO_RANK_CHECK(says(s, want), "{}: {}", d.name, s.message());
      return "";
    };
    EXPECT_EQ(run_threads(3, body), "") << d.name;
  }
}

/// The same rows, but another number of vectors: not the same training.
TEST(GossipMisuse, TopologyWithAnotherNumberOfVectorsIsReported) {
  const auto body = [](Context& c) -> std::string {
    Model model = two_vectors();
    GossipOptions o = options(4, "ceca-2p");
    std::vector<double> w;
    for (int step = 0; step < o.topology.period(); ++step)
      for (const double x : o.topology.matrix(step)) w.push_back(x);
    if (c.rank() == 1) o.topology = *Topology::from_matrices(4, w);
    const Status s = GossipTrainer::create(c.world(), model.params(), {}, o).status();
    OURO_RANK_CHECK(says(s, "rank 1 has a topology with other weights than rank 0"), "{}", text(s));
    return "";
  };
  EXPECT_EQ(run_threads(4, body), "");
}

TEST(GossipMisuse, InvalidArgumentsAreRefused) {
  const auto body = [](Context& c) -> std::string {
    Model model = two_vectors();
    const auto refused = [&](auto&& change) {
      std::vector<Param> p = model.params();
      GossipOptions o = options(c.world_size());
      change(p, o);
      return text(GossipTrainer::create(c.world(), p, {}, o).status());
    };
    using P = std::vector<Param>;
    using O = GossipOptions;
    const std::pair<std::string, std::string> all[] = {
        {refused([](P& p, O&) { p.clear(); }), "no parameters"},
        {refused([](P& p, O&) { p[0].grad = p[1].grad = {}; }), "all parameters are frozen"},
        {refused([](P& p, O&) { p[1].value = p[0].value; }), "share memory; expected tied weights once"},
        {refused([](P& p, O&) {
           p[0].shape = {2, 3};
         }),
         "has 5 elements, its shape (2,3) 6"},
        {refused([](P& p, O&) {
           p[0].shape = {-1, -5};
         }),
         "has 5 elements, its shape (-1,-5) none"},
        {refused([](P& p, O&) { p[0].order = Order::channels_last; }), "channels_last with 1 dimensions"},
        {refused([](P& p, O&) { p[0].value.dtype = p[0].grad.dtype = DType::i64; }), "is of type int64"},
        {refused([](P& p, O&) { p[0].grad.count = 4; }), "a gradient of another count"},
        {refused([](P&, O& o) { o.topology = *Topology::make("ring", 4); }), "the topology is for 4 ranks"},
        {refused([](P&, O& o) { o.optimizer = {}; }), "no optimiser"},
        {refused([](P&, O& o) { o.bucket_mb = -1; }), "bucket_mb -1"},
        {refused([](P&, O& o) { o.clip_norm = NAN; }), "clip_norm nan"},
        {refused([](P&, O& o) { o.scaler = GradScaler{.scale = 0}; }), "loss scale 0"},
        {refused([](P&, O& o) {
           o.scaler = GradScaler{.scope = ScalerScope::local}, o.clip_norm = 1,
           o.clip_scope = ClipScope::global;
         }),
         "expected one of the two"},
        {refused([](P&, O& o) {
           o.pre_mix = [](int, const Row&, CView, View) { return Status{}; }, o.params_in_bucket = false;
         }),
         "pre_mix needs params_in_bucket"},
    };
    for (const auto& [got, want] : all)
      OURO_RANK_CHECK(got.find(want) != std::string::npos, "{}: {}", want, got);
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

TEST(GossipMisuse, CallsOutOfOrderAreRefused) {
  const auto body = [](Context& c) -> std::string {
    Model model = two_vectors();
    double frozen = 0;
    std::vector<Param> params = model.params();
    params.push_back({"frozen", std::span<double>(&frozen, 1), {}, {1}});
    auto made = GossipTrainer::create(c.world(), params, {}, options(2));
    OURO_RANK_OK(made);
    GossipTrainer& t = *made;
    OURO_RANK_CHECK(says(t.grad_ready(0), "begin_step") && says(t.end_backward(), "begin_step"), "no step");
    OURO_RANK_OK(t.begin_step(false));
    OURO_RANK_CHECK(says(t.grad_ready(0), "begin_step"), "evaluation");
    OURO_RANK_OK(t.begin_step());
    OURO_RANK_OK(t.begin_step());  // nothing was ready, so the same step starts again
    OURO_RANK_CHECK(says(t.grad_ready(3), "parameter 3 of 3") && says(t.grad_ready(2), "frozen"), "index");
    OURO_RANK_OK(t.grad_ready(1));
    OURO_RANK_CHECK(says(t.grad_ready(1), "already") && says(t.begin_step(), "end_backward"), "twice");
    OURO_RANK_CHECK(says(t.global_average().status(), "under way") && says(t.save().status(), "under way"),
                    "");
    OURO_RANK_CHECK(says(t.set_adaptive_factor(1.5), "1.5") && t.lr() == 0 && t.steps() == 0, "");
    OURO_RANK_OK(t.grad_ready(0));
    OURO_RANK_OK(t.end_backward());
    OURO_RANK_CHECK(t.lr() == 0.05 && t.steps() == 1, "{}", t.lr());
    OURO_RANK_CHECK(says(t.load({}), "has begun"), "");
    OURO_RANK_OK(t.close());
    OURO_RANK_OK(t.close());
    OURO_RANK_CHECK(says(t.begin_step(), "closed"), "");
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

/// If an average were in force when gradients arrive, its end would overwrite the parameters of the
/// next step.
TEST(GossipMisuse, GradientsAreRefusedWhileAnAverageIsInForce) {
  const auto body = [](Context& c) -> std::string {
    Model model = two_vectors();
    auto made = GossipTrainer::create(c.world(), model.params(), {}, options(2));
    OURO_RANK_OK(made);
    OURO_RANK_OK(train_step(*made, kOrder, loss_of(c.rank())));
    OURO_RANK_OK(made->begin_step());
    auto average = made->global_average();
    OURO_RANK_OK(average);
    OURO_RANK_CHECK(says(made->grad_ready(0), "in force") && says(made->end_backward(), "in force"), "");
    OURO_RANK_OK(average->revert());
    OURO_RANK_OK(train_step(*made, kOrder, loss_of(c.rank())));
    // Nor may it overwrite loaded parameters.
    auto state = made->save();
    OURO_RANK_OK(state);
    Model again = two_vectors();
    auto fresh = GossipTrainer::create(c.world(), again.params(), {}, options(2));
    OURO_RANK_OK(fresh);
    {
      auto held = fresh->global_average();
      OURO_RANK_CHECK(held.ok() && says(fresh->load(*state), "in force"), "load");
    }
    OURO_RANK_OK(fresh->load(*state));
    OURO_RANK_CHECK(flat(*fresh) == flat(*made), "not what was saved");
    return text(made->close()) == "ok" ? "" : "close";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

TEST(GossipMisuse, DifferentKeepOptionsOfAnAverageAreReported) {
  const auto body = [](Context& c) -> std::string {
    Model model = two_vectors();
    auto made = GossipTrainer::create(c.world(), model.params(), {}, options(2));
    OURO_RANK_OK(made);
    const std::vector<double> x = flat(*made);
    const Status s = made->global_average({.keep = c.rank() == 1}).status();
    const std::string want = "rank 1 has another choice of what to keep than rank 0";
    OURO_RANK_CHECK(says(s, want) && says(made->status(), want), "{}", text(s));
    OURO_RANK_CHECK(flat(*made) == x, "something was averaged");
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

/// One rank has its model on a GPU: all get an error at once, not at the deadline.
TEST(GossipMisuse, MixedHostAndGpuModelsAreReportedAtOnce) {
  if (gpu::gpu().devices() == 0) GTEST_SKIP() << "no CUDA device";
  const auto body = [](Context& c) -> std::string {
    const Device device = c.rank() == 1 ? c.device() : Device{};
    const test::Array x(device, std::vector<float>(50, 1)), g(device, std::vector<float>(50));
    const Status s =
        GossipTrainer::create(c.world(), {{"x", x.view(), g.view(), {50}}}, {}, options(2)).status();
    OURO_RANK_CHECK(says(s, "rank 1 differs from rank 0 at parameter 0"), "{}", text(s));
    const Param p{.name = "x", .value = x.view(), .grad = {}};
    const Status average = average_models(c.world(), {&p, 1});
    OURO_RANK_CHECK(says(average, "rank 1 has other names, shapes, types, devices"), "{}", text(average));
    const CView list[] = {x.view()};
    const Status reduced = all_reduce_list(c.world(), list).status();
    OURO_RANK_CHECK(says(reduced, "rank 1 has other names, shapes, types, devices"), "{}", text(reduced));
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

/// Rank 1 leaves out a parameter: in the first step, or later.
std::string leave_out(Context& c, bool find_unused, int at) {
  Model model = two_vectors();
  GossipOptions o = options(c.world_size());
  o.find_unused = find_unused;
  auto made = GossipTrainer::create(c.world(), model.params(), {}, o);
  OURO_RANK_OK(made);
  for (int step = 0; step < at + 8; ++step) {
    const bool leaves = c.rank() == 1 && step == at;
    const auto loss = train_step(*made, leaves ? std::vector<int>{0} : kOrder, loss_of(c.rank()));
    if (find_unused) {
      OURO_RANK_OK(loss);
      const auto* g = static_cast<const double*>(made->params()[1].grad.data);
      OURO_RANK_CHECK((g[0] == 0) == leaves, "step {}: {}", step, g[0]);
      continue;
    }
    // A rank that waits neither for rank 1 nor for one that does gets the error in a later round of the ring.
    if (loss.ok() && !leaves) continue;
    OURO_RANK_CHECK(says(loss.status(), "parameter 'b'"), "step {}: {}", step, loss.status().message());
    OURO_RANK_CHECK(says(made->begin_step(), "parameter 'b'") && says(made->status(), "parameter 'b'"), "");
    return "";
  }
  OURO_RANK_CHECK(find_unused, "nobody was told");
  return text(made->close()) == "ok" ? "" : "close";
}
TEST(GossipMisuse, MissingGradientIsNamedUnlessFindUnused) {
  for (const int at : {0, 2})
    for (const bool find_unused : {false, true})
      EXPECT_EQ(run_threads(3, [&](Context& c) { return leave_out(c, find_unused, at); }), "")
          << at << ' ' << find_unused;
}

TEST(GossipMisuse, DifferentReadyOrderIsAnErrorUnlessFindUnused) {
  for (const bool find_unused : {false, true}) {
    const auto body = [&](Context& c) -> std::string {
      Model model = two_vectors();
      GossipOptions o = options(3);
      o.find_unused = find_unused, o.bucket_mb = 0;
      auto made = GossipTrainer::create(c.world(), model.params(), {}, o);
      OURO_RANK_OK(made);
      for (int step = 0; step < 3; ++step) {
        const auto loss =
            train_step(*made, c.rank() == 2 ? std::vector<int>{0, 1} : kOrder, loss_of(c.rank()));
        if (!find_unused) {
          OURO_RANK_CHECK(says(loss.status(), "another order on rank 2"), "{}", loss.status().message());
          return "";
        }
        OURO_RANK_OK(loss);
      }
      OURO_RANK_CHECK(made->buckets()[0].params[0] == 1, "not the order of rank 0");
      return text(made->close()) == "ok" ? "" : "close";
    };
    EXPECT_EQ(run_threads(3, body), "");
  }
}

TEST(GossipMisuse, DifferentLearningRatesAreReported) {
  const auto body = [](Context& c) -> std::string {
    Model model = two_vectors();
    GossipOptions o = options(2);
    o.optimizer = optim_fn_sgd({.lr = c.rank() == 1 ? 1.1 : 0.1});
    auto made = GossipTrainer::create(c.world(), model.params(), {}, o);
    OURO_RANK_OK(made);
    const auto loss = train_step(*made, kOrder, loss_of(c.rank()));
    OURO_RANK_CHECK(says(loss.status(), "rank 1 has another optimiser or schedule than rank 0"), "{}",
                    loss.status().message());
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

/// If a user's function throws on one rank, the trainer ends on all, at once.
TEST(GossipMisuse, ThrowingUserFunctionEndsTheTrainerOnAllRanks) {
  const std::vector<std::function<void(GossipOptions&)>> all = {
      [](GossipOptions& o) { o.optimizer = [](auto) -> Result<std::unique_ptr<Optimizer>> { throw 7; }; },
      [](GossipOptions& o) { o.schedule = [](auto) -> Result<Schedule> { throw std::runtime_error("no"); }; },
      [](GossipOptions& o) { o.pre_mix = [](auto&&...) -> Status { throw std::runtime_error("no"); }; }};
  for (const auto& change : all) {
    const auto body = [&](Context& c) -> std::string {
      Model model = two_vectors();
      GossipOptions o = options(2);
      if (c.rank() == 1) change(o);
      auto made = GossipTrainer::create(c.world(), model.params(), {}, o);
      OURO_RANK_OK(made);
      Status s;
      for (int step = 0; step < 4 && s.ok(); ++step)
        s = train_step(*made, kOrder, loss_of(c.rank())).status();
      OURO_RANK_CHECK(says(s, "threw an exception") || says(s, "another optimiser"), "{}", text(s));
      return "";
    };
    EXPECT_EQ(run_threads(2, body), "");
  }
}

/// An average in force keeps the values that it has to restore.
TEST(GossipMisuse, AverageThatOutlivesItsTrainerStillRestoresValues) {
  const auto body = [](Context& c) -> std::string {
    for (const bool stepped : {false, true}) {
      Model model = two_vectors();
      const std::vector<Param> params = model.params();
      auto made = GossipTrainer::create(c.world(), params, {}, options(2));
      OURO_RANK_OK(made);
      if (stepped) OURO_RANK_OK(train_step(*made, kOrder, loss_of(c.rank())));
      auto* const first = static_cast<double*>(params[0].value.data);
      first[0] = c.rank();
      const std::vector<double> x = flat(*made);
      const double mine = stepped ? x[0] : c.rank();
      {
        auto average = made->global_average();
        OURO_RANK_OK(average);
        const View now = made->params()[0].value;
        OURO_RANK_OK(barrier(c.world()));
        made = Result<GossipTrainer>(invalid("gone"));
        OURO_RANK_CHECK(stepped || static_cast<double*>(now.data)[0] == 0.5, "not averaged");
      }
      OURO_RANK_CHECK(stepped || first[0] == mine, "{} in place of {}", first[0], mine);
      OURO_RANK_OK(barrier(c.world()));
    }
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

/// A rank dies while the others exchange with it.
TEST(GossipFailure, DeathOfARankIsReportedToAll) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(Mode::processes);
  const auto body = [](Context& c) -> std::string {
    Model model = two_vectors();
    auto made = GossipTrainer::create(c.world(), model.params(), {}, options(3));
    OURO_RANK_OK(made);
    for (int step = 0; step < 200; ++step) {
      if (c.rank() == 2 && step == 5) ::kill(::getpid(), SIGKILL);
      const auto loss = train_step(*made, kOrder, loss_of(c.rank()));
      if (loss.ok()) continue;
      OURO_RANK_CHECK(loss.status().code() == Code::peer_lost && loss.status().failure()->rank == 2, "{}",
                      loss.status().message());
      OURO_RANK_CHECK(made->begin_step().code() == Code::peer_lost, "not sticky");
      return "told";
    }
    return "nobody died";
  };
  const std::string said = run_processes(3, body);
  EXPECT_THAT(said, testing::HasSubstr("rank 0: told"));
  EXPECT_THAT(said, testing::HasSubstr("rank 1: told"));
}

/// Destroying a trainer while the others still exchange must not block any rank.
TEST(GossipFailure, DestructionDoesNotBlockAnyRank) {
  const auto body = [](Context& c) -> std::string {
    Model model = two_vectors();
    auto made = GossipTrainer::create(c.world(), model.params(), {}, options(2));
    OURO_RANK_OK(made);
    OURO_RANK_OK(train_step(*made, kOrder, loss_of(c.rank())));
    OURO_RANK_OK(barrier(c.world()));
    if (c.rank() == 0) return "";
    const auto loss = train_step(*made, kOrder, loss_of(c.rank()));
    (void)loss.ok();  // may or may not have received what it needs
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

}  // namespace
}  // namespace ouro::train
