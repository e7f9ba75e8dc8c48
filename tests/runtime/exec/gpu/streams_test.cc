// Device streams: order with the user's own work, several groups in any order, graphs, events between host
// and device, and refusals with their messages. messages_test.cc tests messages.
#include <gtest/gtest.h>

#include <thread>

#include "kernels/device/fake/fake_gpu.h"
#include "runtime/group/group.h"
#include "runtime/stream/host_calls.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

using gpu::gpu;

class Paths : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, Paths, testing::Values("leader", "resident", "stream", "staged"),
                         [](const auto& info) { return info.param; });

TEST_P(Paths, OperationsOfOneStreamFollowEachOther) {
  OURO_NEEDS_GPU();
  const ForcedPath path(GetParam());
  EXPECT_EQ(run_threads(3,
                        [](Context& c) -> std::string {
                          auto s = Stream::create(c.device());
                          OURO_RANK_OK(s);
                          Floats a, b;
                          OURO_RANK_OK(a.make(c, 5000));
                          OURO_RANK_OK(b.make(c, 5000, From::driver));
                          OURO_RANK_OK(a.fill(1));
                          std::vector<Work> works;
                          for (int i = 0; i < 10; ++i) {  // a -> b -> a -> ..., each time multiplied by three
                            Floats &from = i % 2 ? b : a, &to = i % 2 ? a : b;
                            auto w = all_reduce(c.world(), from.view(), to.view(), ReduceOp::sum, *s);
                            OURO_RANK_OK(w);
                            works.push_back(*w);
                          }
                          OURO_RANK_OK(works.back().wait());
                          for (const Work& w : works)
                            OURO_RANK_CHECK(w.test() && w.status().ok(), "a work is behind");
                          OURO_EXPECT_ALL(a, 59049.0f);
                          OURO_RANK_OK(s->synchronize());
                          OURO_RANK_OK(barrier(c.world()));
                          return only_ran(c.world(), GetParam());
                        }),
            "");
}

TEST_P(Paths, OneGroupOnChangingStreamsKeepsItsOrder) {
  OURO_NEEDS_GPU();
  const ForcedPath path(GetParam());
  EXPECT_EQ(run_threads(2,
                        [](Context& c) -> std::string {
                          auto pool = StreamPool::create(3, Priority::normal, c.device());
                          OURO_RANK_OK(pool);
                          Floats a;
                          OURO_RANK_OK(a.make(c, 3001));
                          OURO_RANK_OK(a.fill(1));
                          Work last;
                          for (int i = 0; i < 12; ++i) {
                            auto w = all_reduce(c.world(), a.view(), a.view(), ReduceOp::sum, pool->next());
                            OURO_RANK_OK(w);
                            last = *w;
                          }
                          OURO_RANK_OK(last.wait());
                          OURO_EXPECT_ALL(a, 4096.0f);
                          OURO_RANK_OK(pool->synchronize());
                          OURO_RANK_OK(barrier(c.world()));
                          return only_ran(c.world(), GetParam());
                        }),
            "");
}

