// Sealed frames over a line: whole frames in, a queue out. Used by the rendezvous.
// On the thread that runs the io_context, as all of net_line.h.
#pragma once
#include <deque>
#include <functional>
#include <memory>

#include "runtime/net_line.h"
#include "runtime/wire/net_frames.h"

namespace ouro::rt {

class FrameStream : public std::enable_shared_from_this<FrameStream> {
 public:
  using Payload = std::shared_ptr<const wire::Bytes>;
  /// A frame, or, once and last, why there are no more: refused (rightly sealed, and malformed), data-corrupt
  /// (not sealed so), peer-unresponsive (hung up).
  using OnFrame = std::function<void(Result<wire::NetFrame>)>;

  FrameStream(asio::io_context&, Line, std::size_t max_payload);
  /// Keeps the stream alive until its end or close(). OnFrame is never called from inside a call.
  void start(OnFrame);
  void send(const wire::NetFrame&);
  /// One payload may be on its way to many; it is sealed when the socket has room for it.
  void send(Payload);
  /// What has been sent still goes out, within a second; nothing more comes in.
  void finish();
  void close();
  bool open() const { return descriptor_.is_open(); }
  const Line& line() const { return line_; }  ///< without its socket

 private:
  void read();
  void read_some();
  void take(wire::View);
  void write();
  void end(Status);
  void end_later(Status);

  Line line_;
  asio::posix::stream_descriptor descriptor_;
  asio::steady_timer linger_;
  wire::FrameSealer sealer_;
  wire::FrameOpener opener_;
  OnFrame on_frame_;
  std::deque<Payload> queue_;
  wire::Bytes sealed_;  // the frame that is going out
  std::size_t sent_ = 0;
  bool writing_ = false, finishing_ = false;  // writing_: a write is under way, or none will be made again
};

}  // namespace ouro::rt
