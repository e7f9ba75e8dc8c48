// A fabric carries the frames of an exchange between the ranks of different hosts. One implementation per
// pair of files. Used by the runtime's network, which makes one per context.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/wait.h"
#include "transport/net/exchange.h"
#include "transport/net/tcp_sample.h"

namespace ouro::transport {

/// Threads that wait for data drive the fabric (ProgressEngine); it has a thread of its own that takes over
/// when nobody waits.
///
/// One lock, exchange().lock(), guards the data of all functions. "May wait for the lock" means: while
/// another thread moves data that can be moved without waiting, at most 4 MiB in each direction of a
/// connection, or is in moved(). No function waits for the network unless its comment says so. No function
/// returns an error: failures of a peer are reported later, through the callbacks that the implementation was
/// made with. These run under the lock, in the thread that found the failure. A function that takes the lock
/// may throw std::bad_alloc.
class Fabric : public ProgressEngine {
 public:
  /// Any thread may call this. It does not block and cannot fail, as all functions that return a constant.
  virtual const char* name() const = 0;
  /// A constant reference; see name().
  virtual Exchange& exchange() = 0;
  /// The address that other ranks need to connect to this one. It must be passed to their connect() over an
  /// authenticated path. A constant, see name(). Empty: others make the fabric's connections.
  virtual std::span<const std::uint8_t> address() const { return {}; }
  /// Called once for each peer, by the thread that joins the job, before anything is sent to that peer. May
  /// wait for the lock, not for the peer. An address that cannot be reached is a failure of the peer,
  /// reported later. Without effect if address() is empty.
  virtual void connect(int peer, std::span<const std::uint8_t> address) { (void)peer, (void)address; }
  /// Called by any thread after links to `peer` have been made, or data or slots given back wait to be sent.
  /// Sends what the connection takes without waiting; the fabric's own thread sends the rest. May wait for
  /// the lock, and must not be called under it.
  virtual void kick(int peer) = 0;
  static constexpr int kEveryone = -1;  ///< all peers to which there may be something to send
  /// Redirects a chunk from or to `peer` that may be in flight; never one in memory of a device. Called under
  /// the lock, by the thread that needs the old place back. Afterwards nobody reads or writes the old place.
  /// May block for that: UCX cannot redirect a send, so the ucx fabric waits up to 0.5 s for it to finish,
  /// then fails the peer (peer-unresponsive) and waits up to 0.2 s for its connection to close. tcp
  /// does not block.
  virtual void moved(int peer, const NetLink::Move&) = 0;
  /// Whether memory of devices can be sent to `peer` and received from it: both ends' fabrics can. Any thread
  /// may call this. May wait for the lock. Constant from connect() on.
  virtual bool takes_device(int peer) { return (void)peer, false; }
  /// Drops the connections to `peer`: nothing is received from it any more. Called by the network's thread
  /// when the peer is given up. May wait for the lock, not for the peer. Later calls for the peer
  /// have no effect.
  virtual void drop(int peer) = 0;
  /// Appends a sample of each TCP connection to `peer`; nothing if the fabric has no access to them. Called
  /// by the network's thread, with each heartbeat. May wait for the lock; makes a system call for
  /// each connection.
  virtual void sample(int peer, std::vector<TcpSample>* samples) { (void)peer, (void)samples; }
  /// From now on nothing is sent or received, and no connection ends: simulates silence (OURO_FAULT). Any
  /// thread may call this. May wait for the lock.
  virtual void cut() = 0;
  // progress() returns at once if another thread holds the lock. rest() sleeps without the lock.

  void enter() final { drivers_.fetch_add(1, std::memory_order_relaxed); }
  void leave() final {
    if (drivers_.fetch_sub(1, std::memory_order_relaxed) == 1) left();
  }

 protected:
  /// Called by the last driver when it leaves: wakes the fabric's own thread if work is left that no event of
  /// the network announces. Does not take the lock, does not block.
  virtual void left() {}
  bool driven() const { return drivers_.load(std::memory_order_relaxed) > 0; }

 private:
  std::atomic<int> drivers_{0};
};

}  // namespace ouro::transport
