// Misuse of sharded training, on one rank or on all, and ranks that die during it: every rank gets an error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <thread>

#include "tests/api/train/shard_ranks.h"

namespace ouro::train {
namespace {

using namespace ouro::test;  // NOLINT

using Model = ShardModel<float>;
const std::vector<models::Tensor> kTwo = {{"a", {5}}, {"b", {5}}};

/// What one rank has differently from the others, and the error that all get.
struct Difference {
  const char* name;
  std::function<void(std::vector<Param>&, ShardOptions&)> make;
  std::string text, own = text;
};
const std::vector<Difference>& differences() {
  static const std::vector<Difference> all = {
      {"order", [](auto& p, auto&) { std::swap(p[0], p[1]); }, "at parameter 0"},
      {"count", [](auto& p, auto&) { p.pop_back(); }, "at parameter 1"},
      {"shape",
       [](auto& p, auto&) {
         p[1].shape = {1, 5};
       },
       "at parameter 1"},
      {"name", [](auto& p, auto&) { p[1].name = "c"; }, "at parameter 1"},
      {"frozen", [](auto& p, auto&) { p[0].grad = {}; }, "at parameter 0"},
      {"dtype", [](auto& p, auto&) { p[0].value.dtype = p[0].grad.dtype = DType::f16; }, "at parameter 0"},
      {"bucket_mb", [](auto&, auto& o) { o.bucket_mb = 1; }, "has other options"},
      {"clip_norm", [](auto&, auto& o) { o.clip_norm = 1; }, "has other options"},
      {"scaler", [](auto&, auto& o) { o.scaler = GradScaler{}; }, "has other options"},
      {"numerics", [](auto&, auto& o) { o.numerics = Numerics::fast; }, "has other options"},
      {"ready",
       [](auto&, auto& o) {
         o.order = {0, 1};
       },
       "has other options"},
      {"optimiser", [](auto&, auto& o) { o.optimizer = train::optim_fn_adamw({.lr = 0.02}); },
       "has another optimiser"},
      {"schedule",
       [](auto&, auto& o) { o.schedule = [](auto) { return train::Schedule([](auto) { return 0.25; }); }; },
       "has other options"},
      {"empty", [](auto& p, auto&) { p.clear(); }, "refused its arguments", "no parameters"},
      {"twice", [](auto& p, auto&) { p[1].name = "a"; }, "refused its arguments",
       "two parameters are named 'a'"},
      {"factory",
       [](auto&, auto& o) {
         o.optimizer = [](auto) -> Result<std::unique_ptr<Optimizer>> { return invalid("not today"); };
       },
       "refused its arguments", "not today"},
      {"factory that throws",
       [](auto&, auto& o) {
         o.optimizer = [](auto) -> Result<std::unique_ptr<Optimizer>> {
           throw std::runtime_error("not today");
         };
       },
       "refused its arguments", "not today"},
      {"schedule that throws",
       [](auto&, auto& o) {
         o.schedule = [](auto) {
           return train::Schedule([](auto) -> double { throw std::runtime_error("not today"); });
         };
       },
       "refused its arguments", "not today"},
      {"no optimiser made",
       [](auto&, auto& o) { o.optimizer = [](auto) { return Result<std::unique_ptr<Optimizer>>(nullptr); }; },
       "refused its arguments", "made none"},
  };
  return all;
}

/// Schedules that differ after ten updates.
std::string told_of_schedules(Context& c) {
  Model model(kTwo);
  ShardOptions o = shard_options();
  const double later = c.rank() == 1 ? 0.2 : 0.1;
  o.schedule = [=](auto) {
    return train::Schedule([=](std::int64_t u) { return u < 10 ? 0.1 : later; }, 100);
  };
  const Status s = make_trainer(c, 1, model.params(), o).status();
  OURO_RANK_CHECK(s.code() == Code::invalid && says(s, "another optimiser or schedule"), "{}", s.message());
  return "";
}

std::string told(Context& c, int shards, const Difference& d, int odd) {
  Model model(kTwo);
  std::vector<Param> params = model.params();
  ShardOptions o = shard_options();
  if (c.rank() == odd) d.make(params, o);
  const Status s = make_trainer(c, shards, params, o).status();
  // Ranks of other rows of the mesh are told that a row disagreed.
  const bool same_row = c.rank() / shards == odd / shards;
  OURO_RANK_CHECK(c.rank() == odd ? says(s, d.own) || says(s, d.text) : s.code() == Code::invalid, "{}: {}",
                  d.name, s.message());
  if (same_row && c.rank() != odd) OURO_RANK_CHECK(says(s, d.text), "{}: {}", d.name, s.message());
  Model again(kTwo);  // the groups are still usable
  auto made = make_trainer(c, shards, again.params(), shard_options());
  OURO_RANK_OK(made);
  OURO_RANK_OK(shard_step<float>(*made, c.rank(), 0));
  return text(made->close()) == "ok" ? "" : "close";
}
TEST(ShardMisuse, DifferencesBetweenRanksAreReported) {
  for (const Difference& d : differences())
    for (const int odd : {0, 2})
      EXPECT_EQ(run_threads(3, [&](Context& c) { return told(c, 3, d, odd); }), "") << d.name << odd;
}
TEST(ShardMisuse, DifferencesBetweenRanksOfAMeshAreReported) {
  for (const Difference& d : differences())
    EXPECT_EQ(run_threads(4, [&](Context& c) { return told(c, 2, d, 3); }), "") << d.name;
}

TEST(ShardMisuse, DifferentSchedulesAreReported) { EXPECT_EQ(run_threads(2, told_of_schedules), ""); }

/// A table of rates is queried for the run's steps only; if it ends on one rank, all get an error.
std::string steps_of_a_table(Context& c) {
  constexpr int kLong = 4;
  Model model(kTwo);
  ShardOptions o = shard_options();
  const std::vector<double> rates(c.rank() == 1 ? 2 : kLong, 0.1);
  o.schedule = [=](auto) {
    return train::Schedule([=](std::int64_t u) { return rates.at(static_cast<std::size_t>(u)); });
  };
  auto made = make_trainer(c, 2, model.params(), o);
  OURO_RANK_OK(made);
  for (int step = 0; step < 2; ++step) OURO_RANK_OK(shard_step<float>(*made, c.rank(), step));
  const Status s = shard_step<float>(*made, c.rank(), 2);
  OURO_RANK_CHECK(says(s, "threw an exception") && says(made->status(), "threw an exception"), "{}", text(s));
  return "";
}
TEST(ShardMisuse, ScheduleThatThrowsEndsTheTrainerOnAllRanks) {
  EXPECT_EQ(run_threads(2, steps_of_a_table), "");
}

TEST(ShardMisuse, GroupsThatFormNoMeshAreRefused) {
  const auto body = [](Context& c) -> std::string {
    Model model(kTwo);
    auto grid = Grid::make(c, 2);
    OURO_RANK_OK(grid);
    const Status same =
        ShardedTrainer::create(grid->shards, grid->shards, model.params(), shard_options()).status();
    OURO_RANK_CHECK(says(same, "another place in its replica group"), "{}", same.message());
    // Crossed columns: ranks 0 and 3, 1 and 2.
    auto crossed = c.world().split(c.rank() == 0 || c.rank() == 3 ? 0 : 1, c.rank());
    OURO_RANK_OK(crossed);
    const Status s = ShardedTrainer::create(grid->shards, *crossed, model.params(), shard_options()).status();
    OURO_RANK_CHECK(says(s, "another place in its shard group"), "{}", s.message());
    Group empty;
    OURO_RANK_CHECK(
        says(ShardedTrainer::create(empty, model.params(), shard_options()).status(), "empty handle"), "");
    return "";
  };
  EXPECT_EQ(run_threads(4, body), "");
}

TEST(ShardMisuse, InvalidArgumentsAreRefused) {
  const auto body = [](Context& c) -> std::string {
    Model model(kTwo);
    const auto refused = [&](auto&& change) {
      std::vector<Param> p = model.params();
      ShardOptions o = shard_options();
      change(p, o);
      return text(make_trainer(c, c.world_size(), p, o).status());
    };
    using P = std::vector<Param>;
    using O = ShardOptions;
    const std::pair<std::string, std::string> all[] = {
        {refused([](P& p, O&) { p.clear(); }), "no parameters"},
        {refused([](P& p, O&) { p[0].grad = p[1].grad = {}; }), "all parameters are frozen"},
        {refused([](P& p, O&) { p[1].value = p[0].value; }), "share memory; expected tied weights once"},
        {refused([](P& p, O&) {
           p[0].shape = {2, 3};
         }),
         "has 5 elements, its shape (2,3) 6"},
        {refused([](P& p, O&) { p[0].order = Order::channels_last; }), "channels_last with 1 dimensions"},
        {refused([](P& p, O&) { p[0].value.dtype = p[0].grad.dtype = DType::i32; }), "is of type int32"},
        {refused([](P& p, O&) { p[0].grad.count = 4; }), "a gradient of another count"},
        {refused([](P& p, O&) { p[0].value.data = nullptr; }), "is a null pointer"},
        {refused([](P&, O& o) { o.optimizer = {}; }), "no optimiser"},
        {refused([](P&, O& o) { o.bucket_mb = -1; }), "bucket_mb -1"},
        {refused([](P&, O& o) { o.clip_norm = NAN; }), "clip_norm nan"},
        {refused([](P&, O& o) { o.order = {0}; }), "an order of 1 parameters"},
        {refused([](P&, O& o) {
           o.order = {0, 0};
         }),
         "an order of 2 parameters"},
        {refused([](P&, O& o) { o.scaler = GradScaler{.scale = 0}; }), "loss scale 0"},
        {refused([](P&, O& o) { o.scaler = GradScaler{.scope = ScalerScope::local}; }),
         "expected ScalerScope::all"},
        {refused(
             [](P&, O& o) { o.schedule = [](auto) { return Result<Schedule>(invalid("no schedule")); }; }),
         "no schedule"},
    };
    for (const auto& [got, want] : all)
      OURO_RANK_CHECK(got.find(want) != std::string::npos, "'{}' for '{}'", got, want);
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

TEST(ShardMisuse, CallsOutOfOrderAreRefusedAndChangeNothing) {
  const auto body = [](Context& c) -> std::string {
    Model model(kTwo);
    ShardOptions o = shard_options();
    auto made = make_trainer(c, 2, model.params(), o);
    OURO_RANK_OK(made);
    ShardedTrainer& t = *made;
    OURO_RANK_CHECK(says(t.grad_ready(0), "no training step") && says(t.end_backward(), "no training step"),
                    "");
    OURO_RANK_OK(t.begin_step(false));
    group_start();
    const Status inside = t.begin_step();
    const Status made_inside = make_trainer(c, 2, model.params(), o).status();
    OURO_RANK_OK(group_end());
    OURO_RANK_CHECK(says(inside, "inside group_start") && says(made_inside, "inside group_start"), "{} {}",
                    inside.message(), made_inside.message());
    OURO_RANK_CHECK(says(t.grad_ready(0), "no training step"), "");
    OURO_RANK_OK(t.begin_step());
    OURO_RANK_OK(t.begin_step());
    OURO_RANK_CHECK(says(t.grad_ready(2), "parameter 2 of 2") && says(t.grad_ready(-1), "parameter -1 of 2"),
                    "");
    fill_gradients<float>(t.params(), c.rank(), 0);
    OURO_RANK_OK(t.grad_ready(1));
    OURO_RANK_CHECK(says(t.grad_ready(1), "ready in this step already"), "");
    OURO_RANK_CHECK(says(t.begin_step(), "expected end_backward") && says(t.close(), "expected end_backward"),
                    "");
    OURO_RANK_CHECK(says(t.save().status(), "a step is under way"), "");
    OURO_RANK_OK(t.grad_ready(0));
    OURO_RANK_OK(t.end_backward());
    Serial<float> alone(2, 2, o.optimizer);
    alone.model = Model(kTwo);
    OURO_RANK_OK(alone.step(0));
    OURO_RANK_CHECK(same_bits(flat<float>(t.params()), alone.values()), "");
    OURO_RANK_OK(t.close());
    OURO_RANK_OK(t.close());
    OURO_RANK_CHECK(says(t.begin_step(), "closed"), "");
    const ShardedTrainer taken = std::move(t);
    OURO_RANK_CHECK(says(t.close(), "empty handle") && taken.status().ok(), "");
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

/// A gradient that one rank leaves out, in the first step or later.
std::string leave_out(Context& c, int shards, bool find_unused, int at) {
  Model model(kTwo);
  ShardOptions o = shard_options(0);
  o.find_unused = find_unused;
  auto made = make_trainer(c, shards, model.params(), o);
  // Rank 1's error came early.
  if (at == 0 && !find_unused && says(made.status(), "rank 1: no gradient")) return "";
  OURO_RANK_OK(made);
  Serial<float> alone(c.world_size(), shards, o.optimizer);
  alone.model = Model(kTwo);
  for (int step = 0; step < 4; ++step) {
    const bool leaves = step == at && c.rank() == 1;
    OURO_RANK_OK(made->begin_step());
    fill_gradients<float>(made->params(), c.rank(), step);
    OURO_RANK_OK(made->grad_ready(0));
    if (!leaves) OURO_RANK_OK(made->grad_ready(1));
    const Status s = made->end_backward();
    if (find_unused) {
      OURO_RANK_OK(s);
      alone.gradients(step);
      for (std::size_t k = 0; k < 5 && step == at; ++k) {  // zero replaces rank 1's gradient
        std::vector<float> terms;
        for (int r = 0; r < c.world_size(); ++r)
          terms.push_back(r == 1 ? 0 : gradient<float>(r, step, 1, k, alone.model.values[1][k]));
        alone.model.grads[1][k] = Serial<float>::mean_of(terms);
      }
      OURO_RANK_OK(alone.optimizer->step(alone.model.params()));
      OURO_RANK_CHECK(same_bits(flat<float>(made->params()), alone.values()), "step {}", step);
      continue;
    }
    if (s.ok() && step < at) continue;
    OURO_RANK_CHECK(says(s, "no gradient of parameter 'b'"), "step {}: {}", step, s.message());
    OURO_RANK_CHECK(c.rank() == 1 || text(s).starts_with("rank 1: no gradient"), "{}", s.message());
    OURO_RANK_CHECK(says(made->begin_step(), "parameter 'b'") && says(made->status(), "parameter 'b'") &&
                        says(made->save().status(), "parameter 'b'"),
                    "not sticky");
    return "";
  }
  OURO_RANK_CHECK(find_unused, "nobody was told");
  return text(made->close()) == "ok" ? "" : "close";
}
TEST(ShardMisuse, MissingGradientIsNamedUnlessFindUnused) {
  for (const int at : {0, 2})
    for (const bool find_unused : {false, true})
      EXPECT_EQ(run_threads(3, [&](Context& c) { return leave_out(c, 3, find_unused, at); }), "")
          << at << find_unused;
  EXPECT_EQ(run_threads(3, [](Context& c) { return leave_out(c, 1, false, 1); }), "") << "data parallel";
  EXPECT_EQ(run_threads(4, [](Context& c) { return leave_out(c, 2, false, 1); }), "") << "mesh";
}

/// A counter that ranks in separate processes share.
std::atomic<int>& shared_counter() {
  static void* const page =
      ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) std::abort();
  return *new (page) std::atomic<int>(0);
}

/// A rank dies between two steps; in a mesh most ranks share no group with it. Each rank that gets the error
/// stays until all have it, so that no rank learns of it only because others leave.
std::string survive(Context& c, int shards, std::atomic<int>& told) {
  Model model(kTwo);
  auto made = make_trainer(c, shards, model.params(), shard_options(0));
  OURO_RANK_OK(made);
  for (int step = 0; step < 200; ++step) {
    if (c.rank() == 2 && step == 5) ::kill(::getpid(), SIGKILL);
    const Status s = shard_step<float>(*made, c.rank(), step);
    if (s.ok()) continue;
    OURO_RANK_CHECK(s.code() == Code::peer_lost, "{}", s.message());
    OURO_RANK_CHECK(made->begin_step().code() == Code::peer_lost, "not sticky");
    ++told;
    for (int i = 0; i < 2000 && told < c.world_size() - 1; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    OURO_RANK_CHECK(told == c.world_size() - 1, "only {} were told", told.load());
    return "told";
  }
  return "nobody died";
}
TEST(ShardFailure, DeathOfARankIsReportedToAll) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(Mode::processes);
  for (const auto& [n, shards] : {std::pair{3, 3}, std::pair{3, 1}, std::pair{4, 2}}) {
    std::atomic<int>& told = shared_counter();
    const std::string said =
        run_processes(n, [&, shards = shards](Context& c) { return survive(c, shards, told); });
    for (int r = 0; r < n; ++r) {
      if (r == 2) continue;
      EXPECT_THAT(said, testing::HasSubstr(fmt::format("rank {}: told", r)))
          << n << ' ' << shards << ' ' << said;
    }
  }
}

/// Destroying a trainer in the middle of a step must not block any rank.
TEST(ShardFailure, DestructionInAStepDoesNotBlockAnyRank) {
  const auto body = [](Context& c) -> std::string {
    Model model(kTwo);
    auto made = make_trainer(c, 2, model.params(), shard_options(0));
    OURO_RANK_OK(made);
    OURO_RANK_OK(shard_step<float>(*made, c.rank(), 0));
    if (c.rank() == 0) {
      OURO_RANK_OK(made->begin_step());
      OURO_RANK_OK(made->grad_ready(1));  // waits for rank 1, which never arrives
      return "";
    }
    const Status s = shard_step<float>(*made, c.rank(), 1);
    OURO_RANK_CHECK(!s.ok() && s.code() != Code::timeout, "{}", s.message());
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

}  // namespace
}  // namespace ouro::train
