// The simulator against closed formulas, and representatives against the simulation of every rank.
#include "tools/sim/predict.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "runtime/core/collectives.h"

namespace ouro::sim {
namespace {

using flow::Algorithm;

/// Round numbers for readable formulas: alpha 1 ms, 1 GB/s, reductions at 4 GB/s.
Cluster plain(int ranks_per_node = 0) {
  Cluster c;
  c.name = "plain";
  c.ranks_per_node = ranks_per_node;
  c.intra = {1e-3, 0, 1e-9};
  c.inter = {5e-3, 1e-5, 2e-9};
  c.staging = {2e-3, 0, 0.5e-9};
  c.gamma = 0.25e-9;
  c.slots = 4;
  c.slot_bytes = 1e12;
  return c;
}

Job job(Collective c, Algorithm a, int ranks, double bytes) {
  return {.collective = c, .algorithm = a, .ranks = ranks, .bytes = bytes};
}

double seconds(const Cluster& cluster, const Job& j, Method method = Method::full) {
  const Result<Prediction> p = predict(cluster, j, method);
  EXPECT_TRUE(p.ok()) << (p ? "" : p.status().failure()->text);
  return p ? p->seconds : -1;
}

void expect_near(double got, double want, double relative) { EXPECT_NEAR(got, want, want * relative); }

TEST(Formulas, RingAllReduceTakesTheTimeOfItsFormula) {
  const double n = 8, bytes = 8e6, block = bytes / n;
  const double want = 2 * (n - 1) * (1e-3 + block * 1e-9) + (n - 1) * block * 0.25e-9;
  expect_near(seconds(plain(), job(Collective::all_reduce, Algorithm::ring, 8, bytes)), want, 1e-9);
}

TEST(Formulas, TreeBroadcastOfOneSmallChunkIsLogarithmic) {
  for (const auto& [n, hops] : {std::pair{2, 1}, {8, 3}, {1024, 10}}) {
    expect_near(seconds(plain(), job(Collective::broadcast, Algorithm::tree, n, 1)), hops * 1e-3, 1e-3);
  }
}

TEST(Formulas, ChainBroadcastStreamsAtTheRateOfALink) {
  Cluster c = plain();
  const double bytes = 1e9, chunk = 5e6;  // 200 rounds: the steady state is extrapolated
  c.slot_bytes = chunk;
  const double want = 7 * 1e-3 + (bytes + 6 * chunk) * 1e-9;
  const Result<Prediction> p = predict(c, job(Collective::broadcast, Algorithm::chain, 8, bytes));
  ASSERT_TRUE(p.ok());
  EXPECT_TRUE(p->extrapolated);
  EXPECT_EQ(p->rounds, 200);
  expect_near(p->seconds, want, 1e-6);
  EXPECT_NEAR(p->busiest, bytes, 1);
  EXPECT_NEAR(p->intra, 7 * bytes, 1);
}

TEST(Formulas, OneShotAllReduceTakesTheTimeOfItsFormula) {
  const double n = 4, bytes = 1e6;
  const double want = bytes * 0.5e-9 + 2e-3 + (n - 1) * bytes * (0.5e-9 + 0.25e-9);
  expect_near(seconds(plain(), job(Collective::all_reduce, Algorithm::oneshot, 4, bytes)), want, 1e-9);
}

TEST(Formulas, DisseminationBarrierTakesLogarithmicRounds) {
  expect_near(seconds(plain(), job(Collective::barrier, Algorithm::dissemination, 9, 0)), 4e-3, 1e-9);
}

TEST(Formulas, TreeRootsSendOneCopyAfterAnother) {
  // Binomial tree over 4 ranks, one chunk: the root sends to 2, then to 1; 2 sends to 3.
  const double bytes = 1e7, t = bytes * 1e-9;
  expect_near(seconds(plain(), job(Collective::broadcast, Algorithm::tree, 4, bytes)), 2 * (1e-3 + t), 1e-9);
  expect_near(seconds(plain(), job(Collective::broadcast, Algorithm::tree, 2, bytes)), 1e-3 + t, 1e-9);
}

TEST(Formulas, WideSumsCostTwiceTheBytesOnTheWayUpOnly) {
  Job j = job(Collective::all_reduce, Algorithm::ring, 8, 8e6);
  const double block = 1e6;
  j.wide_ratio = 2;
  expect_near(seconds(plain(), j),
              7 * (1e-3 + 2 * block * 1e-9) + 7 * (1e-3 + block * 1e-9) + 7 * 2 * block * 0.25e-9, 1e-9);
}

TEST(Flows, EachIsPredictedAndNoneFasterThanItsBytesAllow) {
  int predicted = 0;
  flow::for_each_flow([&](Collective c, Algorithm a, auto flow) {
    if (flow.kSwitched) return;       // the clusters have no such switch
    if (traits_of(c).neighbours()) {  // a job does not describe its rows
      EXPECT_FALSE(predict(plain(), job(c, a, 4, 1e6)).ok());
      return;
    }
    for (const int n : {1, 2, 3, 4, 8, 13})
      for (const double slot : {1e12, 1e4}) {  // one round and many
        Cluster cluster = plain();
        cluster.slot_bytes = slot;
        Job j = job(c, a, n, c == Collective::barrier ? 0 : 1e6);
        j.root = n / 2;
        const Result<Prediction> p = predict(cluster, j, Method::full);
        ASSERT_TRUE(p.ok()) << name(c) << " " << flow::name(a) << " of " << n << ": "
                            << p.status().failure()->text;
        EXPECT_TRUE(std::isfinite(p->seconds));
        if (n > 1) {
          EXPECT_GE(p->seconds, 1e-3) << name(c) << " " << flow::name(a);  // alpha of the fastest wire
        }
        ++predicted;
      }
  });
  EXPECT_EQ(predicted, 50 * 12);
}

TEST(Formulas, PullReadsEachOthersBuffers) {
  // Publishes the location (nothing is copied), folds one block of all ranks, meets, then reads the
  // others' blocks.
  const double n = 4, bytes = 4e6, block = bytes / n;
  const double fold = 2e-3 + (n - 1) * block * (0.5e-9 + 0.25e-9), read = 2e-3 + (n - 1) * block * 0.5e-9;
  const double got = seconds(plain(), job(Collective::all_reduce, Algorithm::pull, 4, bytes));
  EXPECT_GE(got, fold + read);
  EXPECT_LE(got, fold + read + 4 * 2e-3);  // time of the meets
}

TEST(Traffic, BytesAddUpOverAllLinks) {
  const double bytes = 8e6;
  const Result<Prediction> ring = predict(plain(4), job(Collective::all_reduce, Algorithm::ring, 8, bytes));
  ASSERT_TRUE(ring.ok());
  EXPECT_NEAR(ring->intra + ring->inter, 2 * 7 * bytes, 1);
  EXPECT_NEAR(ring->inter, 2 * 2 * 7 * bytes / 8, 1);  // two of eight links cross
  EXPECT_NEAR(ring->busiest, 2 * 7 * bytes / 8, 1);
  const Result<Prediction> all =
      predict(plain(4), job(Collective::all_to_all, Algorithm::pairwise, 8, bytes));
  ASSERT_TRUE(all.ok());
  EXPECT_NEAR(all->intra, 2 * 4 * 3 * bytes / 8, 1);
  EXPECT_NEAR(all->inter, 8 * 4 * bytes / 8, 1);
}

TEST(Windows, FewerSlotsAreNeverFaster) {
  Cluster c = plain();
  c.slot_bytes = 1e4;
  for (const Algorithm a : {Algorithm::ring, Algorithm::chain, Algorithm::tree, Algorithm::halving}) {
    double last = 0;
    for (const int slots : {16, 4, 2}) {
      c.slots = slots;
      const double t = seconds(c, job(Collective::all_reduce, a, 8, 1e6));
      EXPECT_GE(t, last);
      last = t;
    }
  }
}

/// Four lanes there and back, each with an eighth of the data: one after the other, or at the same time on
/// ports of their own (which then also carry the traffic inside the node).
TEST(NodePorts, AreSharedByTheRanksOfANode) {
  Cluster c = plain(4);
  c.intra = c.staging = {0, 0, 1e-15};
  c.inter = {0, 0, 1e-9};
  c.gamma = 0;
  const Job lanes = job(Collective::all_reduce, Algorithm::hierarchy, 8, 8e9);
  EXPECT_LT(seconds(c, lanes), 0.51 * 2 * 4);
  c.node_port = true;
  expect_near(seconds(c, lanes), 2 * 4, 1e-4);
}

TEST(NodePorts, HierarchyCarriesTheLeastBytesAndNearsTheLimit) {
  for (const char* shape : {"2x4@1gbit", "7+8@10gbit", "1+5+2@1gbit", "4x8@25gbit"}) {
    const Result<Cluster> c = find_cluster(shape);
    ASSERT_TRUE(c.ok());
    const auto nodes = static_cast<double>(c->nodes.size());
    int n = 0;
    for (const int k : c->nodes) n += k;
    const double bytes = 64 << 20, least = 2 * (nodes - 1) / nodes * bytes;
    const Result<Prediction> p = predict(*c, job(Collective::all_reduce, Algorithm::hierarchy, n, bytes));
    const Result<Prediction> ring = predict(*c, job(Collective::all_reduce, Algorithm::ring, n, bytes));
    ASSERT_TRUE(p.ok() && ring.ok());
    EXPECT_NEAR(p->busiest_node, least, 1) << shape;
    EXPECT_NEAR(p->inter, nodes * least, 1) << shape;
    EXPECT_NEAR(ring->busiest_node, 2.0 * (n - 1) / n * bytes, 1) << shape;
    EXPECT_GT(p->seconds, least * c->inter.beta) << shape;
    EXPECT_LT(p->seconds, 1.1 * least * c->inter.beta) << shape;
    EXPECT_LT(p->seconds, ring->seconds) << shape;
  }
}

TEST(NodePorts, StagedAlgorithmsAreRefusedBetweenHosts) {
  const Result<Cluster> c = find_cluster("2x4@1gbit");
  ASSERT_TRUE(c.ok());
  EXPECT_FALSE(predict(*c, job(Collective::all_reduce, Algorithm::oneshot, 8, 8)).ok());
  // The cluster has only eight ranks.
  EXPECT_FALSE(predict(*c, job(Collective::all_reduce, Algorithm::ring, 9, 8)).ok());
  EXPECT_FALSE(predict(*c, job(Collective::all_to_all, Algorithm::hierarchy, 8, 8)).ok());
}

/// One message per rank on a tree of nodes: as many hops between nodes as the tree is deep, there and back.
TEST(Formulas, HierarchyTreeTakesTheDepthOfItsTree) {
  const double t = seconds(plain(4), job(Collective::all_reduce, Algorithm::hierarchy_tree, 16, 1));
  expect_near(t, 2 * 1e-3 + 2 * 2 * 5e-3, 0.01);
}

/// Representatives differ from the simulation of every rank by 1 % at most, on one node and on many.
TEST(Representatives, EqualTheFullSimulation) {
  int compared = 0;
  flow::for_each_flow([&](Collective c, Algorithm a, auto) {
    for (const int ranks_per_node : {0, 1, 4, 8}) {
      for (const int n : {8, 16, 24, 64, 72, 256, 1024}) {
        for (const double bytes : {1e3, 1e7}) {
          if (n == 1024 && (bytes < 1e7 || ranks_per_node == 1))
            continue;  // the large ones are tested only once
          const Cluster cluster = plain(ranks_per_node);
          const Result<Prediction> few = predict(cluster, job(c, a, n, bytes), Method::representative);
          if (!few) continue;
          const Result<Prediction> all = predict(cluster, job(c, a, n, bytes), Method::full);
          ASSERT_TRUE(all.ok()) << all.status().failure()->text;
          const std::string where = std::string(flow::name(a)) + " of collective " +
                                    std::to_string(static_cast<int>(c)) + ", n " + std::to_string(n) +
                                    ", node " + std::to_string(ranks_per_node);
          EXPECT_NEAR(few->seconds, all->seconds, 0.01 * all->seconds) << where;
          EXPECT_NEAR(few->intra, all->intra, 0.01 * all->intra + 1) << where;
          EXPECT_NEAR(few->inter, all->inter, 0.01 * all->inter + 1) << where;
          EXPECT_NEAR(few->busiest, all->busiest, 0.01 * all->busiest + 1e-6) << where;
          EXPECT_LE(few->simulated_ranks, all->simulated_ranks);
          ++compared;
        }
      }
    }
  });
  EXPECT_GT(compared, 400);
}

TEST(Representatives, RefuseJobsWhoseRanksAreNotAlike) {
  EXPECT_FALSE(
      predict(plain(), job(Collective::broadcast, Algorithm::chain, 8, 1), Method::representative).ok());
  EXPECT_FALSE(
      predict(plain(8), job(Collective::all_reduce, Algorithm::ring, 12, 1), Method::representative).ok());
  EXPECT_FALSE(
      predict(plain(6), job(Collective::all_reduce, Algorithm::halving, 12, 1), Method::representative).ok());
}

TEST(Rounds, ExtrapolatedSteadyStateEqualsAllRounds) {
  for (const Algorithm a :
       {Algorithm::ring, Algorithm::chain, Algorithm::tree, Algorithm::halving, Algorithm::direct}) {
    for (const int ranks_per_node : {0, 4}) {
      Cluster c = plain(ranks_per_node);
      c.slot_bytes = 1e6;
      const double set = a == Algorithm::chain || a == Algorithm::tree ? 1 : 8;
      const Job j = job(Collective::all_reduce, a, 8, 1000e6 * set);
      const Result<Prediction> part = predict(c, j), all = predict(c, j, Method::automatic, 2000);
      ASSERT_TRUE(part.ok() && all.ok());
      EXPECT_TRUE(part->extrapolated);
      EXPECT_FALSE(all->extrapolated);
      expect_near(part->seconds, all->seconds, 0.01);
      expect_near(part->intra, all->intra, 1e-6);
    }
  }
}

TEST(Scale, SixteenThousandRanksArePredictedInSeconds) {
  const auto start = std::chrono::steady_clock::now();
  const Result<Cluster> cluster = find_cluster("nvlink-ndr");
  ASSERT_TRUE(cluster.ok());
  for (const Algorithm a : {Algorithm::ring, Algorithm::tree, Algorithm::halving, Algorithm::direct}) {
    double last = 0;
    for (int n = 8; n <= 16384; n *= 2) {
      const double t = seconds(*cluster, job(Collective::all_reduce, a, n, 1 << 20), Method::automatic);
      EXPECT_GT(t, last) << flow::name(a) << " " << n;  // more ranks are never faster
      last = t;
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(1));
}

TEST(Errors, InvalidJobsReturnTypedErrors) {
  const Cluster c = plain();
  for (const Job& j :
       {job(Collective::barrier, Algorithm::ring, 8, 0), job(Collective::all_reduce, Algorithm::ring, 0, 1),
        job(Collective::all_reduce, Algorithm::ring, 8, -1),
        job(Collective::all_reduce, Algorithm::ring, kMaxRanks + 1, 1),
        job(Collective::all_to_all, Algorithm::pairwise, 16384, 1),
        Job{.collective = Collective::broadcast, .algorithm = Algorithm::tree, .ranks = 4, .root = 4}}) {
    const Result<Prediction> p = predict(c, j);
    ASSERT_FALSE(p.ok());
    EXPECT_EQ(p.status().reason(), Reason::invalid);
  }
}

TEST(Errors, OneSlotDeadlocks) {
  Cluster c = plain();
  c.slots = 1;
  const Result<Prediction> p = predict(c, job(Collective::all_reduce, Algorithm::ring, 4, 1));
  ASSERT_FALSE(p.ok());
  EXPECT_NE(p.status().failure()->text.find("deadlock"), std::string::npos);
}

}  // namespace
}  // namespace ouro::sim
