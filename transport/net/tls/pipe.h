// Pipe: the bytes of one connection between two ranks of different hosts, in clear or under TLS 1.3. Used by
// the tcp fabric, and by the runtime's network for its control lines.
#pragma once
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "runtime/core/status.h"
#include "transport/wire/keys.h"

namespace ouro::transport {

/// One end of a line that is to be encrypted. TLS takes an external pre-shared key (RFC 8446, 2.2) that is
/// derived from the line's keys, with a Diffie-Hellman exchange on top (psk_dhe_ke): who holds the key has
/// gone through the handshake of the line and so knows the job's secret, and who learns that secret later
/// cannot read what was recorded. No certificates: an end that would do without the pre-shared key is
/// refused.
struct TlsEnd {
  enum class Role : std::uint8_t { client, server };
  Role role = Role::client;  ///< client: the end that has dialled
  wire::LineKeys keys;
  /// Records sent under one key (RFC 8446, 5.5: at most 2^24.5 of 16 KiB with AES-GCM); then comes a new one.
  std::uint64_t records_per_key = std::uint64_t{1} << 23;
};

/// Over a connected, non-blocking stream socket that stays the caller's and outlives it. Not thread-safe.
/// The end of the connection, and all that is wrong with what comes, is `link_lost` with a text that says
/// how, and it is said again by each later call.
class Pipe {
 public:
  /// In clear where there is no `tls`. Error resource: the cryptographic library cannot.
  static Result<Pipe> open(int socket, const std::optional<TlsEnd>& tls);
  Pipe(Pipe&&) noexcept;
  Pipe& operator=(Pipe&&) noexcept;
  ~Pipe();

  /// Takes bytes of the parts in order and sends what the kernel has room for; how many were taken. Those
  /// that were taken and not sent are kept: the parts are the caller's again at once. 0: none for now (see
  /// blocked and ready).
  Result<std::size_t> write(std::span<const iovec> parts);
  /// Sends what is kept, and the beginning of the TLS handshake; read does the rest of it. Also write does
  /// this. Nothing is read from the socket, so whoever sleeps on it hears of all that comes.
  Status flush();
  /// Whether the socket has to become writable before anything more goes out.
  bool blocked() const { return blocked_; }
  /// Whether there is a way for payload; where not, the other end has to answer first.
  bool ready() const;
  bool in_clear() const { return !tls_; }

  enum class From : std::uint8_t {
    wire,  ///< the socket is asked
    kept,  ///< only what has been taken from the socket already
  };
  /// Fills the parts in order; how many bytes there were, 0: none for now. Whoever stops reading before a 0
  /// and sleeps on the socket then must first read all that is `kept`, since the socket tells nothing of
  /// that.
  Result<std::size_t> read(std::span<const iovec> parts, From = From::wire);

 private:
  struct Tls;
  Pipe(int socket, std::unique_ptr<Tls>);
  int socket_;
  bool blocked_ = false;
  std::unique_ptr<Tls> tls_;
};

}  // namespace ouro::transport
