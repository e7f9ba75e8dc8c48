// A job with a forced algorithm (OURO_ALGO): it applies to calls of the user, but not to the library's
// own exchanges.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>

#include "api/train/common/comparison.h"
#include "kernels/flow/list.h"
#include "ouro/train/federation.hpp"
#include "ouro/train/window.hpp"
#include "tests/api/train/shard_ranks.h"
#include "tests/runtime/group/access.h"

namespace ouro::test {
namespace {

/// Sets OURO_ALGO while an object lives.
class Forced {
 public:
  explicit Forced(std::string_view algorithm) { ::setenv("OURO_ALGO", std::string(algorithm).c_str(), 1); }
  ~Forced() { ::unsetenv("OURO_ALGO"); }
  Forced(const Forced&) = delete;
  Forced& operator=(const Forced&) = delete;
};

std::vector<std::string_view> algorithms() {
  std::vector<std::string_view> all;
  for (int i = 0; i < flow::kAlgorithms; ++i) all.push_back(flow::name(static_cast<flow::Algorithm>(i)));
  return all;
}

class JobAlgorithmOf : public testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(All, JobAlgorithmOf, testing::ValuesIn(algorithms()),
                         [](const auto& info) { return std::string(info.param); });

std::string groups_and_memory(Context& c) {
  Group& g = c.world();
  auto part = g.split(c.rank() % 2, -c.rank());
  OURO_RANK_OK(part);
  OURO_RANK_CHECK(part->size() == (c.rank() % 2 == 0 ? 2 : 1), "{}", part->size());
  OURO_RANK_OK(barrier(*part, kAuto));
  if (hosts_of(3) > 1) return "";  // memory is shared within a host only
  auto shared = g.alloc_shared(100);
  OURO_RANK_OK(shared);
  const std::vector<float> x(10, static_cast<float>(c.rank()));
  std::vector<float> y(10);
  auto window = train::Window::create(g, std::span<const float>(x));
  OURO_RANK_OK(window);
  OURO_RANK_OK(window->fence());
  OURO_RANK_OK(window->get(2, std::span<float>(y)));
  OURO_RANK_CHECK(y == std::vector<float>(10, 2), "{}", y[0]);
  OURO_RANK_OK(window->fence());
  return "";
}

std::string comparisons(Context& c) {
  Group& g = c.world();
  ShardModel<float> model({{"w", {4, 3}}, {"b", {4}}});
  train::Claim claims[] = {{"another number of things", 5, true}};
  OURO_RANK_OK(train::compare(g, "test", model.params(), claims, {}));
  claims[0].value = c.rank() == 1 ? 6 : 5;
  const Status claimed = train::compare(g, "test", claims);
  OURO_RANK_CHECK(claimed.message().find("rank 1 has another number of things than rank 0 (6 and 5)") !=
                      std::string::npos,
                  "{}", claimed.message());
  ShardModel<float> other({{"w", {4, 3}}, {"b", {c.rank() == 2 ? 3 : 4}}});
  const Status differ = train::compare(g, "test", other.params(), {}, {});
  OURO_RANK_CHECK(differ.message().find("rank 2 differs from rank 0 at parameter 1") != std::string::npos,
                  "{}", differ.message());
  auto loss = train::mean_loss(g, 2.0 * c.rank(), 1);
  OURO_RANK_OK(loss);
  OURO_RANK_CHECK(*loss == 2, "{}", *loss);
  return "";
}

/// A call of the user either uses the algorithm or is refused; the group continues in both cases.
std::string own_call(Context& c, std::string_view algorithm) {
  Group& g = c.world();
  std::vector<float> in(1000, static_cast<float>(c.rank() + 1)), out(1000);
  rt::Operation o;
  o.collective = Collective::all_reduce;
  o.in = {in.data(), in.size(), DType::f32}, o.out = {out.data(), out.size(), DType::f32};
  const auto forced = *flow::parse_algorithm(algorithm);
  const bool concerned = g.impl()->forces(o);
  const Status s = all_reduce(g, std::span<const float>(in), std::span(out));
  if (s.ok()) {
    OURO_RANK_CHECK(out == std::vector<float>(1000, 6), "{}", out[0]);
    OURO_RANK_CHECK(!concerned || rt::TestAccess::carries_out(*g.impl(), o, forced), "another flow than {}",
                    algorithm);
  } else {
    OURO_RANK_CHECK(concerned && s.reason() == Reason::invalid, "{}", s.message());
  }
  OURO_RANK_OK(g.status());
  // The same call uses the rules if it requests that, and explain() says so.
  std::fill(out.begin(), out.end(), 0.0f);
  OURO_RANK_OK(all_reduce(g, std::span<const float>(in), std::span(out), ReduceOp::sum, kAuto));
  OURO_RANK_CHECK(out == std::vector<float>(1000, 6), "{}", out[0]);
  o.algorithm = kAuto.algorithm;
  const auto why = g.impl()->explain(o);
  OURO_RANK_OK(why);
  OURO_RANK_CHECK(
      !concerned || why->find("does not concern calls with algorithm 'auto'") != std::string::npos, "{}",
      *why);
  OURO_RANK_OK(barrier(g, kAuto));
  return "";
}

TEST_P(JobAlgorithmOf, AppliesOnlyToCallsOfTheUser) {
  const Forced job(GetParam());
  EXPECT_EQ("", run_threads(3, [](Context& c) -> std::string {
              for (const auto& part : {groups_and_memory(c), comparisons(c), own_call(c, GetParam())})
                if (!part.empty()) return part;
              return "";
            }));
}

/// The norm of all gradients is summed in rank order, which a ring does not do.
TEST(JobAlgorithm, DoesNotApplyToTheNormOfAShardedTrainer) {
  const Forced job("ring");
  EXPECT_EQ("", run_threads(2, [](Context& c) -> std::string {
              ShardModel<float> model;
              train::ShardOptions o = shard_options();
              o.numerics = Numerics::fast;
              o.clip_norm = 1;
              auto made = train::ShardedTrainer::create(c.world(), model.params(), o);
              // The broadcast of the parameters has no ring; the reduction of the gradients has one.
              OURO_RANK_OK(made);
              OURO_RANK_OK(shard_step<float>(*made, c.rank(), 0));
              OURO_RANK_CHECK(made->grad_norm() > 0, "{}", made->grad_norm());
              OURO_RANK_OK(made->close());
              return "";
            }));
}

}  // namespace
}  // namespace ouro::test
