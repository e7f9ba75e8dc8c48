// Messages: tagged point-to-point traffic of a group, matched at the receiver, with a queue of the
// unexpected. Used by group. Whoever waits drives all traffic of its rank; no thread of its own.
#pragma once
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/core/types.h"
#include "runtime/core/wait.h"
#include "transport/transport.h"

namespace ouro::rt {

struct Envelope {
  int source = 0, tag = 0;
  std::size_t bytes = 0;
};

/// A send or a receive under way. Lives in the caller until it is done or withdrawn.
struct Message {
  bool sends = false;
  int peer = 0;  ///< destination, or source (kAny: whoever comes first)
  int tag = 0;
  std::byte* data = nullptr;  ///< read only for sends
  std::size_t bytes = 0;      ///< of the message, or room for one
  bool exact = false;         ///< receives: `bytes` is the length that is expected, not only the room
  static constexpr int kAny = -1;
  std::uint64_t matched =
      0;  ///< receives: the key of the message that match() has set aside; 0: the next one
  /// Where the message really lies, if on a GPU; `data` is then pinned memory that stands for it.
  void* on_device = nullptr;
  std::shared_ptr<void> pinned = nullptr;

  bool done = false;
  Status outcome = {};
  Envelope envelope = {};            // receives
  std::size_t moved = 0;             // sends: bytes that have gone into slots, or are lent to the link
  std::uint64_t first = 0, end = 0;  // sends: of the chunks of the link; end: if lent
  bool begun = false;
};

class Messages {
 public:
  Messages(std::unique_ptr<transport::Links> links, int rank, int size);
  ~Messages();

  /// Messages up to this are done with their memory once they lie in slots.
  static constexpr std::size_t kBuffered = 128 << 10;

  /// Errors: those of transport::Links::reach; the message is in no queue then.
  Status post(Message&);
  /// Moves what can move. Returns ring-corrupt if a peer wrote nonsense.
  Status progress();
  /// Takes a message that is not done out of all queues; its memory is its caller's again. A send of which
  /// all is on the link is done with that. False: half of it is on the link, which can carry no other any
  /// more (sends only; a half-received message goes on into the unexpected queue).
  bool withdraw(Message&);
  bool done(const Message&) const;
  std::optional<Envelope> peek(int source, int tag) const;
  /// A message that was set aside, and the key by which it is received.
  struct Match {
    Envelope envelope;
    std::uint64_t key = 0;
  };
  /// Sets aside what peek finds: only a receive with its key gets it.
  std::optional<Match> match(int source, int tag);
  /// What was set aside is in the queue again, at its place; nothing if it was received.
  void put_back(std::uint64_t key);
  /// Puts a slot into the link to a rank of this host that no honest rank writes (OURO_FAULT).
  Status damage_link(int to);
  /// See transport::Links.
  void linger(std::shared_ptr<void> after) { links_->linger(std::move(after)); }
  /// What to wait on between two calls of progress(): read it before the call.
  Counter& doorbell() { return *links_->doorbell(rank_); }

 private:
  struct Arrival {  // a message that nobody had asked for when it began
    Envelope envelope;
    std::vector<std::byte> data;
    std::size_t got = 0;
    Message* claimed = nullptr;
    std::uint64_t matched = 0;  // its key, if it is set aside
    bool waits() const { return !claimed && matched == 0; }
    bool complete() const { return got == envelope.bytes; }
  };
  struct Inbound {
    transport::LinkEnd link;
    bool within = false;  // between the first and the last slot of a message
    Envelope envelope;
    std::uint64_t first = 0;  // of its slots
    std::size_t got = 0;
    Message* target = nullptr;
    bool posted = false;          // the link has been told of some memory
    Message* expected = nullptr;  // the link has been told that the next message is probably for this one
    std::list<Arrival>::iterator arrival;
    bool lost = false;  // there was no memory for the rest of a message that nobody waits for any more
  };
  struct Outbound {
    transport::LinkEnd link;
    bool reached = false;  // its view is there
    std::deque<Message*> queue;
    std::deque<Message*> lent;  // sent out of their own memory, not taken yet
    bool torn = false;          // a message was given up in its middle: nothing can follow
  };
  static bool matches(const Message& m, const Envelope& e) {
    return (m.peer == Message::kAny || m.peer == e.source) && m.tag == e.tag;
  }
  /// The link to rank `to` is usable after; `lock` is let go of meanwhile. Errors: as post().
  Status reach(int to, std::unique_lock<std::mutex>& lock);
  Status pull(Inbound&, int source);
  void push(Outbound&, int to);
  void give_back(Outbound&);
  void expect(int source);
  void post_receive(Inbound&, int source, const PostedReceive&);
  void recall(const Message&);
  void deliver(Arrival&, Message&);
  void claim(Message&);
  void take(Arrival&, Message&);
  std::list<Message*>::iterator first_wanted(const Envelope&);
  void offer(Arrival&);

  std::unique_ptr<transport::Links> links_;
  int rank_;
  mutable std::mutex mutex_;
  std::vector<Inbound> in_;
  std::vector<Outbound> out_;
  std::list<Message*> wanted_;   // posted receives, in order
  std::list<Arrival> arrivals_;  // in order of their first slot
  std::uint64_t last_key_ = 0;   // of the messages that were set aside
};

}  // namespace ouro::rt
