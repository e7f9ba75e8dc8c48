// Samples of TCP connections. See tcp_sample.h. The kernel's header has newer fields than netinet/tcp.h, and
// the two cannot be included together, so only this file includes it.
#include "transport/net/tcp_sample.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <limits>

namespace ouro::transport {

std::optional<TcpSample> sample_tcp(int socket, std::uint64_t connection, bool data) {
  tcp_info info{};  // an older kernel fills only the first fields
  socklen_t size = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  // Bytes without retransmissions; the kernel may count the SYN as an acknowledged byte.
  const std::uint64_t sent = info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
  const std::uint64_t in_flight =
      info.tcpi_unacked > 0 && sent > info.tcpi_bytes_acked ? sent - info.tcpi_bytes_acked : 0;
  // The kernel reports 0 or the largest number if it has not measured any.
  const bool measured =
      info.tcpi_min_rtt > 0 && info.tcpi_min_rtt < std::numeric_limits<std::uint32_t>::max();
  return TcpSample{
      .connection = connection,
      .data = data,
      .segments_in = info.tcpi_segs_in,
      .data_segments_out = info.tcpi_data_segs_out,
      .retransmitted = info.tcpi_total_retrans,
      .duplicates = info.tcpi_dsack_dups,
      .bytes_acked = info.tcpi_bytes_acked,
      .queued = in_flight + info.tcpi_notsent_bytes,
      .round_trip = std::chrono::microseconds(info.tcpi_rtt),
      .shortest_round_trip = std::chrono::microseconds(measured ? info.tcpi_min_rtt : info.tcpi_rtt),
      .unanswered = info.tcpi_unacked > 0 && info.tcpi_retransmits > 0};
}

std::uint64_t number_connection() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace ouro::transport
