// Checks and enqueues work on a FakeGpu. See fake_submitter.h.
#include "kernels/device/fake/fake_submitter.h"

#include <fmt/format.h>

#include <algorithm>

namespace ouro::gpu::fake {
namespace {

constexpr int kThreadsOfMultiprocessor = 2048, kBlocksOfMultiprocessor = 32;

int resident(const FakeOptions& o, int threads) {
  return o.multiprocessors * std::clamp(kThreadsOfMultiprocessor / threads, 1, kBlocksOfMultiprocessor);
}

}  // namespace

Status Submitter::copy(void* to, const void* from, std::size_t bytes, Stream stream) {
  OURO_TRY(control_.admit(FakeOp::copy, stream.device));
  if (bytes == 0) return {};
  OURO_TRY(memory_.range(to, bytes).status());
  OURO_TRY(memory_.range(from, bytes).status());
  return streams_.enqueue(stream, FakeOp::copy, copy_work(options_, memory_, to, from, bytes));
}

Status Submitter::set(void* to, std::uint8_t byte, std::size_t bytes, Stream stream) {
  OURO_TRY(control_.admit(FakeOp::set, stream.device));
  if (bytes == 0) return {};
  auto target = memory_.range(to, bytes);
  if (!target.ok()) return target.status();
  if (*target == nullptr) return invalid(fmt::format("{} is not memory of a device, nor pinned", to));
  return streams_.enqueue(stream, FakeOp::set, set_work(memory_, to, byte, bytes));
}

Status Submitter::enqueue(std::span<const MemOp> ops, Stream stream) {
  OURO_TRY(control_.admit(FakeOp::mem_op, stream.device));
  if (!options_.stream_values) return unsupported("this device has no stream memory operations");
  for (const MemOp& op : ops) {
    if (reinterpret_cast<std::uintptr_t>(op.address) % sizeof op.value != 0)
      return invalid(fmt::format("{} is not aligned to {} bytes", op.address, sizeof op.value));
    auto block = memory_.range(op.address, sizeof op.value);
    if (!block.ok()) return block.status();
    if (*block == nullptr || !(*block)->device_address)
      return invalid(fmt::format("{} is not an address that devices know: see register_host", op.address));
    if ((*block)->device >= 0 && !options_.device_words)
      return unsupported("this device has no stream memory operations on device memory");
    OURO_TRY(peers_.check_access(stream.device, **block));
    if (options_.on_word)
      options_.on_word(op, stream.device, (*block)->device,
                       (*block)->origin == Origin::import_fd || (*block)->origin == Origin::import_ipc);
  }
  if (ops.empty()) return {};
  return streams_.enqueue(stream, FakeOp::mem_op, mem_op_work(memory_, ops));
}

Status Submitter::launch(const Kernel& kernel, Shape shape, const void* args, Stream stream) {
  OURO_TRY(control_.admit(FakeOp::kernel, stream.device));
  OURO_TRY(has_body(kernel));
  if (shape.blocks < 1 || shape.threads < 1 || shape.threads > kMaxThreads)
    return invalid(fmt::format("{} blocks of {} threads for {}", shape.blocks, shape.threads, kernel.name));
  if (kernel.arg_bytes != 0 && args == nullptr)
    return invalid(fmt::format("no arguments for {}", kernel.name));
  OURO_TRY(load(kernel, stream.device));
  OURO_TRY(need_stack(stream.device, local_bytes(kernel), kernel.name));
  const int capacity = resident(options_, shape.threads);
  if (kernel.spins && shape.blocks > capacity)
    return Status(Reason::resource, fmt::format("{} spins with {} blocks of {} threads; {} fit at once",
                                                kernel.name, shape.blocks, shape.threads, capacity));
  return streams_.enqueue(stream, FakeOp::kernel, kernel_work(kernel, shape.blocks, args, capacity));
}

Status Submitter::call_host(Stream stream, void (*f)(void*), void* data) {
  OURO_TRY(control_.admit(FakeOp::call_host, stream.device));
  if (f == nullptr) return invalid("no function to call");
  return streams_.enqueue(stream, FakeOp::call_host, host_work(f, data));
}

Status Submitter::free(void* p, Stream stream) {
  OURO_TRY(control_.admit(FakeOp::free, stream.device));
  auto block = memory_.at(Origin::legacy, p);
  if (!block.ok()) return block.status();
  std::lock_guard lock(streams_.lock());
  auto q = streams_.find(stream);
  if (!q.ok()) return q.status();
  if ((*q)->capture != nullptr) return unsupported("memory cannot be freed in a capture here");
  return streams_.push(
      **q, {FakeOp::free, [&memory = memory_, b = *block](const Run&) { (void)memory.release(*b); }});
}

Status Submitter::has_body(const Kernel& kernel) const {
  if (!options_.has_code) return unsupported(fmt::format("kernel {} was not compiled for it", kernel.name));
  if (kernel.host == nullptr) return unsupported(fmt::format("kernel {} has no host body", kernel.name));
  return {};
}

Status Submitter::load(const Kernel& kernel, int device) {
  if (!options_.harsh.lazy_loading) return {};
  {
    std::lock_guard lock(mutex_);
    if (loaded_.contains({kernel.name, device})) return {};
  }
  OURO_TRY(streams_.quiesce(device, kernel.name));
  std::lock_guard lock(mutex_);
  loaded_.insert({kernel.name, device});
  return {};
}

Status Submitter::need_stack(int device, std::size_t bytes, const char* why) {
  std::size_t& stack = stack_[static_cast<std::size_t>(device)];
  {
    std::lock_guard lock(mutex_);
    if (bytes <= stack) return {};
  }
  if (options_.harsh.stack_waits) OURO_TRY(streams_.quiesce(device, why));
  std::lock_guard lock(mutex_);
  stack = std::max(stack, bytes);
  return {};
}

Result<int> Submitter::resident_blocks(const Kernel& kernel, int threads, int device) {
  OURO_TRY(has_body(kernel));
  if (threads < 1 || threads > kMaxThreads) return invalid(fmt::format("{} threads in a block", threads));
  OURO_TRY(load(kernel, device));
  return resident(options_, threads);
}

}  // namespace ouro::gpu::fake
