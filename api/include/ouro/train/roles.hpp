/// Training ranks, replay buffers and a coordinator: their groups, the messages between them, and the replay
/// service. For users.
/// @file
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ouro/ouro.hpp"
#include "ouro/train/layout.hpp"
#include "ouro/train/param.hpp"

namespace ouro::train {

/// @defgroup mailboxes Training: mailboxes
/// @{

/// What Mailbox::recv() returns.
struct Message {
  int source = 0;  ///< its rank in the group
  int tag = 0;     ///< as it was sent
  Bytes data;      ///< all of it
};

/// Messages of any length between any two ranks of a group, matched whole: any number of threads may receive
/// from any source at once, beside collectives of other threads. Order is kept for each (source, destination,
/// tag). What nobody waits for is queued at the receiver. Payloads are bytes as they are; `as_bytes` of a
/// span makes them from any type, never a conversion of values. Tags are 0..2^31-1. Ranks are those of the
/// group. Thread-safe.
class OURO_API Mailbox {
 public:
  /// Collective over the group, which nobody else uses for messages. Waits for all ranks.
  static Result<Mailbox> create(Group);
  int rank() const;  ///< of the caller in the group
  int size() const;  ///< ranks of the group

  /// Returns once the bytes are on their way. Errors: invalid (rank, tag), timeout, peer_lost.
  Status send(CBytes, int dst, int tag = 0);
  /// The bytes are copied. Messages to different ranks do not wait for each other.
  Result<Work> isend(CBytes, int dst, int tag = 0);
  /// The next message with this tag, from `src` or from anybody; of any length. `deadline` 0: the group's.
  /// Errors: invalid, timeout (the message stays where it is), peer_lost (any rank of the group died).
  Result<Message> recv(std::optional<int> src = {}, int tag = 0, Milliseconds deadline = Milliseconds(0));
  /// What recv would take, if it is here. Never blocks.
  Result<std::optional<Received>> probe(std::optional<int> src = {}, int tag = 0);
  /// Waits for all that isend has begun.
  Status drain(Milliseconds deadline = Milliseconds(-1));
  /// Drains and leaves. Idempotent.
  Status close();

  struct OURO_HIDDEN State;
  explicit Mailbox(std::shared_ptr<State> s) : state_(std::move(s)) {}  ///< for the library

 private:
  std::shared_ptr<State> state_;
};

/// The bytes of an array.
template <class T>
CBytes as_bytes(std::span<const T> values) {
  return std::as_bytes(values);
}

/// @}
/// @defgroup roles Training: roles
/// @{

/// Groups are there on their members only.
struct OURO_API Roles {
  RankLayout layout;             ///< who does what
  std::optional<Group> train;    ///< all training ranks
  std::optional<Group> agents;   ///< my agent group
  std::optional<Group> buffers;  ///< all buffers
  std::optional<Mailbox> mail;   ///< over all ranks; where there is more than one
  /// Leaves all of them. Legal on every rank; idempotent.
  Status close();
};
/// Collective over the context's world: exchanges the hosts' identities (InitOptions::host_id; unless
/// options.hosts names them), makes the layout and the groups. options.world_size is the context's, or 1 for
/// "as it is". A deadline of 0 means 300 s. A world of one rank: one training rank, and no communication.
/// Errors, on every rank: invalid (options that differ between ranks, those of RankLayout::make).
OURO_API Result<Roles> make_roles(Context&, RankLayoutOptions = {}, GroupOptions = {});

/// @}
/// @defgroup replay Training: the replay service
/// A request is one byte that says which, then its payload. DATA is answered with a score (a double) on tag
/// 0, GET_METADATA with bytes on tag 1, the others not at all.
/// @{

/// The first byte of a request.
enum class ReplayRequest : std::uint8_t {
  data = 1,       ///< a batch to keep; answered with its score
  get_metadata,   ///< answered with the buffer's metadata
  baseline_sync,  ///< a model; not answered
  exit            ///< the client's last request; not answered
};

/// What a buffer does with the requests of its clients.
struct ReplayHandlers {
  std::function<double(int source, CBytes)> store;             ///< returns the score
  std::function<Bytes(int source)> metadata = {};              ///< none: empty
  std::function<void(int source, CBytes)> baseline_sync = {};  ///< none: ignored
};
/// How many requests were served.
struct ReplayReport {
  std::int64_t stored = 0;    ///< of data
  std::int64_t metadata = 0;  ///< of metadata
  std::int64_t syncs = 0;     ///< of baseline_sync
};
/// Serves until `clients` different ranks have said EXIT: takes requests from anybody on tag 0, answers
/// without waiting. Each request has to come within `deadline` (0: the group's). Errors: invalid (no clients,
/// no `store`, a request that does not exist, naming its source), timeout, peer_lost.
OURO_API Result<ReplayReport> serve_replay(Mailbox&, int clients, const ReplayHandlers&,
                                           Milliseconds deadline = Milliseconds(0));

/// When a client waits for the score of what it sent: at once, before it sends the next, or not before its
/// end.
enum class Scoring : std::uint8_t { synchronous, deferred, asynchronous };

/// One client of one manager. Not thread-safe; other clients of the same rank need other tags, hence other
/// managers.
class OURO_API ReplayClient {
 public:
  /// A client of the buffer on rank `manager` of the mailbox.
  ReplayClient(Mailbox mail, int manager, Scoring scoring)
      : mail_(std::move(mail)), manager_(manager), scoring_(scoring) {}
  /// Sends DATA. Returns a score: its own (synchronous; late ones of submissions that timed out are dropped),
  /// that of the submission before (deferred; none at first), or one that has arrived, if any (asynchronous).
  Result<std::optional<double>> submit(CBytes);
  Result<Bytes> metadata();      ///< sends GET_METADATA and waits for the answer
  Status baseline_sync(CBytes);  ///< sends BASELINE_SYNC with this model
  /// Reads the scores that are still owed, each within `deadline` (0: the group's), then says EXIT; EXIT also
  /// after an error, which it returns. Idempotent once EXIT was said.
  Status leave(Milliseconds deadline = Milliseconds(0));
  int pending() const { return pending_; }  ///< scores that are owed

 private:
  Status request(ReplayRequest, CBytes);
  Result<double> score(Milliseconds deadline);
  Mailbox mail_;
  int manager_;
  Scoring scoring_;
  int pending_ = 0;
  int metadata_owed_ = 0;  // answers that a failed wait has left on their way
  bool left_ = false;
};
/// @}

}  // namespace ouro::train
