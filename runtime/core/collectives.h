// The table of operations: shapes and owners of the buffers of each collective, terms of its result, accepted
// element types, counts, and how it works in place. Read by the checks of arguments, by plans, executors,
// device code, the verifier and the simulator. The C interface and libnccl size buffers by it, and
// tests/checks/doors.py compares the arguments of every interface with it. A new collective needs a row here.
#pragma once
#include <cstdint>

#include "runtime/core/hd.h"
#include "runtime/core/types.h"

namespace ouro {

/// X(collective, shape and owner of the input, shape and owner of the output, terms, elements, counts), in
/// the order of the enumerators. The values are explained in CollectiveTraits.
// clang-format off
#define OURO_COLLECTIVES(X)                                                    \
  X(none,           nothing, all,   nothing, all,   none,  any,         one)   \
  X(all_reduce,     region,  all,   region,  all,   ranks, any,         one)   \
  X(reduce_scatter, blocks,  all,   block,   all,   ranks, any,         lists) \
  X(all_gather,     block,   all,   blocks,  all,   none,  any,         lists) \
  X(broadcast,      region,  root,  region,  all,   none,  any,         one)   \
  X(reduce,         region,  all,   region,  root,  ranks, any,         one)   \
  X(gather,         block,   all,   blocks,  root,  none,  any,         one)   \
  X(scatter,        blocks,  root,  block,   all,   none,  any,         one)   \
  X(all_to_all,     blocks,  all,   blocks,  all,   none,  any,         lists) \
  X(barrier,        nothing, all,   nothing, all,   none,  any,         one)   \
  X(mix,            region,  all,   region,  all,   row,   wide_floats, one)
// clang-format on

struct CollectiveTraits {
  /// The buffer of a side, in units (unit_count of an operation): no buffer; one region, which flows cut as
  /// they like; one block, this rank's; one block per rank, consecutively.
  enum class Shape : std::uint8_t { nothing, region, block, blocks };
  /// The ranks on which a side has a buffer.
  enum class Owner : std::uint8_t { all, root };
  /// The terms that are reduced to a result: none; the inputs of all ranks; the inputs that this rank's row
  /// names, each with a weight. A collective with rows is a *neighbour collective*: rows are data of the call
  /// and differ from rank to rank, so that only the peers concerned know which ranks take part, and results
  /// differ between ranks.
  enum class Terms : std::uint8_t { none, ranks, row };
  /// The element types on which it is defined: all; floating-point types of 16 bits and more.
  enum class Elements : std::uint8_t { any, wide_floats };
  /// The counts of a call: one for all blocks; or, in the uneven form (all_gather_v, ...), also a list for
  /// each side with one block per rank, which holds the elements of each of its blocks.
  enum class Counts : std::uint8_t { one, lists };
  /// The memory that input and output may share; an operation in place shares exactly this. The same buffer;
  /// the output is block `rank` of the input, or the input is block `rank` of the output; none.
  enum class InPlace : std::uint8_t { same, block_of_in, block_of_out, none };

  struct Side {
    Shape shape = Shape::nothing;
    Owner owner = Owner::all;
    /// Whether this side has a buffer on `rank`.
    OURO_HD constexpr bool counts(int rank, int root) const { return owner == Owner::all || rank == root; }
    /// Whether this side has one block per rank.
    OURO_HD constexpr bool many() const { return shape == Shape::blocks; }
    /// Elements of this side if a region or block has `unit` elements.
    OURO_HD constexpr std::uint64_t elements(std::uint64_t unit, int ranks) const {
      if (shape == Shape::nothing) return 0;
      return many() ? unit * static_cast<std::uint64_t>(ranks) : unit;
    }
  };

  Side in, out;
  Terms terms = Terms::none;
  Elements elements = Elements::any;
  Counts counts = Counts::one;

  /// Whether the collective reduces, so that a reduction is part of its calls.
  OURO_HD constexpr bool reduces() const { return terms != Terms::none; }
  /// Whether every result is a reduction of the inputs of all ranks.
  OURO_HD constexpr bool reduces_all() const { return terms == Terms::ranks; }
  OURO_HD constexpr bool neighbours() const { return terms == Terms::row; }
  OURO_HD constexpr bool rooted() const { return in.owner == Owner::root || out.owner == Owner::root; }
  /// Whether the chunks of flows are blocks, not pieces of one region.
  OURO_HD constexpr bool blocks() const {
    return in.shape == Shape::block || in.shape == Shape::blocks || out.shape == Shape::block;
  }
  /// Whether any data moves.
  OURO_HD constexpr bool moves() const { return in.shape != Shape::nothing || out.shape != Shape::nothing; }
  /// Whether there is one block per rank on both sides, so that in the uneven form each rank has counts of
  /// its own. In other operations all ranks pass the same list.
  OURO_HD constexpr bool pairs() const { return in.many() && out.many(); }
  /// Uneven blocks of pairs share nothing: they move in order of arrival, so that one could be overwritten
  /// before it is sent.
  constexpr InPlace in_place(bool uneven) const {
    if (in.shape == out.shape) return uneven ? InPlace::none : InPlace::same;
    return in.many() ? InPlace::block_of_in : InPlace::block_of_out;
  }
  constexpr bool takes(DType t) const {
    return elements == Elements::any || (is_float(t) && size_of(t) >= 2);
  }
};

/// The row of a collective; for a value that is not a Collective, the row of `none`.
OURO_HD constexpr CollectiveTraits traits_of(Collective c) {
  using Traits = CollectiveTraits;
  switch (c) {
#define OURO_X(name, in, in_owner, out, out_owner, terms, elements, counts) \
  case Collective::name:                                                    \
    return {{Traits::Shape::in, Traits::Owner::in_owner},                   \
            {Traits::Shape::out, Traits::Owner::out_owner},                 \
            Traits::Terms::terms,                                           \
            Traits::Elements::elements,                                     \
            Traits::Counts::counts};
    OURO_COLLECTIVES(OURO_X)
#undef OURO_X
  }
  return {};
}

#define OURO_X(...) +1
static_assert(0 OURO_COLLECTIVES(OURO_X) == kCollectives, "a row for each collective");
#undef OURO_X

}  // namespace ouro
