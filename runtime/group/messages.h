// Messages: tagged point-to-point traffic of a group, matched at the receiver, with a queue of unexpected
// messages. Used by group. A waiting thread drives all traffic of its rank; there is no thread of its own.
#pragma once
#include <cstdint>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "runtime/core/types.h"
#include "runtime/core/wait.h"
#include "runtime/exec/gpu/device_receipt.h"
#include "runtime/group/match_queue.h"
#include "transport/transport.h"

namespace ouro::rt {

struct Envelope {
  int source = 0, tag = 0;
  std::size_t bytes = 0;
  DType dtype = DType::u8;  ///< of the elements, as the sender has said; u8 is bytes of any type
};

struct Unexpected;
struct Message;

/// Messages that are done, in order, for a thread that waits for many. The engine guards it.
struct EndedMessages {
  Message* first = nullptr;
  Message* last = nullptr;
};

/// A send or a receive in flight. The caller keeps it alive until it is done or withdrawn.
struct Message {
  bool sends = false;
  int peer = 0;  ///< destination, or source (kAny: any)
  int tag = 0;
  std::byte* data = nullptr;  ///< read only for sends
  std::size_t bytes = 0;      ///< size of the message, or of the receive buffer
  bool exact = false;         ///< receives: `bytes` is the expected length, not only the capacity
  DType dtype = DType::u8;    ///< of the elements; both ends must say the same, unless one says u8
  static constexpr int kAny = -1;
  /// Receives: the key of the message that match() has set aside; 0: the next message.
  std::uint64_t matched = 0;
  void* on_device = nullptr;  ///< the address of a message in GPU memory
  /// Carries a message in GPU memory: one of the three, which `data` then refers to. Empty: slots of links
  /// carry it, or the memory of the caller is lent to the link.
  struct Carrier {
    std::shared_ptr<void> pinned = nullptr;     ///< memory of the host
    std::shared_ptr<std::byte> lent = nullptr;  ///< sends: memory of the device that the fabric reads
    std::shared_ptr<DeviceReceipt> receipt =
        nullptr;  ///< receives: memory of the device that the fabric writes
  } carrier = {};

  // Progress.
  bool done = false;
  Status outcome = {};
  Envelope envelope = {};            // receives
  std::size_t moved = 0;             // sends: bytes that are in slots, or lent to the link
  std::uint64_t first = 0, end = 0;  // sends: range of its chunks on the link
  bool begun = false;
  // Receives, in Messages:
  MatchQueue<Message>::Place place = {};  // while it waits for a message
  Unexpected* claims = nullptr;           // it has this one, which is still arriving
  EndedMessages* ended = nullptr;         // where it is noted when it is done; nullptr: nowhere
  Message* next_ended = nullptr;

  /// Forgets all progress: a graph posts the same message again.
  void begin_again() {
    *this = Message{.sends = sends,
                    .peer = peer,
                    .tag = tag,
                    .data = data,
                    .bytes = bytes,
                    .exact = exact,
                    .dtype = dtype,
                    .matched = matched,
                    .on_device = on_device,
                    .carrier = std::move(carrier)};
  }
};

/// A message for which there was no receive when it began.
struct Unexpected {
  Envelope envelope;
  std::unique_ptr<std::byte[]> data;
  std::size_t got = 0;
  std::shared_ptr<DeviceReceipt> receipt = nullptr;  // of a receive that has ended; in place of `data`
  Message* claimed = nullptr;
  std::uint64_t matched = 0;  // its key, if it is set aside
  MatchQueue<Unexpected>::Place place = {};
  std::list<Unexpected>::iterator self = {};
  std::byte* memory() const { return receipt ? receipt->on_host() : data.get(); }
  bool complete() const { return got == envelope.bytes; }
};

inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

/// The engine: messages.cc moves messages over the links, message_matching.cc finds which receive gets which.
class Messages {
  friend struct TestAccess;

 public:
  Messages(std::unique_ptr<transport::Links> links, int rank, int size);
  ~Messages();

  /// Sends of up to this many bytes are done with their memory once they are in slots.
  static constexpr std::size_t kBuffered = 128 << 10;
  /// Bytes of messages without a receive from which no more are taken.
  static constexpr std::size_t kBacklog = std::size_t{1} << 30;

