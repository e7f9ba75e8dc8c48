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

/// Waiting threads drive the fabric (ProgressEngine); it has a thread of its own that takes over when
/// nobody waits.
class Fabric : public ProgressEngine {
 public:
  virtual const char* name() const = 0;
  virtual Exchange& exchange() = 0;
  /// The address that others need to connect to this rank, if the fabric makes its connections itself. It
  /// must be passed to their connect() over an authenticated path.
  virtual std::span<const std::uint8_t> address() const { return {}; }
  /// Nothing is sent to `peer` before this call.
  virtual void connect(int peer, std::span<const std::uint8_t> address) { (void)peer, (void)address; }
  /// Called when links to `peer` exist from now on, or when there is data to send that no thread waits for.
  /// The data is sent now, or the fabric's own thread sends it.
  virtual void kick(int peer) = 0;
  static constexpr int kEveryone = -1;
  /// Redirects a chunk from or to `peer` that may be in flight; never one in memory of a device. Called under
  /// the exchange's lock. After it returns nobody reads or writes the old place.
  virtual void moved(int peer, const NetLink::Move&) = 0;
  /// Whether memory of devices can be sent to `peer` and received from it: both ends' fabrics can. Constant
  /// from connect() on.
  virtual bool takes_device(int peer) { return (void)peer, false; }
  /// Drops the connections to `peer`: nothing is received from it any more.
  virtual void drop(int peer) = 0;
  /// Appends a sample of each TCP connection to `peer`; nothing if the fabric has no access to them. Makes a
  /// system call for each.
  virtual void sample(int peer, std::vector<TcpSample>* samples) { (void)peer, (void)samples; }
  /// From now on nothing is sent or received, and no connection ends: simulates silence (OURO_FAULT).
  virtual void cut() = 0;

  void enter() final { drivers_.fetch_add(1, std::memory_order_relaxed); }
  void leave() final {
    if (drivers_.fetch_sub(1, std::memory_order_relaxed) == 1) left();
  }

 protected:
  /// Called when the last driver has left: the fabric's own thread takes over work that it may have
  /// left unfinished.
  virtual void left() {}
  bool driven() const { return drivers_.load(std::memory_order_relaxed) > 0; }

 private:
  std::atomic<int> drivers_{0};
};

}  // namespace ouro::transport
