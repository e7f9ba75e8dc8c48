// MessageMatching: which receive gets which message, by source, tag and order. It knows no links, no devices
// and no data. Used by the message engine (messages.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "runtime/core/status.h"
#include "runtime/core/types.h"
#include "runtime/group/match_queue.h"

namespace ouro::rt {

/// What a receiver knows of a message before it has the data.
struct Envelope {
  int source = 0, tag = 0;
  std::size_t bytes = 0;
  DType dtype = DType::u8;  ///< of the elements, as the sender has said; u8 is bytes of any type
};

/// What a caller asks for, apart from the memory: what a message is matched by.
struct MessageRequest {
  bool sends = false;
  int peer = 0;  ///< destination, or source (kAny: any)
  int tag = 0;
  std::size_t bytes = 0;    ///< size of the message, or of the receive buffer
  bool exact = false;       ///< receives: `bytes` is the expected length, not only the capacity
  DType dtype = DType::u8;  ///< of the elements; both ends must say the same, unless one says u8
  bool exchange = false;    ///< part of an exchange, with the tag kExchangeTag, which no caller can give
  /// Receives: the key of the message that MessageMatching::set_aside has reserved; 0: the next message.
  std::uint64_t matched = 0;
  static constexpr int kAny = -1, kExchangeTag = -1;
};

struct UnexpectedMessage;

/// A receive, as matching sees it.
struct MatchableReceive {
  MessageRequest request = {};
  // MessageMatching sets these.
  MatchQueue<MatchableReceive>::Place place = {};  // while the receive waits for a message
  UnexpectedMessage* claims = nullptr;             // the message that the receive has claimed
};

/// A message for which there was no receive when it began to arrive.
struct UnexpectedMessage {
  Envelope envelope = {};
  // MessageMatching sets these.
  std::size_t held = 0;   // bytes of the backlog that this message accounts for
  std::uint64_t key = 0;  // the message is set aside under this key; 0: it is not
  MatchableReceive* claimed = nullptr;
  MatchQueue<UnexpectedMessage>::Place place = {};
};

/// Receives that wait for messages, and messages that wait for receives. Of the receives that match a message
/// the earliest gets it, and a receive gets the earliest of the messages that match it. The owner decides
/// when data moves, and calls forget() when a message no longer needs matching. Not thread-safe.
class MessageMatching {
 public:
  /// Bytes of messages without a receive from which no more are taken.
  static constexpr std::size_t kBacklog = std::size_t{1} << 30;

  // Receives.
  /// Matches a new receive. *found is the message that it claims: the one that is set aside under its key, or
  /// the first that waits. If *found is nullptr, the receive waits from now on. Errors: invalid, mismatch;
  /// the receive does not wait then, and the message stays where it is. Throws bad_alloc; nothing has
  /// changed then.
  Status post(MatchableReceive&, UnexpectedMessage** found);
  /// Withdraws a receive. Returns the message that it had claimed if any other receive may have that now; the
  /// caller then offers it to take_receive().
  UnexpectedMessage* withdraw(MatchableReceive&);
  /// The receive that gets the next message from `source` if their tags are equal, or nullptr if this is not
  /// certain: a receive from any source may get it first, or take another message and leave this one
  /// to the next.
  MatchableReceive* expected_from(int source) const;

  // Messages.
  /// Takes the earliest receive that matches a message out of the queue, or returns nullptr. If the message
  /// does not fit, *misfit is the error with which the receive ends, and the caller calls again; else
  /// *misfit is OK.
  MatchableReceive* take_receive(const Envelope&, Status* misfit);
  /// Whether a message without a receive may be taken. False: the backlog is full, no receive waits for
  /// `source`, and `asked` names neither `source` nor kAny.
  bool may_take(int source, std::size_t bytes, std::optional<int> asked) const;
  /// Adds `held` bytes of memory that a message without a receive occupies to the backlog.
  void hold(UnexpectedMessage&, std::size_t held);
  /// From now on a message waits for a receive. If it has waited before, it keeps its place. Precondition:
  /// take_receive() has no receive for it. Throws bad_alloc; nothing has changed then.
  void await_receive(UnexpectedMessage&);
  /// Gives a message to a receive that take_receive() has returned.
  static void claim(UnexpectedMessage&, MatchableReceive&);
  /// Ends a message's stay, whether it waits, is claimed or is set aside. Its receive no longer claims it.
  void forget(UnexpectedMessage&);

  // Probes.
  /// The earliest matching message that waits for a receive, or nullptr.
  const UnexpectedMessage* peek(int source, int tag) const { return first_message(source, tag); }
  /// A message that was set aside, and the key by which it is received.
  struct Match {
    Envelope envelope;
    std::uint64_t key = 0;
  };
  /// Sets aside the message that peek() finds: only a receive with its key gets it.
  std::optional<Match> set_aside(int source, int tag);
  /// Removes a key. Returns its message if this waits for a receive again; the caller then offers it to
  /// take_receive(). nullptr: a receive has claimed the message, or has received it.
  UnexpectedMessage* put_back(std::uint64_t key);

  // For tests, too.
  std::size_t waiting_receives() const { return receives_.size(); }
  std::size_t backlog() const { return backlog_; }
  void limit_backlog(std::size_t bytes) { most_ = bytes; }

 private:
  MatchableReceive* first_receive(int source, int tag) const;
  UnexpectedMessage* first_message(int source, int tag) const;

  MatchQueue<MatchableReceive> receives_;   // those that wait
  MatchQueue<UnexpectedMessage> messages_;  // those that neither a receive has claimed nor a key reserves
  std::unordered_map<std::uint64_t, UnexpectedMessage*> set_aside_;  // by key
  std::uint64_t last_key_ = 0;
  std::size_t backlog_ = 0, most_ = kBacklog;
};

}  // namespace ouro::rt
