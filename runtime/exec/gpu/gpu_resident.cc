// The resident path: each rank launches a kernel that carries a flow out by itself, over memory and flags
// that all ranks map. It spins, so all ranks' blocks must be able to run at the same time. See
// gpu_executor.h.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/gpu/resident.h"
#include "runtime/exec/gpu/gpu_executor.h"

namespace ouro::rt {
namespace {

using flow::Algorithm;
using gpu::gpu;
using gpu::ResidentArgs;

constexpr std::uint64_t kArena = 0x7265736964656e74;  // tells arenas from the other device memory of a group

gpu::ResidentSizes sizes(int n) {
  gpu::ResidentSizes s{.ranks = n};
  if (n > 8)
    s.slot_bytes =
        std::max<std::uint64_t>(2048, (s.slot_bytes * 8 / static_cast<std::uint64_t>(n)) / 128 * 128);
  return s;
}

/// Start values, for GPUs that reach each other by load and store; none has been measured. Of flows over
/// staging buffers each rank reads what the others posted, once, and adds in rank order; the ring moves as
/// little and waits more often.
Algorithm resident_algorithm(const Operation& op, std::size_t bytes) {
  constexpr std::size_t kOneShot = 64 << 10, kRing = 2 << 20;
  const bool ordered = op.numerics == Numerics::canonical && op.reduces();
  const bool large = bytes > kRing && !ordered;
  switch (op.collective) {
    case Collective::all_reduce:
      return bytes <= kOneShot ? Algorithm::oneshot : large ? Algorithm::ring : Algorithm::direct;
    case Collective::reduce_scatter:
    case Collective::all_gather:
      return large ? Algorithm::ring : Algorithm::direct;
    case Collective::broadcast:
      return large ? Algorithm::chain : Algorithm::direct;
    default:
      return Algorithm::direct;
  }
}

}  // namespace

/// What a launch refers to in memory of the host.
struct GpuExecutor::Resident {
  gpu::ResidentLayout layout;
  std::vector<std::byte*> arena;
  std::vector<std::shared_ptr<transport::GpuBlock>>
      keep;                             // peers write their last words after the owner has left
  gpu::ResidentError* error = nullptr;  // pinned
  std::uint32_t* abort = nullptr;       // pinned, a line further
  ~Resident() {
    if (error) (void)gpu().free_pinned(error).ok();
  }
};

std::function<bool()> GpuExecutor::doubts() const {
  return [staging = staging_, resident = resident_] {
    return (staging && staging->poisoned()) ||
           (resident && std::atomic_ref(resident->error->fault).load(std::memory_order_acquire) !=
                            gpu::ResidentFault::none);
  };
}

void GpuExecutor::drop_resident() {
  if (!resident_) return;
  resident_.reset();
  context_.drop_gpu_block(key_ ^ (kArena + static_cast<std::uint64_t>(rank_)));
}

void GpuExecutor::abort_resident() {
  if (resident_) std::atomic_ref(*resident_->abort).store(1, std::memory_order_release);
}

std::optional<Failure> GpuExecutor::resident_fault() {
  std::lock_guard lock(mutex_);
  if (!resident_) return std::nullopt;
  const auto fault = std::atomic_ref(resident_->error->fault).load(std::memory_order_acquire);
  if (fault == gpu::ResidentFault::none) return std::nullopt;  // the rest may be being written
  const int peer = resident_->error->peer;
  const auto at = fmt::format("step {} of channel {}", resident_->error->step, resident_->error->channel);
  switch (fault) {
    case gpu::ResidentFault::none:
    case gpu::ResidentFault::aborted:  // the group knows why
      return std::nullopt;
    case gpu::ResidentFault::deadline:
      return Failure{.reason = Reason::deadline,
                     .text = fmt::format("rank {} did not come in time to {}", peer, at),
                     .rank = peer,
                     .detector = "resident kernel"};
    case gpu::ResidentFault::mismatch:
      return Failure{.reason = Reason::mismatch,
                     .text = fmt::format("rank {} is in another operation, at {}", peer, at),
                     .rank = peer,
                     .detector = "resident kernel"};
  }
  return Failure{.reason = Reason::ring_corrupt, .text = "an unknown fault", .detector = "resident kernel"};
}

Status GpuExecutor::open_resident() {
  if (resident_) return {};
  auto r = std::make_shared<Resident>();
  auto layout = gpu::resident_layout(sizes(n_));
  if (!layout.ok()) return layout.status();
  r->layout = *layout;
  constexpr std::size_t kLine = 128;
  auto pinned = gpu().alloc_pinned(2 * kLine);
  if (!pinned.ok()) return pinned.status();
  std::memset(*pinned, 0, 2 * kLine);
  r->error = static_cast<gpu::ResidentError*>(*pinned);
  r->abort = reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(*pinned) + kLine);
  // Loading a kernel may wait for those that run, and these run until their peers have come.
  for (const gpu::Kernel* k : gpu::resident_kernels()) {
    auto loaded = gpu().info(*k, device_);
    if (!loaded.ok()) return loaded.status();
  }
  for (int q = 0; q < n_; ++q) {
    const GpuRecord& record = context_.gpu_record(host_.world_rank(q));
    if (record.uuid != context_.gpu_record(host_.world_rank(rank_)).uuid &&
        context_.peer(host_.world_rank(q)).pid == context_.peer(host_.world_rank(rank_)).pid)
      OURO_TRY(gpu().enable_peer(device_, record.device));
    auto arena = context_.gpu_block(host_.world_rank(q), key_ ^ (kArena + static_cast<std::uint64_t>(q)),
                                    r->layout.bytes());
    if (!arena.ok()) return arena.status();
    r->arena.push_back(arena->data);
    r->keep.push_back(arena->keep);
  }
  std::lock_guard lock(mutex_);
  resident_ = std::move(r);
  return {};
}

