// Memory that the program has allocated itself and registered: reached in place like that of Context::alloc,
// among threads and processes, as it grows, nests and is reused. On fake devices.
#include <memory>
#include <thread>

#include "tests/runtime/device_memory/own_memory.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

/// n ranks with a fake GPU each, as threads or as processes.
std::string on_gpus(Mode mode, int n, const Body& body, gpu::FakeOptions fakes = {}) {
  fakes.devices = 8;
  fakes.multiprocessors = 16;
  if (mode == Mode::threads) {
    gpu::FakeGpu shared(fakes);
    gpu::install(&shared);
    std::string said = run_threads(n, body);
    gpu::install(nullptr);
    return said;
  }
  return run_processes(n, [&](Context& c) { return body(c); });
}

class Registered : public testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    OURO_NEEDS_FAKES();
    OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
    setenv("OURO_FAKE_GPUS", "8", 1);
  }
  ForcedPath path{"resident", Mode::threads};
};
INSTANTIATE_TEST_SUITE_P(All, Registered, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return std::string(name(info.param)); });

struct Case {
  const char* name;
  std::vector<std::size_t> units;  // of chunks; none: of cudaMalloc
  std::size_t from, to;            // what is registered, in bytes; 0: to the end
  bool chunk_by_chunk = false;
};
const Case kCases[] = {{"cudaMalloc", {}, 0, 0},
                       {"part of cudaMalloc", {}, 4096 + 4, 6 * kUnit - 20},
                       {"one chunk", {8}, 0, 0},
                       {"chunks", {1, 2, 1, 4}, 0, 0},
                       {"part of chunks", {2, 1, 5}, kUnit + 12, 6 * kUnit + 4},
                       {"each chunk", {1, 1, 2, 4}, 0, 0, true}};

TEST_P(Registered, IsReachedInPlace) {
  ASSERT_EQ(
      on_gpus(GetParam(), 3,
              [&](Context& c) -> std::string {
                const bool processes = GetParam() == Mode::processes;
                for (const Case& k : kCases) {
                  const std::size_t bytes = 8 * kUnit;
                  Own memory;
                  OURO_RANK_OK(k.units.empty() ? memory.make(c, bytes) : memory.make_chunks(c, k.units, 8));
                  // An odd address, across chunks.
                  const std::size_t at = kUnit + 52 + 4 * static_cast<std::size_t>(c.world().rank());
                  SETTLES(!processes && k.units.empty(), c.world(), c, memory, at, kCount);
                  std::vector<Registration> parts;
                  const auto add = [&](std::size_t from, std::size_t to) -> Status {
                    OURO_ASSIGN(auto r, c.register_memory(memory.data() + from, to - from, c.device()));
                    parts.push_back(std::move(r));
                    return {};
                  };
                  if (!k.chunk_by_chunk) {
                    OURO_RANK_OK(add(k.from, k.to ? k.to : bytes));
                  } else {
                    std::size_t from = 0;
                    for (const std::size_t u : k.units) {
                      OURO_RANK_OK(add(from, from + u * kUnit));
                      from += u * kUnit;
                    }
                  }
                  SETTLES(true, c.world(), c, memory, at, kCount);
                  const int all[] = {0, 1, 2};  // a group that is made afterwards
                  auto later = c.group(all, "later");
                  OURO_RANK_OK(later);
                  SETTLES(true, *later, c, memory, at + 64, kCount);
                  if (k.to) {  // beside what is registered
                    SETTLES(!processes && k.units.empty(), c.world(), c, memory, 0, kCount);
                  }
                  OURO_RANK_OK(barrier(c.world()));
                  for (Registration& r : parts) OURO_RANK_OK(r.release());
                  for (Registration& r : parts) OURO_RANK_OK(r.release());  // once more: nothing
                  SETTLES(!processes && k.units.empty(), c.world(), c, memory, at, kCount);
                  OURO_RANK_CHECK(fake().live().retained == 0, "{}", k.name);
                  OURO_RANK_OK(barrier(c.world()));
                  memory.free();
                  OURO_RANK_CHECK(fake().freed_in_use() == 0, "{}", k.name);
                }
                return only_ran(c.world(), "resident");
              }),
      "");
}

