// TLS 1.3 by OpenSSL. Used by pipes (transport/net/pipe.h).
#pragma once
#include <openssl/ssl.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/status.h"
#include "transport/net/tls/tls_end.h"

namespace ouro::transport {

inline Status ended(std::string how) { return {Reason::link_lost, std::move(how)}; }
inline Status ended(int error) {
  return ended(error == 0 ? "closed by the other end" : std::strerror(error));
}
inline bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

/// One TLS connection. The library's output is collected in `sealed`, so that it never has to wait and one
/// system call sends many records; for input it reads from the socket itself.
struct TlsSession {
  TlsSession(int fd, const TlsEnd& end) : socket(fd), records_per_key(end.records_per_key) {}
  ~TlsSession() {
    SSL_free(ssl);
    wire::wipe(key);
  }
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  const int socket;
  SSL* ssl = nullptr;
  wire::Key key{};  // until the handshake has finished
  bool ready = false, ask_socket = true;
  std::vector<char> sealed;
  std::size_t sent = 0;  // bytes of `sealed` that are sent
  std::uint64_t records = 0, records_per_key;
  int socket_error = -1;  // 0: the end of the stream
  Status broken;
  std::array<std::byte, SSL3_RT_MAX_PLAIN_LENGTH> gathered;

  static SSL_CTX* context();
  static BIO_METHOD* method();
  static TlsSession& of(BIO* b) { return *static_cast<TlsSession*>(BIO_get_data(b)); }
  static TlsSession& of(const SSL* s) { return *static_cast<TlsSession*>(SSL_get_app_data(s)); }
  SSL_SESSION* session();

  Status open(TlsEnd::Role);
  Status fail(Status why) { return broken = std::move(why); }
  Status judge(int returned);
  Status shake();
  Status flush(bool* blocked);
  Result<std::size_t> write(std::span<const iovec> parts, bool* blocked);
  Result<std::size_t> read(std::span<const iovec> parts, ReadFrom, bool* blocked);
  std::span<const std::byte> next_record(std::span<const iovec> parts, std::size_t from);
};

}  // namespace ouro::transport
