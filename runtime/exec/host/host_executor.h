// The host executor: the listener that carries flows out with loads and stores over links and staging
// buffers. Used by group, one operation at a time; it keeps its buffers between operations.
#pragma once
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/flow/hosts.h"
#include "kernels/flow/step.h"
#include "kernels/host/host_loops.h"
#include "runtime/context/context.h"
#include "runtime/core/link_view.h"
#include "runtime/plan/partition.h"
#include "runtime/plan/plan.h"
#include "transport/transport.h"

namespace ouro::rt {

/// One end of a link and how far this rank has come on it.
struct LinkEnd {
  LinkView view;
  std::uint64_t next = 0;
  bool remote = false;  ///< the other end is on another host
};

/// What an executor keeps between the operations of a group. Filled in by the group on first use.
struct Lanes {
  std::unique_ptr<transport::Links> links;
  std::vector<LinkEnd> in, out;  // by rank
  std::unique_ptr<transport::StagingBuffers> staging;
  std::vector<StagingView> staging_of;    // by rank
  std::vector<std::uint64_t> known_done;  // rounds that each rank is known to have released
  std::uint64_t round = 0;                // of the staging buffers; the same on all ranks between operations
  std::vector<std::byte> scratch;         // accumulators of one round
};

/// How an executor reaches its group.
class Host {
 public:
  virtual ~Host() = default;
  virtual Status need_links() = 0;    ///< fills in Lanes::links, in, out
  virtual Status need_staging() = 0;  ///< fills in Lanes::staging, staging_of, known_done
  virtual Waiter& waiter() = 0;
  /// A peer's header or arrival record shows another operation: finds out who disagrees and fails the group.
  virtual Status disagreement(int with, const char* where) = 0;
  /// Whom the next wait is for, where peers alone know whether they come (mix): named if nobody does.
  virtual void expect(int peer, bool sends) = 0;
  virtual int world_rank(int rank) const = 0;
  virtual const std::vector<int>& world_ranks() const = 0;
  /// Where the ranks are, for flows between hosts.
  virtual flow::HostLayout nodes() const = 0;
};

class HostExecutor {
  friend struct TestAccess;  // what tests do that nobody else may

 public:
  HostExecutor(Context& context, Host& host, Lanes& lanes, int rank, int size);

  /// Runs one operation to its end on this rank. `invalid` leaves the group usable (all ranks return it
  /// alike).
  Status run(const Plan&, std::uint64_t seq);
  /// Runs operations of a batch as one if all ranks can. *can: whether this one can; then whether all can. If
  /// not, nothing has moved, and they run one by one next.
  Status run_as_one(const Plan&, std::uint64_t seq, bool* can);

 private:
  void begin(const Plan&, std::uint64_t seq);
  /// Bytes that are reduced at once on their way past the caches: so few that the processor has the next
  /// reads under way during the writes.
  static constexpr std::size_t kTile = 512;
  static constexpr std::size_t kLine = 64;  // payloads are cut into whole lines
  void prepare(const Plan&);
  template <class Flow>
  Status run_flow();
  template <class Flow>
  Flow make() const;  ///< from the operation at hand, if it has data
  template <class Flow>
  void cut();
  template <class Flow>
  bool plan_once();
  Status run_once();  ///< any staged flow of a single round, by hand
  // Inlined into a flow, whose verbs are literals: what is left is one call.
  Status hop(const flow::Step& s) {
    if (s.verb & flow::kPost) return post(s);
    if (s.verb & flow::kRelease) return end_round();
    if (s.verb & flow::kBarrier) return barrier();
    if (s.verb & flow::kMulticast) return multicast(s);
    if (s.verb & flow::kPosted) return s.from == flow::kEveryone ? reduce(s) : fetch(s);
    return hop_link(s);
  }

