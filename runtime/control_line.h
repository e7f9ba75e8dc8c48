// One authenticated line between ranks of different hosts: sealed frames, in order, never blocking. Used by
// network, on its thread.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "runtime/asio.h"
#include "runtime/net_line.h"
#include "runtime/wire/net_frames.h"
#include "transport/tls.h"

namespace ouro::rt {

class ControlLine : public std::enable_shared_from_this<ControlLine> {
 public:
  /// Under TLS its frames are sealed all the same: the seals are what cuts the stream up.
  ControlLine(asio::io_context&, Line, transport::Pipe);

  /// From now on calls `payload` for what comes and, once, `ended` with the reason; it stays until then.
  void listen(std::function<void(wire::View)> payload, std::function<void(const std::string&)> ended);
  /// Queues a frame. A line that nobody reads is closed.
  void send(const wire::NetFrame&);
  void flush();
  /// Nothing follows: the other side is told once all is written.
  void last_words();
  /// Whether the other side has acknowledged all of it, or cannot any more.
  bool delivered();
  void close();
  Clock::time_point since() const { return since_; }

 private:
  using Descriptor = asio::posix::stream_descriptor;
  void read();
  void end(const std::string& how);

  const Clock::time_point since_ = Clock::now();
  Descriptor socket_;  // to wait for; bytes go by the pipe
  transport::Pipe pipe_;
  wire::FrameSealer out_;
  wire::FrameOpener in_;
  wire::Bytes buffer_;
  wire::Bytes queued_, writing_;  // all that has been written is in the kernel once writing_ is empty
  std::size_t written_ = 0;       // of writing_
  bool waiting_ = false;          // for room
  bool last_words_ = false;
  std::function<void(wire::View)> payload_;
  std::function<void(const std::string&)> ended_;
};

}  // namespace ouro::rt
