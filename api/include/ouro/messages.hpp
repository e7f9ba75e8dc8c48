/// Messages between two ranks, and batches of messages and operations. For users, who include ouro/ouro.hpp.
/// @file
#pragma once
#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "ouro/groups.hpp"

namespace ouro {

namespace rt {  // the implementation; opaque here
class MatchedMessage;
class MessageSet;
}  // namespace rt

/// @defgroup messages Messages and batches
/// Between two ranks of a group; not collective, not ordered against collectives. Messages with equal
/// (source, destination, tag) arrive in order. Messages without a waiting receive are queued at the receiver.
/// Tags are 0..2^31-1. Errors: invalid (rank, tag, buffer; reported by the call, not sticky); all others are
/// sticky in the group.
/// @{

inline constexpr int kAnySource = -1;  ///< in place of a source rank: a message from any rank of the group

/// Describes a message that was received or is waiting.
struct Received {
  int source = 0;         ///< rank of the sender in the group
  int tag = 0;            ///< tag it was sent with
  std::size_t bytes = 0;  ///< length of the message
};
/// Returns once the buffer may be reused. The message may have any length, including zero.
OURO_API Status send(Group&, CView data, int dst, int tag = 0);
OURO_API Result<Work> send(Group&, CView data, int dst, int tag, const Stream&);  ///< the same on a stream
/// Receives one message of at most out.bytes() bytes; a longer one is `invalid` and remains queued.
/// `deadline` 0: the group's. If the call's own deadline passes before a message has begun, the error is not
/// sticky; if `out` is on the GPU, this deadline counts from the message's turn on that GPU. Inside
/// group_start, it must be 0, and the returned value is empty. Errors: invalid (a negative deadline, or one
/// inside group_start), and those of all operations.
OURO_API Result<Received> recv(Group&, View out, int src, int tag = 0,
                               Milliseconds deadline = Milliseconds(0));
OURO_API Result<Work> recv(Group&, View out, int src, int tag, const Stream&);  ///< the same on a stream
/// How a message is received.
struct RecvOptions {
  /// 0: the group's; must be 0 on a stream, where waiting for the Work takes a deadline.
  Milliseconds deadline{0};
  /// true: a message whose length differs from that of `out` is a `mismatch` and remains queued.
  bool exact = false;
};
OURO_API Result<Received> recv(Group&, View out, int src, int tag, const RecvOptions&);  ///< the same
OURO_API Result<Work> recv(Group&, View out, int src, int tag, const Stream&,
                           const RecvOptions&);  ///< the same on a stream
/// Describes the next message that recv(src, tag) would take, if it has arrived. Never blocks.
/// Errors: as recv.
OURO_API Result<std::optional<Received>> probe(Group&, int src, int tag = 0);

/// A message that match() has taken out of the queue: only a holder of this handle can receive it, once, in
/// any thread. Copies share it. If the last copy is destroyed before the message is received, the message
/// returns to its place in the queue.
class OURO_API Matched {
 public:
  Matched() = default;                                                       ///< an empty handle
  const Received& about() const { return about_; }                           ///< its sender, tag and length
  explicit operator bool() const { return impl_ != nullptr; }                ///< false: an empty handle
  const std::shared_ptr<rt::MatchedMessage>& impl() const { return impl_; }  ///< for the library
  Matched(Received about, std::shared_ptr<rt::MatchedMessage> i)
      : about_(about), impl_(std::move(i)) {}  ///< for the library

