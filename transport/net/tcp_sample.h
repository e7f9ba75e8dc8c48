// The kernel's counts of one TCP connection. Used by the tcp fabric and by control lines; RemotePeers judges
// the network path between two hosts by them.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>

namespace ouro::transport {

/// Counts of one TCP connection since it was established, and its current state. A count that the kernel does
/// not keep stays 0; the counts of 32 bits wrap around.
struct TcpSample {
  std::uint64_t connection = 0;         ///< number of the connection in this process, never reused
  bool data = false;                    ///< whether it is a data connection, not a control line
  std::uint32_t segments_in = 0;        ///< received, with acknowledgements and duplicates (Linux 4.2)
  std::uint32_t data_segments_out = 0;  ///< with data, including retransmissions (Linux 4.6)
  std::uint32_t retransmitted = 0;      ///< segments
  std::uint32_t duplicates = 0;         ///< segments that the other end reported as duplicates (Linux 4.19)
  std::uint64_t bytes_acked = 0;        ///< (Linux 4.1)
  /// Bytes that were written and are not acknowledged; before Linux 4.19: bytes that are not sent.
  std::uint64_t queued = 0;
  std::chrono::microseconds round_trip{0};
  /// The shortest round trip of the last minutes; before Linux 4.6: the current one.
  std::chrono::microseconds shortest_round_trip{0};
  /// Whether the kernel has retransmitted the oldest unacknowledged data at least once since it last received
  /// an acknowledgement.
  bool unanswered = false;
};

/// Takes a sample, with one system call. None if `socket` is not a TCP connection.
std::optional<TcpSample> sample_tcp(int socket, std::uint64_t connection, bool data);
/// Returns a number for a new connection. Thread-safe.
std::uint64_t number_connection();

}  // namespace ouro::transport
