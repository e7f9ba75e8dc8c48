// The queue of one descriptor and the thread that empties it. Used through outlet.h.
#include "tools/run/outlet.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "tools/run/system.h"

namespace ouro::run {

class Outlet::State {
 public:
  State(Fd fd, Fd news) : fd_(std::move(fd)), news_(std::move(news)) {}

  void add(std::string_view text) {
    const std::lock_guard lock(mutex_);
    if (broken_ != 0 || text.empty()) return;
    if (pieces_.empty() || pieces_.back().size() + text.size() > PIPE_BUF) pieces_.emplace_back();
    pieces_.back() += text;
    waiting_ += text.size();
    full_ = full_ || waiting_ > kFull;
    wake_.notify_one();
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return ended_ || !pieces_.empty(); });
      if (ended_) return;
      const std::string piece = std::move(pieces_.front());
      pieces_.pop_front();
      for (std::string_view rest = piece; !rest.empty() && broken_ == 0;) {
        lock.unlock();
        const ssize_t n = ::write(fd_.get(), rest.data(), rest.size());
        const int error = n < 0 ? errno : 0;
        if (error == EAGAIN) {  // another process made it non-blocking
          pollfd room{fd_.get(), POLLOUT, 0};
          ::poll(&room, 1, -1);
        }
        lock.lock();
        if (ended_) return;
        if (n >= 0) {
          rest.remove_prefix(static_cast<std::size_t>(n));
          waiting_ -= static_cast<std::size_t>(n);
        } else if (error != EAGAIN && error != EINTR) {
          broken_ = error;
          pieces_.clear();
          waiting_ = 0;
        }
      }
      const bool room = full_ && (waiting_ < kFull / 2 || broken_ != 0);
      if (room) full_ = false;
      if (room || broken_ != 0 || waiting_ == 0) notify();
    }
  }

  /// Drops the queue; only the piece that is being written may still be written.
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    pieces_.clear();
    wake_.notify_one();
  }

  bool full() const {
    const std::lock_guard lock(mutex_);
    return full_;
  }
  std::size_t waiting() const {
    const std::lock_guard lock(mutex_);
    return waiting_;
  }
  int broken() const {
    const std::lock_guard lock(mutex_);
    return broken_;
  }
  const Fd& news() const { return news_; }

 private:
  void notify() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(news_.get(), &one, sizeof one);
  }

  const Fd fd_, news_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::string> pieces_;
  std::size_t waiting_ = 0;
  int broken_ = 0;
  bool full_ = false, ended_ = false;
};

Result<std::unique_ptr<Outlet>> Outlet::open(int fd) {
  Fd own(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  const int closed = own ? 0 : errno;  // the first write will report that it is closed
  if (!own && closed != EBADF) return system_error("cannot duplicate a descriptor");
  Fd news(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!news) return system_error("cannot make an eventfd");
  auto state = std::make_shared<State>(std::move(own), std::move(news));
  sigset_t all, before;
  sigfillset(&all);
  // Mask of the new thread; blocks SIGTTOU too, so that it may write to a terminal.
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  Status started;
  try {
    std::thread([state] { state->run(); }).detach();
  } catch (const std::system_error& e) {
    started = Status(Reason::resource, fmt::format("cannot start a thread: {}", e.what()));
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  OURO_TRY(started);
  return std::unique_ptr<Outlet>(new Outlet(std::move(state)));
}

Outlet::~Outlet() { state_->end(); }
void Outlet::add(std::string_view text) { state_->add(text); }
bool Outlet::full() const { return state_->full(); }
std::size_t Outlet::waiting() const { return state_->waiting(); }
int Outlet::broken() const { return state_->broken(); }
const Fd& Outlet::news() const { return state_->news(); }
void Outlet::reset_news() {
  std::uint64_t count;
  [[maybe_unused]] const ssize_t n = ::read(news().get(), &count, sizeof count);
}

}  // namespace ouro::run
