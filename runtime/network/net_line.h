// Authenticated TCP connections: a listener that withstands unauthenticated clients, and dialling. Both yield
// a plain socket with keys. Used by the rendezvous and by the control and data planes between hosts.
// Everything runs on the thread that runs the io_context; callbacks are made on that thread, never from
// inside a call.
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

/// A connection whose two ends have authenticated each other. No byte after the handshake has been read.
/// Control, join and table lines carry sealed frames (wire/keys.h) under `keys`; their owner decides what
/// data lines carry.
struct Line {
  Fd socket;  ///< TCP, non-blocking, TCP_NODELAY, close-on-exec
  int peer_rank = -1, peer_pid = 0;
  std::uint64_t peer_process = 0;  ///< as in Identity; 0 if the peer is the listener
  std::string peer_host, peer_address;
  Purpose purpose = Purpose::join;
  std::chrono::microseconds round_trip{0};  ///< measured by the kernel up to the end of the handshake
  wire::LineKeys keys;
};

/// Accepts lines of this job on one address, never on a wildcard. Unauthenticated clients cost little: 16
/// unfinished handshakes for each source and 128 in all (half_open.h decides which of more stay), 64
/// connections that wait half a second for a place, 1 s for the first frame and 3 s for the handshake (each
/// plus four round trips: one, and a retransmitted packet), one line in the log for each source every 10 s.
/// If descriptors run out, it sheds one connection by means of a spare descriptor and pauses briefly.
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
  /// `taken` receives each line. Errors: invalid (the address, a wildcard), resource (it cannot be bound).
  static Result<std::unique_ptr<LineListener>> open(asio::io_context&, Identity, Options,
                                                    std::function<void(Line)> taken);
  ~LineListener();
  LineListener(const LineListener&) = delete;
  LineListener& operator=(const LineListener&) = delete;

  /// "ip:port" at which others reach it.
  const std::string& endpoint() const;
  const Counts& counts() const;
  /// From now on connections get no answer.
  void ignore();

 private:
  class Acceptor;
  explicit LineListener(std::shared_ptr<Acceptor> acceptor) : acceptor_(std::move(acceptor)) {}
  std::shared_ptr<Acceptor> acceptor_;
};

/// Makes one attempt to open a line to the rank that listens on `endpoint`; retries are up to the caller.
/// Errors: peer-dead (nothing listens there; detector "connection refused"), peer-unresponsive (no answer,
/// hung up, unreachable; the detector names which), data-corrupt (the handshake was damaged in transit, which
/// proves nothing about the peer), refused (a verdict, of either end; detector wire::kForeign if another
/// program or another job answers), invalid (the endpoint), resource. A peer that is connected and silent is
/// given up after 5 s and four round trips, if that is before the deadline.
void dial(asio::io_context&, const std::string& endpoint, Purpose, Identity, int peer_rank,
          Clock::time_point deadline, std::function<void(Result<Line>)>);

/// Sets TCP keepalive (`idle`, then 3 probes 1 s apart) and TCP_USER_TIMEOUT (`idle` + 2 s and four round
/// trips): with 1 s of idle time a dead link shows in 2 to 3.5 s. It suits connections that a thread of the
/// library drains all the time; others would be cut while their reader is busy. Errors: resource.
Status watch_link(int socket, std::chrono::seconds idle = std::chrono::seconds(1));

/// The job's secret from OURO_SECRET_FILE or OURO_SECRET, the latter with a warning; an empty one with
/// OURO_INSECURE=1, with a warning. Errors: invalid (unreadable, too short, readable by others, or
/// not given).
Result<wire::Secret> job_secret();

}  // namespace ouro::rt
