/// Messages between two ranks, and batches of messages and operations. For users, who include ouro/ouro.hpp.
/// @file
#pragma once
#include <cstddef>
#include <memory>
#include <optional>

#include "ouro/groups.hpp"

namespace ouro {

namespace rt {  // the implementation; opaque here
class MatchedMessage;
}

/// @defgroup messages Messages and batches
/// Between two ranks of a group; not collective, not ordered against collectives. Order is kept per (source,
/// destination, tag). Messages that nobody waits for are queued at the receiver. Tags are 0..2^31-1.
/// Errors: invalid (rank, tag, buffer: at the call, not sticky); all else is sticky in the group.
/// @{

inline constexpr int kAnySource = -1;  ///< instead of a source: a message from any rank of the group

/// What was received, or would be.
struct Received {
  int source = 0;         ///< its rank in the group
  int tag = 0;            ///< as it was sent
  std::size_t bytes = 0;  ///< length of the message
};
/// Returns once the buffer may be reused. Any length, zero included.
OURO_API Status send(Group&, CView data, int dst, int tag = 0);
OURO_API Result<Work> send(Group&, CView data, int dst, int tag, const Stream&);  ///< the same on a stream
/// Receives one message of at most out.bytes() bytes; a longer one is `invalid` and stays queued.
/// `deadline` 0: the group's. One of the call's own that passes before a message has begun does not stick; it
/// counts from when the message's turn comes on the GPU where `out` lies there. Inside group_start it has to
/// be 0, and what is returned is empty. Errors: invalid (a negative deadline, or one inside group_start), and
/// those of all operations.
OURO_API Result<Received> recv(Group&, View out, int src, int tag = 0,
                               Milliseconds deadline = Milliseconds(0));
OURO_API Result<Work> recv(Group&, View out, int src, int tag, const Stream&);  ///< the same on a stream
/// How a message is received.
struct RecvOptions {
  Milliseconds deadline{0};  ///< 0: the group's; on a stream it has to be: a wait for the work takes one
  bool exact = false;  ///< true: a message of another length than `out` is a `mismatch`, and stays queued
};
OURO_API Result<Received> recv(Group&, View out, int src, int tag, const RecvOptions&);  ///< the same
OURO_API Result<Work> recv(Group&, View out, int src, int tag, const Stream&,
                           const RecvOptions&);  ///< the same on a stream
/// The next message that recv(src, tag) would take, if one is here. Never blocks. Errors: as recv.
OURO_API Result<std::optional<Received>> probe(Group&, int src, int tag = 0);

/// A message that match() has taken out of the queue: whoever holds it, and nobody else, receives it, in any
/// thread, once. Copies share it. Where the last one goes before it was received, it is in the queue again,
/// at its place.
class OURO_API Matched {
 public:
  Matched() = default;                                         ///< an empty handle
  const Received& about() const { return about_; }             ///< where it comes from, and its length
  explicit operator bool() const { return impl_ != nullptr; }  ///< false: an empty handle
  const std::shared_ptr<rt::MatchedMessage>& impl() const { return impl_; }  ///< for the library
  Matched(Received about, std::shared_ptr<rt::MatchedMessage> i)
      : about_(about), impl_(std::move(i)) {}  ///< for the library

 private:
  Received about_;
  std::shared_ptr<rt::MatchedMessage> impl_;
};
/// The next message that recv(src, tag) would take, if one is here, set aside for the caller: between a probe
/// and a receive another thread may take the message, between a match and its receive nobody can. Never
/// blocks; the rest of a long message may still be on its way. Errors: as recv.
OURO_API Result<std::optional<Matched>> match(Group&, int src, int tag = 0);
/// Receives a message of this group that was matched. `deadline` as above; after it the handle still has the
/// message. Errors: as recv; invalid (an empty handle, of another group, received before or by another
/// receive just now, longer than out; inside group_start).
OURO_API Result<Received> recv(Group&, const Matched&, View out, Milliseconds deadline = Milliseconds(0));

/// Operations called by this thread until the matching group_end are deferred and submitted together:
/// messages progress together, and operations of different groups (several ranks in one thread) too.
/// Operations of one group keep their order, and each sees what those before it wrote, as without a batch.
OURO_API void group_start();
/// Submits. Blocks unless all operations were given streams. Returns the first error; an argument error drops
/// all.
OURO_API Status group_end();
/// Whether this thread is between group_start and group_end, where nothing runs: a call of a library's own
/// that needs a result before it returns cannot be served there.
OURO_API bool in_batch();

/// @}

}  // namespace ouro
