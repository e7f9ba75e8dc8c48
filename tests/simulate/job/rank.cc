// The program of a rank. See rank.h.
#include "tests/simulate/job/rank.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "runtime/group/group.h"
#include "runtime/network/network.h"

namespace simulate {
namespace {

using namespace ouro;
using namespace std::chrono_literals;

rt::ContextSpec spec_of(const Scenario& s, int rank) {
  rt::ContextSpec spec;
  std::memcpy(spec.join.job.data(), &s.seed, sizeof s.seed);
  spec.join.rank = rank, spec.join.world = s.ranks;
  spec.join.settings = "SIMULATED=1";
  spec.join.deadline = 60s, spec.join.late_after = 10s;
  spec.deadline = 90s;
  spec.slot_bytes = s.slot_bytes;
  spec.spin = 0us;
  rt::NetworkOptions net;
  const std::uint8_t secret[wire::Secret::kMinBytes] = {1, 2, 3};
  net.secret = *wire::Secret::from_bytes(secret);
  net.rendezvous = "10.0.0.1:29500";
  net.host_id = fmt::format("host{}", rank);
  net.connections = s.connections;
  net.silent_fail = std::chrono::milliseconds(s.silent_fail_ms);
  net.silent_warn = net.silent_fail / 5;
  spec.network = std::move(net);
  return spec;
}

// Time after which nothing of a group that has ended may be in flight.
constexpr Nanos kSettled = 4 * kSecond;

/// A rank's input to a step: different for all of them, and sums are exact.
std::uint32_t element(int rank, int step, std::size_t i) {
  return static_cast<std::uint32_t>(rank + 1) * 1000003u + static_cast<std::uint32_t>(step) * 8191u +
         static_cast<std::uint32_t>(i);
}

/// Creates groups of all members, uses them, and destroys them.
Status churn(const std::shared_ptr<rt::Context>& context, const std::vector<int>& members, int step) {
  constexpr int kGroups = 3;
  std::vector<std::shared_ptr<rt::Group>> groups;
  for (int g = 0; g < kGroups; ++g) {
    rt::GroupSpec spec;
    spec.ranks = members, spec.name = fmt::format("{}.{}", step, g), spec.deadline = 90s;
    spec.key = rt::group_key(context->spec().join.job, members, spec.name, 0, 0);
    auto made = rt::Group::create(context, std::move(spec));
    if (!made.ok()) return made.status();
    groups.push_back(std::move(*made));
  }
  for (const auto& group : groups) {
    std::uint32_t in = 1, out = 0;
    rt::Operation op;
    op.collective = Collective::all_reduce;
    op.in = CView(&in, 1, DType::u32), op.out = View(&out, 1, DType::u32);
    if (Status s = group->submit(op, nullptr, nullptr); !s.ok()) return s;
  }
  return {};
}

}  // namespace

Rank::Rank(const Scenario& scenario, int rank) : scenario_(scenario) {
  process.rank = process.host = rank;
  process.pid = 1000 + rank;
}

template <class F>
Status Rank::call(Call::Kind kind, std::uint64_t generation, std::vector<int> members, F f) {
  const std::size_t at = calls.size();
  calls.push_back(
      {.kind = kind, .generation = generation, .members = std::move(members), .began = world->now()});
  world->note("calls", process.rank, static_cast<int>(kind));
  Status outcome = f(calls[at]);
  world->note("returns", process.rank, static_cast<int>(kind), static_cast<int>(outcome.reason()));
  calls[at].ended = world->now();
  calls[at].outcome = outcome;
  return outcome;
}

void Rank::run() {
  world->pass(scenario_.starts[static_cast<std::size_t>(process.rank)]);
  std::shared_ptr<rt::Context> context;
  std::shared_ptr<rt::Group> group;
  const auto leave = [&] {
    (void)call(Call::Kind::close, 0, {}, [&](Call&) {
      group.reset();
      if (context) context->leave();
      return Status();
    });
    context.reset();
    over = true;
  };
  std::vector<int> members;
  for (int r = 0; r < scenario_.ranks; ++r) members.push_back(r);
  const Status joined = call(Call::Kind::join, 0, members, [&](Call&) {
    auto made = rt::Context::create(spec_of(scenario_, process.rank));
    if (!made.ok()) return made.status();
    context = std::move(*made);
    return Status();
  });
  if (!joined.ok()) return leave();
  const Status made = call(Call::Kind::group, 0, members, [&](Call&) {
    rt::GroupSpec spec;
    spec.ranks = members, spec.name = "world", spec.deadline = 90s;
    spec.key = rt::group_key(context->spec().join.job, members, "world", 0, 0);
    auto g = rt::Group::create(context, std::move(spec));
    if (!g.ok()) return g.status();
    group = std::move(*g);
    return Status();
  });
  if (!made.ok()) return leave();

  std::vector<std::uint32_t> in(scenario_.count), out(scenario_.count);
  int first = 0;  // step of the group's first operation
  for (int step = 0; step < scenario_.steps;) {
    const std::uint64_t generation = group->spec().generation;
    const Status s = call(Call::Kind::reduce, generation, members, [&](Call& c) {
      for (std::size_t i = 0; i < in.size(); ++i) in[i] = element(process.rank, step, i);
      rt::Operation op;
      op.collective = Collective::all_reduce;
      op.in = CView(in.data(), in.size(), DType::u32), op.out = View(out.data(), out.size(), DType::u32);
      const Status done = group->submit(op, nullptr, nullptr);
      for (std::size_t i = 0; i < in.size() && done.ok(); ++i) {
        std::uint32_t sum = 0;
        for (const int m : members) sum += element(m, step, i);
        c.right &= sum == out[i];
      }
      return done;
    });
    if (s.ok() && scenario_.groups &&
        !call(Call::Kind::group, 0, members, [&](Call&) { return churn(context, members, step); }).ok())
      return leave();
    if (s.ok()) {
      ++step;
      world->pass(process.global(scenario_.pause));
      continue;
    }
    rt::ShrinkOutcome outcome;
    const Status shrunk = call(Call::Kind::shrink, generation, {}, [&](Call& c) {
      auto g = group->shrink(&outcome);
      if (!g.ok()) return g.status();
      c.members = (*g)->spec().ranks;
      group = std::move(*g);
      return Status();
    });
    if (!shrunk.ok()) return leave();
    members = group->spec().ranks;
    first += static_cast<int>(outcome.resume_seq) - 1;
    step = first;
  }
  complete = true;
  if (scenario_.groups) {
    world->pass(process.global(kSettled));
    transport::Exchange& exchange = context->network()->fabric().exchange();
    lingering = exchange.lingering(), unanswered = exchange.unanswered();
    world->pass(process.global(kSettled));
  }
  (void)call(Call::Kind::close, group->spec().generation, members, [&](Call&) { return group->close(); });
  leave();
}

}  // namespace simulate
