// Exchange: the protocol of links between ranks of different hosts. It uses no sockets: a fabric (tcp, ucx)
// gets frames to send from `next`, and passes those that arrive to `begin_receive` and `received`. Used by
// fabrics and by NetLinks.
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

/// The links of one group over the network, by rank in the job.
struct LinkSet {
  std::uint64_t key = 0;
  std::map<int, std::unique_ptr<NetLink>> links;
  /// This rank's, rung with each chunk that arrives; nullptr once the owner of the link set is destroyed.
  Counter* doorbell = nullptr;
  std::shared_ptr<void> after;  ///< released once all sent data has been taken
};

/// The link sets of a process, by peer. It takes the frames to send from them in turn, finds the link that a
/// frame belongs to, and keeps link sets that linger after their owner is destroyed. It checks everything
/// that peers send.
class Exchange {
 public:
  /// `checks`: chunks carry a checksum. `damaged(peer, text)`: called when a chunk arrived damaged twice.
  Exchange(int world, bool checks, std::function<void(int, std::string)> damaged)
      : peers_(static_cast<std::size_t>(world)), checks_(checks), damaged_(std::move(damaged)) {}

  void add(std::shared_ptr<LinkSet>);
  /// Called when the owner of the link set is destroyed. If `lingers`, sent data that was not taken yet is
  /// kept until it is; incoming data is discarded.
  void remove(std::uint64_t key, bool lingers);
  /// Number of link sets that still exist after their owners are destroyed.
  std::size_t lingering();
  /// Number of those that have data in flight to a peer whose end is open, and that has not confirmed its
  /// arrival. Data that has arrived but was not taken does not count.
  std::size_t undelivered();
  /// Number of ended link sets that are remembered for peers that have not reported the end of theirs.
  std::size_t unanswered();
  /// `peer` is about to leave: it takes no more data, and nobody waits for its answers. It is still
  /// notified of link sets that end here, because it waits until its sent data is taken or will never be.
  void leaves(int peer);
  /// `peer` has ended: it takes no more data, and is not notified of anything any more.
  void forgive(int peer);
  /// Flips a bit in the next chunk that is sent, and again when that chunk is resent (OURO_FAULT).
  void damage_next();
  /// Undoes damage_next(); returns false if a damaged chunk has been sent already.
  bool spare_next();
  /// Number of closed link sets about which this rank still answers `peer`. It exceeds the number of link
  /// sets that are open there, or have not been opened yet, by at most Farewells::kKept.
  std::size_t remembered(int peer) {
    std::lock_guard lock(mutex_);
    return peers_[static_cast<std::size_t>(peer)].farewells.size();
  }

  // Fabrics call the following under lock().
  std::mutex& lock() { return mutex_; }
  struct Outgoing {
    NetHeader header;
    const std::byte* payload = nullptr;
    std::shared_ptr<LinkSet> keep;
    std::shared_ptr<void> device;  ///< keeps the payload if that is in memory of a device
  };
  /// Gets the next frame for `peer`; returns false if there is none.
  bool next(int peer, Outgoing*);
  /// Whether the other side has given back a chunk whose frame the fabric still holds; the owner of its
  /// payload may then have freed it. This happens after a broken connection, when chunks that had arrived are
  /// sent again.
  bool given_back(int peer, const NetHeader&);
  struct Destination : NetLink::Destination {
    std::shared_ptr<LinkSet> keep;
  };
  /// Checks a header that has arrived from `peer`, and chooses the destination of its payload. With
  /// `anywhere` that may be memory that can be recalled; else only a slot, or memory of a device, which
  /// cannot. Errors: data-corrupt (damaged in transit: nothing in it can be trusted, including the frame's
  /// length), ring-corrupt (no honest peer sends this).
  Result<Destination> begin_receive(int peer, const NetHeader&, bool anywhere = true);
  /// The frame is complete: its payload is at its destination, or was discarded.
  void received(int peer, const NetHeader&, const Destination&);
  /// The rest of a frame that was begun will not arrive: it is requested again.
  void abandon(int peer, const NetHeader&);
  /// A connection to `peer` is lost, and it is unknown what has arrived: all chunks that have not been given
  /// back, and all messages about link sets, are sent again; the receiver discards duplicates.
  void resume(int peer);
  /// Whether there is, or may be later, something to send to `peer`.
  bool talks_to(int peer) const {
    const Peer& p = peers_[static_cast<std::size_t>(peer)];
    return !p.links.empty() || p.farewells.waiting();
  }
  /// Whether `peer` takes no more data.
  bool gone(int peer) const { return peers_[static_cast<std::size_t>(peer)].gone; }

  static constexpr std::size_t kMaxPayload = std::size_t{1} << 24;

 private:
  struct PeerLink {
    std::shared_ptr<LinkSet> link_set;
    NetLink* link;
  };
  struct Peer {
    std::vector<PeerLink> links;
    std::size_t turn = 0;
    bool gone = false;           // it takes no more data
    bool gets_farewells = true;  // it is still notified of link sets that end here
    Farewells farewells;
  };
  NetLink* find_link(int peer, std::uint64_t link_set, std::shared_ptr<LinkSet>* keep = nullptr);
  void drop(const std::shared_ptr<LinkSet>&);
  void forget(int peer, const std::shared_ptr<LinkSet>&);
  void drop_if_drained(const std::shared_ptr<LinkSet>&);
  /// Rings the owner's doorbell. If the owner is destroyed, drops the link set once everything has
  /// been taken.
  void ring(const std::shared_ptr<LinkSet>&, NetLink&);
  void damage(int peer, NetHeader&);
  Peer& at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }

  std::mutex mutex_;
  std::vector<Peer> peers_;  // by rank in the job
  std::unordered_map<std::uint64_t, std::shared_ptr<LinkSet>> link_sets_;
  bool checks_;
  std::function<void(int, std::string)> damaged_;
  std::size_t lingering_ = 0;
  /// A chunk to be damaged `times` times; which one is decided when the first chunk is sent.
  struct Damage {
    int times = 0, peer = -1;
    std::uint64_t link_set = 0, index = 0;
  } damage_;
};

}  // namespace ouro::transport
