// Watch: the one control thread of a context. It sees deaths (pidfd), serves descriptors to peers, refuses
// latecomers, and scans the peers' pages for errors. Used by Context.
#pragma once
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/thread.h"
#include "runtime/core/wait.h"
#include "runtime/join/local_listener.h"
#include "runtime/network/asio.h"

namespace ouro::rt {

class Context;

class Watch {
 public:
  /// `server` hands out descriptors, `rendezvous` (rank 0) turns latecomers away; either may be invalid.
  Watch(Context& context, Fd server, Fd rendezvous);
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

  Context& context_;
  asio::io_context io_;
  std::optional<LocalListener> server_, rendezvous_;
  std::vector<std::unique_ptr<Descriptor, Return>> pidfds_;  // borrowed: the peers own them
  std::set<int> fresh_deaths_;
  asio::steady_timer gather_, tick_;
  Thread thread_;
};

}  // namespace ouro::rt
