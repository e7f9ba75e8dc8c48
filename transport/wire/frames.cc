// Encoding and parsing of control frames. See frames.h.
#include "transport/wire/frames.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "transport/wire/codec.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ouro::wire {
namespace {

void octets(Writer& w, const Bytes& b) {
  w.text({reinterpret_cast<const char*>(b.data()), b.size()}, kMaxAddress);
}
Bytes octets(Reader& r) {
  const View v = r.counted(kMaxAddress);
  return {v.begin(), v.end()};
}

void put(Writer& w, const Join& f) {
  w.raw(f.job);
  w.number(f.rank), w.number(f.world), w.number(f.pid);
  w.text(f.host, kMaxName), w.text(f.server, kMaxName), w.text(f.settings, kMaxText);
  w.text(f.endpoint, kMaxName), octets(w, f.address);
}
void put(Writer& w, const Member& f) {
  w.number(f.rank), w.number(f.pid);
  w.text(f.host, kMaxName), w.text(f.server, kMaxName);
  w.number(f.node), w.text(f.endpoint, kMaxName), octets(w, f.address);
}
void put(Writer& w, const Refuse& f) {
  w.number(static_cast<std::uint8_t>(f.reason)), w.number(f.rank);
  w.text(f.text, kMaxText);
}
void put(Writer& w, const Fetch& f) {
  w.number(static_cast<std::uint8_t>(f.kind));
  w.raw(f.job);
  w.number(f.key), w.number(f.bytes);
  w.number(f.ranks);
}
void put(Writer& w, const Grant& f) { w.number(f.bytes); }
void put(Writer& w, const Loan& f) {
  w.number(f.bytes);
  w.raw(f.handle);
}

void put(Writer& w, const Pieces& f) {
  w.number(f.bytes);
  w.number(static_cast<std::uint8_t>(f.sizes.size()));
  for (const std::uint64_t size : f.sizes) w.number(size);
}

Frame take_join(Reader& r) {
  Join f;
  f.job = r.raw<std::tuple_size_v<Nonce>>();
  f.rank = r.number<std::uint32_t>(), f.world = r.number<std::uint32_t>(), f.pid = r.number<std::int32_t>();
  f.host = r.text(kMaxName), f.server = r.text(kMaxName), f.settings = r.text(kMaxText);
  f.endpoint = r.text(kMaxName), f.address = octets(r);
  r.expect(f.world >= 1 && f.world <= kMaxWorld, "the world size is out of range");
  return f;
}
Frame take_member(Reader& r) {
  Member f;
  f.rank = r.number<std::uint32_t>(), f.pid = r.number<std::int32_t>();
  f.host = r.text(kMaxName), f.server = r.text(kMaxName);
  f.node = r.number<std::uint32_t>(), f.endpoint = r.text(kMaxName), f.address = octets(r);
  r.expect(f.rank < kMaxWorld, "the rank is out of range");
  return f;
}
Frame take_refuse(Reader& r) {
  Refuse f;
  const auto reason = r.number<std::uint8_t>();
  r.expect(reason <= static_cast<std::uint8_t>(Reason::device), "the reason is not in the list");
  f.reason = static_cast<Reason>(reason);
  f.rank = r.number<std::int32_t>();
  f.text = r.text(kMaxText);
  return f;
}
Frame take_fetch(Reader& r) {
  Fetch f;
  const auto kind = r.number<std::uint8_t>();
  r.expect(kind <= static_cast<std::uint8_t>(Fetch::Kind::gpu_mapped), "the kind is not in the list");
  f.kind = static_cast<Fetch::Kind>(kind);
  f.job = r.raw<std::tuple_size_v<Nonce>>();
  f.key = r.number<std::uint64_t>(), f.bytes = r.number<std::uint64_t>();
  f.ranks = r.number<std::uint32_t>();
  r.expect(f.ranks <= kMaxWorld, "more ranks than there may be");
  return f;
}
Frame take_grant(Reader& r) { return Grant{r.number<std::uint64_t>()}; }
Frame take_loan(Reader& r) {
  Loan f;
  f.bytes = r.number<std::uint64_t>();
  f.handle = r.raw<64>();
  return f;
}

Frame take_pieces(Reader& r) {
  Pieces f;
  f.bytes = r.number<std::uint64_t>();
  const auto many = r.number<std::uint8_t>();
  r.expect(many >= 1 && many <= Pieces::kMost, "more pieces than a frame holds, or none");
  for (std::size_t i = 0; i < many && i < Pieces::kMost; ++i) f.sizes.push_back(r.number<std::uint64_t>());
  return f;
}

constexpr Frame (*kTake[])(Reader&) = {take_join,  take_member, take_refuse, take_fetch,
                                       take_grant, take_loan,   take_pieces};
static_assert(std::size(kTake) == std::variant_size_v<Frame>);

constexpr std::size_t kSummed =
    kHeaderBytes - sizeof(std::uint32_t);  // bytes of the header that the checksum covers

std::uint32_t checksum(View header, View payload) {
  return static_cast<std::uint32_t>(
      XXH3_64bits_withSeed(payload.data(), payload.size(), XXH3_64bits(header.data(), kSummed)));
}

Status refused(std::string text) { return {Reason::refused, std::move(text)}; }

}  // namespace

