// Farewells: they notify one peer of the link sets that have ended here. Used by the exchange.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <unordered_map>

#include "transport/net/net_header.h"

namespace ouro::transport {

/// The link sets whose end here is closed. The peer is notified of each, again after each connection loss and
/// whenever it asks, until it confirms. Keys are never reused. A question about a key that is neither open
/// nor remembered here gets no answer, since its link set has yet to be opened. Therefore entries that the
/// peer may ask about are never dropped. If the peer has ended its link set too, only its repeated farewell
/// can arrive, and it suffices to remember the last `kKept` of those.
class Farewells {
 public:
  static constexpr std::size_t kKept = 256;

  /// A link set has ended here; `freed` is the final count of chunks taken. `theirs`: the peer has
  /// ended it, too.
  void add(std::uint64_t link_set, std::uint64_t freed, bool theirs) {
    const auto [at, fresh] = order_.emplace(link_set, next_);
    try {
      unsent_.emplace(next_, Ended{link_set, freed, theirs});
    } catch (const std::exception&) {
      order_.erase(at);
      throw;
    }
    ++next_;
  }
  /// Whether a farewell has to be sent to the peer.
  bool waiting() const { return !unsent_.empty(); }
  /// The next farewell to send. Precondition: waiting().
  NetHeader next() {
    const Ended& e = unsent_.begin()->second;
    const NetHeader h{.kind = NetHeader::kGone, .link_set = e.link_set, .index = e.theirs, .freed = e.freed};
    move(unsent_, e.theirs ? closed_ : unconfirmed_, unsent_.begin());
    return h;
  }
  /// A frame has arrived for a link set that is not open here, or no longer: the peer is notified,
  /// unless it knows.
  void handle_frame(const NetHeader& h) {
    const auto at = order_.find(h.link_set);
    if (at == order_.end() || h.kind == NetHeader::kOpened || h.kind == NetHeader::kCredit) return;
    const std::uint64_t key = at->second;
    if (h.kind == NetHeader::kGone) {
      if (h.index == 1) {  // both ends know that both have ended
        for (List* const list : {&unsent_, &unconfirmed_, &closed_}) list->erase(key);
        order_.erase(at);
        return;
      }
      for (List* const list : {&unsent_, &unconfirmed_, &closed_})
        if (const auto e = list->find(key); e != list->end()) e->second.theirs = true;
    }
    for (List* const list : {&unconfirmed_, &closed_})
      if (const auto e = list->find(key); e != list->end()) move(*list, unsent_, e);
    if (h.kind != NetHeader::kGone || closed_.size() <= kKept) return;
    order_.erase(closed_.begin()->second.link_set);
    closed_.erase(closed_.begin());
  }
  /// A connection is lost, and farewells with it, perhaps: all are sent again.
  void resume() {
    for (List* const list : {&unconfirmed_, &closed_}) unsent_.merge(*list);
  }
  /// The peer takes nothing more.
  void clear() {
    for (List* const list : {&unsent_, &unconfirmed_, &closed_}) list->clear();
    order_.clear();
  }
  std::size_t size() const { return order_.size(); }
  /// Number of link sets that the peer has not ended, as far as it has reported.
  std::size_t unanswered() const {
    const auto open = [](const auto& e) { return !e.second.theirs; };
    return unconfirmed_.size() +
           static_cast<std::size_t>(std::count_if(unsent_.begin(), unsent_.end(), open));
  }

 private:
  struct Ended {
    std::uint64_t link_set, freed;
    bool theirs;
  };
  using List = std::map<std::uint64_t, Ended>;  // in the order in which they ended
  /// Allocates no memory, so that a farewell cannot be lost for lack of it.
  static void move(List& from, List& to, List::iterator e) { to.insert(from.extract(e)); }

  // Each entry is in one of these: to be sent; sent, not confirmed; sent, and ended by the peer as well.
  List unsent_, unconfirmed_, closed_;
  std::unordered_map<std::uint64_t, std::uint64_t> order_;  // by link set: its key in these lists
  std::uint64_t next_ = 0;
};

}  // namespace ouro::transport
