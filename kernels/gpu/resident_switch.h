// The `nvls` flows as resident kernels execute them: staging buffers at a multicast address, which a switch
// reduces for their reader, or fills in all ranks at once. Used by resident_list.h.
#pragma once
#include "kernels/gpu/multimem.h"
#include "kernels/gpu/resident_cut.h"
#include "kernels/gpu/resident_loops.h"
#include "kernels/gpu/resident_rounds.h"

namespace ouro::gpu {

/// Sums of a type that is known at compile time; several are in flight at once.
template <DType kType>
struct HotSwitch {
  static constexpr int kAhead = 4;
  OURO_HD std::uint64_t element() const { return size_of(kType); }
  OURO_HD void reduce(const Multimem& all, collect::Bits& b, std::uint64_t at) const {
    all.template reduce<kType, OpKind::sum>(b, at);
  }
};
/// Any other reduction of the switch.
struct ColdSwitch {
  static constexpr int kAhead = 1;
  DType type;
  OpKind op;
  OURO_HD std::uint64_t element() const { return size_of(type); }
  OURO_HD void reduce(const Multimem& all, collect::Bits& b, std::uint64_t at) const {
#define OURO_X(t, o, bits, text) \
  if (type == DType::t && op == OpKind::o) return all.template reduce<DType::t, OpKind::o>(b, at);
    OURO_MULTIMEM_COLD(OURO_X)
#undef OURO_X
  }
};

/// The listener. A rank copies data that it posts to be reduced into its own memory. Data that it posts to be
/// read, which is a result or belongs to a collective without reduction, is stored into the memory of all
/// members. Every rank therefore reads only its own.
template <class Numbers, class Block>
class Switched : private ResidentRounds<Block> {
  using Rounds = ResidentRounds<Block>;
  using Extent = flow::Extent;
  static constexpr std::uint64_t kUnit = 16;

 public:
  OURO_HD Switched(const ResidentArgs& args, const Block& block, ResidentShared& shared, Numbers numbers)
      : Rounds(args, block, shared), numbers_(numbers) {}

  template <class Flow>
  OURO_HD void run(Collective collective) {
    static_assert(Flow::kSwitched && Flow::kPipelined);
    if (!this->enter()) return;
    cut_.cut(shape_of<Flow>(), Flow{}.chunks({a_.rank, n_, a_.root, 1}), a_, collective, b_.block(),
             numbers_.element(), numbers_.element());
    reduces_ = traits_of(collective).reduces_all();
    ahead_ = (Flow::kPostsResult ? 2 : 1) * flow::kStagingLag;
    base_ = shared_.state.round;
    if (cut_.total != 0) {
      Flow{}(flow::Place{a_.rank, n_, a_.root, cut_.rounds}, Listener{*this});
      // No rank returns while others read its memory, since the memory may be unbound next.
      if (reduces_ && !Flow::kPostsResult && !failed_) wait_for_readers();
    }
    this->leave();
  }

  template <class S>
  OURO_HD void hop(const S& s) {
    ++this->step_;
    if (s.verb & flow::kPost) return post(s);
    if (s.verb & flow::kRelease) return release();
    if (s.verb & flow::kPosted) return s.from == flow::kEveryone ? reduce(s) : fetch(s);
    const Extent in = cut_.in(s.chunk), out = cut_.out(s.chunk);  // a step on local data only
    copy_bytes(b_, a_.out + bytes(out.offset), nullptr, a_.in + bytes(in.offset), bytes(out.count));
    b_.sync();
  }

 private:
  using Rounds::a_;
  using Rounds::ahead_;
  using Rounds::announce;
  using Rounds::await_phase;
  using Rounds::await_phase_of_all;
  using Rounds::b_;
  using Rounds::base_;
  using Rounds::failed_;
  using Rounds::n_;
  using Rounds::open;
  using Rounds::shared_;
  using enum ResidentPhase::Phase;
  struct Listener {
    Switched& rank;
    template <class S>
    OURO_HD void operator()(const S& s) const {
      if (!rank.failed_) rank.hop(s);
    }
  };

  OURO_HD std::uint64_t bytes(std::uint64_t elements) const { return elements * numbers_.element(); }
  OURO_HD std::uint64_t round_of(int chunk) const {
    return base_ + static_cast<std::uint64_t>(cut_.round_of(chunk));
  }
  /// The offset of a chunk in the memory of each member: in the slot of its round, at its own place.
  OURO_HD std::uint64_t place(int chunk) const {
    constexpr std::uint64_t kSlots = ResidentLayout::kStagingSlots;
    const std::uint64_t slot = static_cast<std::uint64_t>(b_.block()) * kSlots + round_of(chunk) % kSlots;
    return slot * a_.layout.staging_bytes +
           static_cast<std::uint64_t>(cut_.within_round(chunk)) * cut_.stride_bytes;
  }

  template <class S>
  OURO_HD void post(const S& s) {
    const std::uint64_t round = round_of(s.chunk);
    if (s.verb & flow::kResult) {  // the result is already in the memory of all members
      order_aliases();
      return announce(round, kResult);
    }
    if (!open(round)) return;
    order_aliases();
    if (reduces_) {  // my own piece too: the switch reads it like those of the others
      for (int j = 0; j < n_; ++j) {
        const int chunk = flow::nth(s.chunk, j, cut_.per_round);
        const Extent in = cut_.in(chunk);
        copy_bytes(b_, a_.switched + place(chunk), nullptr, a_.in + bytes(in.offset), bytes(in.count));
      }
    } else {
      const Extent in = cut_.in(s.chunk);
      spread(place(s.chunk), a_.in + bytes(in.offset), bytes(in.count));
    }
    order_aliases();
    announce(round, kPosted);
  }

