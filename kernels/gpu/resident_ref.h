// References by which ranks name their buffers to each other's resident kernels: the number of an allocation
// in a list that each rank keeps, and an offset. Used by resident.h and the resident path.
#pragma once
#include <cstddef>
#include <cstdint>

#include "runtime/core/hd.h"

namespace ouro::gpu {

/// A buffer as its owner names it: the number of the allocation in the high bits, the offset in bytes in
/// the low bits.
struct ResidentRef {
  static constexpr int kListed = 64;                         ///< allocations that a rank can list in a group
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};  ///< not every rank has mapped it
  static constexpr int kOffsetBits = 48;
  OURO_HD static constexpr std::uint64_t make(std::uint64_t number, std::uint64_t offset) {
    return number << kOffsetBits | offset;
  }
  OURO_HD static constexpr std::uint64_t number(std::uint64_t ref) { return ref >> kOffsetBits; }
  OURO_HD static constexpr std::uint64_t offset(std::uint64_t ref) {
    return ref & ((std::uint64_t{1} << kOffsetBits) - 1);
  }
};

/// The address at which an allocation of a peer is mapped for this rank's kernels; all zero: not mapped.
struct ResidentMapping {
  std::byte* at;
  std::uint64_t bytes;
};

/// A mapping that a launch adds to its rank's table.
struct ResidentEntry {
  ResidentMapping mapping;
  std::int32_t peer;
  std::uint32_t number;
};

}  // namespace ouro::gpu
