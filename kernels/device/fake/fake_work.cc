// FakeGpu: streams and what is enqueued on them. See fake_gpu.h.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/device/fake/fake_state.h"

namespace ouro::gpu {

using namespace fake;

Result<Stream> FakeGpu::create_stream(int device, int priority) {
  State& s = state();
  OURO_TRY(s.admit(FakeOp::create, device));
  if (priority < kHighPriority || priority > kLowPriority)
    return invalid(
        fmt::format("priority {}; from {} (high) to {} (low)", priority, kHighPriority, kLowPriority));
  std::lock_guard lock(s.mutex);
  std::erase_if(s.retired, [](const auto& q) { return q->idle(); });
  void* handle = s.new_handle();
  s.streams[handle] =
      std::make_shared<Queue>(s.control, device, fmt::format("fake{} stream {}", device, s.next - 1));
  return Stream{device, handle};
}

Status FakeGpu::destroy_stream(Stream stream) {
  State& s = state();
  OURO_TRY(s.allowed_here());
  if (stream.handle == nullptr) return invalid("the legacy stream cannot be destroyed");
  std::lock_guard lock(s.mutex);
  auto q = s.find(stream);
  if (!q.ok()) return q.status();
  if ((*q)->capture != nullptr)
    return State::break_capture(*(*q)->capture, "a stream that is being captured cannot be destroyed");
  (*q)->close();  // what is enqueued still runs
  s.retired.push_back(*std::move(q));
  s.streams.erase(stream.handle);
  return s.control->lost(stream.device);
}

Status FakeGpu::copy(void* to, const void* from, std::size_t bytes, Stream stream) {
  State& s = state();
  OURO_TRY(s.admit(FakeOp::copy, stream.device));
  if (bytes == 0) return {};
  OURO_TRY(s.memory.range(to, bytes).status());
  OURO_TRY(s.memory.range(from, bytes).status());
  return s.enqueue(stream, FakeOp::copy, copy_work(s.memory, to, from, bytes));
}

Status FakeGpu::set(void* to, std::uint8_t byte, std::size_t bytes, Stream stream) {
  State& s = state();
  OURO_TRY(s.admit(FakeOp::set, stream.device));
  if (bytes == 0) return {};
  auto target = s.memory.range(to, bytes);
  if (!target.ok()) return target.status();
  if (*target == nullptr) return invalid(fmt::format("{} is not memory of a device, nor pinned", to));
  return s.enqueue(stream, FakeOp::set, set_work(s.memory, to, byte, bytes));
}

Status FakeGpu::enqueue(std::span<const MemOp> ops, Stream stream) {
  State& s = state();
  OURO_TRY(s.admit(FakeOp::mem_op, stream.device));
  if (!options_.stream_values) return unsupported("this device has no stream memory operations");
  for (const MemOp& op : ops) {
    if (reinterpret_cast<std::uintptr_t>(op.address) % sizeof op.value != 0)
      return invalid(fmt::format("{} is not aligned to {} bytes", op.address, sizeof op.value));
    auto block = s.memory.range(op.address, sizeof op.value);
    if (!block.ok()) return block.status();
    if (*block == nullptr || !(*block)->device_address)
      return invalid(fmt::format("{} is not an address that devices know: see register_host", op.address));
    OURO_TRY(s.check_access(stream.device, **block));
  }
  if (ops.empty()) return {};
  return s.enqueue(stream, FakeOp::mem_op, mem_op_work(s.memory, ops));
}

Status FakeGpu::launch(const Kernel& kernel, Shape shape, const void* args, Stream stream) {
  State& s = state();
  OURO_TRY(s.admit(FakeOp::kernel, stream.device));
  if (kernel.host == nullptr) return unsupported(fmt::format("kernel {} has no host body", kernel.name));
  if (shape.blocks < 1 || shape.threads < 1 || shape.threads > kMaxThreads)
    return invalid(fmt::format("{} blocks of {} threads for {}", shape.blocks, shape.threads, kernel.name));
  if (kernel.arg_bytes != 0 && args == nullptr)
    return invalid(fmt::format("no arguments for {}", kernel.name));
  const int capacity = s.resident(shape.threads);
  if (kernel.spins && shape.blocks > capacity)
    return Status(Reason::resource, fmt::format("{} spins with {} blocks of {} threads; {} fit at once",
                                                kernel.name, shape.blocks, shape.threads, capacity));
  return s.enqueue(stream, FakeOp::kernel, kernel_work(kernel, shape.blocks, args, capacity));
}

Status FakeGpu::call_host(Stream stream, void (*f)(void*), void* data) {
  State& s = state();
  OURO_TRY(s.admit(FakeOp::call_host, stream.device));
  if (f == nullptr) return invalid("no function to call");
  return s.enqueue(stream, FakeOp::call_host, host_work(f, data));
}

}  // namespace ouro::gpu
