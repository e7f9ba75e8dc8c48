// MessageCarrier: the memory at one end of a message, and how its bytes get from there into slots of a link,
// or from slots to there. Used by the message engine; GpuMessages chooses the carriers of messages in
// memory of a GPU.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <variant>

#include "runtime/core/link_view.h"
#include "runtime/core/status.h"
#include "runtime/exec/gpu/device_receipt.h"
#include "transport/transport.h"

namespace ouro::rt {

inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

/// Memory of the host. Slots carry copies of a short send. A long one is lent to the link, where the link can
/// read the sender's memory; the receiver has taken it before the send ends.
struct HostCarrier {
  std::byte* memory = nullptr;
};
/// Pinned memory of the host that stands in for memory of a GPU. Copies of the stream fill it before, and
/// empty it after.
struct PinnedCarrier {
  std::shared_ptr<void> memory;
};
/// Sends: memory of the device that stands in for the caller's. It is lent to the fabric, which reads it.
struct LentCarrier {
  std::shared_ptr<std::byte> memory;
};
/// Receives: memory of the device that the fabric writes, and pinned memory for chunks that arrive in slots.
struct ReceiptCarrier {
  std::shared_ptr<DeviceReceipt> receipt;
};

/// The rank that a send is for, and the links to it if it is on another host.
struct ChunkReceiver {
  transport::FarLinks* far;
  int rank;
};
/// A chunk of a send that is about to be published.
struct OutboundChunk {
  const LinkView& link;
  std::uint64_t index;    ///< of the chunk on the link
  std::size_t at, bytes;  ///< the part of the message
  const ChunkReceiver& to;
};

/// A chunk that the sender has published, and that the receiver has not given back.
struct InboundChunk {
  const LinkView& link;
  std::uint64_t index;
  std::size_t at, bytes;
};

/// Holds the carrier of one end of a message, one of the four above. All differences between carriers are in
/// the functions of this class: a new carrier needs a struct, and a branch in each function where it differs.
class MessageCarrier {
 public:
  /// Sends from the memory of the host of up to this many bytes are done with it once they are in slots.
  static constexpr std::size_t kBuffered = 128 << 10;

  MessageCarrier() = default;
  explicit MessageCarrier(std::byte* host) : carrier_(HostCarrier{host}) {}
  MessageCarrier(PinnedCarrier c) : carrier_(std::move(c)) {}
  MessageCarrier(LentCarrier c) : carrier_(std::move(c)) {}
  MessageCarrier(ReceiptCarrier c) : carrier_(std::move(c)) {}

  template <class C>
  const C* as() const {
    return std::get_if<C>(&carrier_);
  }
  /// The memory of the host that is sent from or received into; nullptr for sends from memory of the device.
  std::byte* on_host() const {
    if (const auto* c = as<HostCarrier>()) [[likely]]
      return c->memory;
    return stand_in_on_host();
  }

  // Sends.
  /// Whether the send must keep its memory until the receiver has given the slots back. A long message waits
  /// for its receiver in any case, so it need not be copied.
  bool lends(const LinkView& link, std::size_t message_bytes) const {
    return (link.elsewhere && message_bytes > kBuffered) || as<LentCarrier>();
  }
  /// Puts a chunk into its slot, or (`lends`) tells the link where it is.
  void fill(const OutboundChunk& c, bool lends) const {
    if (const auto* lent = as<LentCarrier>()) [[unlikely]]
      return lend_device(*lent, c);
    const std::byte* const from = on_host() + c.at;
    if (c.link.elsewhere) c.link.elsewhere[c.index % c.link.slot_count] = lends ? from : nullptr;
    if (!lends) copy_bytes(c.link.payload(c.index), from, c.bytes);
  }

  // Receives.
  /// The memory of the device that a fabric may write, or nullptr.
  std::shared_ptr<std::byte> on_device() const;
  /// Whether the memory is not the caller's: it may stay in use after the receive has been withdrawn.
  bool outlives_receive() const { return as<ReceiptCarrier>(); }
  /// Moves a chunk from its slot to its place, unless the link has put it there. Errors: those
  /// of copy_to_host.
  Status take(const InboundChunk& c) const {
    const std::byte* const device =
        c.link.on_device ? c.link.on_device[c.index % c.link.slot_count] : nullptr;
    if (device || as<ReceiptCarrier>()) [[unlikely]]
      return take_on_device(c, device);
    std::byte* const to = on_host() + c.at;
    if (const std::byte* const found = c.link.found(c.index); found != to) copy_bytes(to, found, c.bytes);
    return {};
  }
  /// Moves a whole message here from the carrier that has received it. Errors: those of copy_to_host.
  Status take_all(const MessageCarrier& from, std::size_t bytes) const;

 private:
  std::byte* stand_in_on_host() const;
  static void lend_device(const LentCarrier&, const OutboundChunk&);
  /// `device`: where the chunk is, if that is memory of the device.
  Status take_on_device(const InboundChunk&, const std::byte* device) const;

  std::variant<HostCarrier, PinnedCarrier, LentCarrier, ReceiptCarrier> carrier_;
};

}  // namespace ouro::rt
