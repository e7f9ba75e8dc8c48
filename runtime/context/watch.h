// Watch: the control thread of a context. Used by Context.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/thread.h"
#include "runtime/core/wait.h"
#include "runtime/job/observers.h"
#include "runtime/join/local_listener.h"
#include "runtime/network/asio.h"

namespace ouro::rt {

/// The one control thread of a context: it detects deaths (pidfd), serves memory to peers, refuses
/// latecomers, and scans the peers' pages for errors.
class Watch {
 public:
  /// Serves a request for memory, with the descriptors that arrived with it, on a connected socket; an error
  /// that it returns is sent to the peer.
  using Serve = std::function<Status(int line, const wire::Fetch&, std::span<const Fd> given)>;
  /// `server` takes requests for memory, `rendezvous` (rank 0) refuses latecomers; either may be invalid.
  Watch(JobMembers&, Observers&, Serve, Fd server, Fd rendezvous);
  ~Watch();  ///< stops and joins
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  using Descriptor = asio::posix::stream_descriptor;
  struct Return {
    void operator()(Descriptor* d) const {
      d->release();
      delete d;
    }
  };
  void serve(const LocalListener::Line&, const Incoming&);
  void watch_peer(int rank);
  void gather_deaths();
  void tick();

  JobMembers& members_;
  Observers& observers_;
  const Serve serve_;
  asio::io_context io_;
  std::optional<LocalListener> server_, rendezvous_;
  std::vector<std::unique_ptr<Descriptor, Return>> pidfds_;  // borrowed: the peers own the descriptors
  std::set<int> fresh_deaths_;
  asio::steady_timer gather_, tick_;
  Thread thread_;
};

}  // namespace ouro::rt
