// The control thread. See watch.h.
#include "runtime/watch.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <fstream>

#include "runtime/context.h"
#include "runtime/local_socket.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr auto kTick =
    50ms;  // bounds how late an error published by a peer is seen by a rank that does not wait
constexpr auto kGather = 10ms;  // deaths that come together are reported together
constexpr auto kFirstFrame = 1s;

bool readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return poll(&p, 1, 0) == 1;
}

}  // namespace

Watch::Watch(Context& context, Fd server, Fd rendezvous)
    : context_(context),
      server_(io_),
      rendezvous_(io_),
      pidfds_(static_cast<std::size_t>(context.size())),
      gather_(io_),
      tick_(io_) {
  if (server) server_.assign(server.release()), accept(server_, true);
  if (rendezvous) rendezvous_.assign(rendezvous.release()), accept(rendezvous_, false);
  for (int r = 0; r < context.size(); ++r) watch_peer(r);
  tick();
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "ouro-watch");
    io_.run();
  });
}

Watch::~Watch() {
  io_.stop();
  thread_.join();
}

void Watch::accept(Descriptor& listener, bool serves) {
  listener.async_wait(Descriptor::wait_read, [this, &listener, serves](error_code e) {
    if (e) return;
    for (int i = 0; i < 64; ++i) {
      const int fd = accept4(listener.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) break;
      answer(fd, serves);
    }
    accept(listener, serves);
  });
}

void Watch::answer(int fd, bool serves) {
  auto line = std::make_shared<Descriptor>(io_, fd);
  if (!check_peer(fd).ok()) return;
  auto timer = std::make_shared<asio::steady_timer>(io_, kFirstFrame);
  timer->async_wait([line](error_code e) {
    if (!e) line->cancel();
  });
  when_readable(*line, [this, line, timer, serves](error_code e) {
    timer->cancel();
    if (e) return;
    auto incoming = recv_frame(line->native_handle(), Clock::now());
    if (!incoming.ok()) return;
    // A latecomer is answered after it has been read: what lies unread at the end of a line costs it the
    // answer.
    Status s(Reason::refused, serves ? "this socket serves descriptors only"
                                     : "closed: all ranks of this job have joined already");
    auto* fetch = std::get_if<wire::Fetch>(&incoming->frame);
    if (serves && fetch) s = context_.serve(line->native_handle(), *fetch);
    if (!s.ok())
      (void)send_frame(line->native_handle(), wire::Refuse{s.reason(), -1, s.failure()->text}).ok();
  });
}

void Watch::watch_peer(int rank) {
  const int pidfd = context_.peer(rank).pidfd.get();
  if (pidfd < 0) return;
  auto& slot = pidfds_[static_cast<std::size_t>(rank)];
  slot = std::make_unique<Descriptor>(io_, dup(pidfd));
  when_readable(*slot, [this, rank](error_code e) {
    if (e) return;
    fresh_deaths_.insert(rank);
    gather_.expires_after(kGather);
    gather_.async_wait([this](error_code cancelled) {
      if (!cancelled) gather_deaths();
    });
  });
}

void Watch::gather_deaths() {
  for (int r = 0; r < context_.size(); ++r)
    if (const int pidfd = context_.peer(r).pidfd.get(); pidfd >= 0 && readable(pidfd))
      fresh_deaths_.insert(r);
  const std::vector<int> ranks(fresh_deaths_.begin(), fresh_deaths_.end());
  fresh_deaths_.clear();
  context_.on_deaths(ranks);
}

void Watch::tick() {
  tick_.expires_after(kTick);
  tick_.async_wait([this](error_code e) {
    if (e) return;
    // Where the kernel has no pidfd, a peer's end is seen by asking whether its process is still there.
    std::vector<int> gone;
    for (int r = 0; r < context_.size(); ++r) {
      const Peer& p = context_.peer(r);
      if (!p.pidfd && !p.remote() && p.pid != getpid() && !context_.is_dead(r) &&
          !std::ifstream(fmt::format("/proc/{}/stat", p.pid)))
        gone.push_back(r);
    }
    if (!gone.empty()) context_.on_deaths(gone);
    context_.scan_errors();
    context_.scan_gpu();
    tick();
  });
}

}  // namespace ouro::rt
