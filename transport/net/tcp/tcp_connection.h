// One connection of the tcp fabric: frames of the exchange over a socket. Used by tcp.cc, under the
// exchange's lock.
#pragma once
#include <poll.h>

#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "runtime/core/fd.h"
#include "transport/net/exchange.h"
#include "transport/net/tls/pipe.h"

namespace ouro::transport {

/// What all connections to one peer, also those that follow each other, have in common.
struct TcpPeer {
  int damaged = 0;  ///< headers that came damaged, one after the other
};

/// One TCP connection to a peer: at most one frame coming in, received straight into its slot, and a burst
/// going out.
class TcpConnection {
 public:
  static constexpr std::size_t kBurst = 8;  ///< frames that go with one call of the kernel, at most

  TcpConnection(Exchange& exchange, int peer, TcpPeer& state, Fd socket, Pipe pipe)
      : exchange_(exchange), peer_(peer), state_(state), socket_(std::move(socket)), pipe_(std::move(pipe)) {
    out_.reserve(kBurst);  // what the exchange has handed out must not be lost for want of memory
  }

  int peer() const { return peer_; }
  bool broken() const { return broken_; }
  bool blocked() const { return pipe_.blocked(); }  ///< some of what is to be sent has to wait
  bool paused() const { return paused_; }  ///< there may be more to take that the socket does not tell of
  pollfd wanted() const {
    return {socket_.get(), static_cast<short>(pipe_.blocked() ? POLLIN | POLLOUT : POLLIN), 0};
  }

  /// Sends what the exchange has for the peer, `burst` frames at a time. Error: the connection has ended.
  Status send(std::size_t burst);
  /// Takes what has come, up to the end of the turn and then what is staged here or kept by the pipe: nothing
  /// would wake anybody for that. `waste`: for payloads that nobody wants. *moved: whether anything moved, or
  /// can move now. Errors: the connection has ended; or, with bad_header(), a frame cannot be.
  Status receive(std::span<std::byte> waste, bool* moved);
  bool bad_header() const { return bad_header_; }

  /// Whether the system's time to wait for what came first has passed, at least once since anything came
  /// back.
  bool resends() const;

  /// A chunk has moved: what is under way on it goes on from there, or to there.
  void moved(const NetLink::Move&);
  void close() {
    broken_ = true;
    socket_.reset();
  }
  /// Closes it, and has what was under way on it sent again on another.
  void give_up();

 private:
  static constexpr std::size_t kStage = 8192;  // what is read beyond the payload at hand
  void withdraw();
  Status take_staged(bool* took);
  void finish();

  Exchange& exchange_;
  const int peer_;
  TcpPeer& state_;
  Fd socket_;  // to wait for; bytes go by the pipe
  Pipe pipe_;
  bool broken_ = false, bad_header_ = false;

  std::array<std::byte, kStage> stage_;
  std::size_t begin_ = 0, end_ = 0;  // of what is staged
  NetHeader in_;
  bool within_ = false;  // between the header and the end of its payload
  Exchange::Place place_;
  std::size_t got_ = 0;
  bool paused_ = false;

  std::vector<Exchange::Outgoing> out_;  // the first of them in part
  std::size_t written_ = 0;              // bytes of the first
  std::vector<std::byte> filler_;        // the rest of a frame whose payload is its owner's again
};

}  // namespace ouro::transport
