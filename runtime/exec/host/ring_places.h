// RingPlaces: where posts are in the rings of staging buffers. Used by StagingRounds.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ouro::rt {

/// Assigns each round of an operation a place in the ring. Posts follow one another, also from operation to
/// operation; one that does not fit before the end begins at the start. All ranks run the same operations, so
/// they agree without communication.
class RingPlaces {
 public:
  /// `bytes`: of the ring, at least StagingView::least_ring(longest post of any operation).
  explicit RingPlaces(std::size_t bytes) : bytes_(bytes) {}
  /// Begins an operation of which each round takes `span` bytes; 0: it does not use the ring. The operation
  /// before has had `rounds` rounds.
  void begin(std::size_t span, std::uint64_t rounds) {
    if (span_ > 0 && rounds > 0) at_ = place(rounds - 1) + span_;
    span_ = span;
    if (span > 0) fit_ = (bytes_ - at_) / span;
  }
  bool used() const { return span_ > 0; }  ///< by the operation
  /// The first byte of the operation's i-th round. Precondition: used().
  std::size_t place(std::uint64_t i) const {
    return i < fit_ ? at_ + i * span_ : (i - fit_) % (bytes_ / span_) * span_;
  }

 private:
  const std::size_t bytes_;
  std::size_t span_ = 0;
  std::size_t at_ = 0;     // bytes before the operation's first post
  std::uint64_t fit_ = 0;  // rounds from there to the end
};

}  // namespace ouro::rt
