// The job's secret and what is derived from it: HMAC, HKDF, keys of a line, and frames sealed with them. Used
// by the handshake and by the readers and writers of authenticated lines.
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

/// The secret that all ranks of a job share. It is kept on a locked page of its own, which is excluded from
/// core dumps and wiped in forked children; copies share the page. It is never printed.
class Secret {
 public:
  static constexpr std::size_t kMinBytes = 16, kMaxBytes = 1024;

  Secret() = default;  ///< none
  /// Errors: invalid (fewer than kMinBytes: an observer of one handshake could guess it), resource.
  static Result<Secret> from_bytes(View);
  /// Parses hexadecimal digits; white space around them is ignored.
  static Result<Secret> from_hex(std::string_view);
  /// Reads hexadecimal digits from a file. Errors: invalid, also if others than the owner may read the file.
  static Result<Secret> from_file(const std::string& path);

  explicit operator bool() const { return page_ != nullptr; }
  View bytes() const;

 private:
  struct Page;
  std::shared_ptr<const Page> page_;
};

/// Compares in constant time; only the lengths are not secret.
bool equal(View, View);
/// HMAC-SHA256 and HKDF-SHA256 (RFC 5869, no salt) over the concatenated parts. Error resource: the
/// cryptographic library failed, which it does only if out of memory.
Result<Key> hmac(View key, std::initializer_list<View> parts);
Result<Key> hkdf(View key, std::initializer_list<View> info);
/// Fills with cryptographically secure random bytes from the system.
Status random_bytes(std::span<std::uint8_t>);
void wipe(std::span<std::uint8_t>);

/// One key for each direction of a line, as seen from one end: my `out` is the peer's `in`.
struct LineKeys {
  Key out{}, in{};
};

/// A sealed frame, little-endian: length u32 (of the payload) | seq u64 | payload | mac[16], the first half
/// of HMAC-SHA256(key of the direction, length | seq | payload). seq counts from 0, so that replayed, dropped
/// or reordered frames are detected.
inline constexpr std::size_t kSealHead = 12, kSealMac = 16, kSealBytes = kSealHead + kSealMac;
inline constexpr std::size_t kMaxControl = 64 << 10;  ///< bytes of a payload

class FrameSealer {
 public:
  explicit FrameSealer(const Key&);
  FrameSealer(FrameSealer&&) noexcept;
  FrameSealer& operator=(FrameSealer&&) noexcept;
  ~FrameSealer();
  /// Appends the sealed payload to `to`. Error resource: the line is unusable from then on.
  Status seal(View payload, Bytes& to);

 private:
  struct Mac;
  friend class FrameOpener;
  std::unique_ptr<Mac> mac_;
  std::uint64_t seq_ = 0;
};

/// The receiving end: accepts the stream in pieces of any size. After the first error nothing more
/// is accepted.
class FrameOpener {
 public:
  FrameOpener(const Key&, std::size_t max_payload = kMaxControl);
  FrameOpener(FrameOpener&&) noexcept;
  FrameOpener& operator=(FrameOpener&&) noexcept;
  ~FrameOpener();
  /// Buffers bytes from the socket. Read all frames by next() before the next push, so that never more than
  /// one frame and one piece is buffered.
  void push(View);
  /// The next whole payload, valid until the next push; nullopt: more bytes are needed. Errors: data-corrupt
  /// (too long, replayed or lost, wrong MAC: a new line may succeed), resource.
  Result<std::optional<View>> next();

 private:
  std::unique_ptr<FrameSealer::Mac> mac_;
  std::uint64_t seq_ = 0;
  std::size_t max_payload_, read_ = 0;
  Bytes kept_;
  Status failed_;
};

}  // namespace ouro::wire
