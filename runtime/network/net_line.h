// Authenticated TCP connections: a listener that survives strangers, and dialling. What comes out is a plain
// socket with keys. Used by the rendezvous and by the control and data planes between hosts.
// Everything runs on the thread that runs the io_context; callbacks come from there, never from inside a
// call.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "runtime/core/fd.h"
#include "runtime/core/wait.h"
#include "runtime/network/asio.h"
#include "runtime/network/net_address.h"
#include "transport/wire/handshake.h"

namespace ouro::rt {

using wire::Identity, wire::Purpose;

/// A connection whose two ends have proved who they are. No byte behind the handshake has been read. Control,
/// join and table lines carry sealed frames (wire/keys.h) under `keys`; data lines are the owner's business.
struct Line {
  Fd socket;  ///< TCP, non-blocking, TCP_NODELAY, close-on-exec
  int peer_rank = -1, peer_pid = 0;
  std::uint64_t peer_started = 0;  ///< as Identity's; 0 of a listener
  std::string peer_host, peer_address;
  Purpose purpose = Purpose::join;
  std::chrono::microseconds round_trip{0};  ///< as far as the system knew it at the end of the handshake
  wire::LineKeys keys;
};

/// Accepts lines of this job on one address, never on a wildcard.
/// Strangers cost little: 16 unfinished handshakes for each address and 128 in all (who stays of more:
/// half_open.h), 64 that wait half a second for a place, one second (and four round trips: one, and a packet
/// that is sent again) for the first frame, three for the handshake, one line in the log for each address
/// every 10 s. Where descriptors run out, it sheds one connection by a spare descriptor and rests a little.
class LineListener {
 public:
  struct Options {
    std::string bind;  ///< "ip" or "ip:port"; port 0 or none: the system's choice
    int backlog = 4096;
    std::chrono::milliseconds first_frame{1000}, handshake{3000};
  };
  struct Counts {
    std::uint64_t accepted = 0, lines = 0, refused = 0, evicted = 0, turned_away = 0, silent = 0, shed = 0;
    std::size_t half_open = 0;
  };
  /// `taken` gets each line. Errors: invalid (the address, a wildcard), resource (it cannot be bound).
  static Result<std::unique_ptr<LineListener>> open(asio::io_context&, Identity, Options,
                                                    std::function<void(Line)> taken);
  ~LineListener();
  LineListener(const LineListener&) = delete;
  LineListener& operator=(const LineListener&) = delete;

  /// "ip:port" under which others reach it.
  const std::string& endpoint() const;
  const Counts& counts() const;
  /// Whoever connects from now on gets no answer.
  void ignore();

 private:
  class State;
  explicit LineListener(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// One attempt to make a line to the rank that listens on `endpoint`; again is the caller's decision. Errors:
/// peer-dead (connection refused: nobody listens there; detector "connection refused"), peer-unresponsive (no
/// answer, hung up, unreachable; the detector says which), data-corrupt (the handshake was damaged on its
/// way: no verdict about anybody), refused (a verdict, by either end; detector wire::kForeign where another
/// program or another job answers), invalid (the endpoint), resource. Who is connected and says nothing is
/// given up after 5 s and some round trips, before the deadline.
void dial(asio::io_context&, const std::string& endpoint, Purpose, Identity, int peer_rank,
          Clock::time_point deadline, std::function<void(Result<Line>)>);

/// Keepalive idle/1/3 and TCP_USER_TIMEOUT idle + 2 s (and four round trips): with an idle second dead links
/// show in 2 to 3.5 s. For connections that a thread of ours drains all the time; others would be cut while
/// their reader is busy.
Status watch_link(int socket, std::chrono::seconds idle = std::chrono::seconds(1));

/// The job's secret from OURO_SECRET_FILE or OURO_SECRET, the latter with a warning; none with
/// OURO_INSECURE=1, with a warning. Errors: invalid (unreadable, too short, readable by others, neither
/// given).
Result<wire::Secret> job_secret();

}  // namespace ouro::rt
