// Sealed frames over a pipe. See control_line.h.
#include "runtime/control_line.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

namespace ouro::rt {
namespace {

constexpr std::size_t kPiece = 64 << 10, kMostQueued = 64 * kPiece;

}  // namespace

ControlLine::ControlLine(asio::io_context& io, Line line, transport::Pipe over)
    : socket_(io, line.socket.release()),
      pipe_(std::move(over)),
      out_(line.keys.out),
      in_(line.keys.in),
      buffer_(kPiece) {}

void ControlLine::listen(std::function<void(wire::View)> payload,
                         std::function<void(const std::string&)> ended) {
  payload_ = std::move(payload);
  ended_ = std::move(ended);
  read();
}

void ControlLine::read() {
  socket_.async_wait(Descriptor::wait_read, [self = shared_from_this(), this](error_code e) {
    if (e) return end(e.message());
    const iovec room{buffer_.data(), buffer_.size()};
    using From = transport::Pipe::From;
    // One piece, then others on this thread have their turn; the socket would not tell of what the pipe
    // keeps.
    for (From from = From::wire; socket_.is_open(); from = From::kept) {
      const auto n = pipe_.read({&room, 1}, from);
      if (!n.ok()) return end(n.status().failure()->text);
      if (*n == 0) break;
      in_.push({buffer_.data(), *n});
      for (;;) {
        auto payload = in_.next();
        if (!payload.ok()) return end(payload.status().failure()->text);
        if (!*payload) break;
        payload_(**payload);
      }
    }
    flush();
    read();
  });
}

void ControlLine::end(const std::string& how) {
  close();
  ended_(how);
}

void ControlLine::close() {
  error_code ignored;
  socket_.close(ignored);
}

void ControlLine::send(const wire::NetFrame& frame) {
  if (last_words_) return;
  if (queued_.size() > kMostQueued) return close();  // on the next line everything is said anew
  (void)out_.seal(wire::encode_net(frame), queued_).ok();
}

void ControlLine::flush() {
  if (waiting_ || !socket_.is_open()) return;
  bool good = pipe_.flush().ok();  // where not, the reader hears of it
  while (good && !pipe_.blocked()) {
    if (written_ == writing_.size()) {
      writing_.clear(), written_ = 0;
      if (queued_.empty()) break;
      std::swap(writing_, queued_);
    }
    const iovec rest{writing_.data() + written_, writing_.size() - written_};
    const auto n = pipe_.write({&rest, 1});
    good = n.ok() && *n > 0;
    if (good) written_ += *n;
  }
  if (pipe_.blocked()) {
    waiting_ = true;
    socket_.async_wait(Descriptor::wait_write, [self = shared_from_this(), this](error_code e) {
      waiting_ = false;
      if (!e) flush();
    });
  } else if (last_words_ && writing_.empty()) {
    shutdown(socket_.native_handle(), SHUT_WR);
  }
}

void ControlLine::last_words() {
  last_words_ = true;
  flush();
}

bool ControlLine::delivered() {
  if (!socket_.is_open()) return true;
  int left = 0;
  const bool known = ioctl(socket_.native_handle(), SIOCOUTQ, &left) == 0;
  return writing_.empty() && queued_.empty() && (!known || left == 0);
}

}  // namespace ouro::rt
