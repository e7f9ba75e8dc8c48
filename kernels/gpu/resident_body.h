// The resident executor: the listener that executes flows inside one kernel launch, one block per
// channel. One body for device and host; kernels/flow/step.h defines the steps. Used by resident_host.cc
// and resident.cu.
#pragma once
#include "kernels/flow/list.h"
#include "kernels/gpu/resident_cut.h"
#include "kernels/gpu/resident_loops.h"
#include "kernels/gpu/resident_rounds.h"

namespace ouro::gpu {

/// All threads of the block begin each step together, and see everything that the step before has written.
/// Geometry is ResidentCut, or UnevenCut if blocks have lengths of their own.
template <class Numbers, class Block, class Geometry = ResidentCut>
class Resident : private ResidentRounds<Block> {
  using Channel = ResidentRounds<Block>;
  using Step = flow::Step;
  using Extent = flow::Extent;

 public:
  OURO_HD Resident(const ResidentArgs& args, const Block& block, ResidentShared& shared, Numbers numbers)
      : Channel(args, block, shared), numbers_(numbers) {}
  using Channel::enter;
  using Channel::learn;
  using Channel::leave;

  /// Cuts the operation for `Flow`. Called once, before run.
  template <class Flow>
  OURO_HD void cut(Collective collective) {
    cut(shape_of<Flow>(), Flow{}.chunks({a_.rank, n_, a_.root, 1}), collective);
  }
  OURO_HD void cut(FlowShape flow, int chunks, Collective collective) {
    if constexpr (Geometry::kUneven) cut_.in_begin = shared_.in_begin, cut_.out_begin = shared_.out_begin;
    cut_.cut(flow, chunks, a_, collective, b_.block(), numbers_.element(), numbers_.accumulator());
    by_reference_ = flow.by_reference && n_ > 1;
    posts_others_ = flow.posts_others;
    ahead_ = flow.pipelined ? (flow.posts_result ? 2 : 1) * flow::kStagingLag : 0;
    base_ = shared_.state.round;
  }

  /// Computes where uneven blocks begin. Called once, before meet and cut.
  OURO_HD void lay_out() const {
    for (int p = b_.thread(); p < n_; p += b_.threads()) {
      std::uint64_t in = 0, out = 0;
      for (int b = 0; b < p; ++b) in += a_.in_counts[b], out += a_.out_counts[b];
      shared_.in_begin[p] = in, shared_.out_begin[p] = out;
    }
    b_.sync();
  }

  /// Publishes where my buffers are to all ranks and finds out where theirs are. Returns true if every rank
  /// can access all buffers that the by-reference flows of this collective touch; the flow that runs next
  /// then skips its own post. Called once, before cut; the result is the same on all ranks.
  OURO_HD bool meet() {
    base_ = shared_.state.round;
    // A rank knows only its own lengths in an uneven all_to_all, so every channel of every rank takes part.
    if (!(Geometry::kUneven && a_.collective == Collective::all_to_all) &&
        resident_share(a_.count, a_.channels, b_.block(), numbers_.element()).count == 0)
      return false;
    ++this->step_;
    if (!open(base_)) return false;
    if constexpr (Geometry::kUneven)
      each_peer([&](int p) {
        ResidentNames& names = this->names(a_.rank, p);
        names.at[base_ % ResidentLayout::kStagingSlots] = shared_.in_begin[p];
        names.count[base_ % ResidentLayout::kStagingSlots] = a_.in_counts[p];
      });
    announce(base_, kPosted);
    if (!await_phase_of_all(base_, kPosted)) return false;
    bool reached = true, failed = false;
    for (int p = b_.thread(); p < n_; p += b_.threads())
      if constexpr (Geometry::kUneven)
        reached &= this->find_uneven(p, base_, numbers_.element(), &failed);
      else
        reached &= this->find_buffers(p, base_, numbers_.element(), &failed);
    met_all_ = !b_.any(!reached);
    if ((failed_ = b_.any(failed))) return false;
    if (met_all_) return true;
    end_round();
    b_.sync();
    return false;
  }

