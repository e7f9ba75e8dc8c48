// FrameStream: sealed frames over a line, in clear or under TLS. It receives whole frames and queues those to
// send. Used by the rendezvous and by network. It runs on the thread that runs the io_context, as all of
// net_line.h does.
#pragma once
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>

#include "runtime/network/net_line.h"
#include "transport/net/pipe.h"
#include "transport/net/tcp_sample.h"
#include "transport/wire/net_frames.h"

namespace ouro::rt {

/// This rank's end of TLS on a line, if `tls`; the rank that has dialled is the client.
std::optional<transport::TlsEnd> tls_end(bool tls, bool dialled, const Line&);

class FrameStream : public std::enable_shared_from_this<FrameStream> {
 public:
  using Payload = std::shared_ptr<const wire::Bytes>;
  static Payload payload(const wire::NetFrame& f) {
    return std::make_shared<const wire::Bytes>(wire::encode_net(f));
  }
  /// Called with each frame and, once and last, with the reason why there are no more: refused (correctly
  /// sealed, but malformed), data-corrupt (the seal is wrong), peer-unresponsive (hung up, or more than
  /// `max_queued` bytes wait to be sent).
  using OnFrame = std::function<void(Result<wire::NetFrame>)>;

  /// `pipe` is that of the line's socket; without one the line is in clear. Under TLS frames are sealed all
  /// the same, as the seals divide the stream into frames.
  FrameStream(asio::io_context&, Line, std::size_t max_payload, std::optional<transport::Pipe> pipe = {},
              std::size_t max_queued = std::numeric_limits<std::size_t>::max());
  /// Keeps the stream alive until its end or close(). OnFrame is never called from inside a call.
  void start(OnFrame);
  void send(const wire::NetFrame& f) { send(payload(f)); }
  /// Several streams may share a payload; it is sealed when the socket has room for it.
  void send(const Payload& p) { send(std::span(&p, 1)); }
  void send(std::span<const Payload>);
  /// Half-closes the stream: nothing more is sent, and the other end learns this once everything is written.
  /// Frames are still received.
  void last_words();
  /// The size of a full packet of the connection (its MSS) in bytes; at most 9,000.
  std::size_t packet();
  /// The kernel's counts of the connection; none once it has ended.
  std::optional<transport::TcpSample> sample() const;
  /// Whether the other end's kernel has everything that was sent, or the connection has ended.
  bool delivered();
  /// Closes the stream once what was sent is written, within 1 s; nothing more is received.
  void finish();
  /// Closes the connection at once, without a call of OnFrame.
  void close();
  bool open() const { return descriptor_.is_open(); }
  const Line& line() const { return line_; }  ///< without its socket
  Clock::time_point since() const { return since_; }

 private:
  enum class After : std::uint8_t { more, silence, close };  // what happens once everything is written
  void read();
  void read_some();
  void take(wire::View);
  void write();
  void all_written();
  void end(Status);
  void end_later(Status);

  const Clock::time_point since_ = Clock::now();
  const std::uint64_t number_ = transport::number_connection();
  Line line_;
  asio::posix::stream_descriptor descriptor_;  // it is only polled; bytes pass through the pipe
  transport::Pipe pipe_;
  asio::steady_timer linger_;
  wire::FrameSealer sealer_;
  wire::FrameOpener opener_;
  OnFrame on_frame_;
  const std::size_t max_queued_;
  std::deque<Payload> queue_;
  std::size_t queued_ = 0;  // bytes in queue_
  wire::Bytes sealed_;      // frames that are being written
  std::size_t sent_ = 0;    // of sealed_
  bool writing_ = false;    // a write is in progress, or none will be made again
  After after_ = After::more;
};

}  // namespace ouro::rt