std::string hex(std::span<const std::uint8_t> bytes) { return fmt::format("{:02x}", fmt::join(bytes, "")); }

Bytes encode(const Frame& frame) {
  Writer payload;
  std::visit([&](const auto& f) { put(payload, f); }, frame);
  return framed(static_cast<std::uint16_t>(frame.index()), payload.bytes);
}

Status check(const Join& f) {
  const std::tuple<const char*, std::size_t, std::size_t> parts[] = {
      {"the host's name", f.host.size(), kMaxName},
      {"the name of the local socket", f.server.size(), kMaxName},
      {"the text of the settings", f.settings.size(), kMaxText},
      {"the address for other hosts", f.endpoint.size(), kMaxName},
      {"the fabric's address", f.address.size(), kMaxAddress}};
  for (const auto& [what, bytes, limit] : parts)
    if (bytes > limit)
      return invalid(
          fmt::format("rank {} cannot join: {} has {} bytes; at most {}", f.rank, what, bytes, limit));
  return {};
}

Bytes framed(std::uint16_t type, View payload) {
  Writer w;
  w.number(kMagic), w.number(kMajor), w.number(kMinor), w.number(type);
  w.number(static_cast<std::uint32_t>(payload.size())), w.number(std::uint64_t{0});
  w.number(checksum(w.bytes, payload));
  w.raw(payload);
  return std::move(w.bytes);
}

bool intact(View frame) {
  return get_number<std::uint32_t>(frame.data() + kSummed) == checksum(frame, frame.subspan(kHeaderBytes));
}

Result<Frame> decode(std::span<const std::uint8_t> bytes) {
  if (bytes.size() < kHeaderBytes || bytes.size() > kMaxFrame)
    return refused(fmt::format("a frame of {} bytes; expected {} to {}; it begins '{}'", bytes.size(),
                               kHeaderBytes, kMaxFrame, printable(bytes, 16)));
  Reader header(bytes.first(kHeaderBytes));
  if (const auto magic = header.number<std::uint32_t>(); magic != kMagic)
    return refused(fmt::format("not a frame of ouro; it begins '{}'", printable(bytes, 16)));
  const auto major = header.number<std::uint8_t>();
  const auto minor = header.number<std::uint8_t>();
  if (major != kMajor)
    return refused(
        fmt::format("protocol version {}.{}; this library speaks {}.{}", major, minor, kMajor, kMinor));
  const auto type = header.number<std::uint16_t>();
  if (type >= std::size(kTake)) return refused(fmt::format("frame type {} is not in the list", type));
  const auto payload = bytes.subspan(kHeaderBytes);
  if (const auto length = header.number<std::uint32_t>(); length != payload.size())
    return refused(fmt::format("a frame announces {} bytes and has {}", length, payload.size()));
  if (!intact(bytes)) return refused("a frame's checksum is wrong");
  Reader r(payload);
  Frame frame = kTake[type](r);
  if (const char* why = r.finish())
    return refused(fmt::format("a malformed frame of type {}: {}", type, why));
  return frame;
}

std::string printable(std::span<const std::uint8_t> text, std::size_t limit) {
  std::string s;
  for (std::size_t i = 0; i < std::min(text.size(), limit); ++i)
    s += text[i] >= 32 && text[i] < 127 ? std::string(1, static_cast<char>(text[i]))
                                        : fmt::format("\\x{:02x}", text[i]);
  return s;
}

}  // namespace ouro::wire
