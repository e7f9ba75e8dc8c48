// The carriers of messages in memory of a GPU. See message_carrier.h.
#include "runtime/group/message_carrier.h"

namespace ouro::rt {

std::byte* MessageCarrier::stand_in_on_host() const {
  if (const auto* pinned = as<PinnedCarrier>()) return static_cast<std::byte*>(pinned->memory.get());
  const auto* const c = as<ReceiptCarrier>();
  return c ? c->receipt->on_host() : nullptr;
}

void MessageCarrier::lend_device(const LentCarrier& lent, const OutboundChunk& c) {
  if (c.link.elsewhere) c.link.elsewhere[c.index % c.link.slot_count] = nullptr;
  if (c.to.far) c.to.far->lend_device(c.to.rank, c.index, lent.memory.get() + c.at, lent.memory);
}

std::shared_ptr<std::byte> MessageCarrier::on_device() const {
  const auto* const c = as<ReceiptCarrier>();
  return c ? c->receipt->on_device() : nullptr;
}

Status MessageCarrier::take_on_device(const InboundChunk& c, const std::byte* device) const {
  const auto* const mine = as<ReceiptCarrier>();
  const bool in_place = device && mine && device == mine->receipt->on_device().get() + c.at;
  std::byte* const to = on_host() + c.at;
  if (device && !in_place) {  // the chunk is in memory of a receive that did not get the message
    OURO_TRY(copy_to_host(to, device, c.bytes));
  } else if (!device) {
    if (const std::byte* const found = c.link.found(c.index); found != to) copy_bytes(to, found, c.bytes);
  }
  if (mine) mine->receipt->arrived(c.at, c.bytes, in_place);
  return {};
}

Status MessageCarrier::take_all(const MessageCarrier& from, std::size_t bytes) const {
  const auto* const mine = as<ReceiptCarrier>();
  if (const auto* const other = from.as<ReceiptCarrier>()) {
    if (!mine) return other->receipt->copy_to(on_host());
    mine->receipt->take_over(other->receipt);
    return {};
  }
  copy_bytes(on_host(), from.on_host(), bytes);
  if (mine) mine->receipt->arrived(0, bytes, false);
  return {};
}

}  // namespace ouro::rt
