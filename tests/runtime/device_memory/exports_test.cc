// Exports and imports of device memory without a job: when exports of unmapped memory end, and how large an
// import is. On fake devices.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "runtime/core/thread.h"

#include "runtime/device_memory/deferred_free.h"
#include "runtime/device_memory/gpu_exports.h"
#include "runtime/device_memory/gpu_imports.h"
#include "tests/runtime/device_memory/own_memory.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

/// The library detects that registered memory was unmapped, in a later call or when the registration ends.
/// The memory is not named any more. Operations in flight may have named its exports, so these end later.
TEST(Exports, OfUnmappedMemoryEndWhenTheProcessIsIdle) {
  OURO_NEEDS_FAKES();
  for (const bool in_a_call : {true, false}) {
    gpu::FakeGpu shared;
    gpu::install(&shared);
    {
      const auto range = shared.reserve(0, 2 * kUnit);
      ASSERT_TRUE(range.ok());
      auto* const p = static_cast<std::byte*>(*range);
      for (const std::size_t at : {std::size_t{0}, kUnit}) ASSERT_TRUE(shared.map(0, p + at, kUnit).ok());
      std::vector<std::uint64_t> dropped;
      rt::GpuExports exports([&](std::uint64_t id) { dropped.push_back(id); });
      const auto a = exports.register_range(p, kUnit, 0, {.processes = true});
      const auto b = exports.register_range(p + kUnit, kUnit, 0, {.processes = true});
      ASSERT_TRUE(a.ok() && b.ok());
      const auto id = [&](std::size_t at, std::size_t bytes) {
        const auto found = exports.find_lasting(p + at, bytes);
        EXPECT_TRUE(found.ok());
        return found.ok() ? found->id : 0;
      };
      std::vector<std::uint64_t> named{id(0, 4), id(kUnit - 4, 8)};  // of the first, and of both together
      const std::uint64_t other = id(kUnit, 4);
      EXPECT_TRUE(named[0] != 0 && named[1] > named[0] && other != 0);
      for (const std::uint64_t n : named) EXPECT_TRUE(exports.handles_of(n, 0, 2).ok());
      std::optional<rt::OperationOnDevice> operation(std::in_place);
      ASSERT_TRUE(shared.unmap(p).ok());
      if (in_a_call) {
        for (int call = 0; call < 8; ++call) EXPECT_TRUE(exports.find(p + kUnit, 4, 0).ok());
      } else {
        EXPECT_TRUE(exports.deregister(*a).ok());
      }
      EXPECT_EQ(id(0, 4), 0u);
      EXPECT_EQ(id(kUnit - 4, 8), 0u);
      EXPECT_EQ(id(kUnit, 4), other);
      rt::free_if_idle();
      for (const std::uint64_t n : named) {
        EXPECT_FALSE(exports.ended(n));
        EXPECT_TRUE(exports.handles_of(n, 0, 2).ok());
      }
      EXPECT_TRUE(dropped.empty());
      EXPECT_EQ(shared.live().retained, 2);
      operation.reset();
      rt::free_if_idle();
      std::ranges::sort(dropped);
      EXPECT_EQ(dropped, named);
      EXPECT_EQ(shared.live().retained, 1);
      if (in_a_call) {
        EXPECT_TRUE(exports.deregister(*a).ok());
      }
      EXPECT_FALSE(exports.deregister(*a).ok());
      EXPECT_TRUE(exports.deregister(*b).ok());
      EXPECT_EQ(shared.live().retained, 0);
      EXPECT_TRUE(shared.unmap(p + kUnit).ok() && shared.unreserve(p).ok());
    }
    gpu::install(nullptr);
  }
}

