// NetLink: both directions between this rank and one of another host. Used by the exchange, which dispatches
// frames to it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/core/link_view.h"
#include "transport/net/net_header.h"

namespace ouro::transport {

/// Both directions between this rank and one other, in one group, for one purpose: slots in memory of this
/// process, counters moved by the executor on one side and by the fabric on the other, and what has to be
/// sent, sent again, asked for and told. All but the views is used under the exchange's lock.
class NetLink {
 public:
  NetLink(std::uint32_t slot_bytes, std::uint32_t slot_count);
  LinkView in() { return {in_slots_, slot_bytes_, slot_count_, &in_full_, &in_freed_, in_elsewhere_.get()}; }
  LinkView out() {
    return {out_slots_, slot_bytes_, slot_count_, &out_full_, &out_freed_, out_elsewhere_.get()};
  }
  /// Whether all that was put into the outbound direction has been taken out at its other end.
  bool drained() const { return gone_ || load(out_freed_) == load(out_full_); }
  /// Whether all of it has arrived there, as far as the other side has said; taken or not. It says so once
  /// it has been asked.
  bool arrived() const { return drained() || has_arrived_ >= load(out_full_); }
  /// Whether the other side has its end: before it has, nothing goes there.
  bool open() const { return open_; }

  // Outbound.
  /// The next frame, without its checksums, if there is any; `payload` where one follows.
  bool next(std::uint64_t link_set, NetHeader*, const std::byte** payload);
  /// The other side has given back so many chunks. True if that is news, and at most what was sent.
  bool give_back(std::uint64_t freed);
  bool given_back(std::uint64_t index) const { return index < load(out_freed_); }
  /// A frame that carries no chunk has come.
  void hear(const NetHeader&);
  /// Nobody knows what of the last connection has arrived: all that has not been given back goes again.
  void resume();
  /// The other side is asked what it has given back, unless all is.
  void ask() { say_ask_ = !drained(); }
  /// The other side takes nothing more.
  void leave() { gone_ = true; }
  bool gone() const { return gone_; }
  std::uint64_t taken() const { return load(in_freed_); }  ///< inbound chunks that were given back here

  // Inbound.
  struct Place {
    std::byte* to = nullptr;  ///< nullptr: discard the payload
    bool ends = false;        ///< a message ends there: its owner may then say where the next one goes
  };
  /// Where the payload of a chunk goes; `anywhere`: memory that can be recalled may be named. Nowhere if it
  /// comes twice. `wrong` says what no honest peer sends, else it stays empty.
  Place place(const NetHeader&, bool anywhere, std::string* wrong);
  enum class Arrived {
    kNothing,       ///< nobody waits for it, or it is asked for again, or the chunk before it is missing
    kNews,          ///< chunks can be read that could not be before
    kDamagedAgain,  ///< its checksum was wrong twice
  };
  /// The payload of a chunk is complete in its place.
  Arrived arrive(const NetHeader&);
  /// The rest of a chunk that was placed will not come: it is asked for again.
  void abandon(std::uint64_t index);

  /// Where the next message goes in place of slots. Only if nothing lies or comes elsewhere.
  void post(const PostedReceive& where) { posted_ = where; }
  /// Whether a chunk that has not been given back lies, or is coming, where its owner was to have it. Once
  /// all of a message has been taken there is none, but of a peer that sends more than it has said.
  bool elsewhere() const;
  /// The payload of a chunk that is under way is read from, or written to, another place from now on.
  struct Move {
    std::uint64_t link_set = 0;  ///< filled in by the owner of the link
    std::uint64_t index = 0;
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
  };
  using Moved = std::function<void(Move)>;
  /// Nothing is received into the owner's memory any more (inbound), nothing is sent from there (outbound):
  /// what has, and what is to be, is copied into slots. `moved` for each chunk that may be under way from or
  /// to where it was.
  void recall_inbound(const Moved&);
  void recall_outbound(const Moved&);

 private:
  std::uint64_t bit(std::uint64_t index) const { return std::uint64_t{1} << (index % slot_count_); }
  /// Whether a chunk is to be sent, and which.
  bool next_chunk(std::uint64_t full, std::uint64_t* index);
  /// Where a chunk goes if not in its slot, else nullptr.
  std::byte* posted(const NetHeader&) const;

  std::unique_ptr<std::byte[]> memory_;
  std::byte *in_slots_, *out_slots_;
  std::uint32_t slot_bytes_, slot_count_;
  std::unique_ptr<const std::byte*[]> in_elsewhere_, out_elsewhere_;
  Counter in_full_{}, in_freed_{}, out_full_{}, out_freed_{};
  PostedReceive posted_;
  std::uint64_t sent_ = 0;         // chunks handed to the fabric
  std::uint64_t has_arrived_ = 0;  // outbound chunks of which the other side has said so
  std::uint64_t told_ = 0;         // inbound chunks that the other side knows to be given back
  std::uint64_t got_ = 0;          // inbound: bit i mod slot_count of chunks above in_full_ that are here
  std::uint64_t coming_ = 0;       // inbound: of chunks whose payload is being received
  std::uint64_t again_ = 0;        // outbound: bits of chunks to be sent once more
  std::uint64_t bad_ = 0;          // inbound: bits of chunks that came damaged once
  std::uint64_t ask_again_ = 0;    // inbound: bits of chunks that the other side has to send once more
  bool open_ = false;              // the other side has its end
  bool gone_ = false;              // and it takes nothing more
  bool asked_ = false;             // and it is about to leave: it hears of each arrival
  std::uint64_t tell_ = 0;         // inbound: the other side waits until so many chunks are given back
  bool say_open_ = true, say_opened_ = false, say_credit_ = false, say_ask_ = false;
};

}  // namespace ouro::transport