/// Threads that use several groups in different orders, each on its own stream, do not wait for each other.
TEST_P(Paths, GroupsInOppositeOrderDoNotDeadlock) {
  OURO_NEEDS_GPU();
  const ForcedPath path(GetParam());
  for (int groups : {2, 3})
    ASSERT_EQ(run_threads(2,
                          [&](Context& c) -> std::string {
                            const std::vector<int> both{0, 1};
                            std::vector<Group> group;
                            std::vector<Stream> stream;
                            std::vector<std::unique_ptr<Floats>> data;
                            for (int i = 0; i < groups; ++i) {
                              auto g = c.group(both, fmt::format("g{}", i));
                              OURO_RANK_OK(g);
                              group.push_back(std::move(*g));
                              auto s = Stream::create(c.device());
                              OURO_RANK_OK(s);
                              stream.push_back(*s);
                              data.push_back(std::make_unique<Floats>());
                              OURO_RANK_OK(data.back()->make(c, 10'000));
                              OURO_RANK_OK(data.back()->fill(1));
                            }
                            for (int turn = 0; turn < 20; ++turn)
                              for (int k = 0; k < groups; ++k) {
                                const auto i = static_cast<std::size_t>(c.rank() == 0 ? k : groups - 1 - k);
                                OURO_RANK_OK(all_reduce(group[i], data[i]->view(), data[i]->view(),
                                                        ReduceOp::max, stream[i]));
                              }
                            for (Stream& s : stream) OURO_RANK_OK(s.synchronize());
                            for (auto& d : data) OURO_EXPECT_ALL(*d, 1.0f);
                            for (Group& g : group)
                              if (std::string said = only_ran(g, GetParam()); !said.empty()) return said;
                            for (Group& g : group) OURO_RANK_OK(g.close());
                            OURO_RANK_OK(barrier(c.world()));
                            return "";
                          }),
              "");
}

/// Operations that were captured on all ranks can be replayed, between operations that are not captured.
/// Large ones go by pointer on the resident path once all ranks have mapped the buffers of all: from the
/// third operation on.
TEST_P(Paths, GraphsReplay) {
  OURO_NEEDS_GPU();
  const ForcedPath path(GetParam(), Mode::processes);
  const bool staged = std::string(GetParam()) == "staged", resident = std::string(GetParam()) == "resident";
  // A process with threads cannot fork ranks.
  for (const auto& [mode, count] :
       {std::pair(Mode::processes, std::size_t{2000}), std::pair(Mode::processes, std::size_t{20'000}),
        std::pair(Mode::threads, std::size_t{2000}), std::pair(Mode::threads, std::size_t{20'000})}) {
    if ((OURO_TEST_TSAN && mode == Mode::processes) || (!resident && count > 2000)) continue;
    OURO_NEEDS_GPU_EACH(GetParam(), mode, 3);
    ASSERT_EQ(
        run(mode, 3,
            [&](Context& c) -> std::string {
              auto made = gpu().create_stream(c.device().index, 0);
              OURO_RANK_OK(made);
              {
                auto s = Stream::cuda(made->handle, made->device);
                OURO_RANK_OK(s);
                Floats a, b;
                OURO_RANK_OK(a.make(c, count));
                OURO_RANK_OK(b.make(c, count));
                // Everything that is created on first use must exist before the capture.
                OURO_RANK_OK(a.fill(1));
                for (int k = 0; k < 3; ++k) {
                  auto first = all_reduce(c.world(), a.view(), b.view(), ReduceOp::sum, *s);
                  OURO_RANK_OK(first);
                  OURO_RANK_OK(first->wait());
                }
                OURO_RANK_OK(barrier(c.world()));
                const std::uint64_t named = c.world().impl()->gpu_named();
                OURO_RANK_OK(gpu().begin_capture(*made));
                auto w = all_reduce(c.world(), a.view(), b.view(), ReduceOp::sum, *s);
                std::vector<float> x(9, 1);  // of the host: it would run only at the capture
                auto host = all_reduce(c.world(), std::span(x), std::span(x), ReduceOp::sum, *s);
                OURO_RANK_CHECK(host.status().reason() == Reason::unsupported, "{}", host.status().message());
                std::vector<float> y(9, 1);
                group_start();
                OURO_RANK_OK(all_reduce(c.world(), std::span(x), std::span(x), ReduceOp::sum, *s));
                OURO_RANK_OK(all_reduce(c.world(), std::span(y), std::span(y), ReduceOp::sum, *s));
                const Status both = group_end();
                OURO_RANK_CHECK(both.reason() == Reason::unsupported, "{}", both.message());
                if (staged) {
                  OURO_RANK_CHECK(w.status().reason() == Reason::unsupported, "{}", w.status().message());
                  (void)gpu().end_capture(*made).ok();
                } else {
                  OURO_RANK_OK(w);
                  group_start();
                  OURO_RANK_OK(broadcast(c.world(), b.view(), a.view(), 1, *s));
                  OURO_RANK_OK(all_reduce(c.world(), a.view(), a.view(), ReduceOp::max, *s));
                  OURO_RANK_OK(group_end());
                  auto graph = gpu().end_capture(*made);
                  OURO_RANK_OK(graph);
                  OURO_RANK_CHECK(c.world().impl()->gpu_named() - named == (count > 2000 ? 3u : 0u), "{}",
                                  named);
                  float v = 1;
                  OURO_RANK_OK(a.fill(v));
                  for (int i = 0; i < 4; ++i) {
                    OURO_RANK_OK(gpu().launch(*graph, *made));
                    v *= 3;
                    auto eager = all_reduce(c.world(), a.view(), b.view(), ReduceOp::min, *s);
                    OURO_RANK_OK(eager);
                  }
                  OURO_RANK_OK(s->synchronize());
                  OURO_EXPECT_ALL(a, v);
                  OURO_EXPECT_ALL(b, v);
                  OURO_RANK_OK(gpu().destroy_graph(*graph));
                }
                OURO_RANK_OK(barrier(c.world()));
              }
              OURO_RANK_OK(gpu().destroy_stream(*made));
              return only_ran(c.world(), GetParam());
            }),
        "")
        << name(mode);
  }
}

TEST(GpuStreams, FunctionsAndEventsKeepTheOrderOfHostAndDevice) {
  OURO_NEEDS_GPU();
  EXPECT_EQ(run_threads(1,
                        [](Context& c) -> std::string {
                          auto device = Stream::create(c.device());
                          auto host = Stream::create();
                          OURO_RANK_OK(device);
                          OURO_RANK_OK(host);
                          OURO_RANK_CHECK(device->device() == c.device() && device->cuda_handle(),
                                          "not on the device");
                          std::vector<int> order;
                          Work first = device->run([&] {
                            std::this_thread::sleep_for(Milliseconds(5));
                            order.push_back(1);
                            return Status();
                          });
                          Event e;
                          e.record(*device);
                          OURO_RANK_CHECK(!e.query(), "passed before it could");
                          e.wait_on(*host);
                          Work second = host->run([&] {
                            order.push_back(2);
                            return Status();
                          });
                          Event f;
                          f.record(*host);
                          f.wait_on(*device);
                          Work third = device->run([&] {
                            order.push_back(3);
                            return Status(Reason::invalid, "as told");
                          });
                          OURO_RANK_CHECK(third.wait().reason() == Reason::invalid, "{}",
                                          third.status().message());
                          OURO_RANK_OK(first.wait());
                          const Status failed = device->synchronize();  // the first call since the last error
                          OURO_RANK_CHECK(failed.reason() == Reason::invalid, "{}", failed.message());
                          OURO_RANK_OK(device->synchronize());
                          OURO_RANK_CHECK((order == std::vector{1, 2, 3}), "{} steps", order.size());
                          std::atomic<bool> told{false};
                          auto w = all_reduce(c.world(), View(), View(), ReduceOp::sum, *device);
                          OURO_RANK_OK(w);
                          w->then([&](const Status& s) { told = s.ok(); });
                          OURO_RANK_OK(w->wait());
                          OURO_RANK_OK(device->synchronize());
                          OURO_RANK_CHECK(told, "nobody was called back");
                          return "";
                        }),
            "");
}

/// The end of an operation is the end of its stream only if no other thread uses the stream: that thread may
/// have taken its handle before the operation, and enqueue work after it.
TEST(GpuStreams, SynchronizeWaitsForTheWorkOfAnotherThread) {
  OURO_NEEDS_GPU();
  EXPECT_EQ(run_threads(1,
                        [](Context& c) -> std::string {
                          Floats data;
                          OURO_RANK_OK(data.make(c, 100));
                          OURO_RANK_OK(data.fill(1));
                          auto stream = Stream::create(c.device());
                          OURO_RANK_OK(stream);
                          std::atomic<bool> taken{false}, enqueue{false}, ran{false};
                          Status enqueued;
                          std::thread other([&] {
                            const gpu::Stream handle = stream->impl()->gpu()->get();
                            taken = true;
                            while (!enqueue) std::this_thread::yield();
                            enqueued = gpu::gpu().call_host(
                                handle,
                                [](void* done) {
                                  std::this_thread::sleep_for(std::chrono::milliseconds(50));
                                  *static_cast<std::atomic<bool>*>(done) = true;
                                },
                                &ran);
                          });
                          while (!taken) std::this_thread::yield();
                          auto work = all_reduce(c.world(), data.view(), data.view(), ReduceOp::sum, *stream);
                          enqueue = true;
                          other.join();
                          OURO_RANK_OK(work);
                          OURO_RANK_OK(enqueued);
                          OURO_RANK_OK(stream->synchronize());
                          OURO_RANK_CHECK(ran, "the work of another thread was not awaited");
                          return "";
                        }),
            "");
}

TEST(GpuStreams, DeviceMemoryWorksOnHostStreamsAndInBatches) {
  OURO_NEEDS_GPU();
  EXPECT_EQ(run_threads(3,
                        [](Context& c) -> std::string {
                          auto host = Stream::create();
                          OURO_RANK_OK(host);
                          Floats a, b;
                          OURO_RANK_OK(a.make(c, 777));
                          OURO_RANK_OK(b.make(c, 777));
                          OURO_RANK_OK(a.fill(2));
                          auto w = all_reduce(c.world(), a.view(), a.view(), ReduceOp::sum, *host);
                          OURO_RANK_OK(w);
                          OURO_RANK_OK(w->wait());
                          OURO_EXPECT_ALL(a, 6);
                          group_start();
                          OURO_RANK_OK(all_reduce(c.world(), a.view(), b.view()));
                          OURO_RANK_OK(broadcast(c.world(), b.view(), a.view(), 2));
                          OURO_RANK_OK(group_end());
                          OURO_EXPECT_ALL(a, 18);
                          // Memory of the host in a stream of the device: the same order.
                          auto device = Stream::create(c.device());
                          OURO_RANK_OK(device);
                          std::vector<float> x(9, 1);
                          auto v = all_reduce(c.world(), std::span(x), std::span(x), ReduceOp::sum, *device);
                          OURO_RANK_OK(v);
                          OURO_RANK_OK(v->wait());
                          OURO_RANK_CHECK(x[8] == 3, "{}", x[8]);
                          OURO_RANK_OK(barrier(c.world(), *device));
                          return "";
                        }),
            "");
}

/// A device that can be lost.
class LostStreams : public testing::Test {
 protected:
  void SetUp() override {
    OURO_NEEDS_FAKES();  // words of streams come from a pool of the process, which a driver may have pinned
    gpu::install(&fake_);
  }
  void TearDown() override { gpu::install(nullptr); }
  gpu::FakeGpu fake_;
};

TEST_F(LostStreams, PendingFunctionsOfALostStreamAreFreed) {
  auto s = Stream::create({Device::Kind::cuda, 0});
  ASSERT_TRUE(s.ok());
  fake_.delay(gpu::FakeOp::call_host, std::chrono::minutes(1));
  const auto held = std::make_shared<std::atomic<int>>(0);
  std::vector<Work> works;
  for (int i = 0; i < 3; ++i) works.push_back(s->run([held] { return ++*held, Status(); }));
  EXPECT_EQ(rt::calls_kept(0), 3U);
  fake_.lose(0);
  EXPECT_THAT(s->synchronize(), Fails(Reason::device));
  for (const Work& w : works) EXPECT_THAT(w.wait(kHang), Fails(Reason::device));
  *s = Stream();
  EXPECT_TRUE(eventually([&] { return held.use_count() == 1 && fake_.live().streams == 0; }))
      << held.use_count() - 1 << " functions, " << fake_.live().streams << " streams";
  EXPECT_EQ(*held, 0) << "functions of a lost device ran";
  EXPECT_EQ(rt::calls_kept(0), 0U);
}

/// A graph acts like a driver that makes its calls at any time, and repeatedly.
TEST_F(LostStreams, LateDriverCallHasNoEffect) {
  struct Counted : rt::HostCall {
    std::atomic<int>*begun, *given_up;
    Counted(std::atomic<int>* b, std::atomic<int>* g) : begun(b), given_up(g) {}
    void begin() override { ++*begun; }
    void give_up(const Status&) override { ++*given_up; }
  };
  std::atomic<int> begun{0}, given_up{0};
  auto stream = fake_.create_stream(0, 0);
  ASSERT_TRUE(stream.ok() && fake_.begin_capture(*stream).ok());
  const auto call = std::make_shared<Counted>(&begun, &given_up);
  ASSERT_TRUE(rt::call_later(*stream, call).ok());
  auto graph = fake_.end_capture(*stream);
  ASSERT_TRUE(graph.ok() && fake_.launch(*graph, *stream).ok() && fake_.synchronize(*stream).ok());
  EXPECT_EQ(begun, 1);
  EXPECT_EQ(call.use_count(), 1) << "it is kept after it has begun";

  ASSERT_TRUE(fake_.begin_capture(*stream).ok() && rt::call_later(*stream, call).ok());
  auto late = fake_.end_capture(*stream);
  rt::give_up_calls(1, {Reason::device, "another device"});
  EXPECT_EQ(given_up, 0);
  rt::give_up_calls(0, {Reason::device, "lost"});
  EXPECT_EQ(given_up, 1);
  EXPECT_EQ(call.use_count(), 1);
  for (const auto& g : {*graph, *late}) ASSERT_TRUE(fake_.launch(g, *stream).ok());
  ASSERT_TRUE(fake_.synchronize(*stream).ok());
  EXPECT_EQ(begun, 1) << "the driver ran what it no longer owned";

  fake_.fail_next(gpu::FakeOp::call_host, Reason::resource);
  EXPECT_THAT(rt::call_later(*stream, call), Fails(Reason::resource));
  EXPECT_EQ(call.use_count(), 1) << "what the driver refused is kept";
}

class GpuRefused : public Paths {};
INSTANTIATE_TEST_SUITE_P(All, GpuRefused, testing::Values("leader", "resident", "stream", "staged"),
                         [](const auto& info) { return info.param; });

TEST_P(GpuRefused, InvalidBuffersAreRefusedWithAMessage) {
  OURO_NEEDS_GPU();
  const ForcedPath path(GetParam());
  EXPECT_EQ(run_threads(2,
                        [](Context& c) -> std::string {
                          Group& g = c.world();
                          Floats a;
                          OURO_RANK_OK(a.make(c, 100));
                          std::vector<float> x(100);
                          const auto refused = [&](const Status& s, std::string_view words) -> std::string {
                            OURO_RANK_CHECK(s.reason() == Reason::invalid, "{}", s.message());
                            OURO_RANK_CHECK(s.message().find(words) != std::string::npos, "'{}' lacks '{}'",
                                            s.message(), words);
                            OURO_RANK_OK(g.status());
                            return "";
                          };
                          std::string said = refused(all_reduce(g, a.view(), std::span(x)),
                                                     "the input is on GPU 0, the output on the host");
                          View elsewhere = a.view();
                          elsewhere.device.index = 7;
                          if (said.empty()) said = refused(all_reduce(g, elsewhere, elsewhere), "GPU 7");
                          if (said.empty()) said = refused(send(g, elsewhere, 0), "GPU 7");
                          View lie(x.data(), 100, DType::f32, c.device());
                          if (said.empty()) said = refused(all_reduce(g, lie, lie), "not memory of a GPU");
                          if (said.empty())
                            said = refused(Stream::create({Device::Kind::cuda, 99}).status(), "99");
                          if (said.empty()) OURO_RANK_OK(all_reduce(g, a.view(), a.view()));
                          if (said.empty()) said = only_ran(g, GetParam());
                          OURO_RANK_OK(barrier(g));
                          return said;
                        }),
            "");
  InitOptions none = quick_options();
  none.gpu = -1;
  EXPECT_EQ(run_threads(
                2,
                [](Context& c) -> std::string {
                  OURO_RANK_CHECK(c.device() == Device(), "it has a GPU");
                  float x = 0;
                  const View v(&x, 1, DType::f32, {Device::Kind::cuda, 0});
                  const Status s = all_reduce(c.world(), v, v);
                  OURO_RANK_CHECK(
                      s.reason() == Reason::invalid && s.message().find("has no GPU") != std::string::npos,
                      "{}", s.message());
                  return "";
                },
                none),
            "");
}

}  // namespace
}  // namespace ouro::test
