// LocalListener: accepts connections on a local name and receives the first frame of each. Used by ranks that
// gather others (bootstrap.cc, bootstrap_net.cc) and by the watch thread.
#pragma once
#include <functional>
#include <memory>

#include "runtime/core/fd.h"
#include "runtime/join/local_socket.h"
#include "runtime/network/asio.h"

namespace ouro::rt {

/// Runs on the thread that runs the io_context; callbacks run on that thread, never inside a call. At most
/// 128 connections may wait to send their first frame, 1 s each; others wait in the kernel's queue, and so do
/// all for a while if no file descriptor is left.
class LocalListener {
 public:
  using Line = std::shared_ptr<asio::posix::stream_descriptor>;
  /// Called with a connection from a process of this user and its first frame. The line is closed when its
  /// last owner destroys it.
  using FrameHandler = std::function<void(const Line&, Incoming)>;

  /// `socket` is from listen_local().
  LocalListener(asio::io_context&, Fd socket, FrameHandler);
  ~LocalListener();
  LocalListener(const LocalListener&) = delete;
  LocalListener& operator=(const LocalListener&) = delete;

  /// Sends the reason to the peer and counts the refusal.
  void refuse(const Line&, const Status& why);
  /// The number of refused connections, including those of other programs.
  int refused() const;
  /// Gives up the socket, which continues to listen; nothing is accepted or received here any more.
  Fd release();

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace ouro::rt
