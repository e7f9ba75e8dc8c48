// Message: a send or a receive in flight. Made by callers of a group; used by the message engine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

#include "runtime/core/status.h"
#include "runtime/group/message_carrier.h"
#include "runtime/group/message_matching.h"

namespace ouro::rt {

struct Message;

/// Messages that are done, in order, for a thread that waits for many. The engine guards it.
struct EndedMessages {
  Message* first = nullptr;
  Message* last = nullptr;
};

/// A send or a receive in flight: what matching sees of it (the request and its state), its carrier, its
/// outcome and its progress. The caller keeps it alive until it is done or withdrawn.
struct Message : MatchableReceive {
  Message() = default;
  /// `memory`: of the host.
  Message(const MessageRequest& r, std::byte* memory) : MatchableReceive{r}, carrier(memory) {}
  /// `device_memory`: the caller's, of a GPU. GpuMessages chooses the carrier.
  static Message on_device(const MessageRequest& r, void* device_memory) {
    Message m(r, nullptr);
    m.device_memory = device_memory;
    return m;
  }
  /// The caller's buffer, of the host or of a GPU.
  const void* callers_memory() const { return device_memory ? device_memory : carrier.on_host(); }
  /// Forgets all progress: a graph posts the same message again.
  void begin_again() {
    Message again(request, nullptr);
    again.device_memory = device_memory;
    again.carrier = std::move(carrier);
    *this = std::move(again);
  }

  void* device_memory = nullptr;  ///< the caller's buffer, if it is on a GPU
  MessageCarrier carrier;

  // The outcome, for the caller.
  bool done = false;
  Status outcome = {};
  Envelope envelope = {};  ///< receives: of the message that has arrived

  // Progress on the links; the engine sets these.
  bool begun = false;
  std::size_t moved = 0;             // sends: bytes that are in slots, or lent to the link
  std::uint64_t first = 0, end = 0;  // sends: range of its chunks on the link
  EndedMessages* ended = nullptr;    // where the engine notes that it is done; nullptr: nowhere
  Message* next_ended = nullptr;
};

}  // namespace ouro::rt
