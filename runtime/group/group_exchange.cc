// Groups: exchanges of messages. See group.h.
#include <fmt/format.h>

#include <exception>
#include <utility>

#include "runtime/core/no_memory.h"
#include "runtime/group/group.h"

namespace ouro::rt {

using namespace std::chrono_literals;

Status Group::check(const Transfer& t) const {
  if (t.peer == MessageRequest::kAny)
    return invalid("exchange: a receive from any rank; expected a rank of the group");
  return mailbox_.check({.sends = t.sends,
                         .peer = t.peer,
                         .tag = MessageRequest::kExchangeTag,
                         .bytes = t.bytes,
                         .exchange = true},
                        t.data);
}

std::vector<std::shared_ptr<Message>> Group::messages_of(std::span<const Transfer> transfers,
                                                         bool on_device) {
  std::vector<std::shared_ptr<Message>> messages;
  messages.reserve(transfers.size());
  for (const Transfer& t : transfers) {
    const MessageRequest request{.sends = t.sends,
                                 .peer = t.peer,
                                 .tag = MessageRequest::kExchangeTag,
                                 .bytes = t.bytes,
                                 .exact = true,
                                 .exchange = true};
    messages.push_back(on_device ? std::make_shared<Message>(Message::on_device(request, t.data))
                                 : std::make_shared<Message>(request, t.data));
  }
  return messages;
}

/// A message of another length than its receive stays queued, where every later receive would find it.
Status Group::exchanged(const Status& outcome) {
  return outcome.reason() == Reason::mismatch ? detector_.fail(outcome) : outcome;
}

/// Makes what follows on the stream begin after the last exchange by messages, so that messages of a pair
/// match in the order of the calls.
void Group::order_exchange(Stream& stream) {
  if (!last_exchange_ || last_exchange_->done()) return;
  GpuStream* const gpu_stream = stream.gpu();
  if (gpu_stream) {  // the order of graphs is said where they are launched
    const auto capture = gpu::gpu().capturing(gpu_stream->get());
    if (!capture.ok() || *capture != 0) return;
  }
  stream.after(last_exchange_);
}

Status Group::exchange_on_device(std::span<const Transfer> transfers,
                                 const std::shared_ptr<GpuStream>& stream, std::shared_ptr<WorkState>* work) {
  OURO_ASSIGN(const bool by_kernels, exchanges_.by_kernels());
  if (by_kernels) return exchanges_.run(transfers, stream, work);
  std::lock_guard lock(exchange_mutex_);
  order_exchange(*stream);
  OURO_ASSIGN(*work, gpu_messages_.run(messages_of(transfers, true), stream,
                                       [weak = weak_from_this()](const std::vector<Message*>& raw) {
                                         const Status outcome = exchange_if_there(weak, raw, 0ms);
                                         const auto self = weak.lock();
                                         return self ? self->exchanged(outcome) : outcome;
                                       }));
  last_exchange_ = *work;
  return {};
}

Status Group::exchange_on_host(std::span<const Transfer> transfers, Stream& stream,
                               std::shared_ptr<WorkState>* work) {
  std::lock_guard lock(exchange_mutex_);
  order_exchange(stream);
  // Holds no handle of the group, as no message does.
  *work = stream.enqueue(
      [weak = weak_from_this(), run = submit(messages_of(transfers, false), &stream)]() -> Status {
        const Status outcome = run();
        const auto self = weak.lock();
        return self ? self->exchanged(outcome) : outcome;
      });
  last_exchange_ = *work;
  return {};
}

/// An error like a lack of memory fails the group, as others wait for the messages.
Status Group::exchange(std::span<const Transfer> transfers, bool on_device, Stream* stream,
                       std::shared_ptr<WorkState>* work) try {
  OURO_TRY(ready());
  const Status s = exchange_in_order(transfers, on_device, stream, work);
  return s.ok() ? s : detector_.stick(s);
} catch (const std::exception&) {
  return detector_.out_of_memory();
}

Status Group::exchange_in_order(std::span<const Transfer> transfers, bool on_device, Stream* stream,
                                std::shared_ptr<WorkState>* work) {
  for (const Transfer& t : transfers) OURO_TRY(check(t));
  OURO_TRACE(CALL, "rank {} of group {} exchanges {} messages {}", rank(), spec_.name, transfers.size(),
             stream ? "on a stream" : "blocking");
  GpuStream* const gpu_stream = stream ? stream->gpu() : nullptr;
  const int device = context_->spec().gpu;
  if (on_device && gpu_stream && gpu_stream->device() != device)
    return invalid(
        fmt::format("exchange: a stream of GPU {}; this rank has GPU {}", gpu_stream->device(), device));
  if (on_device && gpu_stream) {
    OURO_TRY(gpu_stream->check_thread());
    return exchange_on_device(transfers, gpu_stream->shared_from_this(), work);
  }
  if (!on_device && stream) return exchange_on_host(transfers, *stream, work);
  if (on_device && stream) {  // a stream of the host
    OURO_ASSIGN(auto own, gpu_.own_stream());
    std::vector<Transfer> kept(transfers.begin(), transfers.end());
    *work = stream->enqueue([self = shared_from_this(), kept = std::move(kept), own]() -> Status {
      std::shared_ptr<WorkState> moved;
      OURO_TRY(self->exchange_on_device(kept, own, &moved));
      moved->wait();
      return moved->outcome();
    });
    return {};
  }
  std::shared_ptr<WorkState> moved;
  if (on_device) {
    OURO_ASSIGN(auto own, gpu_.own_stream());
    OURO_TRY(exchange_on_device(transfers, own, &moved));
    moved->wait();
    return moved->outcome();
  }
  {
    std::lock_guard lock(exchange_mutex_);
    moved = last_exchange_;
  }
  if (moved) moved->wait();
  const auto messages = messages_of(transfers, false);
  std::vector<Message*> raw;
  for (const auto& m : messages) raw.push_back(m.get());
  return exchanged(exchange(raw, 0ms));
}

}  // namespace ouro::rt
