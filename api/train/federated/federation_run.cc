// Executes a federated average: comparison of plans, then two stages per message, which overlap if there are
// several messages. See ouro/train/federation.hpp.
#include <fmt/format.h>

#include <condition_variable>
#include <cstring>
#include <mutex>

#include "api/train/common/not_in_batch.h"
#include "api/train/federated/federation_state.h"
#include "kernels/device/gpu.h"

namespace ouro::train {
namespace {

using State = AggregationPlan::State;
constexpr const char* kRunCall = "aggregate";

/// Submits the parts of a message together. Without a stream, they are complete on return.
template <class Operation>
Status together(const AggregationMessage& m, Operation&& operation) {
  if (m.parts.size() == 1) return operation(m.parts[0]);
  group_start();
  Status first;
  for (const View& part : m.parts)
    if (Status s = operation(part); first.ok()) first = s;
  Status ended = group_end();
  return first.ok() ? ended : first;
}

/// A site of weight 0 is left out, whatever its values: 0 times NaN is not 0.
bool left_out(ReduceOp op) { return op.kind == OpKind::premulsum && op.scalar.real == 0; }

Status mean_across(AggregationLane& lane, const AggregationMessage& m, ReduceOp op) {
  if (left_out(op))
    for (const View& v : m.parts)
      if (v.count > 0) std::memset(v.data, 0, v.bytes());
  return together(m, [&](const View& v) { return all_reduce(lane.across, v, v, op); });
}
Status spread_inside(AggregationLane& lane, const AggregationMessage& m) {
  return together(m, [&](const View& v) { return broadcast(lane.inside, v, v, lane.root); });
}
/// A rank that waits for this one in another group shares no group with the culprit and would wait until its
/// deadline; this gives it the cause instead. It has no effect on the group that has already failed.
Status pass_on(Status why, std::initializer_list<Group*> groups) {
  for (Group* g : groups)
    if (g->valid()) g->abort("an aggregation failed on the other side of a rank: " + why.message());
  return why;
}
Status pass_on(AggregationLane& lane, Status why) {
  return pass_on(std::move(why), {&lane.inside, &lane.across});
}

// ---- on the host: blocking calls, in the caller or on streams ---------------------------------------

void gather_layers(AggregationLane& lane, bool back) {
  for (FlatCopy& c : lane.copies) {
    auto* at = static_cast<std::byte*>(c.flat.data);
    for (const View& v : c.layers) {
      std::memcpy(back ? v.data : at, back ? at : v.data, v.bytes());
      at += v.bytes();
    }
  }
}

Status run_lane(AggregationLane& lane, ReduceOp op) {
  gather_layers(lane, false);
  for (const AggregationMessage& m : lane.messages) {
    Status s;
    if (lane.across.valid()) s = mean_across(lane, m, op);
    if (s.ok() && lane.inside.valid()) s = spread_inside(lane, m);
    if (!s.ok()) return pass_on(lane, s);
  }
  gather_layers(lane, true);
  return {};
}

/// Progress of the first stage of a lane. That stage always ends, because its operations have deadlines.
class Progress {
 public:
  void advance(const Status& s) {
    std::lock_guard lock(mutex_);
    if (s.ok())
      ++done_;
    else
      failed_ = s;
    changed_.notify_all();
  }
  /// Waits until `count` messages have passed the first stage, or it has failed.
  Status wait(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= count || !failed_.ok(); });
    return done_ >= count ? Status{} : failed_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t done_ = 0;
  Status failed_;
};

Status first_stage(State& state, AggregationLane& lane, Progress& progress) {
  if (Status s = state.comparison(); !s.ok()) return progress.advance(s), s;
  gather_layers(lane, false);
  for (const AggregationMessage& m : lane.messages) {
    const Status s = lane.across.valid() ? mean_across(lane, m, state.op) : Status{};
    progress.advance(s.ok() ? s : pass_on(lane, s));
    OURO_TRY(s);
  }
  return {};
}
Status second_stage(AggregationLane& lane, Progress& progress) {
  std::size_t k = 0;
  for (const AggregationMessage& m : lane.messages) {
    OURO_TRY(progress.wait(++k));
    if (!lane.inside.valid()) continue;
    if (Status s = spread_inside(lane, m); !s.ok()) return pass_on(lane, s);
  }
  gather_layers(lane, true);
  return {};
}

Status wait_all(const std::vector<Work>& works) {
  Status first;
  for (const Work& w : works)
    if (Status s = w.wait(); first.ok()) first = s;
  return first;
}

Status run_on_host(const std::shared_ptr<State>& state, const Stream& stream) {
  const auto run_here = [state] {
    OURO_TRY(state->comparison());
    for (AggregationLane& lane : state->lanes) OURO_TRY(run_lane(lane, state->op));
    return Status{};
  };
  if (state->across.empty()) {
    if (!stream.valid()) return run_here();
    state->began(stream.run(run_here));
    return {};
  }
  Event before;
  before.record(stream);
  std::vector<Work> works;
  for (std::size_t k = 0; k < state->lanes.size(); ++k) {
    AggregationLane* lane = &state->lanes[k];
    before.wait_on(state->across[k]);
    if (state->inside.empty()) {
      works.push_back(state->across[k].run([state, lane] {
        OURO_TRY(state->comparison());
        return run_lane(*lane, state->op);
      }));
      continue;
    }
    auto progress = std::make_shared<Progress>();
    works.push_back(
        state->across[k].run([state, lane, progress] { return first_stage(*state, *lane, *progress); }));
    works.push_back(state->inside[k].run([state, lane, progress] { return second_stage(*lane, *progress); }));
  }
  if (!stream.valid()) return wait_all(works);
  state->began(stream.run([works] { return wait_all(works); }));
  return {};
}

// ---- on a GPU: everything is enqueued, in stream order ---------------------------------------------

Status copy_layers(AggregationLane& lane, const Stream& s, bool back) {
  const gpu::Stream raw{s.device().index, s.cuda_handle()};
  for (FlatCopy& c : lane.copies) {
    auto* at = static_cast<std::byte*>(c.flat.data);
    for (const View& v : c.layers) {
      OURO_TRY(gpu::gpu().copy(back ? v.data : at, back ? at : v.data, v.bytes(), raw));
      at += v.bytes();
    }
  }
  return {};
}

Status enqueue_lane(State& state, AggregationLane& lane, const Stream& across, const Stream& inside) {
  OURO_TRY(copy_layers(lane, across, false));
  for (const AggregationMessage& m : lane.messages) {
    if (lane.across.valid())
      OURO_TRY(together(m, [&](const View& v) {
        const gpu::Stream raw{across.device().index, across.cuda_handle()};
        if (left_out(state.op) && v.count > 0) OURO_TRY(gpu::gpu().set(v.data, 0, v.bytes(), raw));
        const Result<Work> work = all_reduce(lane.across, v, v, state.op, across);
        if (!work.ok()) return pass_on(lane, work.status());
        state.began(*work);
        work->then([members = lane.inside](const Status& s) mutable {
          if (members.valid() && !s.ok()) members.abort("the mean across sites failed: " + s.message());
        });
        return Status{};
      }));
    if (across != inside) {
      Event through;
      through.record(across);
      through.wait_on(inside);
    }
    if (lane.inside.valid())
      OURO_TRY(together(m, [&](const View& v) {
        const Result<Work> work = broadcast(lane.inside, v, v, lane.root, inside);
        if (work.ok()) state.began(*work);
        return work.status();
      }));
  }
  return copy_layers(lane, inside, true);
}

Status run_on_gpu(const std::shared_ptr<State>& state, const Stream& stream) {
  if (stream.valid() && stream.device() != state->device)
    return invalid(fmt::format("{}: parameters on GPU {} and a stream of another device", kRunCall,
                               state->device.index));
  Stream own = stream;
  if (!own.valid()) {
    OURO_ASSIGN(own, Stream::create(state->device));
  }
  Event before;
  before.record(own);
  for (std::size_t k = 0; k < state->lanes.size(); ++k) {
    const Stream& across = state->across.empty() ? own : state->across[k];
    const Stream& inside = state->inside.empty() ? across : state->inside[k];
    if (across != own) before.wait_on(across);
    OURO_TRY(enqueue_lane(*state, state->lanes[k], across, inside));
    if (inside == own) continue;
    Event after;
    after.record(inside);
    after.wait_on(own);
  }
  if (stream.valid()) return {};
  const Status first = own.synchronize();
  const Status moved = AggregationPlan(state).wait();  // a device continues after an operation that failed
  return first.ok() ? moved : first;
}

}  // namespace

