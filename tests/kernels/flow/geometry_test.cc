// The common geometry: for every size, pieces add up to the whole and do not overlap, and all users of the
// geometry cut alike.
#include "kernels/flow/geometry.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/flow/list.h"
#include "kernels/gpu/resident_cut.h"
#include "runtime/core/collectives.h"
#include "runtime/plan/partition.h"

namespace ouro::flow {
namespace {

constexpr std::uint64_t kSizes[] = {0,  1,  2,  3,  5,  7,   8,   9,   15,   16,
                                    17, 31, 63, 64, 65, 100, 127, 129, 1000, 1023};
constexpr std::uint64_t kCapacities[] = {1, 2, 3, 7, 8, 16, 33, 64, 1000, 5000};
constexpr std::uint64_t kLines[] = {1, 2, 8, 16, 64};

std::string text(const Cut& c, std::uint64_t line) {
  return "total " + std::to_string(c.total) + " chunks " + std::to_string(c.per_round) + " capacity " +
         std::to_string(c.capacity) + " line " + std::to_string(line) + (c.pipelined ? " pipelined" : "");
}

/// All extents in the order of rounds, and of chunks within a round.
template <class Of>
std::vector<Extent> all_of(const Cut& c, Of&& of) {
  std::vector<Extent> all;
  for (int k = 0; k < c.rounds; ++k)
    for (int i = 0; i < c.per_round; ++i) all.push_back(c.pipelined ? of(k * c.per_round + i, 0) : of(i, k));
  return all;
}

TEST(Geometry, PiecesOfARegionAreContiguousAndCoverIt) {
  for (const std::uint64_t total : kSizes)
    for (const int chunks : {1, 2, 3, 5, 8, 13})
      for (const std::uint64_t capacity : kCapacities)
        for (const std::uint64_t line : kLines)
          for (const bool pipelined : {false, true}) {
            Cut c{.pipelined = pipelined, .per_round = chunks, .total = total, .capacity = capacity};
            c.cut(line);
            SCOPED_TRACE(text(c, line));
            const std::uint64_t at_once = static_cast<std::uint64_t>(chunks) * capacity;
            ASSERT_EQ(c.rounds, total <= at_once ? 1 : static_cast<int>((total + at_once - 1) / at_once));
            std::uint64_t end = 0;
            for (const Extent& e : all_of(c, [&](int i, int k) { return c.region(i, k); })) {
              ASSERT_EQ(e.offset, end);
              ASSERT_LE(e.count, capacity);
              if (e.count > 0 && c.piece < capacity) {
                ASSERT_EQ(e.offset % line, 0u);
              }
              end += e.count;
            }
            ASSERT_EQ(end, total);
          }
}

/// One block of many, some of which are empty: the parts that the rounds have of it are the whole block,
/// in order.
TEST(Geometry, RoundsOfABlockAreContiguousAndCoverIt) {
  for (const std::uint64_t longest : kSizes)
    for (const int chunks : {1, 2, 5})
      for (const std::uint64_t capacity : kCapacities)
        for (const bool pipelined : {false, true}) {
          Cut c{.blocks = true,
                .pipelined = pipelined,
                .per_round = chunks,
                .total = longest,
                .capacity = capacity};
          c.cut(16);
          SCOPED_TRACE(text(c, 16));
          for (const std::uint64_t count : {longest, longest / 2, longest / 3, std::uint64_t{0}}) {
            const std::uint64_t begin = 11;
            const auto all = all_of(c, [&](int i, int k) { return c.block_part(begin, count, i, k); });
            for (int b = 0; b < chunks; ++b) {
              std::uint64_t end = begin;
              for (int k = 0; k < c.rounds; ++k) {
                const Extent e = all[static_cast<std::size_t>(k * chunks + b)];
                ASSERT_EQ(e.offset, end);
                ASSERT_LE(e.count, capacity);
                end += e.count;
              }
              ASSERT_EQ(end, begin + count);
            }
          }
        }
}

TEST(Geometry, PipelinedFlowsNumberTheChunksOfAllRounds) {
  Cut once{.blocks = true, .pipelined = false, .per_round = 5, .total = 1000, .capacity = 64};
  Cut all = once;
  all.pipelined = true;
  once.cut(8), all.cut(8);
  ASSERT_EQ(once.rounds, 16);
  ASSERT_EQ(all.rounds, 16);
  for (int k = 0; k < 16; ++k)
    for (int c = 0; c < 5; ++c) {
      const int chunk = 5 * k + c;
      EXPECT_EQ(once.round_of(c, k), k);
      EXPECT_EQ(all.round_of(chunk, 0), k);
      EXPECT_EQ(once.within_round(c), all.within_round(chunk));
      EXPECT_EQ(once.block_part(0, 990, c, k).offset, all.block_part(0, 990, chunk, 0).offset);
    }
}

TEST(Geometry, CapacityForOneRoundHoldsTheWholeOperation) {
  for (const std::uint64_t total : kSizes)
    for (const int chunks : {1, 2, 7, 64})
      for (const bool blocks : {false, true}) {
        Cut c{.blocks = blocks, .per_round = chunks, .total = total};
        c.capacity = Cut::in_one_round(blocks, total, chunks);
        c.cut(16);
        EXPECT_EQ(c.rounds, 1) << text(c, 16);
        EXPECT_GE(c.capacity, 1u);
      }
}

TEST(Geometry, SharesAreContiguousAndAligned) {
  for (const std::uint64_t count : kSizes)
    for (const int shares : {1, 2, 3, 8, 64})
      for (const std::uint64_t line : kLines) {
        std::uint64_t end = 0;
        for (int i = 0; i < shares; ++i) {
          const Extent e = share_of(count, shares, i, line);
          ASSERT_EQ(e.offset, end);
          if (e.count > 0) {
            ASSERT_EQ(e.offset % line, 0u);
          }
          end += e.count;
        }
        ASSERT_EQ(end, count);
      }
}

/// The reader finds the pieces in a post where the writer put them.
TEST(Geometry, ReadersFindThePiecesOfAPost) {
  for (int n = 2; n <= 64; ++n)
    for (int from = 0; from < n; ++from) {
      ASSERT_EQ(input_pieces(true, n), n - 1);
      for (int round = 0; round < 2; ++round)
        for (int j = 0; j < n - 1; ++j) {
          const int chunk = nth(round * n + wrap(from + 1, n), j, n);
          ASSERT_NE(chunk % n, from);
          ASSERT_EQ(piece_for(chunk % n, from, n), j);
        }
    }
  EXPECT_EQ(input_pieces(false, 7), 1);
}

rt::Operation operation(Collective c, int n, std::uint64_t unit) {
  const CollectiveTraits t = traits_of(c);
  rt::Operation o;
  o.collective = c;
  o.in.count = t.in.elements(unit, n);
  o.out.count = t.out.elements(unit, n);
  return o;
}

/// The blocks of each side fill its buffer, one after the other; on a side with one block it is this rank's.
TEST(Geometry, BlocksFillTheBuffers) {
  for (int i = 1; i < kCollectives; ++i) {
    const auto c = static_cast<Collective>(i);
    const CollectiveTraits t = traits_of(c);
    if (!t.blocks()) continue;
    for (const int n : {1, 2, 3, 5, 8})
      for (const std::uint64_t unit : {std::uint64_t{1}, std::uint64_t{17}, std::uint64_t{200}}) {
        const rt::Operation o = operation(c, n, unit);
        rt::Partition p(o, 0, n);
        for (const std::uint64_t capacity : {std::uint64_t{1}, std::uint64_t{16}, unit}) {
          p.cut(n, capacity, false, 16);
          for (const bool input : {true, false}) {
            SCOPED_TRACE(std::string(name(c)) + (input ? " input" : " output"));
            const CollectiveTraits::Side side = input ? t.in : t.out;
            for (int b = 0; b < n; ++b) {
              std::uint64_t end = side.many() ? static_cast<std::uint64_t>(b) * unit : 0;
              for (int k = 0; k < p.rounds(); ++k) {
                const Extent e = input ? p.in(b, k) : p.out(b, k);
                ASSERT_EQ(e.offset, end);
                end += e.count;
              }
              ASSERT_EQ(end, side.many() ? static_cast<std::uint64_t>(b + 1) * unit : unit);
            }
          }
        }
      }
  }
}

/// Uneven blocks follow each other, whatever their lengths.
TEST(Geometry, UnevenBlocksFillTheBuffers) {
  const std::vector<std::size_t> counts = {3, 0, 70, 1, 16};
  for (const Collective c : {Collective::reduce_scatter, Collective::all_gather, Collective::all_to_all}) {
    const CollectiveTraits t = traits_of(c);
    rt::Operation o;
    o.collective = c, o.uneven = true;
    if (t.in.many()) o.in_counts = counts;
    if (t.out.many()) o.out_counts = counts;
    rt::Partition p(o, 2, 5);
    ASSERT_EQ(p.longest(), 70u);
    p.cut(5, 16, true, 4);
    ASSERT_EQ(p.rounds(), 5);
    for (const bool input : {true, false}) {
      std::size_t before = 0;
      for (int b = 0; b < 5; ++b) {
        std::size_t end = (input ? t.in : t.out).many() ? before : 0, sum = 0;
        for (int k = 0; k < 5; ++k) {
          const Extent e = input ? p.in(5 * k + b, 0) : p.out(5 * k + b, 0);
          ASSERT_EQ(e.offset, end) << name(c);
          end += e.count, sum += e.count;
        }
        ASSERT_EQ(sum, counts[static_cast<std::size_t>(b)]) << name(c);
        before += sum;
      }
    }
  }
}

/// Host plans and device kernels cut the same operation into the same chunks.
TEST(Geometry, PlansAndKernelsCutIntoTheSameChunks) {
  int compared = 0;
  for_each_flow([&]<class Flow>(Collective c, Algorithm a, Flow) {
    if constexpr (!Flow::kStaging && kOnDevices<Flow>) {
      for (const int n : {2, 3, 5})
        for (const std::uint64_t unit : {1, 31, 1000, 5001}) {
          gpu::ResidentArgs args;
          args.layout.ranks = n;
          args.layout.slot_bytes = 2048;
          args.count = unit;
          args.rank = 1;
          gpu::ResidentCut device;
          device.cut(gpu::shape_of<Flow>(), Flow{}.chunks({1, n, 0, 1}), args, c, 0, 4, 4);
          rt::Partition host(operation(c, n, unit), 1, n);
          host.cut(Flow{}.chunks({1, n, 0, 1}), 2048 / 4, Flow::kPipelined, gpu::ResidentLayout::kLine / 4);
          if (!traits_of(c).moves()) continue;
          ASSERT_EQ(device.rounds, host.rounds());
          for (int k = 0; k < host.rounds(); ++k) {
            const int round = Flow::kPipelined ? 0 : k;
            device.turn = round;
            for (int i = 0; i < device.per_round; ++i) {
              const int chunk = Flow::kPipelined ? k * device.per_round + i : i;
              ASSERT_EQ(device.in(chunk).offset, host.in(chunk, round).offset) << name(c) << " " << name(a);
              ASSERT_EQ(device.in(chunk).count, host.in(chunk, round).count);
              ASSERT_EQ(device.out(chunk).offset, host.out(chunk, round).offset);
              ASSERT_EQ(device.out(chunk).count, host.out(chunk, round).count);
              ++compared;
            }
          }
        }
    }
  });
  EXPECT_GT(compared, 1000);
}

}  // namespace
}  // namespace ouro::flow
