// Arenas, launches and faults of resident kernels. See resident_path.h.
#include "runtime/exec/gpu/resident_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/flow/specialisations.h"
#include "runtime/stream/gpu_stream.h"

namespace ouro::rt {
namespace {

using flow::Algorithm;

constexpr std::uint64_t kArenaOf =
    0x7265736964656e74;  // distinguishes arenas from other device memory of a group
constexpr std::uint64_t kSwitchOf = 0x6d756c74696d656d;  // and its multicast object
constexpr std::uint64_t kListingOf =
    0x6770752d6c697374;  // distinguishes the listing from other segments of a group

/// Of a region or block: one hop through slots or packets, where by pointer there are two. A start value,
/// not measured.
constexpr std::size_t kSmall = 64 << 10;

}  // namespace

/// 32 blocks of 512 threads with 64 bytes under way each are 1 MiB on its way: at 450 GB/s of NVLink, what is
/// read in 2.3 us. Packets have room for 64 KiB in all, and for one a thread at least.
gpu::ResidentSizes resident_sizes(int n, int channels, bool packets) {
  gpu::ResidentSizes s{.ranks = n, .channels = std::min(channels, 32)};
  s.packet_bytes =
      std::max<std::uint64_t>(4 << 10, std::bit_ceil((64u << 10) / static_cast<unsigned>(s.channels)));
  constexpr std::uint64_t kLeast = 2048;
  const auto ranks = static_cast<std::uint64_t>(n);
  if (packets)
    s.slot_bytes = kLeast, s.staging_bytes = ranks * gpu::ResidentLayout::kLine;
  else if (n > 8)
    s.slot_bytes = std::max(kLeast, s.slot_bytes * 8 / ranks / 128 * 128);
  return s;
}

std::uint64_t resident_count(const Operation& op, int rank, int size) {
  if (!op.uneven) return unit_count(op, rank, size);
  std::uint64_t longest = 0;
  for (const auto& counts : {op.in_counts, op.out_counts})
    for (const std::size_t c : counts) longest = std::max<std::uint64_t>(longest, c);
  return longest;
}

Algorithm resident_algorithm(const Operation& op, std::size_t bytes) {
  if (op.uneven) return gpu::uneven_over_slots(op.collective);
  return op.collective == Collective::all_reduce && bytes <= kSmall ? Algorithm::oneshot : Algorithm::direct;
}

bool resident_in_packets(const Operation& op, std::size_t bytes) {
  return !op.uneven && resident_algorithm(op, bytes) == Algorithm::oneshot;
}

bool resident_by_pointer(const Operation& op, std::size_t bytes) {
  if (op.uneven_pairs()) return true;  // no rank knows the size
  switch (op.collective) {
    case Collective::all_reduce:
    case Collective::reduce_scatter:
    case Collective::all_gather:
    case Collective::broadcast:
    case Collective::all_to_all:
      return bytes > kSmall;
    default:
      return false;
  }
}

gpu::ResidentFault ResidentArena::fault() const {
  return std::atomic_ref(error->fault).load(std::memory_order_acquire);
}

ResidentPath::~ResidentPath() {
  multicast_.reset();
  team_.context.device_memory().multicasts().drop_object(team_.key ^
                                                         kSwitchOf);  // others may have had this rank join
  if (team_.rank == 0 && listing_.is_open()) team_.context.host_memory().drop_segment(team_.key ^ kListingOf);
  if (!arena_) return;
  arena_.reset();
  team_.context.device_memory().drop_group_block(team_.key ^
                                                 (kArenaOf + static_cast<std::uint64_t>(team_.rank)));
}

void ResidentPath::abort() {
  std::lock_guard lock(mutex_);
  if (arena_) std::atomic_ref(*arena_->abort).store(1, std::memory_order_release);
}

std::optional<Failure> ResidentPath::fault() {
  constexpr const char* kDetector = "resident kernel";
  std::lock_guard lock(mutex_);
  if (!arena_) return std::nullopt;
  const auto fault = arena_->fault();
  if (fault == gpu::ResidentFault::none) return std::nullopt;  // the rest may be being written
  const int at_peer = arena_->error->peer;
  const int peer = at_peer >= 0 && at_peer < team_.size ? team_.named(at_peer) : -1;
  const auto at = fmt::format("step {} of channel {}", arena_->error->step, arena_->error->channel);
  switch (fault) {
    case gpu::ResidentFault::none:
    case gpu::ResidentFault::aborted:  // the group knows why
      return std::nullopt;
    case gpu::ResidentFault::deadline:
      return Failure{.reason = Reason::deadline,
                     .text = fmt::format("rank {} did not come in time to {}", peer, at),
                     .rank = peer,
                     .detector = kDetector};
    case gpu::ResidentFault::mismatch:
      return Failure{.reason = Reason::mismatch,
                     .text = fmt::format("rank {} is in another operation, at {}", peer, at),
                     .rank = peer,
                     .detector = kDetector};
    case gpu::ResidentFault::counts:
      return Failure{
          .reason = Reason::mismatch,
          .text = fmt::format("it sends {} elements to rank {}, which expects {}", arena_->error->sent,
                              team_.named(team_.rank), arena_->error->expected),
          .rank = peer,
          .detector = kDetector};
    case gpu::ResidentFault::reference:
      return Failure{.reason = Reason::ring_corrupt,
                     .text = fmt::format("rank {} named memory beyond what is mapped of it, at {}", peer, at),
                     .rank = peer,
                     .detector = kDetector};
  }
  return Failure{.reason = Reason::ring_corrupt, .text = "an unknown fault", .detector = kDetector};
}

Status ResidentPath::open() {
  if (arena_) return {};
  auto a = std::make_shared<ResidentArena>();
  const bool packets = topology_.one && team_.context.spec().gpu_path != name(GpuPath::resident);
  auto layout = gpu::resident_layout(resident_sizes(team_.size, topology_.channels, packets));
  if (!layout.ok()) return layout.status();
  a->layout = *layout;
  for (const gpu::Kernel* k : gpu::resident_kernels()) {
    const auto fit = gpu::gpu().resident_blocks(*k, gpu::kResidentThreads, team_.device);
    if (!fit.ok() && fit.status().reason() != Reason::unsupported)
      return fit.status();  // no code: at its launch
    if (fit.ok() && *fit < a->layout.channels)
      return {Reason::resource, fmt::format("kernel {} spins, and of its {} blocks only {} fit on the device",
                                            k->name, a->layout.channels, *fit)};
  }
  constexpr std::size_t kLineBytes = 128;
  OURO_ASSIGN(a->pinned, take_pinned(2 * kLineBytes));
  std::memset(a->pinned.get(), 0, 2 * kLineBytes);
  a->error = static_cast<gpu::ResidentError*>(a->pinned.get());
  a->abort = reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(a->pinned.get()) + kLineBytes);
  for (int q = 0; q < team_.size; ++q) {
    OURO_TRY(team_.reach(q));
    auto block = team_.context.device_memory().group_block(
        team_.world_rank(q), team_.key ^ (kArenaOf + static_cast<std::uint64_t>(q)), a->layout.bytes());
    if (!block.ok()) return block.status();
    a->arena.push_back(block->data);
    team_.retire(block->keep);  // peers write their last words after the owner has left
  }
  std::lock_guard lock(mutex_);
  arena_ = std::move(a);
  return {};
}

