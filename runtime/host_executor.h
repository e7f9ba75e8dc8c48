// The host executor: the listener that carries flows out with loads and stores over links and boards.
// Used by group, one operation at a time.
#pragma once
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/host_loops.h"
#include "runtime/context.h"
#include "runtime/core/link_view.h"
#include "runtime/flow/step.h"
#include "runtime/operation.h"
#include "runtime/select.h"
#include "transport/transport.h"

namespace ouro::rt {

/// One end of a link and how far this rank has come on it.
struct LinkEnd {
  LinkView view;
  std::uint64_t next = 0;
};

/// What an executor keeps between the operations of a group. Filled in by the group on first use.
struct Lanes {
  std::unique_ptr<transport::Links> links;
  std::vector<LinkEnd> in, out;  // by rank
  std::unique_ptr<transport::Boards> boards;
  std::vector<BoardView> board;           // by rank
  std::vector<std::uint64_t> known_done;  // rounds that each rank is known to have finished
  std::uint64_t round = 0;                // of the boards; the same on all ranks between operations
  std::vector<std::byte> scratch;         // accumulators of one round
};

/// How an executor reaches its group.
class Host {
 public:
  virtual ~Host() = default;
  virtual Status need_links() = 0;   ///< fills in Lanes::links, in, out
  virtual Status need_boards() = 0;  ///< fills in Lanes::boards, board, known_done
  virtual Waiter& waiter() = 0;
  /// A peer's header shows another operation: finds out who disagrees and fails the group.
  virtual Status disagreement(int with, std::uint64_t seq, std::uint64_t signature) = 0;
  virtual int world_rank(int rank) const = 0;
};

class HostExecutor {
 public:
  HostExecutor(Context& context, Host& host, Lanes& lanes, int rank, int size)
      : context_(context), host_(host), lanes_(lanes), rank_(rank), n_(size) {}

  /// Runs one operation to its end on this rank. `invalid` leaves the group usable (all ranks return it
  /// alike).
  Status run(const Operation&, const Choice&, std::uint64_t seq, std::uint64_t signature);

 private:
  static constexpr std::size_t kLine = 64;  // payloads are cut into whole lines
  struct Extent {
    std::size_t offset, count;  // elements
  };
  template <class Flow>
  Status run_flow(const Flow&, bool posted);
  Status hop(const flow::Step&);
  Status hop_link(const flow::Step&);
  Status hop_board(const flow::Step&);
  Status send_slot(const flow::Step&, Extent);
  static void place(void* to, const void* from, std::size_t bytes) {
    if (to != from && bytes > 0) std::memcpy(to, from, bytes);
  }
  Status ask_in_place(bool* all_registered);

  Extent in_extent(int chunk) const;
  Extent out_extent(int chunk) const;
  Extent piece_of(const std::vector<std::size_t>& offsets, const std::vector<std::size_t>& counts,
                  int chunk) const;
  const std::byte* in_at(Extent e) const {
    return static_cast<const std::byte*>(op_->in.data) + e.offset * elem_;
  }
  std::byte* out_at(Extent e) const { return static_cast<std::byte*>(op_->out.data) + e.offset * elem_; }
  /// Pipelined flows share one accumulator: they end one chunk before they begin the next
  /// (runtime/flow/traits.h).
  std::byte* acc_at(int chunk) {
    return lanes_.scratch.data() +
           (pipelined_ ? 0 : static_cast<std::size_t>(chunk)) * capacity_ * acc_bytes_;
  }

  Status open_page();
  void post_phase(int phase);
  Status wait_posted(int from, int phase);
  void end_round();
  Result<const std::byte*> posted_at(int from, const flow::Step&, Extent mine);
  Status await_input(LinkEnd&, int from, std::size_t bytes, std::size_t total);
  void plan_blocks();

  Context& context_;
  Host& host_;
  Lanes& lanes_;
  const int rank_, n_;

  const Operation* op_ = nullptr;
  kernels::Reduction reduction_;
  std::uint64_t seq_ = 0, signature_ = 0;
  std::size_t elem_ = 1, acc_bytes_ = 1;
  std::size_t capacity_ = 0;  // elements of one chunk in one round, at most
  std::size_t piece_ = 0;     // of the split round at hand
  std::size_t begin_ = 0, end_ = 0, total_ = 0;
  std::size_t round_index_ = 0;
  std::size_t parts_ = 1;  // into which a board page is cut
  bool page_open_ = false, by_reference_ = false, pipelined_ = false;
  std::vector<std::size_t> in_offsets_, in_counts_, out_offsets_, out_counts_;  // by block
  std::vector<Context::Resolved> inputs_, outputs_;                             // of all ranks, by reference
  std::vector<const void*> sources_;
  std::vector<Scalar> factors_;
};

}  // namespace ouro::rt