/// Deferred memory is freed when the last operation ends, without a call. Threads that must not wait free
/// nothing, and after a capture nothing is freed without a request.
TEST(Exports, DeferredFreesRunWhenTheLastOperationEnds) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  Processes alone(1, [&](int, Board&) {  // note_graph_capture() cannot be undone
    const auto releaser = rt::DeferredFreeThread::of_process();
    ASSERT_TRUE(releaser != nullptr);
    EXPECT_EQ(rt::DeferredFreeThread::of_process(), releaser);
    const auto waits = [](std::thread::id* by) {
      return rt::free_when_idle(std::shared_ptr<char>(new char, [by](char* p) {
        *by = std::this_thread::get_id();
        delete p;
      }));
    };
    const auto me = std::this_thread::get_id();
    std::thread::id by[3];
    const auto ended = [&](int k) {
      rt::finish_freeing();
      return by[k] != std::thread::id();
    };
    std::optional<rt::OperationOnDevice> operation(std::in_place);
    waits(&by[0]).reset();
    EXPECT_EQ(by[0], std::thread::id());
    operation.reset();
    EXPECT_TRUE(eventually([&] { return ended(0); }));
    {
      const rt::NeverFrees here;
      waits(&by[1]).reset();
      rt::free_soon(5s);
      EXPECT_TRUE(by[1] != std::thread::id() && by[1] != me);
    }
    rt::note_graph_capture();
    operation.emplace();
    waits(&by[2]).reset();
    operation.reset();
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(by[2], std::thread::id());
    rt::free_soon(5s);
    EXPECT_TRUE(by[2] != std::thread::id() && by[2] != me);
  });
  alone.join();
}

/// A driver may wait for all work when it opens memory to other devices. That work may wait for a thread
/// which meanwhile searches for a buffer or sends handles to another rank.
TEST(Exports, StayUsableWhileTheDriverRegistersOtherMemory) {
  OURO_NEEDS_FAKES();
  gpu::FakeGpu shared({.harsh = {.sharing_waits = true, .patience = 2s}});
  gpu::install(&shared);
  {
    const auto range = shared.reserve(0, 2 * kUnit);
    const auto word = shared.alloc_pinned(4);
    auto stream = shared.create_stream(0, 0);
    ASSERT_TRUE(range.ok() && word.ok() && stream.ok());
    auto* const p = static_cast<std::byte*>(*range);
    for (const std::size_t at : {std::size_t{0}, kUnit}) ASSERT_TRUE(shared.map(0, p + at, kUnit).ok());
    std::atomic_ref flag(*static_cast<std::uint32_t*>(*word));
    flag = 0;
    rt::GpuExports exports([](std::uint64_t) {});
    ASSERT_TRUE(exports.register_range(p, kUnit, 0, {.processes = true}).ok());
    const gpu::MemOp until{gpu::MemOp::Kind::wait_equal, 1, *word};
    ASSERT_TRUE(shared.enqueue(std::span(&until, 1), *stream).ok());
    std::atomic<bool> registered{false};
    Thread other("registers", [&] {
      EXPECT_TRUE(exports.register_range(p + kUnit, kUnit, 0, {.processes = true, .devices = true}).ok());
      registered = true;
    });
    std::this_thread::sleep_for(50ms);  // it is in the driver's call by now
    const auto found = exports.find_lasting(p, 4);
    EXPECT_TRUE(found.ok() && found->id != 0);
    EXPECT_TRUE(found.ok() && exports.handles_of(found->id, 0, 2).ok());
    EXPECT_FALSE(registered);
    flag = 1;
    other.join();
    EXPECT_EQ(shared.stalls(), 0);
    ASSERT_TRUE(shared.synchronize(*stream).ok());
  }
  EXPECT_EQ(shared.live().retained, 0);
  gpu::install(nullptr);
}

/// A segment grows by one registration after the other. A buffer stays in the export in which ranks know it;
/// one across the last border gets a new export of the whole segment, which ends with each of its parts.
TEST(Exports, StayTheSameForABufferAsASegmentGrows) {
  OURO_NEEDS_FAKES();
  gpu::FakeGpu shared;
  gpu::install(&shared);
  {
    const auto range = shared.reserve(0, 3 * kUnit);
    ASSERT_TRUE(range.ok());
    auto* const p = static_cast<std::byte*>(*range);
    rt::GpuExports exports([](std::uint64_t) {});
    const auto id = [&](std::size_t at, std::size_t bytes) {
      const auto found = exports.find_lasting(p + at, bytes);
      EXPECT_TRUE(found.ok());
      return found.ok() ? found->id : 0;
    };
    std::vector<std::uint64_t> numbers, ids, across;
    for (std::size_t k = 0; k < 3; ++k) {
      ASSERT_TRUE(shared.map(0, p + k * kUnit, kUnit).ok());
      const auto number = exports.register_range(p + k * kUnit, kUnit, 0, {.processes = true});
      ASSERT_TRUE(number.ok());
      numbers.push_back(*number);
      ids.push_back(id(k * kUnit, 4));
      if (k > 0) across.push_back(id(k * kUnit - 4, 8));
      for (std::size_t i = 0; i <= k; ++i) EXPECT_EQ(id(i * kUnit, 4), ids[i]) << i << " of " << k;
      for (std::size_t i = 1; i <= k; ++i) EXPECT_EQ(id(i * kUnit - 4, 8), across[i - 1]) << i << " of " << k;
    }
    EXPECT_NE(across[0], across[1]);
    EXPECT_EQ(id(0, 3 * kUnit), across[1]);
    EXPECT_EQ(id(4, 3 * kUnit), 0u);
    const auto whole = exports.handles_of(across[1], 0, 8);
    ASSERT_TRUE(whole.ok());
    EXPECT_EQ(whole->pieces.size(), 3u);
    EXPECT_TRUE(exports.deregister(numbers[2]).ok());
    EXPECT_TRUE(exports.ended(across[1]));
    EXPECT_EQ(id(kUnit - 4, 8), across[0]);
    EXPECT_TRUE(exports.deregister(numbers[0]).ok());
    EXPECT_TRUE(exports.ended(across[0]));
    EXPECT_EQ(id(kUnit - 4, 8), 0u);
    EXPECT_EQ(id(kUnit, 4), ids[1]);
    for (std::size_t k = 0; k < 3; ++k) ASSERT_TRUE(shared.unmap(p + k * kUnit).ok());
    ASSERT_TRUE(shared.unreserve(p).ok());
  }
  gpu::install(nullptr);
}