  /// Runs the flow; Hop{}(*this, step) executes one step, inlined or not.
  template <class Flow, class Hop>
  OURO_HD void run() {
    const bool pairs = Geometry::kUneven && a_.collective == Collective::all_to_all;
    if (cut_.total == 0 && !pairs && a_.collective != Collective::barrier)
      return;  // all other ranks return here too
    const flow::Place at{a_.rank, n_, a_.root, cut_.rounds};
    const Listener<Hop> listen{*this};
    if constexpr (Flow::kPipelined) {
      Flow{}(at, listen);
    } else {
      for (cut_.turn = 0; cut_.turn < cut_.rounds && !failed_; ++cut_.turn) {
        Flow{}(at, listen);
        if (Flow::kStaging && n_ > 1 && !failed_) end_round();
      }
    }
  }

  /// Executes one step: a flow::StepOf, for which it compiles to code as good as a loop written by hand,
  /// or any Step.
  template <class S>
  OURO_HD void hop(const S& s) {
    ++this->step_;
    if (s.verb & flow::kPost) return post(s);
    if (s.verb & flow::kRelease) return end_round();
    if (s.verb & flow::kBarrier) return barrier();
    if (s.verb & (flow::kPosted | flow::kMulticast)) return read_staging(s);
    if (s.verb & (flow::kRecv | flow::kSend)) return hop_link(s);
    local(s);
  }

 private:
  using Channel::a_;
  using Channel::ahead_;
  using Channel::announce;
  using Channel::await_phase;
  using Channel::await_phase_of_all;
  using Channel::b_;
  using Channel::base_;
  using Channel::each_peer;
  using Channel::end_round;
  using Channel::failed_;
  using Channel::met_;
  using Channel::n_;
  using Channel::open;
  using Channel::shared_;
  using Phase = ResidentPhase::Phase;
  using enum ResidentPhase::Phase;
  // This is no lambda, because the compiler would not inline a step that occurs twice.
  template <class Hop>
  struct Listener {
    Resident& rank;
    template <class S>
    OURO_HD void operator()(const S& s) const {
      if (!rank.failed_) Hop{}(rank, s);
    }
  };

  OURO_HD const std::byte* in_at(Extent e) const { return a_.in + e.offset * numbers_.element(); }
  OURO_HD std::byte* out_at(Extent e) const { return a_.out + e.offset * numbers_.element(); }
  /// Pipelined flows share one accumulator: they finish one chunk before they begin the next (flow/traits.h).
  OURO_HD std::byte* acc_at(int chunk) const {
    return this->part(a_.rank) + a_.layout.scratch_at +
           (cut_.pipelined ? 0 : static_cast<std::uint64_t>(chunk)) * a_.layout.slot_bytes;
  }

  OURO_HD void reduce(const ResidentJob& job) const {
    if constexpr (Numbers::kReduces) numbers_.reduce(b_, job);
  }
  OURO_HD ResidentJob job_of(std::uint64_t count) const {
    ResidentJob job;
    job.ranks = n_;
    job.factor = &a_.premul;
    job.count = count;
    return job;
  }

  /// A step on local data only, which no other rank needs to know of.
  template <class S>
  OURO_HD void local(const S& s) {
    const Extent out = s.verb & flow::kStore ? cut_.out(s.chunk) : Extent{};
    const Extent in = s.verb & flow::kInput ? cut_.in(s.chunk) : out;
    const std::byte* const source = s.verb & flow::kInput ? in_at(in) : acc_at(s.chunk);
    if (s.verb & flow::kStore && s.verb & flow::kInput && !(s.verb & flow::kPartialIn)) {
      copy_bytes(b_, out_at(out), nullptr, source, out.count * numbers_.element());
    } else {
      ResidentJob job = job_of(in.count);
      job.narrow = {source, (s.verb & flow::kInput) != 0};
      job.wide = {source, (s.verb & flow::kInput) == 0};
      set_sinks(job, s, out);
      reduce(job);
    }
    b_.sync();
  }

  // Two threads, on a device of different warps, wait for both ends of a hop at once, and publish to
  // both at once.
  OURO_HD int for_input() const { return 0; }
  OURO_HD int for_output() const { return b_.threads() > 32 ? 32 : b_.threads() - 1; }

