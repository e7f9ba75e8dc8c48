// Access for tests to the internals of a group: skips years of rounds, replaces rules. Used by tests of
// sequences and of choices.
#pragma once
#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/exec/host/run_flow.h"
#include "runtime/exec/host/single_round.h"
#include "runtime/group/group.h"

namespace ouro::rt {

struct TestAccess {
  static Sequencer& sequencer(Group& g) { return g.sequencer_; }
  static std::uint32_t table(const Group& g) { return g.planner_.table(); }
  static std::uint64_t completed(const Group& g) { return g.record_.completed.get(); }
  static std::uint64_t round(const Group& g) { return g.resources_.rounds.round_; }
  /// Advances to round `round` as if this rank had posted nothing in the rounds before it: skips them,
  /// but executes the releases at which arrival records are renewed. All ranks call it while no operation
  /// is running.
  static Status only_read_until(Group& g, std::uint64_t round) {
    while (g.resources_.rounds.round_ < round) {
      const std::uint64_t renewed =
          (g.resources_.rounds.round_ / StagingView::kRenewal + 1) * StagingView::kRenewal;
      g.resources_.rounds.round_ = std::min(renewed, round) - 1;
      g.resources_.rounds.release();
    }
    return {};
  }
  /// Sets whether staged flows of one round may run as single rounds (single_round.h). All ranks call it
  /// alike, while no operation is running. Takes effect for calls that name an algorithm; plans of other
  /// calls are cached.
  static void single_rounds(Group& g, bool on) { g.resources_.single_rounds = on; }
  static bool runs_single_round(const Group& g, const Operation& op) {
    Plan plan;
    return g.planner_.make(op, &plan).ok() && plan.host && is_single_round(plan.host->run);
  }
  /// Whether the plan of a call has the flow of this algorithm and no other.
  static bool carries_out(const Group& g, const Operation& op, flow::Algorithm algorithm) {
    Plan plan;
    if (!g.planner_.make(op, &plan).ok() || !plan.host) return false;
    const HostRun expected = host_flow(plan.op, algorithm, g.members_).run;
    int found = 0, others = 0;
    for (const FlowPlan* f : {&plan.host->flow, &plan.host->zero_copy, &plan.host->pull})
      if (f->run) ++(f->run == expected ? found : others);
    return expected && found == 1 && others == 0;
  }
  /// Whether posts of the selected flow of a call go round the ring.
  static bool goes_round(const Group& g, const Operation& op) {
    Plan plan;
    return g.planner_.make(op, &plan).ok() && plan.host && plan.host->flow.staging.on == StagingUse::On::ring;
  }
  /// Whether this rank of the group has links for messages.
  static bool has_message_links(Group& g) {
    std::lock_guard lock(g.mailbox_.mutex_);
    return g.mailbox_.messages_ != nullptr;
  }
  /// Receives of this rank that have been posted, and that nothing has come for.
  static std::size_t wanted_receives(Group& g) {
    std::lock_guard lock(g.mailbox_.mutex_);
    if (!g.mailbox_.messages_) return 0;
    std::lock_guard inner(g.mailbox_.messages_->mutex_);
    return g.mailbox_.messages_->matching_.waiting_receives();
  }
  /// Bytes of messages that wait here for a receive.
  static std::size_t backlog(Group& g) {
    const auto engine = g.mailbox_.engine();
    std::lock_guard inner((*engine)->mutex_);
    return (*engine)->matching_.backlog();
  }
  /// From now on this rank takes no messages without a receive while it has so many bytes of them.
  static Status limit_backlog(Group& g, std::size_t bytes) {
    OURO_ASSIGN(Messages* const engine, g.mailbox_.engine());
    std::lock_guard inner(engine->mutex_);
    engine->matching_.limit_backlog(bytes);
    return {};
  }
  /// From now on this rank of the group selects by `rows`, which precede the built-in rows. `ring`: posts may
  /// go round the ring.
  static Status select_by(Group& g, std::string_view rows, bool ring = false) {
    Rules rules = built_in_rules();
    const auto first = parse_rules(rows);
    OURO_TRY(first.status());
    rules.rows.insert(rules.rows.begin(), first->begin(), first->end());
    g.planner_.select_by(std::make_unique<Selector>(rules, g.size(), g.members_.hosts(), true,
                                                    StreamLimits::uniform(~std::size_t{0}),
                                                    PostRules{.ring = ring}, ""));
    g.sequencer_.refresh();
    return {};
  }
  /// From now on this rank of the group uses `record` as its cost model, watches its operations, and calls
  /// `probe` instead of measuring with another rank. All ranks call it alike, while no operation is running.
  static Status adapt(Group& g, const Calibration& record,
                      std::function<std::optional<PairCosts>(int partner)> probe) {
    g.adaptation_.record_ = record;
    g.adaptation_.probe_ = std::move(probe);
    g.adaptation_.watches_ = true, g.adaptation_.due_ = 64;
    g.planner_.reckon_with(*g.context_, record);
    g.sequencer_.refresh();
    return {};
  }
  /// Simulates that this rank, the first one, has adopted a new record that no other member has read yet.
  static RevisionRegister* take_alone(Group& g) {
    Adaptation& a = g.adaptation_;
    a.register_ = claim_revision(a.records_.page(a.first_), a.records_.mine());
    if (a.register_) a.register_->kept.set(1), a.revision_ = a.proposed_ = 1, a.last_ = 1'000'000;
    return a.register_;
  }
  /// Pretends that each rank has its own core, for groups that are made or adapt after this call. All ranks
  /// call it alike.
  static void pretend_cores(const Context& c) {
    auto& enough = const_cast<CoreShare&>(c.cores()).enough_;
    enough.assign(enough.size(), true);
  }
  static Calibration record(const Group& g) { return g.adaptation_.record(); }
  static std::string since(const Group& g) { return g.adaptation_.since(); }
  static bool watched(const Group& g) { return g.adaptation_.watches_; }
};

}  // namespace ouro::rt
