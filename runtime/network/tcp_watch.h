// Judges the network path between this host and another by samples of TCP connections, which are taken with
// each heartbeat: which direction loses all packets, whether packets are lost, whether it is slow. It uses
// neither sockets nor clocks. Used by RemotePeer (one rank) and HostWatch (all ranks of a host).
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/wait.h"
#include "transport/net/tcp_sample.h"

namespace ouro::rt {

/// How one connection changed between two successive samples.
struct TcpChange {
  bool data = false;
  bool counted = false;  ///< whether the kernel counts the segments that arrive
  std::uint32_t segments_in = 0, data_segments_out = 0, retransmitted = 0, duplicates = 0;
  std::uint64_t acked = 0;                      ///< bytes
  std::uint64_t queued_before = 0, queued = 0;  ///< bytes
  bool unanswered_before = false, unanswered = false;
  std::chrono::microseconds round_trip{0}, shortest_round_trip{0};
};

/// The changes of the connections to one rank. The first sample of a connection gives no change.
class TcpChanges {
 public:
  std::vector<TcpChange> take(std::vector<transport::TcpSample>);

 private:
  std::vector<transport::TcpSample> before_;
};

/// The verdict on the path to a silent rank, as its connections show it.
enum class Way : std::uint8_t {
  unknown,
  passes,          ///< new bytes are acknowledged: packets pass both ways, and its kernel runs
  outbound_lost,   ///< packets arrive from there, and none acknowledges what this rank has retransmitted
  nothing_arrives  ///< no packet arrives from there, and what this rank has sent was retransmitted in vain
};

/// Collects evidence while a rank is silent, from changes of all connections to it. The evidence of a
/// connection that has ended stays valid until something is received from the rank.
class SilenceWatch {
 public:
  /// Called with each heartbeat. `last_received` is when something was last received from the rank; a new
  /// value discards all evidence.
  void take(std::span<const TcpChange>, Clock::time_point last_received, Clock::time_point now);
  Way way() const;
  /// Describes what is certain about the path to and from `host`; "" if nothing is. A late packet cannot be
  /// distinguished from a lost one until it arrives, so the text states for how long none has arrived.
  std::string text(std::string_view host) const;

 private:
  bool known_ = false;  // the kernel counts the segments that arrive
  Clock::time_point last_received_{}, now_{};
  Clock::time_point from_{};        // packets that arrive after it were not in flight when the silence began
  Clock::time_point to_{};          // when the last sample of a connection was taken
  Clock::time_point acked_{};       // when, after `from_`, bytes were last acknowledged
  Clock::time_point unanswered_{};  // since then no retransmission has been acknowledged
  Clock::duration round_trip_{};
  bool arrives_ = false, outbound_lost_ = false;
};

/// Decides whether a warning is to be repeated: when the matter has become twice as bad, but at most once in
/// 10 s, or after five minutes.
class Repeat {
 public:
  /// Whether the warning is due now; it then counts as given. `severity` must be positive.
  bool due(double severity, Clock::time_point now);

 private:
  double said_ = 0;
  Clock::time_point at_{};
};

/// Computes the share of segments to one host that were retransmitted, in a window of 5 to 10 s, or a longer
/// one if few are sent: the current half of the window ends after 200 segments or a minute. Segments that the
/// other end reports as duplicates were retransmitted needlessly and do not count.
class LossWatch {
 public:
  struct Loss {
    std::uint64_t sent = 0, again = 0;  ///< segments with data
    double seconds = 0;                 ///< length of the window
    double rate() const { return static_cast<double>(again) / static_cast<double>(sent); }
  };
  /// Takes the changes since the last heartbeat. Returns a loss that deserves a warning: at least 3 % of the
  /// segments and at least ten of them were retransmitted, in at least five heartbeat intervals. A single
  /// interruption, however long, is no such loss.
  std::optional<Loss> take(std::span<const TcpChange>, Clock::time_point now);

 private:
  struct HalfWindow {
    Clock::time_point begin{};
    std::uint64_t sent = 0, again = 0, duplicates = 0;
    int beats = 0;  // heartbeat intervals with retransmissions
  };
  HalfWindow now_, before_;
};

/// Measures the rate of data connections to one host, while bytes are queued at each sample, as far back as
/// two seconds. The rate is slow if it is less than kCrawl for at least a second, and bytes wait longer than
/// they would if this rank simply had little to send: longer than a heartbeat interval and than three of the
/// shortest round trips. Data that arrives from the host proves nothing of the kind, since this rank does not
/// know whether more is queued there; the ranks there do.
class RateWatch {
 public:
  static constexpr double kCrawl = 1.25e6;  ///< bytes per second: 10 Mbit/s
  struct Slow {
    std::uint64_t queued = 0;  ///< bytes that are not acknowledged
    double rate = 0;           ///< bytes per second
    double seconds = 0;        ///< time over which the rate was measured
  };
  void take(std::span<const TcpChange>, Clock::time_point now);
  std::optional<Slow> slow() const;

 private:
  struct Interval {
    double seconds = 0;
    std::uint64_t acked = 0, queued_before = 0, queued = 0;
    std::chrono::microseconds round_trip{0};  // the shortest one of the connection where it is longest
    bool always_queued() const { return queued_before > 0 && queued > 0; }
  };
  static constexpr std::size_t kBeats = 8;
  std::array<Interval, kBeats> beats_{};
  std::size_t taken_ = 0;
  Clock::time_point before_{};
};

}  // namespace ouro::rt
