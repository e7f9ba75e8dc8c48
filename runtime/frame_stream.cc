// Sealed frames over a line. See frame_stream.h.
#include "runtime/frame_stream.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>

#include "runtime/greeting.h"

namespace ouro::rt {

FrameStream::FrameStream(asio::io_context& io, Line line, std::size_t max_payload)
    : line_(std::move(line)),
      descriptor_(io, line_.socket.release()),
      linger_(io),
      sealer_(line_.keys.out),
      opener_(line_.keys.in, max_payload) {}

void FrameStream::start(OnFrame on_frame) {
  on_frame_ = std::move(on_frame);
  read();
}

void FrameStream::read() {
  when_readable(descriptor_, [self = shared_from_this()](error_code e) {
    if (e || !self->on_frame_) return;
    self->read_some();
    if (self->on_frame_) self->read();
  });
}

/// A few pieces, then others on this thread have their turn.
void FrameStream::read_some() {
  std::uint8_t bytes[64 << 10];
  for (int i = 0; i < 4 && on_frame_; ++i) {
    const ssize_t n = ::read(descriptor_.native_handle(), bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0)
      return end(unresponsive(
          fmt::format("hung up: {}", n == 0 ? "closed by the other end" : std::strerror(errno)), "hang-up"));
    take({bytes, static_cast<std::size_t>(n)});
  }
}

void FrameStream::take(wire::View bytes) {
  opener_.push(bytes);
  while (on_frame_) {
    auto payload = opener_.next();
    if (!payload.ok()) return end(payload.status());
    if (!*payload) return;
    auto frame = wire::decode_net(**payload);
    if (!frame.ok()) return end(frame.status());
    // A copy: the callee may replace or drop it.
    const OnFrame f = on_frame_;
    f(std::move(*frame));
  }
}

void FrameStream::send(const wire::NetFrame& frame) {
  send(std::make_shared<const wire::Bytes>(wire::encode_net(frame)));
}

void FrameStream::send(Payload payload) {
  if (!open() || finishing_) return;
  queue_.push_back(std::move(payload));
  if (!writing_) write();
}

void FrameStream::write() {
  for (int i = 0; open(); ++i) {
    if (sent_ == sealed_.size()) {
      sealed_.clear(), sent_ = 0;
      if (queue_.empty()) {
        wire::Bytes().swap(sealed_);
        if (finishing_) close();
        return;
      }
      const Payload next = std::move(queue_.front());
      queue_.pop_front();
      if (Status s = sealer_.seal(*next, sealed_); !s.ok()) return end_later(s);
    }
    const ssize_t n =
        ::send(descriptor_.native_handle(), sealed_.data() + sent_, sealed_.size() - sent_, MSG_NOSIGNAL);
    if (n > 0) sent_ += static_cast<std::size_t>(n);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN)
      return end_later(unresponsive(fmt::format("hung up: {}", std::strerror(errno)), "hang-up"));
    if (n < 0 || i >= 4) {
      writing_ = true;
      descriptor_.async_wait(asio::posix::stream_descriptor::wait_write,
                             [self = shared_from_this()](error_code e) {
                               self->writing_ = false;
                               if (!e) self->write();
                             });
      return;
    }
  }
}

void FrameStream::finish() {
  on_frame_ = nullptr;
  finishing_ = true;
  if (!open()) return;
  linger_.expires_after(std::chrono::seconds(1));
  linger_.async_wait([self = shared_from_this()](error_code e) {
    if (!e) self->close();
  });
  if (!writing_) write();
}

void FrameStream::close() {
  on_frame_ = nullptr;
  queue_.clear();
  linger_.cancel();
  if (!open()) return;
  // With bytes left unread a close is a reset, which can overtake what was written last.
  shutdown(descriptor_.native_handle(), SHUT_WR);
  std::uint8_t rest[4096];
  (void)!::read(descriptor_.native_handle(), rest, sizeof rest);
  error_code ignored;
  descriptor_.close(ignored);
}

/// The owner may be in the middle of a loop over such streams. What the other end said last is still read.
void FrameStream::end_later(Status why) {
  writing_ = true;
  asio::post(descriptor_.get_executor(), [self = shared_from_this(), why = std::move(why)] {
    if (self->on_frame_) self->read_some();
    self->end(why);
  });
}

void FrameStream::end(Status why) {
  const OnFrame f = std::exchange(on_frame_, nullptr);
  close();
  if (f) f(std::move(why));
}

}  // namespace ouro::rt
