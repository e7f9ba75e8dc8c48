// The body of the exchange kernel. Used by exchange_host.cc and exchange.cu.
//
// Each ordered pair of ranks has, in each channel, a ring of entries in the memory of the receiver. An entry
// announces a message, or the next piece of it. It holds the length of the message, and either its address,
// from which the receiver reads, or the mark that a slot has the data. The receiver counts the entries that
// it has taken in a word in the memory of the sender. All counts only grow, so nothing is ever reset.
#pragma once
#include "kernels/gpu/block.h"
#include "kernels/gpu/exchange.h"
#include "kernels/gpu/launch_end.h"
#include "kernels/gpu/resident_loops.h"
#include "kernels/gpu/resident_memory.h"

namespace ouro::gpu {

/// The state of a channel between launches, at the start of its part of the arena.
struct ExchangeState {
  std::uint64_t sent[ExchangeLayout::kMaxRanks], taken[ExchangeLayout::kMaxRanks];  // entries, by peer
};

struct ExchangeEntry {
  static constexpr std::uint64_t kInSlot = ~std::uint64_t{0};
  std::uint64_t ready;  // the number of the entry in its ring, from 1: written last
  std::uint64_t bytes;  // of the whole message
  std::uint64_t where;  // its address, or kInSlot
  std::uint64_t unused;
};
static_assert(sizeof(ExchangeEntry) == 32);

/// Progress of the messages in one direction with one peer, in one channel. One thread serves a peer; all
/// threads of the block read its `move` while data moves.
struct ExchangeWay {
  std::uint64_t entries;      // sent or taken
  std::uint32_t next, end;    // of the list of transfers
  bool open;                  // this channel has a share of transfer `next`, which has not been moved
  bool reports;               // the first channel of a message compares lengths
  std::byte* at;              // the rest of the share
  std::uint64_t left, whole;  // bytes of the rest; of the message
  std::byte* begin;           // of the message
  std::uint64_t offset;       // of the rest in the message
  // The next copy of the block.
  bool moves;
  std::uint64_t bytes;
  std::byte* to;
  const std::byte* from;
};

/// Data that the threads of a block share; in shared memory on a device.
struct ExchangeShared {
  ExchangeWay out[ExchangeLayout::kMaxRanks], in[ExchangeLayout::kMaxRanks];
  std::uint64_t freed[ExchangeLayout::kMaxRanks];    // the last value that was seen
  std::uint64_t awaited[ExchangeLayout::kMaxRanks];  // the value at which no peer reads this rank's buffers
  std::uint32_t waits[ExchangeLayout::kMaxRanks];    // the last milliseconds that the host was told
};

/// One rank's part of an exchange, in one channel. A block polls all of its peers and serves whichever can
/// make progress, so no message waits for a message of another pair. Announcements of a launch wait for
/// nothing but room in the ring of their own pair.
template <class Block>
class Exchange {
 public:
  OURO_HD Exchange(const ExchangeArgs& args, const Block& block, ExchangeShared& shared)
      : a_(args), b_(block), s_(shared), n_(args.layout.ranks), start_(now_ns()) {
    std::uint64_t rest = args.channels;
    for (int skip = block.block(); skip > 0; --skip) rest &= rest - 1;
    channel_ = 0;
    while (channel_ < 63 && (rest >> channel_ & 1) == 0) ++channel_;
  }

  OURO_HD void run() {
    exchange_all();
    auto* const blocks = reinterpret_cast<std::uint32_t*>(a_.arena[a_.rank] + ExchangeLayout::kEndedAt);
    end_launch(LaunchEnd{.blocks = blocks, .ended = a_.ended}, b_, false);
  }

