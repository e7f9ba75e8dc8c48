// Sealed frames over a line, in clear or under TLS: whole frames in, a queue out. Used by the rendezvous and
// by network. On the thread that runs the io_context, as all of net_line.h.
#pragma once
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>

#include "runtime/network/net_line.h"
#include "transport/net/tls/pipe.h"
#include "transport/wire/net_frames.h"

namespace ouro::rt {

/// This rank's end of a line, if there is TLS; the one that has dialled is the client.
std::optional<transport::TlsEnd> tls_end(bool tls, bool dialled, const Line&);

class FrameStream : public std::enable_shared_from_this<FrameStream> {
 public:
  using Payload = std::shared_ptr<const wire::Bytes>;
  static Payload payload(const wire::NetFrame& f) {
    return std::make_shared<const wire::Bytes>(wire::encode_net(f));
  }
  /// A frame, or, once and last, why there are no more: refused (rightly sealed, and malformed), data-corrupt
  /// (not sealed so), peer-unresponsive (hung up, or more than `max_queued` bytes wait to be sent).
  using OnFrame = std::function<void(Result<wire::NetFrame>)>;

  /// `pipe`: of the line's socket; none: in clear. Under TLS frames are sealed all the same: the seals are
  /// what cuts the stream up.
  FrameStream(asio::io_context&, Line, std::size_t max_payload, std::optional<transport::Pipe> pipe = {},
              std::size_t max_queued = std::numeric_limits<std::size_t>::max());
  /// Keeps the stream alive until its end or close(). OnFrame is never called from inside a call.
  void start(OnFrame);
  void send(const wire::NetFrame& f) { send(payload(f)); }
  /// Payloads may be on their way to many; they are sealed when the socket has room for them.
  void send(const Payload& p) { send(std::span(&p, 1)); }
  void send(std::span<const Payload>);
  /// Nothing follows: the other end is told so once all is written. It is still heard.
  void last_words();
  /// The bytes of a whole packet of the connection, as the system makes them; at most 9,000.
  std::size_t packet();
  /// Whether the other end's system has all of it, or there is no connection any more.
  bool delivered();
  /// What has been sent still goes out, within a second; nothing more comes in.
  void finish();
  void close();
  bool open() const { return descriptor_.is_open(); }
  const Line& line() const { return line_; }  ///< without its socket
  Clock::time_point since() const { return since_; }

 private:
  enum class After : std::uint8_t { more, silence, close };  // what becomes of it once all is written
  void read();
  void read_some();
  void take(wire::View);
  void write();
  void all_written();
  void end(Status);
  void end_later(Status);

  const Clock::time_point since_ = Clock::now();
  Line line_;
  asio::posix::stream_descriptor descriptor_;  // to wait for; bytes go by the pipe
  transport::Pipe pipe_;
  asio::steady_timer linger_;
  wire::FrameSealer sealer_;
  wire::FrameOpener opener_;
  OnFrame on_frame_;
  const std::size_t max_queued_;
  std::deque<Payload> queue_;
  std::size_t queued_ = 0;  // bytes of it
  wire::Bytes sealed_;      // frames that are going out
  std::size_t sent_ = 0;    // of sealed_
  bool writing_ = false;    // a write is under way, or none will be made again
  After after_ = After::more;
};

}  // namespace ouro::rt