  // Which elements a chunk is.
  std::size_t round_of(int chunk) const {
    return round_index_ + (pipelined_ ? static_cast<std::size_t>(chunk) / per_round_ : 0);
  }
  Extent in_extent(int chunk) const { return blocks_ ? piece_of(sides_.in, chunk) : region(chunk); }
  Extent out_extent(int chunk) const { return blocks_ ? piece_of(sides_.out, chunk) : region(chunk); }
  Extent region(int chunk) const;
  Extent piece_of(const BlockSides::Side& s, int chunk) const {
    const auto c = static_cast<std::size_t>(chunk);
    return s.piece(pipelined_ ? c % per_round_ : c, round_of(chunk) * capacity_, capacity_);
  }
  /// Calls f(in, out, done, count) for each part of an extent that lies in one buffer; `done` elements
  /// precede it.
  template <class F>
  void parts(Extent e, F&& f) const {
    if (op_->segments.empty()) return f(in_at(e), out_at(e), std::size_t{0}, e.count);
    const auto& all = op_->segments;
    auto s = std::upper_bound(all.begin(), all.end(), e.offset,
                              [](std::size_t offset, const Segment& x) { return offset < x.offset; });
    --s;
    for (std::size_t done = 0; done < e.count; ++s) {
      const std::size_t skip = e.offset + done - s->offset;
      const std::size_t count = std::min(s->count - skip, e.count - done);
      f(s->in ? s->in + skip * elem_ : nullptr, s->out ? s->out + skip * elem_ : nullptr, done, count);
      done += count;
    }
  }
  const std::byte* in_at(Extent e) const {
    return static_cast<const std::byte*>(op_->in.data) + e.offset * elem_;
  }
  std::byte* out_at(Extent e) const { return static_cast<std::byte*>(op_->out.data) + e.offset * elem_; }
  /// Pipelined flows share one accumulator: they end one chunk before they begin the next
  /// (kernels/flow/traits.h).
  std::byte* acc_at(int chunk) {
    return lanes_.scratch.data() +
           (pipelined_ ? 0 : static_cast<std::size_t>(chunk)) * capacity_ * acc_bytes_;
  }

  // Links.
  Status hop_link(const flow::Step&);
  Status send_slot(const flow::Step&, Extent);
  Status await_input(LinkEnd&, int from, std::size_t bytes, std::size_t total);
  void mix_in(const flow::Step&, Extent in, Extent out, const std::byte* got, std::size_t count);
  static void place(void* to, const void* from, std::size_t bytes) {
    if (to != from && bytes > 0) std::memcpy(to, from, bytes);
  }

  // Staging buffers.
  Status fetch(const flow::Step&);
  Status reduce(const flow::Step&);
  Status post(const flow::Step&);
  Status barrier();
  Status multicast(const flow::Step&);
  Status gather_sources(const flow::Step&, Extent at);
  Status open_slot(std::uint64_t round);
  Status wait_for(int from, std::uint64_t round, StagingView::Phase phase) {
    const StagingView& b = lanes_.staging_of[static_cast<std::size_t>(from)];
    const std::atomic_ref word(b.arrival(round).word);
    const std::uint64_t seen = word.load(std::memory_order_acquire);
    if (!reached(static_cast<std::uint32_t>(seen), StagingView::serial(round, phase)))
      return wait_long(from, round, phase);
    return heard(from, round, seen);
  }
  Status wait_long(int from, std::uint64_t round, StagingView::Phase);
  /// What `seen`, the word of an arrival record of this round, tells.
  Status heard(int from, std::uint64_t round, std::uint64_t seen) {
    // Who has come to this round has released those that lie far enough behind: no need to ask for its
    // `done`.
    auto& known = lanes_.known_done[static_cast<std::size_t>(from)];
    known = std::max({known, base_, round - std::min(round, ahead_)});
    if (static_cast<std::uint32_t>(seen >> 32) != tag_) return host_.disagreement(from, "arrival record");
    return {};
  }
  Status posted_at(int from, const flow::Step&, Extent at, const void** where);
  std::byte* piece_on(const StagingView&, std::uint64_t round, std::size_t position) const;
  /// Whether all ranks have registered what an in-place flow reads and writes: they all come to the same
  /// answer.
  enum class Path : std::uint8_t { staged, zero_copy, pull };
  Status refer(bool must, Path*);
  Status agree(bool* all_can);
  bool refers(Arrival&) const;
  bool offers(Arrival&) const;
  Status resolve_all();
  Status bring(int from, bool result, std::size_t offset, void* to, std::size_t bytes) const;
  Status reduce_remote(const flow::Step&);
  bool posts_in_staging() const;
  Status end_round();
  void deliver(void* to, const void* from, std::size_t bytes) const;
  void fold(std::byte* out, std::size_t count);

