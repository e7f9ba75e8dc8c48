// The control thread. See watch.h.
#include "runtime/context/watch.h"

#include <fmt/format.h>
#include <poll.h>

#include <fstream>
#include <utility>

#include "runtime/device_memory/deferred_free.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr auto kTick =
    50ms;  // limits the delay until a rank that does not wait sees an error published by a peer
constexpr auto kGather = 10ms;  // deaths within this time are reported together

bool readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return poll(&p, 1, 0) == 1;
}

}  // namespace

Watch::Watch(JobMembers& members, Observers& observers, Serve serve_fetch, Fd server, Fd rendezvous)
    : members_(members),
      observers_(observers),
      serve_(std::move(serve_fetch)),
      pidfds_(static_cast<std::size_t>(members.size())),
      gather_(io_),
      tick_(io_) {
  if (server)
    server_.emplace(io_, std::move(server),
                    [this](const auto& line, const Incoming& said) { serve(line, said); });
  // A latecomer is refused after its request has been read: unread data at the end of a connection would cost
  // it the answer.
  if (rendezvous)
    rendezvous_.emplace(io_, std::move(rendezvous), [this](const auto& line, const Incoming&) {
      rendezvous_->refuse(line, {Reason::refused, "closed: all ranks of this job have joined already"});
    });
  for (int r = 0; r < members.size(); ++r) watch_peer(r);
  tick();
  thread_ = Thread("ouro-watch", [this] {
    const NeverFrees here;  // a thread that waits for a driver sees no failures
    bool again = false;
    persist("the watch over the ranks of this host", [&] {
      if (std::exchange(again, true)) {  // resumes what an exception has interrupted
        tick();
        gather_deaths();
      }
      io_.run();
    });
  });
}

Watch::~Watch() {
  io_.stop();
  thread_.join();
}

void Watch::serve(const LocalListener::Line& line, const Incoming& said) {
  const auto* fetch = std::get_if<wire::Fetch>(&said.frame);
  Status s(Reason::refused, "this socket serves descriptors only");
  if (fetch) s = serve_(line->native_handle(), *fetch, said.fds);
  if (!s.ok()) server_->refuse(line, s);
}

void Watch::watch_peer(int rank) {
  const int pidfd = members_.peer(rank).pidfd.get();
  if (pidfd < 0) return;
  auto& slot = pidfds_[static_cast<std::size_t>(rank)];
  slot.reset(new Descriptor(io_, pidfd));
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
  for (int r = 0; r < members_.size(); ++r)
    if (const int pidfd = members_.peer(r).pidfd.get(); pidfd >= 0 && readable(pidfd))
      fresh_deaths_.insert(r);
  const std::vector<int> ranks(fresh_deaths_.begin(), fresh_deaths_.end());
  fresh_deaths_.clear();
  observers_.report_deaths(ranks);
}

void Watch::tick() {
  tick_.expires_after(kTick);
  tick_.async_wait([this](error_code e) {
    if (e) return;
    tick();
    // If the kernel has no pidfd, check whether the peer's process still exists. Without /proc (the namespace
    // is unknown then), and for PIDs of another namespace, that cannot be seen.
    const std::uint64_t here = members_.own_page().pid_namespace;
    std::vector<int> gone;
    for (int r = 0; r < members_.size(); ++r) {
      const Peer& p = members_.peer(r);
      if (here != 0 && !p.pidfd && !p.remote() && !members_.is_thread(r) && !members_.is_dead(r) &&
          members_.page(r).pid_namespace == here && !std::ifstream(fmt::format("/proc/{}/stat", p.pid)))
        gone.push_back(r);
    }
    if (!gone.empty()) observers_.report_deaths(gone);
    observers_.scan_errors();
    observers_.poll_device();
  });
}

}  // namespace ouro::rt
