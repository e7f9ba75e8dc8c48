// TLS sessions of pipes. See tls_session.h.
#include "transport/net/tls/tls_session.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/core/per_process.h"

namespace ouro::transport {
namespace {

constexpr std::size_t kRecord = SSL3_RT_MAX_PLAIN_LENGTH;  // 16 KiB
constexpr std::size_t kBatch = std::size_t{128}
                               << 10;  // sealed records are sent in batches of this many bytes
constexpr std::size_t kAhead = std::size_t{128} << 10;  // and received data is read ahead by as many
constexpr std::string_view kIdentity = "ouro";  // there is one key per connection, so it needs no name
constexpr std::array<unsigned char, 2> kSuite{0x13, 0x02};  // TLS_AES_256_GCM_SHA384

/// The library's description of its last failure on this thread.
std::string last_words() {
  const unsigned long e = ERR_peek_error();
  const char* const text = e == 0 ? nullptr : ERR_reason_error_string(e);
  ERR_clear_error();
  return text ? text : "no reason given";
}

}  // namespace

BIO_METHOD* TlsSession::method() {
  static constinit MadeOnce<BIO_METHOD*> made;
  return made.get([] {
    BIO_METHOD* const m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "ouro");
    if (!m) return m;
    BIO_meth_set_write(m, [](BIO* b, const char* from, int n) {
      TlsSession& t = of(b);
      t.sealed.insert(t.sealed.end(), from, from + n);
      return n;
    });
    BIO_meth_set_read(m, [](BIO* b, char* to, int n) {
      TlsSession& t = of(b);
      BIO_clear_retry_flags(b);
      if (!t.ask_socket) {
        BIO_set_retry_read(b);
        return -1;
      }
      const ssize_t got = ::recv(t.socket, to, static_cast<std::size_t>(n), 0);
      if (got > 0) return static_cast<int>(got);
      if (got < 0 && would_block(errno))
        BIO_set_retry_read(b);
      else
        t.socket_error = got == 0 ? 0 : errno;
      return -1;
    });
    BIO_meth_set_ctrl(m, [](BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1L : 0L; });
    return m;
  });
}

/// The context that all connections of this process share; made once, and never freed, since a connection may
/// end together with the process.
SSL_CTX* TlsSession::context() {
  static constinit MadeOnce<SSL_CTX*> made;
  return made.get([] {
    SSL_CTX* const c = SSL_CTX_new(TLS_method());
    if (!c) return c;
    const bool good = SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) &&
                      SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) &&
                      SSL_CTX_set_ciphersuites(c, "TLS_AES_256_GCM_SHA384") &&
                      SSL_CTX_set1_groups_list(c, "X25519:P-256") && SSL_CTX_set_num_tickets(c, 0);
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(c, 1);
    SSL_CTX_set_default_read_buffer_len(c, kAhead);
    SSL_CTX_set_psk_use_session_callback(
        c, [](SSL* s, const EVP_MD*, const unsigned char** name, std::size_t* length, SSL_SESSION** with) {
          *name = reinterpret_cast<const unsigned char*>(kIdentity.data());
          *length = kIdentity.size();
          return (*with = of(s).session()) ? 1 : 0;
        });
    SSL_CTX_set_psk_find_session_callback(
        c, [](SSL* s, const unsigned char* name, std::size_t length, SSL_SESSION** with) {
          *with = nullptr;
          if (std::string_view(reinterpret_cast<const char*>(name), length) != kIdentity) return 1;
          return (*with = of(s).session()) ? 1 : 0;
        });
    if (good) return c;
    SSL_CTX_free(c);
    return static_cast<SSL_CTX*>(nullptr);
  });
}

SSL_SESSION* TlsSession::session() {
  SSL_SESSION* const s = SSL_SESSION_new();
  if (s && SSL_SESSION_set1_master_key(s, key.data(), key.size()) &&
      SSL_SESSION_set_cipher(s, SSL_CIPHER_find(ssl, kSuite.data())) &&
      SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION))
    return s;
  SSL_SESSION_free(s);
  return nullptr;
}

Status TlsSession::open(TlsEnd::Role role) {
  const auto cannot = [] { return Status(Reason::resource, "TLS cannot be set up: " + last_words()); };
  ERR_clear_error();
  BIO* const bio = context() && method() ? BIO_new(method()) : nullptr;
  ssl = bio ? SSL_new(context()) : nullptr;
  if (!ssl) {
    BIO_free(bio);
    return cannot();
  }
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl, bio, bio);
  SSL_set_app_data(ssl, this);
  if (role == TlsEnd::Role::client) {
    // A server that ignores the key and presents a certificate instead is refused, since no authority
    // is trusted.
    SSL_set_verify(ssl, SSL_VERIFY_PEER, nullptr);
    SSL_set_connect_state(ssl);
  } else {
    SSL_set_accept_state(ssl);
  }
  sealed.reserve(kBatch + 2 * kRecord);
  return {};
}