/// An expandable segment: another chunk adjoins and is registered by itself, and buffers lie across both;
/// then the new one is deregistered.
TEST_P(Registered, IsReachedInPlaceAsASegmentGrowsAndShrinks) {
  ASSERT_EQ(on_gpus(GetParam(), 3,
                    [&](Context& c) -> std::string {
                      Own memory;
                      OURO_RANK_OK(memory.make_chunks(c, {4}, 12));
                      auto first = c.register_memory(memory.data(), 4 * kUnit, c.device());
                      OURO_RANK_OK(first);
                      SETTLES(true, c.world(), c, memory, 0, kCount);
                      OURO_RANK_OK(memory.grow(4));
                      const std::size_t across = 3 * kUnit;
                      SETTLES(false, c.world(), c, memory, across, kCount);
                      auto second = c.register_memory(memory.data() + 4 * kUnit, 4 * kUnit, c.device());
                      OURO_RANK_OK(second);
                      SETTLES(true, c.world(), c, memory, across, kCount);
                      SETTLES(true, c.world(), c, memory, 5 * kUnit, kCount);
                      OURO_RANK_OK(barrier(c.world()));
                      OURO_RANK_OK(second->release());
                      SETTLES(false, c.world(), c, memory, across, kCount);
                      SETTLES(true, c.world(), c, memory, 0, kCount);
                      return only_ran(c.world(), "resident");
                    }),
            "");
}

/// A rank lists 64 allocations in a group. Numbers of those that have ended are given to others: hundreds are
/// registered and deregistered, some of them together.
TEST_P(Registered, NumbersOfEndedAllocationsAreReused) {
  ASSERT_EQ(on_gpus(GetParam(), 3,
                    [&](Context& c) -> std::string {
                      constexpr std::size_t kFew = 17'000;  // floats: more than packets take
                      Own always;
                      OURO_RANK_OK(always.make_chunks(c, {2}, 2));
                      auto stays = c.register_memory(always.data(), always.bytes(), c.device());
                      OURO_RANK_OK(stays);
                      SETTLES(true, c.world(), c, always, 0, kFew);
                      for (int turn = 0; turn < 40; ++turn) {
                        std::vector<std::unique_ptr<Own>> memory;
                        std::vector<Registration> registered;
                        for (int k = 0; k < 8; ++k) {
                          memory.push_back(std::make_unique<Own>());
                          OURO_RANK_OK(memory.back()->make_chunks(c, {1, 1}, 2));
                          auto r = c.register_memory(memory.back()->data(), 2 * kUnit, c.device());
                          OURO_RANK_OK(r);
                          registered.push_back(std::move(*r));
                        }
                        const std::uint64_t before = c.world().impl()->gpu_named();
                        for (int call = 0; call < 5; ++call) {
                          bool named = false;
                          for (auto& m : memory)
                            if (std::string said = reduce(c.world(), c, *m, 4, kFew, &named); !said.empty())
                              return fmt::format("turn {}: {}", turn, said);
                        }
                        const std::uint64_t named = c.world().impl()->gpu_named() - before;
                        OURO_RANK_CHECK(named >= 16, "turn {}: {} of 40 calls went by pointer", turn, named);
                        OURO_RANK_OK(barrier(c.world()));
                        for (Registration& r : registered) OURO_RANK_OK(r.release());
                      }
                      SETTLES(true, c.world(), c, always, 0, kFew);
                      return only_ran(c.world(), "resident");
                    }),
            "");
}

/// A captured operation continues to name an allocation by its number after its registration has ended, so
/// the number is given to no other one.
TEST_P(Registered, NumbersThatAGraphUsesAreNotReused) {
  ASSERT_EQ(on_gpus(GetParam(), 2,
                    [&](Context& c) -> std::string {
                      constexpr std::size_t kFew = 17'000;
                      Own captured;
                      OURO_RANK_OK(captured.make_chunks(c, {2}, 2));
                      auto r = c.register_memory(captured.data(), captured.bytes(), c.device());
                      OURO_RANK_OK(r);
                      SETTLES(true, c.world(), c, captured, 0, kFew);
                      auto made = gpu::gpu().create_stream(c.device().index, 0);
                      OURO_RANK_OK(made);
                      auto s = Stream::cuda(made->handle, made->device);
                      OURO_RANK_OK(s);
                      const View v(captured.data(), kFew, DType::f32, c.device());
                      OURO_RANK_OK(gpu::gpu().begin_capture(*made));
                      OURO_RANK_OK(all_reduce(c.world(), v, v, ReduceOp::sum, *s));
                      auto graph = gpu::gpu().end_capture(*made);
                      OURO_RANK_OK(graph);
                      OURO_RANK_OK(barrier(c.world()));
                      OURO_RANK_OK(r->release());
                      for (int turn = 0; turn < 80; ++turn) {
                        Own other;
                        OURO_RANK_OK(other.make_chunks(c, {2}, 2));
                        auto also = c.register_memory(other.data(), other.bytes(), c.device());
                        OURO_RANK_OK(also);
                        SETTLES(true, c.world(), c, other, 0, kFew);
                        OURO_RANK_OK(barrier(c.world()));
                        OURO_RANK_OK(also->release());
                      }
                      OURO_RANK_OK(captured.fill(0, kFew, static_cast<float>(c.rank() + 1)));
                      OURO_RANK_OK(barrier(c.world()));
                      OURO_RANK_OK(gpu::gpu().launch(*graph, *made));
                      OURO_RANK_OK(s->synchronize());
                      const std::string said = captured.expect(0, kFew, 3);
                      OURO_RANK_OK(gpu::gpu().destroy_graph(*graph));
                      OURO_RANK_OK(barrier(c.world()));
                      return said;
                    }),
            "");
}

