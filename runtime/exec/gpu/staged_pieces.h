// The staged path of large operations: copies down, the network and copies up overlap. Used by the
// staged path.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "runtime/exec/gpu/gpu_team.h"
#include "runtime/exec/gpu/staged_cut.h"
#include "runtime/plan/parts.h"

namespace ouro::rt {

/// The work on the pieces of an operation on the device. Each function is called once for a piece.
class PieceMover {
 public:
  virtual ~PieceMover() = default;
  /// Whether before() and after() do something, in the caller's stream.
  virtual bool in_stream() const { return false; }
  /// The work before the copy down of piece k, and after its copy up.
  virtual Status before(std::size_t, GpuStream&) { return {}; }
  virtual Status after(std::size_t, GpuStream&) { return {}; }
  /// Copies piece k to, or from, its slot in memory of the host. Not where this rank reads, or writes,
  /// nothing between hosts.
  virtual Status down(std::size_t k, std::byte* slot, const gpu::Stream&) = 0;
  virtual Status up(std::size_t k, const std::byte* slot, const gpu::Stream&) = 0;
};

/// Moves an operation of a group through the host piece by piece, on two streams of its own beside the
/// caller's: copies down on one, copies up on the other, the host's part on a thread of the caller's stream.
///
/// All device work of an operation is enqueued by its call, in an order in which it could run one after the
/// other if the host did its part in between: copies down to the first slots, then in turn the copy up of a
/// piece and the copy down that takes its slot. So streams that share a hardware queue hold up each other,
/// and never for good. The host's thread enqueues nothing: it waits for the word that says how many pieces
/// are down, and writes the one that says how many may go up. Where a mover works in the caller's stream, all
/// of a piece comes after that work for it, and that for the piece which takes its slot after it.
class StagedPieces {
 public:
  using RunOnHost = std::function<Status(const Operation&, const NextPart&)>;
  /// What operations under way take of the streams, which hold about a thousand operations: of a mover that
  /// works in the caller's stream the pieces; an operation of the staged path half of it.
  static constexpr std::size_t kRoom = 32;
  explicit StagedPieces(GpuTeam& team) : team_(team) {}

  /// Makes what is missing, and waits until there is as much room. Before anything is enqueued.
  Status prepare(std::size_t room);
  /// Enqueues the host's operation and what `mover` does around it. `in` and `out` have StagedCut::kSlots
  /// slots, or as many as there are pieces; they are one where the operation is in place on them. *outcome is
  /// the host's. After an error nothing of the operation runs for ever, and the group must fail: others may
  /// wait for what has been enqueued.
  Status enqueue(const Operation&, const StagedCut&, PieceMover& mover, std::byte* in, std::byte* out,
                 const std::shared_ptr<GpuStream>&, RunOnHost on_host, std::shared_ptr<WorkState>* outcome);
  /// The operation that prepare() made room for ends with `work`.
  void follow(std::shared_ptr<WorkState> work, std::size_t room) {
    under_way_.push_back({std::move(work), room});
    taken_ += room;
  }

 private:
  class Passage;
  Status enqueue_pieces(Passage&, PieceMover&, GpuStream&);
  Status copy_down(const Passage&, PieceMover&, std::size_t piece, GpuStream&);
  Status copy_up(const Passage&, PieceMover&, std::size_t piece, GpuStream&);

  GpuTeam& team_;
  // The streams are destroyed first, and with them their work on the rest.
  std::shared_ptr<void> words_;  // pinned: pieces that are down; pieces that may go up
  std::shared_ptr<PooledEvent> begun_, ended_, free_[StagedCut::kSlots], ready_;
  std::shared_ptr<GpuStream> down_, up_;
  std::uint32_t pieces_ = 0;  // of all operations so far; it wraps
  struct UnderWay {
    std::shared_ptr<WorkState> work;
    std::size_t room;
  };
  std::deque<UnderWay> under_way_;
  std::size_t taken_ = 0;  // of kRoom, by those
};

}  // namespace ouro::rt
