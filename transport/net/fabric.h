// A fabric: what carries the frames of an exchange between the ranks of different hosts. One implementation a
// file pair. Used by the runtime's network, which makes one a context.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/core/wait.h"
#include "transport/net/exchange.h"

namespace ouro::transport {

/// Whoever waits drives it (ProgressEngine); a thread of its own takes over where nobody does.
class Fabric : public ProgressEngine {
 public:
  virtual const char* name() const = 0;
  virtual Exchange& exchange() = 0;
  /// What others have to know to connect to this rank, if the fabric makes its connections itself: to be
  /// carried to connect() of theirs, by a path that proves who speaks.
  virtual std::span<const std::uint8_t> address() const { return {}; }
  /// Nothing goes to `peer` before this.
  virtual void connect(int peer, std::span<const std::uint8_t> address) { (void)peer, (void)address; }
  /// There are links to `peer` from now on, or something is waiting to be sent without anybody waiting. It is
  /// sent, or the fabric's own thread sees to it.
  virtual void kick(int peer) = 0;
  static constexpr int kEveryone = -1;
  /// For a chunk from or to `peer` that may be under way, under the exchange's lock. With the return nobody
  /// reads or writes where it was.
  virtual void moved(int peer, const NetLink::Move&) = 0;
  /// Nothing comes from `peer` any more: its connections are dropped.
  virtual void drop(int peer) = 0;
  /// Whether something has to be sent to `peer` again, since nothing came back for it. False where that is
  /// not known.
  virtual bool resends(int peer) {
    (void)peer;
    return false;
  }
  /// From now on nothing is sent or received, and no connection ends: silence (OURO_FAULT).
  virtual void cut() = 0;

  void enter() final { drivers_.fetch_add(1, std::memory_order_relaxed); }
  void leave() final {
    if (drivers_.fetch_sub(1, std::memory_order_relaxed) == 1) left();
  }

 protected:
  /// The last driver has left: what it may have left half done is the own thread's.
  virtual void left() {}
  bool driven() const { return drivers_.load(std::memory_order_relaxed) > 0; }

 private:
  std::atomic<int> drivers_{0};
};

}  // namespace ouro::transport
