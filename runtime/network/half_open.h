// Which strangers keep a place at a listener where more come than it hears at once: the policy, without
// sockets or clocks. Used by net_line.cc.
#pragma once
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "runtime/core/wait.h"
#include "runtime/network/net_address.h"

namespace ouro::rt {

/// Unfinished handshakes of one source and of all.
inline constexpr std::size_t kHalfOpenOfOne = 16, kHalfOpenInAll = 128;

/// One unfinished handshake.
struct HalfOpen {
  std::string source;  ///< source_of
  bool known = false;  ///< its source has proved before that it knows the secret
  Clock::time_point spared_until{};
};

/// Whose connections are counted together: an IPv4 address, or the /64 network of an IPv6 one, since who has
/// one address of such a network has all of them.
std::string source_of(const NetAddress&);

/// How long nobody is sent away for another: two round trips, since an honest rank has proved itself after
/// one; at least 4 ms, at most 2 s, since a stranger can pretend a slow path; 1 s where the system has not
/// measured the path.
Clock::duration grace(std::chrono::microseconds round_trip);

struct HalfOpenVerdict {
  bool admit = false;
  std::optional<std::size_t> evict;  ///< who goes for it
};
/// Whether a newcomer is admitted, `half_open` being all that are there in the order of their arrival.
///
/// One source has at most its share. Within it, and where all places are taken, whoever's time is over goes,
/// the oldest first; with all places taken that is one of the source that has most, and of one that is not
/// known if there is such. What somebody has said so far does not count: a byte says nothing, and a whole
/// first frame ends the handshake. While the time of nobody is over, only a source that has fewer places by
/// more than one takes one from the source that has most, or a known source one from an unknown; the youngest
/// of it goes, as the oldest has come furthest. Else the newcomer is turned away: those who are here get to
/// an end, so places / grace handshakes a second do, and each newcomer, who may try again, has the same
/// chance of being one of them.
HalfOpenVerdict judge(std::span<const HalfOpen* const> half_open, const std::string& source, bool known,
                      Clock::time_point now);

}  // namespace ouro::rt
