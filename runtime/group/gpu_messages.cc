// Messages in memory of a GPU. See gpu_messages.h.
#include "runtime/group/gpu_messages.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/core/log.h"
#include "runtime/exec/host/wiring.h"
#include "runtime/network/network.h"

namespace ouro::rt {
namespace {

/// Largest message that is sent from memory of the device. It needs a second buffer of its size at both ends.
constexpr std::size_t kMostOnDevice = std::size_t{256} << 20;

}  // namespace

bool GpuMessages::on_fabric(const Message& m) const {
  Network* const network = context_.network();
  const MessageRequest& r = m.request;
  if (!network || r.bytes < context_.spec().gpu_direct_bytes || r.bytes > kMostOnDevice) return false;
  const auto takes = [&](int peer) { return network->fabric().takes_device(members_.world_rank(peer)); };
  if (r.peer != MessageRequest::kAny) return takes(r.peer);
  for (int peer = 0; peer < members_.size(); ++peer)
    if (takes(peer)) return true;
  return false;
}

Status GpuMessages::take_carrier(Message* m, bool may_use_fabric) const {
  const int device = context_.spec().gpu;
  const MessageRequest& r = m->request;
  bool is_direct = false;
  if (may_use_fabric && on_fabric(*m)) {
    // If the device has no memory for it, the message goes through the host.
    if (r.sends) {
      auto memory = take_device(device, r.bytes);
      is_direct = memory.ok();
      if (is_direct) m->carrier = LentCarrier{std::move(*memory)};
    } else {
      auto receipt = DeviceReceipt::make(device, r.bytes, Wiring::kFarMessageSlot);
      is_direct = receipt.ok();
      if (is_direct) m->carrier = ReceiptCarrier{std::move(*receipt)};
    }
  }
  OURO_LOG(trace, P2P, "{} of {} bytes on GPU {}, {} rank {}: {}", r.sends ? "send" : "recv", r.bytes, device,
           r.sends ? "to" : "from", r.peer, is_direct ? "direct" : "through the host");
  if (is_direct) return {};
  OURO_ASSIGN(auto pinned, take_pinned(r.bytes));
  m->carrier = PinnedCarrier{std::move(pinned)};
  return {};
}

Result<std::shared_ptr<WorkState>> GpuMessages::run(std::vector<std::shared_ptr<Message>> messages,
                                                    const std::shared_ptr<GpuStream>& stream,
                                                    Exchange exchange) const {
  if (stream->device() != context_.spec().gpu)
    return invalid(fmt::format("message: a stream of GPU {}; this rank has GPU {}", stream->device(),
                               context_.spec().gpu));
  OURO_TRY(stream->check_thread());
  const auto on_device = std::make_shared<OperationOnDevice>();
  OURO_ASSIGN(const std::uint64_t capture, gpu::gpu().capturing(stream->get()));
  for (const auto& m : messages)  // all of them before the first copy
    // A graph may replay a send while the one before is still on the network, without a copy of its own.
    if (m->device_memory && m->request.bytes > 0) OURO_TRY(take_carrier(m.get(), capture == 0 && !crowded_));
  auto work = enqueue(messages, on_device, stream, std::move(exchange));
  if (work.ok()) return work;
  // Copies that have been enqueued may still access the pinned memory.
  const auto passed = mark_now(stream);
  if (passed.ok())
    (*passed)->then([on_device, keep = std::move(messages)](const Status&) { on_device->end(); });
  else
    (void)gpu::gpu().synchronize(stream->get()).ok();
  return work;
}

Result<std::shared_ptr<WorkState>> GpuMessages::enqueue(const std::vector<std::shared_ptr<Message>>& messages,
                                                        const std::shared_ptr<OperationOnDevice>& on_device,
                                                        const std::shared_ptr<GpuStream>& stream,
                                                        Exchange exchange) const {
  gpu::Gpu& gpu = gpu::gpu();
  std::vector<gpu::HostCopy> received;  // messages belong to the stream as soon as it has them
  std::vector<std::pair<std::shared_ptr<DeviceReceipt>, std::byte*>> landed;
  for (const auto& m : messages)
    if (const auto* c = m->carrier.as<ReceiptCarrier>())
      landed.emplace_back(c->receipt, static_cast<std::byte*>(m->device_memory));
  for (const auto& m : messages) {
    const std::size_t bytes = m->request.bytes;
    if (const auto* c = m->carrier.as<LentCarrier>())
      OURO_TRY(gpu.copy(c->memory.get(), m->device_memory, bytes, stream->get()));
    const auto* const pinned = m->carrier.as<PinnedCarrier>();
    if (!pinned) continue;
    // For receives, too: bytes that the message does not fill are copied back unchanged. A receive of an
    // exchange is filled, or the group has failed.
    if (m->request.sends || !m->request.exchange)
      OURO_TRY(gpu.copy(pinned->memory.get(), m->device_memory, bytes, stream->get()));
    if (!m->request.sends)
      received.push_back({static_cast<std::byte*>(m->device_memory), m->carrier.on_host(), bytes});
  }
  std::shared_ptr<WorkState> exchanged;
  OURO_TRY(stream->enqueue(
      [messages, exchange = std::move(exchange)] {
        std::vector<Message*> raw;
        for (const auto& m : messages) {  // a graph may replay this
          m->begin_again();
          raw.push_back(m.get());
        }
        Status outcome = exchange(raw);
        for (const auto& m : messages)
          if (const auto* c = m->carrier.as<ReceiptCarrier>(); c && m->done && m->outcome.ok())
            if (const Status listed = c->receipt->finish(); outcome.ok()) outcome = listed;
        return outcome;
      },
      received, &exchanged));
  for (const auto& [receipt, to] : landed) OURO_TRY(receipt->enqueue(to, stream->get()));
  auto capture = gpu.capturing(stream->get());
  if (!capture.ok()) return capture.status();
  auto work = std::make_shared<WorkState>();
  if (*capture != 0) {
    work->complete({});
    return work;
  }
  auto copied = mark_now(stream);
  if (!copied.ok()) return copied.status();
  (*copied)->then([work, exchanged, on_device, keep = messages](const Status& s) {
    on_device->end();
    work->complete(s.ok() ? exchanged->outcome() : s);
  });
  return work;
}

}  // namespace ouro::rt