 private:
  Received about_;
  std::shared_ptr<rt::MatchedMessage> impl_;
};
/// Reserves the next message that recv(src, tag) would take, if it has arrived, for the caller: between a
/// probe and a receive another thread may take the message, between a match and its receive none can. Never
/// blocks; the rest of a long message may still be in flight. Errors: as recv.
OURO_API Result<std::optional<Matched>> match(Group&, int src, int tag = 0);
/// Receives a matched message of this group. `deadline` as above; if it passes, the handle still holds the
/// message. Errors: as recv; invalid (an empty handle, one of another group, one already received or being
/// received by another call, a message longer than `out`; inside group_start).
OURO_API Result<Received> recv(Group&, const Matched&, View out, Milliseconds deadline = Milliseconds(0));

/// One message of an exchange, at one of its ends.
struct OURO_API Transfer {
  int peer = 0;                                      ///< rank of the other end in the group; may be this rank
  bool sends = false;                                ///< false: it is received
  View buffer;                                       ///< is not written if the message is sent
  static Transfer send_to(int rank, CView data);     ///< sends `data` to `rank`
  static Transfer receive_from(int rank, View out);  ///< receives a message of the length of `out`
};
/// Sends and receives several messages at the same time. The k-th message that one rank sends to another in
/// exchanges of the group meets the k-th that the other receives from it in exchanges, whatever calls these
/// are in. Each must have exactly the length of its receive, else the group fails with `mismatch`. They never
/// meet messages of send() and recv(). Only the ranks that are named take part. The messages of one call do
/// not wait for each other. Those of later calls of this rank wait for this one, also on other streams.
///
/// The buffers of a call are all in memory of this rank's GPU, or all in memory of the host, and so are those
/// at the other ends. An empty buffer counts as one of the others' kind. A rank may send to itself. Buffers
/// that are written must not overlap others of the call.
///
/// On GPUs of one host that can map each other's memory, one kernel of each rank moves all messages of a
/// call, if ranks that share a GPU are threads of one process. Such an exchange can be captured in a graph.
/// Replays and other exchanges of the group must be ordered by the program. Elsewhere messages move through
/// the host. Inside group_start, exchanges of one group on one stream become one exchange. Errors: invalid
/// (rank, buffer; reported by the call, not sticky); all others are sticky.
OURO_API Status exchange(Group&, std::span<const Transfer>);
OURO_API Result<Work> exchange(Group&, std::span<const Transfer>, const Stream&);  ///< the same on a stream
/// The same for containers. Without it, std::exchange would take an unqualified call with a std::vector.
template <std::convertible_to<std::span<const Transfer>> Transfers>
Status exchange(Group& group, Transfers&& transfers) {
  return exchange(group, std::span<const Transfer>(transfers));
}

/// Messages of one group, in host memory, that are in flight at the same time without a thread for each: one
/// thread drives all of them, while there are any. Thread-safe. Copies are handles of the same set. When the
/// last one is destroyed with messages in flight, these end as `revoked`, and so does their group, on all
/// ranks; close() prevents that.
class OURO_API MessageSet {
 public:
  /// A function that is called once when a message has ended, with the received message (empty for sends) or
  /// the error: by the thread of the set, or by one that adds a message. It must not throw, close or destroy
  /// the set or its group, nor wait for messages of this set.
  using Then = std::function<void(const Result<Received>&)>;
  MessageSet() = default;                          ///< an empty handle
  static Result<MessageSet> create(const Group&);  ///< Errors: invalid (an empty handle), resource.
  explicit operator bool() const { return impl_ != nullptr; }  ///< false: an empty handle
  /// Begins to send, without waiting. `data` must not change until `then` is called. Errors, after which
  /// `then` is not called: invalid (an empty handle, the arguments, memory of a GPU, inside group_start),
  /// revoked (after close()), those of the group.
  Status send(CView data, int dst, int tag, Then then);
  /// Begins to receive. Receives that one thread adds match in this order. The deadline is the group's.
  /// Errors: as send(), and invalid (a deadline in the options).
  Status recv(View out, int src, int tag, const RecvOptions&, Then then);
  /// Ends receives without a message so far, as `revoked`, waits for all other messages, each within its
  /// deadline, and refuses new ones. The group remains usable. Idempotent.
  void close();

 private:
  std::shared_ptr<rt::MessageSet> impl_;
};

/// Operations that this thread calls until the matching group_end are deferred and submitted together:
/// messages progress together, and so do operations of different groups (several ranks in one thread).
/// Operations of one group keep their order, and each sees what those before it wrote, as without a batch.
OURO_API void group_start();
/// Submits the deferred operations. Blocks unless every operation was given a stream. Returns the first
/// error; an argument error drops all operations.
OURO_API Status group_end();
/// Whether this thread is between group_start and group_end, where nothing runs: a library call that needs a
/// result before it returns cannot be served there.
OURO_API bool in_batch();

/// @}

}  // namespace ouro
