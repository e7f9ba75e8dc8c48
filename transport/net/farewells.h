// Farewells: how one peer learns that link sets have ended here. Used by the exchange.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "transport/net/net_header.h"

namespace ouro::transport {

/// The link sets whose end here has gone: a peer is told, again after each loss and whenever it asks, until
/// it says that it has heard. A key is not used twice, and of one that is neither open nor remembered here
/// nothing is said: its link set is still to be opened. So what the peer may ask about is never dropped;
/// where it has ended its link set, too, only its repeated farewell can come, and the last `kKept` suffice.
class Farewells {
 public:
  static constexpr std::size_t kKept = 256;

  /// A link set has ended here; `freed` is the last word on what was taken. `theirs`: the peer has ended it,
  /// too.
  void add(std::uint64_t link_set, std::uint64_t freed, bool theirs) {
    ended_.push_back({link_set, freed, theirs});
    ++untold_;
  }
  /// Whether the peer has to be told of something.
  bool waiting() const { return untold_ > 0; }
  /// What to tell next. Only if waiting().
  NetHeader next() {
    Ended& e = *std::find_if(ended_.begin(), ended_.end(), [](const Ended& x) { return !x.told; });
    e.told = true;
    --untold_;
    return {.kind = NetHeader::kGone, .link_set = e.link_set, .index = e.theirs, .freed = e.freed};
  }
  /// A frame has come for a link set that is not, or no longer, open here: the peer learns so, unless it
  /// knows.
  void hear(const NetHeader& h) {
    const auto e =
        std::find_if(ended_.begin(), ended_.end(), [&](const Ended& x) { return x.link_set == h.link_set; });
    if (e == ended_.end() || h.kind == NetHeader::kOpened || h.kind == NetHeader::kCredit) return;
    if (h.kind != NetHeader::kGone) return tell_again(*e);
    e->theirs = true;
    if (h.index == 1) {  // both have heard
      if (!e->told) --untold_;
      ended_.erase(e);
      return;
    }
    tell_again(*e);
    const auto closed = [](const Ended& x) { return x.theirs && x.told; };
    if (std::count_if(ended_.begin(), ended_.end(), closed) > std::ptrdiff_t{kKept})
      ended_.erase(std::find_if(ended_.begin(), ended_.end(), closed));
  }
  /// What was told may be lost: all of it goes again.
  void resume() {
    for (Ended& e : ended_) tell_again(e);
  }
  /// The peer takes nothing more.
  void clear() {
    ended_.clear();
    untold_ = 0;
  }
  std::size_t size() const { return ended_.size(); }
  /// Of link sets that the peer has not ended, as far as it has said.
  std::size_t unanswered() const {
    return static_cast<std::size_t>(
        std::count_if(ended_.begin(), ended_.end(), [](const Ended& e) { return !e.theirs; }));
  }

 private:
  struct Ended {
    std::uint64_t link_set, freed;
    bool theirs;
    bool told = false;
  };
  void tell_again(Ended& e) {
    if (e.told) e.told = false, ++untold_;
  }

  std::deque<Ended> ended_;
  std::size_t untold_ = 0;
};

}  // namespace ouro::transport