  template <class S>
  OURO_HD void hop_link(const S& s) {
    if (cut_.skips(s)) return;
    const bool receives = (s.verb & flow::kRecv) != 0, sends = (s.verb & flow::kSend) != 0;
    const std::uint64_t taken = receives ? shared_.state.received[s.from] : 0;
    const std::uint64_t given = sends ? shared_.state.sent[s.to] : 0;
    bool failed = false;
    if (receives && b_.thread() == for_input())
      failed = this->await_tagged(this->full(s.from, a_.rank, taken), taken + 1, s.from);
    const auto slots = static_cast<std::uint64_t>(a_.layout.slots);
    if (sends && b_.thread() == for_output() && given >= slots)
      failed |= this->await(this->line(a_.rank, a_.layout.freed_at, s.to), given + 1 - slots, s.to);
    failed_ = b_.any(failed);
    if (failed_) return;
    transfer(s, receives ? this->slot(s.from, a_.rank, taken) : nullptr,
             sends ? this->slot(a_.rank, s.to, given) : nullptr);
    b_.sync();
    if (sends && b_.thread() == for_output()) {
      this->publish_tagged(this->full(a_.rank, s.to, given), given + 1);
      shared_.state.sent[s.to] = given + 1;
    }
    if (receives && b_.thread() == for_input()) {
      this->publish(this->line(s.from, a_.layout.freed_at, a_.rank), taken + 1);
      shared_.state.received[s.from] = taken + 1;
    }
    b_.sync();
  }

  /// Moves or reduces from `got`, or from this rank's own data, to `slot` and to the step's
  /// other destinations.
  template <class S>
  OURO_HD void transfer(const S& s, const std::byte* got, std::byte* slot) {
    const std::uint64_t elem = numbers_.element();
    const bool acc = (s.verb & flow::kAcc) != 0, receives = (s.verb & flow::kRecv) != 0;
    const Extent out = s.verb & (flow::kStore | flow::kResult) ? cut_.out(s.chunk) : Extent{};
    // A pure forward of a reduction neither stores nor has an output here: its size is that of the input.
    const Extent in =
        s.verb & flow::kInput || !(s.verb & (flow::kStore | flow::kResult)) ? cut_.in(s.chunk) : out;
    const bool wide_in = (s.verb & flow::kPartialIn) != 0, wide_out = (s.verb & flow::kPartialOut) != 0;
    if (!receives && s.verb & flow::kResult)
      return copy_bytes(b_, slot, nullptr, out_at(out), out.count * elem);
    if (!receives && acc)
      return copy_bytes(b_, slot, nullptr, acc_at(s.chunk), in.count * numbers_.accumulator());
    if (!receives && !wide_out) return copy_bytes(b_, slot, nullptr, in_at(in), in.count * elem);
    if (receives && !wide_in) {
      std::byte* const store = s.verb & flow::kStore ? out_at(out) : slot;
      return copy_bytes(b_, store, store == slot ? nullptr : slot, got,
                        (s.verb & flow::kStore ? out : in).count * elem);
    }
    ResidentJob job = job_of(s.verb & flow::kStore ? out.count : in.count);
    job.wide = {got, receives};
    if (acc) job.also_wide = {acc_at(s.chunk), true};
    if (s.verb & flow::kInput) job.narrow = {in_at(in), true};
    job.weight = s.weight;
    set_sinks(job, s, out);
    job.send = {slot, (s.verb & flow::kSend) != 0};
    job.send_wide = wide_out;
    reduce(job);
  }
  template <class S>
  OURO_HD void set_sinks(ResidentJob& job, const S& s, Extent out) const {
    if (s.verb & flow::kStore) job.store = {out_at(out), true};
    if (s.verb & flow::kKeep) job.keep = {acc_at(s.chunk), true};
  }

  // ---- staging buffers
  // -------------------------------------------------------------------------------------

  template <class S>
  OURO_HD void post(const S& s) {
    const std::uint64_t round = round_of(s.chunk), elem = numbers_.element();
    if (by_reference_ && met_all_) return;
    if (s.verb & flow::kResult) {
      const Extent out = cut_.out(s.chunk);
      copy_bytes(b_, piece(a_.rank, round, cut_.result_piece), nullptr, out_at(out), out.count * elem);
      return announce(round, kResult);
    }
    if (!open(round)) return;
    for (int j = 0; j < s.span && !by_reference_; ++j) {
      const Extent in = cut_.in(s.span == 1 ? s.chunk : flow::nth(s.chunk, j, cut_.per_round));
      copy_bytes(b_, piece(a_.rank, round, j), nullptr, in_at(in), in.count * elem);
    }
    if (by_reference_)
      for (int p = b_.thread(); p < n_; p += b_.threads())
        shared_.in_of[p] = a_.in_of[p], shared_.out_of[p] = a_.out_of[p];
    announce(round, kPosted);
    if (by_reference_) await_phase_of_all(round, kPosted);  // after this, all buffers may be accessed
  }
  /// The round of the staging buffers that a chunk belongs to.
  OURO_HD std::uint64_t round_of(int chunk) const {
    return base_ + static_cast<std::uint64_t>(cut_.round_of(chunk));
  }
  OURO_HD std::byte* piece(int rank, std::uint64_t round, int position) const {
    return this->staging(rank, round) + static_cast<std::uint64_t>(position) * cut_.stride_bytes;
  }

