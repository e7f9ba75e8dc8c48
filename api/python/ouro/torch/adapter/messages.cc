// Messages between two ranks, and the monitored barrier, which is built on them. See backend.h.
#include "backend.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "signals.h"
#include "tensors.h"

namespace ouro::adapter {
namespace {

constexpr int kReport = 1, kGo = 2;  // tags of the monitored barrier

std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (const int r : ranks) text += c10::str(text.empty() ? "" : ", ", r);
  return text;
}

bool from_any(const Lanes::Lane& lane) {
  const auto& [receives, peer, tag] = lane;
  return receives && peer == kAnySource;
}

}  // namespace

Backend::WorkPtr Backend::message(Call call, const Lanes::Lane& lane,
                                  std::function<Status(const Stream&, Work&)> body,
                                  std::function<void()> store) {
  const Tensors& any = call.inputs.empty() ? call.outputs : call.inputs;
  auto work = make_work(call);
  const c10::Device device = any.front().device();
  const c10::impl::VirtualGuardImpl gpu(device.type());
  if (any.front().is_cuda() && !from_any(lane)) {
    Deferred m{work, gpu.getStream(device), current_stream(any.front()), std::move(body), std::move(store)};
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
  {
    const std::lock_guard lock(mutex_);
    if (coalescing_) coalesced_.push_back(work);
  }
  // The sender of a message from any source is known only when the message is here, which a stream cannot
  // report. The lane starts after the work that is in the stream now, and the Work ends when the tensor may
  // be used in any stream.
  std::shared_ptr<c10::Event> ready;
  if (any.front().is_cuda()) {
    ready = std::make_shared<c10::Event>(device.type());
    ready->record(gpu.getStream(device));
  }
  ++messages_;
  auto task = [this, work, gpu, device, ready, body = std::move(body), store = std::move(store)] {
    const Status s = run([&](const Stream& over) -> Status {
      std::optional<c10::StreamGuard> aside;
      if (ready) {
        ready->synchronize();
        aside.emplace(gpu.getStreamFromGlobalPool(device));
      }
      OURO_TRY(body(over, *work));
      store();
      if (aside) aside->current_stream().synchronize();
      return {};
    });
    --messages_;
    work->complete(s);
  };
  const Status added = lanes_->add(lane, std::move(task));
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
  const auto from = std::make_shared<at::Tensor>();  // keeps the tensor alive until it is sent
  return message(
      {c10d::OpType::SEND, "send", tensors, {}, {}, true}, {false, to, tag},
      [this, t, from, to, tag](const Stream& s, Work&) -> Status {
        *from = to_read(t);
        const CView bytes(from->data_ptr(), from->nbytes(), DType::u8, view(*from).device);
        return s.valid() ? ouro::send(group_, bytes, to, tag, s).status()
                         : ouro::send(group_, bytes, to, tag);
      },
      [] {});
}

Backend::WorkPtr Backend::receive(Tensors& tensors, int from, int tag, c10d::OpType type, const char* name) {
  const at::Tensor t = only(name, tensors);
  check(name, tensors);
  TORCH_CHECK_VALUE(from >= kAnySource && from < size_ && tag >= 0, "ouro: ", name, ": from rank ", from,
                    " of a group of ", size_, ", with tag ", tag);
  const auto target = std::make_shared<const Target>(t);
  return message(
      {type, name, {}, tensors, {}, true}, {true, from, tag},
      [this, target, from, tag](const Stream& s, Work& work) -> Status {
        const View bytes(target->flat().data_ptr(), target->flat().nbytes(), DType::u8,
                         view(target->flat()).device);
        const RecvOptions exact{.exact = true};
        if (s.valid()) return ouro::recv(group_, bytes, from, tag, s, exact).status();
        const Result<Received> received = ouro::recv(group_, bytes, from, tag, exact);
        OURO_TRY(received.status());
        work.received_from(received->source);
        return {};
      },
      [target] { target->store(); });
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
