// Pipe: the bytes of one connection between two ranks of different hosts, unencrypted or under TLS 1.3. Used
// by the tcp fabric, and by the runtime's network for its control lines.
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

/// One end of a line that is to be encrypted. TLS uses an external pre-shared key (RFC 8446, 2.2) derived
/// from the line's keys, with a Diffie-Hellman exchange on top (psk_dhe_ke). A peer that has the key has
/// passed the handshake of the line and so knows the job's secret; somebody who learns that secret later
/// cannot decrypt recorded traffic. There are no certificates: a peer that does not use the pre-shared key
/// is refused.
struct TlsEnd {
  enum class Role : std::uint8_t { client, server };
  Role role = Role::client;  ///< client: the end that has connected
  wire::LineKeys keys;
  /// Records sent under one key (RFC 8446, 5.5: at most 2^24.5 of 16 KiB with AES-GCM) before the key
  /// is updated.
  std::uint64_t records_per_key = std::uint64_t{1} << 23;
};

/// A pipe over a connected, non-blocking stream socket, which the caller owns and which must outlive the
/// pipe. Not thread-safe. The end of the connection, and every error in received data, is `link_lost` with a
/// text that gives the reason; it is returned again by each later call.
class Pipe {
 public:
  /// Unencrypted if there is no `tls`. Error resource: the cryptographic library failed.
  static Result<Pipe> open(int socket, const std::optional<TlsEnd>& tls);
  Pipe(Pipe&&) noexcept;
  Pipe& operator=(Pipe&&) noexcept;
  ~Pipe();

  /// Takes bytes of the parts in order and sends what the kernel has room for; returns the number of bytes
  /// taken. Bytes that were taken and not sent are buffered, so the caller may reuse the parts at once. 0:
  /// none for now (see blocked and ready).
  Result<std::size_t> write(std::span<const iovec> parts);
  /// Sends buffered data, and the beginning of the TLS handshake; read does the rest of the handshake. write
  /// calls this, too. Nothing is read from the socket, so a thread that sleeps on it is woken by all data
  /// that arrives.
  Status flush();
  /// Whether the socket has to become writable before more can be sent.
  bool blocked() const { return blocked_; }
  /// Whether payload can be sent; if not, the other end has to answer first.
  bool ready() const;
  bool in_clear() const { return !tls_; }

  enum class From : std::uint8_t {
    wire,  ///< read from the socket, too
    kept,  ///< only data that has been read from the socket already
  };
  /// Fills the parts in order; returns the number of bytes, 0 if there are none for now. A caller that stops
  /// reading before a 0 and then sleeps on the socket must first read all that is `kept`, since the socket
  /// does not report that data.
  Result<std::size_t> read(std::span<const iovec> parts, From = From::wire);

 private:
  struct Tls;
  Pipe(int socket, std::unique_ptr<Tls>);
  int socket_;
  bool blocked_ = false;
  std::unique_ptr<Tls> tls_;
};

}  // namespace ouro::transport
