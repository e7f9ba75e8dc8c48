// From calls to plans. See planner.h.
#include "runtime/group/planner.h"

#include <fmt/format.h>

#include <atomic>
#include <cstddef>
#include <exception>
#include <utility>

#include "runtime/context/machine.h"
#include "runtime/core/env.h"
#include "runtime/core/log.h"
#include "runtime/core/no_memory.h"
#include "runtime/exec/host/execution_plan.h"
#include "runtime/plan/cost.h"

namespace ouro::rt {
namespace {

std::atomic<std::uint64_t> g_planners{0};

/// Where the last-level cache is no longer worth writing to: 3/4 of it, if nobody has measured.
std::size_t stream_bytes(const Rules& rules) {
  constexpr std::size_t kUnknownCache = 32 << 20;
  if (rules.stream_bytes > 0) return rules.stream_bytes;
  const std::size_t cache = machine().l3_bytes;
  return (cache > 0 ? cache : kUnknownCache) / 4 * 3;
}

}  // namespace

Result<std::unique_ptr<Selector>> Planner::make_selector(const Context& context,
                                                         const std::vector<int>& world_ranks, int hosts) {
  auto algorithm = env::text("OURO_ALGO");
  if (!algorithm.ok()) return algorithm.status();
  const std::string wanted = algorithm->value_or("");
  if (!wanted.empty() && !flow::parse_algorithm(wanted)) {
    std::string names;
    for (int i = 0; i < flow::kAlgorithms; ++i)
      names += fmt::format("{}{}", i ? ", " : "", flow::name(static_cast<flow::Algorithm>(i)));
    return invalid(fmt::format("OURO_ALGO={}: there is no such algorithm; expected {}", wanted, names));
  }
  Rules rules = context.spec().rules;
  const int size = static_cast<int>(world_ranks.size());
  const bool enough = context.cores().enough_for(world_ranks);
  if (hosts == 1 && enough) {  // the record is that of this host, as all of its ranks read it
    const auto& rows = context.cost_rows().of(context.calibration(), size, slot_bytes(context, size).staging);
    const auto before = rules.rows.begin() + static_cast<std::ptrdiff_t>(rules.chosen_rows);
    rules.rows.insert(before, rows.begin(), rows.end());
  }
  return std::make_unique<Selector>(rules, size, hosts, enough, stream_bytes(rules), wanted);
}

Planner::Planner(std::unique_ptr<Selector> selector, const Members& members, const HostResources& host,
                 Numerics numerics, std::string group)
    : selector_(std::move(selector)),
      members_(members),
      host_(host),
      numerics_(numerics),
      group_(std::move(group)),
      serial_(g_planners.fetch_add(1, std::memory_order_relaxed) + 1) {}

Status Planner::make(const Operation& op, Plan* plan) const {
  try {
    return work_out(op, plan);
  } catch (const std::exception&) {
    return no_memory();
  }
}

Status Planner::work_out(const Operation& op, Plan* plan) const {
  const int rank = members_.rank(), size = members_.size();
  if (op.segments.empty()) OURO_TRY(check(op, rank, size));
  plan->op = op;
  plan->op.numerics = numerics_of(op);
  const bool canonical = plan->op.numerics == Numerics::canonical;
  std::string why;
  const bool tell = log::enabled(log::Level::info, log::Subsystem::TUNING);
  OURO_TRY(selector_->select(op, rank, canonical, &plan->choice, tell ? &why : nullptr));
  plan->signature = signature(op, rank, size, canonical,
                              op.names_algorithm() ? static_cast<int>(plan->choice.algorithm) + 1 : 0);
  // On a device the host's choice counts only where the call has named it.
  if (!on_device(op)) plan->signature = plan->signature.by(plan->choice.code());
  plan->folded = plan->signature.folded();
  plan->idle = moves_nothing(op, rank, size);
  if (!plan->idle && !on_device(op))
    plan->host = make_execution_plan(*plan, members_, host_.wiring.slot_bytes(), host_.single_rounds);
  keep_plan(serial_, op, plan);
  if (!why.empty()) OURO_INFO(TUNING, "{} in group {}: {}", name(op.collective), group_, why);
  return {};
}

Status Planner::choose(const Operation& op, Choice* choice, std::string* why) const {
  return selector_->select(op, members_.rank(), numerics_of(op) == Numerics::canonical, choice, why);
}

std::string Planner::predicted(const Calibration& c, const Operation& op, const Choice& choice) const {
  std::string text;
  const auto add = [&](flow::Algorithm a) {
    const auto ns = predicted_ns(c, {.collective = op.collective,
                                     .algorithm = a,
                                     .ranks = members_.size(),
                                     .bytes = unit_bytes(op, members_.rank(), members_.size()),
                                     .staging_slot = host_.wiring.slot_bytes().staging});
    if (ns) text += fmt::format("{}{} {:.2f} us", text.empty() ? "" : ", ", flow::name(a), *ns / 1e3);
  };
  add(choice.algorithm);
  if (choice.try_zero_copy) add(flow::Algorithm::zerocopy);
  if (choice.try_pull) add(flow::Algorithm::pull);
  return text;
}

}  // namespace ouro::rt
