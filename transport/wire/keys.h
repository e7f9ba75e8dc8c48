// The job's secret and what is derived from it: HMAC, HKDF, keys of a line, and frames sealed with them.
// Used by the handshake and by whoever reads and writes an authenticated line.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "runtime/core/status.h"
#include "transport/wire/frames.h"

namespace ouro::wire {

using Key = std::array<std::uint8_t, 32>;
using View = std::span<const std::uint8_t>;

/// What all ranks of a job know and nobody else does. Kept on a locked page of its own, which core dumps and
/// forked children do not get; copies share the page. It is never printed.
class Secret {
 public:
  static constexpr std::size_t kMinBytes = 16, kMaxBytes = 1024;

  Secret() = default;  ///< none
  /// Errors: invalid (fewer than kMinBytes: whoever sees one handshake could guess it), resource.
  static Result<Secret> from_bytes(View);
  /// Hexadecimal digits, white space around them ignored.
  static Result<Secret> from_hex(std::string_view);
  /// The same out of a file. Errors: invalid, also where others than the owner may read it.
  static Result<Secret> from_file(const std::string& path);

  explicit operator bool() const { return page_ != nullptr; }
  View bytes() const;

 private:
  struct Page;
  std::shared_ptr<const Page> page_;
};

/// Takes as long for equal as for different bytes; the lengths are no secret.
bool equal(View, View);
/// HMAC-SHA256 and HKDF-SHA256 (RFC 5869, no salt) over the parts, one after the other. Should the
/// cryptographic library fail (it does so only out of memory), the result is `resource`.
Result<Key> hmac(View key, std::initializer_list<View> parts);
Result<Key> hkdf(View key, std::initializer_list<View> info);
/// Cryptographically random bytes of the system.
Status random_bytes(std::span<std::uint8_t>);
void wipe(std::span<std::uint8_t>);

/// One key for each direction of a line, as seen from one end: my `out` is the peer's `in`.
struct LineKeys {
  Key out{}, in{};
};

/// A sealed frame, little-endian: length u32 (of the payload) | seq u64 | payload | mac[16], the first half
/// of HMAC-SHA256(key of the direction, length | seq | payload). seq counts from 0, so nothing can be
/// replayed, dropped or reordered unnoticed.
inline constexpr std::size_t kSealHead = 12, kSealMac = 16, kSealBytes = kSealHead + kSealMac;
inline constexpr std::size_t kMaxControl = 64 << 10;  ///< a payload

class FrameSealer {
 public:
  explicit FrameSealer(const Key&);
  FrameSealer(FrameSealer&&) noexcept;
  FrameSealer& operator=(FrameSealer&&) noexcept;
  ~FrameSealer();
  /// Appends the sealed payload to `to`. Error resource: the line is of no use any more.
  Status seal(View payload, Bytes& to);

 private:
  struct Mac;
  friend class FrameOpener;
  std::unique_ptr<Mac> mac_;
  std::uint64_t seq_ = 0;
};

/// The other end: takes the stream in pieces of any size. After the first error nothing more is accepted.
class FrameOpener {
 public:
  FrameOpener(const Key&, std::size_t max_payload = kMaxControl);
  FrameOpener(FrameOpener&&) noexcept;
  FrameOpener& operator=(FrameOpener&&) noexcept;
  ~FrameOpener();
  /// Keeps what came from the socket; read all frames by next() before the next push, so that no more than
  /// one frame and one piece is ever kept.
  void push(View);
  /// The next whole payload, valid until the next push; nullopt: more bytes are needed. Errors: data-corrupt
  /// (too long, replayed or lost, wrong MAC: a new line may do better), resource.
  Result<std::optional<View>> next();

 private:
  std::unique_ptr<FrameSealer::Mac> mac_;
  std::uint64_t seq_ = 0;
  std::size_t max_payload_, read_ = 0;
  Bytes kept_;
  Status failed_;
};

}  // namespace ouro::wire
