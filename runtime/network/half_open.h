// The policy of a listener to which more clients connect than it serves at once: it decides which unfinished
// handshakes are evicted. It uses neither sockets nor clocks. Used by net_line.cc.
#pragma once
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "runtime/core/wait.h"
#include "runtime/network/net_address.h"

namespace ouro::rt {

/// The most unfinished handshakes of one source, and in all.
inline constexpr std::size_t kHalfOpenOfOne = 16, kHalfOpenInAll = 128;

/// One unfinished handshake.
struct HalfOpen {
  std::string source;  ///< source_of
  bool known = false;  ///< its source has proved before that it knows the secret
  Clock::time_point spared_until{};
};

/// The source under which connections are counted together: an IPv4 address, or the /64 network of an IPv6
/// one, since a host that has one address of such a network has all of them.
std::string source_of(const NetAddress&);

/// How long a handshake is spared from eviction: two round trips, since an honest rank has authenticated
/// itself after one; at least 4 ms; at most 2 s, since an unauthenticated client can feign a slow path; 1 s
/// if the kernel has not measured the path.
Clock::duration grace(std::chrono::microseconds round_trip);

struct HalfOpenVerdict {
  bool admit = false;
  std::optional<std::size_t> evict;  ///< index of the handshake that is evicted for it
};
/// Decides whether a newcomer is admitted. `half_open`: all unfinished handshakes in the order of
/// their arrival.
///
/// A source has at most its share of the places. If its share, or all places, are taken, a handshake that is
/// no longer spared is evicted, the oldest first; if all places are taken, one of an unknown source if there
/// is any, and of the source that has most places. The bytes that a peer has sent so far do not count: a byte
/// proves nothing, and a whole first frame ends the handshake. While all are spared, a newcomer takes a place
/// only if its source is known and the other's is not, or if its source has fewer places than the one that
/// has most, by more than one; then the youngest handshake is evicted, as the oldest is nearest to its end.
/// Otherwise the newcomer is turned away: those that are here finish, so places / grace handshakes finish per
/// second, and each newcomer, which may try again, has the same chance of being one of them.
HalfOpenVerdict judge(std::span<const HalfOpen* const> half_open, const std::string& source, bool known,
                      Clock::time_point now);

}  // namespace ouro::rt
