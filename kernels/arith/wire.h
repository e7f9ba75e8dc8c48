// Wire formats: how values travel between ranks, in slots of links and in signatures. Used by the executors
// of the host and of GPUs, and by kernels.
#pragma once
#include <cstddef>
#include <cstdint>

#include "runtime/core/hd.h"
#include "runtime/core/types.h"

namespace ouro::arith {

/// Bytes of one element of a partial sum. Its type is the element type, or fp32 for floats of 16 and 8 bits
/// (sum, prod, avg, premulsum), or an integer of 64 or 128 bits for avg of integers:
/// ReductionFor<>::Acc (reduce.h).
OURO_HD constexpr std::size_t accumulator_bytes(DType t, OpKind op) {
  if (op == OpKind::max || op == OpKind::min) return size_of(t);
  if (is_float(t)) return size_of(t) < 4 ? 4 : size_of(t);
  if (op == OpKind::avg) return size_of(t) < 8 ? 8 : 16;
  return size_of(t);
}

/// How values are encoded in a message.
enum class WireFormat : std::uint8_t {
  narrow,  ///< in the element type
  wide,    ///< in the accumulation type, not rounded
};

/// The wire format of an operation. A flow says only which messages carry partial sums (kPartialIn,
/// kPartialOut); all others carry inputs or results, which are narrow.
struct Wire {
  WireFormat partial = WireFormat::narrow;     ///< of partial sums
  std::uint32_t element = 1, accumulator = 1;  ///< bytes of one

  /// The format of an operation that reduces.
  static OURO_HD constexpr Wire reducing(DType t, OpKind op) {
    return {WireFormat::wide, static_cast<std::uint32_t>(size_of(t)),
            static_cast<std::uint32_t>(accumulator_bytes(t, op))};
  }
  /// The format of an operation that moves elements of so many bytes unchanged.
  static OURO_HD constexpr Wire moving(std::size_t element) {
    return {WireFormat::narrow, static_cast<std::uint32_t>(element), static_cast<std::uint32_t>(element)};
  }
  /// Bytes of `count` elements in a message.
  OURO_HD constexpr std::size_t bytes(bool is_partial, std::size_t count) const {
    return count * (is_partial && partial == WireFormat::wide ? accumulator : element);
  }
  /// The most elements that fit into a slot of so many bytes, whatever the message carries.
  OURO_HD constexpr std::size_t capacity(std::size_t slot_bytes) const {
    return slot_bytes / (element > accumulator ? element : accumulator);
  }
  /// The format as ranks compare it, below 16 (Signature::kWireShift).
  constexpr std::uint8_t code() const { return static_cast<std::uint8_t>(partial); }
};

}  // namespace ouro::arith
