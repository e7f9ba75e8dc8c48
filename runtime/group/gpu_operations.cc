// Operations on the memory of this rank's GPU. See gpu_operations.h.
#include "runtime/group/gpu_operations.h"

#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <thread>
#include <utility>

namespace ouro::rt {
GpuOperations::GpuOperations(Context& context, const Members& members, std::uint64_t key,
                             const Planner& planner, Sequencer& sequencer, FailureDetector& detector,
                             OperationWaiter& waiter, HostOperations& host, MakeInnerGroup make_inner)
    : context_(context),
      members_(members),
      key_(key),
      planner_(planner),
      sequencer_(sequencer),
      detector_(detector),
      waiter_(waiter),
      host_(host),
      make_inner_(std::move(make_inner)) {
  if (!crowded(context, context.rank())) return;
  if (shares_gpu(context, context.rank()))
    GpuStream::run_in_calls(context.spec().gpu);
  else
    GpuStream::await_in_kernels(context.spec().gpu);
}

GpuOperations::~GpuOperations() {
  context_.observers().dismiss(static_cast<DeviceObserver&>(*this));
  detector_.when_failed(this, {});
  sequencer_.watch(nullptr);
  executor_.reset();
}

GpuExecutor* GpuOperations::made() {
  std::lock_guard lock(mutex_);
  return executor_.get();
}

GpuExecutor& GpuOperations::executor() {
  std::unique_lock lock(mutex_);
  if (!executor_) {
    executor_ =
        std::make_unique<GpuExecutor>(context_, members_, waiter_, key_, detector_.settings().deadline);
    sequencer_.watch(&executor_->pending());
    lock.unlock();
    detector_.when_failed(this, [this](const Status& why) { release(why); });
    context_.observers().enrol(static_cast<DeviceObserver&>(*this));
  }
  return *executor_;
}

std::shared_ptr<InnerGroup> GpuOperations::inner() {
  std::lock_guard lock(mutex_);
  return inner_;
}

void GpuOperations::release(const Status& why) {
  if (GpuExecutor* const gpu = made()) gpu->pending().release(why);
  if (const auto group = inner()) group->give_up(why);
}

Status GpuOperations::need_inner() {
  if (inner()) return {};
  OURO_ASSIGN(auto made, make_inner_());
  {
    std::lock_guard lock(mutex_);
    inner_ = made;
  }
  if (!detector_.ok()) made->give_up(detector_.status());  // the group may have failed meanwhile
  return {};
}

Status GpuOperations::run_between_hosts(const Operation& op, const Plan& whole, const NextPart& next) {
  using namespace std::chrono_literals;
  const auto group = inner();
  const auto begun = Clock::now();
  const Status outcome = group->run_parts(op, whole, next);
  if (outcome.ok()) return outcome;
  // If this rank's partners have only given up, the cause is known to the ranks of another index, or to the
  // call that could not enqueue the whole operation. Late ranks are found by this group's check, which counts
  // its own ranks.
  const bool given_up = outcome.reason() == Reason::revoked, late = outcome.reason() == Reason::deadline;
  const auto now = Clock::now(), until = now + (given_up ? 2s : FailureDetector::kCauseFirst);
  InFlight mine{.plan = &whole, .seq = waiter_.in_flight().seq, .start = late ? begun : now};
  for (; Clock::now() < until; std::this_thread::sleep_for(1ms)) OURO_TRY(detector_.check(mine));
  Failure f = *outcome.failure();
  f.rank = members_.group_rank(group->world_rank(f.rank)).value_or(-1);
  f.group.clear(), f.op.clear(), f.dead.clear();
  return Status(std::move(f));
}

void GpuOperations::leave() {
  if (const auto group = inner()) (void)group->close();
}

bool GpuOperations::idle() {
  GpuExecutor* const gpu = made();  // not under the lock: a check may end operations, and with them the group
  return !gpu || gpu->pending().idle();
}

void GpuOperations::drain() {
  if (GpuExecutor* const gpu = made()) gpu->pending().drain();
}

std::uint64_t GpuOperations::ran(GpuPath path) {
  GpuExecutor* const gpu = made();
  return gpu ? gpu->ran(path) : 0;
}

std::uint64_t GpuOperations::named() {
  GpuExecutor* const gpu = made();
  return gpu ? gpu->named() : 0;
}

Result<std::shared_ptr<GpuStream>> GpuOperations::own_stream() {
  std::lock_guard lock(stream_mutex_);
  if (!own_stream_) {
    if (context_.spec().gpu < 0) return invalid("this rank has no GPU");
    auto made = GpuStream::create(context_.spec().gpu, 0);
    if (!made.ok()) return made.status();
    own_stream_ = std::move(*made);
  }
  return own_stream_;
}

Status GpuOperations::check(const Operation& op, Stream* stream) const {
  const int device = context_.spec().gpu;
  const int found = on_device(op) ? device_of(op).index : stream->gpu()->device();
  if (found != device)
    return invalid(fmt::format("{}: a buffer or stream on GPU {}; this rank {}", name(op.collective), found,
                               device < 0 ? "has no GPU" : fmt::format("has GPU {}", device)));
  if (stream && stream->gpu() && stream->gpu()->device() != device)
    return invalid(fmt::format("{}: a stream of GPU {} for a buffer on GPU {}", name(op.collective),
                               stream->gpu()->device(), device));
  return stream && stream->gpu() ? stream->gpu()->check_thread() : Status();
}

Status GpuOperations::submit(const Operation& op, const Plan* kept, GpuStream* stream,
                             std::shared_ptr<WorkState>* work, bool wait) {
  std::shared_ptr<GpuStream> on;
  if (stream) {
    on = stream->shared_from_this();
  } else {
    OURO_ASSIGN(on, own_stream());
  }
  Plan fresh;
  if (!kept) {
    const Status planned = planner_.make(op, &fresh);
    if (!planned.ok()) return detector_.stick(planned);
  }
  const Plan& plan = kept ? *kept : fresh;
  OURO_ASSIGN(const GpuPath path, executor().path(plan.op, plan.choice));
  std::shared_ptr<WorkState> mine;
  if (!work) work = &mine;
  *work = std::make_shared<WorkState>();  // if this throws, no ticket has been taken
  OURO_TRY(execute(plan, path, take_placed_turn(sequencer_), on, wait && !stream, work));
  if (!wait) return {};
  (*work)->wait();
  return (*work)->outcome();
}

Status GpuOperations::submit(const Operation& op, Stream& host, std::shared_ptr<WorkState>* work) {
  OURO_ASSIGN(const auto on, own_stream());
  const auto kept = std::make_shared<const KeptOperation>(op);  // the plan refers to it
  Plan plan;
  const Status planned = planner_.make(kept->get(), &plan);
  if (!planned.ok()) return detector_.stick(planned);
  OURO_ASSIGN(const GpuPath path, executor().path(plan.op, plan.choice));
  *work = enqueue_placed_turn(sequencer_, host,
                              [this, kept, plan, path, on, made = std::make_shared<WorkState>()](Turn turn) {
                                std::shared_ptr<WorkState> ended = made;
                                OURO_TRY(execute(plan, path, std::move(turn), on, false, &ended));
                                ended->wait();
                                return ended->outcome();
                              });
  return {};
}

/// Puts the plan in flight into a stream. An operation that is there ends there, with its mark, even if the
/// group has failed meanwhile.
struct GpuOperations::IntoStream {
  static constexpr bool kInStream = true;
  Status move(InFlight& f) { return gpu.executor_->run(*f.plan, path, f.seq, stream, in_call, work); }
  Status damage(InFlight&, Status request) { return request; }
  GpuOperations& gpu;
  GpuPath path;
  const std::shared_ptr<GpuStream>& stream;
  bool in_call;
  std::shared_ptr<WorkState>* work;
};

Status GpuOperations::execute(const Plan& plan, GpuPath path, Turn turn, const std::shared_ptr<GpuStream>& on,
                              bool in_call, std::shared_ptr<WorkState>* work) {
  if (!turn.await_place()) return detector_.status();
  if ((path == GpuPath::staged || path == GpuPath::hierarchy) && !plan.idle) {
    const std::uint64_t place = turn.take_place();
    Status outcome = execute_on_host(plan, path, std::move(turn), on, work);
    sequencer_.entries().leave(place);
    return outcome;
  }
  const bool idle = plan.idle;
  Status outcome = turn.carry(plan, IntoStream{*this, path, on, in_call, work});
  if (idle || !outcome.ok()) (*work)->complete(outcome);
  return outcome;
}

/// Carries the part of the plan in flight between hosts, by the inner group. This group moves no data.
struct GpuOperations::BetweenHosts {
  static constexpr bool kInStream = false;
  Status move(InFlight& f) {
    return not_enqueued.ok() ? gpu.run_between_hosts(*op, *f.plan, *next) : not_enqueued;
  }
  Status damage(InFlight& f, const Status&) {  // there is nothing here to damage
    gpu.context_.faults()->postpone_damage();
    return move(f);
  }
  GpuOperations& gpu;
  const Operation* op = nullptr;
  const NextPart* next = nullptr;
  Status not_enqueued = {};
};

Status GpuOperations::carry_staged(const Operation& staged, const NextPart& next, Turn turn) {
  Operation host = staged;  // in memory of the host, wherever its parts are from
  host.in.device = host.out.device = {};
  Plan plan;
  const Status planned = planner_.make(host, &plan);
  if (!planned.ok()) return detector_.stick(planned);  // the turn is skipped
  return next ? host_.execute(plan, next, std::move(turn)) : host_.execute(plan, std::move(turn));
}

Status GpuOperations::execute_on_host(const Plan& plan, GpuPath path, Turn turn,
                                      const std::shared_ptr<GpuStream>& stream,
                                      std::shared_ptr<WorkState>* work) {
  const std::uint64_t seq = turn.seq();
  const bool hierarchy = path == GpuPath::hierarchy;
  std::shared_ptr<QueuedTurn> queued;
  Status enqueued;
  try {
    if (hierarchy) enqueued = need_inner();
    queued = std::make_shared<QueuedTurn>();
    queued->hold(std::move(turn));
    const auto on_host = [this, queued, hierarchy, whole = plan](const Operation& op, const NextPart& next) {
      return queued->claim([&](Turn mine) {
        if (hierarchy) return mine.carry(whole, BetweenHosts{*this, &op, &next});
        return carry_staged(op, next, std::move(mine));
      });
    };
    if (enqueued.ok()) enqueued = executor_->run_with_host_part(plan, path, seq, stream, on_host, work);
    if (enqueued.ok())
      (*work)->then([queued](const Status& s) {
        if (!s.ok()) queued->give_up(s);  // the stream never reached it
      });
  } catch (const std::exception&) {
    enqueued = no_memory();
  }
  if (enqueued.ok()) return {};
  // If no stream has the turn, it ends here. The path `hierarchy` enters the operation on the control page
  // all the same, so that a rank of this host that has made another call is found there.
  const auto end = [&](Turn mine) {
    return hierarchy ? mine.carry(plan, BetweenHosts{.gpu = *this, .not_enqueued = enqueued}) : Status();
  };
  (void)(queued ? queued->claim(end) : end(std::move(turn)));
  return hierarchy ? detector_.stick(enqueued, {.plan = &plan, .seq = seq, .start = Clock::now()})
                   : detector_.stick(enqueued);
}

Result<std::string> GpuOperations::explain(const Operation& op) {
  if (context_.spec().gpu < 0) return invalid("this rank has no GPU");
  Choice choice;
  OURO_TRY(planner_.choose(op, &choice));
  std::string why;
  auto path = executor().path(op, choice, &why);
  if (!path.ok()) return path.status();
  return why;
}

void GpuOperations::poll_device() {
  if (const auto group = detector_.ok() ? nullptr : inner(); group && !group->failed())
    group->give_up(detector_.status());  // release() had no memory for it
  if (detector_.status().ok())
    if (auto fault = executor_->kernels_fault()) (void)detector_.fail(std::move(*fault), nullptr, true);
  executor_->pending().with_oldest([this](GpuPending::Operation& p) {
    InFlight in_flight{&p.plan, p.seq, p.start, p.late_said, p.left_since};
    (void)detector_.check(in_flight);  // a failure becomes the group's and releases the streams
    p.late_said = in_flight.late_said, p.left_since = in_flight.left_since;
  });
  sequencer_.publish_ended_in_streams();
  // If the device has failed an operation, the others would wait for this rank.
  if (Status s = executor_->pending().failure(); !s.ok() && detector_.ok()) (void)detector_.fail(s);
}

}  // namespace ouro::rt