 private:
  OURO_HD void exchange_all() {
    if (!enter()) return;
    for (std::uint32_t polls = 1;; ++polls) {
      bool moves = false, open = false;
      const bool checks = polls % kGate == 0;
      for (int p = b_.thread(); p < n_; p += b_.threads()) {
        offer(p);
        look_for(p);
        moves |= s_.out[p].moves || s_.in[p].moves;
        const bool peer_open = !is_over(p);
        open |= peer_open;
        if (checks && peer_open) must_end(p);
      }
      if (checks && b_.any(failed_)) return;
      if (b_.any(moves)) {
        move_all();
        b_.sync();
        for (int p = b_.thread(); p < n_; p += b_.threads()) publish(p);
        polls = 0;
        continue;
      }
      if (!b_.any(open)) break;
      pause();
    }
    leave();
  }

  static constexpr std::uint32_t kGate = 128;  // polls for each check of words in slow memory
  /// Messages up to this length that fit into a slot are copied there. A start value, not measured.
  static constexpr std::uint64_t kEager = 8 << 10;

  /// Returns false if this rank has failed before; then nothing may be accessed.
  OURO_HD bool enter() {
    // Another rank may have failed, and have freed buffers that it had announced.
    const bool failed = load_relaxed(failed_word()) != 0, revoked = load_relaxed(revoked_word(a_.rank)) != 0;
    const ExchangeState& kept = *reinterpret_cast<const ExchangeState*>(part(a_.rank));
    for (int p = b_.thread(); p < n_; p += b_.threads()) {
      begin(&s_.out[p], kept.sent[p], a_.sends[p], a_.sends[p + 1]);
      begin(&s_.in[p], kept.taken[p], a_.receives[p], a_.receives[p + 1]);
      s_.freed[p] = s_.awaited[p] = 0;
      s_.waits[p] = 0;
    }
    if (revoked && b_.thread() == 0) fail(ResidentFault::aborted, -1, 0, 0);
    return !b_.any(failed || revoked);
  }
  OURO_HD void leave() {
    ExchangeState& kept = *reinterpret_cast<ExchangeState*>(part(a_.rank));
    for (int p = b_.thread(); p < n_; p += b_.threads()) {
      kept.sent[p] = s_.out[p].entries;
      kept.taken[p] = s_.in[p].entries;
    }
  }
  OURO_HD static void begin(ExchangeWay* w, std::uint64_t entries, std::uint32_t next, std::uint32_t end) {
    w->entries = entries, w->next = next, w->end = end;
    w->open = w->moves = false;
  }

  /// Finds the next transfer of which this channel has a share.
  OURO_HD void open(ExchangeWay* w, int from, int to) const {
    for (; !w->open && w->next < w->end; w->next += !w->open) {
      const ExchangeTransfer t = a_.many != nullptr ? a_.many[w->next] : a_.few[w->next];
      const int channels = a_.layout.channels, lanes = exchange_lanes(t.bytes, channels);
      const int lane = (channel_ + channels - exchange_first_channel(from, to, channels)) % channels;
      if (lane >= lanes) continue;
      const ExchangeShare share = exchange_share(t.bytes, lane, lanes);
      w->open = true, w->reports = lane == 0, w->whole = t.bytes;
      w->begin = t.at, w->at = t.at + share.offset, w->left = share.bytes, w->offset = share.offset;
    }
  }
  OURO_HD static void close(ExchangeWay* w) { w->open = false, ++w->next; }

  /// Announces what has to be sent to p, as far as there is room, and prepares the next copy into a slot.
  OURO_HD void offer(int p) {
    ExchangeWay& w = s_.out[p];
    for (;;) {
      open(&w, a_.rank, p);
      if (!w.open) return;
      const auto room = [&](int most) {
        const auto limit = static_cast<std::uint64_t>(most);
        if (w.entries - s_.freed[p] >= limit) s_.freed[p] = load_acquire(freed(p, a_.rank), a_.one_device);
        return w.entries - s_.freed[p] < limit;
      };
      const bool by_address = (a_.same_process >> p & 1) != 0;
      // The kernel need not wait until a message in a slot is taken.
      if (!by_address ||
          (w.whole <= kEager && w.whole <= a_.layout.slot_bytes && room(ExchangeLayout::kSlots))) {
        if (!room(ExchangeLayout::kSlots)) return;
        w.moves = true, w.bytes = w.left < a_.layout.slot_bytes ? w.left : a_.layout.slot_bytes;
        w.from = w.at, w.to = slot(a_.rank, p, w.entries);
        return;
      }
      if (!room(ExchangeLayout::kEntries)) return;
      announce(p, w, reinterpret_cast<std::uint64_t>(w.begin));
      s_.awaited[p] = w.entries;
      close(&w);
    }
  }
  OURO_HD void announce(int p, ExchangeWay& w, std::uint64_t where) const {
    ExchangeEntry& e = entry(a_.rank, p, w.entries);
    e.bytes = w.whole, e.where = where;
    store_release(&e.ready, ++w.entries, a_.one_device);
  }