Status ResidentPath::make_ready() {
  OURO_TRY(open());
  OURO_TRY(open_listing());
  return arrivals_.open();
}

Status ResidentPath::open_listing() {
  if (listing_.is_open()) return {};
  OURO_ASSIGN(auto segment,
              team_.context.host_memory().segment(
                  team_.key ^ kListingOf, ExportListing::segment_bytes(team_.size), team_.world_rank(0)));
  listing_.open(std::move(segment));
  return {};
}

Status ResidentPath::open_switch() {
  if (multicast_) return {};
  std::vector<int> world;
  for (int r = 0; r < team_.size; ++r) world.push_back(team_.world_rank(r));
  OURO_ASSIGN(multicast_, team_.context.device_memory().multicasts().bound_object(
                              world, team_.key ^ kSwitchOf, gpu::switched_bytes(arena_->layout)));
  return {};
}

Status ResidentPath::name_buffers(const Operation& op, std::uint64_t seq, bool capturing,
                                  gpu::ResidentArgs* a) {
  OURO_TRY(open_listing());
  if (capturing)
    listing_.keep_all();  // a replay enters nothing: it may run late, or never
  else
    a->learned = listing_.map_listed(a->learn, seq);
  // Names of buffers that no other rank accesses are not needed.
  const flow::Buffers others = flow::zero_copy_buffers(op.collective);
  const bool in = others.inputs && (!others.root_input_only || team_.rank == op.root);
  const std::size_t read = op.read_bytes(team_.rank), written = op.written_bytes(team_.rank);
  OURO_ASSIGN(a->in_ref, listing_.name_buffer(op.in.data, in ? read : 0, seq, capturing));
  OURO_ASSIGN(a->out_ref, listing_.name_buffer(op.out.data, others.outputs ? written : 0, seq, capturing));
  // A rank without data may pass no buffers.
  const bool overwrites =
      op.collective == Collective::all_to_all && op.in.data == op.out.data && read > 0 && written > 0;
  if (overwrites || a->out_ref == gpu::ResidentRef::kNone) a->in_ref = gpu::ResidentRef::kNone;
  named_ += a->in_ref != gpu::ResidentRef::kNone;
  return {};
}

