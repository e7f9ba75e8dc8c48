// Inputs of checked runs and their expected results, by an oracle that shares no code with the library: exact
// integers and doubles, rounded once. Used by the measuring loop and by tests.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/types.h"
#include "tools/perf/collective.h"

namespace ouro::perf {

/// Buffers repeat a tile of this many elements. Prime, so that a chunk that is written to a wrong place
/// is detected.
inline constexpr std::size_t kTile = 4093;

/// The exact value of one element: `real` for floating-point types, `integer` for all others (uint64:
/// bit pattern).
struct Value {
  double real = 0;
  std::int64_t integer = 0;
};

/// Writes `v`, rounded to nearest even, as one element of type `t`; `to` has room for 8 bytes.
void encode(DType t, const Value& v, std::byte* to);

/// Input element `position` of `rank`. The values are so small that every order of summation gives the same
/// exact result.
Value input_value(DType, OpKind, int rank, int ranks, std::size_t position, std::uint64_t seed);
/// The reduction; for mulsum with the factor of `rank`.
ReduceOp reduction_of(OpKind, int rank);
/// The reduction, in rank order, of one element of each rank.
Value reduce_values(DType, OpKind, std::span<const Value> in);

/// kTile elements of one type, which repeat throughout a buffer.
class Tile {
 public:
  /// The input of `rank` for a reduction; without `op`, arbitrary bytes for a collective that only
  /// moves them.
  static Tile input(DType, const OpKind* op, int rank, int ranks, std::uint64_t seed);
  static Tile reduced(DType, OpKind op, int ranks, std::uint64_t seed);

  /// Fills `count` elements; the first one is tile element `start` modulo kTile.
  void fill(void* to, std::size_t count, std::size_t start) const;
  /// The number of the `count` elements that differ, compared bit for bit.
  std::size_t wrong(const void* from, std::size_t count, std::size_t start) const;

 private:
  std::size_t width_ = 1;
  std::vector<std::byte> bytes_;
};

/// A run of expected elements: `count` elements of the tile of rank `source` (-1: the reduced tile), from
/// element `start`.
struct Segment {
  int source = 0;
  std::size_t start = 0;
  std::size_t count = 0;
};
/// The expected output of `rank` after the collective. Empty: nothing is written there.
std::vector<Segment> expected(Kind, const Layout&, int rank, int ranks, int root);

}  // namespace ouro::perf