  /// Prepares the next copy from p, if its entry is there.
  OURO_HD void look_for(int p) {
    ExchangeWay& w = s_.in[p];
    open(&w, p, a_.rank);
    if (!w.open) return;
    const ExchangeEntry& e = entry(p, a_.rank, w.entries);
    if (load_acquire(&e.ready, a_.one_device) != w.entries + 1) return;
    if (e.bytes != w.whole) {  // the first channel finds it too
      if (w.reports) fail(ResidentFault::counts, p, e.bytes, w.whole);
      return;
    }
    const bool in_slot = e.where == ExchangeEntry::kInSlot;
    if (!in_slot && load_relaxed(revoked_word(a_.rank)) != 0) return fail(ResidentFault::aborted, p, 0, 0);
    w.moves = true, w.to = w.at;
    w.bytes = in_slot && w.left > a_.layout.slot_bytes ? a_.layout.slot_bytes : w.left;
    w.from = in_slot ? slot(p, a_.rank, w.entries) : reinterpret_cast<const std::byte*>(e.where) + w.offset;
  }

  /// All copies that can be made now, the next rank's first.
  OURO_HD void move_all() const {
    for (int d = 1; d <= n_; ++d) {
      const int to = (a_.rank + d) % n_, from = (a_.rank + n_ - d) % n_;
      if (const ExchangeWay& w = s_.out[to]; w.moves) copy(w);
      if (const ExchangeWay& w = s_.in[from]; w.moves) copy(w);
    }
  }
  OURO_HD void copy(const ExchangeWay& w) const {
    const std::byte* from = w.from;
    std::byte* to = w.to;
    std::uint64_t left = w.bytes;
    // If both begin at the same distance from a multiple of 16, the rest is copied in units of 16 bytes.
    const auto address = reinterpret_cast<std::uintptr_t>(to);
    if (((address ^ reinterpret_cast<std::uintptr_t>(from)) & 15) == 0) {
      std::uint64_t head = (16 - (address & 15)) & 15;
      if (head > left) head = left;
      copy_bytes(b_, to, nullptr, from, head);
      from += head, to += head, left -= head;
      constexpr int kAtOnce = 8;
      const std::uint64_t stride = static_cast<std::uint64_t>(b_.threads()) * sizeof(Bytes16);
      const std::uint64_t mine = static_cast<std::uint64_t>(b_.thread()) * sizeof(Bytes16);
      for (; left >= stride * kAtOnce;
           from += stride * kAtOnce, to += stride * kAtOnce, left -= stride * kAtOnce) {
        Bytes16 x[kAtOnce];
        unrolled<kAtOnce>(
            [&](int u) { x[u] = load_at<Bytes16>(from + mine + static_cast<std::uint64_t>(u) * stride); });
        unrolled<kAtOnce>([&](int u) { store_at(to + mine + static_cast<std::uint64_t>(u) * stride, x[u]); });
      }
    }
    copy_bytes(b_, to, nullptr, from, left);
  }

  /// After a copy: announces a piece that was sent to p, and frees the entry of a piece from p.
  OURO_HD void publish(int p) const {
    if (ExchangeWay& w = s_.out[p]; w.moves) {
      announce(p, w, ExchangeEntry::kInSlot);
      moved(&w);
    }
    if (ExchangeWay& w = s_.in[p]; w.moves) {
      store_release(freed(a_.rank, p), ++w.entries, a_.one_device);
      moved(&w);
    }
  }
  OURO_HD static void moved(ExchangeWay* w) {
    w->moves = false;
    w->at += w->bytes, w->offset += w->bytes, w->left -= w->bytes;
    if (w->left == 0) close(w);
  }

