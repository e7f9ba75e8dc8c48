// Messages between two ranks, and the monitored barrier, which is built on them. See backend.h.
#include "backend.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "signals.h"
#include "tensors.h"

namespace ouro::adapter {
namespace {

/// All elements of a contiguous tensor.
View bytes_of(const at::Tensor& t) { return {t.data_ptr(), t.nbytes(), DType::u8, view(t).device}; }

/// On GPUs, messages with this tag are exchanges, which kernels move where they can. Those with other tags
/// pass through the host, where a receive can choose.
constexpr int kExchanged = 0;

constexpr int kReport = 1, kGo = 2;  // tags of the monitored barrier

std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (const int r : ranks) text += c10::str(text.empty() ? "" : ", ", r);
  return text;
}

}  // namespace

Result<MessageSet> Backend::messages() {
  const std::lock_guard lock(mutex_);
  if (!set_) {
    OURO_ASSIGN(set_, MessageSet::create(group_));
  }
  return set_;
}

Backend::WorkPtr Backend::on_host(const Call& call, const Posting& post, std::function<void()> store) {
  end_stale_batch();
  auto work = make_work(call);
  {
    const std::lock_guard lock(mutex_);
    if (coalescing_) coalesced_.push_back(work);
  }
  Result<MessageSet> set = messages();
  ++messages_;
  const auto ended = [this, work, store = std::move(store)](const Result<Received>& received) {
    Status s = received.status();
    if (s.ok())
      s = run([&](const Stream&) {
        work->received_from(received->source);
        store();
        return Status();
      });
    --messages_;
    work->complete(s);
  };
  const Status posted = set.ok() ? post(*set, ended) : set.status();
  if (!posted.ok()) {
    --messages_;
    work->complete(posted);
  }
  return work;
}

Backend::WorkPtr Backend::on_gpu(const Call& call, std::function<Status(const Stream&)> body,
                                 std::function<void()> store) {
  end_stale_batch();
  auto work = make_work(call);
  const at::Tensor any = (call.inputs.empty() ? call.outputs : call.inputs).front();
  const c10::impl::VirtualGuardImpl gpu(any.device().type());
  Deferred m{work, gpu.getStream(any.device()), current_stream(any), std::move(body), std::move(store)};
  std::unique_lock lock(mutex_);
  if (coalescing_) {
    coalesced_.push_back(work);
    deferred_.push_back(std::move(m));
    return work;
  }
  lock.unlock();
  submit({m});
  return work;
}

/// The sender of a message from any source is known only when the message has arrived, which a stream cannot
/// report. The lane starts after the work that is in the stream now, and the Work ends when the tensor may be
/// used in any stream.
Backend::WorkPtr Backend::from_any_to_gpu(const Call& call, int tag, const Target& target) {
  end_stale_batch();
  auto work = make_work(call);
  {
    const std::lock_guard lock(mutex_);
    if (coalescing_) coalesced_.push_back(work);
  }
  const c10::Device device = target.flat().device();
  const c10::impl::VirtualGuardImpl gpu(device.type());
  const auto ready = std::make_shared<c10::Event>(device.type());
  ready->record(gpu.getStream(device));
  ++messages_;
  auto task = [this, work, gpu, device, ready, target, tag] {
    const Status s = run([&](const Stream&) -> Status {
      ready->synchronize();
      const c10::StreamGuard aside(gpu.getStreamFromGlobalPool(device));
      const Result<Received> received =
          ouro::recv(group_, bytes_of(target.flat()), kAnySource, tag, RecvOptions{.exact = true});
      OURO_TRY(received.status());
      work->received_from(received->source);
      target.store();
      aside.current_stream().synchronize();
      return {};
    });
    --messages_;
    work->complete(s);
  };
  const Status added = lanes_->add(tag, std::move(task));
  if (!added.ok()) {
    --messages_;
    work->complete(added);
  }
  return work;
}

Backend::WorkPtr Backend::send(Tensors& tensors, int to, int tag) {
  const at::Tensor t = only("send", tensors);
  check("send", tensors);
  TORCH_CHECK_VALUE(to >= 0 && to < size_ && tag >= 0, "ouro: send: to rank ", to, " of a group of ", size_,
                    ", with tag ", tag);
  const Call call{c10d::OpType::SEND, "send", tensors, {}, {}, true};
  if (!t.is_cuda()) {
    const at::Tensor from = to_read(t);
    return on_host(
        call,
        [&](MessageSet& set, MessageSet::Then ended) {
          return set.send(bytes_of(from), to, tag, std::move(ended));
        },
        [from] {});  // the capture keeps it alive until it is sent
  }
  const auto from = std::make_shared<at::Tensor>();
  return on_gpu(
      call,
      [this, t, from, to, tag](const Stream& s) -> Status {
        *from = to_read(t);
        if (tag != kExchanged) return ouro::send(group_, bytes_of(*from), to, tag, s).status();
        const Transfer sent = Transfer::send_to(to, bytes_of(*from));
        return ouro::exchange(group_, std::span(&sent, 1), s).status();
      },
      [] {});
}

