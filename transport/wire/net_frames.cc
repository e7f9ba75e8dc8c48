// Encoding and parsing of the frames between hosts. See net_frames.h.
#include "transport/wire/net_frames.h"

#include <fmt/format.h>

#include <utility>

#include "transport/wire/codec.h"

namespace ouro::wire {
namespace {

constexpr std::size_t kMaxNote = kMaxControl - 64;
constexpr std::size_t kPieceBytes = 48 << 10;  // a piece is closed when it exceeds this; it stays in a cache
constexpr std::size_t kMinMember = 4 + 4 + 5 * 2;
constexpr std::size_t kMaxMember = kMinMember + 2 * kMaxName + kMaxEndpoint + kMaxText + kMaxBlob;

void put_member(Writer& w, const MemberRecord& s) {
  w.number(static_cast<std::uint32_t>(s.rank)), w.number(static_cast<std::int32_t>(s.pid));
  w.text(s.host, kMaxName), w.text(s.host_id, kMaxName), w.text(s.endpoint, kMaxEndpoint);
  w.text(s.settings, kMaxText);
  const std::size_t n = std::min(s.blob.size(), kMaxBlob);
  w.number(static_cast<std::uint16_t>(n));
  w.raw(View(s.blob).first(n));
}
MemberRecord take_member_record(Reader& r) {
  MemberRecord s;
  const auto rank = r.number<std::uint32_t>();
  r.expect(rank < kMaxWorld, "the rank is out of range");
  s.rank = static_cast<int>(rank);
  s.pid = r.number<std::int32_t>();
  s.host = r.text(kMaxName), s.host_id = r.text(kMaxName), s.endpoint = r.text(kMaxEndpoint);
  s.settings = r.text(kMaxText);
  const View blob = r.counted(kMaxBlob);
  s.blob.assign(blob.begin(), blob.end());
  return s;
}

void put_reason(Writer& w, Reason reason) { w.number(static_cast<std::uint8_t>(reason)); }
Reason take_reason(Reader& r) {
  const auto reason = r.number<std::uint8_t>();
  r.expect(reason != 0 && reason <= static_cast<std::uint8_t>(Reason::device),
           "the reason is not in the list");
  return static_cast<Reason>(reason);
}

/// The length of a list of at most `most` elements of at least `bytes` each: never more elements than the
/// remaining input can hold.
std::size_t take_count(Reader& r, std::size_t most, std::size_t bytes) {
  const std::size_t n = r.number<std::uint32_t>();
  r.expect(n <= most && n <= r.left() / bytes, "a list is too long");
  return r.good() ? n : 0;
}

void put(Writer& w, const MemberOffer& f) { w.number(f.world), put_member(w, f.member); }
void put(Writer& w, const Waiting& f) { w.number(f.joined), w.number(f.world), w.text(f.missing, kMaxText); }
void put(Writer& w, const Source& f) {
  w.number(f.rank), w.number(f.children), w.text(f.endpoint, kMaxEndpoint);
}
void put(Writer& w, const TablePiece& f) {
  w.number(f.total), w.number(f.first), w.number(f.count), w.raw(f.members);
}
void put(Writer&, const Want&) {}
void put(Writer&, const Got&) {}
void put(Writer& w, const NetRefuse& f) {
  put_reason(w, f.reason), w.number(f.rank), w.number(f.pid);
  w.number(static_cast<std::uint8_t>(f.member_only));
  w.text(f.host, kMaxName), w.text(f.text, kMaxText);
}
void put(Writer&, const Beat&) {}
void put(Writer&, const Bye&) {}
void put(Writer& w, const Note& f) {
  const std::size_t n = std::min(f.body.size(), kMaxNote);
  w.number(f.kind), w.number(f.order), w.number(f.key), w.number(static_cast<std::uint32_t>(n));
  w.raw(View(f.body).first(n));
}

NetFrame take_member_offer(Reader& r) {
  MemberOffer f;
  f.world = r.number<std::uint32_t>();
  r.expect(f.world >= 1 && f.world <= kMaxWorld, "the world size is out of range");
  f.member = take_member_record(r);
  return f;
}
NetFrame take_waiting(Reader& r) {
  Waiting f{r.number<std::uint32_t>(), r.number<std::uint32_t>(), r.text(kMaxText)};
  r.expect(f.joined <= f.world && f.world <= kMaxWorld, "a count is out of range");
  return f;
}
NetFrame take_source(Reader& r) {
  Source f{r.number<std::uint32_t>(), r.number<std::uint32_t>(), r.text(kMaxEndpoint)};
  r.expect(f.rank < kMaxWorld && f.children < kMaxWorld, "a rank is out of range");
  return f;
}
NetFrame take_piece(Reader& r) {
  TablePiece f{r.number<std::uint32_t>(), r.number<std::uint32_t>(), 0, {}};
  r.expect(f.total >= 1 && f.total <= kMaxWorld && f.first < f.total, "the table's size is out of range");
  f.count = static_cast<std::uint32_t>(r.good() ? take_count(r, f.total - f.first, kMinMember) : 0);
  r.expect(r.left() <= f.count * kMaxMember, "member records are too long");
  const View members = r.bytes(r.left());
  f.members.assign(members.begin(), members.end());
  return f;
}
NetFrame take_want(Reader&) { return Want{}; }
NetFrame take_got(Reader&) { return Got{}; }
NetFrame take_net_refuse(Reader& r) {
  NetRefuse f;
  f.reason = take_reason(r);
  f.rank = r.number<std::int32_t>(), f.pid = r.number<std::int32_t>();
  r.expect(f.rank >= -1 && f.rank < static_cast<std::int32_t>(kMaxWorld), "the rank is out of range");
  const auto only = r.number<std::uint8_t>();
  r.expect(only <= 1, "a flag is neither 0 nor 1");
  f.member_only = only == 1;
  f.host = r.text(kMaxName), f.text = r.text(kMaxText);
  return f;
}
NetFrame take_beat(Reader&) { return Beat{}; }
NetFrame take_bye(Reader&) { return Bye{}; }
NetFrame take_note(Reader& r) {
  Note f{r.number<std::uint16_t>(), r.number<std::uint64_t>(), r.number<std::uint64_t>(), {}};
  const View body = r.bytes(take_count(r, kMaxNote, 1));
  f.body.assign(body.begin(), body.end());
  return f;
}

constexpr NetFrame (*kTakeNet[])(Reader&) = {take_member_offer, take_waiting, take_source,     take_piece,
                                             take_want,         take_got,     take_net_refuse, take_beat,
                                             take_bye,          take_note};
static_assert(std::size(kTakeNet) == std::variant_size_v<NetFrame>);

}  // namespace

Status check(const MemberRecord& s, std::uint32_t world) {
  const auto fits = [](const char* what, std::size_t size, std::size_t limit) -> Status {
    return size <= limit ? Status() : invalid(fmt::format("{} of {} bytes; at most {}", what, size, limit));
  };
  if (s.rank < 0 || static_cast<std::uint32_t>(s.rank) >= world)
    return invalid(fmt::format("rank {} of {}", s.rank, world));
  OURO_TRY(fits("a host name", s.host.size(), kMaxName));
  OURO_TRY(fits("a host id", s.host_id.size(), kMaxName));
  OURO_TRY(fits("an endpoint", s.endpoint.size(), kMaxEndpoint));
  OURO_TRY(fits("settings", s.settings.size(), kMaxText));
  return fits("a rank's blob", s.blob.size(), kMaxBlob);
}

Bytes encode_net(const NetFrame& frame) {
  Writer w;
  w.number(static_cast<std::uint16_t>(frame.index()));
  std::visit([&](const auto& f) { put(w, f); }, frame);
  return std::move(w.bytes);
}

Result<NetFrame> decode_net(View bytes) {
  Reader r(bytes);
  const auto type = r.number<std::uint16_t>();
  if (!r.good() || type >= std::size(kTakeNet))
    return Status(Reason::refused,
                  fmt::format("a frame of {} bytes and type {}: not in the list", bytes.size(), type));
  NetFrame frame = kTakeNet[type](r);
  if (const char* why = r.finish())
    return Status(Reason::refused, fmt::format("a malformed frame of type {}: {}", type, why));
  return frame;
}

std::vector<Bytes> encode_table(const std::vector<MemberRecord>& table) {
  std::vector<Bytes> pieces;
  const auto total = static_cast<std::uint32_t>(table.size());
  for (std::uint32_t first = 0; first < total;) {
    Writer members;
    std::uint32_t next = first;
    while (next < total && members.bytes.size() < kPieceBytes) put_member(members, table[next++]);
    Writer w;
    w.number(static_cast<std::uint16_t>(NetFrame(TablePiece{}).index()));
    w.number(total), w.number(first), w.number(next - first), w.raw(members.bytes);
    pieces.push_back(std::move(w.bytes));
    first = next;
  }
  return pieces;
}

Status TableReader::add(TablePiece piece) {
  if (piece.total != world_ || piece.first != taken_ || piece.count == 0 || piece.count > world_ - taken_)
    return {Reason::refused, "the table of ranks is of another size or came in another order"};
  taken_ += piece.count;
  pieces_.push_back(std::move(piece));
  return {};
}

Result<std::vector<MemberRecord>> TableReader::take() {
  std::vector<MemberRecord> members(world_);
  std::vector<bool> seen(world_);
  for (const TablePiece& piece : std::exchange(pieces_, {})) {
    Reader r(piece.members);
    for (std::uint32_t i = 0; i < piece.count && r.good(); ++i) {
      MemberRecord s = take_member_record(r);
      const auto rank = static_cast<std::size_t>(s.rank);
      r.expect(rank < world_ && !seen[rank], "a rank stands twice or is out of range");
      if (!r.good()) break;
      seen[rank] = true;
      members[rank] = std::move(s);
    }
    if (const char* why = r.finish())
      return Status(Reason::refused, fmt::format("the table of ranks is malformed: {}", why));
  }
  return members;
}

}  // namespace ouro::wire