  Context& context_;
  Host& host_;
  Lanes& lanes_;
  const int rank_, n_;

  // Of the operation at hand; all but the first three lines, and those of staging buffers, stay for the next
  // one if it has the same plan.
  const Operation* op_ = nullptr;
  std::uint64_t seq_ = 0, signature_ = 0;
  std::uint32_t tag_ = 0;                        // of this operation on arrival records
  std::uint64_t prepared_ = 0;                   // the plan, or 0
  Status (HostExecutor::*runner_)() = nullptr;   // the flow that was selected
  Status (HostExecutor::*cut_for_)() = nullptr;  // the flow that what follows was worked out for
  kernels::Reduction reduction_;
  kernels::Fold fold_;
  std::size_t elem_ = 1, acc_bytes_ = 1;
  std::size_t total_ = 0;     // elements of the region, or of one even block
  std::size_t capacity_ = 0;  // elements of one chunk in one round, at most
  std::size_t piece_ = 0;     // elements of a chunk of a region
  std::size_t per_round_ = 1;
  int rounds_ = 1;
  std::size_t round_index_ = 0;  // of a flow that is not pipelined
  bool blocks_ = false, pipelined_ = false, by_reference_ = false;
  bool streams_ = false;  // outputs go past the caches

  // Of the staging buffers in it.
  // In place of the id of an allocation: nothing to refer to; an address in the rank's process; this rank can
  // run a batch's operations as one.
  static constexpr std::uint64_t kNotRegistered = ~std::uint64_t{0}, kAddress = ~std::uint64_t{0} - 1,
                                 kAsOne = ~std::uint64_t{0} - 2;
  std::uint64_t base_ = 0;          // its first round
  std::uint64_t opened_ = 0;        // rounds below have their slot open
  std::uint64_t all_released_ = 0;  // all others have released the rounds below
  std::size_t stride_ = 0;          // bytes between the pieces of a post
  int last_piece_ = 0;              // where the result lies
  std::uint64_t ahead_ = 0;         // rounds between posting a round and having released it, at most
  std::uint64_t depth_ = StagingView::kSlots;  // rounds until what a post uses is used again
  enum class On : std::uint8_t { arrival, eager, slot } on_ = On::slot;  // where posts lie
  bool posts_others_ = false;
  // Of a flow that runs by hand: whether this rank posts and copies its own block, of how many it reads posts
  // (all others, the root or none), and bytes from block to block.
  bool posts_ = false, copies_own_ = false;
  int sources_to_hear_ = 0;
  std::size_t in_step_ = 0, out_step_ = 0;
  bool staged_ = false;  // the flow that was selected runs over staging buffers
  // By reference, if all buffers allow: in place, or by pulling; either of them.
  bool may_refer_ = false, may_pull_ = false, candidate_ = false;
  bool forced_pull_ = false;
  bool pulls_ = false;  // the flow at hand
  bool met_ = false;    // in the round at hand

  BlockSides sides_;
  std::vector<Context::Resolved> inputs_, outputs_;  // of all ranks, by reference
  std::vector<const void*> sources_, posted_;
  std::vector<Scalar> factors_;
  alignas(kLine) std::byte tile_[kTile];  // what is reduced on its way past the caches
};

}  // namespace ouro::rt
