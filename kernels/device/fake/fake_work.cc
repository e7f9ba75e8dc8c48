// Copies, stream values, kernels, functions of the host. See fake_work.h.
#include "kernels/device/fake/fake_work.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "runtime/core/wait.h"

namespace ouro::gpu::fake {
namespace {

using namespace std::chrono_literals;

constexpr int kSpins = 64, kYields = 64;
constexpr auto kShortestSleep = 20us, kLongestSleep = 100us;

bool holds(MemOp::Kind kind, std::uint32_t now, std::uint32_t value) {
  return kind == MemOp::Kind::wait_equal ? now == value : reached(now, value);
}

/// Polls briefly, then yields the core to the ranks that it waits for, because many ranks share few cores.
void wait_for_word(const MemOp& op, const Run& run) {
  const std::atomic_ref word(*static_cast<std::uint32_t*>(op.address));
  auto sleep = kShortestSleep;
  for (int i = 0; !holds(op.kind, word.load(std::memory_order_acquire), op.value); ++i) {
    if (run.ended()) return;
    if (i < kSpins) {
      relax();
    } else if (i < kSpins + kYields) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(sleep);
      sleep = std::min(sleep * 2, kLongestSleep);
    }
  }
}

/// The memory of an access, held until the access has ended; the device is lost if the memory is not mapped.
bool hold(const Memory& memory, const void* p, std::size_t bytes, const char* what, const Run& run,
          std::shared_ptr<const Block>& held) {
  auto block = memory.range(p, bytes);
  if (block.ok()) {
    held = *std::move(block);
    return true;
  }
  run.control.lose(run.device,
                   fmt::format("illegal address in {}: {}", what, block.status().failure()->text));
  return false;
}

}  // namespace

Work copy_work(const FakeOptions& options, const Memory& memory, void* to, const void* from,
               std::size_t bytes) {
  return [&options, &memory, to, from, bytes](const Run& run) {
    std::shared_ptr<const Block> source, target;
    if (!hold(memory, to, bytes, "copy", run, target) || !hold(memory, from, bytes, "copy", run, source))
      return;
    if (options.copying) options.copying(to, from, bytes);
    std::memmove(to, from, bytes);
  };
}

Work set_work(const Memory& memory, void* to, std::uint8_t byte, std::size_t bytes) {
  return [&memory, to, byte, bytes](const Run& run) {
    std::shared_ptr<const Block> target;
    if (hold(memory, to, bytes, "set", run, target)) std::memset(to, byte, bytes);
  };
}

Work mem_op_work(const Memory& memory, std::span<const MemOp> ops) {
  return [&memory, ops = std::vector(ops.begin(), ops.end())](const Run& run) {
    for (const MemOp& op : ops) {
      std::shared_ptr<const Block> target;
      if (run.ended() || !hold(memory, op.address, sizeof op.value, "a stream value", run, target)) return;
      if (op.kind == MemOp::Kind::write)
        std::atomic_ref(*static_cast<std::uint32_t*>(op.address)).store(op.value, std::memory_order_release);
      else
        wait_for_word(op, run);
    }
  };
}

Work kernel_work(const Kernel& kernel, int blocks, const void* args, int capacity) {
  // Allocated by new: aligned for any argument.
  std::vector<std::byte> copied(kernel.arg_bytes);
  if (!copied.empty()) std::memcpy(copied.data(), args, copied.size());
  return [kernel, blocks, capacity, copied = std::move(copied)](const Run& run) {
    if (!kernel.spins) {
      for (int b = 0; b < blocks && !run.ended(); ++b) kernel.host(copied.data(), b, blocks);
      return;
    }
    if (!run.control.enter_spin(run.device, blocks, capacity)) return;
    const bool all = together(blocks, [&](int b) { kernel.host(copied.data(), b, blocks); });
    run.control.leave_spin(run.device, blocks);
    if (!all)
      run.control.lose(run.device, fmt::format("no threads for {} blocks of {}", blocks, kernel.name));
  };
}

Work host_work(void (*f)(void*), void* data) {
  return [f, data](const Run&) {
    in_host_work() = true;
    f(data);
    in_host_work() = false;
  };
}
Work fault_work() {
  return [](const Run& run) { run.control.lose(run.device, "injected fault"); };
}

}  // namespace ouro::gpu::fake