Backend::WorkPtr Backend::receive(Tensors& tensors, int from, int tag, c10d::OpType type, const char* name) {
  const at::Tensor t = only(name, tensors);
  check(name, tensors, tensors);
  TORCH_CHECK_VALUE(from >= kAnySource && from < size_ && tag >= 0, "ouro: ", name, ": from rank ", from,
                    " of a group of ", size_, ", with tag ", tag);
  const Call call{type, name, {}, tensors, {}, true};
  const Target target(t);
  const auto store = [target] { target.store(); };
  if (!t.is_cuda())
    return on_host(
        call,
        [&](MessageSet& set, MessageSet::Then ended) {
          return set.recv(bytes_of(target.flat()), from, tag, {.exact = true}, std::move(ended));
        },
        store);
  if (from == kAnySource) {
    TORCH_CHECK_VALUE(tag != kExchanged, "ouro: ", name,
                      ": on a GPU a receive from any source has a tag other ",
                      "than 0, and so have the messages that it can take; those with tag 0 match in order");
    return from_any_to_gpu(call, tag, target);
  }
  return on_gpu(
      call,
      [this, target, from, tag](const Stream& s) -> Status {
        if (tag == kExchanged) {
          const Transfer received = Transfer::receive_from(from, bytes_of(target.flat()));
          return ouro::exchange(group_, std::span(&received, 1), s).status();
        }
        return ouro::recv(group_, bytes_of(target.flat()), from, tag, s, {.exact = true}).status();
      },
      store);
}

Backend::WorkPtr Backend::recv(Tensors& tensors, int from, int tag) {
  TORCH_CHECK_VALUE(from >= 0, "ouro: recv: from rank ", from);
  return receive(tensors, from, tag, c10d::OpType::RECV, "recv");
}

Backend::WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) {
  return receive(tensors, kAnySource, tag, c10d::OpType::RECVANYSOURCE, "recvAnySource");
}

Group Backend::monitor() {
  const std::lock_guard lock(mutex_);
  if (!monitor_.valid()) {
    auto made = job_->context.group(group_.ranks(), "monitored_barrier " + group_.name(),
                                    {.deadline = options_->timeout});
    if (!made.ok()) std::rethrow_exception(exception_of(made.status()));
    monitor_ = *made;
  }
  return monitor_;
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& o, bool wait_all_ranks) {
  using Clock = std::chrono::steady_clock;
  const auto limit = o.timeout.count() >= 0 ? o.timeout : options_->timeout;
  Group group = monitor();
  ++seq_;
  std::uint64_t turn = ++barriers_;
  const TakingSignals signals;
  const auto fail = [&](const std::string& text) {
    signals.rethrow();
    C10_THROW_ERROR(DistBackendError, "ouro: [Rank " + std::to_string(rank_) + "]: " + text);
  };
  const auto take = [&](int from, int tag, Clock::time_point until) -> Status {
    for (;;) {  // skips messages that a failed barrier has left behind
      std::uint64_t theirs = 0;
      const auto left = std::chrono::duration_cast<Milliseconds>(until - Clock::now());
      OURO_TRY(ouro::recv(group, std::span(&theirs, 1), from, tag, std::max(left, Milliseconds(1))).status());
      if (theirs >= turn) return Status();
    }
  };
  const auto until = after(limit);
  if (rank_ != 0) {
    Status s = ouro::send(group, std::span(&turn, 1), 0, kReport);
    if (s.ok()) s = take(0, kGo, until);
    if (!s.ok())
      fail(c10::str("Rank ", rank_,
                    " successfully reached monitoredBarrier, but received errors while waiting for send/recv",
                    " from rank 0. Please check rank 0 logs for faulty rank. (", s.message(), ")"));
    return;
  }
  std::vector<int> missing, passed;
  for (int r = 1; r < size_; ++r) {
    if (Clock::now() >= until && missing.empty())
      fail(c10::str("Rank 0 timed out in monitoredBarrier after ", limit.count(),
                    " ms. Ranks that it has processed: ", passed.empty() ? "none" : list(passed)));
    const bool here = take(r, kReport, until).ok();
    (here ? passed : missing).push_back(r);
    if (!here && !wait_all_ranks) break;
  }
  if (!missing.empty())
    fail(c10::str(missing.size() == 1 ? "Rank " : "Ranks ", list(missing),
                  " failed to pass monitoredBarrier in ", limit.count(), " ms"));
  for (int r = 1; r < size_; ++r)
    if (const Status s = ouro::send(group, std::span(&turn, 1), r, kGo); !s.ok())
      std::rethrow_exception(exception_of(s));
}

}  // namespace ouro::adapter
