// Accepting on a local name. See local_listener.h.
#include "runtime/join/local_listener.h"

#include <sys/socket.h>

#include <cerrno>
#include <exception>

#include "runtime/core/fork.h"
#include "runtime/core/log.h"
#include "runtime/network/fd_shortage.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr int kHalfOpen = 128;  // connections that have not sent anything yet
constexpr auto kFirstFrame = 1s;

}  // namespace

class LocalListener::State : public std::enable_shared_from_this<State> {
 public:
  State(asio::io_context& io, Fd socket, FrameHandler handler)
      : io_(io), socket_(watched(io, socket)), rest_(io), handler_(std::move(handler)) {}

  void accept() {
    accepting_ = socket_.is_open() && half_open_ < kHalfOpen;
    if (!accepting_) return;
    socket_.async_wait(Descriptor::wait_read, [self = shared_from_this()](error_code e) {
      if (!e) self->accept_some();
    });
  }
  void refuse(const Line& line, const Status& why) {
    ++refused_;
    OURO_INFO(BOOTSTRAP, "refused pid {}: {}", credentials(line->native_handle()).pid, why.failure()->text);
    (void)send_frame(line->native_handle(),
                     wire::Refuse{why.reason(), why.failure()->rank, why.failure()->text})
        .ok();
  }
  Fd release() {
    handler_ = nullptr;
    rest_.cancel();
    return socket_.is_open() ? Fd(socket_.release()) : Fd();
  }
  int refused() const { return refused_; }

 private:
  using Descriptor = asio::posix::stream_descriptor;

  /// Accepting continues after every error, and no connection is closed, because peers wait for answers.
  void accept_some() try {
    while (half_open_ < kHalfOpen && socket_.is_open()) {
      if (!next_)
        next_ = Fd(accept4(socket_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (next_) {
        close_in_children(next_.get());
        const auto line = std::make_shared<Descriptor>(watched(io_, next_));
        shortage_.over();
        admit(line);
      } else if (FdShortage::caused(errno)) {
        return rest();
      } else if (errno != EINTR && errno != ECONNABORTED) {
        break;
      }
    }
    accept();
  } catch (const std::exception& e) {  // no memory, or the system cannot watch more descriptors
    rest(e.what());
  }
  /// Pauses. Unlike connections from a network, none is dropped: the peers are on this host, and can wait.
  void rest(const char* why = "no file descriptor is left; raise `ulimit -n`") {
    if (!shortage_.lasts()) OURO_WARN("a local connection has to wait: {}", why);
    rest_.expires_after(shortage_.rest());
    rest_.async_wait([self = shared_from_this()](error_code e) {
      if (!e) self->next_ ? self->accept_some() : self->accept();
    });
  }

  void admit(const Line& line) {
    if (Status s = check_peer(line->native_handle()); !s.ok()) return refuse(line, s);
    ++half_open_;
    auto timer = std::make_shared<asio::steady_timer>(io_, kFirstFrame);
    timer->async_wait([line](error_code e) {
      if (!e) line->cancel();
    });
    when_readable(*line, [self = shared_from_this(), line, timer](error_code e) {
      --self->half_open_;
      if (!self->accepting_) self->accept();
      timer->cancel();
      if (!e) self->receive(line);
    });
  }
  void receive(const Line& line) {
    if (!handler_) return;
    auto incoming = recv_frame(line->native_handle(), Clock::now());
    if (!incoming.ok()) {
      if (incoming.status().reason() == Reason::refused)
        OURO_WARN("pid {} of this host connected to this job and is refused: {}",
                  credentials(line->native_handle()).pid, incoming.status().failure()->text);
      return refuse(line, incoming.status());
    }
    const FrameHandler f = handler_;  // a copy: the callee may release()
    f(line, std::move(*incoming));
  }

  asio::io_context& io_;
  Descriptor socket_;
  Fd next_;  // accepted, and still to be watched
  asio::steady_timer rest_;
  FrameHandler handler_;
  FdShortage shortage_;
  int half_open_ = 0, refused_ = 0;
  bool accepting_ = false;
};

LocalListener::LocalListener(asio::io_context& io, Fd socket, FrameHandler handler)
    : state_(std::make_shared<State>(io, std::move(socket), std::move(handler))) {
  state_->accept();
}
LocalListener::~LocalListener() { (void)state_->release(); }
void LocalListener::refuse(const Line& line, const Status& why) { state_->refuse(line, why); }
int LocalListener::refused() const { return state_->refused(); }
Fd LocalListener::release() { return state_->release(); }

}  // namespace ouro::rt
