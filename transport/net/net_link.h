// NetLink: both directions between this rank and one on another host. Used by the exchange, which dispatches
// frames to it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/link_view.h"
#include "transport/net/net_header.h"

namespace ouro::transport {

/// Both directions between this rank and one other, in one group, for one purpose: slots in memory of this
/// process; counters that the executor moves on one side and the fabric on the other; and which frames are to
/// be sent, resent and requested. Everything except the views requires the exchange's lock.
class NetLink {
 public:
  NetLink(std::uint32_t slot_bytes, std::uint32_t slot_count);
  LinkView in() {
    return {in_slots_,  slot_bytes_,         slot_count_,     &in_full_,
            &in_freed_, in_elsewhere_.get(), in_device_.get()};
  }
  LinkView out() {
    return {out_slots_, slot_bytes_, slot_count_, &out_full_, &out_freed_, out_elsewhere_.get()};
  }
  /// Whether everything that was put into the outbound direction has been taken at its other end.
  bool drained() const { return gone_ || load(out_freed_) == load(out_full_); }
  /// Whether everything has arrived there, taken or not, as far as the other side has reported. It
  /// reports arrivals once it has been asked.
  bool arrived() const { return drained() || has_arrived_ >= load(out_full_); }
  /// Whether the other side has its end; before that, nothing is sent there.
  bool open() const { return open_; }

  // Functions for the outbound direction.
  /// Gets the next frame, without its checksums; false if there is none. `payload` is set if one follows, and
  /// `device` if that is in memory of a device, which it keeps.
  bool next(std::uint64_t link_set, NetHeader*, const std::byte** payload, std::shared_ptr<void>* device);
  /// The payload of the chunk that is published next is in memory of a device, kept by `memory`.
  void lend_device(std::uint64_t index, const std::byte* from, std::shared_ptr<void> memory) {
    out_lent_[index % slot_count_] = {from, std::move(memory)};
  }
  /// The other side has given back `freed` chunks in total. Returns true if that is news, and at most the
  /// number sent.
  bool give_back(std::uint64_t freed);
  bool given_back(std::uint64_t index) const { return index < load(out_freed_); }
  /// Handles a frame that carries no chunk.
  void handle_control(const NetHeader&);
  /// After a lost connection it is unknown what has arrived: all chunks that have not been given back are
  /// sent again.
  void resume();
  /// Asks the other side what it has given back, unless everything is.
  void ask() { say_ask_ = !drained(); }
  /// The other side takes nothing more.
  void leave() { gone_ = true; }
  bool gone() const { return gone_; }
  std::uint64_t taken() const { return load(in_freed_); }  ///< inbound chunks that were given back here

  // Functions for the inbound direction.
  struct Destination {
    std::byte* to = nullptr;  ///< nullptr: discard the payload
    bool ends = false;        ///< the chunk ends a posted message: its owner may then post the next receive
    std::shared_ptr<void> device;  ///< keeps the memory at `to` if it is memory of a device
  };
  /// Chooses the destination of a chunk's payload. With `anywhere` this may be memory that can be recalled;
  /// else it is a slot, or memory of a device. A duplicate has none. `wrong` is set if no honest peer sends
  /// this; otherwise it stays empty.
  Destination begin_receive(const NetHeader&, bool anywhere, std::string* wrong);
  enum class Arrived {
    kNothing,       ///< it is not awaited, or is requested again, or an earlier chunk is missing
    kNews,          ///< chunks can be read now that could not be before
    kDamagedAgain,  ///< its checksum was wrong twice
  };
  /// The payload of a chunk is complete at its destination.
  Arrived arrive(const NetHeader&);
  /// The rest of a chunk that was begun will not arrive: it is requested again. If it was for memory of a
  /// device, which the other side may still write, no more of the message is received there.
  void abandon(std::uint64_t index);

  /// Posts a receive for the next message, in place of slots. Precondition: !elsewhere().
  void post(const PostedReceive& where) { posted_ = where, release_device_memory(); }
  /// Whether a chunk that has not been given back is, or is being received, in posted memory instead of its
  /// slot. There is none once all of a message has been taken, unless a peer sends more than it
  /// has announced.
  bool elsewhere() const;
  /// Redirects the payload of a chunk in flight: it is read from, or written to, another place from now on.
  struct Move {
    std::uint64_t link_set = 0;  ///< filled in by the owner of the link
    std::uint64_t index = 0;
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
  };
  using Moved = std::function<void(Move)>;
  /// Afterwards nothing is received into the owner's memory (inbound), or sent from there (outbound): data
  /// that is there, or is still to be sent from there, is copied into slots. Calls `moved` for each chunk
  /// that may be in flight from or to its old place. Chunks in memory of a device stay there.
  void recall_inbound(const Moved&);
  void recall_outbound(const Moved&);

 private:
  std::uint64_t bit(std::uint64_t index) const { return std::uint64_t{1} << (index % slot_count_); }
  /// Whether there is a chunk to send, and which.
  bool next_chunk(std::uint64_t full, std::uint64_t* index);
  /// Whether a chunk belongs to the posted receive, and how far into it.
  bool posted(const NetHeader&, std::uint64_t* at) const;
  /// Releases memory of devices in slots that have been given back.
  void release_device_memory();

  std::unique_ptr<std::byte[]> memory_;
  std::byte *in_slots_, *out_slots_;
  std::uint32_t slot_bytes_, slot_count_;
  std::unique_ptr<const std::byte*[]> in_elsewhere_, out_elsewhere_, in_device_;
  struct Lent {
    const std::byte* at = nullptr;
    std::shared_ptr<void> memory;
  };
  std::vector<Lent> out_lent_;                      // by slot
  std::vector<std::shared_ptr<void>> in_borrowed_;  // by slot: keeps in_device_
  std::uint64_t released_ = 0;                      // inbound: chunks whose memory was released
  Counter in_full_{}, in_freed_{}, out_full_{}, out_freed_{};
  PostedReceive posted_;
  std::uint64_t sent_ = 0;         // chunks handed to the fabric
  std::uint64_t has_arrived_ = 0;  // outbound chunks that the other side has confirmed
  std::uint64_t reported_ = 0;     // inbound chunks that the other side knows to be given back
  std::uint64_t got_ = 0;     // inbound: bits (i mod slot_count) of chunks above in_full_ that have arrived
  std::uint64_t coming_ = 0;  // inbound: bits of chunks whose payload is being received
  std::uint64_t again_ = 0;   // outbound: bits of chunks to be sent again
  std::uint64_t bad_ = 0;     // inbound: bits of chunks that arrived damaged once
  std::uint64_t ask_again_ = 0;  // inbound: bits of chunks to request again from the other side
  bool open_ = false;            // the other side has its end
  bool gone_ = false;            // the other side takes nothing more
  bool asked_ = false;           // the other side is about to leave and wants a credit for each arrival
  std::uint64_t report_at_ = 0;  // inbound: the other side waits until this many chunks are given back
  bool say_open_ = true, say_opened_ = false, say_credit_ = false, say_ask_ = false;
};

}  // namespace ouro::transport
