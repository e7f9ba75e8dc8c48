// The registration of PyTorch's expandable segments (segments.h) by itself: the events of an allocator that
// maps and unmaps pieces, in any sizes. Without PyTorch, on fake GPUs.
#include "api/python/ouro/torch/adapter/segments.h"

#include <cstdlib>

#include "tests/runtime/device_memory/own_memory.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

/// Two ranks that are processes with a GPU each.
std::string on_gpus(const Body& body) {
  setenv("OURO_FAKE_GPUS", "2", 1);
  const ForcedPath path("resident", Mode::processes);
  return run_processes(2, [&](Context& c) { return body(c); });
}

std::size_t times(const std::string& text, std::string_view what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

#define IS_REGISTERED(units) \
  OURO_RANK_CHECK(segments.bytes() == (units)*kUnit, "{} of {} KiB", segments.bytes() >> 10, (units) << 6)

TEST(TorchSegments, RegistrationsFollowMapAndUnmapEvents) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  ASSERT_EQ(on_gpus([](Context& c) -> std::string {
              Own memory;
              OURO_RANK_OK(memory.make_chunks(c, {1, 1, 1, 1, 1, 1}, 8));
              const auto at = [&](std::size_t unit) {
                return reinterpret_cast<std::uintptr_t>(memory.data() + unit * kUnit);
              };
              {
                adapter::Segments segments(c);
                SETTLES(false, c.world(), c, memory, 0, kCount);
                segments.mapped(at(0), 2 * kUnit);
                IS_REGISTERED(2u);
                segments.mapped(at(0), 2 * kUnit);  // an event, and the snapshot that is taken meanwhile
                segments.mapped(at(1), kUnit);
                IS_REGISTERED(2u);
                segments.mapped(at(4), kUnit);
                segments.mapped(at(1), 5 * kUnit);  // around what is known
                IS_REGISTERED(6u);
                SETTLES(true, c.world(), c, memory, kUnit - 8, kCount);
                SETTLES(true, c.world(), c, memory, 3 * kUnit + 4, kCount);
                OURO_RANK_OK(barrier(c.world()));
                segments.unmapped(at(1), kUnit);  // a part of what was registered at once: the rest stays
                IS_REGISTERED(5u);
                SETTLES(false, c.world(), c, memory, 0, kCount);
                SETTLES(true, c.world(), c, memory, 2 * kUnit, kCount);
                OURO_RANK_OK(barrier(c.world()));
                segments.unmapped(at(0), 3 * kUnit);  // across a gap
                IS_REGISTERED(3u);
                segments.mapped(at(0), 6 * kUnit);
                IS_REGISTERED(6u);
                SETTLES(true, c.world(), c, memory, 0, kCount);
                OURO_RANK_OK(barrier(c.world()));
                segments.unmapped(at(0), 8 * kUnit);
                IS_REGISTERED(0u);
                segments.unmapped(at(0), 8 * kUnit);
                segments.mapped(at(3), 3 * kUnit);
                OURO_RANK_OK(barrier(c.world()));
              }
              // All has ended with the object.
              SETTLES(false, c.world(), c, memory, 3 * kUnit, kCount);
              OURO_RANK_CHECK(fake().live().retained == 0, "{}", fake().live().retained);
              OURO_RANK_OK(barrier(c.world()));
              return only_ran(c.world(), "resident");
            }),
            "");
}

TEST(TorchSegments, UnregistrableMemoryIsReportedOnce) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  ASSERT_EQ(on_gpus([](Context& c) -> std::string {
              Own memory;
              OURO_RANK_OK(memory.make_chunks(c, {2}, 4, false));
              adapter::Segments segments(c);
              const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
              testing::internal::CaptureStderr();
              for (int k = 0; k < 3; ++k) segments.mapped(at, 2 * kUnit);
              segments.mapped(at + 2 * kUnit, kUnit);  // nothing is mapped there
              const std::string said = testing::internal::GetCapturedStderr();
              OURO_RANK_CHECK(times(said, "copied through slots") == 1 && has(said, "shareable handle type"),
                              "{}", said);
              IS_REGISTERED(0u);
              SETTLES(false, c.world(), c, memory, 0, 30'000);
              return "";
            }),
            "");
}

}  // namespace
}  // namespace ouro::test
