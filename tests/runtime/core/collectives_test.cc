// The table of collectives, compared with its meaning written out by hand.
#include "runtime/core/collectives.h"

#include <gtest/gtest.h>

#include <set>

namespace ouro {
namespace {

using enum Collective;
using Shape = CollectiveTraits::Shape;

std::set<Collective> everything() {
  std::set<Collective> all;
  for (int i = 0; i < kCollectives; ++i) all.insert(static_cast<Collective>(i));
  return all;
}

/// The collectives for which f holds.
template <class F>
std::set<Collective> those(F&& f) {
  std::set<Collective> found;
  for (const Collective c : everything())
    if (f(traits_of(c))) found.insert(c);
  return found;
}
using Set = std::set<Collective>;

TEST(CollectiveTraits, EachInputAndOutputHasItsShape) {
  const auto in = [](Shape s) { return those([&](auto t) { return t.in.shape == s; }); };
  const auto out = [](Shape s) { return those([&](auto t) { return t.out.shape == s; }); };
  EXPECT_EQ(in(Shape::nothing), (Set{none, barrier}));
  EXPECT_EQ(out(Shape::nothing), (Set{none, barrier}));
  EXPECT_EQ(in(Shape::region), (Set{all_reduce, broadcast, reduce, mix}));
  EXPECT_EQ(out(Shape::region), (Set{all_reduce, broadcast, reduce, mix}));
  EXPECT_EQ(in(Shape::block), (Set{all_gather, gather}));
  EXPECT_EQ(out(Shape::block), (Set{reduce_scatter, scatter}));
  EXPECT_EQ(in(Shape::blocks), (Set{reduce_scatter, scatter, all_to_all}));
  EXPECT_EQ(out(Shape::blocks), (Set{all_gather, gather, all_to_all}));
  EXPECT_EQ(those([](auto t) { return t.blocks(); }),
            (Set{reduce_scatter, all_gather, gather, scatter, all_to_all}));
  EXPECT_EQ(those([](auto t) { return !t.moves(); }), (Set{none, barrier}));
}

TEST(CollectiveTraits, OnlyRootedCollectivesHaveABufferAtTheRootAlone) {
  EXPECT_EQ(those([](auto t) { return !t.in.counts(1, 2); }), (Set{broadcast, scatter}));
  EXPECT_EQ(those([](auto t) { return !t.out.counts(1, 2); }), (Set{reduce, gather}));
  EXPECT_EQ(those([](auto t) { return t.rooted(); }), (Set{broadcast, scatter, reduce, gather}));
  EXPECT_EQ(those([](auto t) { return t.in.counts(2, 2) && t.out.counts(2, 2); }), everything());
}

TEST(CollectiveTraits, ReducingAndNeighbourCollectivesAreMarked) {
  EXPECT_EQ(those([](auto t) { return t.reduces(); }), (Set{all_reduce, reduce, reduce_scatter, mix}));
  EXPECT_EQ(those([](auto t) { return t.reduces_all(); }), (Set{all_reduce, reduce, reduce_scatter}));
  EXPECT_EQ(those([](auto t) { return t.neighbours(); }), (Set{mix}));
}

TEST(CollectiveTraits, OnlyMixLimitsTheElementTypes) {
  Set picky;
  for (const Collective c : everything()) {
    std::set<DType> taken;
    for (int t = 0; t < kDTypes; ++t)
      if (traits_of(c).takes(static_cast<DType>(t))) taken.insert(static_cast<DType>(t));
    if (taken.size() == static_cast<std::size_t>(kDTypes)) continue;
    picky.insert(c);
    EXPECT_EQ(taken, (std::set<DType>{DType::f16, DType::f32, DType::f64, DType::bf16})) << name(c);
  }
  EXPECT_EQ(picky, (Set{mix}));
}

TEST(CollectiveTraits, OnlyThreeCollectivesTakeListsOfCounts) {
  EXPECT_EQ(those([](auto t) { return t.counts == CollectiveTraits::Counts::lists; }),
            (Set{reduce_scatter, all_gather, all_to_all}));
  EXPECT_EQ(those([](auto t) { return t.pairs(); }), (Set{all_to_all}));
}

TEST(CollectiveTraits, InPlaceMeansTheSameBufferOrTheOwnBlock) {
  using InPlace = CollectiveTraits::InPlace;
  const auto at = [](InPlace p, bool uneven) {
    return those([=](auto t) { return t.moves() && t.in_place(uneven) == p; });
  };
  EXPECT_EQ(at(InPlace::same, false), (Set{all_reduce, broadcast, reduce, all_to_all, mix}));
  for (const bool uneven : {false, true}) {
    EXPECT_EQ(at(InPlace::block_of_in, uneven), (Set{reduce_scatter, scatter}));
    EXPECT_EQ(at(InPlace::block_of_out, uneven), (Set{all_gather, gather}));
  }
  EXPECT_EQ(traits_of(all_to_all).in_place(true), InPlace::none);
}

TEST(CollectiveTraits, ElementCountsFollowFromTheShape) {
  for (const Collective c : everything()) {
    const auto in = traits_of(c).in, out = traits_of(c).out;
    EXPECT_EQ(in.elements(7, 3), in.shape == Shape::nothing  ? 0u
                                 : in.shape == Shape::blocks ? 21u
                                                             : 7u)
        << name(c);
    EXPECT_EQ(out.elements(7, 3), out.shape == Shape::nothing  ? 0u
                                  : out.shape == Shape::blocks ? 21u
                                                               : 7u)
        << name(c);
  }
  EXPECT_FALSE(traits_of(static_cast<Collective>(kCollectives)).moves());  // not a collective
}

}  // namespace
}  // namespace ouro
