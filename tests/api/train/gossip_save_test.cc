// State of a decentralised trainer: averages and reverting them, saved states, the hook before a mix. Ranks
// are threads.
#include <gtest/gtest.h>

#include "tests/api/train/gossip_ranks.h"

namespace ouro::train {
namespace {

using namespace ouro::test;  // NOLINT

TEST(GossipAverage, IsRevertedOrKept) {
  const auto body = [](Context& c) -> std::string {
    Model model = two_vectors();
    double frozen = c.rank(), buffer = 10 * c.rank();
    std::vector<Param> params = model.params();
    params.push_back({"frozen", std::span<double>(&frozen, 1), {}, {1}});
    GossipOptions o{.topology = *Topology::make("complete", c.world_size()), .optimizer = plain_sgd(0.1)};
    o.average_buffers = true, o.sync_all = false;
    auto made = GossipTrainer::create(c.world(), params, {{"b", std::span<double>(&buffer, 1)}}, o);
    OURO_RANK_OK(made);
    OURO_RANK_OK(made->global_average());  // before the first step, and reverted at once
    OURO_RANK_CHECK(frozen == c.rank(), "{}", frozen);

    for (int step = 0; step < 3; ++step) OURO_RANK_OK(train_step(*made, kOrder, loss_of(c.rank())));
    const std::vector<double> x = flat(*made);
    const double mean_rank = (c.world_size() - 1) / 2.0;
    {
      auto average = made->global_average({.distance = true});
      OURO_RANK_OK(average);
      OURO_RANK_CHECK(frozen == mean_rank && buffer == 10 * mean_rank, "{} {}", frozen, buffer);
      double squares = 0;
      for (std::size_t k = 0; k < x.size(); ++k) squares += std::pow(flat(*made)[k] - x[k], 2);
      OURO_RANK_CHECK(std::abs(average->distance - std::sqrt(squares)) < 1e-12, "{}", average->distance);
      OURO_RANK_CHECK(made->begin_step().code() == Code::invalid && made->begin_step(false).ok(), "in force");
      OURO_RANK_CHECK(made->global_average().status().code() == Code::invalid, "twice");
      OURO_RANK_OK(average->revert());
      OURO_RANK_CHECK(average->revert().code() == Code::invalid, "reverted twice");
      OURO_RANK_CHECK(flat(*made) == x && frozen == c.rank() && buffer == 10 * c.rank(), "not reverted");
      auto scoped = made->global_average();
      OURO_RANK_CHECK(scoped.ok() && flat(*made) != x, "");
    }
    OURO_RANK_CHECK(flat(*made) == x, "not reverted at the end of its life");
    auto kept = made->global_average({.keep = true});
    OURO_RANK_OK(kept);
    OURO_RANK_CHECK(kept->revert().code() == Code::invalid, "revert after keep");
    const std::vector<double> mean = flat(*made);
    OURO_RANK_OK(train_step(*made, kOrder, loss_of(c.rank())));  // Y = X: no mix
    for (std::size_t k = 0; k < kCount; ++k) {
      const double want = mean[k] - 0.1 * (mean[k] - centre(c.rank())[k]);
      OURO_RANK_CHECK(std::abs(flat(*made)[k] - want) < 1e-12, "{} {}", flat(*made)[k], want);
    }
    OURO_RANK_OK(made->close());
    return "";
  };
  EXPECT_EQ(run_threads(3, body), "");
}

/// Interrupted at every step, saved, and continued by another trainer: the same bits.
std::string resume(Context& c, const char* topology, bool in_bucket) {
  const auto make = [&](Model& model) {
    GossipOptions o = options(c.world_size(), topology);
    o.params_in_bucket = in_bucket, o.bucket_mb = 0, o.sync_all = true;
    o.schedule = [](auto) { return cosine_with_warmup(0.05, 6, 2); };
    o.scaler = GradScaler{.scale = 2, .interval = 3};
    return GossipTrainer::create(c.world(), model.params(), {}, o);
  };
  const auto step_once = [&](GossipTrainer& t, int step) {
    const LossOf inner = loss_of(c.rank());
    return train_step(t, kOrder, [&](Values x, Gradients g) {
      const double loss = inner(x, g);
      for (std::size_t v = 0; v < 2; ++v)
        for (std::size_t k = 0; k < kCount; ++k) g[v][k] *= step == 2 && c.rank() == 1 ? INFINITY : t.scale();
      return loss;
    });
  };
  Model whole = two_vectors(), part = two_vectors();
  auto straight = make(whole);
  OURO_RANK_OK(straight);
  Bytes state;
  for (int step = 0; step < 7; ++step) {
    Model fresh = two_vectors();
    auto made = make(fresh);
    OURO_RANK_OK(made);
    if (step > 0) OURO_RANK_OK(made->load(state));
    OURO_RANK_CHECK(made->steps() == step, "{} steps", made->steps());
    OURO_RANK_OK(step_once(*straight, step));
    OURO_RANK_OK(step_once(*made, step));
    OURO_RANK_CHECK(flat(*made) == flat(*straight), "step {}: other bits", step);
    OURO_RANK_CHECK(made->scale() == straight->scale() && made->lr() == straight->lr(), "step {}", step);
    auto saved = made->save();
    OURO_RANK_OK(saved);
    state = std::move(*saved);
    OURO_RANK_OK(made->close());
  }
  auto last = make(part);
  OURO_RANK_OK(last);
  Bytes damaged = state;
  damaged[damaged.size() / 2] ^= std::byte{1};
  OURO_RANK_CHECK(says(last->load(damaged), "damaged") && says(last->load({}), "too short"), "");
  OURO_RANK_OK(last->load(state));
  OURO_RANK_OK(last->close());
  return text(straight->close()) == "ok" ? "" : "close";
}
TEST(GossipSave, ResumesBitForBit) {
  for (const char* topology : {"ring", "ceca-2p"})
    for (const bool in_bucket : {true, false})
      EXPECT_EQ(run_threads(3, [&](Context& c) { return resume(c, topology, in_bucket); }), "")
          << topology << ' ' << in_bucket;
}

TEST(GossipSave, StateOfAnotherRankOrModelIsRefused) {
  const auto body = [](Context& c) -> std::string {
    Model a = two_vectors(), b = two_vectors(), d = two_vectors();
    auto first = GossipTrainer::create(c.world(), a.params(), {}, options(2));
    OURO_RANK_OK(first);
    OURO_RANK_OK(train_step(*first, kOrder, loss_of(c.rank())));
    auto state = first->save();
    OURO_RANK_OK(state);
    auto other = GossipTrainer::create(c.world(), b.params(), {}, options(2, "complete"));
    OURO_RANK_OK(other);
    OURO_RANK_CHECK(says(other->load(*state), "other parameters, topology or options"), "");
    std::vector<std::byte> swapped(state->size());
    OURO_RANK_OK(send(c.world(), CView(state->data(), state->size(), DType::u8), 1 - c.rank()));
    OURO_RANK_OK(recv(c.world(), View(swapped.data(), swapped.size(), DType::u8), 1 - c.rank()));
    auto again = GossipTrainer::create(c.world(), d.params(), {}, options(2));
    OURO_RANK_OK(again);
    OURO_RANK_CHECK(says(again->load(swapped), fmt::format("the state of rank {}", 1 - c.rank())), "");
    OURO_RANK_OK(again->load(*state));
    for (auto* t : {&first, &other, &again}) OURO_RANK_OK((*t)->close());
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

/// States of different steps would make ranks wait for exchanges that never happen.
TEST(GossipSave, StatesOfDifferentStepsAreRefusedOnAllRanks) {
  const auto body = [](Context& c) -> std::string {
    Model a = two_vectors(), b = two_vectors();
    auto first = GossipTrainer::create(c.world(), a.params(), {}, options(2));
    OURO_RANK_OK(first);
    std::vector<Bytes> states;
    for (int step = 0; step < 2; ++step) {
      OURO_RANK_OK(train_step(*first, kOrder, loss_of(c.rank())));
      auto state = first->save();
      OURO_RANK_OK(state);
      states.push_back(std::move(*state));
    }
    auto second = GossipTrainer::create(c.world(), b.params(), {}, options(2));
    OURO_RANK_OK(second);
    const std::vector<double> x = flat(*second);
    const Status s = second->load(states[static_cast<std::size_t>(c.rank())]);
    OURO_RANK_CHECK(says(s, "rank 1 has the state of another step than rank 0 (2 and 1)"), "{}", text(s));
    const Status one = second->load(c.rank() == 0 ? states[0] : Bytes());
    OURO_RANK_CHECK(says(one, c.rank() == 0 ? "rank 1 refused" : "too short"), "{}", text(one));
    OURO_RANK_CHECK(second->steps() == 0 && flat(*second) == x, "changed");
    OURO_RANK_OK(second->load(states[1]));
    for (auto* t : {&first, &second}) OURO_RANK_OK((*t)->close());
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

TEST(GossipHook, ReceivesNeighboursAndParameters) {
  const auto body = [](Context& c) -> std::string {
    Model model = two_vectors();
    GossipOptions o = options(2, "complete");
    int calls = 0;
    double seen = 0;
    o.pre_mix = [&](int bucket, const Row& row, CView neighbours, View params) -> Status {
      ++calls;
      if (bucket != 0 || row.in.size() != 1 || neighbours.count != params.count) return invalid("hook");
      seen = static_cast<const double*>(neighbours.data)[0] / row.in[0].second;
      return {};
    };
    auto made = GossipTrainer::create(c.world(), model.params(), {}, o);
    OURO_RANK_OK(made);
    OURO_RANK_OK(train_step(*made, kOrder, loss_of(c.rank())));
    double mine = static_cast<const double*>(made->params()[1].value.data)[0], theirs = 0;
    std::vector<double> both(2);
    OURO_RANK_OK(all_gather(c.world(), std::span<const double>(&mine, 1), std::span(both)));
    theirs = both[static_cast<std::size_t>(1 - c.rank())];
    OURO_RANK_OK(train_step(*made, kOrder, loss_of(c.rank())));
    OURO_RANK_CHECK(calls == 1 && std::abs(seen - theirs) < 1e-15, "{} calls, {} for {}", calls, seen,
                    theirs);
    return text(made->close()) == "ok" ? "" : "close";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

}  // namespace
}  // namespace ouro::train
