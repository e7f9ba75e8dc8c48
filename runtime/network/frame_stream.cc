// Sealed frames over a line. See frame_stream.h.
#include "runtime/network/frame_stream.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>

#include "runtime/network/handshake_session.h"

namespace ouro::rt {
namespace {

constexpr std::size_t kPiece = 64 << 10;              // bytes read, or sealed, at once
constexpr int kWrites = 4;                            // in a row, then other work on this thread has its turn
constexpr int kPacket = 1500, kLargestPacket = 9000;  // bytes; of usual networks, and of jumbo frames

Status hung_up(const std::string& how) { return unresponsive("hung up: " + how, "hang-up"); }

}  // namespace

std::optional<transport::TlsEnd> tls_end(bool tls, bool dialled, const Line& line) {
  using Role = transport::TlsEnd::Role;
  if (!tls) return {};
  return transport::TlsEnd{.role = dialled ? Role::client : Role::server, .keys = line.keys};
}

FrameStream::FrameStream(asio::io_context& io, Line line, std::size_t max_payload,
                         std::optional<transport::Pipe> pipe, std::size_t max_queued)
    : line_(std::move(line)),
      descriptor_(watched(io, line_.socket)),
      pipe_(pipe ? std::move(*pipe) : *transport::Pipe::open(descriptor_.native_handle(), {})),
      linger_(io),
      sealer_(line_.keys.out),
      opener_(line_.keys.in, max_payload),
      max_queued_(max_queued) {}

void FrameStream::start(OnFrame on_frame) {
  on_frame_ = std::move(on_frame);
  read();
}

void FrameStream::read() {
  when_readable(descriptor_, [self = shared_from_this()](error_code e) {
    if (e || !self->on_frame_) return;
    self->read_some();
    if (!self->on_frame_) return;
    self->write();  // TLS may have to answer before it delivers anything
    self->read();
  });
}

/// Reads one piece from the socket, then other work on this thread has its turn. Also reads what the pipe
/// keeps, of which the socket would not notify.
void FrameStream::read_some() {
  using From = transport::Pipe::From;
  std::uint8_t bytes[kPiece];
  const iovec room{bytes, sizeof bytes};
  for (From from = From::wire; on_frame_; from = From::kept) {
    const auto n = pipe_.read({&room, 1}, from);
    if (!n.ok()) return end(hung_up(n.status().failure()->text));
    if (*n == 0) return;
    take({bytes, *n});
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

void FrameStream::send(std::span<const Payload> payloads) {
  if (!open() || after_ != After::more) return;
  for (const Payload& p : payloads) queued_ += p->size();
  queue_.insert(queue_.end(), payloads.begin(), payloads.end());
  if (queued_ > max_queued_) return end_later(unresponsive("it does not read", "send queue"));
  write();
}

void FrameStream::write() {
  if (writing_ || !open()) return;
  if (Status s = pipe_.flush(); !s.ok()) return end_later(hung_up(s.failure()->text));
  for (int i = 0; i < kWrites && !pipe_.blocked(); ++i) {
    if (sent_ == sealed_.size()) {
      sealed_.clear(), sent_ = 0;
      while (!queue_.empty() && sealed_.size() < kPiece) {
        if (Status s = sealer_.seal(*queue_.front(), sealed_); !s.ok()) return end_later(s);
        queued_ -= queue_.front()->size();
        queue_.pop_front();
      }
      if (sealed_.empty()) return all_written();
    }
    const iovec rest{sealed_.data() + sent_, sealed_.size() - sent_};
    const auto n = pipe_.write({&rest, 1});
    if (!n.ok()) return end_later(hung_up(n.status().failure()->text));
    sent_ += *n;
    if (*n == 0 && !pipe_.blocked()) return;  // the other end has to answer first
  }
  writing_ = true;
  descriptor_.async_wait(asio::posix::stream_descriptor::wait_write,
                         [self = shared_from_this()](error_code e) {
                           self->writing_ = false;
                           if (!e) self->write();
                         });
}

void FrameStream::all_written() {
  wire::Bytes().swap(sealed_);
  if (after_ == After::close)
    close();
  else if (after_ == After::silence)
    shutdown(descriptor_.native_handle(), SHUT_WR);
}

void FrameStream::last_words() {
  if (after_ == After::more) after_ = After::silence;
  write();
}

std::size_t FrameStream::packet() {
  int segment = 0;
  socklen_t size = sizeof segment;
  const bool known =
      open() && getsockopt(descriptor_.native_handle(), IPPROTO_TCP, TCP_MAXSEG, &segment, &size) == 0;
  return static_cast<std::size_t>(known ? std::clamp(segment, 0, kLargestPacket) : kPacket);
}

std::optional<transport::TcpSample> FrameStream::sample() const {
  if (!open()) return {};
  return transport::sample_tcp(const_cast<FrameStream*>(this)->descriptor_.native_handle(), number_, false);
}

bool FrameStream::delivered() {
  if (!open()) return true;
  int left = 0;
  const bool known = ioctl(descriptor_.native_handle(), SIOCOUTQ, &left) == 0;
  return queue_.empty() && sent_ == sealed_.size() && (!known || left == 0);
}

void FrameStream::finish() {
  on_frame_ = nullptr;
  after_ = After::close;
  if (!open()) return;
  linger_.expires_after(std::chrono::seconds(1));
  linger_.async_wait([self = shared_from_this()](error_code e) {
    if (!e) self->close();
  });
  write();
}

void FrameStream::close() {
  on_frame_ = nullptr;
  queue_.clear();
  queued_ = 0;
  linger_.cancel();
  if (!open()) return;
  // Closing with unread bytes sends a reset, which can overtake what was written last.
  shutdown(descriptor_.native_handle(), SHUT_WR);
  std::uint8_t rest[4096];
  (void)!::read(descriptor_.native_handle(), rest, sizeof rest);
  error_code ignored;
  descriptor_.close(ignored);
}

/// Ends the stream later, as the owner may be in the middle of a loop over its streams. What the other end
/// has sent last is still read.
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
