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

/// The result of Mailbox::recv().
struct Message {
  int source = 0;  ///< rank of the sender in the group
  int tag = 0;     ///< tag it was sent with
  Bytes data;      ///< the whole payload
};

/// Messages of any length between any two ranks of a group, matched whole: any number of threads may receive
/// from any source at once, concurrently with collectives in other threads. Messages with equal (source,
/// destination, tag) arrive in order. Messages without a waiting receive are queued at the receiver. Payloads
/// are raw bytes; `as_bytes` views a span of any type as bytes, without converting values. Tags are
/// 0..2^31-1. Ranks are those of the group. Thread-safe.
class OURO_API Mailbox {
 public:
  /// Collective over the group, which no other code may use for messages. Waits for all ranks.
  static Result<Mailbox> create(Group);
  int rank() const;  ///< the caller's rank in the group
  int size() const;  ///< number of ranks in the group

  /// Returns once the bytes are in flight. Errors: invalid (rank, tag), timeout, peer_lost.
  Status send(CBytes, int dst, int tag = 0);
  /// Copies the bytes and returns. Messages to different ranks do not wait for each other.
  Result<Work> isend(CBytes, int dst, int tag = 0);
  /// Receives the next message with this tag, of any length, from `src` or from any rank. `deadline` 0:
  /// the group's. Errors: invalid, timeout (the message remains queued), peer_lost (any rank of the
  /// group died).
  Result<Message> recv(std::optional<int> src = {}, int tag = 0, Milliseconds deadline = Milliseconds(0));
  /// Describes the message that recv would take, if it has arrived. Never blocks.
  Result<std::optional<Received>> probe(std::optional<int> src = {}, int tag = 0);
  /// Waits for all messages that isend has started.
  Status drain(Milliseconds deadline = Milliseconds(-1));
  /// Drains and leaves the group. Idempotent.
  Status close();

  struct OURO_HIDDEN State;
  explicit Mailbox(std::shared_ptr<State> s) : state_(std::move(s)) {}  ///< for the library

 private:
  std::shared_ptr<State> state_;
};

/// The bytes of a span of values.
template <class T>
CBytes as_bytes(std::span<const T> values) {
  return std::as_bytes(values);
}

/// @}
/// @defgroup roles Training: roles
/// @{

/// The layout and the groups; each group exists on its members only.
struct OURO_API Roles {
  RankLayout layout;             ///< the role of each rank
  std::optional<Group> train;    ///< all training ranks
  std::optional<Group> agents;   ///< this rank's agent group
  std::optional<Group> buffers;  ///< all buffers
  std::optional<Mailbox> mail;   ///< over all ranks, if there is more than one
  /// Leaves all groups. Legal on every rank; idempotent.
  Status close();
};
/// Collective over the context's world: exchanges the hosts' identities (InitOptions::host_id; not if
/// options.hosts names them), makes the layout and the groups. options.world_size is the context's, or 1 for
/// "as it is". A deadline of 0 means 300 s. A world of one rank has one training rank, and no communication.
/// Errors, on every rank: invalid (options that differ between ranks, those of RankLayout::make).
OURO_API Result<Roles> make_roles(Context&, RankLayoutOptions = {}, GroupOptions = {});

/// @}
/// @defgroup replay Training: the replay service
/// A request is one byte that holds its kind (ReplayRequest), then its payload. DATA is answered with a score
/// (a double) on tag 0, GET_METADATA with bytes on tag 1, the others not at all.
/// @{

/// The first byte of a request.
enum class ReplayRequest : std::uint8_t {
  data = 1,       ///< a batch to keep; answered with its score
  get_metadata,   ///< answered with the buffer's metadata
  baseline_sync,  ///< a model; not answered
  exit            ///< the client's last request; not answered
};

/// A buffer's handlers for the requests of its clients.
struct ReplayHandlers {
  std::function<double(int source, CBytes)> store;             ///< returns the score
  std::function<Bytes(int source)> metadata = {};              ///< none: empty
  std::function<void(int source, CBytes)> baseline_sync = {};  ///< none: ignored
};
/// The numbers of requests served.
struct ReplayReport {
  std::int64_t stored = 0;    ///< data requests
  std::int64_t metadata = 0;  ///< metadata requests
  std::int64_t syncs = 0;     ///< baseline_sync requests
};
/// Serves until `clients` different ranks have sent EXIT: takes requests from any rank on tag 0 and answers
/// without waiting. Each request must arrive within `deadline` (0: the group's). Errors: invalid (no clients,
/// no `store`, an unknown request, naming its source), timeout, peer_lost.
OURO_API Result<ReplayReport> serve_replay(Mailbox&, int clients, const ReplayHandlers&,
                                           Milliseconds deadline = Milliseconds(0));

/// The time at which a client waits for the score of a submission: immediately, before the next submission,
/// or only when it leaves.
enum class Scoring : std::uint8_t { synchronous, deferred, asynchronous };

/// One client of one manager. Not thread-safe; other clients of the same rank need other tags, hence
/// other managers.
class OURO_API ReplayClient {
 public:
  /// A client of the buffer on rank `manager` of the mailbox.
  ReplayClient(Mailbox mail, int manager, Scoring scoring)
      : mail_(std::move(mail)), manager_(manager), scoring_(scoring) {}
  /// Sends DATA. Returns a score: that of this submission (synchronous; late scores of submissions that timed
  /// out are dropped), that of the previous submission (deferred; none at first), or one that has arrived, if
  /// any (asynchronous).
  Result<std::optional<double>> submit(CBytes);
  Result<Bytes> metadata();      ///< sends GET_METADATA and waits for the answer
  Status baseline_sync(CBytes);  ///< sends BASELINE_SYNC with this model
  /// Reads the outstanding scores, each within `deadline` (0: the group's), then sends EXIT. If reading
  /// fails, still sends EXIT and returns that error. Idempotent once EXIT has been sent.
  Status leave(Milliseconds deadline = Milliseconds(0));
  int pending() const { return pending_; }  ///< number of outstanding scores

 private:
  Status request(ReplayRequest, CBytes);
  Result<double> score(Milliseconds deadline);
  Mailbox mail_;
  int manager_;
  Scoring scoring_;
  int pending_ = 0;
  int metadata_owed_ = 0;  // metadata answers still in flight after a failed wait
  bool left_ = false;
};
/// @}

}  // namespace ouro::train