  /// Errors: those of transport::Links::reach; the message is in no queue then.
  Status post(Message&);
  /// Makes all progress that is possible. Errors: ring-corrupt (a peer has written an impossible
  /// slot), resource.
  /// Messages without a receive stay on their links, and their senders wait, while those that are queued here
  /// have kBacklog bytes or more, unless this rank has a receive for their source, or a message of its own
  /// that has not been taken. `source`: messages from there (kAny: all) are taken nevertheless.
  Status progress(std::optional<int> source = std::nullopt);
  /// Removes a message that is not done from all queues; its memory belongs to the caller again. A send that
  /// is completely on the link becomes done. False: a send is only partly on the link, which can carry no
  /// other message any more. (The rest of a message that has been received in part is put into the queue
  /// of unexpected messages.)
  bool withdraw(Message&);
  bool done(const Message&) const;
  /// Takes the first message out of `ended`; nullptr: there is none.
  Message* take_ended(EndedMessages& ended);
  /// As withdraw() for a receive of which nothing has arrived; false: something has, or it is done.
  bool withdraw_unbegun(Message&);
  /// Whether all sends are over, and what they have sent has arrived, as far as it is known here. `ask`: see
  /// transport::FarLinks::arrived.
  bool all_arrived(bool ask);
  /// The earliest matching message that has begun to arrive and has no receive; nullopt: there is none.
  std::optional<Envelope> peek(int source, int tag) const;
  /// A message that was set aside, and the key by which it is received.
  struct Match {
    Envelope envelope;
    std::uint64_t key = 0;
  };
  /// Sets aside the message that peek finds: only a receive with its key gets it.
  std::optional<Match> match(int source, int tag);
  /// Returns a message that was set aside to its place in the queue; no-op if it has been received.
  void put_back(std::uint64_t key);
  /// Puts a slot that no correct rank writes into the link to a rank of this host (OURO_FAULT). Returns false
  /// if the link is full: then nothing has changed.
  Result<bool> damage_link(int to);
  /// See transport::FarLinks.
  void linger(std::shared_ptr<void> after) {
    if (far_) far_->linger(std::move(after));
  }
  /// The counter to wait on between two calls of progress(): read it before the call.
  Counter& doorbell() { return *links_->doorbell(rank_); }

 private:
  using FarLinks = transport::FarLinks;
  /// The links to other hosts if `rank` is on one, else nullptr.
  FarLinks* far(int rank) const { return far_ && far_->is_far(rank) ? far_ : nullptr; }
  using Arrivals = std::list<Unexpected>;
  struct Inbound {
    transport::LinkEnd link;
    bool within = false;  // between the first and the last slot of a message
    Envelope envelope;
    std::uint64_t first = 0;  // of the message's slots
    std::size_t got = 0;
    Message* target = nullptr;
    bool posted = false;          // the link has memory to receive into
    Message* expected = nullptr;  // the link expects that the next message is for this receive
    Unexpected* arrival = nullptr;
    bool lost = false;  // there was no memory for a message without a receive
  };
  struct Outbound {
    transport::LinkEnd link;
    bool reached = false;  // link.view is set
    std::deque<Message*> queue;
    std::deque<Message*> lent;  // sent from their own memory, not taken by the receiver yet
    bool torn = false;          // a message was given up halfway: nothing can follow
  };
  /// Makes an Unexpected of a message of which `got` bytes have arrived: with memory for it, or with a
  /// receipt.
  Unexpected& add(const Envelope&, std::size_t got, std::shared_ptr<DeviceReceipt> receipt = nullptr);
  void discard(Unexpected&);
  bool may_take(int source, std::size_t bytes, std::optional<int> asked) const;
  /// Makes the link to rank `to` usable. Releases `lock` meanwhile; after an error it stays released. Errors:
  /// as post().
  Status reach(int to, std::unique_lock<std::mutex>& lock);
  Status pull(Inbound&, int source, std::optional<int> asked);
  void push(Outbound&, int to);
  void give_back(Outbound&);
  void expect(int source);
  void post_receive(Inbound&, int source, const PostedReceive&);
  std::shared_ptr<std::byte> device_of(int source, const std::shared_ptr<DeviceReceipt>&) const;
  void recall(const Message&);
  void deliver(Unexpected&, Message&);
  void claim(Message&);
  void take(Unexpected&, Message&);
  Message* first_wanted(const Envelope&) const;
  Message* receiver_of(const Envelope&);
  Unexpected* first_waiting(int source, int tag) const;
  void offer(Unexpected&);
  void await_receive(Unexpected&);
  static void end(Message&);  ///< it is done
  bool withdraw_locked(Message&);

  std::unique_ptr<transport::Links> links_;
  FarLinks* const far_;  // those to other hosts, or nullptr
  int rank_;
  mutable std::mutex mutex_;
  std::vector<Inbound> in_;
  std::vector<Outbound> out_;
  MatchQueue<Message> wanted_;      // posted receives
  Arrivals arrivals_;               // messages for which there was no receive when they began
  MatchQueue<Unexpected> waiting_;  // those that neither a receive has claimed nor match() has set aside
  std::size_t most_ = kBacklog;
  std::size_t backlog_ = 0;                                   // bytes of memory of arrivals_
  std::unordered_map<std::uint64_t, Unexpected*> set_aside_;  // by key
  std::uint64_t last_key_ = 0;
};

}  // namespace ouro::rt