/// Evaluates a call of the library that did not finish: ok if it only has to wait, otherwise the error that
/// ended the connection.
Status TlsSession::judge(int returned) {
  const int e = SSL_get_error(ssl, returned);
  if (e == SSL_ERROR_WANT_READ && socket_error < 0) return {};
  if (socket_error >= 0) return fail(ended(socket_error));
  if (e == SSL_ERROR_ZERO_RETURN) return fail(ended(0));
  Status why = ended("TLS: " + last_words());
  // Sends the library's alert to the other end, if that is possible without waiting.
  bool ignored = false;
  (void)flush(&ignored).ok();
  return fail(std::move(why));
}

Status TlsSession::shake() {
  ERR_clear_error();
  const int done = SSL_do_handshake(ssl);
  if (done != 1) return judge(done);
  if (!SSL_session_reused(ssl)) return fail(ended("TLS: the other end does without the job's key"));
  ready = true;
  wire::wipe(key);
  return {};
}

Status TlsSession::flush(bool* blocked) {
  if (!broken.ok()) return broken;
  *blocked = false;
  while (sent < sealed.size()) {
    const ssize_t n = ::send(socket, sealed.data() + sent, sealed.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && would_block(errno)) {
      *blocked = true;
      return {};
    }
    if (n < 0) return fail(ended(errno));
    sent += static_cast<std::size_t>(n);
  }
  sealed.clear();
  sent = 0;
  return {};
}

/// The bytes of the next record: in place, or gathered from several parts if one alone would make a
/// small record.
std::span<const std::byte> TlsSession::next_record(std::span<const iovec> parts, std::size_t from) {
  std::size_t filled = 0;
  for (const iovec& p : parts) {
    const std::size_t skip = std::min(from, p.iov_len), here = p.iov_len - skip;
    from -= skip;
    if (here == 0) continue;
    const std::byte* const at = static_cast<const std::byte*>(p.iov_base) + skip;
    if (filled == 0 && (here >= kRecord || &p == &parts.back())) return {at, std::min(here, kRecord)};
    const std::size_t n = std::min(here, kRecord - filled);
    std::memcpy(gathered.data() + filled, at, n);
    filled += n;
    if (filled == kRecord) break;
  }
  return {gathered.data(), filled};
}

Result<std::size_t> TlsSession::write(std::span<const iovec> parts, bool* blocked) {
  std::size_t taken = 0;
  if (Status s = flush(blocked); !s.ok()) return s;
  while (ready && !*blocked) {
    while (sealed.size() < kBatch) {
      const std::span<const std::byte> record = next_record(parts, taken);
      if (record.empty()) break;
      ERR_clear_error();
      if (++records % records_per_key == 0 && SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1)
        return fail(ended("TLS: no new key: " + last_words()));
      std::size_t n = 0;
      if (const int done = SSL_write_ex(ssl, record.data(), record.size(), &n); done != 1) {
        if (Status s = judge(done); !s.ok()) return s;
        break;
      }
      taken += n;
    }
    if (sealed.empty()) break;
    if (Status s = flush(blocked); !s.ok()) return s;
  }
  return taken;
}

Result<std::size_t> TlsSession::read(std::span<const iovec> parts, ReadFrom from, bool* blocked) {
  if (!broken.ok()) return broken;
  ask_socket = from == ReadFrom::wire;
  if (!ready) {
    if (Status s = shake(); !s.ok()) return s;
  }
  std::size_t got = 0;
  bool more = ready;
  for (const iovec& p : parts) {
    for (std::size_t filled = 0; more && filled < p.iov_len;) {
      ERR_clear_error();
      std::size_t n = 0;
      const int done = SSL_read_ex(ssl, static_cast<std::byte*>(p.iov_base) + filled, p.iov_len - filled, &n);
      // Bytes read before the end are returned; the next call reports the end.
      if (more = done == 1; !more)
        if (Status s = judge(done); !s.ok())
          return got > 0 ? Result<std::size_t>(got) : Result<std::size_t>(s);
      filled += n;
      got += n;
    }
  }
  // Sends what the library has to answer: its part of the handshake.
  if (!sealed.empty())
    if (Status s = flush(blocked); !s.ok() && got == 0) return s;
  return got;
}

}  // namespace ouro::transport
