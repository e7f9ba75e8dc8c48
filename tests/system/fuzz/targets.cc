// The fuzz targets. The first byte of an input selects how much of what guards a parser (header, checksum,
// MAC) is corrected, so that the fuzzer gets past it. See targets.h.
#include "tests/system/fuzz/targets.h"

#include <algorithm>

#include "tests/system/fuzz/support.h"
#include "transport/wire/codec.h"
#include "transport/wire/frames.h"
#include "transport/wire/handshake.h"
#include "transport/wire/net_frames.h"

namespace ouro::fuzz {
namespace {

using namespace wire;

constexpr std::uint16_t kHello = 256, kProve = 257, kWelcome = 258, kRefuse = 259;

Identity identity(int rank) {
  static const Secret secret = *Secret::from_bytes(Bytes(32, 5));
  return {.job = {1},
          .generation = 2,
          .rank = rank,
          .world = 8,
          .host = "h",
          .host_id = "i",
          .pid = 9,
          .secret = secret};
}
HandshakeOptions fixed_nonce() {
  HandshakeOptions o;
  o.random = [](std::span<std::uint8_t> to) {
    std::fill(to.begin(), to.end(), std::uint8_t{7});
    return Status();
  };
  return o;
}
Key job_key() {
  Writer id;
  id.raw(identity(0).job), id.number(std::uint32_t{2});
  return *hkdf(identity(0).secret.bytes(), {view("ouro job"), id.bytes});
}

struct Said {
  Handshake::Step last;
  Bytes all;
};
/// Feeds the handshake as a socket would, in pieces of `piece` bytes, but never more than it wants.
Said feed(Handshake& h, wire::View in, std::size_t piece) {
  Said said;
  while (!in.empty() && !h.over()) {
    require(h.wants() >= 1 && h.wants() <= kMaxHandshake);
    const std::size_t n = std::min({h.wants(), in.size(), std::max<std::size_t>(piece, 1)});
    said.last = h.step(in.first(n));
    in = in.subspan(n);
    require(said.last.out.size() <= kMaxHandshake);
    require(said.last.phase != Handshake::Phase::refused || !said.last.why.ok());
    require((said.last.phase != Handshake::Phase::ongoing) == h.over());
    said.all.insert(said.all.end(), said.last.out.begin(), said.last.out.end());
  }
  if (said.last.phase == Handshake::Phase::done) {
    const auto& p = h.peer();
    require(p.rank >= 0 && p.rank < static_cast<int>(kMaxWorld) && p.world >= 1 &&
            p.world <= static_cast<int>(kMaxWorld));
    require(p.host.size() <= kMaxName && p.host_id.size() <= kMaxName && p.purpose <= Purpose::table);
  }
  return said;
}

/// The payload of a valid frame.
wire::View payload_of(const Bytes& frame) { return wire::View(frame).subspan(kHeaderBytes); }

enum Mode : std::uint8_t { raw, header, mac };  // what is corrected
Mode mode_of(std::uint8_t first) { return static_cast<Mode>(first % 3); }
Bytes with(std::uint8_t first, wire::View rest) {
  Bytes b{first};
  b.insert(b.end(), rest.begin(), rest.end());
  return b;
}

/// Adds one seed for each of `places`: the payload with the byte at that offset changed.
void add_changed(Mode mode, wire::View payload, std::initializer_list<std::size_t> places,
                 std::vector<Bytes>* seeds) {
  for (const std::size_t at : places) {
    seeds->push_back(with(mode, payload));
    seeds->back().at(1 + at) ^= 8;
  }
}

std::vector<Bytes> frames_seeds() {
  std::vector<Bytes> seeds;
  for (const Frame& f :
       {Frame(Join{{1}, 1, 2, 3, "host", "server", "A=1"}), Frame(Member{1, 2, "host", "server"}),
        Frame(Refuse{Reason::mismatch, 1, "no"}), Frame(Fetch{Fetch::Kind::gpu, {1}, 2, 3}), Frame(Grant{7}),
        Frame(Loan{7, {1}}), Frame(Pieces{3, {1, 2}})}) {
    const Bytes b = encode(f);
    seeds.push_back(with(raw, b));
    Bytes forged{header, static_cast<std::uint8_t>(f.index())};
    forged.insert(forged.end(), b.begin() + kHeaderBytes, b.end());
    seeds.push_back(forged);
  }
  return seeds;
}

std::vector<Bytes> server_seeds() {
  auto server = Handshake::server(identity(0), fixed_nonce());
  auto client = Handshake::client(identity(1), Purpose::control, 0, fixed_nonce());
  const Bytes prove = feed(client, server.step({}).out, 512).all;
  const wire::View payload = payload_of(prove);
  Bytes version_too_new = prove;
  version_too_new[4] = 9;
  std::vector<Bytes> seeds{with(raw, prove),
                           with(header, payload),
                           with(mac, payload.first(payload.size() - 32)),
                           with(raw, refusal(RefuseCode::busy, "busy")),
                           with(raw, version_too_new),
                           with(raw, view("GET / HTTP/1.1\r\n"))};
  // Another job, generation, version, rank, number of ranks, and target rank.
  add_changed(mac, payload.first(payload.size() - 32), {32, 48, 53, 56, 60, 64}, &seeds);
  return seeds;
}

std::vector<Bytes> client_seeds() {
  auto server = Handshake::server(identity(0), fixed_nonce());
  auto client = Handshake::client(identity(1), Purpose::control, 0, fixed_nonce());
  const Bytes hello = server.step({}).out;
  const Bytes welcome = feed(server, feed(client, hello, 512).all, 512).all;
  Bytes both = hello;
  both.insert(both.end(), welcome.begin(), welcome.end());
  const wire::View payload = payload_of(welcome);
  std::vector<Bytes> seeds{with(raw, both), with(header, payload_of(hello)),
                           with(mac, payload.first(payload.size() - 32)),
                           with(raw, refusal(RefuseCode::wrong_job, "no")), with(raw, framed(kRefuse, {}))};
  // Another job, generation, secret, version, and answering rank.
  add_changed(header, payload_of(hello), {32, 48, 52, 54, 55}, &seeds);
  add_changed(mac, payload.first(payload.size() - 32), {0}, &seeds);
  return seeds;
}

std::vector<Bytes> net_seeds() {
  const MemberRecord member{1, 2, "host", "id", "10.0.0.1:1", "A=1", {1, 2, 3}},
      other{0, 3, "host", "id", "10.0.0.1:2", "", {}};
  std::vector<Bytes> seeds;
  const Bytes table = encode_table({member, other}).at(0);
  const Bytes both = std::get<TablePiece>(*decode_net(table)).members;
  for (const NetFrame& f :
       {NetFrame(MemberOffer{4, member}), NetFrame(Waiting{1, 4, "2,3"}),
        NetFrame(Source{3, 2, "10.0.0.1:2"}), NetFrame(TablePiece{2, 0, 2, both}), NetFrame(Want{}),
        NetFrame(Got{}), NetFrame(NetRefuse{Reason::refused, 1, 2, true, "host", "no"}), NetFrame(Beat{}),
        NetFrame(Bye{}), NetFrame(Note{3, 7, 4, {5, 6}})})
    seeds.push_back(encode_net(f));
  return seeds;
}

std::vector<Bytes> sealed_seeds() {
  FrameSealer sealer(Key{3});
  Bytes stream{raw};
  for (const std::size_t n : {0, 1, 40}) require(sealer.seal(Bytes(n, 9), stream).ok());
  return {stream, with(mac, view("\x03one\x00\x05three")), with(header, Bytes(40, 0))};
}

std::vector<Bytes> local_seeds() {  // plain frames, and frames with descriptors
  std::vector<Bytes> seeds;
  for (const Bytes& f : frames_seeds())
    if (f[0] == raw)
      for (const int first : {0, 1, 2, 0x9e, 3})
        seeds.push_back(with(static_cast<std::uint8_t>(first), wire::View(f).subspan(1)));
  return seeds;
}
std::vector<Bytes> stream_seeds() {
  Bytes all;
  for (const Bytes& f : net_seeds()) {
    if (f.size() > 255) continue;
    all.push_back(static_cast<std::uint8_t>(f.size()));
    all.insert(all.end(), f.begin(), f.end());
  }
  return {with(0xff, all), with(0x09, all), with(0, sealed_seeds()[0])};
}
std::vector<Bytes> nothing() { return {}; }

constexpr Entry kEntries[] = {
    {"frames", frames, frames_seeds},
    {"handshake_server", handshake_server, server_seeds},
    {"handshake_client", handshake_client, client_seeds},
    {"net_frames", net_frames, net_seeds},
    {"sealed", sealed, sealed_seeds},
    {"chunks", chunks, chunks_seeds},
    {"notes", notes, notes_seeds},
    {"pages", pages, nothing},
    {"local_socket", local_socket, local_seeds},
    {"frame_stream", frame_stream, stream_seeds, true},
    {"launch", launch, nothing},
    {"settings", settings, nothing, true},
    {"rules", rules, nothing},
    {"tune", tune, nothing},
    {"addresses", addresses, nothing},
    {"calibration", calibration, nothing},
    {"hosts", hosts, nothing, true},
    {"agent", agent, nothing},
    {"cluster", cluster, nothing},
    {"results", results, nothing},
    {"checkpoint", checkpoint, nothing},
    {"elf", elf, nothing},
    {"nccl_ids", nccl_ids, nothing},
    {"nccl_config", nccl_config, nothing},
    {"roll_hello", roll_hello, nothing, true},
    {"roll_answer", roll_answer, nothing, true},
};

}  // namespace

std::span<const Entry> entries() { return kEntries; }

void frames(wire::View in) {
  if (in.size() < 2) return;
  const Bytes b = mode_of(in[0]) == raw ? Bytes(in.begin() + 1, in.end()) : framed(in[1] % 8, in.subspan(2));
  const auto frame = decode(b);
  require(frame.ok() || frame.status().reason() == Reason::refused);
  if (!frame.ok()) return;
  if (const auto* join = std::get_if<Join>(&*frame)) require(check(*join).ok());
  const Bytes again = encode(*frame);
  require(again.size() == b.size() && equal(payload_of(again), payload_of(b)));
}

void handshake_server(wire::View in) {
  if (in.empty()) return;
  const std::uint8_t first = in[0];
  in = in.subspan(1);
  auto server = Handshake::server(identity(0), fixed_nonce());
  const Bytes hello = server.step({}).out;
  if (mode_of(first) == raw) return void(feed(server, in, first / 3 + 1u));
  Bytes payload(in.begin(), in.end());
  if (mode_of(first) == mac) {
    static const Key key = job_key();
    const Key right = *hmac(key, {view("ouro c1"), payload_of(hello), payload});
    payload.insert(payload.end(), right.begin(), right.end());
  }
  const Said said = feed(server, framed(kProve, payload), 512);
  // The handshake cannot succeed on a payload shorter than its MAC.
  require(said.last.phase != Handshake::Phase::done || payload.size() >= 32);
}

void handshake_client(wire::View in) {
  if (in.empty()) return;
  const std::uint8_t first = in[0];
  in = in.subspan(1);
  auto client = Handshake::client(identity(1), Purpose::control, 0, fixed_nonce());
  if (mode_of(first) == raw) return void(feed(client, in, first / 3 + 1u));
  if (mode_of(first) == header) return void(feed(client, framed(kHello, in), 512));
  auto server = Handshake::server(identity(0), fixed_nonce());
  const Bytes hello = server.step({}).out;
  const Bytes prove = feed(client, hello, 512).all;
  static const Key key = job_key();
  const Key right = *hmac(key, {view("ouro s1"), payload_of(hello), payload_of(prove), in});
  Bytes payload(in.begin(), in.end());
  payload.insert(payload.end(), right.begin(), right.end());
  feed(client, framed(kWelcome, payload), 512);
}

void net_frames(wire::View in) {
  auto frame = decode_net(in);
  require(frame.ok() || frame.status().reason() == Reason::refused);
  if (!frame.ok()) return;
  const Bytes again = encode_net(*frame);
  require(equal(again, in));
  if (const auto* offer = std::get_if<MemberOffer>(&*frame))
    require(check(offer->member, kMaxWorld).ok() && !check(offer->member, 0).ok());
  if (auto* piece = std::get_if<TablePiece>(&*frame); piece && piece->total <= 1024) {
    TableReader reader(piece->total);
    const std::uint32_t total = piece->total;
    if (!reader.add(std::move(*piece)).ok() || !reader.complete()) return;
    const auto table = reader.take();
    require(!table.ok() || table->size() == total);
  }
}

void sealed(wire::View in) {
  if (in.empty()) return;
  const std::uint8_t first = in[0];
  in = in.subspan(1);
  constexpr std::size_t kMost = 4096;
  FrameOpener opener(Key{3}, kMost);
  Bytes stream(in.begin(), in.end());
  if (mode_of(first) == mac) {  // payloads of the lengths given by the input, correctly sealed
    FrameSealer fresh(Key{3}), sealer = std::move(fresh);
    fresh = FrameSealer(Key{4});
    stream.clear();
    while (!in.empty()) {
      const std::size_t n = std::min<std::size_t>(in[0], in.size() - 1);
      require(sealer.seal(in.subspan(1, n), stream).ok());
      in = in.subspan(1 + n);
    }
  }
  FrameOpener moved = std::move(opener);  // as when a line is moved
  opener = std::move(moved);
  wire::View rest = stream;
  bool failed = false;
  while (!rest.empty()) {
    const std::size_t n = std::min<std::size_t>(first / 3 + 1u, rest.size());
    opener.push(rest.first(n));
    rest = rest.subspan(n);
    for (;;) {
      const auto payload = opener.next();
      require(!failed || !payload.ok());
      failed = !payload.ok();
      if (failed || !*payload) break;
      require((*payload)->size() <= kMost);
    }
  }
  require(!failed || mode_of(first) != mac);
}

}  // namespace ouro::fuzz
