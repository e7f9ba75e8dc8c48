// The listener, keepalive and the job's secret. Dialling is in handshake_session.cc. See net_line.h.
#include "runtime/network/net_line.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "runtime/core/env.h"
#include "runtime/core/fork.h"
#include "runtime/core/log.h"
#include "runtime/network/fd_shortage.h"
#include "runtime/network/half_open.h"
#include "runtime/network/handshake_session.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
using wire::Handshake, wire::RefuseCode;
using Descriptor = asio::posix::stream_descriptor;

// Newcomers may wait for a place: so many in all, so many of one source, and for so long. A burst gets its
// turn, but cannot use up the descriptors.
constexpr std::size_t kWaiting = 64;
constexpr std::ptrdiff_t kWaitingOfOne = 32;
constexpr auto kWait = 500ms, kRetry = 4ms;
constexpr const char* kBusy = "too many unfinished handshakes";
constexpr auto kLogAgain = 10s;
constexpr std::size_t kSources = 1024;  // with log lines of their own, and remembered as known
constexpr int kAtOnce = 16;             // accepted before others on this thread get their turn

void set(int fd, int level, int option, int value) {
  (void)setsockopt(fd, level, option, &value, sizeof value);
}

Result<Fd> listening_socket(const LineListener::Options& options) {
  const auto failed = [&](const char* what) {
    return Status(Reason::resource,
                  fmt::format("cannot {} {}: {}", what, options.bind, std::strerror(errno)));
  };
  auto at = parse_address(options.bind);
  if (!at.ok()) return at.status();
  const bool v6 = at->at.ss_family == AF_INET6;
  const auto* in4 = reinterpret_cast<const sockaddr_in*>(&at->at);
  const auto* in6 = reinterpret_cast<const sockaddr_in6*>(&at->at);
  if (v6 ? IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr) : in4->sin_addr.s_addr == 0)
    return invalid("a wildcard address would listen on every network; name one address");
  Fd fd(::socket(at->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return failed("make a socket for");
  close_in_children(fd.get());
  if ((v6 ? in6->sin6_port : in4->sin_port) != 0) set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&at->at), at->length) != 0) return failed("bind");
  if (listen(fd.get(), options.backlog) != 0) return failed("listen on");
  return fd;
}

