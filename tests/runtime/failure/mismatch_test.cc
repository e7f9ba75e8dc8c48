// Ranks that disagree: every rank gets an error with both sides within the bound, and shrink() returns a
// working group.
#include <memory>

#include "runtime/context/own_records.h"
#include "runtime/health/replica.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

struct Buffers {
  std::vector<float> in = std::vector<float>(1 << 18), out = std::vector<float>(1 << 18);
  CView source(std::size_t n, DType t = DType::f32) const { return {in.data(), n, t}; }
  View sink(std::size_t n, DType t = DType::f32) { return {out.data(), n, t}; }
};
using Call = std::function<Status(Group&, Buffers&)>;

struct Case {
  const char* name;
  Call right, wrong;
  const char* said_right;
  const char* said_wrong;
  bool zero = false;  // the deviating rank passes nothing: its call may succeed, and its next call fails
};
std::ostream& operator<<(std::ostream& os, const Case& c) { return os << c.name; }

Call reduces(std::size_t n, DType t = DType::f32, ReduceOp op = ReduceOp::sum, const char* algorithm = "",
             Numerics numerics = Numerics::inherit) {
  return [=](Group& g, Buffers& b) {
    return all_reduce(g, b.source(n, t), b.sink(n, t), op, {.numerics = numerics, .algorithm = algorithm});
  };
}
Call broadcasts(std::size_t n, int root, const char* algorithm = "") {
  return [=](Group& g, Buffers& b) {
    return broadcast(g, b.source(n), b.sink(n), root, {.algorithm = algorithm});
  };
}
Call both(Call first, Call second) {
  return [=](Group& g, Buffers& b) {
    OURO_TRY(first(g, b));
    return second(g, b);
  };
}
Call times(int n, Call f) {
  return [=](Group& g, Buffers& b) {
    for (int i = 0; i < n; ++i) OURO_TRY(f(g, b));
    return Status();
  };
}
const Call kBarrier = [](Group& g, Buffers&) { return barrier(g); };
const Call kGather = [](Group& g, Buffers& b) { return all_gather(g, b.source(64), b.sink(64 * 4)); };
Call scatters(std::size_t n, int root) {
  return [=](Group& g, Buffers& b) { return scatter(g, b.source(4 * n), b.sink(n), root); };
}
Call reduces_to(int root, const char* algorithm = "") {
  return [=](Group& g, Buffers& b) {
    return reduce(g, b.source(512), b.sink(512), ReduceOp::sum, root, {.algorithm = algorithm});
  };
}
Call exchanges(
    std::size_t first) {  // what each rank sends to rank 0 (and rank 0 expects one element of each)
  return [=](Group& g, Buffers& b) {
    const auto n = static_cast<std::size_t>(g.size());
    std::vector<std::size_t> out(n, 1), in(n, 1);
    if (g.rank() != 0) out[0] = first;
    return all_to_all_v(g, b.source(n - 1 + out[0]), b.sink(n), out, in);
  };
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"count", reduces(256), reduces(257), "all_reduce(float, sum, count 256)",
       "all_reduce(float, sum, count 257)"},
      {"count_large", reduces(1 << 17), reduces((1 << 17) - 1), "count 131072", "count 131071"},
      {"count_across_algorithms", reduces(100), reduces(200'000), "count 100)", "count 200000)"},
      {"count_ring", reduces(256, DType::f32, ReduceOp::sum, "ring"),
       reduces(257, DType::f32, ReduceOp::sum, "ring"), "count 256, algorithm ring",
       "count 257, algorithm ring"},
      {"count_ring_large", reduces(200'000, DType::f32, ReduceOp::sum, "ring"),
       reduces(100'000, DType::f32, ReduceOp::sum, "ring"), "count 200000, algorithm ring",
       "count 100000, algorithm ring"},
      {"algorithm", reduces(256), reduces(256, DType::f32, ReduceOp::sum, "ring"), "count 256)",
       "algorithm ring"},
      {"dtype", reduces(256), reduces(256, DType::i32), "all_reduce(float, sum", "all_reduce(int32, sum"},
      {"dtype_ring", reduces(256, DType::f32, ReduceOp::sum, "ring"),
       reduces(256, DType::i32, ReduceOp::sum, "ring"), "all_reduce(float, sum", "all_reduce(int32, sum"},
      {"op", reduces(256), reduces(256, DType::f32, ReduceOp::max), "float, sum", "float, max"},
      {"numerics", reduces(256), reduces(256, DType::f32, ReduceOp::sum, "", Numerics::canonical),
       "count 256)", "count 256, canonical"},
      {"zero_against_n", reduces(256), reduces(0), "count 256", "count 0", true},
      {"zero_against_n_ring", reduces(256, DType::f32, ReduceOp::sum, "ring"),
       reduces(0, DType::f32, ReduceOp::sum, "ring"), "count 256", "count 0", true},
      {"collective", reduces(64), kGather, "all_reduce(float, sum, count 64)", "all_gather(float, count 64)"},
      {"barrier_against_reduce", reduces(64), kBarrier, "all_reduce(float", "barrier()"},
      {"order", both(reduces(64), kBarrier), both(kBarrier, reduces(64)), "all_reduce(float", "barrier()"},
      {"order_of_counts", both(reduces(64), reduces(32)), both(reduces(32), reduces(64)), "count 64",
       "count 32"},
      {"root", broadcasts(256, 1), broadcasts(256, 2), "root 1", "root 2"},
      {"root_of_reduce", reduces_to(1), reduces_to(2), "root 1", "root 2"},
      {"scatter_count", scatters(64, 1), scatters(65, 1), "count 64", "count 65"},
      {"root_ahead", times(6, broadcasts(256, 1)), both(times(2, broadcasts(256, 1)), broadcasts(257, 1)),
       "count 256", "count 257"},
      {"root_ahead_chain", times(6, broadcasts(256, 1, "chain")),
       both(times(2, broadcasts(256, 1, "chain")), broadcasts(257, 1, "chain")), "count 256", "count 257"},
      {"root_ahead_tree", times(6, broadcasts(256, 1, "tree")),
       both(times(2, broadcasts(256, 1, "tree")), broadcasts(257, 1, "tree")), "count 256", "count 257"},
  };
  return all;
}

class TimedMismatch : public testing::TestWithParam<std::tuple<Case, int>> {};

/// The first error: of the call, or, if this rank could finish it, of the barrier after it.
Status outcome(const Call& f, Group& g, Buffers& b) {
  Status s = f(g, b);
  return s.ok() ? barrier(g) : s;
}

TEST_P(TimedMismatch, EveryRankNamesTheOddRankAndShrinks) {
  Watchdog watchdog;
  const auto& [c, odd] = GetParam();
  auto contexts = thread_contexts(4);
  std::vector<Status> said(4);
  std::vector<std::int64_t> took(4);
  on_threads(4, [&, &c = c, odd = odd](int rank) {
    Group& g = contexts[static_cast<std::size_t>(rank)].world();
    ASSERT_TRUE(exact_all_reduce(g).ok());
    Buffers b;
    ASSERT_TRUE(barrier(g).ok());
    const auto i = static_cast<std::size_t>(rank);
    const std::int64_t start = now_ns();
    said[i] = outcome(rank == odd ? c.wrong : c.right, g, b);
    took[i] = now_ns() - start;
    ShrinkReport report;
    auto next = g.shrink(&report);
    ASSERT_TRUE(next.ok()) << next.status().message();
    EXPECT_EQ(next->size(), 4);
    EXPECT_EQ(next->generation(), 1u);
    EXPECT_TRUE(report.dead.empty());
    EXPECT_GE(report.resume_seq, 3u);
    for (std::size_t count : {1, 1000, 100'000}) EXPECT_TRUE(exact_all_reduce(*next, count).ok());
    EXPECT_TRUE(exact_all_reduce(*next, 1000, {.algorithm = "ring"}).ok());
  });
  for (std::size_t r = 0; r < 4; ++r) {
    EXPECT_THAT(said[r], Fails(Reason::mismatch, odd)) << "rank " << r;
    EXPECT_LT(std::chrono::nanoseconds(took[r]), kHardBound) << "rank " << r;
    EXPECT_TRUE(has(said[r].message(), c.said_right)) << said[r].message();
    EXPECT_TRUE(has(said[r].message(), c.said_wrong)) << said[r].message();
  }
}

INSTANTIATE_TEST_SUITE_P(, TimedMismatch, testing::Combine(testing::ValuesIn(cases()), testing::Values(0, 3)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_rank_" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(MismatchDetection, EvenSplitNamesBothSides) {
  Watchdog watchdog;
  auto contexts = thread_contexts(4);
  std::vector<Status> said(4);
  on_threads(4, [&](int rank) {
    Buffers b;
    said[static_cast<std::size_t>(rank)] =
        reduces(rank < 2 ? 8 : 9)(contexts[static_cast<std::size_t>(rank)].world(), b);
  });
  for (const Status& s : said) {
    EXPECT_THAT(s, Fails(Reason::mismatch, said[0].failure()->rank));
    EXPECT_TRUE(has(s.message(), "ranks {0,1} called")) << s.message();
    EXPECT_TRUE(has(s.message(), "ranks {2,3} called")) << s.message();
  }
}

TEST(TimedMismatchDetection, DifferentCountsOfAPairAreNamed) {
  Watchdog watchdog;
  auto contexts = thread_contexts(3);
  std::vector<Status> said(3);
  on_threads(3, [&](int rank) {
    Group& g = contexts[static_cast<std::size_t>(rank)].world();
    Buffers b;
    EXPECT_TRUE(exchanges(1)(g, b).ok());
    const std::int64_t start = now_ns();
    said[static_cast<std::size_t>(rank)] = outcome(exchanges(rank == 2 ? 2 : 1), g, b);
    EXPECT_LT(std::chrono::nanoseconds(now_ns() - start), kHardBound);
    auto next = g.shrink();
    ASSERT_TRUE(next.ok()) << next.status().message();
    EXPECT_TRUE(exact_all_reduce(*next).ok());
  });
  for (const Status& s : said) {
    EXPECT_THAT(s, Fails(Reason::mismatch, 2));
    EXPECT_TRUE(has(s.message(), "sends 2 elements where 1 are expected")) << s.message();
  }
}

/// Two roots wait for no other rank, and receivers wait for one of them: the next operation detects it.
TEST(TimedMismatchDetection, TwoRootsAreFoundByTheNextOperation) {
  Watchdog watchdog;
  auto contexts = thread_contexts(4);
  on_threads(4, [&](int rank) {
    Group& g = contexts[static_cast<std::size_t>(rank)].world();
    Buffers b;
    ASSERT_TRUE(exact_all_reduce(g).ok());
    (void)broadcasts(256, rank == 1 ? 1 : 0)(g, b);
    const Status s = outcome(reduces(64), g, b);
    EXPECT_THAT(s, Fails(Reason::mismatch, 1));
    EXPECT_TRUE(has(s.message(), "root 1") && has(s.message(), "root 0")) << s.message();
    auto next = g.shrink();
    ASSERT_TRUE(next.ok()) << next.status().message();
    EXPECT_TRUE(exact_all_reduce(*next).ok());
  });
}

/// The rank that disagrees is late: the bound counts from its arrival.
TEST(TimedMismatchDetection, BoundCountsFromTheArrivalOfALateRank) {
  Watchdog watchdog;
  auto contexts = thread_contexts(3);
  std::vector<std::int64_t> end(3);
  std::int64_t arrival = 0;
  on_threads(3, [&](int rank) {
    Buffers b;
    if (rank == 1) std::this_thread::sleep_for(300ms), arrival = now_ns();
    EXPECT_THAT(reduces(rank == 1 ? 5 : 6)(contexts[static_cast<std::size_t>(rank)].world(), b),
                Fails(Reason::mismatch, 1));
    end[static_cast<std::size_t>(rank)] = now_ns();
  });
  for (std::int64_t e : end) EXPECT_LT(std::chrono::nanoseconds(e - arrival), kHardBound);
}

/// A rank that has made as many groups as its page has records reuses the first record. Ranks of other hosts,
/// which read a replica, do not mistake entries of the first group for those of the new one.
TEST(MismatchDetection, ReusedGroupRecordIsNotConfusedWithTheOldGroup) {
  const auto page = std::make_unique<rt::ControlPage>(), copy = std::make_unique<rt::ControlPage>();
  rt::OwnRecords own(*page);
  rt::ReplicaPublisher publisher(*page);
  const auto publish = [&] {
    for (const wire::Note& note : publisher.changes()) ASSERT_TRUE(rt::apply(note, *copy).ok());
  };
  const auto of = [](std::uint64_t count) {
    return rt::Signature::of(Collective::all_reduce, DType::f32, OpKind::sum, 0, 0, 0, count);
  };
  rt::GroupRecord& first = **own.claim(1);
  for (std::uint64_t seq = 1; seq <= 3; ++seq) rt::enter(first, seq, of(4));
  publish();
  const rt::GroupRecord& seen = copy->groups[0];
  ASSERT_EQ(rt::entered_as(seen, 1), of(4));
  first.state.set(static_cast<std::uint32_t>(rt::GroupState::closed));
  std::uint64_t key = 2;
  for (;; ++key) {
    ASSERT_LE(key, rt::kRecords + 1u);
    rt::GroupRecord& r = **own.claim(key);
    if (&r == &first) break;
    r.state.set(static_cast<std::uint32_t>(rt::GroupState::closed));
  }
  publish();
  ASSERT_EQ(seen.key.get(), key);
  EXPECT_FALSE(rt::entered_as(seen, 1)) << rt::entered_as(seen, 1)->text();
  rt::enter(first, 1, of(8));
  publish();
  EXPECT_EQ(rt::entered_as(seen, 1), of(8));
  EXPECT_FALSE(rt::entered_as(seen, 2) || rt::entered_as(seen, 3)) << "of the group before";
}

}  // namespace
}  // namespace ouro::test
