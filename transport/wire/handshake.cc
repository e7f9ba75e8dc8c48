// The handshake's two state machines. See handshake.h.
#include "transport/wire/handshake.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>

#include "transport/wire/codec.h"

namespace ouro::wire {
namespace {

enum Type : std::uint16_t { kHello = 256, kProve, kWelcome, kRefuse };

constexpr std::uint8_t kHasSecret = 1;  // a bit of features

std::string text(Version v) { return fmt::format("{}.{}", v >> 8, v & 255); }
std::string text(const std::vector<Version>& all) {
  std::vector<std::string> texts;
  for (const Version v : all) texts.push_back(text(v));
  return fmt::format("{}", fmt::join(texts, ", "));
}

/// The highest version that both ends support, or 0.
Version common(const std::vector<Version>& a, const std::vector<Version>& b) {
  Version best = 0;
  for (const Version x : a)
    for (const Version y : b)
      if (x >> 8 == y >> 8) best = std::max(best, std::min(x, y));
  return best;
}

struct Hello {
  Nonce job;
  std::uint32_t generation;
  std::uint8_t features;
  std::vector<Version> versions;
  const char* wrong;
};
Hello take_hello(View payload) {
  Reader r(payload);
  r.bytes(32);
  Hello h{r.raw<16>(), r.number<std::uint32_t>(), r.number<std::uint8_t>(), {}, nullptr};
  const std::size_t n = r.number<std::uint8_t>();
  r.expect(n >= 1 && n <= kMaxVersions, "the number of versions is out of range");
  for (std::size_t i = 0; i < n && r.good(); ++i) h.versions.push_back(r.number<Version>());
  h.wrong = r.finish();
  return h;
}

struct Prove {
  Nonce job;
  std::uint32_t generation;
  std::uint8_t features;
  Handshake::Peer peer;
  int to_rank;
  View signed_part, mac;
  const char* wrong;
};
Prove take_prove(View payload) {
  Reader r(payload);
  r.bytes(32);
  Prove p{};
  p.job = r.raw<16>();
  p.generation = r.number<std::uint32_t>();
  p.features = r.number<std::uint8_t>();
  p.peer.version = r.number<Version>();
  const auto purpose = r.number<std::uint8_t>();
  r.expect(purpose <= static_cast<std::uint8_t>(Purpose::table), "the purpose is not in the list");
  p.peer.purpose = static_cast<Purpose>(purpose);
  const auto rank = r.number<std::uint32_t>(), world = r.number<std::uint32_t>(),
             to_rank = r.number<std::uint32_t>();
  r.expect(world >= 1 && world <= kMaxWorld && rank < kMaxWorld && to_rank < kMaxWorld,
           "a rank or the world size is out of range");
  p.peer.rank = static_cast<int>(rank), p.peer.world = static_cast<int>(world);
  p.to_rank = static_cast<int>(to_rank);
  p.peer.pid = r.number<std::int32_t>();
  p.peer.process = r.number<std::uint64_t>();
  p.peer.host = r.text(kMaxName), p.peer.host_id = r.text(kMaxName);
  p.mac = r.bytes(sizeof(Key));
  p.wrong = r.finish();
  if (!p.wrong) p.signed_part = payload.first(payload.size() - sizeof(Key));
  return p;
}

struct Welcome {
  Handshake::Peer peer;
  View signed_part, mac;
  const char* wrong;
};
Welcome take_welcome(View payload) {
  Reader r(payload);
  Welcome w{};
  const auto rank = r.number<std::uint32_t>(), world = r.number<std::uint32_t>();
  r.expect(world >= 1 && world <= kMaxWorld && rank < kMaxWorld,
           "the rank or the world size is out of range");
  w.peer.rank = static_cast<int>(rank), w.peer.world = static_cast<int>(world);
  w.peer.pid = r.number<std::int32_t>();
  w.peer.version = r.number<Version>();
  w.peer.host = r.text(kMaxName), w.peer.host_id = r.text(kMaxName);
  w.mac = r.bytes(sizeof(Key));
  w.wrong = r.finish();
  if (!w.wrong) w.signed_part = payload.first(payload.size() - sizeof(Key));
  return w;
}

constexpr const char* kCodes[] = {"bad-version",    "wrong-job",  "busy",  "bad-mac",
                                  "duplicate-rank", "rank-range", "config"};

Status damaged(std::string how) { return {Reason::data_corrupt, std::move(how)}; }

/// Whether at most two bits of the magic differ, as after damage: no other protocol begins like that.
bool almost_magic(View bytes) { return std::popcount(get_number<std::uint32_t>(bytes.data()) ^ kMagic) <= 2; }

}  // namespace

const char* name(RefuseCode c) { return kCodes[static_cast<std::size_t>(c)]; }

Bytes refusal(RefuseCode code, std::string_view why) {
  Writer w;
  w.number(static_cast<std::uint8_t>(code));
  w.text(why, kMaxHandshakeText);
  return framed(kRefuse, w.bytes);
}

Handshake::Handshake(Identity self, HandshakeOptions options, bool server)
    : self_(std::move(self)), options_(std::move(options)), server_(server) {}
Handshake::~Handshake() {
  wipe(key_);
  wipe(peer_.keys.in);
  wipe(peer_.keys.out);
}

Handshake Handshake::server(Identity self, HandshakeOptions options) {
  return {std::move(self), std::move(options), true};
}
Handshake Handshake::client(Identity self, Purpose purpose, int to_rank, HandshakeOptions options) {
  Handshake h(std::move(self), std::move(options), false);
  h.peer_.purpose = purpose;
  h.to_rank_ = to_rank;
  h.hello_seen_ = true;
  return h;
}

std::size_t Handshake::wants() const {
  if (over_) return 0;
  if (kept_.size() < kHeaderBytes) return kHeaderBytes - kept_.size();
  Reader length(View(kept_).subspan(8, 4));
  return kHeaderBytes + length.number<std::uint32_t>() - kept_.size();
}

Handshake::Step Handshake::step(View in) {
  if (over_) return {Phase::refused, {}, {Reason::invalid, "the handshake is over"}, {}};
  if (in.size() > wants()) return give_up({Reason::invalid, "more bytes than the handshake wants"});
  spoken_ = spoken_ || !in.empty();
  kept_.insert(kept_.end(), in.begin(), in.end());
  Step done;
  if (!hello_seen_) {
    done = hello();
    if (done.phase != Phase::ongoing) return done;
  }
  if (in.empty()) return done;
  Step next = header();
  if (next.phase == Phase::ongoing && kept_.size() > kHeaderBytes && wants() == 0) next = frame();
  next.out.insert(next.out.begin(), done.out.begin(), done.out.end());
  return next;
}

Handshake::Step Handshake::hello() {
  hello_seen_ = true;
  std::array<std::uint8_t, 32> nonce;
  if (Status s = options_.random(nonce); !s.ok()) return give_up(s);
  Writer w;
  w.raw(nonce), w.raw(self_.job), w.number(self_.generation);
  w.number(self_.secret ? kHasSecret : std::uint8_t{0});
  const std::size_t n = std::min(options_.versions.size(), kMaxVersions);
  w.number(static_cast<std::uint8_t>(n));
  for (std::size_t i = 0; i < n; ++i) w.number(options_.versions[i]);
  hello_ = std::move(w.bytes);
  return {Phase::ongoing, framed(kHello, hello_), {}, {}};
}

/// Checks the part of the header that has arrived so far: foreign protocols differ in their first bytes.
Handshake::Step Handshake::header() {
  Writer magic;
  magic.number(kMagic);
  const std::size_t n = std::min(kept_.size(), magic.bytes.size());
  if (!std::equal(magic.bytes.begin(), magic.bytes.begin() + static_cast<std::ptrdiff_t>(n), kept_.begin())) {
    if (n == magic.bytes.size() && almost_magic(kept_))
      return give_up(damaged("the first bytes of a handshake frame are damaged"));
    return give_up(Status(Failure{.reason = Reason::refused,
                                  .text = fmt::format("not a frame of ouro; it looks like {} and begins '{}'",
                                                      looks_like(kept_), printable(kept_, 16)),
                                  .detector = kForeign}));
  }
  if (kept_.size() < kHeaderBytes) return {};
  Reader r(View(kept_).subspan(4));
  const auto major = r.number<std::uint8_t>();
  r.number<std::uint8_t>();
  const auto type = r.number<std::uint16_t>();
  const bool expected = type == kRefuse || type == (server_ ? kProve : hello_.empty() ? kHello : kWelcome);
  const auto length = r.number<std::uint32_t>();
  // A frame of another version is read to its end before it is judged: its checksum distinguishes it
  // from damage.
  if ((!expected && major == kMajor) || length == 0 || length > kMaxHandshake - kHeaderBytes)
    return give_up(damaged(
        fmt::format("a handshake frame of type {} and {} bytes: out of place or too long", type, length)));
  return {};
}

Handshake::Step Handshake::frame() {
  const Bytes frame = std::exchange(kept_, {});
  const View payload = View(frame).subspan(kHeaderBytes);
  if (!intact(frame)) return give_up(damaged("a handshake frame's checksum is wrong"));
  Reader r(View(frame).subspan(4));
  const auto major = r.number<std::uint8_t>(), minor = r.number<std::uint8_t>();
  if (major != kMajor)
    return refuse(RefuseCode::bad_version, fmt::format("the other end speaks {}.{}, this one {}", major,
                                                       minor, text(options_.versions)));
  switch (r.number<std::uint16_t>()) {
    case kHello:
      return on_hello(payload);
    case kProve:
      return on_prove(payload);
    case kWelcome:
      return on_welcome(payload);
    default:
      return on_refuse(payload);
  }
}

Handshake::Step Handshake::on_hello(View payload) {
  const Hello h = take_hello(payload);
  if (h.wrong) return give_up(damaged(fmt::format("a malformed HELLO: {}", h.wrong)));
  peer_.version = common(h.versions, options_.versions);
  if (peer_.version == 0)
    return refuse(RefuseCode::bad_version, fmt::format("the server speaks {}, the client {}",
                                                       text(h.versions), text(options_.versions)));
  if (h.job != self_.job)
    return refuse(RefuseCode::wrong_job,
                  fmt::format("the server is of job {}, the client of {}", hex(h.job), hex(self_.job)));
  if (h.generation != self_.generation)
    return refuse(RefuseCode::wrong_job, fmt::format("the server is of generation {}, the client of {}",
                                                     h.generation, self_.generation));
  if (((h.features & kHasSecret) != 0) != bool(self_.secret))
    return refuse(RefuseCode::bad_mac,
                  fmt::format("the {} has a secret, the {} has none", self_.secret ? "client" : "server",
                              self_.secret ? "server" : "client"));
  std::array<std::uint8_t, 32> nonce;
  if (Status s = options_.random(nonce); !s.ok()) return give_up(s);
  if (Status s = job_key(); !s.ok()) return give_up(s);
  Writer w;
  w.raw(nonce), w.raw(self_.job), w.number(self_.generation);
  w.number(self_.secret ? kHasSecret : std::uint8_t{0});
  w.number(peer_.version), w.number(static_cast<std::uint8_t>(peer_.purpose));
  w.number(static_cast<std::uint32_t>(self_.rank)), w.number(static_cast<std::uint32_t>(self_.world));
  w.number(static_cast<std::uint32_t>(to_rank_));
  w.number(static_cast<std::int32_t>(self_.pid)), w.number(self_.process);
  w.text(self_.host, kMaxName), w.text(self_.host_id, kMaxName);
  const auto mac = hmac(key_, {view("ouro c1"), payload, w.bytes});
  if (!mac.ok()) return give_up(mac.status());
  w.raw(*mac);
  hello_.assign(payload.begin(), payload.end());
  prove_ = std::move(w.bytes);
  return {Phase::ongoing, framed(kProve, prove_), {}, {}};
}

Handshake::Step Handshake::on_prove(View payload) {
  Prove p = take_prove(payload);
  if (p.wrong) return give_up(damaged(fmt::format("a malformed PROVE: {}", p.wrong)));
  if (p.job != self_.job)
    return refuse(RefuseCode::wrong_job,
                  fmt::format("the server is of job {}, the client of {}", hex(self_.job), hex(p.job)));
  if (p.generation != self_.generation)
    return refuse(RefuseCode::wrong_job, fmt::format("the server is of generation {}, the client of {}",
                                                     self_.generation, p.generation));
  if (p.peer.version == 0 || common({p.peer.version}, options_.versions) != p.peer.version)
    return refuse(RefuseCode::bad_version, fmt::format("the server speaks {}, the client chose {}",
                                                       text(options_.versions), text(p.peer.version)));
  if (Status s = job_key(); !s.ok()) return give_up(s);
  const auto mac = hmac(key_, {view("ouro c1"), hello_, p.signed_part});
  if (!mac.ok()) return give_up(mac.status());
  if (!equal(*mac, p.mac)) return refuse(RefuseCode::bad_mac, "the secrets of the two ends differ");
  // The peer is now known to have the secret, and may be sent more.
  const std::string who =
      fmt::format("rank {} ({}, pid {})", p.peer.rank, printable(view(p.peer.host)), p.peer.pid);
  if (p.to_rank != self_.rank)
    return refuse(RefuseCode::rank_range,
                  fmt::format("{} looks for rank {} and found rank {}", who, p.to_rank, self_.rank));
  if (p.peer.purpose != Purpose::join) {  // joining ranks are checked by Admission, which names both sides
    if (p.peer.world != self_.world)
      return refuse(RefuseCode::config, fmt::format("{} says {} ranks, rank {} says {}", who, p.peer.world,
                                                    self_.rank, self_.world));
    if (p.peer.rank >= self_.world)
      return refuse(RefuseCode::rank_range, fmt::format("rank {} of {}", p.peer.rank, self_.world));
    if (p.peer.rank == self_.rank)
      return refuse(RefuseCode::duplicate_rank,
                    fmt::format("{} calls itself as rank {} (pid {}) does", who, self_.rank, self_.pid));
  }
  prove_.assign(payload.begin(), payload.end());
  peer_ = std::move(p.peer);
  Writer w;
  w.number(static_cast<std::uint32_t>(self_.rank)), w.number(static_cast<std::uint32_t>(self_.world));
  w.number(static_cast<std::int32_t>(self_.pid)), w.number(peer_.version);
  w.text(self_.host, kMaxName), w.text(self_.host_id, kMaxName);
  const auto answer = hmac(key_, {view("ouro s1"), hello_, prove_, w.bytes});
  if (!answer.ok()) return give_up(answer.status());
  w.raw(*answer);
  if (Status s = derive(); !s.ok()) return give_up(s);
  over_ = true;
  return {Phase::done, framed(kWelcome, w.bytes), {}, {}};
}

Handshake::Step Handshake::on_welcome(View payload) {
  Welcome w = take_welcome(payload);
  if (w.wrong) return give_up(damaged(fmt::format("a malformed WELCOME: {}", w.wrong)));
  const auto mac = hmac(key_, {view("ouro s1"), hello_, prove_, w.signed_part});
  if (!mac.ok()) return give_up(mac.status());
  if (!equal(*mac, w.mac))
    return give_up({Reason::refused, "bad-mac: the server does not know the job's secret"});
  if (w.peer.rank != to_rank_ || w.peer.version != peer_.version)
    return give_up({Reason::refused,
                    fmt::format("rank-range: looked for rank {} and found rank {}", to_rank_, w.peer.rank)});
  w.peer.purpose = peer_.purpose;
  peer_ = std::move(w.peer);
  if (Status s = derive(); !s.ok()) return give_up(s);
  over_ = true;
  return {Phase::done, {}, {}, {}};
}

Handshake::Step Handshake::on_refuse(View payload) {
  Reader r(payload);
  const auto code = r.number<std::uint8_t>();
  r.expect(code < std::size(kCodes), "the code is not in the list");
  const std::string why = r.text(kMaxHandshakeText);
  if (const char* wrong = r.finish()) return give_up(damaged(fmt::format("a malformed REFUSE: {}", wrong)));
  return verdict(static_cast<RefuseCode>(code), fmt::format("{}: {} (says the other end)", kCodes[code],
                                                            printable(view(why), kMaxHandshakeText)));
}

Handshake::Step Handshake::refuse(RefuseCode code, std::string why) {
  Step s = verdict(code, fmt::format("{}: {}", name(code), why));
  s.out = refusal(code, why);
  return s;
}

Handshake::Step Handshake::verdict(RefuseCode code, std::string why) {
  Step s = give_up(Status(Failure{.reason = Reason::refused,
                                  .text = std::move(why),
                                  .detector = code == RefuseCode::wrong_job ? kForeign : ""}));
  s.code = code;
  return s;
}

Handshake::Step Handshake::give_up(Status why) {
  over_ = true;
  return {Phase::refused, {}, std::move(why), {}};
}

Status Handshake::job_key() {
  Writer id;
  id.raw(self_.job), id.number(self_.generation);
  const Key nothing{};
  auto k = self_.secret ? hkdf(self_.secret.bytes(), {view("ouro job"), id.bytes})
                        : hkdf(nothing, {view("ouro insecure job"), id.bytes});
  if (!k.ok()) return k.status();
  key_ = *k;
  return {};
}

Status Handshake::derive() {
  auto up = hkdf(key_, {view("ouro key c>s"), hello_, prove_});
  auto down = hkdf(key_, {view("ouro key s>c"), hello_, prove_});
  if (!up.ok() || !down.ok()) return up.ok() ? down.status() : up.status();
  peer_.keys = server_ ? LineKeys{*down, *up} : LineKeys{*up, *down};
  return {};
}

const char* looks_like(View b) {
  const std::string_view s(reinterpret_cast<const char*>(b.data()), b.size());
  for (const char* verb : {"GET ", "POST ", "HEAD ", "PUT ", "OPTIONS ", "PRI * HTTP", "CONNECT "})
    if (s.starts_with(verb)) return "HTTP";
  if (b.size() >= 2 && b[0] == 0x16 && b[1] == 3) return "TLS";
  if (s.starts_with("SSH-")) return "SSH";
  if (s.starts_with("*") && s.find("\r\n") != s.npos) return "Redis";
  if (b.size() >= 4 && b[0] == 3 && b[1] == 0 && b[2] == 0) return "RDP";
  if (!b.empty() && std::all_of(b.begin(), b.end(), [](std::uint8_t c) { return c == '\r' || c == '\n'; }))
    return "an empty line";
  return "nothing known";
}

}  // namespace ouro::wire
