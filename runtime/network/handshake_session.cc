// The two ways to open a line: a handshake on a connected socket, and dialling. See
// handshake_session.h, net_line.h.
#include "runtime/network/handshake_session.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>

#include "runtime/core/fork.h"

namespace ouro::rt {

using namespace std::chrono_literals;
using wire::Handshake, wire::RefuseCode;
using Descriptor = asio::posix::stream_descriptor;

std::chrono::microseconds round_trip(int socket) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0us;
  return std::min<std::chrono::microseconds>(std::chrono::microseconds(info.tcpi_rtt), 5s);
}

Status unresponsive(std::string text, const char* detector) {
  return Status(Failure{.reason = Reason::peer_unresponsive, .text = std::move(text), .detector = detector});
}

void HandshakeSession::start(bool server) {
  if (server) take({});
  if (done_) read();
}

void HandshakeSession::close(RefuseCode code, std::string_view why) {
  done_ = nullptr;
  hang_up(wire::refusal(code, why));
}

void HandshakeSession::close() {
  done_ = nullptr;
  hang_up({});
}

void HandshakeSession::read() {
  when_readable(descriptor_, [self = shared_from_this()](error_code e) {
    if (e || !self->done_) return;
    std::uint8_t bytes[wire::kMaxHandshake];
    // A frame may arrive in pieces, so this reads until nothing is left; a hostile peer can send no more than
    // a frame's length.
    while (self->done_) {
      const ssize_t n =
          ::read(self->descriptor_.native_handle(), bytes, std::min(self->handshake_.wants(), sizeof bytes));
      if (n > 0) {
        self->take({bytes, static_cast<std::size_t>(n)});
      } else if (n < 0 && errno == EINTR) {
        continue;
      } else if (n < 0 && errno == EAGAIN) {
        return self->read();
      } else {
        const char* what = n == 0 ? "closed by the other end" : std::strerror(errno);
        self->finish(
            {unresponsive(fmt::format("hung up during the handshake: {}", what), "hang-up"), {}, {}});
      }
    }
  });
}

void HandshakeSession::take(wire::View bytes) {
  Handshake::Step step = handshake_.step(bytes);
  if (step.phase == Handshake::Phase::refused) {
    hang_up(step.out);
    return finish({step.why, step.code, {}});
  }
  if (!send(step.out))
    return finish(
        {unresponsive(fmt::format("hung up during the handshake: {}", std::strerror(errno)), "hang-up"),
         {},
         {}});
  if (step.phase != Handshake::Phase::done) return;
  const Handshake::Peer& peer = handshake_.peer();
  Line line;
  line.socket = Fd(descriptor_.release());
  line.peer_rank = peer.rank, line.peer_pid = peer.pid, line.peer_process = peer.process;
  line.peer_host = peer.host;
  line.purpose = peer.purpose;
  line.round_trip = round_trip(line.socket.get());
  line.keys = peer.keys;
  finish({{}, {}, std::move(line)});
}