void ResidentPath::lay_out_blocks(const Operation& op, gpu::ResidentArgs* a) {
  a->uneven = true;
  // If one side has no lengths, the other side has those of both.
  std::ranges::copy(op.in_counts.empty() ? op.out_counts : op.in_counts, a->in_counts);
  std::ranges::copy(op.out_counts.empty() ? op.in_counts : op.out_counts, a->out_counts);
  // All ranks must launch the same number of blocks, and in an all_to_all a rank knows only its own lengths.
  if (op.collective == Collective::all_to_all) a->channels = a->layout.channels;
}

Status ResidentPath::run(const Plan& plan, std::uint64_t seq, GpuStream& stream, bool capturing,
                         bool announced, OperationEnd* end) {
  OURO_TRY(open());
  const Operation& op = plan.op;
  gpu::ResidentArgs a;
  a.count = resident_count(op, team_.rank, team_.size);
  a.dtype = op.collective == Collective::barrier ? DType::u8 : op.dtype(team_.rank);
  const std::size_t bytes = a.count * size_of(a.dtype);
  a.by_pointer = !plan.choice.forced && resident_by_pointer(op, bytes);
  if (a.by_pointer) OURO_TRY(name_buffers(op, seq, capturing, &a));
  const bool switched = plan.choice.forced && flow::switched(plan.choice.algorithm);
  if (switched) OURO_TRY(open_switch());
  a.collective = op.collective;
  a.op = op.reduces() ? op.op.kind : OpKind::sum;
  a.rank = team_.rank, a.root = op.root;
  a.algorithm = plan.choice.forced ? plan.choice.algorithm : resident_algorithm(op, bytes);
  const bool fits = bytes <= gpu::resident_packet_limit(arena_->layout, arena_->layout.channels);
  a.packets = flow::specialised(flow::Specialisation::packets, op.collective, a.algorithm,
                                fits ? std::uint32_t{flow::kFits} : 0u);
  a.channels = gpu::resident_channels(arena_->layout, bytes, a.packets);
  a.tag = static_cast<std::uint16_t>(plan.folded ^ plan.folded >> 16 ^ plan.folded >> 32 ^ plan.folded >> 48);
  a.one_device = topology_.one && !team_.abroad;
  a.in = static_cast<const std::byte*>(op.in.data);
  a.out = static_cast<std::byte*>(op.out.data);
  a.premul = op.op.scalar;
  // The host acts first, as it can say who is late; then the abort word ends the kernel.
  constexpr std::chrono::seconds kGrace{1};
  a.deadline_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(team_.deadline + kGrace).count());
  a.abort = arena_->abort;
  a.error = arena_->error;
  a.ended = end->word;
  a.layout = arena_->layout;
  if (op.uneven) lay_out_blocks(op, &a);
  if (switched) a.multicast = multicast_->address(), a.switched = multicast_->own();
  std::copy(arena_->arena.begin(), arena_->arena.end(), a.arena);
  const auto l = gpu::resident(a);
  if (!l.ok()) return l.status();
  if (capturing && !announced) {
    OURO_TRY(arrivals_.announce_captured(plan, seq, stream.identity()));
  } else if (!announced) {
    bool last = false;
    OURO_TRY(arrivals_.announce(plan, seq, stream.identity(), false, {}, {}, &last));
    if (last) arrivals_.release_records();
  }
  OURO_TRY(gpu::gpu().launch(*l->kernel, l->shape, &a, stream.get()));
  end->enqueued();
  if (a.by_pointer && !capturing) listing_.publish_mapped(seq);
  return {};
}

}  // namespace ouro::rt