/// The time of a registration, and of a search in vain, does not grow with the square of their number.
TEST(Exports, ThousandsOfAdjacentRangesAreRegisteredInTime) {
  OURO_NEEDS_FAKES();
  Watchdog watchdog(60s);
  constexpr std::size_t kRanges = 4000, kBytes = 16;
  gpu::FakeGpu shared;
  gpu::install(&shared);
  {
    const auto range = shared.reserve(0, kUnit);
    ASSERT_TRUE(range.ok());
    auto* const p = static_cast<std::byte*>(*range);
    ASSERT_TRUE(shared.map(0, p, kUnit).ok());
    rt::GpuExports exports([](std::uint64_t) {});
    std::vector<std::uint64_t> numbers;
    for (std::size_t k = 0; k < kRanges; ++k) {
      const auto number = exports.register_range(p + k * kBytes, kBytes, 0, {.devices = true});
      ASSERT_TRUE(number.ok());
      numbers.push_back(*number);
      if (k > 0) {
        EXPECT_NE(exports.find_lasting(p + k * kBytes - 4, 8)->id, 0u);
      }
      EXPECT_EQ(exports.find_lasting(p + 4, (k + 1) * kBytes)->id, 0u);
    }
    for (const std::uint64_t number : numbers) EXPECT_TRUE(exports.deregister(number).ok());
    EXPECT_EQ(exports.find_lasting(p, 4)->id, 0u);
    ASSERT_TRUE(shared.unmap(p).ok() && shared.unreserve(p).ok());
  }
  gpu::install(nullptr);
}

/// A peer states the size of memory that it shares by legacy handle. If that is larger than the memory, the
/// import has the size of the memory.
TEST(Imports, AreNotLargerThanTheMemory) {
  OURO_NEEDS_PROCESSES();
  OURO_NEEDS_FAKES();
  Watchdog watchdog;
  gpu::FakeGpu owner;
  const auto data = owner.alloc(0, kUnit);
  ASSERT_TRUE(data.ok());
  const auto handle = owner.ipc_export(*data);
  ASSERT_TRUE(handle.ok());
  Processes ranks(1, [&](int, Board&) {
    gpu::install(new gpu::FakeGpu);
    for (const std::size_t says : {kUnit / 2, kUnit, 16 * kUnit}) {
      const auto fetch = [&](std::size_t) -> Result<rt::ExportHandles> {
        rt::ExportHandles handles;
        handles.bytes = says;
        handles.ipc_handle = *handle;
        return handles;
      };
      rt::GpuImports imports;
      const std::size_t there = std::min(says, kUnit);
      const auto whole = imports.map(0, {.id = 1}, there, fetch);
      ASSERT_TRUE(whole.ok()) << whole.status().message();
      EXPECT_EQ(whole->keep->bytes(), there);
      EXPECT_THAT(imports.map(0, {.id = 1}, there + 1, fetch).status(), Fails(Reason::ring_corrupt));
      EXPECT_THAT(imports.map(0, {.id = 1, .offset = there}, 4, fetch).status(), Fails(Reason::ring_corrupt));
    }
  });
  ranks.join();
  EXPECT_TRUE(owner.free(*data).ok());
}

}  // namespace
}  // namespace ouro::test
