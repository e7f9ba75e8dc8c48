// Exchange: the protocol by which the links between ranks of different hosts get across: which chunk goes
// next, where one that comes in belongs, what the other side has given back. No sockets: a fabric (tcp, ucx)
// asks `next` and tells `place` and `landed`. Used by fabrics and by NetLinks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/core/link_view.h"
#include "runtime/core/status.h"

namespace ouro::transport {

/// What precedes each frame between two ranks, little-endian as it lies in memory.
struct NetHeader {
  enum Kind : std::uint32_t {
    kOpen = 0x6f75726f,  ///< the sender has its end of the link set's link; answered by kOpened if the other
                         ///< has, too
    kOpened,
    kChunk,   ///< payload follows
    kCredit,  ///< `freed` is the message
    kAsk,     ///< asks for a credit
    kResend,  ///< chunk `index` did not arrive as it was sent
    kGone,  ///< the sender has given up its end: it takes nothing more; `index` is 1 if it has heard the same
  };
  std::uint32_t kind, bytes;  ///< bytes of payload that follow
  std::uint64_t link_set, index;
  std::uint64_t freed;  ///< chunks of the other direction that the sender of this has given back
  std::uint64_t seq, signature, total;
  std::int32_t tag;
  std::uint32_t head_check;  ///< XXH3 over this header without it, looked at before all else; 0: not checked
  std::uint64_t check;       ///< XXH3 over this header (both checks zero) and the payload; 0: not checked
  std::uint32_t from;        ///< the sender, for fabrics that cannot tell; zero while checks are made
  std::uint32_t tell;        ///< not 0: the sender waits until this chunk has been given back
};
static_assert(sizeof(NetHeader) == 80);

/// Both directions between this rank and one other, in one group, for one purpose: slots in memory of this
/// process, counters moved by the executor on one side and by the fabric on the other.
class NetLink {
 public:
  NetLink(std::uint32_t slot_bytes, std::uint32_t slot_count);
  LinkView in() { return {in_slots_, slot_bytes_, slot_count_, &in_full_, &in_freed_, in_elsewhere_.get()}; }
  LinkView out() {
    return {out_slots_, slot_bytes_, slot_count_, &out_full_, &out_freed_, out_elsewhere_.get()};
  }
  /// Whether all that was put into the outbound direction has been taken out at its other end.
  bool drained() const { return gone_ || load(out_freed_) == load(out_full_); }

 private:
  friend class Exchange;
  /// Where a chunk goes if not in its slot, else nullptr.
  std::byte* posted(const NetHeader&) const;

  std::unique_ptr<std::byte[]> memory_;
  std::byte *in_slots_, *out_slots_;
  std::uint32_t slot_bytes_, slot_count_;
  std::unique_ptr<const std::byte*[]> in_elsewhere_, out_elsewhere_;
  Counter in_full_{}, in_freed_{}, out_full_{}, out_freed_{};
  // Under the exchange's lock.
  PostedReceive posted_;
  std::uint64_t sent_ = 0;       // chunks handed to the fabric
  std::uint64_t told_ = 0;       // inbound chunks that the other side knows to be given back
  std::uint64_t got_ = 0;        // inbound: bit i mod slot_count of chunks above in_full_ that are here
  std::uint64_t coming_ = 0;     // inbound: of chunks whose payload is being received
  std::uint64_t again_ = 0;      // outbound: bits of chunks to be sent once more
  std::uint64_t bad_ = 0;        // inbound: bits of chunks that came damaged once
  std::uint64_t ask_again_ = 0;  // inbound: bits of chunks that the other side has to send once more
  bool open_ = false;            // the other side has its end
  bool gone_ = false;            // and it takes nothing more
  std::uint64_t tell_ = 0;       // inbound: the other side waits until so many chunks are given back
  bool say_open_ = true, say_opened_ = false, say_credit_ = false, say_ask_ = false;
};

/// The links of one group over the network, by rank of the job.
struct LinkSet {
  std::uint64_t key = 0;
  std::map<int, std::unique_ptr<NetLink>> links;
  Counter* doorbell =
      nullptr;  ///< of this rank, rung with each chunk that arrives; nullptr once nobody listens
  std::shared_ptr<void> after;  ///< let go of once all that was sent has been taken
};

class Exchange {
 public:
  /// `checks`: chunks carry a checksum. `damaged(peer, text)`: a chunk came damaged twice.
  Exchange(int world, bool checks, std::function<void(int, std::string)> damaged)
      : peers_(static_cast<std::size_t>(world)), checks_(checks), damaged_(std::move(damaged)) {}

