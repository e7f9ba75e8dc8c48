// Messages: the engine of a group's tagged point-to-point traffic. It moves messages over links; which
// receive gets which message is in message_matching.h, and how bytes get into slots and out of them in
// message_carrier.h. Used by Mailbox. A waiting thread drives all traffic of its rank; there is no thread
// of its own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/core/wait.h"
#include "runtime/group/message.h"
#include "runtime/group/message_carrier.h"
#include "runtime/group/message_matching.h"
#include "transport/transport.h"

namespace ouro::rt {

class Messages {
  friend struct TestAccess;

 public:
  Messages(std::unique_ptr<transport::Links> links, int rank, int size);
  ~Messages();

  /// Errors: those of transport::Links::reach; the message is in no queue then.
  Status post(Message&);
  /// Makes all progress that is possible. Errors: ring-corrupt (a peer has written an impossible
  /// slot), resource.
  /// Messages without a receive stay on their links, and their senders wait, while those that are queued here
  /// have MessageMatching::kBacklog bytes or more, unless this rank has a receive for their source, or a
  /// message of its own that has not been taken. `source`: messages from there (kAny: all) are
  /// taken nevertheless.
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
  /// Whether all sends are over, and the messages have arrived, as far as it is known here. `ask`:
  /// see transport::FarLinks::arrived.
  bool all_arrived(bool ask);
  /// The earliest matching message that has begun to arrive and has no receive; nullopt: there is none.
  std::optional<Envelope> peek(int source, int tag) const;
  /// A message that was set aside, and the key by which it is received.
  using Match = MessageMatching::Match;
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
  /// An unexpected message and the memory in which it waits: its own, or a carrier that has outlived
  /// its receive.
  struct StoredMessage : UnexpectedMessage {
    std::unique_ptr<std::byte[]> own_memory;
    MessageCarrier carrier;
    std::size_t got = 0;
    std::list<StoredMessage>::iterator self = {};
    bool complete() const { return got == envelope.bytes; }
  };
  struct Inbound {
    transport::LinkEnd link;
    bool within = false;  // between the first and the last slot of a message
    Envelope envelope;
    std::uint64_t first = 0;  // of the message's slots
    std::size_t got = 0;
    Message* target = nullptr;         // the receive of the message, or
    StoredMessage* arrival = nullptr;  // what stores it
    bool posted = false;               // the link has memory to receive into
    Message* expected = nullptr;       // the link expects that the next message is for this receive
    bool lost = false;                 // there was no memory for a message without a receive
    const MessageCarrier& carrier() const { return target ? target->carrier : arrival->carrier; }
  };
  struct Outbound {
    transport::LinkEnd link;
    bool reached = false;  // link.view is set
    std::deque<Message*> queue;
    std::deque<Message*> lent;  // sent from their own memory, not taken by the receiver yet
    bool torn = false;          // a message was given up halfway: nothing can follow
  };
  static StoredMessage& stored(UnexpectedMessage& m) { return static_cast<StoredMessage&>(m); }
  /// The links to other hosts if `rank` is on one, else nullptr.
  FarLinks* far(int rank) const { return far_ && far_->is_far(rank) ? far_ : nullptr; }
  /// Stores a message of which `got` bytes have arrived, in memory of its own or where they are.
  StoredMessage& store(const Envelope&, std::size_t got);
  StoredMessage& store_in(const MessageCarrier&, const Envelope&, std::size_t got);
  void discard(StoredMessage&);
  /// Makes the link to rank `to` usable. Releases `lock` meanwhile; after an error it stays released.
  /// Errors: as post().
  Status reach(int to, std::unique_lock<std::mutex>& lock);

  // Sends.
  void push(Outbound&, int to);
  void push_chunk(Outbound&, Message&, const ChunkReceiver&, bool lends);
  void give_back(Outbound&);
  bool has_sends() const;
  bool withdraw_send(Message&);

  // Receives.
  void begin_receive(Message&);
  Status pull(Inbound&, int source, std::optional<int> asked);
  /// Finds the receive of the message that begins with the next slot, or memory for it. It is not within the
  /// message afterwards if the message has to stay on the link.
  Status begin_arrival(Inbound&, int source, const SlotHeader&, std::optional<int> asked);
  Status take_chunk(Inbound&, int source, const SlotHeader&);
  void end_arrival(Inbound&, int source);
  Message* receiver_of(const Envelope&);
  void offer(StoredMessage&);
  void deliver_if_complete(StoredMessage&, Message&);
  void withdraw_from(Inbound&, Message&);

  // Memory in which links receive by themselves.
  /// Posts the first receive for `source` to the link, for the case that the next message of `source`
  /// matches it.
  void expect(Inbound& i, int source) {
    if (i.link.view.elsewhere) expect_on_link(i, source);
  }
  void expect_on_link(Inbound&, int source);
  /// The message that begins with the next slot is received in the memory of this carrier.
  void post_to_link(Inbound&, int source, const MessageCarrier&, std::size_t capacity, int tag);
  void clear_posted(Inbound&, int source);
  void recall(const Message&);

  static void end(Message&);  ///< it is done
  bool withdraw_locked(Message&);

  std::unique_ptr<transport::Links> links_;
  FarLinks* const far_;  // those to other hosts, or nullptr
  int rank_;
  mutable std::mutex mutex_;
  std::vector<Inbound> in_;
  std::vector<Outbound> out_;
  MessageMatching matching_;
  std::list<StoredMessage> arrivals_;
};

}  // namespace ouro::rt
