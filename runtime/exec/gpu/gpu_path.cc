// The choice of a path. See gpu_path.h.
#include "runtime/exec/gpu/gpu_path.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "kernels/gpu/collect.h"
#include "kernels/gpu/resident_limit.h"
#include "runtime/device_memory/peer_trial.h"
#include "runtime/exec/gpu/gpu_words.h"
#include "runtime/exec/gpu/hierarchy_cut.h"
#include "runtime/exec/gpu/resident_path.h"

namespace ouro::rt {
namespace {

constexpr std::string_view kPathNames[kGpuPaths] = {"alone",  "leader",    "resident", "copies",
                                                    "stream", "hierarchy", "staged"};
constexpr const char* kReasons[kGpuPaths] = {"alone: a group of one rank",
                                             "leader: all ranks have one GPU, one kernel serves them all",
                                             "resident: kernels of all ranks run at the same time",
                                             "copies: much to be moved between GPUs, by their copy engines",
                                             "stream-ordered: each rank can map the others' GPUs",
                                             "hierarchy: on the GPUs of each host first, then between hosts",
                                             "staged through the host: GPUs that cannot map each other"};

/// Whether GPUs of one host carry out its part of an operation by kernels: one, or one each.
bool has_kernels(const GpuTopology& t) {
  Operation even;
  even.collective = Collective::all_reduce;
  const auto path = GpuPathChooser(t, "auto").choose(even, {});
  return path.ok() && (*path == GpuPath::leader || *path == GpuPath::resident);
}

const char* unreached(const GpuTopology& t) {
  return t.wrong ? "GPUs access each other's memory wrongly, as a trial has shown"
                 : "not all ranks' GPUs can map each other";
}

/// Ranks of each host, if the path `hierarchy` can serve them; else 0.
int mates_of(const Context& context, const std::vector<int>& world) {
  const JobMembers& members = context.members();
  std::map<int, std::vector<int>> by_host;
  for (const int w : world) by_host[members.peer(w).node].push_back(w);
  const std::size_t mates = by_host.begin()->second.size();
  if (by_host.size() < 2 || mates < 2) return 0;
  for (const auto& [host, ranks] : by_host) {
    if (ranks.size() != mates || !has_kernels(gpu_topology(context, ranks))) return 0;
    for (const int w : ranks)
      for (const int v : ranks)
        if (w < v && tangled(context, w, v)) return 0;
  }
  return static_cast<int>(mates);
}

/// Whether its sums need no more than the order of ranks within hosts and of hosts.
bool order_is_free(const Operation& op) { return !op.reduces() || op.numerics != Numerics::canonical; }

}  // namespace

bool tangled(const Context& context, int w, int v) {
  const GpuRecord& a = context.members().page(w).gpu;
  return a.connections > 0 && a.uuid == context.members().page(v).gpu.uuid &&
         context.members().are_threads(w, v);
}

flow::Algorithm copies_algorithm(Collective c) {
  return c == Collective::broadcast ? flow::Algorithm::chain : flow::Algorithm::ring;
}

std::string_view name(GpuPath p) { return kPathNames[static_cast<std::size_t>(p)]; }

/// Ranks of w's process that have its GPU.
static std::uint32_t ranks_on_gpu(const Context& context, int w) {
  const GpuRecord& mine = context.members().page(w).gpu;
  std::uint32_t ranks = 0;
  for (int v = 0; v < context.size(); ++v) {
    ranks += context.members().are_threads(v, w) && context.members().page(v).gpu.uuid == mine.uuid;
  }
  return ranks;
}

bool crowded(const Context& context, int w) {
  // Its stream, two of the user's, and its share of the group's for launches and of the process's
  // for failures.
  constexpr std::uint32_t kOfARank = 4;
  const GpuRecord& mine = context.members().page(w).gpu;
  return mine.present && mine.connections > 0 && mine.connections < kOfARank * ranks_on_gpu(context, w);
}

bool shares_gpu(const Context& context, int w) { return ranks_on_gpu(context, w) > 1; }

GpuTopology gpu_topology(const Context& context, const std::vector<int>& world) {
  GpuTopology t;
  t.ranks = static_cast<int>(world.size());
  t.words = true;
  bool one_process = true, processes_apart = true;
  std::uint32_t fewest = gpu::ResidentLayout::kMaxChannels;
  for (int r = 0; r < t.ranks; ++r) {
    const int w = world[static_cast<std::size_t>(r)];
    const GpuRecord& a = context.members().page(w).gpu;
    if (!a.present && t.without < 0) t.without = r;
    t.values &= a.stream_values != 0;
    t.words &= a.device_words != 0;
    t.multicast &= a.multicast != 0;
    t.waits &= !crowded(context, w);
    t.queues &= !crowded(context, w) || !shares_gpu(context, w);
    std::uint32_t share = 0;
    for (const int v : world) {
      const GpuRecord& b = context.members().page(v).gpu;
      const bool near = context.members().peer(w).node == context.members().peer(v).node;
      const bool same = near && a.uuid == b.uuid;
      t.one &= same;
      const bool together = context.members().are_threads(w, v);
      one_process &= together, processes_apart &= !together || w == v;
      t.apart &= !same || w == v;
      t.concurrent &= !same || together || (a.mps != 0 && b.mps != 0);
      t.reach &= same || reaches(context.members(), w, v);
      t.wrong |= context.members().page(w).gpu_wrong.get() != 0;
      share += same;
    }
    // One block a multiprocessor, whatever else they could hold, and half of them for others.
    fewest = std::min(fewest, a.multiprocessors / 2 / std::max(1u, share));
    if (a.blocks > 0) fewest = std::min(fewest, a.blocks);
  }
  // A thread that maps the words of other processes may wait for the driver, and the driver for streams of
  // the threads beside it, which have begun.
  t.words &= t.reach && (one_process || processes_apart);
  t.channels = static_cast<int>(fewest);
  t.mates = mates_of(context, world);
  return t;
}

bool GpuPathChooser::by_packets(const Operation& op, const Choice& choice) const {
  const std::size_t bytes = op.collective == Collective::all_reduce ? op.in.bytes() : SIZE_MAX;
  return packets_ && topology_.one && !choice.forced && resident_in_packets(op, bytes) &&
         !obstacle(GpuPath::resident, op, choice);
}

GpuPathChooser::GpuPathChooser(GpuTopology t, std::string_view forced, std::size_t copy_bytes, int rank,
                               bool packets)
    : topology_(t), copy_bytes_(copy_bytes), rank_(rank), packets_(packets) {
  for (int i = 0; i < kGpuPaths; ++i)
    if (const auto p = static_cast<GpuPath>(i); p != GpuPath::alone && name(p) == forced) forced_ = p;
  // A rank that is alone has no peer to exchange with: only the host could do its copy instead.
  if (t.ranks == 1 && forced_ != GpuPath::staged) forced_.reset();
}

const char* GpuPathChooser::obstacle(GpuPath path, const Operation& op, const Choice& choice) const {
  const GpuTopology& t = topology_;
  if (!t.queues && t.ranks > 1 && path != GpuPath::staged)
    return "ranks that are threads share too few hardware queues "
           "(CUDA_DEVICE_MAX_CONNECTIONS): 4 for each rank";
  const bool waits = path == GpuPath::leader || path == GpuPath::copies || path == GpuPath::stream ||
                     path == GpuPath::hierarchy;
  if (!t.waits && t.ranks > 1 && waits)
    return "its streams wait, which needs 4 hardware queues of each process (CUDA_DEVICE_MAX_CONNECTIONS)";
  switch (path) {
    case GpuPath::alone:
      return t.ranks == 1 ? nullptr : "the group has several ranks";
    case GpuPath::leader: {
      const bool pairs = op.uneven_pairs();
      if (!t.one) return "its ranks have different GPUs";
      if (t.ranks > gpu::FusedArgs::kMaxRanks) return "its kernel serves at most 32 ranks";
      static_assert(gpu::FusedArgs::kMaxRanks == 32 && gpu::FusedArgs::kMaxUnevenPairs == 8);
      if (pairs && t.ranks > gpu::FusedArgs::kMaxUnevenPairs)
        return "its kernel serves at most 8 ranks of an uneven all_to_all";
      return choice.forced ? "its kernel carries out no algorithm that has been named" : nullptr;
    }
    case GpuPath::resident:
      if (t.ranks == 1) return "the group has one rank";
      if (!t.reach) return unreached(t);
      if (!t.concurrent)
        return "ranks of one GPU are in different processes, whose kernels do not run at the same time "
               "without MPS";
      if (t.channels <= 0) return "a GPU has too few multiprocessors for a block of each rank";
      static_assert(gpu::ResidentLayout::kMaxRanks == 64);
      if (t.ranks > gpu::ResidentLayout::kMaxRanks) return "its kernels serve at most 64 ranks";
      if (op.uneven && choice.forced) return "by name its kernels carry out even blocks only";
      if (choice.forced && flow::switched(choice.algorithm))
        if (const char* const found = switch_obstacle(op)) return found;
      if (choice.forced && !gpu::has_resident(op.collective, choice.algorithm))
        return "it has no kernel for the algorithm that has been named";
      return resident_has_numbers(op, choice) ? nullptr : "it is too large to be numbered in one launch";
    case GpuPath::copies:
      if (t.ranks == 1) return "the group has one rank";
      if (op.collective != Collective::all_gather && op.collective != Collective::broadcast)
        return "copy engines carry out all_gather and broadcast alone";
      if (!t.reach) return unreached(t);
      if (t.ranks > GpuWords::kMaxRanks) return "it serves at most 256 ranks";
      return choice.forced && choice.algorithm != copies_algorithm(op.collective)
                 ? "it carries out the ring of all_gather and the chain of broadcast alone"
                 : nullptr;
    case GpuPath::stream:
      static_assert(GpuWords::kMaxRanks == 256);
      if (!t.reach) return unreached(t);
      if (t.ranks > GpuWords::kMaxRanks) return "it serves at most 256 ranks";
      // Rank order over links is the chain's alone.
      if (op.numerics == Numerics::canonical && op.collective == Collective::reduce_scatter)
        return "none of its flows reduces and scatters in rank order (canonical)";
      return choice.forced && choice.staging ? "it carries out flows over links only" : nullptr;
    case GpuPath::hierarchy:
      if (t.mates == 0)
        return "it serves several hosts, each with as many ranks as the others, two and more, whose GPUs "
               "reach each other and whose kernels run at the same time";
      if (!HierarchyCut::serves(op.collective))
        return "it carries out all_reduce, reduce_scatter, all_gather and broadcast alone";
      if (op.uneven) return "it takes even blocks only";
      if (t.ranks > 256) return "it serves at most 256 ranks";
      if (!order_is_free(op)) return "it adds up within hosts first, not in rank order (canonical)";
      if (op.reduces() && !HierarchyCut::wide_of(op.out.dtype, op.op.kind))
        return "no element type holds its partial results";
      if (!HierarchyCut(op, rank_, t.ranks, t.mates).small())
        return "over blocks of more than 85 ranks it takes as much memory of the device as the buffers";
      return choice.forced ? "it carries out no algorithm that has been named" : nullptr;
    case GpuPath::staged:
      return choice.forced && flow::switched(choice.algorithm) ? "the host has no switch between GPUs"
                                                               : nullptr;
  }
  return nullptr;
}

bool GpuPathChooser::resident_has_numbers(const Operation& op, const Choice& choice) const {
  constexpr std::uint64_t kAlways = std::uint64_t{1} << 32;  // whatever the flow and the layout
  // In an uneven all_to_all a rank does not know the lengths of others, and all have to choose the same path.
  // Device memory is too small for blocks that have more chunks over links than a launch can number.
  if (op.uneven_pairs()) return true;
  const std::uint64_t count = resident_count(op, rank_, topology_.ranks);
  if (count <= kAlways) return true;
  const auto layout = gpu::resident_layout(resident_sizes(topology_.ranks, topology_.channels));
  const DType dtype = op.dtype(rank_);
  const auto flow = choice.forced ? choice.algorithm : resident_algorithm(op, count * size_of(dtype));
  return layout.ok() &&
         gpu::resident_can_number(*layout, op.collective, flow, dtype, count, layout->channels);
}

const char* GpuPathChooser::switch_obstacle(const Operation& op) const {
  const GpuTopology& t = topology_;
  if (!t.apart) return "ranks share a GPU, which has one part in a multicast object";
  if (!t.multicast) return "a GPU, its driver or what ouro was compiled for has no multicast objects";
  if (!gpu::has_switched(op.collective, op.dtype(0), op.op.kind))
    return "a switch has no such reduction of this type";
  return nullptr;
}

Status GpuPathChooser::refuse(GpuPath path, const char* obstacle_found, const Operation& op,
                              const Choice& choice) const {
  std::vector<std::string_view> able;
  for (int i = 0; i < kGpuPaths; ++i)
    if (const auto p = static_cast<GpuPath>(i); !obstacle(p, op, choice)) able.push_back(name(p));
  return unsupported(
      fmt::format("{} on device memory: OURO_GPU_PATH={} cannot serve this call: {}; these can: {}",
                  ouro::name(op.collective), name(path), obstacle_found, fmt::join(able, ", ")));
}

Result<GpuPath> GpuPathChooser::choose(const Operation& op, const Choice& choice, std::string* why) const {
  const GpuTopology& t = topology_;
  if (t.without >= 0)
    return unsupported(
        fmt::format("rank {} has no GPU; operations on device memory need one on every rank", t.without));
  if (!t.values) return unsupported("this GPU's streams cannot wait for values in memory");
  if (forced_) {
    if (const char* found = obstacle(*forced_, op, choice)) return refuse(*forced_, found, op, choice);
    if (why)
      *why =
          fmt::format("{}: OURO_GPU_PATH", *forced_ == GpuPath::stream ? "stream-ordered" : name(*forced_));
    return *forced_;
  }
  const auto say = [&](GpuPath p) {
    if (!why) return p;
    *why = kReasons[static_cast<std::size_t>(p)];
    if (p == GpuPath::staged && !t.queues)
      *why = "staged through the host: ranks that are threads share too few hardware queues";
    else if (p == GpuPath::staged && t.wrong && !t.reach)
      *why = "staged through the host: GPUs access each other's memory wrongly, as a trial has shown";
    else if (p == GpuPath::staged && !t.waits)
      *why = "staged through the host: too few hardware queues for streams that wait";
    if (choice.forced && p == GpuPath::stream)
      *why = fmt::format("stream-ordered {}: asked for by name", flow::name(choice.algorithm));
    else if (choice.forced && p != GpuPath::alone)
      *why = fmt::format("{} {}: asked for by name", name(p), flow::name(choice.algorithm));
    return p;
  };
  if (t.ranks == 1) return say(GpuPath::alone);
  if (choice.forced && flow::switched(choice.algorithm)) {
    const char* const found = obstacle(GpuPath::resident, op, choice);
    if (!found) return say(GpuPath::resident);
    return unsupported(
        fmt::format("{} by {}: {}", ouro::name(op.collective), flow::name(choice.algorithm), found));
  }
  // What has been named is carried out where there are flows; the leader has none.
  if (choice.forced && !obstacle(GpuPath::stream, op, choice)) return say(GpuPath::stream);
  if (by_packets(op, choice)) return say(GpuPath::resident);
  if (!obstacle(GpuPath::leader, op, choice)) return say(GpuPath::leader);
  // op.out: all that each rank has in the end, in both collectives.
  if (t.apart && op.out.bytes() >= copy_bytes_ && !obstacle(GpuPath::copies, op, choice))
    return say(GpuPath::copies);
  if (t.apart && !obstacle(GpuPath::resident, op, choice)) return say(GpuPath::resident);
  if (!obstacle(GpuPath::stream, op, choice)) return say(GpuPath::stream);
  const bool apart = op.collective == Collective::reduce_scatter;  // each rank's output is a part
  if (op.out.bytes() * (apart ? static_cast<std::size_t>(t.ranks) : 1) >= kHierarchyFrom &&
      !obstacle(GpuPath::hierarchy, op, choice))
    return say(GpuPath::hierarchy);
  return say(GpuPath::staged);
}

}  // namespace ouro::rt
