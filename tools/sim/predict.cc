// Turns flows into scripts, chooses the representatives, and extrapolates the steady state of many rounds.
#include "tools/sim/predict.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "kernels/flow/geometry.h"
#include "kernels/flow/list.h"
#include "runtime/core/collectives.h"
#include "runtime/plan/cost.h"
#include "tools/sim/script.h"

namespace ouro::sim {
namespace {

using namespace flow;

constexpr double kMostSteps = 1e7;  // steps in one script, of 20 bytes each

template <class Flow>
constexpr Symmetry::Kind symmetry_of(Collective c) {
  if (std::is_same_v<Flow, HalvingAllReduce>) return Symmetry::Kind::flip;
  if (std::is_same_v<Flow, RingAllReduce> || std::is_same_v<Flow, RingReduceScatter> ||
      std::is_same_v<Flow, RingAllGather> || std::is_same_v<Flow, DisseminationBarrier>) {
    return Symmetry::Kind::shift;
  }
  return Flow::kStaging && !traits_of(c).rooted() ? Symmetry::Kind::shift : Symmetry::Kind::none;
}

/// Every rank of one node represents the corresponding ranks of the other nodes; on a single node, one rank
/// represents all.
template <class Flow>
Result<Script> representatives(const Cluster& cluster, const Job& job) {
  const int n = job.ranks, k = cluster.node_size(n);
  Script s;
  s.symmetry = {symmetry_of<Flow>(job.collective), n, k == n ? 1 : k, 0};
  if (s.symmetry.kind == Symmetry::Kind::none) return invalid("no rank of this flow stands for others");
  const int period = s.symmetry.period;
  if (n % period != 0 || !cluster.even()) return invalid("representatives need nodes that are all full");
  for (int r = 0; r < period; ++r) s.members.push_back(r);
  if (s.symmetry.kind == Symmetry::Kind::shift) {
    s.weight.assign(s.members.size(), n / period);
    return s;
  }
  if ((period & (period - 1)) != 0)
    return invalid("representatives of halving need a power of two of ranks a node");
  const int p = HalvingAllReduce{}.chunks(Place{0, n});
  s.symmetry.fold = p;
  s.weight.assign(s.members.size(), p / period);
  const int extras = std::min(period, n - p);
  for (int r = 0; r < extras; ++r) {
    s.members.push_back(p + r);
    s.weight.push_back(double(n - p) / extras);
  }
  return s;
}

Script everyone(int ranks) {
  Script s;
  s.symmetry.ranks = ranks;
  for (int r = 0; r < ranks; ++r) s.members.push_back(r);
  s.weight.assign(s.members.size(), 1);
  return s;
}

/// Number of chunks that a pipelined flow has in flight before all ranks are in steady state.
template <class Flow>
int fill_of([[maybe_unused]] const Flow& flow, int ranks) {
  if constexpr (std::is_same_v<typename Flow::Data, HostLayout>)
    return kLagPerHop * static_cast<int>(flow.hosts.first.size());
  if (std::is_same_v<Flow, ChainAllReduce> || std::is_same_v<Flow, ChainReduce>) return kLagPerHop * ranks;
  return Flow::kPipelined ? kLagPerHop * std::bit_width(static_cast<unsigned>(ranks)) : 0;
}

/// The number of steps of one round on rank r, without recording them.
template <class Flow>
double count_steps(const Flow& flow, Place at) {
  double steps = 0;
  flow(at, [&](const Step&) { ++steps; });
  return steps;
}

template <class Flow>
void record(const Cluster& cluster, const Job& job, const Flow& flow, int rounds, Script& s) {
  s.ranks = job.ranks;
  s.by_reference = Flow::kByReference;
  s.pipelined = Flow::kPipelined;
  const Cut cut{.pipelined = Flow::kPipelined, .per_round = flow.chunks(Place{0, job.ranks, job.root, 1})};
  s.wide_ratio = job.wide_ratio;
  s.program_rounds = Flow::kPipelined ? 1 : rounds;
  s.programs.assign(s.members.size(), {});
  for (std::size_t i = 0; i < s.members.size(); ++i) {
    const int me = s.members[i];
    flow(Place{me, job.ranks, job.root, rounds}, [&](const Step& step) {
      Op op{step.verb, -1, -1, -1, step.span};
      const bool staging = (step.verb & kPosted) != 0;
      if (Flow::kPipelined) op.round = cut.round_of(staging ? step.at : step.chunk, 0);
      if (step.from >= 0) op.in = s.pair_index(cluster, step.from, me, staging);
      if (step.to >= 0) op.out = s.pair_index(cluster, me, step.to, false);
      if (staging && step.from >= 0) op.from = s.symmetry.class_of(step.from);
      s.programs[i].push_back(op);
    });
  }
}

template <class Flow>
Result<Prediction> predict_flow(const Cluster& cluster, const Job& job, Method method, int run_rounds,
                                const Flow& flow) {
  const int n = job.ranks;
  Script likes;
  const bool prefer_few = method == Method::representative || (method == Method::automatic && n > kFullRanks);
  if (prefer_few) {
    Result<Script> few = representatives<Flow>(cluster, job);
    if (few) {
      likes = *few;
    } else if (method == Method::representative) {
      return few.status();
    }
  }
  if (likes.members.empty()) likes = everyone(n);
  likes.node_of = cluster.node_of(n);
  likes.nodes = likes.node_of.back() + 1;
  if (Flow::kStaging && cluster.node_port && likes.nodes > 1)
    return invalid("staging buffers do not reach from node to node");

  const double set = flow.chunks(Place{0, n, job.root, 1});  // chunks of one round
  const auto whole = [](double bytes) { return static_cast<std::uint64_t>(std::ceil(bytes)); };
  Prediction out;
  out.rounds = 1;
  if (!Flow::kByReference)
    out.rounds = static_cast<double>(
        rounds_of(whole(job.bytes), std::max<std::uint64_t>(1, whole(set * cluster.slot_bytes))));
  out.simulated_ranks = static_cast<int>(likes.members.size());
  const int fill = fill_of(flow, n), most = fill + run_rounds, fewer = fill + run_rounds / 4;
  out.extrapolated = out.rounds > most;

  double steps = 0;
  const int recorded = Flow::kPipelined ? static_cast<int>(std::min<double>(out.rounds, most)) : 1;
  for (const int r : likes.members) {
    steps += count_steps(flow, Place{r, n, job.root, recorded});
    if (steps > kMostSteps) {
      return invalid(
          "too many steps to simulate every rank, and no rank stands for others (on nodes that are not "
          "full, or in this flow)");
    }
  }
  const auto outcome = [&](int rounds) {
    Script s = likes;
    s.chunk_bytes = job.bytes / (set * out.rounds);
    record(cluster, job, flow, rounds, s);
    return run(cluster, s);
  };
  const int rounds = static_cast<int>(std::min<double>(out.rounds, most));
  Outcome ran = outcome(rounds);
  if (out.extrapolated && ran.finished) {
    const Outcome less = outcome(fewer);
    const double more = (out.rounds - most) / (most - fewer);
    ran.seconds += more * (ran.seconds - less.seconds);
    ran.busiest += more * (ran.busiest - less.busiest);
    ran.busiest_node += more * (ran.busiest_node - less.busiest_node);
    ran.intra += more * (ran.intra - less.intra);
    ran.inter += more * (ran.inter - less.inter);
  }
  if (!ran.finished) return invalid("the flow deadlocks with this number of slots");
  out.seconds = ran.seconds;
  out.busiest = ran.busiest;
  out.busiest_node = ran.busiest_node;
  out.intra = ran.intra;
  out.inter = ran.inter;
  return out;
}

/// The library's own prediction, if the cluster is a host with a record.
std::optional<double> by_record(const Cluster& cluster, const Job& job) {
  if (!cluster.record || job.bytes <= 0) return std::nullopt;
  const double unit = traits_of(job.collective).blocks() ? job.bytes / job.ranks : job.bytes;
  const auto ns =
      rt::predicted_ns(*cluster.record, {.collective = job.collective,
                                         .algorithm = job.algorithm,
                                         .ranks = job.ranks,
                                         .bytes = static_cast<std::size_t>(unit),
                                         .staging_slot = static_cast<std::size_t>(cluster.slot_bytes),
                                         .afterwards = true});
  return ns ? std::optional(*ns * 1e-9) : std::nullopt;
}

}  // namespace

Result<Prediction> predict(const Cluster& cluster, const Job& job, Method method, int run_rounds) {
  if (job.ranks < 1 || job.ranks > kMaxRanks)
    return invalid("ranks must be 1 to " + std::to_string(kMaxRanks));
  if (const std::size_t of = cluster.node_of(job.ranks).size(); of != static_cast<std::size_t>(job.ranks))
    return invalid("the cluster has " + std::to_string(of) + " ranks");
  if (job.root < 0 || job.root >= job.ranks) return invalid("root must be one of the ranks");
  if (!(job.bytes >= 0 && job.bytes <= 1e15)) return invalid("bytes must be 0 to 1e15");
  if (!(job.wide_ratio >= 1 && job.wide_ratio <= 16)) return invalid("the wide ratio must be 1 to 16");
  if (run_rounds < 4 || run_rounds > 1'000'000) return invalid("rounds to run must be 4 to 1000000");
  Result<Prediction> out = invalid("there is no such algorithm for this collective");
  const HostMap map(cluster.node_of(job.ranks));
  visit(job.collective, job.algorithm,
        [&]<class Flow>(const Flow& flow) {
          if constexpr (std::is_same_v<typename Flow::Data, NeighbourRow>)
            out = invalid("flows among neighbours cannot be predicted: a job has no rows");
          else
            out = predict_flow(cluster, job, method, run_rounds, flow);
        },
        {.hosts = map.view()});
  if (const auto seconds = by_record(cluster, job); out && seconds)
    out->seconds = *seconds, out->by_record = true;
  return out;
}

}  // namespace ouro::sim
