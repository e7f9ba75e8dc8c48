// Exchange: how the links between ranks of different hosts get across. No sockets: a fabric (tcp, ucx) asks
// `next` for frames, and tells `place` and `received` of those that come. Used by fabrics and by NetLinks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/core/link_view.h"
#include "runtime/core/status.h"
#include "transport/net/farewells.h"
#include "transport/net/net_link.h"

namespace ouro::transport {

/// The links of one group over the network, by rank of the job.
struct LinkSet {
  std::uint64_t key = 0;
  std::map<int, std::unique_ptr<NetLink>> links;
  Counter* doorbell =
      nullptr;  ///< of this rank, rung with each chunk that arrives; nullptr once nobody listens
  std::shared_ptr<void> after;  ///< let go of once all that was sent has been taken
};

/// The link sets of a process, by peer: takes the frames to send from them in turn, finds the link that a
/// frame belongs to, and keeps what lingers after its owner. Checks what peers say.
class Exchange {
 public:
  /// `checks`: chunks carry a checksum. `damaged(peer, text)`: a chunk came damaged twice.
  Exchange(int world, bool checks, std::function<void(int, std::string)> damaged)
      : peers_(static_cast<std::size_t>(world)), checks_(checks), damaged_(std::move(damaged)) {}

  void add(std::shared_ptr<LinkSet>);
  /// Its owner has gone. What it has sent and was not taken yet stays until it is, if `lingers`; what still
  /// comes is discarded.
  void remove(std::uint64_t key, bool lingers);
  /// Link sets whose owners have gone and which are still there.
  std::size_t lingering();
  /// Those of them of which something is still on its way to a peer that listens: it has not said that it has
  /// arrived. What has arrived and was not taken does not count.
  std::size_t undelivered();
  /// What is remembered of link sets that have ended here, for peers that have not said that they ended
  /// theirs.
  std::size_t unanswered();
  /// `peer` is about to leave: it takes nothing more, and nobody waits for its answers. What ends here it is
  /// still told, for it waits until what it has sent is taken, or nobody takes it any more.
  void leaves(int peer);
  /// `peer` has gone: nothing is taken there, or told, any more.
  void forgive(int peer);
  /// The next chunk that goes has a bit flipped, and has it again when it goes again (OURO_FAULT).
  void damage_next();
  /// Takes that back; false if one has gone.
  bool spare_next();

  // For fabrics, under lock().
  std::mutex& lock() { return mutex_; }
  struct Outgoing {
    NetHeader header;
    const std::byte* payload = nullptr;
    std::shared_ptr<LinkSet> keep;
  };
  /// The next frame for `peer`, if there is any.
  bool next(int peer, Outgoing*);
  /// Whether the other side has given back a chunk that the fabric still holds: whose its payload was may
  /// have freed it. After a broken connection chunks go again that had arrived.
  bool given_back(int peer, const NetHeader&);
  struct Place {
    std::byte* to = nullptr;  ///< nullptr: discard the payload
    bool ends = false;        ///< a message ends there: its owner may then say where the next one goes
    std::shared_ptr<LinkSet> keep;
  };
  /// Checks a header that came from `peer`; `anywhere`: its payload may go into memory that can be recalled.
  /// Errors: data-corrupt (it was damaged on its way: nothing in it can be believed, the frame's length
  /// included), ring-corrupt (nothing that an honest peer sends).
  Result<Place> place(int peer, const NetHeader&, bool anywhere = true);
  /// The frame is complete, its payload in its place, or discarded if it had none.
  void received(int peer, const NetHeader&, const Place&);
  /// The rest of a frame that was placed will not come: it is asked for again.
  void abandon(int peer, const NetHeader&);
  /// A connection to `peer` is gone, and nobody knows what of it has arrived: all chunks that have not been
  /// given back, and all that was said of link sets, go again; what comes twice is discarded.
  void resume(int peer);
  /// Whether there is, or will be, something to say to `peer`.
  bool talks_to(int peer) const {
    const Peer& p = peers_[static_cast<std::size_t>(peer)];
    return !p.links.empty() || p.farewells.waiting();
  }
  /// Of how many link sets whose end here has gone `peer` would still be told if it asked. At most
  /// Farewells::kKept more than link sets that are open there, or have never been.
  std::size_t remembered(int peer) {
    std::lock_guard lock(mutex_);
    return peers_[static_cast<std::size_t>(peer)].farewells.size();
  }
  /// Whether `peer` takes nothing more.
  bool gone(int peer) const { return peers_[static_cast<std::size_t>(peer)].gone; }

  static constexpr std::size_t kMaxPayload = std::size_t{1} << 24;

 private:
  struct Entry {
    std::shared_ptr<LinkSet> link_set;
    NetLink* link;
  };
  struct Peer {
    std::vector<Entry> links;
    std::size_t turn = 0;
    bool gone = false;  // takes nothing more
    bool hears = true;  // is still told what ends here
    Farewells farewells;
  };
  NetLink* find(int peer, std::uint64_t link_set, std::shared_ptr<LinkSet>* keep = nullptr);
  void drop(const std::shared_ptr<LinkSet>&);
  void forget(int peer, const std::shared_ptr<LinkSet>&);
  void drop_if_drained(const std::shared_ptr<LinkSet>&);
  /// Its owner hears of news, or it ends if its owner has gone and nothing is left to be taken.
  void ring(const std::shared_ptr<LinkSet>&, NetLink&);
  void damage(int peer, NetHeader&);
  Peer& at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }

  std::mutex mutex_;
  std::vector<Peer> peers_;  // by rank of the job
  std::unordered_map<std::uint64_t, std::shared_ptr<LinkSet>> link_sets_;
  bool checks_;
  std::function<void(int, std::string)> damaged_;
  std::size_t lingering_ = 0;
  /// A chunk to be damaged, so many times; which one shows when the first goes.
  struct Damage {
    int times = 0, peer = -1;
    std::uint64_t link_set = 0, index = 0;
  } damage_;
};

}  // namespace ouro::transport