  OURO_HD void barrier() {
    b_.sync();
    const std::uint64_t round = shared_.state.round;
    const Phase phase = met_ ? kSecondBarrier : kResult;
    met_ = true;
    if (!open(round)) return;
    announce(round, phase);
    await_phase_of_all(round, phase);
  }

  /// The address of chunk `s.at` of the post of `from`; `at` is its position in a buffer that is read
  /// by reference.
  template <class S>
  OURO_HD const std::byte* posted(int from, const S& s, Extent at) const {
    if (by_reference_) return shared_.in_of[from] + at.offset * numbers_.element();
    int position = 0;
    if (s.verb & flow::kResult)
      position = cut_.result_piece;
    else if (posts_others_)
      position = flow::piece_for(cut_.within_round(s.at), from, n_);
    return piece(from, round_of(s.at), position);
  }

  /// Finds the addresses of chunk `s.at` of all inputs, after waiting for the posts; mine is in my
  /// input buffer.
  template <class S>
  OURO_HD bool find_sources(const S& s, Extent at) {
    const std::uint64_t round = round_of(s.at);
    bool failed = false;
    for (int p = b_.thread(); p < n_; p += b_.threads()) {
      if (p == a_.rank) {
        shared_.source[p] = in_at(cut_.in(s.at));
        shared_.factor[p] = a_.premul;
        continue;
      }
      if (!by_reference_) failed |= await_phase(p, round, kPosted);
      shared_.source[p] = posted(p, s, at);
      shared_.factor[p] = this->arrival(p, a_.rank).premul[round % ResidentLayout::kStagingSlots];
    }
    return !(failed_ = b_.any(failed));
  }

  /// Folds all inputs, or copies one, into my output or into those of all ranks.
  template <class S>
  OURO_HD void read_staging(const S& s) {
    const Extent out = cut_.out(s.chunk), at = cut_.blocks ? cut_.theirs(s.chunk, s.at, out) : out;
    const std::uint64_t place = out.offset * numbers_.element(), bytes = out.count * numbers_.element();
    if (s.verb & flow::kPosted && s.from == flow::kEveryone) {
      if (!find_sources(s, at)) return;
      ResidentJob job = job_of(out.count);
      job.many = shared_.source;
      job.many_count = n_;
      job.factor = shared_.factor;
      job.multicast = shared_.out_of;
      job.multicast_at = place;
      job.multicast_first = a_.rank;
      job.multicasts = (s.verb & flow::kMulticast) != 0;
      job.store = {out_at(out), !job.multicasts};
      reduce(job);
    } else {
      if (s.verb & flow::kPosted && !by_reference_) {
        const Phase phase = s.verb & flow::kResult ? kResult : kPosted;
        failed_ = b_.any(b_.thread() == 0 && await_phase(s.from, round_of(s.at), phase));
        if (failed_) return;
      }
      const std::byte* const source = s.verb & flow::kInput ? in_at(cut_.in(s.chunk)) : posted(s.from, s, at);
      if (!(s.verb & flow::kMulticast)) {
        copy_bytes(b_, out_at(out), nullptr, source, bytes);
      } else {
        auto bits = reinterpret_cast<std::uintptr_t>(source);
        for (int p = 0; p < n_; ++p) bits |= reinterpret_cast<std::uintptr_t>(shared_.out_of[p] + place);
        copy_to(b_, bits, bytes, source, [&](std::uint64_t i, const auto& unit) {
          for (int d = 0; d < n_; ++d)
            store_at(shared_.out_of[flow::wrap(a_.rank + d, n_)] + place + i, unit);
        });
      }
      // Chunks from different ranks do not depend on each other, so threads need not wait for each other
      // between them. The barrier at the end of the flow waits for all threads.
      if (Geometry::kUneven && by_reference_) return;
    }
    b_.sync();
  }

  const Numbers numbers_;
  Geometry cut_;
  bool by_reference_ = false, posts_others_ = false;
  bool met_all_ = false;  // meet() has found the buffers of all ranks
};

}  // namespace ouro::gpu