/// A rank that is late still reaches memory that its owner has freed after it has named it, and finds it by
/// its number, which means another allocation later.
TEST(RegisteredNumbers, LateRankFindsTheOldAllocationByItsNumber) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  setenv("OURO_FAKE_GPUS", "8", 1);
  const ForcedPath path("resident");
  constexpr std::size_t kFew = 17'000;
  ASSERT_EQ(on_gpus(Mode::processes, 2,
                    [&](Context& c) -> std::string {
                      const int both[] = {0, 1};
                      auto beside = c.group(both, "beside");
                      OURO_RANK_OK(beside);
                      std::vector<std::unique_ptr<Floats>> all;  // as many as a list has numbers
                      for (int k = 0; k < 64; ++k) {
                        all.push_back(std::make_unique<Floats>());
                        OURO_RANK_OK(all.back()->make(c, kFew));
                        OURO_RANK_OK(all.back()->fill(0));
                        const View v = all.back()->view();
                        for (int call = 0; call < 3; ++call) OURO_RANK_OK(all_reduce(c.world(), v, v));
                      }
                      Floats next;
                      OURO_RANK_OK(next.make(c, kFew));
                      OURO_RANK_OK(next.fill(100));
                      OURO_RANK_OK(all[10]->fill(static_cast<float>(c.rank() + 1)));
                      OURO_RANK_OK(barrier(c.world()));
                      auto s = Stream::create(c.device());
                      OURO_RANK_OK(s);
                      if (c.rank() == 0) {
                        OURO_RANK_OK(barrier(*beside));
                        std::this_thread::sleep_for(150ms);  // its watch thread has looked for what has ended
                      }
                      const std::uint64_t before = c.world().impl()->gpu_named();
                      auto w = all_reduce(c.world(), all[10]->view(), all[10]->view(), ReduceOp::sum, *s);
                      OURO_RANK_OK(w);
                      OURO_RANK_CHECK(c.world().impl()->gpu_named() == before + 1, "over slots");
                      if (c.rank() == 1) all[10].reset();
                      auto later = all_reduce(c.world(), next.view(), next.view(), ReduceOp::sum, *s);
                      OURO_RANK_OK(later);
                      if (c.rank() == 1) OURO_RANK_OK(barrier(*beside));
                      OURO_RANK_OK(w->wait());
                      OURO_RANK_OK(later->wait());
                      if (c.rank() == 0) OURO_EXPECT_ALL(*all[10], 3);
                      OURO_EXPECT_ALL(next, 200);
                      OURO_RANK_OK(next.fill(1));
                      bool named = false;
                      for (int call = 0; call < 5; ++call) {
                        const std::uint64_t calls = c.world().impl()->gpu_named();
                        OURO_RANK_OK(all_reduce(c.world(), next.view(), next.view(), ReduceOp::max));
                        named = c.world().impl()->gpu_named() > calls;
                      }
                      OURO_RANK_CHECK(named == (c.rank() == 1), "{}", named);
                      return only_ran(c.world(), "resident");
                    }),
            "");
}

/// The same address with other memory behind it: nobody uses what was there before.
TEST_P(Registered, NewMemoryAtTheSameAddressReplacesTheOld) {
  ASSERT_EQ(on_gpus(GetParam(), 3,
                    [&](Context& c) -> std::string {
                      Own memory;
                      OURO_RANK_OK(memory.make_chunks(c, {2, 2}, 4));
                      for (int turn = 0; turn < 3; ++turn) {
                        auto r = c.register_memory(memory.data(), memory.bytes(), c.device());
                        OURO_RANK_OK(r);
                        SETTLES(true, c.world(), c, memory, 12, kCount);
                        OURO_RANK_OK(barrier(c.world()));
                        OURO_RANK_OK(r->release());
                        OURO_RANK_OK(memory.unmap_all());
                        OURO_RANK_OK(memory.grow(turn == 0 ? 4 : 2));
                        if (turn > 0) OURO_RANK_OK(memory.grow(2));
                        SETTLES(false, c.world(), c, memory, 12, kCount);
                      }
                      OURO_RANK_CHECK(fake().freed_in_use() == 0, "{}", fake().freed_in_use());
                      return "";
                    }),
            "");
}

