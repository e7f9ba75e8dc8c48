// The roll call of a communicator's ranks, before they join: which rank is on which host, and where the
// hosts meet. The process that made the unique id listens; each rank reports there and receives the result.
// Used by joining.cc.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/status.h"
#include "transport/wire/keys.h"

namespace ouro::nccl {

/// The identity of a host in 16 bytes: ranks with the same one share memory.
using HostKey = std::array<std::uint8_t, 16>;

/// The part of an id that concerns its roll call.
struct RollId {
  wire::Nonce nonce{};                 ///< of the id; of several ids, the first one's
  std::array<std::uint8_t, 16> key{};  ///< authenticates reports and answers
  std::vector<std::string> places;     ///< "ip:port", best first
  bool waits = false;  ///< the listener may start later, with rank 0 (NCCL_COMM_ID): callers keep trying
};

/// The report of one rank.
struct Report {
  wire::Nonce job{};
  int rank = 0, world = 1;
  HostKey host{};
  std::string place;  ///< of rank 0: "ip:port" where the hosts will meet
};

/// The result of all reports: the host of each rank, and rank 0's place.
struct Roll {
  std::vector<HostKey> hosts;
  std::string place;
};

/// Starts listening in this process for the ranks of an id, for as long as the process lives, at
/// `place` ("ip:port"; with port 0 the system chooses one). Returns the address it listens at. Errors:
/// resource, invalid.
Result<std::string> expect_ranks(const RollId&, const std::string& place);

/// Reports, and waits until all ranks have reported. nullopt: no process listens any more, because the one
/// that made the id has ended. Errors: peer-unresponsive (listener unreachable), never-joined (with the
/// missing ranks), refused (a rank twice: all ranks return this), mismatch (ranks that disagree about their
/// number), revoked.
Result<std::optional<Roll>> call_roll(const RollId&, const Report&, std::chrono::milliseconds deadline,
                                      const std::atomic<bool>& cancelled);

namespace roll {  // the wire format of both ends: fixed-size and little-endian

inline constexpr std::size_t kPlace = 64;
inline constexpr std::uint32_t kMostRanks = 65'536;
struct Hello {
  char magic[8];
  wire::Nonce id, job;
  std::array<std::uint8_t, 16> random;
  std::uint32_t rank, world, patience_ms, pid;
  HostKey host;
  char place[kPlace];
  /// The same in all reports of one call, which repeats its report after a connection has broken: another
  /// caller with the same rank is an error.
  std::array<std::uint8_t, 16> caller;
  wire::Key mac;  ///< HMAC of all preceding bytes
};
static_assert(sizeof(Hello) == 8 + 3 * 16 + 16 + 16 + kPlace + 16 + 32);
struct Answer {
  char magic[8];
  /// A Reason; size of what follows: a text, or kPlace bytes and a HostKey per rank.
  std::uint32_t reason, bytes;
  wire::Key mac;  ///< HMAC of the hello's random bytes, magic, reason, bytes and what follows
};
static_assert(sizeof(Answer) == 48);
inline constexpr char kHello[8] = {'o', 'u', 'r', 'o', '-', 'r', 'o', '2'};
inline constexpr char kAnswer[8] = {'o', 'u', 'r', 'o', '-', 'r', 'a', '1'};

Result<wire::Key> mac_of(const RollId&, const Hello&);
Result<wire::Key> mac_of(const RollId&, const Hello&, const Answer&, wire::View follows);

}  // namespace roll
}  // namespace ouro::nccl
