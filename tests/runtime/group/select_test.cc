// Selection: which row of the table serves a call, what a caller or the job forces, and which outputs are
// written with non-temporal stores.
#include "runtime/plan/select.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/cost.h"

namespace ouro::rt {
namespace {

using flow::Algorithm;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr std::size_t kAny = ~std::size_t{0};

std::vector<Rule> parsed(const std::string& text) {
  auto rules = parse_rules(text);
  EXPECT_TRUE(rules.ok()) << text << ": " << rules.status().message();
  return rules.ok() ? *rules : std::vector<Rule>{};
}

/// A call of `bytes` bytes (of the region, or of one block) on distinct buffers of n ranks.
Operation operation(Collective c, std::size_t bytes, int n = 2) {
  alignas(8) static char in[1], out[1];
  const std::size_t count = bytes / 4, blocks = static_cast<std::size_t>(n);
  const bool in_blocks =
      c == Collective::reduce_scatter || c == Collective::scatter || c == Collective::all_to_all;
  const bool out_blocks =
      c == Collective::all_gather || c == Collective::gather || c == Collective::all_to_all;
  Operation o;
  o.collective = c;
  o.in = {in, in_blocks ? count * blocks : count, DType::f32};
  o.out = {out, out_blocks ? count * blocks : count, DType::f32};
  return o;
}

struct Case {
  std::string rows;  ///< before the built-in rows
  int ranks = 2;
  bool enough_cores = true;
  std::size_t stream_bytes = kAny;
  std::string job_algorithm = "";
  std::vector<Rule> more = {};  ///< before `rows`
  bool ring = false;
};

struct Chosen {
  Status status;
  Choice choice;
  std::string why;
};
Chosen choose(const Case& c, const Operation& o, bool canonical = false) {
  Rules rules = built_in_rules();
  const auto front = parsed(c.rows);
  rules.rows.insert(rules.rows.begin(), front.begin(), front.end());
  rules.rows.insert(rules.rows.begin(), c.more.begin(), c.more.end());
  const Selector selector(rules, c.ranks, 1, c.enough_cores, StreamLimits::uniform(c.stream_bytes),
                          {.ring = c.ring, .built_in = c.ring}, c.job_algorithm);
  Chosen chosen;
  chosen.status = selector.select(o, 0, canonical, &chosen.choice, &chosen.why);
  return chosen;
}
std::string chosen(const Case& c, const Operation& o, bool canonical = false) {
  const Chosen x = choose(c, o, canonical);
  return x.status.ok() ? std::string(flow::name(x.choice.algorithm)) : x.status.message();
}

TEST(Selection, TheFirstRowThatFitsWins) {
  const Case c{"all_reduce<=1K:tree,all_reduce<=4K:ring,all_reduce<=4K:chain"};
  EXPECT_EQ(chosen(c, operation(Collective::all_reduce, 4)), "tree");
  EXPECT_EQ(chosen(c, operation(Collective::all_reduce, 1024)), "tree");
  EXPECT_EQ(chosen(c, operation(Collective::all_reduce, 1028)), "ring");
  EXPECT_EQ(chosen(c, operation(Collective::all_reduce, 4096)), "ring");
  EXPECT_EQ(chosen(c, operation(Collective::all_reduce, 4100)),
            chosen({}, operation(Collective::all_reduce, 4100)));
  EXPECT_EQ(chosen(c, operation(Collective::all_gather, 4)),
            chosen({}, operation(Collective::all_gather, 4)));
}

TEST(Selection, SmallBuffersPostOnTheRing) {
  constexpr std::size_t MiB = 1 << 20;
  const auto ring = [](Collective op, std::size_t bytes, int ranks = 2, const char* rows = "") {
    const Chosen x = choose({.rows = rows, .ranks = ranks, .ring = true}, operation(op, bytes, ranks));
    EXPECT_TRUE(x.status.ok()) << x.status.message();
    EXPECT_EQ((x.choice.code() & Signature::kRing) != 0, x.choice.ring) << "ranks that differ notice it";
    EXPECT_EQ(x.why.find("use the ring") != std::string::npos, x.choice.ring) << x.why;
    return x.choice.ring;
  };
  EXPECT_TRUE(ring(Collective::all_reduce, MiB / 2)) << "1 MiB in and out";
  EXPECT_FALSE(ring(Collective::all_reduce, MiB / 2 + 4));
  EXPECT_TRUE(ring(Collective::all_gather, MiB / 3 / 4 * 4)) << "blocks: one in, two out";
  EXPECT_FALSE(ring(Collective::all_gather, MiB / 2));
  EXPECT_TRUE(ring(Collective::broadcast, 64 * MiB)) << "rooted";
  EXPECT_FALSE(ring(Collective::broadcast, 4096, kRingRanks + 1)) << "large groups have none";
  EXPECT_FALSE(ring(Collective::all_reduce, 4096, 2, "all_reduce:tree")) << "over links";
  EXPECT_FALSE(choose({}, operation(Collective::all_reduce, 4096)).choice.ring) << "it does not pay here";
  const auto built_in = [](Collective op, std::size_t bytes, bool pays = true) {
    return choose({.ring = pays}, operation(op, bytes)).choice.built_in;
  };
  EXPECT_TRUE(built_in(Collective::all_reduce, 4096)) << "on the ring";
  EXPECT_TRUE(built_in(Collective::all_reduce, MiB)) << "large buffers";
  EXPECT_FALSE(built_in(Collective::all_reduce, MiB, false));
}

TEST(Selection, RowSizesCountOneBlock) {
  const Case c{"all_gather<=1K:ring,reduce_scatter<=1K:ring,all_to_all<=1K:pairwise,gather<=1K:linear", 8};
  for (const auto& [collective, name] : {std::pair{Collective::all_gather, "ring"},
                                         {Collective::reduce_scatter, "ring"},
                                         {Collective::all_to_all, "pairwise"},
                                         {Collective::gather, "linear"}}) {
    EXPECT_EQ(chosen(c, operation(collective, 1024, 8)), name);
    EXPECT_EQ(chosen(c, operation(collective, 1028, 8)), chosen({"", 8}, operation(collective, 1028, 8)));
  }
}

TEST(Selection, RowsHoldForTheirRanksAndCores) {
  Rule row = parsed("all_reduce:ring")[0];
  row.min_ranks = 3, row.max_ranks = 5, row.cores = Cores::fewer;
  const Operation o = operation(Collective::all_reduce, 1000);
  const auto name = [&](int ranks, bool enough) { return chosen({"", ranks, enough, kAny, "", {row}}, o); };
  EXPECT_NE(name(2, false), "ring");
  EXPECT_EQ(name(3, false), "ring");
  EXPECT_EQ(name(5, false), "ring");
  EXPECT_NE(name(6, false), "ring");
  EXPECT_NE(name(4, true), "ring");
  row.cores = Cores::enough;
  EXPECT_EQ(name(4, true), "ring");
  EXPECT_NE(name(4, false), "ring");
  row.cores = Cores::any;
  EXPECT_EQ(name(4, true), "ring");
  EXPECT_EQ(name(4, false), "ring");
}

/// A rank whose call is not in place declines, which the others find out when they ask; the choice itself is
/// the same on all ranks.
TEST(Selection, RowsForCallsInPlaceAreDeclinedByOthers) {
  Rule row = parsed("all_reduce@registered:zerocopy").front();
  row.in_place = true;
  Operation o = operation(Collective::all_reduce, 1 << 20);
  Chosen apart = choose({.rows = "", .more = {row}}, o);
  o.out.data = const_cast<void*>(o.in.data);
  const Chosen in_place = choose({.rows = "", .more = {row}}, o);
  EXPECT_TRUE(apart.choice.try_zero_copy && apart.choice.declines_zero_copy) << apart.why;
  EXPECT_TRUE(in_place.choice.try_zero_copy && !in_place.choice.declines_zero_copy) << in_place.why;
  EXPECT_EQ(apart.choice.code(), in_place.choice.code());
}

/// Staged flows and flows by reference have limits of their own, and so have flows with a root.
TEST(Selection, StreamingLimitsDependOnTheKindOfFlow) {
  const StreamLimits limits = StreamLimits::of_caches(1 << 20);
  const Rules rules = built_in_rules();
  const Selector selector(rules, 2, 1, true, limits, {}, "");
  const auto streams = [&](Collective c, std::size_t bytes) {
    Choice choice;
    const Status s = selector.select(operation(c, bytes), 0, false, &choice);
    EXPECT_TRUE(s.ok()) << s.message();
    return std::pair(choice.streams, choice.streams_by_reference);
  };
  // Two ranks touch an input and an output each: four times the bytes.
  EXPECT_EQ(streams(Collective::all_reduce, 256 << 10), std::pair(false, false));
  EXPECT_EQ(streams(Collective::all_reduce, 512 << 10), std::pair(false, true));
  EXPECT_EQ(streams(Collective::all_reduce, 1 << 20), std::pair(false, true));
  EXPECT_EQ(streams(Collective::all_reduce, 2 << 20), std::pair(true, true));
  EXPECT_EQ(streams(Collective::reduce, 256 << 10), std::pair(false, false))
      << "its root writes what it has summed";
  EXPECT_EQ(streams(Collective::broadcast, 128 << 10), std::pair(false, false));
  EXPECT_EQ(streams(Collective::broadcast, 256 << 10), std::pair(true, true));
  const auto same = StreamLimits::uniform(77);
  EXPECT_EQ(std::tuple(same.staged, same.by_reference, same.from_root), std::tuple(77u, 77u, 77u));
}

TEST(Selection, RowsHoldForTheirBuffers) {
  const Operation small = operation(Collective::all_gather, 64),
                  large = operation(Collective::all_gather, 1 << 20);
  const auto in_place = [](const std::string& rows, const Operation& o) {
    return choose({rows}, o).choice.try_zero_copy;
  };
  EXPECT_TRUE(in_place("all_gather@registered:zerocopy", small));
  EXPECT_TRUE(in_place("all_gather:zerocopy", small));
  EXPECT_FALSE(in_place("all_gather@registered:direct", large));
  EXPECT_EQ(in_place("all_gather@private:ring", large), in_place("", large))
      << "private rows say nothing of registered buffers";
  EXPECT_EQ(chosen({"all_gather@private:ring"}, small), "ring");
  EXPECT_EQ(chosen({"all_gather@registered:ring,all_gather:direct"}, small), "direct");
  EXPECT_EQ(chosen({"all_gather@private:zerocopy,all_gather:ring"}, small), "ring")
      << "not possible with those";
}

TEST(Selection, ForcedAlgorithmBeatsRows) {
  Operation o = operation(Collective::all_reduce, 4096);
  o.algorithm = "chain";
  Chosen x = choose({"all_reduce:ring", 2, true, kAny, "tree"}, o);
  EXPECT_EQ(x.choice.algorithm, Algorithm::chain);
  EXPECT_TRUE(x.choice.forced);
  EXPECT_FALSE(x.choice.try_zero_copy);
  EXPECT_THAT(x.why, AllOf(StartsWith("chain"), HasSubstr("forced by the caller")));
  for (const char* wrong : {"rong", "pairwise", "inline"}) {  // 4096 bytes do not fit into an arrival record
    o.algorithm = wrong;
    x = choose({}, o);
    EXPECT_EQ(x.status.reason(), Reason::invalid);
    EXPECT_THAT(x.status.message(),
                AllOf(HasSubstr(wrong), HasSubstr("oneshot"), Not(HasSubstr("pairwise,"))))
        << wrong;
  }
}

TEST(Selection, TheJobsAlgorithmServesAllCollectivesThatHaveIt) {
  const Case c{"all_reduce:chain", 2, true, kAny, "ring"};
  for (const Collective has : {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather}) {
    const Chosen x = choose(c, operation(has, 4096));
    EXPECT_EQ(x.choice.algorithm, Algorithm::ring);
    EXPECT_TRUE(x.choice.forced);
    EXPECT_FALSE(x.choice.try_zero_copy);
    EXPECT_THAT(x.why, AllOf(StartsWith("ring"), HasSubstr("OURO_ALGO")));
  }
  const Chosen other = choose(c, operation(Collective::broadcast, 4096));
  EXPECT_EQ(other.choice.algorithm, choose({}, operation(Collective::broadcast, 4096)).choice.algorithm);
  EXPECT_FALSE(other.choice.forced);
  EXPECT_THAT(other.why, HasSubstr("OURO_ALGO=ring does not concern broadcast"));
  for (const char* by_reference : {"zerocopy", "pull"}) {
    const Case forced{"", 2, true, kAny, by_reference};
    EXPECT_EQ(chosen(forced, operation(Collective::all_reduce, 8)), by_reference);
    EXPECT_TRUE(choose(forced, operation(Collective::all_reduce, 8)).choice.forced);
  }
}

/// It must not be replaced silently by another algorithm.
TEST(Selection, TheJobsAlgorithmThatCannotServeACallIsAnError) {
  const auto refused = [](const char* algorithm, const Operation& o, bool canonical = false, int ranks = 2) {
    const Chosen x = choose({"", ranks, true, kAny, algorithm}, o, canonical);
    EXPECT_EQ(x.status.reason(), Reason::invalid)
        << flow::name(x.choice.algorithm) << " served " << algorithm;
    return x.status.message();
  };
  EXPECT_THAT(refused("ring", operation(Collective::all_reduce, 4096), true),
              AllOf(HasSubstr("all_reduce: OURO_ALGO=ring cannot serve this call: it does not reduce in rank "
                              "order (canonical); these can: "),
                    HasSubstr("chain")));
  EXPECT_THAT(refused("inline", operation(Collective::all_reduce, 60)), HasSubstr("more than 56 bytes"));
  EXPECT_EQ(chosen({"", 2, true, kAny, "inline"}, operation(Collective::all_reduce, 56)), "inline");
  Operation uneven = operation(Collective::all_to_all, 4096);
  const std::vector<std::size_t> counts = {1024, 1024};
  uneven.uneven = true, uneven.in_counts = uneven.out_counts = counts;
  EXPECT_THAT(refused("direct", uneven), HasSubstr("uneven; these can: pairwise"));
  for (const char* name : {"hierarchy", "hierarchy_tree"}) {
    EXPECT_THAT(refused(name, operation(Collective::all_reduce, 8)), HasSubstr("on one host"));
    EXPECT_NE(chosen({"", 1, true, kAny, name}, operation(Collective::all_reduce, 8, 1)), name)
        << "a rank that is alone needs none";
  }
  const Chosen far = [&] {
    const Rules rules = built_in_rules();
    Chosen x;
    x.status = Selector(rules, 4, 2, true, StreamLimits::uniform(kAny), {}, "direct")
                   .select(operation(Collective::all_reduce, 8, 4), 0, false, &x.choice, &x.why);
    return x;
  }();
  EXPECT_THAT(far.status.message(), HasSubstr("on several hosts, which share no staging buffers"));
}

TEST(Selection, RowsThatCannotServeArePassedOver) {
  EXPECT_EQ(chosen({"all_reduce:ring,all_reduce:chain"}, operation(Collective::all_reduce, 4096), true),
            "chain")
      << "a ring does not reduce in rank order";
  EXPECT_EQ(chosen({"all_gather:ring"}, operation(Collective::all_gather, 4096), true), "ring")
      << "nothing is reduced";
  EXPECT_EQ(chosen({"all_reduce:inline,all_reduce:tree"}, operation(Collective::all_reduce, 56)), "inline");
  EXPECT_EQ(chosen({"all_reduce:inline,all_reduce:tree"}, operation(Collective::all_reduce, 60)), "tree");

  Operation uneven = operation(Collective::all_to_all, 4096);
  const std::vector<std::size_t> counts = {1024, 1024};
  uneven.uneven = true, uneven.in_counts = uneven.out_counts = counts;
  EXPECT_EQ(chosen({"all_to_all:direct"}, operation(Collective::all_to_all, 4096)), "direct");
  EXPECT_EQ(chosen({"all_to_all:direct"}, uneven), "pairwise");
  EXPECT_FALSE(choose({"all_to_all@registered:zerocopy"}, uneven).choice.try_zero_copy);

  Operation aliased = operation(Collective::all_to_all, 4096);  // only zerocopy needs out of place
  aliased.in.data = aliased.out.data;
  aliased.algorithm = "zerocopy";
  EXPECT_EQ(choose({}, aliased).status.reason(), Reason::invalid);
  aliased.algorithm = "pairwise";
  EXPECT_EQ(chosen({}, aliased), "pairwise");
}

TEST(Selection, LargeOperationsAreStreamed) {
  // 4096 bytes in and out on 2 ranks: 16384 bytes are touched.
  const Operation o = operation(Collective::all_reduce, 4096);
  EXPECT_TRUE(choose({"", 2, true, 16384}, o).choice.streams);
  EXPECT_FALSE(choose({"", 2, true, 16385}, o).choice.streams);
  EXPECT_TRUE(choose({"", 4, true, 32768}, o).choice.streams) << "those of all ranks count";
  EXPECT_THAT(choose({"", 2, true, 16384}, o).why, HasSubstr("non-temporal stores, as 16384 bytes or more"));
  EXPECT_THAT(choose({"", 2, true, 16385}, o).why, Not(HasSubstr("non-temporal")));
  Operation aliased = o;
  aliased.out.data = const_cast<void*>(o.in.data);
  EXPECT_FALSE(choose({"", 2, true, 1}, aliased).choice.streams) << "its lines are in the cache";
}

}  // namespace
}  // namespace ouro::rt
