// Messages in memory of a GPU. See gpu_messages.h.
#include "runtime/group/gpu_messages.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/core/log.h"
#include "runtime/exec/host/wiring.h"

namespace ouro::rt {
namespace {

/// Largest message that is sent from memory of the device. It needs a second buffer of its size at both ends.
constexpr std::size_t kMostOnDevice = std::size_t{256} << 20;

}  // namespace

bool GpuMessages::on_fabric(const Message& m) const {
  Network* const network = context_.network();
  if (!network || m.bytes < context_.spec().gpu_direct_bytes || m.bytes > kMostOnDevice) return false;
  const auto takes = [&](int peer) { return network->fabric().takes_device(members_.world_rank(peer)); };
  if (m.peer != Message::kAny) return takes(m.peer);
  for (int r = 0; r < members_.size(); ++r)
    if (takes(r)) return true;
  return false;
}

Status GpuMessages::take_carrier(Message* m, bool may_use_fabric) const {
  const int device = context_.spec().gpu;
  if (may_use_fabric && on_fabric(*m)) {
    // If the device has no memory for it, the message goes through the host.
    if (m->sends) {
      if (auto memory = take_device(device, m->bytes); memory.ok()) {
        m->carrier.lent = std::move(*memory);
        m->data = m->carrier.lent.get();
      }
    } else if (auto receipt = DeviceReceipt::make(device, m->bytes, Wiring::kFarMessageSlot); receipt.ok()) {
      m->carrier.receipt = std::move(*receipt);
      m->data = m->carrier.receipt->on_host();
    }
  }
  const bool is_direct = m->carrier.lent || m->carrier.receipt;
  OURO_LOG(trace, P2P, "{} of {} bytes on GPU {}, {} rank {}: {}", m->sends ? "send" : "recv", m->bytes,
           device, m->sends ? "to" : "from", m->peer, is_direct ? "direct" : "through the host");
  if (is_direct) return {};
  OURO_ASSIGN(m->carrier.pinned, take_pinned(m->bytes));
  m->data = static_cast<std::byte*>(m->carrier.pinned.get());
  return {};
}

Result<std::shared_ptr<WorkState>> GpuMessages::run(std::vector<std::shared_ptr<Message>> messages,
                                                    const std::shared_ptr<GpuStream>& stream,
                                                    Exchange exchange) const {
  if (stream->device() != context_.spec().gpu)
    return invalid(fmt::format("message: a stream of GPU {}; this rank has GPU {}", stream->device(),
                               context_.spec().gpu));
  OURO_TRY(stream->check_thread());
  const auto on_device = std::make_shared<transport::OnDevice>();
  OURO_ASSIGN(const std::uint64_t capture, gpu::gpu().capturing(stream->get()));
  for (const auto& m : messages)  // all of them before the first copy
    // A graph may replay a send while the one before is still on the network, without a copy of its own.
    if (m->on_device && m->bytes > 0) OURO_TRY(take_carrier(m.get(), capture == 0));
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
                                                        const std::shared_ptr<transport::OnDevice>& on_device,
                                                        const std::shared_ptr<GpuStream>& stream,
                                                        Exchange exchange) const {
  gpu::Gpu& gpu = gpu::gpu();
  struct Back {
    void* to;
    const std::byte* from;
    std::size_t bytes;
  };
  std::vector<Back> received;  // messages belong to the stream as soon as it has them
  std::vector<std::pair<std::shared_ptr<DeviceReceipt>, std::byte*>> landed;
  for (const auto& m : messages)
    if (m->carrier.receipt) landed.emplace_back(m->carrier.receipt, static_cast<std::byte*>(m->on_device));
  for (const auto& m : messages) {
    if (m->carrier.lent) OURO_TRY(gpu.copy(m->carrier.lent.get(), m->on_device, m->bytes, stream->get()));
    if (!m->carrier.pinned) continue;
    // For receives, too: bytes that the message does not fill are copied back unchanged.
    OURO_TRY(gpu.copy(m->data, m->on_device, m->bytes, stream->get()));
    if (!m->sends) received.push_back({m->on_device, m->data, m->bytes});
  }
  const auto exchanged = stream->enqueue([messages, exchange = std::move(exchange)] {
    std::vector<Message*> raw;
    for (const auto& m : messages) {  // a graph may replay this
      m->begin_again();
      raw.push_back(m.get());
    }
    Status outcome = exchange(raw);
    for (const auto& m : messages)
      if (m->carrier.receipt && m->done && m->outcome.ok())
        if (const Status listed = m->carrier.receipt->finish(); outcome.ok()) outcome = listed;
    return outcome;
  });
  for (const auto& [receipt, to] : landed) OURO_TRY(receipt->enqueue(to, stream->get()));
  for (const Back& b : received) OURO_TRY(gpu.copy(b.to, b.from, b.bytes, stream->get()));
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
