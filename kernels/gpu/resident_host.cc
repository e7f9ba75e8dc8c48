// Host side of the resident kernels: which kernel serves an operation, and the same bodies run by
// host threads, one thread per block. Used by the resident executor, and by the emulated device
// through Kernel::host.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "kernels/flow/specialisations.h"
#include "kernels/gpu/resident_limit.h"
#include "kernels/gpu/resident_list.h"
#include "runtime/core/link_view.h"

namespace ouro::gpu {
namespace {

static_assert(ResidentLayout::kStagingSlots == StagingView::kSlots, "the depth with which flows are proved");

#define OURO_X(name, ...)                                                                  \
  void name(const void* args, int block, int blocks) {                                     \
    ResidentShared shared;                                                                 \
    run_and_end<ResidentEntries::name<HostBlock>>(*static_cast<const ResidentArgs*>(args), \
                                                  HostBlock{block, blocks}, shared);       \
  }
OURO_RESIDENT_KERNELS(OURO_X)
#undef OURO_X

#define OURO_X(name, ...) +1
constexpr std::size_t kKernels = 0 OURO_RESIDENT_KERNELS(OURO_X);
#undef OURO_X

const std::array<Kernel, kKernels>& kernels() {
  static const std::array<Kernel, kKernels> all = {{
#define OURO_X(name, ...) \
  {"resident_" #name, resident_entry(ResidentKernel::name), &gpu::name, sizeof(ResidentArgs), true},
      OURO_RESIDENT_KERNELS(OURO_X)
#undef OURO_X
  }};
  return all;
}

/// The kernel that serves the operations of this kind that have none of their own.
ResidentKernel any_kernel(const ResidentArgs& a) {
  if (!traits_of(a.collective).reduces_all()) return ResidentKernel::any_moves;
  return is_float(a.dtype) ? ResidentKernel::any_float : ResidentKernel::any_integer;
}

ResidentKernel kernel_for(const ResidentArgs& a) {
#define OURO_X(name, type) \
  if (a.packets && a.op == OpKind::sum && a.dtype == DType::type) return ResidentKernel::name;
  OURO_RESIDENT_PACKETS(OURO_X)
#undef OURO_X
  if (a.packets) return ResidentKernel::any_packets;
  if (a.uneven) {
#define OURO_X(name, c, ByPointer, Flow, type)                                        \
  if (a.collective == Collective::c && a.op == OpKind::sum && a.dtype == DType::type) \
    return ResidentKernel::name;
    OURO_RESIDENT_UNEVEN_SUMS(OURO_X)
#undef OURO_X
#define OURO_X(name, c, ByPointer, Flow) \
  if (a.collective == Collective::c) return ResidentKernel::name;
    OURO_RESIDENT_UNEVEN_MOVES(OURO_X)
#undef OURO_X
    return any_kernel(a);
  }
  if (a.algorithm == flow::Algorithm::nvls) {
    if (!traits_of(a.collective).reduces_all()) return ResidentKernel::switch_moves;
    if (a.op != OpKind::sum) return ResidentKernel::switch_any;
    return a.dtype == DType::f32    ? ResidentKernel::switch_f32
           : a.dtype == DType::f16  ? ResidentKernel::switch_f16
           : a.dtype == DType::bf16 ? ResidentKernel::switch_bf16
                                    : ResidentKernel::switch_any;
  }
  const bool over_slots = a.algorithm == flow::Algorithm::direct;
#define OURO_X(name, c, ByPointer, Flow, type)                                              \
  if (a.by_pointer && over_slots && a.collective == Collective::c && a.op == OpKind::sum && \
      a.dtype == DType::type)                                                               \
    return ResidentKernel::name;
  OURO_RESIDENT_POINTER_SUMS(OURO_X)
#undef OURO_X
#define OURO_X(name, c, ByPointer, Flow) \
  if (a.by_pointer && over_slots && a.collective == Collective::c) return ResidentKernel::name;
  OURO_RESIDENT_POINTER_MOVES(OURO_X)
#undef OURO_X
  if (a.by_pointer) return any_kernel(a);
#define OURO_X(name, c, al, Flow, type)                                                             \
  if (a.collective == Collective::c && a.algorithm == flow::Algorithm::al && a.op == OpKind::sum && \
      a.dtype == DType::type)                                                                       \
    return ResidentKernel::name;
  OURO_RESIDENT_SUMS(OURO_X)
#undef OURO_X
#define OURO_X(name, c, al, Flow) \
  if (a.collective == Collective::c && a.algorithm == flow::Algorithm::al) return ResidentKernel::name;
  OURO_RESIDENT_MOVES(OURO_X)
#undef OURO_X
  return any_kernel(a);
}

Status check_flow(const ResidentArgs& a) {
  bool resident = false;
  const bool found = flow::visit(a.collective, a.algorithm,
                                 [&]<class Flow>(Flow) { resident = kResident<Flow> || Flow::kSwitched; });
  if (!found || !resident)
    return unsupported(
        fmt::format("the resident executor has no {} by {}", name(a.collective), flow::name(a.algorithm)));
  if (traits_of(a.collective).reduces_all() && !applies(a.op, a.dtype))
    return invalid(fmt::format("{} is not defined on {}", name(a.op), name(a.dtype)));
  return {};
}

Status check_switched(const ResidentArgs& a) {
  if (!has_switched(a.collective, a.dtype, a.op))
    return unsupported(fmt::format("a switch has no {} of {} (nvls)", name(a.op), name(a.dtype)));
  const bool bound = a.multicast != nullptr && a.switched != nullptr;
  if (a.by_pointer || a.packets ||
      !flow::specialised(flow::Specialisation::multimem, a.collective, a.algorithm,
                         bound ? std::uint32_t{flow::kMulticastBound} : 0u))
    return invalid("nvls: by memory that all ranks have bound to a multicast object, and nothing else");
  if (a.layout.ranks == 1) return invalid("nvls: for several ranks");
  return {};
}

Status check_packets(const ResidentArgs& a) {
  if (!flow::specialised(flow::Specialisation::packets, a.collective, a.algorithm, flow::kFits))
    return invalid("packets are for all_reduce by oneshot");
  const std::uint64_t bytes = a.count * size_of(a.dtype), limit = resident_packet_limit(a.layout, a.channels);
  if (bytes > limit) return invalid(fmt::format("{} bytes by packets where {} have room", bytes, limit));
  return {};
}

Status check_pointers(const ResidentArgs& a) {
  if (a.packets || a.layout.ranks == 1 || a.algorithm == flow::Algorithm::zerocopy ||
      !flow::visit(a.collective, flow::Algorithm::zerocopy, [](auto) {}))
    return invalid("by pointer: for several ranks, over slots otherwise, by collectives with such a flow");
  if (a.learned < 0 || a.learned > ResidentArgs::kLearn)
    return invalid(fmt::format("{} new mappings in a launch", a.learned));
  for (int i = 0; i < a.learned; ++i)
    if (a.learn[i].peer < 0 || a.learn[i].peer >= a.layout.ranks ||
        a.learn[i].number >= static_cast<std::uint32_t>(ResidentRef::kListed))
      return invalid(
          fmt::format("a mapping of allocation {} of rank {}", a.learn[i].number, a.learn[i].peer));
  return {};
}

/// Checks the lengths of uneven blocks.
Status check_uneven(const ResidentArgs& a) {
  const bool pairs = a.collective == Collective::all_to_all;
  if (!has_resident_uneven(a.collective) || a.algorithm != uneven_over_slots(a.collective) ||
      a.layout.ranks == 1)
    return invalid("resident: uneven are all_gather, reduce_scatter and all_to_all, of several ranks");
  if (pairs && !a.by_pointer) return invalid("resident: an uneven all_to_all offers buffers by pointer");
  constexpr std::uint64_t kMost = std::uint64_t{1} << 56;  // bytes of a block; no sum over 64 ranks overflows
  const std::uint64_t element = size_of(a.dtype);
  std::uint64_t longest = 0, in = 0, out = 0;
  for (int p = 0; p < a.layout.ranks; ++p) {
    if (a.in_counts[p] > kMost / element || a.out_counts[p] > kMost / element)
      return invalid(
          fmt::format("resident: block {} has {} and {} elements", p, a.in_counts[p], a.out_counts[p]));
    if ((!pairs || p == a.rank) && a.in_counts[p] != a.out_counts[p])
      return invalid(fmt::format("resident: block {} has {} elements in the input, {} in the output", p,
                                 a.in_counts[p], a.out_counts[p]));
    longest = std::max({longest, a.in_counts[p], a.out_counts[p]});
    in += a.in_counts[p], out += a.out_counts[p];
  }
  if (longest != a.count)
    return invalid(fmt::format("resident: the longest block is {}, not {}", longest, a.count));
  if (pairs && a.in == a.out && in > 0 && out > 0)
    return invalid(
        "an uneven all_to_all cannot run in place: a block would be overwritten before it is read");
  return {};
}

/// Other ranks read or write these buffers by reference, so all ranks must know all of them.
Status check_references(const ResidentArgs& a) {
  if (a.collective == Collective::all_to_all && a.in == a.out)
    return invalid(
        "all_to_all by reference cannot run in place: a block would be overwritten before it is read");
  const flow::Buffers needs = flow::zero_copy_buffers(a.collective);
  for (int r = 0; r < a.layout.ranks; ++r) {
    if (needs.inputs && (!needs.root_input_only || r == a.root) && a.in_of[r] == nullptr)
      return invalid(fmt::format("{} by reference needs the input of rank {}", name(a.collective), r));
    if (needs.outputs && a.out_of[r] == nullptr)
      return invalid(fmt::format("{} by reference needs the output of rank {}", name(a.collective), r));
  }
  return {};
}

}  // namespace

Result<ResidentLayout> resident_layout(const ResidentSizes& s) {
  using L = ResidentLayout;
  const auto wrong = [](const char* what, auto value, const char* rule) {
    return Result<L>(invalid(fmt::format("resident layout: {} is {}, must be {}", what, value, rule)));
  };
  if (s.ranks < 1 || s.ranks > L::kMaxRanks) return wrong("ranks", s.ranks, "1 to 64");
  if (s.channels < 1 || s.channels > L::kMaxChannels) return wrong("channels", s.channels, "1 to 64");
  if (s.slots < 2 || s.slots > L::kMaxSlots || !std::has_single_bit(static_cast<unsigned>(s.slots)))
    return wrong("slots", s.slots, "2, 4, 8 or 16");
  if (s.slot_bytes % L::kLine != 0 || s.slot_bytes < 2048)
    return wrong("slot_bytes", s.slot_bytes, "a multiple of 128, at least 2048");
  const auto n = static_cast<std::uint64_t>(s.ranks);
  if (s.staging_bytes % L::kLine != 0 || s.staging_bytes < n * L::kLine)
    return wrong("staging_bytes", s.staging_bytes, "a multiple of 128, at least 128 a rank");
  if (s.packet_bytes % L::kLine != 0 || s.packet_bytes == 0)
    return wrong("packet_bytes", s.packet_bytes, "a multiple of 128, not 0");
  L l;
  l.ranks = s.ranks, l.channels = s.channels, l.slots = s.slots;
  l.slot_bytes = s.slot_bytes, l.staging_bytes = s.staging_bytes, l.packet_bytes = s.packet_bytes;
  std::uint64_t at = 0;
  const auto take = [&](std::uint64_t bytes) {
    const std::uint64_t here = at;
    at += (bytes + L::kLine - 1) / L::kLine * L::kLine;
    return here;
  };
  take(sizeof(ResidentState));
  l.full_at = take(n * L::kLine);
  l.freed_at = take(n * L::kLine);
  l.arrivals_at = take(n * sizeof(ResidentArrival));
  l.names_at = take(n * L::kLine);
  l.done_at = take(n * L::kLine);
  l.slots_at = take(n * static_cast<std::uint64_t>(s.slots) * s.slot_bytes);
  l.pages_at = take(L::kStagingSlots * s.staging_bytes);
  l.packets_at = take(2 * n * l.packet_set_bytes());
  // Accumulators of the halving flow, one slot each; or unpacked packets.
  l.scratch_at = take(std::max(std::bit_floor(n) * s.slot_bytes, n * s.packet_bytes));
  l.channel_bytes = at;
  return l;
}

int resident_channels(const ResidentLayout& layout, std::uint64_t bytes, bool packets) {
  const std::uint64_t each = packets ? 8 * kResidentThreads : 16 << 10;
  const std::uint64_t wanted = (bytes + each - 1) / each, most = static_cast<std::uint64_t>(layout.channels);
  return static_cast<int>(std::clamp<std::uint64_t>(wanted, 1, most));
}

bool has_switched(Collective c, DType type, OpKind op) {
  return flow::visit(c, flow::Algorithm::nvls, [](auto) {}) &&
         (!traits_of(c).reduces_all() || has_multimem(type, op));
}

bool compiled_for_switches(int device) {
  const auto info = gpu().info(kernels()[static_cast<std::size_t>(ResidentKernel::switch_moves)], device);
  return info.ok() && info->architecture >= 90;
}

bool has_resident(Collective c, flow::Algorithm algorithm) {
  bool has = false;
  flow::visit(c, algorithm,
              [&]<class Flow>(Flow) { has = (kResident<Flow> || Flow::kSwitched) && !Flow::kByReference; });
  return has;
}

bool has_resident_uneven(Collective c) {
  return c == Collective::all_to_all || c == Collective::all_gather || c == Collective::reduce_scatter;
}
flow::Algorithm uneven_over_slots(Collective c) {
  return c == Collective::all_to_all ? flow::Algorithm::pairwise : flow::Algorithm::direct;
}

std::uint64_t resident_packet_limit(const ResidentLayout& layout, int channels) {
  return layout.packet_bytes * static_cast<std::uint64_t>(channels);
}

bool resident_can_number(const ResidentLayout& layout, Collective c, flow::Algorithm algorithm, DType dtype,
                         std::uint64_t count, int channels) {
  bool can = true;
  flow::visit(c, algorithm, [&]<class Flow>(Flow) {
    if constexpr (kResident<Flow> || Flow::kSwitched) {
      ResidentArgs a;  // of rank 0; channel 0 has the largest share
      a.layout = layout, a.count = count, a.channels = channels;
      ResidentCut cut;
      constexpr std::uint64_t kWidest = 8;  // bytes of an accumulator
      cut.cut(shape_of<Flow>(), Flow{}.chunks({a.rank, layout.ranks, a.root, 1}), a, c, 0, size_of(dtype),
              kWidest);
      const auto chunks = static_cast<std::uint64_t>(cut.per_round);
      const std::uint64_t rounds =
          flow::rounds_of(cut.total, cut.blocks ? cut.capacity : chunks * cut.capacity);
      can = rounds <= static_cast<std::uint64_t>(std::numeric_limits<int>::max()) / chunks;
    }
  });
  return can;
}

Result<Launch> resident(const ResidentArgs& a) {
  const int n = a.layout.ranks;
  if (n < 1 || n > ResidentLayout::kMaxRanks || a.layout.channel_bytes == 0)
    return invalid("resident: the layout was not made by resident_layout");
  if (a.rank < 0 || a.rank >= n || a.root < 0 || a.root >= n)
    return invalid(fmt::format("resident: rank {} and root {} of {} ranks", a.rank, a.root, n));
  if (a.channels < 1 || a.channels > a.layout.channels)
    return invalid(
        fmt::format("resident: {} channels where the arenas have {}", a.channels, a.layout.channels));
  if (a.deadline_ns == 0 || a.abort == nullptr || a.error == nullptr)
    return invalid("resident: a launch needs a deadline, an abort word and an error record");
  for (int r = 0; r < n; ++r)
    if (a.arena[r] == nullptr) return invalid(fmt::format("resident: the arena of rank {} is missing", r));
  if (!resident_can_number(a.layout, a.collective, a.algorithm, a.dtype, a.count, a.channels))
    return unsupported(fmt::format("resident: {} elements are more than one launch can number", a.count));
  OURO_TRY(check_flow(a));
  if (a.packets) OURO_TRY(check_packets(a));
  if (a.algorithm == flow::Algorithm::nvls) OURO_TRY(check_switched(a));
  if (a.by_pointer) OURO_TRY(check_pointers(a));
  if (a.uneven) OURO_TRY(check_uneven(a));
  if (a.algorithm == flow::Algorithm::zerocopy && n > 1) OURO_TRY(check_references(a));
  const Kernel& kernel = kernels()[static_cast<std::size_t>(kernel_for(a))];
  return Launch{&kernel, Shape{a.channels, kResidentThreads}};
}

std::span<const Kernel* const> resident_kernels() {
  static const std::array<const Kernel*, kKernels> pointers = [] {
    std::array<const Kernel*, kKernels> p{};
    for (std::size_t i = 0; i < kKernels; ++i) p[i] = &kernels()[i];
    return p;
  }();
  return pointers;
}

}  // namespace ouro::gpu