Fd spare_descriptor() { return Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

class LineListener::Acceptor : public std::enable_shared_from_this<Acceptor> {
 public:
  Acceptor(asio::io_context& io, Identity self, Options options, Fd socket, std::function<void(Line)> taken)
      : io_(io),
        self_(std::move(self)),
        options_(std::move(options)),
        listener_(watched(io, socket)),
        rest_(io),
        door_(io),
        spare_(spare_descriptor()),
        taken_(std::move(taken)) {
    NetAddress own;
    own.length = sizeof own.at;
    getsockname(listener_.native_handle(), reinterpret_cast<sockaddr*>(&own.at), &own.length);
    endpoint_ = to_string(own);
  }

  void accept() {
    if (closed_) return;
    when_readable(listener_, [self = shared_from_this()](error_code e) {
      if (!e && !self->ignores_) self->accept_some();
    });
  }
  void ignore() { ignores_ = true; }
  void close() {
    closed_ = true;
    error_code ignored;
    listener_.close(ignored);
    rest_.cancel(), door_.cancel();
    waiting_.clear(), held_up_ = {};
    for (auto& h : std::exchange(half_, {})) h->timer.cancel(), h->session->close();
    taken_ = nullptr;
  }
  const std::string& endpoint() const { return endpoint_; }
  const Counts& counts() {
    counts_.half_open = half_.size();
    return counts_;
  }

 private:
  struct PendingHandshake : HalfOpen {
    explicit PendingHandshake(asio::io_context& io) : timer(io) {}
    std::string endpoint;
    Clock::time_point since = Clock::now();
    Clock::duration patience{};
    asio::steady_timer timer;
    std::shared_ptr<HandshakeSession> session;
  };
  struct Newcomer {
    Fd fd;
    NetAddress from;
    std::string source = {};
    Clock::time_point since = Clock::now();
  };

  /// Accepts some connections. Whatever happens, accepting continues.
  void accept_some() try {
    for (int i = 0; i < kAtOnce && !closed_; ++i) {
      Newcomer s;
      s.from.length = sizeof s.from.at;
      s.fd = Fd(accept4(listener_.native_handle(), reinterpret_cast<sockaddr*>(&s.from.at), &s.from.length,
                        SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!s.fd && FdShortage::caused(errno)) return shed();
      if (!s.fd && (errno == EAGAIN || errno == EBADF || errno == EINVAL)) break;
      if (!s.fd) continue;  // that connection has ended already
      close_in_children(s.fd.get());
      shortage_.over();
      ++counts_.accepted;
      s.source = source_of(s.from);
      if (!enter(s)) {
        held_up_ = std::move(s);
        accepts_ = false;
        return;
      }
    }
    accept();
  } catch (const std::exception& e) {  // no memory, or the system cannot watch more descriptors
    if (!shortage_.lasts()) OURO_WARN("a connection to {} could not be taken: {}", endpoint_, e.what());
    after(shortage_.rest(), [this] { accept(); });
  }

  /// No descriptor is left: the connection at the head of the queue would wake this thread forever, so it
  /// is dropped.
  void shed() {
    spare_.reset();
    Fd(accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    spare_ = spare_descriptor();
    ++counts_.shed;
    if (!shortage_.lasts())
      OURO_WARN("no file descriptor is left for connections to {}; raise `ulimit -n`", endpoint_);
    after(shortage_.rest(), [this] { accept(); });
  }
  template <class F>
  void after(Clock::duration wait, F f) {
    rest_.expires_after(wait);
    rest_.async_wait([self = shared_from_this(), f](error_code e) {
      if (!e && !self->closed_) f();
    });
  }

  /// Admits a newcomer, or lets it wait briefly, behind others of its source. If there is no room to wait, it
  /// is turned away and may try again; but on a fast path, where places are soon free again, it holds up all
  /// later ones, which wait in the kernel. Returns false in that case.
  bool enter(Newcomer& s) {
    const auto of_its = [&](const Newcomer& w) { return w.source == s.source; };
    const auto waiting = std::count_if(waiting_.begin(), waiting_.end(), of_its);
    if (waiting == 0 && try_admit(s)) return true;
    if (waiting_.size() < kWaiting && waiting < kWaitingOfOne) {
      waiting_.push_back(std::move(s));
      if (waiting_.size() == 1) retry_waiting(kRetry);
      return true;
    }
    if (grace(round_trip(s.fd.get())) <= kRetry) return false;
    turn_away(s);
    return true;
  }
  void retry_waiting(Clock::duration wait) {
    door_.expires_after(wait);
    door_.async_wait([self = shared_from_this()](error_code e) {
      if (!e && !self->closed_) self->admit_waiting();
    });
  }
  void admit_waiting() try {
    std::vector<Newcomer> left;
    std::set<std::string> full;  // sources
    const auto now = Clock::now();
    for (Newcomer& s : std::exchange(waiting_, {})) {
      if (!full.contains(s.source) && try_admit(s)) continue;
      full.insert(s.source);
      now - s.since < kWait ? left.push_back(std::move(s)) : turn_away(s);
    }
    waiting_ = std::move(left);
    if (held_up_.fd && enter(held_up_)) held_up_ = {};
    // This also applies if an exception has ended the newcomer that was held up, the last time.
    if (!accepts_ && !held_up_.fd) {
      accept();
      accepts_ = true;
    }
    if (!waiting_.empty()) retry_waiting(kRetry);
  } catch (const std::exception& e) {
    OURO_WARN("a connection to {} could not be taken: {}", endpoint_, e.what());
    retry_waiting(100ms);
  }
  /// Returns false if there is no place; `s` is unchanged then.
  bool try_admit(Newcomer& s) {
    std::vector<const HalfOpen*> all;
    for (const auto& h : half_) all.push_back(h.get());
    const HalfOpenVerdict v = judge(all, s.source, known_.contains(s.source), Clock::now());
    if (!v.admit) return false;
    if (v.evict) {
      const auto victim = half_.begin() + static_cast<std::ptrdiff_t>(*v.evict);
      (*victim)->timer.cancel();
      (*victim)->session->close(RefuseCode::busy, kBusy);
      half_.erase(victim);
      ++counts_.evicted;
    }
    admit(std::move(s));
    return true;
  }
  void turn_away(Newcomer& s) {
    ++counts_.turned_away;
    const wire::Bytes words = wire::refusal(RefuseCode::busy, kBusy);
    (void)!::send(s.fd.get(), words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(s.fd.get(), SHUT_WR);
    s.fd.reset();
    log_rarely(s.source, fmt::format("turned away a connection from {}: {}", to_string(s.from), kBusy), true);
  }

  void admit(Newcomer s) {
    auto h = std::make_shared<PendingHandshake>(io_);
    const auto round = round_trip(s.fd.get());
    h->source = s.source, h->known = known_.contains(s.source), h->endpoint = to_string(s.from);
    h->spared_until = h->since + grace(round);
    set(s.fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    h->patience = 4 * round;
    h->session = std::make_shared<HandshakeSession>(
        io_, std::move(s.fd), Handshake::server(self_),
        [self = shared_from_this(), weak = std::weak_ptr(h)](HandshakeSession::Outcome o) {
          if (auto half = weak.lock()) self->over(*half, std::move(o));
        });
    half_.push_back(h);
    expect(h, h->since + std::min(options_.first_frame, options_.handshake) + h->patience, true);
    h->session->start(true);
  }
  void expect(const std::shared_ptr<PendingHandshake>& h, Clock::time_point end, bool first) {
    h->timer.expires_at(end);
    h->timer.async_wait([self = shared_from_this(), weak = std::weak_ptr(h), first](error_code e) {
      auto half = weak.lock();
      if (e || !half || self->closed_) return;
      if (first && !half->session->silent())
        return self->expect(half, half->since + self->options_.handshake + half->patience, false);
      ++self->counts_.silent;
      half->session->close();
      self->over(*half, {unresponsive("it did not say who it is in time", "no answer"), {}, {}});
    });
  }
  void over(PendingHandshake& h, HandshakeSession::Outcome o) {
    h.timer.cancel();
    o.line.peer_address = h.endpoint;
    if (o.status.ok()) {
      ++counts_.lines;
      if (known_.size() < kSources) known_.insert(h.source);
    } else {
      ++counts_.refused;
      // A code shows that it is an ouro program with a wrong setup, for which a user may be waiting.
      log_rarely(h.source,
                 fmt::format("refused a connection from {}: {}", h.endpoint, o.status.failure()->text),
                 o.code.has_value());
    }
    std::erase_if(half_, [&](const auto& other) { return other.get() == &h; });  // h may be destroyed now
    if (o.status.ok() && taken_) taken_(std::move(o.line));
    if (!waiting_.empty()) retry_waiting(0ms);
  }

  /// Logs one line for each source every 10 s and counts the others. `loud`: as a warning, as a user may
  /// be waiting.
  void log_rarely(const std::string& source, std::string text, bool loud) {
    const auto now = Clock::now();
    if (logged_.size() >= kSources)
      std::erase_if(logged_, [&](const auto& t) { return now - t.second.last > kLogAgain; });
    auto [at, fresh] = logged_.try_emplace(logged_.size() < kSources ? source : "others");
    if (!fresh && now - at->second.last < kLogAgain) {
      ++at->second.more;
      return;
    }
    if (at->second.more > 0) text += fmt::format(" ({} more since the last such line)", at->second.more);
    at->second = {now, 0};
    if (loud)
      OURO_WARN("{}", text);
    else
      OURO_INFO(BOOTSTRAP, "{}", text);
  }

  struct LogRecord {
    Clock::time_point last{};
    std::uint64_t more = 0;
  };
  asio::io_context& io_;
  Identity self_;
  Options options_;
  Descriptor listener_;
  asio::steady_timer rest_, door_;
  Fd spare_;
  std::function<void(Line)> taken_;
  std::string endpoint_;
  std::vector<std::shared_ptr<PendingHandshake>> half_;
  std::vector<Newcomer> waiting_;  // in the order of their arrival
  Newcomer held_up_;               // behind these; until it is one of them none is accepted
  bool accepts_ = true;            // connections are accepted, or will be
  std::set<std::string> known_;    // sources of peers that have authenticated themselves
  std::map<std::string, LogRecord> logged_;
  FdShortage shortage_;
  Counts counts_;
  bool closed_ = false, ignores_ = false;
};

Result<std::unique_ptr<LineListener>> LineListener::open(asio::io_context& io, Identity self, Options options,
                                                         std::function<void(Line)> taken) {
  auto socket = listening_socket(options);
  if (!socket.ok()) return socket.status();
  auto acceptor = std::make_shared<Acceptor>(io, std::move(self), std::move(options), std::move(*socket),
                                             std::move(taken));
  acceptor->accept();
  return std::unique_ptr<LineListener>(new LineListener(std::move(acceptor)));
}
LineListener::~LineListener() { acceptor_->close(); }
const std::string& LineListener::endpoint() const { return acceptor_->endpoint(); }
const LineListener::Counts& LineListener::counts() const { return acceptor_->counts(); }
void LineListener::ignore() { acceptor_->ignore(); }

Status watch_link(int socket, std::chrono::seconds idle) {
  const auto slow = std::chrono::duration_cast<std::chrono::milliseconds>(4 * round_trip(socket));
  const std::pair<int, int> options[] = {
      {TCP_KEEPIDLE, static_cast<int>(idle.count())},
      {TCP_KEEPINTVL, 1},
      {TCP_KEEPCNT, 3},
      {TCP_USER_TIMEOUT, static_cast<int>((idle + 2000ms + slow).count())}};
  const int on = 1;
  bool good = setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) == 0;
  for (const auto& [option, value] : options)
    good = good && setsockopt(socket, IPPROTO_TCP, option, &value, sizeof value) == 0;
  return good ? Status()
              : Status(Reason::resource, fmt::format("cannot watch a connection: {}", std::strerror(errno)));
}

Result<wire::Secret> job_secret() {
  auto path = env::text("OURO_SECRET_FILE"), secret = env::text("OURO_SECRET");
  auto insecure = env::text("OURO_INSECURE");
  for (const Status& s : {path.status(), secret.status(), insecure.status()}) OURO_TRY(s);
  if (*path) return wire::Secret::from_file(**path);
  if (*secret) {
    OURO_WARN(
        "the job's secret is in the environment, where other programs can see it; OURO_SECRET_FILE is safer");
    return wire::Secret::from_hex(**secret);
  }
  if (**insecure != "1")
    return invalid(
        "ranks on several hosts need a secret: OURO_SECRET_FILE names a file of mode 600 with at least 32 "
        "hexadecimal digits, equal on all hosts (or, where everybody on the network is trusted, "
        "OURO_INSECURE=1)");
  OURO_WARN("OURO_INSECURE=1: hosts join without a secret, and every process that reaches a port is trusted");
  return wire::Secret();
}

}  // namespace ouro::rt
