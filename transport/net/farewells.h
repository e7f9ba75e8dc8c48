// Farewells: how one peer learns that link sets have ended here. Used by the exchange.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <unordered_map>

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
    const auto [at, fresh] = order_.emplace(link_set, next_);
    try {
      untold_.emplace(next_, Ended{link_set, freed, theirs});
    } catch (const std::exception&) {
      order_.erase(at);
      throw;
    }
    ++next_;
  }
  /// Whether the peer has to be told of something.
  bool waiting() const { return !untold_.empty(); }
  /// What to tell next. Only if waiting().
  NetHeader next() {
    const Ended& e = untold_.begin()->second;
    const NetHeader h{.kind = NetHeader::kGone, .link_set = e.link_set, .index = e.theirs, .freed = e.freed};
    move(untold_, e.theirs ? closed_ : told_, untold_.begin());
    return h;
  }
  /// A frame has come for a link set that is not, or no longer, open here: the peer learns so, unless it
  /// knows.
  void hear(const NetHeader& h) {
    const auto at = order_.find(h.link_set);
    if (at == order_.end() || h.kind == NetHeader::kOpened || h.kind == NetHeader::kCredit) return;
    const std::uint64_t place = at->second;
    if (h.kind == NetHeader::kGone) {
      if (h.index == 1) {  // both have heard
        for (List* const list : {&untold_, &told_, &closed_}) list->erase(place);
        order_.erase(at);
        return;
      }
      for (List* const list : {&untold_, &told_, &closed_})
        if (const auto e = list->find(place); e != list->end()) e->second.theirs = true;
    }
    for (List* const list : {&told_, &closed_})
      if (const auto e = list->find(place); e != list->end()) move(*list, untold_, e);
    if (h.kind != NetHeader::kGone || closed_.size() <= kKept) return;
    order_.erase(closed_.begin()->second.link_set);
    closed_.erase(closed_.begin());
  }
  /// What was told may be lost: all of it goes again.
  void resume() {
    for (List* const list : {&told_, &closed_}) untold_.merge(*list);
  }
  /// The peer takes nothing more.
  void clear() {
    for (List* const list : {&untold_, &told_, &closed_}) list->clear();
    order_.clear();
  }
  std::size_t size() const { return order_.size(); }
  /// Of link sets that the peer has not ended, as far as it has said.
  std::size_t unanswered() const {
    const auto open = [](const auto& e) { return !e.second.theirs; };
    return told_.size() + static_cast<std::size_t>(std::count_if(untold_.begin(), untold_.end(), open));
  }

 private:
  struct Ended {
    std::uint64_t link_set, freed;
    bool theirs;
  };
  using List = std::map<std::uint64_t, Ended>;  // in the order in which they ended
  /// Takes no memory: what the peer has to hear is not lost for want of it.
  static void move(List& from, List& to, List::iterator e) { to.insert(from.extract(e)); }

  // Each is in one of these: still to be told, told, told and ended by the peer, too.
  List untold_, told_, closed_;
  std::unordered_map<std::uint64_t, std::uint64_t> order_;  // by link set: where it stands in these
  std::uint64_t next_ = 0;
};

}  // namespace ouro::transport
