// HandshakeSession: one handshake on one connected socket, on either side. Used by the listener and
// by dialling.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "runtime/network/net_line.h"

namespace ouro::rt {

/// Keeps itself alive until it has called `done` or was closed.
class HandshakeSession : public std::enable_shared_from_this<HandshakeSession> {
 public:
  struct Outcome {
    Status status;
    std::optional<wire::RefuseCode> code;
    Line line;  ///< if ok; without the peer's address
  };
  using Done = std::function<void(Outcome)>;

  /// `fd`: connected and non-blocking. Throws, and closes it, if it cannot be watched.
  HandshakeSession(asio::io_context& io, Fd fd, wire::Handshake handshake, Done done)
      : descriptor_(watched(io, fd)), handshake_(std::move(handshake)), done_(std::move(done)) {}

  void start(bool server);
  bool silent() const { return !handshake_.spoken(); }
  /// Both end the handshake without a call of `done`; the first sends the reason to the other end.
  void close(wire::RefuseCode code, std::string_view why);
  void close();

 private:
  void read();
  void take(wire::View bytes);
  bool send(const wire::Bytes& bytes);
  void hang_up(const wire::Bytes& last_words);
  void finish(Outcome outcome);

  asio::posix::stream_descriptor descriptor_;
  wire::Handshake handshake_;
  Done done_;
};

/// The round trip that the kernel has measured on a TCP connection; 0 if unknown. At most 5 s, since an
/// unauthenticated client can feign a slow path.
std::chrono::microseconds round_trip(int socket);

/// A failure `peer-unresponsive` with this detector.
Status unresponsive(std::string text, const char* detector);

}  // namespace ouro::rt
