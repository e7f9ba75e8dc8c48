// Mismatch of an operation between ranks. See mismatch.h.
#include "runtime/group/mismatch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "runtime/core/wait.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr auto kGatherSignatures = 50ms;  // so that the message names every rank that is about to arrive

/// Ranks that made the same call.
struct Side {
  Signature signature;
  std::vector<int> ranks;
};

/// The largest first.
std::vector<Side> sides_of(const std::map<int, Signature>& seen) {
  std::vector<Side> sides;
  for (const auto& [r, s] : seen) {
    auto side = std::find_if(sides.begin(), sides.end(), [&](const Side& x) { return x.signature == s; });
    if (side == sides.end()) sides.push_back({s, {}}), side = std::prev(sides.end());
    side->ranks.push_back(r);
  }
  std::stable_sort(sides.begin(), sides.end(),
                   [](const Side& a, const Side& b) { return a.ranks.size() > b.ranks.size(); });
  return sides;
}

}  // namespace

std::optional<Failure> find_mismatch(MemberRecords& members, std::uint64_t seq, const Signature& mine) {
  std::map<int, Signature> seen;
  const auto gather = [&] {
    bool differ = false;
    for (int r = 0; r < members.size(); ++r) {
      const GroupRecord* const record = members.find_ours(r);
      if (!record) continue;
      if (const auto s = entered_as(*record, seq)) {
        seen[r] = *s;
        differ |= *s != mine;
      }
    }
    return differ;
  };
  if (!gather()) return {};
  for (const auto until = Clock::now() + kGatherSignatures;
       static_cast<int>(seen.size()) < members.size() && Clock::now() < until;) {
    std::this_thread::sleep_for(2ms);
    gather();
  }
  const std::vector<Side> sides = sides_of(seen);
  // Equal calls that ranks would run in different ways: the user then has no call to fix.
  const bool same_calls = std::all_of(sides.begin(), sides.end(), [&](const Side& x) {
    return x.signature.text() == sides.front().signature.text();
  });
  std::string text = same_calls ? "ranks have chosen different algorithms: " : "ranks disagree: ";
  for (std::size_t i = 0; i < sides.size(); ++i)
    text += fmt::format("{}ranks {{{}}} called {}{}", i ? "; " : "", fmt::join(sides[i].ranks, ","),
                        sides[i].signature.text(), same_calls ? ": " + sides[i].signature.how_text() : "");
  if (same_calls) text += ". OURO_ALGO, or the call, can name one for all";
  return Failure{.reason = Reason::mismatch,
                 .text = std::move(text),
                 .rank = sides.back().ranks.front(),
                 .detector = "control page"};
}

}  // namespace ouro::rt