  void add(std::shared_ptr<LinkSet>);
  /// Its owner has gone. What it has sent and was not taken yet stays until it is, if `lingers`; what still
  /// comes is discarded.
  void remove(std::uint64_t key, bool lingers);
  /// Rooms whose owners have gone and which are still there.
  std::size_t lingering();
  /// Nothing will be taken by `peer` any more.
  void forgive(int peer);

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
  /// What an owner says of its links (NetLinks), under lock(), too.
  void post_receive(NetLink& l, const PostedReceive& where) { l.posted_ = where; }
  /// The payload of a chunk that is under way is read from, or written to, another place from now on.
  struct Move {
    std::uint64_t link_set = 0;  ///< filled in by the owner of the link
    std::uint64_t index = 0;
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
  };
  using Moved = std::function<void(Move)>;
  /// Nothing is received into the owner's memory any more, nothing is sent from there: what has, and what is
  /// to be, is copied into slots. `moved` for each chunk that may be under way from or to where it was.
  void recall_inbound(NetLink&, const Moved&);
  void recall_outbound(NetLink&, const Moved&);
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
  /// The ranks that have not taken all that was sent to them, as far as is known; they are asked.
  std::vector<int> owing(LinkSet&);
  /// Whether there is, or will be, something to say to `peer`.
  bool talks_to(int peer) const {
    const Peer& p = peers_[static_cast<std::size_t>(peer)];
    return !p.links.empty() || p.untold > 0;
  }
  /// Of how many link sets whose end here has gone `peer` would still be told if it asked. At most kFarewells
  /// more than link sets that are open there.
  std::size_t remembered(int peer) {
    std::lock_guard lock(mutex_);
    return peers_[static_cast<std::size_t>(peer)].ended.size();
  }
  /// Whether `peer` has been forgiven.
  bool gone(int peer) const { return peers_[static_cast<std::size_t>(peer)].gone; }

  static constexpr std::size_t kMaxPayload = std::size_t{1} << 24;
  static constexpr std::size_t kFarewells = 256;

 private:
  struct Entry {
    std::shared_ptr<LinkSet> link_set;
    NetLink* link;
  };
  struct Ended {
    std::uint64_t link_set, freed;  // freed: the last word on what was taken
    bool theirs;                    // the peer has said that it has ended its link set
    bool told = false;
  };
  struct Peer {
    std::vector<Entry> links;
    std::size_t turn = 0;
    bool gone = false;  // takes nothing more
    // Rooms whose end here has gone: the peer is told, again after each loss and whenever it asks, until it
    // says that it has heard. A key is not used twice, and of one that is neither here nor in this list
    // nothing is said: its link set is still to be opened here. So what the peer may ask about is never
    // dropped; where it has ended its link set, too, only its repeated farewell can come, and the last
    // kFarewells suffice.
    std::deque<Ended> ended;
    std::size_t untold = 0;  // of them
  };
  NetLink* find(int peer, std::uint64_t link_set, std::shared_ptr<LinkSet>* keep = nullptr);
  bool next(NetLink&, std::uint64_t link_set, Outgoing*);
  void drop(const std::shared_ptr<LinkSet>&);
  void forget(int peer, const std::shared_ptr<LinkSet>&);
  static void tell_again(Peer& p, Ended& e) {
    if (std::exchange(e.told, false)) ++p.untold;
  }
  void hear_of_ended(int peer, const NetHeader&);
  void drop_if_drained(const std::shared_ptr<LinkSet>&);
  std::uint64_t check_of(NetHeader, const std::byte* payload) const;
  static std::uint32_t head_check_of(NetHeader);

  std::mutex mutex_;
  std::vector<Peer> peers_;  // by rank of the job
  std::unordered_map<std::uint64_t, std::shared_ptr<LinkSet>> link_sets_;
  bool checks_;
  std::function<void(int, std::string)> damaged_;
  std::size_t lingering_ = 0;
};

}  // namespace ouro::transport
