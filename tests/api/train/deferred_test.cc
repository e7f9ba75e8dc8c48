// Deferred work: calls that cannot be made between group_start and group_end, and failures on streams, which
// are kept until they are queried.
#include <gtest/gtest.h>

#include <future>

#include "ouro/train/average.hpp"
#include "ouro/train/federation.hpp"
#include "ouro/train/roles.hpp"
#include "ouro/train/window.hpp"
#include "tests/api/train/arrays.h"
#include "tests/api/train/gossip_ranks.h"

namespace ouro::train {
namespace {

using test::run_threads;

/// All of these receive what they need before they return, into memory that a deferred operation
/// would outlive.
TEST(InsideABatch, CallsThatCannotBeDeferredAreRefused) {
  EXPECT_EQ("", run_threads(2, [](Context& c) -> std::string {
              std::vector<float> weights = {1, 2, 3};
              const View w = std::span(weights);
              const std::vector<Param> params = {{.name = "w", .value = w, .grad = {}}};
              const auto layout = ParallelLayout::make(
                  {.rank = c.rank(), .world_size = 2, .federations = {1, 1}, .streams = 1});
              OURO_RANK_OK(layout);
              auto groups = create_groups(c, *layout);
              OURO_RANK_OK(groups);
              auto window = Window::create(c.world(), w);
              OURO_RANK_OK(window);
              std::vector<int> both = {0, 1};
              auto letters = c.group(both, "letters");
              OURO_RANK_OK(letters);
              auto mail = Mailbox::create(Group(letters->impl()));
              OURO_RANK_OK(mail);
              auto model = test::two_vectors();
              auto trainer = GossipTrainer::create(c.world(), model.params(), {}, test::options(2));
              OURO_RANK_OK(trainer);
              OURO_RANK_OK(trainer->begin_step());
              auto plan = plan_aggregation(*groups, params);
              OURO_RANK_OK(plan);
              Param odd = params[0];
              odd.shape = {7};
              const std::int64_t rows[] = {3}, all[] = {6};
              const CView list[] = {w};
              auto late = test::two_vectors();

              group_start();
              const std::pair<const char*, Status> calls[] = {
                  {"split", c.world().split(0, 0).status()},
                  {"average_models", average_models(c.world(), params)},
                  {"gather_rows", gather_rows(c.world(), w, rows).status()},
                  {"gather_into", gather_into(c.world(), w, all).status()},
                  {"all_reduce_list", all_reduce_list(c.world(), list).status()},
                  {"roles", make_roles(c).status()},
                  {"window", Window::create(c.world(), w).status()},
                  {"fence", window->fence()},
                  {"mailbox", Mailbox::create(Group(letters->impl())).status()},
                  {"send", mail->send({}, 1 - c.rank())},
                  {"recv", mail->recv().status()},
                  {"trainer", GossipTrainer::create(c.world(), late.params(), {}, test::options(2)).status()},
                  {"grad_ready", trainer->grad_ready(0)},
                  {"end_backward", trainer->end_backward()},
                  {"global_average", trainer->global_average().status()},
                  {"save", trainer->save().status()},
                  {"load", trainer->load({})},
                  {"close", trainer->close()},
                  {"plan", plan->run()},
                  {"aggregate", aggregate(*groups, {&odd, 1})},
                  {"mean_loss", mean_loss(c.world(), 1, 1).status()},
              };
              OURO_RANK_OK(group_end());
              for (const auto& [name, s] : calls)
                OURO_RANK_CHECK(test::says(s, "inside group_start"), "{}: {}", name, test::text(s));

              // Nothing was left behind, and all of these calls work now.
              OURO_RANK_OK(test::train_step(*trainer, test::kOrder, test::loss_of(c.rank())));
              OURO_RANK_OK(average_models(c.world(), params));
              OURO_RANK_OK(mail->send({}, 1 - c.rank()));
              OURO_RANK_OK(mail->recv(1 - c.rank()));
              OURO_RANK_OK(trainer->close());
              return "";
            }));
}

/// synchronize() returns the first failure, whatever happened after it, and then clears it.
TEST(FailuresOnStreams, FirstFailureIsKeptUntilSynchronize) {
  for (const Device device : {Device{}, test::kGpu}) {
    if (device.kind == Device::Kind::cuda && gpu::gpu().devices() == 0) continue;
    auto stream = Stream::create(device);
    ASSERT_TRUE(test::ok(stream));
    int ran = 0;
    for (const char* text : {"", "first", "second", ""})
      (void)stream->run([&ran, text] {
        ++ran;
        return *text ? Status(Reason::resource, text) : Status{};
      });
    const Status told = stream->synchronize();
    EXPECT_EQ(ran, 4);
    EXPECT_EQ(told.reason(), Reason::resource);
    EXPECT_NE(told.message().find("first"), std::string::npos) << told.message();
    EXPECT_TRUE(test::ok(stream->synchronize()));
  }
}

/// A deadline that passes does not clear a failure.
TEST(FailuresOnStreams, FailureIsKeptWhenADeadlinePasses) {
  auto stream = Stream::create();
  ASSERT_TRUE(test::ok(stream));
  (void)stream->run([] { return Status(Reason::resource, "early"); });
  std::promise<void> gate;
  (void)stream->run([opened = gate.get_future().share()] {
    opened.wait();
    return Status{};
  });
  EXPECT_EQ(stream->synchronize(Milliseconds(5)).reason(), Reason::deadline);
  gate.set_value();
  EXPECT_EQ(stream->synchronize().reason(), Reason::resource);
}

}  // namespace
}  // namespace ouro::train
