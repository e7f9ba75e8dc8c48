// The measuring loop on GPUs: every collective is right, a wrong byte anywhere is detected, clocks and graphs
// work. Run by ctest on fake devices; by hand, without OURO_FAKE_GPUS, on the card of the machine.
#include "tools/perf/device.h"

#include <gtest/gtest.h>

#include <thread>

#include "tools/perf/check.h"
#include "tools/perf/measure.h"

namespace ouro::perf {
namespace {

#define OURO_NEEDS_GPU() \
  if (gpu::gpu().devices() == 0) GTEST_SKIP() << "no CUDA device"

/// Runs `f(context)` on n threads that share a job.
template <class F>
void on_ranks(int n, F f) {
  auto contexts = Context::threads(n);
  ASSERT_TRUE(contexts) << contexts.status().message();
  std::vector<std::jthread> ranks;
  for (Context& c : *contexts)
    ranks.emplace_back([&] {
      f(c);
      EXPECT_TRUE(c.close().ok());
    });
}

Options quick(Kind k) {
  Options o;
  o.device = true;
  o.blocking = Blocking::stream;
  o.kind = k;
  o.min_bytes = 0, o.max_bytes = 20'000;
  o.iters = 3;
  o.ops = {OpKind::sum};
  o.dtypes = {DType::f32};
  return o;
}

void expect_right(const Options& o, int ranks = 3) {
  on_ranks(ranks, [&](Context& c) {
    auto bench = Bench::make(o, c, c.world(), c.world());
    ASSERT_TRUE(bench) << bench.status().message();
    for (const std::size_t size : {0u, 4u, 1000u, 20'000u}) {
      const auto row = bench->row(size, DType::f32, OpKind::sum, 1);
      ASSERT_TRUE(row) << info(o.kind).name << ": " << row.status().message();
      EXPECT_EQ(row->out_of_place.wrong, 0u) << info(o.kind).name << ' ' << size;
      EXPECT_EQ(row->in_place->wrong, 0u) << info(o.kind).name << ' ' << size << " in place";
      EXPECT_GT(row->out_of_place.us, 0);
      EXPECT_EQ(row->in_place->samples.has_value(), o.iteration_stats);
      ASSERT_EQ(row->in_place->distribution.has_value(), o.distribution);
      if (o.distribution) {
        EXPECT_GT(row->in_place->distribution->min, 0);
        EXPECT_LE(row->in_place->distribution->min, row->in_place->distribution->p95);
      }
    }
  });
}

TEST(PerfDevice, EveryCollectiveIsRight) {
  OURO_NEEDS_GPU();
  for (const KindInfo& k : all_kinds())
    if (has_in_place(k.kind)) expect_right(quick(k.kind));
}

TEST(PerfDevice, EveryMethodIsRight) {
  OURO_NEEDS_GPU();
  const auto with = [](auto set) {
    Options o = quick(Kind::all_reduce);
    set(o);
    ASSERT_TRUE(validate(o).ok()) << validate(o).message();
    expect_right(o, 2);
  };
  with([](Options& o) { o.graph = 2, o.aggregate = 2; });
  with([](Options& o) { o.graph = 1, o.events = o.registered = true; });
  with([](Options& o) { o.events = o.iteration_stats = true; });
  with([](Options& o) { o.blocking = Blocking::barrier, o.iteration_stats = true, o.unalign = 3; });
  with([](Options& o) { o.blocking = Blocking::stream_wait, o.aggregate = 3; });
  with([](Options& o) { o.cpu_time = true; });
  with([](Options& o) { o.distribution = true, o.iters = 11; });
  with([](Options& o) { o.distribution = o.events = true, o.aggregate = 2; });
  with([](Options& o) { o.distribution = true, o.graph = 3; });
  with([](Options& o) { o.distribution = o.iteration_stats = true, o.blocking = Blocking::stream_wait; });
  with([](Options& o) { o.distribution = o.cpu_time = true; });
}

TEST(PerfDevice, ChecksDetectEveryWrongByte) {
  OURO_NEEDS_GPU();
  on_ranks(1, [](Context& c) {
    constexpr std::size_t kCount = 1000, kBytes = 4 * kCount;
    auto in = Buffer::make(c, kBytes, true, c.device()),
         out = Buffer::make(c, kBytes + kGuard, false, c.device());
    ASSERT_TRUE(in && out);
    const auto mover = Mover::make(c.device());
    ASSERT_TRUE(mover);
    Call call;
    call.in = in->at(0), call.out = out->at(0);
    call.device = c.device();
    call.shape = layout(Kind::all_reduce, kBytes, 4, 1);
    const auto wrong = [&](std::byte* damaged) {
      const auto perform = [&]() -> Status {
        OURO_TRY(issue(c.world(), call, 1, {}));
        const std::byte bad{0x5a};
        return damaged ? mover->write(damaged, &bad, 1) : Status();
      };
      const auto found = check_call(c.world(), call, OpKind::sum, false, out->at(0), 7, perform, *mover);
      EXPECT_TRUE(found) << found.status().message();
      return found ? *found : 99;
    };
    EXPECT_EQ(wrong(nullptr), 0u);
    for (std::byte* p : {out->at(0), out->at(kBytes - 1), out->at(kBytes), out->at(kBytes + kGuard - 1),
                         in->at(0), in->at(kBytes - 1)})
      EXPECT_EQ(wrong(p), 1u);
  });
}

TEST(PerfDevice, EventsTimeTheWorkOfTheStream) {
  OURO_NEEDS_GPU();
  const auto stream = gpu::gpu().create_stream(0, 0);
  ASSERT_TRUE(stream) << stream.status().message();
  {
    const auto clock = EventClock::make(*stream, 2);
    ASSERT_TRUE(clock) << clock.status().message();
    ASSERT_TRUE((*clock)->mark(0).ok());
    ASSERT_TRUE(gpu::gpu()
                    .call_host(
                        *stream, [](void*) { std::this_thread::sleep_for(Milliseconds(20)); }, nullptr)
                    .ok());
    ASSERT_TRUE((*clock)->mark(1).ok());
    EXPECT_FALSE((*clock)->seconds(0, 1)) << "before it has passed";
    ASSERT_TRUE(gpu::gpu().synchronize(*stream).ok());
    const auto seconds = (*clock)->seconds(0, 1);
    ASSERT_TRUE(seconds) << seconds.status().message();
    EXPECT_GE(*seconds, 0.019);
    const auto failed = CapturedGraph::capture(*stream, [] { return invalid("as told"); });
    EXPECT_EQ(failed.status().failure()->text, "as told");
    EXPECT_TRUE(CapturedGraph::capture(*stream, [] { return Status(); }))
        << "the stream was left in a capture";
  }
  EXPECT_TRUE(gpu::gpu().destroy_stream(*stream).ok());
}

TEST(PerfDevice, TheLimitIsMeasuredOnceForEachDevice) {
  OURO_NEEDS_GPU();
  double seen[2] = {};
  on_ranks(2, [&](Context& c) {
    const Options o = quick(Kind::all_reduce);
    auto bench = Bench::make(o, c, c.world(), c.world());
    ASSERT_TRUE(bench) << bench.status().message();
    const auto rate = bench->copy_bandwidth();
    ASSERT_TRUE(rate) << rate.status().message();
    EXPECT_EQ(rate->gpus, std::min(2, gpu::gpu().devices()));
    EXPECT_GE(rate->bytes, std::size_t{16} << 20);
    seen[c.rank()] = rate->gbs;
  });
  EXPECT_GT(seen[0], 0);
  EXPECT_EQ(seen[0], seen[1]);
}

TEST(PerfDevice, RankWithoutAGpuIsNamed) {
  InitOptions none;
  none.gpu = -1;
  auto contexts = Context::threads(1, none);
  ASSERT_TRUE(contexts) << contexts.status().message();
  Context& c = contexts->front();
  const Status s = Bench::make(quick(Kind::all_reduce), c, c.world(), c.world()).status();
  EXPECT_EQ(s.reason(), Reason::unsupported);
  EXPECT_NE(s.message().find("rank 0 has no GPU"), std::string::npos) << s.message();
}

}  // namespace
}  // namespace ouro::perf
