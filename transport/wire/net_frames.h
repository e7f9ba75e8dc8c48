// The contents of sealed frames between hosts: joining, tables of ranks, heartbeats, updates of control
// pages. Pure encoding and parsing. Used by the rendezvous and by the control plane between hosts.
#pragma once
#include <string>
#include <variant>
#include <vector>

#include "transport/wire/keys.h"

namespace ouro::wire {

inline constexpr std::size_t kMaxEndpoint = 100, kMaxBlob = 2048;

/// One rank's entry in the table of the job.
struct MemberRecord {
  int rank = 0, pid = 0;
  std::string host, host_id;       ///< at most kMaxName bytes each
  std::string endpoint;            ///< "ip:port" of the rank's own listener, at most kMaxEndpoint bytes
  std::string settings;            ///< must be equal on all ranks, at most kMaxText bytes; empty in a table
  std::vector<std::uint8_t> blob;  ///< opaque, at most kMaxBlob bytes
  bool operator==(const MemberRecord&) const = default;
};
/// Checks that a member record keeps its limits; `invalid` names the part that is too long.
Status check(const MemberRecord&, std::uint32_t world);

/// A host registers one of its ranks.
struct MemberOffer {
  std::uint32_t world = 0;
  MemberRecord member;
};
/// The root's status message while ranks are missing.
struct Waiting {
  std::uint32_t joined = 0, world = 0;
  std::string missing;  ///< "3,7,12", cut at kMaxText
};
/// Names the source from which a host gets the table: the listener of `rank`, or (rank 0) this line.
/// `children` other hosts will connect to the receiver to fetch it.
struct Source {
  std::uint32_t rank = 0, children = 0;
  std::string endpoint;
};
/// `count` member records of the table, which has `total` records, starting with number `first`. They stay
/// encoded until all have arrived: a rank that only passes them on need not parse them.
struct TablePiece {
  std::uint32_t total = 0, first = 0, count = 0;
  Bytes members;
};
/// The table did not arrive from its source: the sender requests it from the root itself.
struct Want {};
/// The table has arrived whole.
struct Got {};
/// A refusal, with the reason. If `member_only`, it applies to only one (`rank`) of the member records that a
/// host has sent.
struct NetRefuse {
  Reason reason = Reason::refused;
  std::int32_t rank = -1, pid = 0;
  bool member_only = false;
  std::string host, text;
};
/// A heartbeat.
struct Beat {};
/// The sender leaves in an orderly way: not a death.
struct Bye {};
/// Any other message of the control plane; opaque here.
struct Note {
  std::uint16_t kind = 0;
  std::uint64_t order = 0;  ///< order among the sender's notes: never less than that of a note sent before
  std::uint64_t key = 0;
  Bytes body;  ///< at most kMaxControl - 64 bytes
};

using NetFrame =
    std::variant<MemberOffer, Waiting, Source, TablePiece, Want, Got, NetRefuse, Beat, Bye, Note>;

/// The payload of one sealed frame: type u16 | fields. Texts and lists beyond their limits are cut.
Bytes encode_net(const NetFrame&);
/// Error refused: malformed, with the reason. Allocates no more than a small multiple of the input.
Result<NetFrame> decode_net(View);

/// The table as payloads of TablePieces, each well below kMaxControl.
std::vector<Bytes> encode_table(const std::vector<MemberRecord>&);
/// Assembles the pieces of a table, which arrive in order.
class TableReader {
 public:
  explicit TableReader(std::uint32_t world) : world_(world) {}
  /// Error refused: a piece is out of order, or of another size.
  Status add(TablePiece);
  bool complete() const { return world_ != 0 && taken_ == world_; }
  /// The records by rank, once complete. Error refused: malformed, a rank twice or out of range.
  Result<std::vector<MemberRecord>> take();

 private:
  std::uint32_t world_, taken_ = 0;
  std::vector<TablePiece> pieces_;
};

}  // namespace ouro::wire
