// The checks of arguments, rule by rule: the lengths of buffers, the lists of counts, operation in place.
#include "runtime/plan/operation.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

namespace ouro::rt {
namespace {

using Counts = std::vector<std::size_t>;

constexpr int kRanks = 3, kRoot = 1;
constexpr std::size_t kUnit = 4;

/// The lengths of the buffers of three ranks, written out by hand.
struct Lengths {
  Collective collective;
  std::size_t in, out;
  bool root_reads = false, root_writes = false;  ///< alone
};
constexpr Lengths kLengths[] = {
    {Collective::all_reduce, kUnit, kUnit},
    {Collective::reduce_scatter, 3 * kUnit, kUnit},
    {Collective::all_gather, kUnit, 3 * kUnit},
    {Collective::broadcast, kUnit, kUnit, true, false},
    {Collective::reduce, kUnit, kUnit, false, true},
    {Collective::gather, kUnit, 3 * kUnit, false, true},
    {Collective::scatter, 3 * kUnit, kUnit, true, false},
    {Collective::all_to_all, 3 * kUnit, 3 * kUnit},
    {Collective::mix, kUnit, kUnit},
};

/// Memory in which input and output are placed, `kCentre` elements from either end.
constexpr std::size_t kCentre = 64;
std::array<float, 2 * kCentre> g_memory;

/// The operation on a rank, with the output `at` elements behind the input.
Operation placed(Collective c, std::size_t in, std::size_t out, std::ptrdiff_t at) {
  Operation o;
  o.collective = c;
  o.in = CView(g_memory.data() + kCentre, in, DType::f32);
  o.out = View(g_memory.data() + static_cast<std::ptrdiff_t>(kCentre) + at, out, DType::f32);
  o.root = kRoot;
  if (c == Collective::mix) o.op = ReduceOp::premul(0.5);
  return o;
}
/// The same with two buffers that do not overlap.
Operation apart(Collective c, std::size_t in, std::size_t out) {
  static std::array<float, kCentre> other;
  Operation o = placed(c, in, out, 0);
  o.out.data = other.data();
  return o;
}

std::string text(const Operation& o, int rank) {
  const Status s = check(o, rank, kRanks);
  if (s.ok()) return "ok";
  return s.code() == Code::invalid ? s.failure()->text : "another class: " + s.message();
}

TEST(OperationLengths, MustFollowTheShapesOfTheCollective) {
  for (const Lengths& l : kLengths) {
    for (int rank = 0; rank < kRanks; ++rank) {
      SCOPED_TRACE(std::string(name(l.collective)) + " on rank " + std::to_string(rank));
      const bool reads = !l.root_reads || rank == kRoot, writes = !l.root_writes || rank == kRoot;
      EXPECT_EQ(text(apart(l.collective, l.in, l.out), rank), "ok");
      // One element more on a side is wrong if the other side says so, and irrelevant on a side that is not
      // used.
      const bool wrong = reads && writes;
      EXPECT_EQ(text(apart(l.collective, l.in + 1, l.out), rank) != "ok", wrong);
      EXPECT_EQ(text(apart(l.collective, l.in, l.out + 1), rank) != "ok", wrong);
      Operation null = apart(l.collective, l.in, l.out);
      null.in.data = nullptr;
      EXPECT_EQ(text(null, rank) != "ok", reads);
      null = apart(l.collective, l.in, l.out);
      null.out.data = nullptr;
      EXPECT_EQ(text(null, rank) != "ok", writes);
    }
  }
}

TEST(OperationLengths, WrongOnesAreRefusedWithTheRule) {
  const auto wrong = [](Collective c, std::size_t in, std::size_t out) {
    return text(apart(c, in, out), kRoot);
  };
  EXPECT_EQ(wrong(Collective::reduce, 4, 5),
            "reduce: output has 5 elements; expected 4 (as many as the input)");
  EXPECT_EQ(wrong(Collective::reduce_scatter, 13, 4),
            "reduce_scatter: input has 13 elements; expected 12 (ranks times the output)");
  EXPECT_EQ(wrong(Collective::scatter, 13, 4),
            "scatter: input has 13 elements; expected 12 (ranks times the output)");
  EXPECT_EQ(wrong(Collective::all_gather, 4, 13),
            "all_gather: output has 13 elements; expected 12 (ranks times the input)");
  EXPECT_EQ(wrong(Collective::gather, 4, 13),
            "gather: output has 13 elements; expected 12 (ranks times the input)");
  EXPECT_EQ(wrong(Collective::all_to_all, 12, 13),
            "all_to_all: output has 13 elements; expected 12 (as many as the input)");
  EXPECT_EQ(wrong(Collective::all_to_all, 13, 13),
            "all_to_all: 13 elements cannot be cut into 3 equal blocks");
}

TEST(OperationLengths, BlocksThatOverflowAnAddressAreRefused) {
  // Three blocks of the one have more than 2^64 bytes, of the other more than 2^63.
  for (const std::size_t long_block : {(std::size_t{1} << 63) - 1, std::size_t{1} << 62}) {
    for (const Collective c :
         {Collective::all_gather, Collective::gather, Collective::reduce_scatter, Collective::scatter}) {
      const bool gathers = c == Collective::all_gather || c == Collective::gather;
      Operation o = gathers ? apart(c, long_block, 12) : apart(c, 12, long_block);
      o.in.dtype = o.out.dtype = DType::u8;
      for (int rank = 0; rank < kRanks; ++rank)  // on all ranks, also on those that have the block alone
        EXPECT_EQ(text(o, rank), std::string(name(c)) + ": " + std::to_string(long_block) +
                                     " elements for each of 3 ranks overflow an address");
    }
  }
}

/// An operation with uneven blocks.
Operation uneven(Collective c, std::size_t in, std::size_t out, const Counts& in_counts,
                 const Counts& out_counts, std::ptrdiff_t at = -static_cast<std::ptrdiff_t>(kCentre)) {
  Operation o = placed(c, in, out, at);
  o.uneven = true;
  o.in_counts = in_counts;
  o.out_counts = out_counts;
  return o;
}

TEST(UnevenLengths, MustEqualTheOwnCountAndTheSumOfCounts) {
  const Counts none, counts = {2, 0, 3};
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::size_t own = counts[static_cast<std::size_t>(rank)];
    EXPECT_EQ(text(uneven(Collective::reduce_scatter, 5, own, counts, none), rank), "ok");
    EXPECT_EQ(text(uneven(Collective::all_gather, own, 5, none, counts), rank), "ok");
    EXPECT_EQ(text(uneven(Collective::reduce_scatter, 6, own, counts, none), rank),
              "reduce_scatter: input has 6 elements; expected 5 (sum of the counts)");
    EXPECT_EQ(text(uneven(Collective::all_gather, own, 4, none, counts), rank),
              "all_gather: output has 4 elements; expected 5 (sum of the counts)");
    const std::string mine =
        std::to_string(own + 1) + " elements; expected " + std::to_string(own) + " (this rank's count)";
    EXPECT_EQ(text(uneven(Collective::reduce_scatter, 5, own + 1, counts, none), rank),
              "reduce_scatter: output has " + mine);
    EXPECT_EQ(text(uneven(Collective::all_gather, own + 1, 5, none, counts), rank),
              "all_gather: input has " + mine);
  }
}

TEST(UnevenLengths, AllToAllChecksSendAndReceiveCounts) {
  const Counts sent = {1, 2, 3}, received = {4, 2, 0}, two = {1, 2};
  const auto c = Collective::all_to_all;
  EXPECT_EQ(text(uneven(c, 6, 6, sent, received), 1), "ok");
  EXPECT_EQ(text(uneven(c, 7, 6, sent, received), 1),
            "all_to_all: input has 7 elements; expected 6 (sum of the send counts)");
  EXPECT_EQ(text(uneven(c, 6, 7, sent, received), 1),
            "all_to_all: output has 7 elements; expected 6 (sum of the receive counts)");
  EXPECT_EQ(text(uneven(c, 6, 6, sent, received), 0),
            "all_to_all: this rank sends 1 elements to itself and expects 4");
  EXPECT_EQ(text(uneven(c, 3, 6, two, received), 1), "all_to_all: 2 send counts for 3 ranks");
  EXPECT_EQ(text(uneven(c, 6, 3, sent, two), 1), "all_to_all: 2 receive counts for 3 ranks");
}

TEST(UnevenLengths, OverflowingCountsAreRefused) {
  const Counts huge = {std::numeric_limits<std::size_t>::max(), 1, 0}, none, fine = {0, 0, 0};
  EXPECT_EQ(text(uneven(Collective::reduce_scatter, 0, 0, huge, none), 2),
            "reduce_scatter: the counts overflow");
  EXPECT_EQ(text(uneven(Collective::all_to_all, 0, 0, huge, fine), 2),
            "all_to_all: the send counts overflow");
  EXPECT_EQ(text(uneven(Collective::all_to_all, 0, 0, fine, huge), 2),
            "all_to_all: the receive counts overflow");
}

TEST(UnevenLengths, AreRefusedForCollectivesWithoutCounts) {
  const Counts counts = {4, 4, 4};
  for (const Lengths& l : kLengths) {
    const bool lists = l.collective == Collective::reduce_scatter || l.collective == Collective::all_gather ||
                       l.collective == Collective::all_to_all;
    Operation o = apart(l.collective, l.in, l.out);
    o.uneven = true;
    o.in_counts = o.out_counts = counts;
    EXPECT_EQ(text(o, kRoot),
              lists ? "ok" : std::string(name(l.collective)) + ": its blocks cannot be uneven");
  }
}

/// The distances from input to output, in elements, at which the two overlap and are accepted.
std::vector<std::ptrdiff_t> legal(const Operation& o, int rank) {
  std::vector<std::ptrdiff_t> found;
  for (std::ptrdiff_t at = -20; at <= 20; ++at) {
    Operation p = o;
    p.out.data = g_memory.data() + static_cast<std::ptrdiff_t>(kCentre) + at;
    const bool overlap =
        at < static_cast<std::ptrdiff_t>(o.in.count) && -at < static_cast<std::ptrdiff_t>(o.out.count);
    const std::string said = text(p, rank);
    if (!overlap || said != "ok") {
      EXPECT_EQ(said,
                overlap
                    ? std::string(name(o.collective)) +
                          ": input and output overlap; in place is legal only where they are the same memory"
                    : "ok")
          << at;
    } else {
      found.push_back(at);
    }
  }
  return found;
}

TEST(InPlace, IsTheSameBufferOrTheOwnBlock) {
  using Places = std::vector<std::ptrdiff_t>;
  for (const Lengths& l : kLengths) {
    for (int rank = 0; rank < kRanks; ++rank) {
      if ((l.root_reads || l.root_writes) && rank != kRoot) continue;
      SCOPED_TRACE(std::string(name(l.collective)) + " on rank " + std::to_string(rank));
      const std::ptrdiff_t block = rank * static_cast<std::ptrdiff_t>(kUnit);
      const std::ptrdiff_t at = l.in > l.out ? block : l.in < l.out ? -block : 0;
      EXPECT_EQ(legal(apart(l.collective, l.in, l.out), rank), Places{at});
    }
  }
}

TEST(InPlace, OfUnevenBlocksIsTheOwnBlockExceptForAllToAll) {
  using Places = std::vector<std::ptrdiff_t>;
  const Counts counts = {2, 4, 3}, none;
  const std::ptrdiff_t before[] = {0, 2, 6};
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::size_t own = counts[static_cast<std::size_t>(rank)];
    EXPECT_EQ(legal(uneven(Collective::reduce_scatter, 9, own, counts, none), rank), Places{before[rank]});
    EXPECT_EQ(legal(uneven(Collective::all_gather, own, 9, none, counts), rank), Places{-before[rank]});
    EXPECT_EQ(legal(uneven(Collective::all_to_all, 9, 9, counts, counts), rank), Places{});
  }
}

TEST(InPlace, IsNotCheckedOnRanksWithOneBuffer) {
  for (const Lengths& l : kLengths) {
    if (!l.root_reads && !l.root_writes) continue;
    EXPECT_EQ(text(placed(l.collective, l.in, l.out, 1), kRoot + 1), "ok") << name(l.collective);
  }
}

TEST(OperationWithoutBuffers, IsAcceptedOnlyForABarrier) {
  Operation o;
  o.collective = Collective::barrier;
  o.root = -5;  // not used
  EXPECT_EQ(text(o, 0), "ok");
  o.collective = Collective::none;
  EXPECT_EQ(text(o, 0), "no collective");
}

}  // namespace
}  // namespace ouro::rt
