// Accepts on a local name, and hears the first frame of each who connects. Used by those who gather ranks
// (bootstrap.cc, bootstrap_net.cc) and by the watch thread.
#pragma once
#include <functional>
#include <memory>

#include "runtime/core/fd.h"
#include "runtime/join/local_socket.h"
#include "runtime/network/asio.h"

namespace ouro::rt {

/// On the thread that runs the io_context; callbacks come from there, never from inside a call. At most 128
/// wait to be heard, a second each; others stay in the kernel's queue, and so do all for a while where no
/// file descriptor is left.
class LocalListener {
 public:
  using Line = std::shared_ptr<asio::posix::stream_descriptor>;
  /// Somebody of this user, and what he said first. The line is hung up when its last owner drops it.
  using Heard = std::function<void(const Line&, Incoming)>;

  /// `socket` is from listen_local().
  LocalListener(asio::io_context&, Fd socket, Heard);
  ~LocalListener();
  LocalListener(const LocalListener&) = delete;
  LocalListener& operator=(const LocalListener&) = delete;

  /// Says why, and counts.
  void refuse(const Line&, const Status& why);
  /// How many were refused, strangers included.
  int refused() const;
  /// The socket, which goes on listening; nobody is heard here any more.
  Fd release();

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace ouro::rt
