// Pipe: a socket in clear, or a TLS session over it. See pipe.h.
#include "transport/net/pipe.h"

#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <string_view>

#include "transport/net/tls/tls_session.h"

namespace ouro::transport {

Pipe::Pipe(int socket, std::unique_ptr<TlsSession> tls) : socket_(socket), tls_(std::move(tls)) {}
Pipe::Pipe(Pipe&&) noexcept = default;
Pipe& Pipe::operator=(Pipe&&) noexcept = default;
Pipe::~Pipe() = default;

Result<Pipe> Pipe::open(int socket, const std::optional<TlsEnd>& end) {
  if (!end) return Pipe(socket, nullptr);
  auto tls = std::make_unique<TlsSession>(socket, *end);
  const bool client = end->role == TlsEnd::Role::client;
  const wire::Key &up = client ? end->keys.out : end->keys.in, &down = client ? end->keys.in : end->keys.out;
  constexpr std::string_view kLabel = "ouro tls psk";
  auto key = wire::hkdf(up, {{reinterpret_cast<const std::uint8_t*>(kLabel.data()), kLabel.size()}, down});
  if (!key.ok()) return key.status();
  tls->key = *key;
  wire::wipe(*key);
  OURO_TRY(tls->open(end->role));
  return Pipe(socket, std::move(tls));
}

bool Pipe::ready() const { return !tls_ || tls_->ready; }

Status Pipe::flush() {
  if (!tls_) {
    blocked_ = false;
    return {};
  }
  if (!tls_->ready && tls_->broken.ok()) {
    tls_->ask_socket = false;  // data read ahead here would wake nobody
    OURO_TRY(tls_->shake());
  }
  return tls_->flush(&blocked_);
}

Result<std::size_t> Pipe::write(std::span<const iovec> parts) {
  if (tls_) {
    if (!tls_->ready) OURO_TRY(flush());
    return tls_->write(parts, &blocked_);
  }
  msghdr m{};
  m.msg_iov = const_cast<iovec*>(parts.data());
  m.msg_iovlen = parts.size();
  const ssize_t n = ::sendmsg(socket_, &m, MSG_NOSIGNAL);
  blocked_ = n < 0 && would_block(errno);
  if (n < 0 && !blocked_) return ended(errno);
  return n < 0 ? 0 : static_cast<std::size_t>(n);
}

Result<std::size_t> Pipe::read(std::span<const iovec> parts, From from) {
  if (tls_) return tls_->read(parts, from, &blocked_);
  if (from == From::kept) return std::size_t{0};
  const ssize_t n = ::readv(socket_, parts.data(), static_cast<int>(parts.size()));
  if (n == 0) return ended(0);
  if (n < 0 && !would_block(errno)) return ended(errno);
  return n < 0 ? 0 : static_cast<std::size_t>(n);
}

}  // namespace ouro::transport