/// Sends everything at once: the buffer of a new connection holds more than a whole handshake.
bool HandshakeSession::send(const wire::Bytes& bytes) {
  return bytes.empty() || ::send(descriptor_.native_handle(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                              static_cast<ssize_t>(bytes.size());
}

void HandshakeSession::hang_up(const wire::Bytes& last_words) {
  if (!descriptor_.is_open()) return;
  if (!last_words.empty()) {
    // Unread bytes would turn the close into a reset, which can overtake the last words.
    std::uint8_t rest[wire::kMaxHandshake];
    (void)!::read(descriptor_.native_handle(), rest, sizeof rest);
    (void)send(last_words);
    shutdown(descriptor_.native_handle(), SHUT_WR);
  }
  error_code ignored;
  descriptor_.close(ignored);
}

void HandshakeSession::finish(Outcome outcome) {
  if (!outcome.status.ok()) hang_up({});
  if (auto done = std::exchange(done_, nullptr)) done(std::move(outcome));
}

namespace {

constexpr auto kHandshake = 5s;  // and four round trips: two, and a retransmitted packet

/// One attempt to connect and complete the handshake.
struct DialAttempt : std::enable_shared_from_this<DialAttempt> {
  DialAttempt(asio::io_context& context, std::function<void(Result<Line>)> f)
      : io(context), timer(context), connecting(context), done(std::move(f)) {}

  void start(Purpose purpose, Identity identity, int peer_rank) {
    auto to = parse_address(endpoint);
    if (!to.ok()) return later(to.status());
    Fd fd(::socket(to->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return later({Reason::resource, fmt::format("no socket: {}", std::strerror(errno))});
    close_in_children(fd.get());
    const int on = 1;
    (void)setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const int failed = connect(fd.get(), reinterpret_cast<sockaddr*>(&to->at), to->length) != 0 ? errno : 0;
    if (failed != 0 && failed != EINPROGRESS) return later(failure(failed));
    error_code no_room;
    connecting.assign(fd.get(), no_room);
    if (no_room) return later({Reason::resource, fmt::format("no connection: {}", no_room.message())});
    fd.release();
    expect_until(deadline, "connection");
    connecting.async_wait(Descriptor::wait_write, [self = shared_from_this(), purpose, peer_rank,
                                                   identity = std::move(identity)](error_code e) mutable {
      if (!e && self->done) self->connected(purpose, std::move(identity), peer_rank);
    });
  }

  /// Ends the attempt at `end`. The timer keeps this object alive; other callbacks hold it only weakly.
  void expect_until(Clock::time_point end, const char* what) {
    timer.expires_at(end);
    timer.async_wait([self = shared_from_this(), what](error_code e) {
      if (!e)
        self->finish(unresponsive(fmt::format("{} did not answer in time (no {})", self->endpoint, what),
                                  "no answer"));
    });
  }

  void connected(Purpose purpose, Identity identity, int peer_rank) {
    const int fd = connecting.native_handle();
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return finish(failure(error));
    NetAddress own, peer;
    own.length = peer.length = sizeof own.at;
    getsockname(fd, reinterpret_cast<sockaddr*>(&own.at), &own.length);
    getpeername(fd, reinterpret_cast<sockaddr*>(&peer.at), &peer.length);
    // If nothing listens on the port, it can be this socket's own: TCP then connects the socket to itself.
    if (to_string(own) == to_string(peer)) return finish(failure(ECONNREFUSED));
    expect_until(std::min<Clock::time_point>(deadline, Clock::now() + kHandshake + 4 * round_trip(fd)),
                 "handshake");
    session = std::make_shared<HandshakeSession>(
        io, Fd(connecting.release()), Handshake::client(std::move(identity), purpose, peer_rank),
        [weak = weak_from_this()](HandshakeSession::Outcome o) {
          const auto self = weak.lock();
          if (!self) return;
          if (o.status.ok()) {
            o.line.peer_address = self->endpoint;
            return self->finish(std::move(o.line));
          }
          if (o.code == RefuseCode::busy)
            return self->finish(
                unresponsive(fmt::format("{}: {}", self->endpoint, o.status.failure()->text), "busy"));
          Failure f = *o.status.failure();
          f.text = fmt::format("{}: {}", self->endpoint, f.text);
          self->finish(Status(std::move(f)));
        });
    session->start(false);
  }

  Status failure(int error) const {
    const std::string text = fmt::format("cannot connect to {}: {}", endpoint, std::strerror(error));
    switch (error) {
      case ECONNREFUSED:
        return Status(Failure{.reason = Reason::peer_dead, .text = text, .detector = "connection refused"});
      case ETIMEDOUT:
        return unresponsive(text, "no answer");
      case EHOSTUNREACH:
      case ENETUNREACH:
      case EHOSTDOWN:
      case ENETDOWN:
        return unresponsive(text, "unreachable");
      case ECONNRESET:
      case EPIPE:
        return unresponsive(text, "hang-up");
      default:
        return {Reason::resource, text};
    }
  }
  void later(Status why) {
    asio::post(io, [self = shared_from_this(), why = std::move(why)] { self->finish(why); });
  }
  void finish(Result<Line> result) {
    timer.cancel();
    if (connecting.is_open()) connecting.close();
    if (session) session->close();
    if (auto f = std::exchange(done, nullptr)) f(std::move(result));
    session.reset();
  }

  asio::io_context& io;
  asio::steady_timer timer;
  Descriptor connecting;
  std::shared_ptr<HandshakeSession> session;
  std::string endpoint;
  Clock::time_point deadline;
  std::function<void(Result<Line>)> done;
};

}  // namespace

void dial(asio::io_context& io, const std::string& endpoint, Purpose purpose, Identity identity,
          int peer_rank, Clock::time_point deadline, std::function<void(Result<Line>)> done) {
  auto attempt = std::make_shared<DialAttempt>(io, std::move(done));
  attempt->endpoint = endpoint;
  attempt->deadline = deadline;
  attempt->start(purpose, std::move(identity), peer_rank);
}

}  // namespace ouro::rt
