// Turns calls into plans. See planner.h.
#include "runtime/group/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <utility>

#include "runtime/calibration/choose.h"
#include "runtime/context/machine.h"
#include "runtime/core/env.h"
#include "runtime/core/float_mode.h"
#include "runtime/core/log.h"
#include "runtime/core/no_memory.h"
#include "runtime/exec/host/execution_plan.h"
#include "runtime/exec/host/pull_executor.h"
#include "runtime/plan/cost.h"

namespace ouro::rt {
namespace {

std::atomic<std::uint64_t> g_tables{0};

/// When outputs are written past the caches. If the rules do not give a measured value, the limits follow
/// from the caches that the ranks of this host reach, and are scaled by the number of ranks, as ranks of
/// other hosts use other caches.
StreamLimits stream_limits(const Context& context, const Calibration& record,
                           const std::vector<int>& world_ranks) {
  constexpr std::size_t kUnknownCache = 32 << 20;
  if (const std::size_t measured = context.spec().rules.stream_bytes; measured > 0)
    return StreamLimits::uniform(measured);
  const JobMembers& all = context.members();
  const auto here = static_cast<std::size_t>(std::count_if(
      world_ranks.begin(), world_ranks.end(), [&](int r) { return all.peer(r).node == all.self().node; }));
  const std::size_t cache = machine().l3_bytes, processors = processors_of_host();
  const std::size_t bytes = cached_bytes(record, context.cores().caches_of(world_ranks, record), processors)
                                .value_or(cache > 0 ? share_of_cache(cache, processors) : kUnknownCache);
  return StreamLimits::of_caches(here > 0 ? bytes * world_ranks.size() / here : bytes);
}

}  // namespace

Result<std::string> Planner::job_algorithm() {
  auto algorithm = env::text("OURO_ALGO");
  if (!algorithm.ok()) return algorithm.status();
  std::string wanted = algorithm->value_or("");
  if (!wanted.empty() && !flow::parse_algorithm(wanted)) {
    std::string names;
    for (int i = 0; i < flow::kAlgorithms; ++i)
      names += fmt::format("{}{}", i ? ", " : "", flow::name(static_cast<flow::Algorithm>(i)));
    return invalid(fmt::format("OURO_ALGO={}: there is no such algorithm; expected {}", wanted, names));
  }
  return wanted;
}

std::unique_ptr<Selector> Planner::make_selector(const Context& context, const Calibration& record,
                                                 const std::vector<int>& world_ranks, int hosts,
                                                 std::string job_algorithm) {
  Rules rules = context.spec().rules;
  const int size = static_cast<int>(world_ranks.size());
  const bool enough = context.cores().enough_for(world_ranks);
  const Cores cores = enough ? Cores::enough : Cores::fewer;
  if (hosts == 1) {  // the record is that of this host, the same on all of its ranks
    const auto put = [&](const std::vector<Rule>& rows) {
      const auto before = rules.rows.begin() + static_cast<std::ptrdiff_t>(rules.chosen_rows);
      rules.rows.insert(before, rows.begin(), rows.end());
    };
    const std::size_t slot = slot_bytes(context, size).staging;
    record == context.calibration() ? put(context.cost_rows().of(record, size, slot, cores))
                                    : put(rows_by_cost(record, size, slot, cores));
  }
  const PostRules posts = {
      .ring = hosts == 1 && enough && uses_ring(record, size) && slot_bytes(context, size).ring > 0,
      .built_in = ring_pays(record)};
  return std::make_unique<Selector>(rules, size, hosts, enough, stream_limits(context, record, world_ranks),
                                    posts, std::move(job_algorithm));
}

Planner::Planner(std::unique_ptr<Selector> selector, const Members& members, const HostResources& host,
                 Numerics numerics, std::string group)
    : members_(members), host_(host), numerics_(numerics), group_(std::move(group)) {
  select_by(std::move(selector));
}

/// Stores the selector before its serial; work_out() loads the serial first. A plan made with a newer
/// selector than its serial says therefore counts as outdated, and none is made with an older one.
void Planner::select_by(std::unique_ptr<const Selector> selector) {
  selectors_.push_back(std::move(selector));
  selector_.store(selectors_.back().get(), std::memory_order_release);
  serial_.store(g_tables.fetch_add(1, std::memory_order_relaxed) + 1, std::memory_order_release);
}

void Planner::reckon_with(const Context& context, const Calibration& record) {
  select_by(
      make_selector(context, record, members_.world_ranks(), members_.hosts(), selector().job_algorithm()));
}

Status Planner::make(const Operation& op, Plan* plan) const {
  try {
    return work_out(op, plan);
  } catch (const std::exception&) {
    return no_memory();
  }
}

Status Planner::work_out(const Operation& op, Plan* plan) const {
  const int rank = members_.rank(), size = members_.size();
  const std::uint64_t serial = serial_.load(std::memory_order_acquire);  // loaded before the selector
  plan->table = static_cast<std::uint32_t>(serial);
  if (op.segments.empty()) OURO_TRY(check(op, rank, size));
  plan->op = op;
  plan->op.numerics = numerics_of(op);
  const bool canonical = plan->op.numerics == Numerics::canonical;
  std::string why;
  const StandardFloats floats;  // all ranks compute the same costs
  const bool explains = log::enabled(log::Level::info, log::Subsystem::TUNING);
  OURO_TRY(selector().select(op, rank, canonical, &plan->choice, explains ? &why : nullptr));
  plan->signature = signature(op, rank, size, canonical,
                              op.names_algorithm() ? static_cast<int>(plan->choice.algorithm) + 1 : 0);
  // For device memory the host's choice counts only if the call names the algorithm.
  if (!on_device(op)) plan->signature = plan->signature.by(plan->choice.code());
  plan->folded = plan->signature.folded();
  plan->idle = moves_nothing(op, rank, size);
  if (!plan->idle && !on_device(op))
    plan->host = make_execution_plan(*plan, members_, host_.wiring.slot_bytes(), host_.single_rounds);
  keep_plan(serial, op, plan);
  if (!why.empty()) OURO_INFO(TUNING, "{} in group {}: {}", name(op.collective), group_, why);
  return {};
}

Status Planner::choose(const Operation& op, Choice* choice, std::string* why) const {
  const StandardFloats floats;
  return selector().select(op, members_.rank(), numerics_of(op) == Numerics::canonical, choice, why);
}

template <class F>
void Planner::each_prediction(const Calibration& c, const Operation& op, const Choice& choice,
                              F&& prediction) const {
  const auto add = [&](flow::Algorithm a) {
    const auto ns = rt::predicted_ns(
        c, {.collective = op.collective,
            .algorithm = a,
            .ranks = members_.size(),
            .bytes = unit_bytes(op, members_.rank(), members_.size()),
            .staging_slot = host_.wiring.slot_bytes().staging,
            // Unless pull is for huge pages only, the actual pages count.
            .huge_pages = a != flow::Algorithm::pull || !(choice.forced || choice.pull_any_pages) ||
                          PullExecutor::on_huge_pages(host_.context, members_, op),
            .forced = choice.forced,
            .in_place = op.in.data == op.out.data});
    if (ns) prediction(a, *ns);
  };
  add(choice.algorithm);
  if (choice.try_zero_copy && !choice.declines_zero_copy) add(flow::Algorithm::zerocopy);
  if (choice.try_pull) add(flow::Algorithm::pull);
}

std::string Planner::predicted(const Calibration& c, const Operation& op, const Choice& choice) const {
  std::string text;
  each_prediction(c, op, choice, [&](flow::Algorithm a, double ns) {
    text += fmt::format("{}{} {:.2f} us", text.empty() ? "" : ", ", flow::name(a), ns / 1e3);
  });
  if (!text.empty() && !host_.context.cores().enough_here()) text += ", if each rank had a core";
  return text;
}

double Planner::predicted_ns(const Calibration& c, const Operation& op, const Choice& choice) const {
  double least = 0;
  each_prediction(c, op, choice,
                  [&](flow::Algorithm, double ns) { least = least > 0 ? std::min(least, ns) : ns; });
  return least;
}

}  // namespace ouro::rt
