// Sharded training that is saved and resumed: the same bits, and states that are refused because they do not
// fit. Ranks are threads.
#include <gtest/gtest.h>

#include "tests/api/train/shard_ranks.h"

namespace ouro::train {
namespace {

using namespace ouro::test;  // NOLINT

/// Interrupted at every step, saved, and continued by another trainer with other initial values.
template <class T>
std::string resume(Context& c, int shards, bool in_bucket) {
  const auto make = [&](ShardModel<T>& model) {
    ShardOptions o = shard_options(0.0005);
    o.optimizer = optim_fn_accum_adamw({.lr = 0.05, .accum_iter = 2, .master = true});
    o.params_in_bucket = in_bucket;
    o.schedule = [](auto) { return cosine_with_warmup(0.05, 6, 2); };
    o.scaler = GradScaler{.scale = 2, .interval = 3};
    o.clip_norm = 1;
    return make_trainer(c, shards, model.params(), o);
  };
  const auto step_once = [&](ShardedTrainer& t, int step) -> Status {
    OURO_TRY(t.begin_step());
    fill_gradients<T>(t.params(), c.rank(), step, t.scale());
    if (step == 2 && c.rank() == 1) static_cast<T*>(t.params()[3].grad.data)[5] = narrowed<T>(INFINITY);
    for (int i = 7; i-- > 0;) OURO_TRY(t.grad_ready(i));
    return t.end_backward();
  };
  ShardModel<T> whole;
  auto straight = make(whole);
  OURO_RANK_OK(straight);
  Bytes state;
  for (int step = 0; step < 6; ++step) {
    ShardModel<T> fresh;
    if (step > 0)
      for (auto& values : fresh.values)
        for (T& x : values) x = narrowed<T>(-1);  // all values must come from the states
    auto made = make(fresh);
    OURO_RANK_OK(made);
    if (step > 0) OURO_RANK_OK(made->load(state));
    OURO_RANK_CHECK(same_bits(flat<T>(made->params()), flat<T>(straight->params())), "before step {}", step);
    OURO_RANK_CHECK(
        made->steps() == step && made->lr() == straight->lr() && made->scale() == straight->scale(),
        "{} steps, lr {}, scale {}", made->steps(), made->lr(), made->scale());
    OURO_RANK_OK(step_once(*straight, step));
    OURO_RANK_OK(step_once(*made, step));
    OURO_RANK_CHECK(same_bits(flat<T>(made->params()), flat<T>(straight->params())), "step {}: other bits",
                    step);
    auto saved = made->save();
    OURO_RANK_OK(saved);
    auto same = straight->save();
    OURO_RANK_OK(same);
    OURO_RANK_CHECK(*saved == *same, "step {}: other states", step);
    state = std::move(*saved);
    OURO_RANK_OK(made->close());
  }
  return text(straight->close()) == "ok" ? "" : "close";
}
TEST(ShardSave, ResumesBitForBit) {
  for (const bool in_bucket : {true, false}) {
    EXPECT_EQ(run_threads(3, [&](Context& c) { return resume<float>(c, 3, in_bucket); }), "") << in_bucket;
    EXPECT_EQ(run_threads(4, [&](Context& c) { return resume<double>(c, 2, in_bucket); }), "") << in_bucket;
  }
  EXPECT_EQ(run_threads(2, [](Context& c) { return resume<BFloat16>(c, 2, true); }), "");
  EXPECT_EQ(run_threads(2, [](Context& c) { return resume<float>(c, 1, true); }), "");
}

/// If one rank cannot load a state, no rank loads it.
TEST(ShardSave, StateThatOneRankRefusesIsLoadedByNone) {
  const auto body = [](Context& c) -> std::string {
    ShardModel<float> model, other;
    auto made = make_trainer(c, 3, model.params(), shard_options());
    OURO_RANK_OK(made);
    OURO_RANK_OK(shard_step<float>(*made, c.rank(), 0));
    const Bytes state = *made->save();
    OURO_RANK_OK(shard_step<float>(*made, c.rank(), 1));
    const Bytes later = *made->save();
    OURO_RANK_CHECK(says(made->load(state), "has begun"), "");

    auto fresh = make_trainer(c, 3, other.params(), shard_options());
    OURO_RANK_OK(fresh);
    const std::vector<float> before = flat<float>(fresh->params());
    Bytes damaged = state;
    damaged[damaged.size() / 2] ^= std::byte{1};
    const bool odd = c.rank() == 1;
    const auto refused = [&](const Bytes& mine, std::string_view own, std::string_view others) {
      const Status s = fresh->load(odd ? mine : state);
      return says(s, odd ? own : others) && same_bits(before, flat<float>(fresh->params())) &&
             fresh->steps() == 0;
    };
    constexpr std::string_view kRefused = "rank 1 refused";
    OURO_RANK_CHECK(refused(damaged, "damaged", kRefused), "damaged");
    OURO_RANK_CHECK(refused({}, "too short", kRefused), "empty");
    OURO_RANK_CHECK(refused(Bytes(state.begin(), state.end() - 9), "damaged", kRefused), "cut");
    OURO_RANK_CHECK(refused(later, "another step", "another step"), "another step");

    Bytes theirs(256 * 1024);  // the memory of the next rank
    const int next = (c.rank() + 1) % 3, previous = (c.rank() + 2) % 3;
    const auto sent = Stream::create();
    OURO_RANK_OK(sent);
    OURO_RANK_OK(send(c.world(), CView(state.data(), state.size(), DType::u8), previous, 0, *sent));
    const auto got = recv(c.world(), View(theirs.data(), theirs.size(), DType::u8), next);
    OURO_RANK_OK(got);
    OURO_RANK_OK(sent->synchronize());
    theirs.resize(got->bytes);
    const Status s = fresh->load(theirs);
    OURO_RANK_CHECK(says(s, fmt::format("the state of shard {}; this is shard {}", next, c.rank())), "{}",
                    s.message());

    ShardModel<float> third;
    auto apart = make_trainer(c, 1, third.params(), shard_options());
    OURO_RANK_OK(apart);
    OURO_RANK_CHECK(says(apart->load(state), "one of 3 shards; this trainer has 1"), "");
    ShardModel<float> fourth;
    ShardOptions clipped = shard_options();
    clipped.clip_norm = 0.5;
    auto bounded = make_trainer(c, 3, fourth.params(), clipped);
    OURO_RANK_OK(bounded);
    OURO_RANK_CHECK(says(bounded->load(state), "with other options"), "");
    OURO_RANK_OK(fresh->load(state));
    OURO_RANK_OK(shard_step<float>(*fresh, c.rank(), 1));
    OURO_RANK_CHECK(same_bits(flat<float>(fresh->params()), flat<float>(made->params())), "not the same run");
    for (auto* t : {&made, &fresh, &apart, &bounded}) OURO_RANK_OK((*t)->close());
    return "";
  };
  EXPECT_EQ(run_threads(3, body), "");
}

}  // namespace
}  // namespace ouro::train
