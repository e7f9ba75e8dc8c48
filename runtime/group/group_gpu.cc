// Groups: operations on the memory of GPUs. See group.h.
#include <fmt/format.h>

#include "runtime/group/group.h"
#include "runtime/group/group_waiters.h"

namespace ouro::rt {

GpuExecutor& Group::gpu_executor() {
  std::unique_lock lock(gpu_mutex_);
  if (!gpu_) {
    gpu_ = std::make_unique<GpuExecutor>(*context_, members_, *waiter_, spec_.key, spec_.deadline);
    lock.unlock();
    context_->observers().enrol_gpu(*this);
  }
  return *gpu_;
}

Result<std::shared_ptr<GpuStream>> Group::own_gpu_stream() {
  std::lock_guard lock(own_stream_mutex_);
  if (!own_gpu_stream_) {
    if (context_->spec().gpu < 0) return invalid("this rank has no GPU");
    auto made = GpuStream::create(context_->spec().gpu, 0);
    if (!made.ok()) return made.status();
    own_gpu_stream_ = std::move(*made);
  }
  return own_gpu_stream_;
}

/// Which GPU a call is for: that of this rank, for its buffers and its stream.
Status Group::check_device(const Operation& op, Stream* stream) const {
  const int device = context_->spec().gpu;
  const bool reads = op.in.device.kind == Device::Kind::cuda;
  const int found = !on_device(op) ? stream->gpu()->device()
                    : reads        ? op.in.device.index
                                   : op.out.device.index;
  if (found != device)
    return invalid(fmt::format("{}: a buffer or stream on GPU {}; this rank {}", name(op.collective), found,
                               device < 0 ? "has no GPU" : fmt::format("has GPU {}", device)));
  if (stream && stream->gpu() && stream->gpu()->device() != device)
    return invalid(fmt::format("{}: a stream of GPU {} for a buffer on GPU {}", name(op.collective),
                               stream->gpu()->device(), device));
  return {};
}

Status Group::submit_gpu(const Operation& op, Stream* stream, std::shared_ptr<WorkState>* work, bool wait) {
  OURO_TRY(check_device(op, stream));
  if (stream && !stream->gpu()) {  // in the order of the host's stream, and waited for there
    OURO_TRY(rt::check(op, rank_, size()));
    const auto kept = std::make_shared<const KeptOperation>(op);
    *work = stream->enqueue(
        [self = shared_from_this(), kept] { return self->submit(kept->get(), nullptr, nullptr); });
    return {};
  }
  std::shared_ptr<GpuStream> on;
  if (stream) {
    on = stream->gpu()->shared_from_this();
  } else {
    auto own = own_gpu_stream();
    if (!own.ok()) return own.status();
    on = std::move(*own);
  }
  Plan fresh;
  const Plan* plan = find_plan(serial_, op);
  if (!plan) {
    OURO_TRY(make_plan(op, &fresh));
    plan = &fresh;
  }
  GpuExecutor& executor = gpu_executor();
  const auto path = executor.path(plan->op, plan->choice);
  if (!path.ok()) return path.status();
  std::shared_ptr<WorkState> mine;
  if (!work) work = &mine;
  const std::uint64_t ticket = take_ticket();
  Status outcome;
  if (*path == GpuPath::staged && !plan->idle) {
    outcome = submit_staged(plan->op, ticket, on, work);
  } else {
    *work = std::make_shared<WorkState>();
    outcome = begin_turn(*plan, ticket);
    if (outcome.ok() && !plan->idle) {
      try {
        outcome = executor.run(*plan, *path, ticket + 1, on, work);
      } catch (const std::bad_alloc&) {
        outcome = no_memory();
      }
    }
    outcome = stick(std::move(outcome));
    if (plan->idle || !outcome.ok()) (*work)->complete(outcome);
    publish(turn_, ticket + 1);
  }
  if (!outcome.ok() || !wait) return outcome;
  (*work)->wait();
  return (*work)->outcome();
}

/// The host's part takes the turn when the device has come to it; or it never comes, and the turn is let go
/// here.
Status Group::submit_staged(const Operation& op, std::uint64_t ticket,
                            const std::shared_ptr<GpuStream>& stream, std::shared_ptr<WorkState>* work) {
  const auto taken = std::make_shared<std::atomic<bool>>(false);
  const auto let_go = [this, ticket] {
    wait_patiently(turn_, ticket);
    publish(turn_, ticket + 1);
  };
  const Status enqueued = gpu_->run_staged(
      op, stream,
      [this, ticket, taken, let_go](const Operation& host) {
        if (taken->exchange(true)) return status();
        Plan here;
        Status planned = make_plan(host, &here);
        if (planned.ok()) return execute(here, ticket);
        let_go();
        return planned;
      },
      work);
  if (enqueued.ok()) return {};
  if (!taken->exchange(true)) let_go();
  if (enqueued.reason() == Reason::invalid || enqueued.reason() == Reason::unsupported) return enqueued;
  return fail(*enqueued.failure(), nullptr, true);
}

std::uint64_t Group::gpu_ran(GpuPath path) {
  std::lock_guard lock(gpu_mutex_);
  return gpu_ ? gpu_->ran(path) : 0;
}

Result<std::shared_ptr<WorkState>> Group::run_on_gpu(std::vector<std::shared_ptr<Message>> messages,
                                                     const std::shared_ptr<GpuStream>& stream,
                                                     std::function<void(const Status&)> done) {
  gpu::Gpu& gpu = gpu::gpu();
  if (stream->device() != context_->spec().gpu)
    return invalid(fmt::format("message: a stream of GPU {}; this rank has GPU {}", stream->device(),
                               context_->spec().gpu));
  for (const auto& m : messages) {
    OURO_TRY(check(*m));
    if (!m->on_device || m->bytes == 0) continue;
    auto pinned = take_pinned(m->bytes);
    if (!pinned.ok()) return pinned.status();
    m->pinned = std::move(*pinned);
    m->data = static_cast<std::byte*>(m->pinned.get());
    // For receives too: what the message does not fill comes back as it was.
    OURO_TRY(gpu.copy(m->data, m->on_device, m->bytes, stream->get()));
  }
  const auto exchanged = stream->enqueue([weak = weak_from_this(), messages, done = std::move(done)] {
    const auto self = weak.lock();  // a graph that was captured does not keep its group
    if (!self) {
      const Status gone(Reason::revoked, "the group of a message was destroyed before it moved");
      if (done) done(gone);
      return gone;
    }
    std::vector<Message*> raw;
    for (const auto& m : messages) {  // a graph may replay this
      *m = {.sends = m->sends,
            .peer = m->peer,
            .tag = m->tag,
            .data = m->data,
            .bytes = m->bytes,
            .on_device = m->on_device,
            .pinned = m->pinned};
      raw.push_back(m.get());
    }
    Status outcome = self->post(raw);
    if (outcome.ok()) outcome = self->complete(raw, std::chrono::milliseconds(0));
    if (done) done(outcome);
    return outcome;
  });
  for (const auto& m : messages)
    if (m->on_device && m->bytes > 0 && !m->sends)
      OURO_TRY(gpu.copy(m->on_device, m->data, m->bytes, stream->get()));
  auto capture = gpu.capturing(stream->get());
  if (!capture.ok()) return capture.status();
  auto work = std::make_shared<WorkState>();
  if (*capture != 0) {
    work->complete({});
    return work;
  }
  auto copied = mark_now(stream);
  if (!copied.ok()) return copied.status();
  (*copied)->then([work, exchanged, keep = std::move(messages)](const Status& s) {
    work->complete(s.ok() ? exchanged->outcome() : s);
  });
  return work;
}

Result<std::string> Group::explain_gpu(const Operation& op) {
  if (context_->spec().gpu < 0) return invalid("this rank has no GPU");
  Choice choice;
  OURO_TRY(selector_->select(op, rank_, op.numerics == Numerics::canonical, &choice));
  std::string why;
  auto path = gpu_executor().path(op, choice, &why);
  if (!path.ok()) return path.status();
  return why;
}

/// Called now and then from the watch thread: what streams wait for, the host looks after.
void Group::look_at_gpu() {
  if (status().ok())
    if (auto fault = gpu_->resident_fault()) (void)fail(std::move(*fault), nullptr, true);
  const std::uint64_t ended = gpu_->pending().with_oldest([this](GpuPending::Operation& p) {
    InFlight in_flight{&p.plan, p.seq, p.start, p.late_said, p.left_since};
    (void)look(in_flight);  // a failure is the group's from then on, and releases the streams
    p.late_said = in_flight.late_said, p.left_since = in_flight.left_since;
  });
  if (ended > record_.completed.get()) record_.completed.set(ended);
}

}  // namespace ouro::rt