// A rank's column consists of the ranks of its shard in all sites, its row of one rank of each shard: facts
// that a column knows after the first three reductions, all ranks know after the last.
Status agree_on_layout(State& s, const Status& refused) {
  Comparison all = refused.ok() ? Comparison(s.claims) : Comparison::refusal(s.claims.size(), s.world_rank);
  const View words = all.view();
  Status verdict = refused;
  const auto exchange = [&]() -> Status {
    if (s.column_inside.size() > 1) OURO_TRY(all_reduce(s.column_inside, words, words, ReduceOp::max, kAuto));
    if (s.column_across.size() > 1) OURO_TRY(all_reduce(s.column_across, words, words, ReduceOp::max, kAuto));
    if (s.column_inside.size() > 1) OURO_TRY(broadcast(s.column_inside, words, words, s.column_root, kAuto));
    if (verdict.ok()) verdict = all.verdict(kRunCall, s.claims);
    if (s.row.size() < 2) return {};
    Comparison row = all.agreed() ? Comparison({}) : Comparison::refusal(0, s.world_rank);
    OURO_TRY(all_reduce(s.row, row.view(), row.view(), ReduceOp::max, kAuto));
    if (verdict.ok() && !row.agreed())
      verdict = invalid(fmt::format("{}: the ranks of another shard differ in their tensors", kRunCall));
    return {};
  };
  const Status exchanged = exchange();
  if (!exchanged.ok()) (void)pass_on(exchanged, {&s.column_inside, &s.column_across, &s.row});
  return verdict.ok() ? exchanged : verdict;
}