  /// Whether nothing is left to be done with p, and p does not read this rank's buffers any more.
  OURO_HD bool is_over(int p) {
    const ExchangeWay &out = s_.out[p], &in = s_.in[p];
    if (out.open || out.next < out.end || in.open || in.next < in.end) return false;
    if (s_.freed[p] < s_.awaited[p]) s_.freed[p] = load_acquire(freed(p, a_.rank), a_.one_device);
    return s_.freed[p] >= s_.awaited[p];
  }

  /// Checks whether the wait for p has to end.
  OURO_HD void must_end(int p) {
    const std::uint64_t waited = now_ns() - start_;
    if (load_relaxed(failed_word()) != 0)
      failed_ = true;
    else if (load_relaxed(a_.abort) != 0 || load_relaxed(revoked_word(a_.rank)) != 0)
      fail(ResidentFault::aborted, p, 0, 0);
    else if (waited >= a_.deadline_ns)
      fail(ResidentFault::deadline, p, 0, 0);
    constexpr std::uint64_t kMillisecond = 1'000'000;
    const auto waits = static_cast<std::uint32_t>(waited / kMillisecond);
    if (waits == s_.waits[p]) return;
    s_.waits[p] = waits;
    store_release(a_.waits + p, waits);
  }
  /// The first of the rank's blocks to fail writes the record. The others' kernels read no buffer of this
  /// rank from then on, except those that they are reading.
  OURO_HD void fail(ResidentFault fault, int peer, std::uint64_t sent, std::uint64_t expected) {
    failed_ = true;
    if (!claim(failed_word())) return;
    for (int p = 0; p < n_; ++p)
      if (p != a_.rank && a_.arena[p] != nullptr) store_release(revoked_word(p), 1);
    a_.error->sent = sent;
    a_.error->expected = expected;
    a_.error->peer = peer;
    a_.error->step = 0;
    a_.error->channel = channel_;
    store_release(reinterpret_cast<std::uint32_t*>(&a_.error->fault), static_cast<std::uint32_t>(fault));
  }

  // Addresses in the arenas, for this channel.
  OURO_HD std::byte* part(int rank) const {
    return a_.arena[rank] + ExchangeLayout::kLine +
           static_cast<std::uint64_t>(channel_) * a_.layout.channel_bytes;
  }
  OURO_HD ExchangeEntry& entry(int from, int to, std::uint64_t number) const {
    const std::uint64_t at =
        static_cast<std::uint64_t>(from) * ExchangeLayout::kEntries + number % ExchangeLayout::kEntries;
    return reinterpret_cast<ExchangeEntry*>(part(to) + a_.layout.entries_at)[at];
  }
  OURO_HD std::byte* slot(int from, int to, std::uint64_t number) const {
    const std::uint64_t at =
        static_cast<std::uint64_t>(from) * ExchangeLayout::kSlots + number % ExchangeLayout::kSlots;
    return part(to) + a_.layout.slots_at + at * a_.layout.slot_bytes;
  }
  /// How many entries of the ring from `to` to `from` the receiver `from` has taken.
  OURO_HD std::uint64_t* freed(int from, int to) const {
    return reinterpret_cast<std::uint64_t*>(part(to) + a_.layout.freed_at +
                                            static_cast<std::uint64_t>(from) * ExchangeLayout::kLine);
  }
  OURO_HD std::uint32_t* failed_word() const { return reinterpret_cast<std::uint32_t*>(a_.arena[a_.rank]); }
  OURO_HD std::uint32_t* revoked_word(int rank) const {
    return reinterpret_cast<std::uint32_t*>(a_.arena[rank]) + 1;
  }

  const ExchangeArgs& a_;
  const Block& b_;
  ExchangeShared& s_;
  const int n_;
  int channel_;
  const std::uint64_t start_;
  bool failed_ = false;  // state of this thread
};

}  // namespace ouro::gpu