TEST_P(Registered, NestedAndOverlappingRangesEndSeparately) {
  ASSERT_EQ(
      on_gpus(GetParam(), 2,
              [&](Context& c) -> std::string {
                for (const bool chunks : {false, true}) {
                  Own memory;
                  OURO_RANK_OK(chunks ? memory.make_chunks(c, {1, 3, 4}, 8) : memory.make(c, 8 * kUnit));
                  const bool unregistered = !chunks && GetParam() == Mode::threads;
                  const auto add = [&](std::size_t from, std::size_t to) {
                    return c.register_memory(memory.data() + from, to - from, c.device());
                  };
                  auto all = add(0, 8 * kUnit), inner = add(kUnit, 5 * kUnit),
                       upper = add(3 * kUnit, 8 * kUnit);
                  for (const auto* r : {&all, &inner, &upper}) OURO_RANK_OK(*r);
                  SETTLES(true, c.world(), c, memory, kUnit + 4, kCount);
                  OURO_RANK_OK(barrier(c.world()));
                  OURO_RANK_OK(all->release());
                  SETTLES(true, c.world(), c, memory, kUnit + 4, kCount);
                  SETTLES(true, c.world(), c, memory, 4 * kUnit, kCount);  // across the two that overlap
                  SETTLES(unregistered, c.world(), c, memory, 4, kCount);
                  OURO_RANK_OK(barrier(c.world()));
                  *inner = Registration();
                  SETTLES(unregistered, c.world(), c, memory, kUnit + 4, kCount);
                  SETTLES(true, c.world(), c, memory, 4 * kUnit, kCount);
                  OURO_RANK_OK(barrier(c.world()));
                  OURO_RANK_OK(upper->release());
                  OURO_RANK_OK(barrier(c.world()));
                }
                return "";
              }),
      "");
}

TEST_P(Registered, InvalidRangesAreRefusedWithAReason) {
  ASSERT_EQ(
      on_gpus(GetParam(), 2,
              [&](Context& c) -> std::string {
                const auto refused = [&](const void* p, std::size_t bytes, Device d, Reason reason,
                                         const char* text) {
                  const Status s = c.register_memory(p, bytes, d).status();
                  return s.reason() == reason && has(s.message(), text)
                             ? std::string()
                             : fmt::format("expected '{}', got {}", text, s.message());
                };
                Own memory, secret, hole;
                OURO_RANK_OK(memory.make(c, 2 * kUnit));
                OURO_RANK_OK(secret.make_chunks(c, {2}, 2, false));
                OURO_RANK_OK(hole.make_chunks(c, {1}, 4));
                int mine = 0;
                std::string said;
                said += refused(&mine, 4, {}, Reason::unsupported, "memory of the host");
                said += refused(&mine, 4, c.device(), Reason::invalid, "is not memory of a GPU");
                said += refused(nullptr, 4, c.device(), Reason::invalid, "0x0");
                said += refused(memory.data(), 0, c.device(), Reason::invalid, "0 bytes");
                said += refused(memory.data() + 4, 2 * kUnit, c.device(), Reason::invalid, "beyond");
                said += refused(memory.data(), 4, Device{Device::Kind::cuda, 7}, Reason::invalid, "GPU 7");
                said += refused(hole.data(), 2 * kUnit, c.device(), Reason::invalid, "from byte 65536 on");
                if (GetParam() == Mode::processes) {
                  said += refused(secret.data(), kUnit, c.device(), Reason::unsupported,
                                  "without a shareable handle type");
                } else {
                  OURO_RANK_OK(c.register_memory(secret.data(), kUnit, c.device()));
                }
                OURO_RANK_CHECK(fake().live().retained == 0, "{}", fake().live().retained);
                OURO_RANK_OK(barrier(c.world()));
                return said;
              }),
      "");
}

/// A buffer across mappings of cuMemMap is memory like any other, registered or not.
TEST_P(Registered, BuffersAcrossMappingsWorkUnregistered) {
  ASSERT_EQ(on_gpus(GetParam(), 3,
                    [&](Context& c) -> std::string {
                      Own memory;
                      OURO_RANK_OK(memory.make_chunks(c, {1, 1, 1, 1}, 5));
                      SETTLES(false, c.world(), c, memory, 20, kCount);
                      const View beyond(memory.data() + 3 * kUnit, kCount, DType::f32, c.device());
                      const Status s = all_reduce(c.world(), beyond, beyond);
                      OURO_RANK_CHECK(s.reason() == Reason::invalid, "{}", s.message());
                      return "";
                    }),
            "");
}

}  // namespace
}  // namespace ouro::test
