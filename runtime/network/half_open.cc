// Places at a listener. See half_open.h.
#include "runtime/network/half_open.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr Clock::duration kLeast = 4ms, kMost = 2s, kUnmeasured = 1s;

}  // namespace

std::string source_of(const NetAddress& a) {
  if (a.at.ss_family != AF_INET6) return to_string(a, false);
  NetAddress network = a;
  auto& in6 = reinterpret_cast<sockaddr_in6&>(network.at);
  std::memset(in6.sin6_addr.s6_addr + 8, 0, 8);
  return to_string(network, false) + "/64";
}

Clock::duration grace(std::chrono::microseconds round_trip) {
  if (round_trip <= 0us) return kUnmeasured;
  return std::clamp<Clock::duration>(2 * round_trip, kLeast, kMost);
}

HalfOpenVerdict judge(std::span<const HalfOpen* const> half_open, const std::string& source, bool known,
                      Clock::time_point now) {
  std::map<std::string_view, std::size_t> held;
  for (const HalfOpen* h : half_open) ++held[h->source];
  const std::size_t mine = held[source];
  const bool crowded = mine >= kHalfOpenOfOne;
  if (!crowded && half_open.size() < kHalfOpenInAll) return {.admit = true, .evict = {}};
  // Returns whether `a` is evicted rather than `b`. Candidates are in the order of their arrival, so among
  // equals the first is.
  const auto rather = [&](const HalfOpen& a, const HalfOpen& b) {
    if (a.known != b.known) return b.known;
    return held[a.source] > held[b.source];
  };
  std::optional<std::size_t> victim;
  const auto consider = [&](std::size_t i, bool youngest) {
    const HalfOpen& h = *half_open[i];
    if (!victim || rather(h, *half_open[*victim]) || (youngest && !rather(*half_open[*victim], h)))
      victim = i;
  };
  for (std::size_t i = 0; i < half_open.size(); ++i)
    if (now >= half_open[i]->spared_until && (!crowded || half_open[i]->source == source)) consider(i, false);
  if (victim) return {.admit = true, .evict = victim};
  if (crowded) return {};
  for (std::size_t i = 0; i < half_open.size(); ++i)
    if ((known && !half_open[i]->known) ||
        (known == half_open[i]->known && held[half_open[i]->source] > mine + 1))
      consider(i, true);
  return {.admit = victim.has_value(), .evict = victim};
}

}  // namespace ouro::rt
