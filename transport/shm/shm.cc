// Layout of links and boards in a segment. See shm.h.
#include "transport/shm/shm.h"

#include <algorithm>

namespace ouro::transport {
namespace {

constexpr std::size_t kLinkBudget = std::size_t{32}
                                    << 20;  // bytes of all links of a group; slots shrink above it
constexpr std::uint32_t kSlots = 4, kMinSlotBytes = 1024;
constexpr std::size_t kBoardBudget = std::size_t{64} << 20;
constexpr std::size_t kMinPageBytes = 16 << 10;
constexpr std::size_t kNoteBudget = std::size_t{16} << 20,
                      kNoteBytes = 4096;  // of all notes, and of one at most

constexpr std::size_t round_up(std::size_t x, std::size_t to) { return (x + to - 1) / to * to; }

}  // namespace

// Segment: n*n pairs of counters (full, freed), n bells, n*n rings of slots. Link (from, to) has index
// from*n+to.
ShmLinkLayout ShmLinkLayout::of(int n, std::uint32_t slot_bytes) {
  const std::size_t links = static_cast<std::size_t>(n) * static_cast<std::size_t>(n);
  const std::size_t fair = kLinkBudget / (links * kSlots) / 64 * 64;
  const std::size_t slot = std::clamp(std::min<std::size_t>(round_up(slot_bytes, 64), fair),
                                      std::size_t{kMinSlotBytes}, std::size_t{1} << 24);
  const std::size_t counters = (2 * links + static_cast<std::size_t>(n)) * sizeof(Counter);
  return {static_cast<std::uint32_t>(slot), kSlots,
          round_up(counters + links * kSlots * (sizeof(SlotHeader) + slot), 4096)};
}

LinkView ShmLinks::link(int from, int to) const {
  const std::size_t links = static_cast<std::size_t>(n_) * static_cast<std::size_t>(n_);
  const std::size_t i =
      static_cast<std::size_t>(from) * static_cast<std::size_t>(n_) + static_cast<std::size_t>(to);
  auto* counters = reinterpret_cast<Counter*>(segment_->data());
  std::byte* slots = segment_->data() + (2 * links + static_cast<std::size_t>(n_)) * sizeof(Counter);
  const std::size_t ring = std::size_t{layout_.slot_count} * (sizeof(SlotHeader) + layout_.slot_bytes);
  return {slots + i * ring, layout_.slot_bytes, layout_.slot_count, counters + 2 * i, counters + 2 * i + 1};
}

Counter* ShmLinks::bell(int rank) const {
  const std::size_t links = static_cast<std::size_t>(n_) * static_cast<std::size_t>(n_);
  return reinterpret_cast<Counter*>(segment_->data()) + 2 * links + rank;
}

// Segment: a rank's block is its cards, its count of rounds, its sleepers, its mark of presence, then its
// notes and its pages on page boundaries.
namespace {
constexpr std::size_t kHeadBytes = round_up(BoardView::kCards * sizeof(Card) + 3 * sizeof(Counter), 4096);
}  // namespace

ShmBoardLayout ShmBoardLayout::of(int n, std::size_t page_bytes) {
  const auto ranks = static_cast<std::size_t>(n);
  const std::size_t fair = kBoardBudget / (ranks * BoardView::kPages) / 4096 * 4096;
  // A page is cut into up to n+1 pieces of at least a line each.
  const std::size_t least = std::max(kMinPageBytes, round_up((ranks + 1) * 128, 4096));
  const std::size_t page = std::max(least, std::min(round_up(page_bytes, 4096), fair));
  const std::size_t note =
      std::clamp(kNoteBudget / (ranks * BoardView::kCards) / 64 * 64, std::size_t{64}, kNoteBytes);
  return {page, note,
          ranks * (kHeadBytes + round_up(BoardView::kCards * note, 4096) + BoardView::kPages * page)};
}

BoardView ShmBoards::board(int rank) const {
  const std::size_t notes = round_up(BoardView::kCards * layout_.note_bytes, 4096);
  std::byte* block = segment_->data() + static_cast<std::size_t>(rank) *
                                            (kHeadBytes + notes + BoardView::kPages * layout_.page_bytes);
  auto* cards = reinterpret_cast<Card*>(block);
  auto* counters = reinterpret_cast<Counter*>(cards + BoardView::kCards);
  return {.pages = block + kHeadBytes + notes,
          .page_bytes = layout_.page_bytes,
          .note_bytes = layout_.note_bytes,
          .notes = block + kHeadBytes,
          .cards = cards,
          .done = counters,
          .sleepers = &counters[1].sleepers};
}

Counter* ShmBoards::present(int rank) const { return board(rank).done + 2; }

}  // namespace ouro::transport
