// One connection of the tcp fabric: frames of the exchange over a socket. Used by tcp.cc, under the
// exchange's lock.
#pragma once
#include <poll.h>

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/core/fd.h"
#include "transport/net/exchange.h"
#include "transport/net/pipe.h"
#include "transport/net/tcp_sample.h"

namespace ouro::transport {

/// State shared by all connections to one peer, including successive ones.
struct TcpPeer {
  int damaged = 0;  ///< number of consecutive headers that arrived damaged
};

/// One TCP connection to a peer: at most one incoming frame, received directly into its slot, and a burst of
/// outgoing frames.
class TcpConnection {
 public:
  static constexpr std::size_t kBurst = 8;  ///< frames sent by one system call, at most

  TcpConnection(Exchange& exchange, int peer, TcpPeer& state, Fd socket, Pipe pipe)
      : exchange_(exchange), peer_(peer), state_(state), socket_(std::move(socket)), pipe_(std::move(pipe)) {
    out_.reserve(kBurst);  // a frame taken from the exchange must not be lost for lack of memory
  }

  int peer() const { return peer_; }
  bool broken() const { return broken_; }
  bool blocked() const { return pipe_.blocked(); }  ///< some data to be sent has to wait
  /// Whether there may be more data to process that the socket does not report.
  bool paused() const { return paused_; }
  pollfd wanted() const {
    return {socket_.get(), static_cast<short>(pipe_.blocked() ? POLLIN | POLLOUT : POLLIN), 0};
  }

  /// Sends the exchange's frames for the peer, `burst` at a time. Error: the connection has ended.
  Status send(std::size_t burst);
  /// Receives data until the turn ends, and then still processes data that is staged here or buffered in
  /// the pipe, because the socket wakes nobody for that. `waste`: buffer for discarded payloads. *moved:
  /// whether anything moved, or can move now. Errors: the connection has ended; or, with bad_header(), a
  /// frame is invalid.
  Status receive(std::span<std::byte> waste, bool* moved);
  bool bad_header() const { return bad_header_; }

  /// The kernel's counts of the connection; none once it has ended.
  std::optional<TcpSample> sample() const;

  /// A chunk has moved: its transfer continues from, or to, the new place.
  void moved(const NetLink::Move&);
  void close() {
    broken_ = true;
    socket_.reset();
  }
  /// Closes the connection; its unfinished frames are sent again on another.
  void give_up();

 private:
  static constexpr std::size_t kStage = 8192;  // bytes that are read beyond the current payload
  void withdraw();
  Status take_staged(bool* took);
  void finish();

  Exchange& exchange_;
  const int peer_;
  const std::uint64_t number_ = number_connection();
  TcpPeer& state_;
  Fd socket_;  // it is only polled; bytes pass through the pipe
  Pipe pipe_;
  bool broken_ = false, bad_header_ = false;

  std::array<std::byte, kStage> stage_;
  std::size_t begin_ = 0, end_ = 0;  // range of the staged data
  NetHeader in_;
  bool within_ = false;  // after a header, before the end of its payload
  Exchange::Destination destination_;
  std::size_t got_ = 0;
  bool paused_ = false;

  std::vector<Exchange::Outgoing> out_;  // the first of them partly written
  std::size_t written_ = 0;              // bytes of the first that are written
  std::vector<std::byte> filler_;        // replaces the rest of a payload that was given back to its owner
};

}  // namespace ouro::transport