void set_comparison(State& s, const LayoutGroups& groups) {
  const ParallelLayout& l = groups.layout;
  s.world_rank = l.rank;
  if (!groups.federated.empty()) s.column_across = groups.federated[0];
  if (!groups.replica_average.empty()) {
    s.column_inside = groups.replica_average[0];
    const int sender = l.receive_from.value_or(l.rank);
    s.column_root = s.column_inside.from_global(sender).value_or(0);
  }
  if (groups.shard) s.row = *groups.shard;
}

Status AggregationPlan::compare() {
  OURO_TRY(not_in_batch(kRunCall));
  return state_->compare();
}

Status State::compare() {
  std::lock_guard lock(verdict_mutex);
  if (!verdict || !verdict->ok()) verdict = agree_on_layout(*this, {});
  return *verdict;
}

Status State::comparison() {
  std::lock_guard lock(verdict_mutex);
  return verdict.value_or(Status());
}

bool State::settled() {
  std::lock_guard lock(verdict_mutex);
  return verdict && verdict->ok();
}

Status AggregationPlan::run(const Stream& stream) {
  OURO_TRY(not_in_batch(kRunCall));
  State& s = *state_;
  const bool host = s.device.kind == Device::Kind::host;
  // Compared in stream order, too: the comparison uses groups that earlier enqueued work may be using.
  if (host && stream.valid()) {
    if (!s.settled()) s.began(stream.run([state = state_] { return state->compare(); }));
  } else {
    OURO_TRY(s.compare());
  }
  if (s.lanes.empty()) return {};
  return host ? run_on_host(state_, stream) : run_on_gpu(state_, stream);
}

void State::began(Work work) {
  std::lock_guard lock(works_mutex);
  std::erase_if(works, [&](const Work& w) {
    if (!w.test()) return false;
    if (failed.ok()) failed = w.status();
    return true;
  });
  works.push_back(std::move(work));
}

Status AggregationPlan::wait() {
  std::vector<Work> works;
  Status first;
  {
    std::lock_guard lock(state_->works_mutex);
    works.swap(state_->works);
    std::swap(first, state_->failed);
  }
  const Status rest = wait_all(works);
  return first.ok() ? rest : first;
}

Result<double> mean_loss(Group& site, double loss, std::int64_t length, const Stream& stream) {
  OURO_TRY(not_in_batch("mean_loss"));
  const bool wrong = length < 0;  // sent to all ranks, because an invalid length spoils the sum
  double sums[] = {loss, static_cast<double>(length), wrong ? 1.0 : 0.0};
  const View all = std::span<double>(sums);
  OURO_ASSIGN(const auto work, all_reduce(site, all, all, ReduceOp::sum, stream, kAuto));
  OURO_TRY(work.wait());
  if (wrong) return invalid(fmt::format("mean_loss: length {}; expected 0 at least", length));
  if (sums[2] > 0) return invalid("mean_loss: another rank has a length below 0");
  if (sums[1] == 0) return invalid("mean_loss: no rank has any length");
  return sums[0] / sums[1];
}

}  // namespace ouro::train