Status GpuExecutor::run_resident(const Plan& plan, std::uint64_t seq, GpuStream& stream, bool capturing) {
  OURO_TRY(open_resident());
  bool last = false;
  OURO_TRY(post(plan, seq, capturing, {}, {}, &last));
  if (last) publish(staging_->led(), ops_);
  const Operation& op = plan.op;
  ResidentArgs a;
  a.collective = op.collective;
  a.dtype = op.collective == Collective::barrier ? DType::u8 : op.dtype(rank_);
  a.op = op.reduces() ? op.op.kind : OpKind::sum;
  a.rank = rank_, a.root = op.root;
  a.count = unit_count(op, rank_, n_);
  const std::size_t bytes = a.count * size_of(a.dtype);
  a.algorithm = plan.choice.forced ? plan.choice.algorithm : resident_algorithm(op, bytes);
  a.channels = std::min(topology_.channels, gpu::resident_channels(resident_->layout, bytes));
  a.packets = op.collective == Collective::all_reduce && a.algorithm == Algorithm::oneshot &&
              bytes <= gpu::resident_packet_limit(resident_->layout, a.channels);
  a.tag = static_cast<std::uint16_t>(plan.folded ^ plan.folded >> 16 ^ plan.folded >> 32 ^ plan.folded >> 48);
  a.one_device = topology_.one && !abroad_;
  a.in = static_cast<const std::byte*>(op.in.data);
  a.out = static_cast<std::byte*>(op.out.data);
  a.premul = op.op.scalar;
  // The host, which can say who is late, comes first; then the abort word ends the kernel.
  constexpr std::chrono::seconds kGrace{1};
  a.deadline_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(deadline_ + kGrace).count());
  a.abort = resident_->abort;
  a.error = resident_->error;
  a.layout = resident_->layout;
  std::copy(resident_->arena.begin(), resident_->arena.end(), a.arena);
  auto l = gpu::resident(a);
  if (!l.ok()) return l.status();
  return gpu().launch(*l->kernel, l->shape, &a, stream.get());
}

}  // namespace ouro::rt