  /// Stores into the memory of all members, in whole units: after a chunk there is room for the rest of
  /// its last unit.
  OURO_HD void spread(std::uint64_t to, const std::byte* from, std::uint64_t many) {
    const Multimem all(a_.multicast + to);
    const bool aligned = aligned_to(from, kUnit);
    each_unit(many, [&](std::uint64_t i) {
      collect::Bits b;
      const std::uint64_t left = many - i;
      if (aligned && left >= kUnit) {
        collect::load<16, collect::Access::plain>(b, from + i);
      } else {
        OURO_UNROLL for (std::uint64_t k = 0; k < kUnit; ++k) if (k < left) b.word[k / 4] |=
            static_cast<std::uint32_t>(from[i + k]) << (k % 4 * 8);
      }
      all.store(i, b);
    });
  }

  template <class S>
  OURO_HD void reduce(const S& s) {
    if (!await_phase_of_all(round_of(s.at), kPosted)) return;
    order_aliases();
    const Extent out = cut_.out(s.chunk);
    const std::uint64_t many = bytes(out.count);
    std::byte* const to = a_.out + bytes(out.offset);
    const bool back = a_.collective == Collective::all_reduce;
    const Multimem all(a_.multicast + place(s.at));
    constexpr int kAhead = Numbers::kAhead;
    const std::uint64_t step = kUnit * static_cast<std::uint64_t>(b_.threads());
    for (std::uint64_t i = kUnit * static_cast<std::uint64_t>(b_.thread()); i < many; i += kAhead * step) {
      collect::Bits b[kAhead];
      OURO_UNROLL for (int k = 0; k < kAhead;
                       ++k) if (const std::uint64_t at = i + static_cast<std::uint64_t>(k) * step; at < many)
          numbers_.reduce(all, b[k], at);
      OURO_UNROLL for (int k = 0; k < kAhead;
                       ++k) if (const std::uint64_t at = i + static_cast<std::uint64_t>(k) * step;
                                at < many) {
        if (back) all.store(at, b[k]);  // at the place it was read from, which no other rank reads
        put(to + at, b[k], many - at);
      }
    }
    b_.sync();
  }

  /// Stores up to 16 bytes of a result to an output at any address.
  OURO_HD void put(std::byte* to, const collect::Bits& b, std::uint64_t many) const {
    if (aligned_to(to, kUnit) && many >= kUnit) return collect::store<16, collect::Access::plain>(to, b);
    OURO_UNROLL for (std::uint64_t k = 0; k < kUnit; ++k) if (k < many) to[k] =
        static_cast<std::byte>(b.word[k / 4] >> (k % 4 * 8));
  }

  template <class S>
  OURO_HD void fetch(const S& s) {
    const bool result = (s.verb & flow::kResult) != 0;
    failed_ = b_.any(b_.thread() == 0 && await_phase(s.from, round_of(s.at), result ? kResult : kPosted));
    if (failed_) return;
    order_aliases();
    const Extent out = cut_.out(s.chunk);
    // Chunk `at` of an all_gather is the block of rank `from`, at that chunk's place in the memory of
    // all members.
    copy_bytes(b_, a_.out + bytes(out.offset), nullptr, a_.switched + place(s.at), bytes(out.count));
    b_.sync();
  }

  OURO_HD void release() {
    order_aliases();
    this->end_round();
  }
  OURO_HD void wait_for_readers() {
    bool failed = false;
    b_.sync();  // so that all threads see the round that one thread has counted
    const std::uint64_t all = shared_.state.round;
    this->each_peer([&](int p) { failed |= this->await(this->line(a_.rank, a_.layout.done_at, p), all, p); });
    failed_ = b_.any(failed);
  }

  template <class F>
  OURO_HD void each_unit(std::uint64_t many, F&& f) const {
    const std::uint64_t step = kUnit * static_cast<std::uint64_t>(b_.threads());
    for (std::uint64_t i = kUnit * static_cast<std::uint64_t>(b_.thread()); i < many; i += step) f(i);
  }

  const Numbers numbers_;
  ResidentCut cut_;
  bool reduces_ = false;
};

/// Elements are opaque bytes, and nothing is reduced.
struct SwitchMoves {
  static constexpr int kAhead = 1;
  std::uint64_t size;
  OURO_HD std::uint64_t element() const { return size; }
  OURO_HD void reduce(const Multimem&, collect::Bits&, std::uint64_t) const {}
};

/// One launch of the flow `nvls` of its collective.
template <class Numbers, class Block>
OURO_HD void run_switched(const ResidentArgs& args, const Block& block, ResidentShared& shared,
                          Numbers numbers) {
  Switched<Numbers, Block> rank(args, block, shared, numbers);
  if constexpr (std::is_same_v<Numbers, SwitchMoves>) {
    if (args.collective == Collective::all_gather)
      rank.template run<flow::NvlsAllGather>(Collective::all_gather);
    else
      rank.template run<flow::NvlsBroadcast>(Collective::broadcast);
  } else {
    if (args.collective == Collective::all_reduce)
      rank.template run<flow::NvlsAllReduce>(Collective::all_reduce);
    else
      rank.template run<flow::NvlsReduceScatter>(Collective::reduce_scatter);
  }
}

}  // namespace ouro::gpu
