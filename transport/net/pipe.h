// Pipe: the bytes of one connection between two ranks of different hosts, unencrypted or under TLS 1.3. Used
// by the tcp fabric, and by the runtime's network for its control lines.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "runtime/core/status.h"
#include "transport/net/tls/tls_end.h"

namespace ouro::transport {

struct TlsSession;  // transport/net/tls/tls_session.h

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

  using From = ReadFrom;
  /// Fills the parts in order; returns the number of bytes, 0 if there are none for now. A caller that stops
  /// reading before a 0 and then sleeps on the socket must first read all that is `kept`, since the socket
  /// does not report that data.
  Result<std::size_t> read(std::span<const iovec> parts, From = From::wire);

 private:
  Pipe(int socket, std::unique_ptr<TlsSession>);
  int socket_;
  bool blocked_ = false;
  std::unique_ptr<TlsSession> tls_;
};

}  // namespace ouro::transport
