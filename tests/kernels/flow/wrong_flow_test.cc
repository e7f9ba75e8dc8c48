// Wrong flows written by hand: mistakes that a person would make. The verifier must refuse each, and for the
// right reason.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/flow/list.h"
#include "tests/kernels/flow/worlds.h"

namespace ouro::flow {
namespace {

using Steps = std::vector<Step>;

/// A flow given by a function; its flags are those of `Like`.
template <class Like, class F>
Program wrong_flow(Collective c, int n, const F& steps_of, int rounds = 3) {
  Program p = record(c, Like{}, n, n / 2, rounds);
  for (int r = 0; r < n; ++r) {
    Steps& steps = p.steps[static_cast<std::size_t>(r)];
    steps.clear();
    steps_of(Place{r, n, n / 2, rounds}, steps);
  }
  return p;
}

TEST(WrongFlowsAreRefused, RingThatSendsUnwidenedInputs) {
  EXPECT_NE(refusal(wrong_flow<RingAllReduce>(Collective::all_reduce, 4,
                                              [](Place at, Steps& out) {
                                                RingAllReduce{}(at, [&](Step s) { out.push_back(s); });
                                                out[0] = send(out[0].chunk, out[0].to);
                                              })),
            "");
}

TEST(WrongFlowsAreRefused, RingDeclaredCanonical) {
  Program p = record(Collective::all_reduce, RingAllReduce{}, 4, 0, 1);
  EXPECT_EQ(refusal(p), "");
  p.canonical = true;
  EXPECT_NE(refusal(p).find("association"), std::string::npos);
}

TEST(WrongFlowsAreRefused, TreeDeclaredCanonical) {
  Program p = record(Collective::reduce, TreeReduce{}, 4, 0, 1);
  p.canonical = true;
  EXPECT_NE(refusal(p).find("association"), std::string::npos);
}

/// Every rank sends its input to all others and adds in the order of arrival: different bits on every rank.
TEST(WrongFlowsAreRefused, EachRankAddsInItsOwnOrder) {
  const auto flow = [](Place at, Steps& out) {
    for (int d = 1; d < at.size; ++d) {
      out.push_back(send_widened(0, wrap(at.rank + d, at.size)));
      const int from = wrap(at.rank - d, at.size);
      out.push_back(d == 1 ? Step(accumulate_input(0, from)) : accumulate(0, from));
    }
    out.push_back(store(0));
  };
  Program p = wrong_flow<HalvingAllReduce>(Collective::all_reduce, 4, flow, 1);
  p.canonical = false;
  EXPECT_NE(refusal(p).find("association"), std::string::npos);
}

/// Adds rounded partial sums: the classic loss of bits with 16-bit floats.
TEST(WrongFlowsAreRefused, ReduceOfRoundedSums) {
  const auto flow = [](Place at, Steps& out) {
    if (at.rank == 0) out.push_back(send_widened(0, 1));
    if (at.rank == 1) out.push_back({kRecv | kPartialIn | kInput | kSend, 0, 0, 2});  // rounds here ...
    if (at.rank == 2) out.push_back({kRecv | kInput | kStore, 0, 1});                 // ... and again
  };
  Program p = wrong_flow<ChainReduce>(Collective::reduce, 3, flow, 1);
  p.root = 2;
  EXPECT_NE(refusal(p).find("narrow"), std::string::npos);
}

TEST(WrongFlowsAreRefused, ShiftedAllToAllInPlace) {
  const auto flow = [](Place at, Steps& out) {
    out.push_back(copy(at.rank));
    for (int d = 1; d < at.size; ++d) {
      const int to = wrap(at.rank + d, at.size), from = wrap(at.rank - d, at.size);
      out.push_back(send(to, to));
      out.push_back(recv(from, from));
    }
  };
  const Program p = wrong_flow<PairwiseAllToAll>(Collective::all_to_all, 4, flow);
  EXPECT_EQ(verify(p, {2, Aliasing::separate}), "");
  EXPECT_NE(verify(p, {2, Aliasing::exact}).find("overwritten"), std::string::npos);
}

TEST(WrongFlowsAreRefused, ZeroCopyAllToAllDeclaredInPlace) {
  Program p = record(Collective::all_to_all, ZeroCopyAllToAll{}, 4, 0, 1);
  p.in_place = true;
  EXPECT_NE(refusal(p), "");
}

/// One-shot by reference, in place: a rank overwrites the input that another rank is still adding up.
TEST(WrongFlowsAreRefused, ZeroCopyOneShotInPlace) {
  const auto flow = [](Place, Steps& out) {
    out.insert(out.end(), {refer(), reduce_posted(0, 0), barrier()});
  };
  Program p = wrong_flow<ZeroCopyReduce>(Collective::all_reduce, 3, flow);
  EXPECT_EQ(verify(p, {2, Aliasing::separate}), "");
  EXPECT_NE(verify(p, {2, Aliasing::exact}), "");
}

TEST(WrongFlowsAreRefused, ZeroCopyAllReduceWithoutBarrier) {
  const auto flow = [](Place at, Steps& out) {
    out.insert(out.end(), {refer(), reduce_multicast(at.rank, at.rank)});
  };
  EXPECT_NE(refusal(wrong_flow<ZeroCopyAllReduce>(Collective::all_reduce, 4, flow)).find("left"),
            std::string::npos);
}

TEST(WrongFlowsAreRefused, BarrierBeforeTheReads) {
  const auto flow = [](Place at, Steps& out) {
    out.insert(out.end(), {refer(), barrier(), reduce_posted(at.rank, at.rank)});
  };
  const Program p = wrong_flow<ZeroCopyReduceScatter>(Collective::reduce_scatter, 4, flow);
  EXPECT_NE(refusal(p).find("left"), std::string::npos);
}

TEST(WrongFlowsAreRefused, GatherThatCopiesLast) {
  const auto flow = [](Place at, Steps& out) {
    LinearGather{}(at, [&](Step s) { out.push_back(s); });
    if (at.rank == at.root) std::rotate(out.begin(), out.begin() + 1, out.end());
  };
  const Program p = wrong_flow<LinearGather>(Collective::gather, 4, flow);
  EXPECT_EQ(verify(p, {2, Aliasing::exact}), "");
  EXPECT_NE(verify(p, {2, Aliasing::first_block}), "");
}

TEST(WrongFlowsAreRefused, ScatterThatCopiesBeforeTheBarrier) {
  const auto flow = [](Place at, Steps& out) {
    ZeroCopyScatter{}(at, [&](Step s) { out.push_back(s); });
    if (at.rank == at.root) std::swap(out[out.size() - 1], out[out.size() - 2]);
  };
  const Program p = wrong_flow<ZeroCopyScatter>(Collective::scatter, 4, flow);
  EXPECT_EQ(verify(p, {2, Aliasing::separate}), "");
  EXPECT_NE(verify(p, {2, Aliasing::first_block}), "");
}

/// All sends of an exchange precede all receives: correct with many slots, deadlock with two.
TEST(WrongFlowsAreRefused, HalvingThatSendsAllFirst) {
  const auto flow = [](Place at, Steps& out) {
    HalvingAllReduce{}(at, [&](Step s) { out.push_back(s); });
    std::stable_partition(out.begin(), out.begin() + 8, [](const Step& s) { return (s.verb & kSend) != 0; });
  };
  const Program p = wrong_flow<HalvingAllReduce>(Collective::all_reduce, 8, flow, 1);
  EXPECT_EQ(verify(p, {8}), "");
  EXPECT_NE(verify(p, {2}).find("deadlock"), std::string::npos);
}

/// Sends one chunk further ahead on each hop than two slots can hold; three slots can.
TEST(WrongFlowsAreRefused, ChainWithALagOfFour) {
  const auto flow = [](Place at, Steps& out) {
    const int r = at.rank, last = at.size - 1;
    if (r == last) return ChainAllReduce{}(at, [&](Step s) { out.push_back(s); });
    pipeline(
        at.rounds, (kLagPerHop + 1) * (last - r),
        [&](int c) { out.push_back(r == 0 ? Step(send_widened(c, 1)) : reduce_forward(c, r - 1, r + 1)); },
        [&](int c) { out.push_back(r == 0 ? Step(recv(c, 1)) : forward(c, r + 1, r - 1)); });
  };
  const Program p = wrong_flow<ChainAllReduce>(Collective::all_reduce, 8, flow, 40);
  EXPECT_EQ(verify(p, {3}), "");
  EXPECT_NE(verify(p, {2}).find("deadlock"), std::string::npos);
}

/// All chunks go up before any comes down: correct only with few chunks.
TEST(WrongFlowsAreRefused, ChainWithTooMuchLag) {
  const auto flow = [](Place at, Steps& out) {
    ChainAllReduce{}(at, [&](Step s) { out.push_back(s); });
    if (at.rank + 1 < at.size) {
      std::stable_partition(out.begin(), out.end(),
                            [](const Step& s) { return (s.verb & kPartialOut) != 0; });
    }
  };
  EXPECT_EQ(refusal(wrong_flow<ChainAllReduce>(Collective::all_reduce, 4, flow, 2)), "");
  EXPECT_NE(refusal(wrong_flow<ChainAllReduce>(Collective::all_reduce, 4, flow, 40)).find("deadlock"),
            std::string::npos);
}

TEST(WrongFlowsAreRefused, RingWithOneHopTooMany) {
  const auto flow = [](Place at, Steps& out) {
    RingAllGather{}(at, [&](Step s) { out.push_back(s); });
    out.back() = forward(out.back().chunk, out.back().from, wrap(at.rank + 1, at.size));
  };
  EXPECT_NE(refusal(wrong_flow<RingAllGather>(Collective::all_gather, 4, flow)), "");
}

TEST(WrongFlowsAreRefused, BarrierWithOneExchangeTooFew) {
  const auto flow = [](Place at, Steps& out) {
    DisseminationBarrier{}(at, [&](Step s) { out.push_back(s); });
    out.resize(out.size() - 2);
  };
  EXPECT_NE(refusal(wrong_flow<DisseminationBarrier>(Collective::barrier, 5, flow)).find("too early"),
            std::string::npos);
}

TEST(WrongFlowsAreRefused, BarrierThatReachesOnlyTheNextRank) {
  const auto flow = [](Place at, Steps& out) {
    for (int d = 1; d < at.size; d *= 2) {
      out.push_back(send(0, wrap(at.rank + 1, at.size)));
      out.push_back(recv(0, wrap(at.rank - 1, at.size)));
    }
  };
  EXPECT_NE(refusal(wrong_flow<DisseminationBarrier>(Collective::barrier, 8, flow)).find("too early"),
            std::string::npos);
}

TEST(WrongFlowsAreRefused, RootThatOneRankSeesDifferently) {
  for_each_plain_flow([&](Collective c, Algorithm, auto flow) {
    if (c != Collective::broadcast && c != Collective::reduce && c != Collective::gather &&
        c != Collective::scatter) {
      return;
    }
    Program p = record(c, flow, 5, 2, 1);
    p.steps[4] = record(c, flow, 5, 4, 1).steps[4];
    EXPECT_NE(refusal(p), "");
  });
}

TEST(WrongFlowsAreRefused, StepsOfTwoRanksSwapped) {
  for_each_plain_flow([&](Collective c, Algorithm a, auto flow) {
    Program p = record(c, flow, 5, 2, 1);
    std::swap(p.steps[1], p.steps[2]);
    // In these, the rank that reduces (copies) a slice in place stores it everywhere; in the other two, all
    // ranks do the same.
    const bool alike =
        a == Algorithm::oneshot || (c == Collective::all_reduce && a == Algorithm::inlined) ||
        (c == Collective::barrier && a == Algorithm::direct) ||
        ((c == Collective::all_reduce || c == Collective::broadcast) && a == Algorithm::zerocopy);
    EXPECT_EQ(refusal(p) == "", alike) << name(a) << " " << static_cast<int>(c);
  });
}

TEST(WrongFlowsAreRefused, UndeclaredStaging) {
  Program p = record(Collective::all_reduce, DirectAllReduce{}, 3, 0, 1);
  p.staging = false;
  EXPECT_NE(refusal(p).find("undeclared"), std::string::npos);
  p = record(Collective::all_reduce, ZeroCopyAllReduce{}, 3, 0, 1);
  p.multicast = false;
  EXPECT_NE(refusal(p).find("undeclared"), std::string::npos);
}

/// A page is released while this rank still needs it: the next post may overwrite it.
TEST(WrongFlowsAreRefused, ReleaseBeforeTheLastRead) {
  const auto flow = [](Place at, Steps& out) {
    DirectAllReduce{}(at, [&](Step s) { out.push_back(s); });
    for (std::size_t i = 1; i < out.size(); ++i)
      if (out[i].verb & kRelease) std::swap(out[i], out[i - 1]);
  };
  EXPECT_NE(refusal(wrong_flow<DirectAllReduce>(Collective::all_reduce, 3, flow, 6)).find("released"),
            std::string::npos);
}

/// Posts further ahead than there are pages: all ranks wait for each other.
TEST(WrongFlowsAreRefused, OneShotThatPostsAllRoundsFirst) {
  const auto flow = [](Place at, Steps& out) {
    for (int i = 0; i < at.rounds; ++i) out.push_back(post(i, 1));
    for (int i = 0; i < at.rounds; ++i) out.insert(out.end(), {reduce_posted(i, i), release()});
  };
  EXPECT_EQ(refusal(wrong_flow<OneShotAllReduce>(Collective::all_reduce, 3, flow, kSlots)), "");
  EXPECT_NE(
      refusal(wrong_flow<OneShotAllReduce>(Collective::all_reduce, 3, flow, kSlots + 1)).find("deadlock"),
      std::string::npos);
}

TEST(WrongFlowsAreRefused, MulticastBeforeTheOutputsAreOpen) {
  const auto flow = [](Place at, Steps& out) {
    out.insert(out.end(), {multicast(at.rank), refer(), barrier()});
  };
  EXPECT_NE(refusal(wrong_flow<ZeroCopyAllGather>(Collective::all_gather, 3, flow)), "");
}

TEST(WrongFlowsAreRefused, ReductionThatReadsItsInputAfterTheStore) {
  const auto flow = [](Place at, Steps& out) {
    ChainBroadcast{}(at, [&](Step s) { out.push_back(s); });
    if (at.rank == at.root) std::swap(out[0], out[1]);
  };
  // The copy stores the same value, so this is harmless; a reduction that stores first is not.
  EXPECT_EQ(refusal(wrong_flow<ChainBroadcast>(Collective::broadcast, 3, flow)), "");
  const auto finish_first = [](Place at, Steps& out) {
    if (at.rank == 0) out = {send_widened(0, 1), recv(0, 1), send_widened(0, 1)};
    if (at.rank == 1) out = {reduce_keep_forward(0, 0, 0), recv_total(0, 0)};
  };
  EXPECT_NE(refusal(wrong_flow<OneShotAllReduce>(Collective::all_reduce, 2, finish_first, 1)), "");
}

}  // namespace
}  // namespace ouro::flow
