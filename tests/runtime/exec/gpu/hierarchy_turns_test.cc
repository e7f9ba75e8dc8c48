// Several hosts with several GPUs each: the turns of operations on the path `hierarchy` within their group,
// what they allocate before and while they wait, and the results of errors. On emulated devices, on hosts
// that share no memory.
#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "runtime/exec/gpu/staged_cut.h"
#include "tests/runtime/exec/gpu/hierarchy.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

using rt::StagedCut;
using namespace std::chrono_literals;

constexpr std::size_t kCount = 100'000;  // floats; enough for this path

class GpuHierarchyTurns : public GpuHierarchy {
 protected:
  /// What each rank reports; a wait that cannot succeed ends within seconds.
  static std::string run(const Body& body) {
    InitOptions o = quick_options();
    o.deadline = 8s;
    return test::run(std::get<0>(GetParam()), kRanks, body, o);
  }
};
INSTANTIATE_TEST_SUITE_P(All, GpuHierarchyTurns,
                         testing::Values(std::tuple(Mode::threads, "2"), std::tuple(Mode::processes, "2")),
                         [](const auto& info) { return std::string(name(std::get<0>(info.param))); });

/// Without ranks that are threads: those cannot die alone, and memory is allocated for all of them
/// (docs/limits.md).
class GpuHierarchyTurnsOfProcesses : public GpuHierarchyTurns {};
INSTANTIATE_TEST_SUITE_P(All, GpuHierarchyTurnsOfProcesses, testing::Values(std::tuple(Mode::processes, "2")),
                         [](const auto&) { return "processes"; });

/// The memory and the stream of a rank.
struct Seat {
  Floats data;
  Stream stream;
  Status make(Context& c, std::size_t count = kCount) {
    OURO_TRY(data.make(c, count));
    OURO_TRY(data.fill(1));
    OURO_ASSIGN(stream, Stream::create(c.device()));
    return {};
  }
  Result<Work> reduce(Group& g) { return all_reduce(g, data.view(), data.view(), ReduceOp::max, stream); }
};

/// Calls return while a host is late: many small operations fit before a call has to wait.
TEST_P(GpuHierarchyTurns, CallsDoNotWaitForAHostThatIsLate) {
  const auto body = [](Context& c) -> std::string {
    Group& g = c.world();
    const int all[] = {0, 1, 2, 3};
    auto gate = c.group(all, "gate");
    OURO_RANK_OK(gate);
    Seat seat;
    OURO_RANK_OK(seat.make(c));
    if (g.rank() >= kMates) OURO_RANK_OK(barrier(*gate));
    std::vector<Work> works;
    for (int i = 0; i < 12; ++i) {
      auto w = seat.reduce(g);
      OURO_RANK_OK(w);
      works.push_back(*w);
    }
    if (g.rank() < kMates) OURO_RANK_OK(barrier(*gate));
    for (Work& w : works) OURO_RANK_OK(w.wait());
    OURO_EXPECT_ALL(seat.data, 1);
    return only_ran(g, "hierarchy");
  };
  ASSERT_EQ(run(body), "");
}

/// A mate that is late still maps the memory that this rank used for an earlier operation, even if a later
/// operation has needed more since.
TEST_P(GpuHierarchyTurns, OutgrownMemoryStaysAvailableToALateRank) {
  const ForcedPath path("hierarchy");
  give({}, 1);  // then operations take the leader's path
  const auto body = [](Context& c) -> std::string {
    Group& g = c.world();
    const int all[] = {0, 1, 2, 3};
    auto gate = c.group(all, "gate");
    OURO_RANK_OK(gate);
    Seat seat;
    OURO_RANK_OK(seat.make(c));
    View few = seat.data.view();
    few.count = 10;
    if (g.rank() % kMates == 1) OURO_RANK_OK(barrier(*gate));
    auto first = all_reduce(g, few, few, ReduceOp::max, seat.stream);
    OURO_RANK_OK(first);
    auto second = seat.reduce(g);
    OURO_RANK_OK(second);
    if (g.rank() % kMates == 0) OURO_RANK_OK(barrier(*gate));
    OURO_RANK_OK(first->wait());
    OURO_RANK_OK(second->wait());
    OURO_EXPECT_ALL(seat.data, 1);
    return only_ran(g, "hierarchy");
  };
  ASSERT_EQ(run(body), "");
}

/// An operation in a stream behind a staged one has not passed its turn, because the staged one has
/// not ended.
TEST_P(GpuHierarchyTurns, ResumePointIsTheFirstUnfinishedOperation) {
  const auto body = [](Context& c) -> std::string {
    Group& g = c.world();
    const int all[] = {0, 1, 2, 3};
    auto gate = c.group(all, "gate");
    OURO_RANK_OK(gate);
    Seat seat;
    OURO_RANK_OK(seat.make(c));
    View few = seat.data.view();
    few.count = 10;
    const auto to_last = [&] {  // over links with enough room, so the other ranks wait for nobody
      return reduce(g, few, few, ReduceOp::max, 3, seat.stream, {.algorithm = "chain"});
    };
    auto before = to_last();  // creates the links
    OURO_RANK_OK(before);
    OURO_RANK_OK(before->wait());
    const auto held = std::make_shared<std::atomic<bool>>(true);
    const std::shared_ptr<void> let_go(nullptr, [held](void*) { held->store(false); });
    if (g.rank() == 3)
      (void)seat.stream.run([held] {
        while (held->load()) std::this_thread::sleep_for(1ms);
        return Status();
      });
    auto first = to_last();
    OURO_RANK_OK(first);
    if (g.rank() == 3)
      OURO_RANK_OK(seat.reduce(g));
    else
      OURO_RANK_OK(first->wait());
    std::this_thread::sleep_for(200ms);  // time for the watch thread to run
    OURO_RANK_OK(barrier(*gate));
    if (g.rank() == 0) g.abort("enough");
    OURO_RANK_CHECK(eventually([&] { return !g.status().ok(); }), "rank {} has not heard", g.rank());
    held->store(false);
    ShrinkReport report;
    OURO_RANK_OK(g.shrink(&report));
    OURO_RANK_CHECK(report.resume_seq == 2, "{}", report.resume_seq);
    return "";
  };
  ASSERT_EQ(run(body), "");
}

/// A driver may wait for all work when it allocates memory, and some of that work waits for the other host.
TEST_P(GpuHierarchyTurnsOfProcesses, NothingIsAllocatedWhileTheOtherHostIsAwaited) {
  for (const int devices : {1, kRanks})
    for (const Collective of : {Collective::all_gather, Collective::all_reduce, Collective::broadcast}) {
      auto& harsh = give({.ipc = false, .harsh = {.allocation_waits = true, .patience = 500ms}}, devices);
      const auto body = [&harsh, of](Context& c) -> std::string {
        Group& g = c.world();
        Floats in, out;
        OURO_RANK_OK(in.make(c, kCount, From::driver));
        OURO_RANK_OK(in.fill(1));
        OURO_RANK_OK(out.make(c, kRanks * kCount, From::driver));
        View result = out.view();
        if (of != Collective::all_gather) result.count = kCount;
        OURO_RANK_OK(barrier(g));
        if (g.rank() >= kMates) std::this_thread::sleep_for(1500ms);
        OURO_RANK_OK(of == Collective::all_gather   ? all_gather(g, in.view(), result)
                     : of == Collective::all_reduce ? all_reduce(g, in.view(), result, ReduceOp::max)
                                                    : broadcast(g, in.view(), result, 0));
        OURO_RANK_CHECK(harsh.stalls() == 0, "{} on {} devices: something was made", name(of),
                        harsh.devices());
        return only_ran(g, "hierarchy");
      };
      ASSERT_EQ(run(body), "");
    }
}

/// OURO_FAULT counts the calls of the user, not their parts between hosts.
TEST_P(GpuHierarchyTurns, AFaultCountsAnOperationOnce) {
  setenv("OURO_FAULT", "error:rank=0,op=2", 1);
  const auto body = [](Context& c) -> std::string {
    Seat seat;
    OURO_RANK_OK(seat.make(c));
    Status said;
    for (int i = 0; i < 2 && said.ok(); ++i) {
      auto w = seat.reduce(c.world());
      said = w.ok() ? w->wait() : w.status();
    }
    // A rank that has not seen the end of the first operation by then gets the same error.
    OURO_RANK_CHECK(
        said.reason() == Reason::resource && said.failure()->rank == 0 && said.failure()->seq == 2, "{}",
        said.message());
    return "";
  };
  EXPECT_EQ(run(body), "");
  unsetenv("OURO_FAULT");
}

/// The other ranks wait for an operation that a rank has enqueued only in part, whatever error the driver
/// reports for the rest; so the group must fail.
TEST_P(GpuHierarchyTurns, PartlyEnqueuedOperationFailsTheGroup) {
  const auto body = [this](Context& c) -> std::string {
    Seat seat;
    OURO_RANK_OK(seat.make(c));
    if (c.rank() == 1) fake().fail_next(gpu::FakeOp::kernel, Reason::unsupported);
    auto w = seat.reduce(c.world());
    const Status said = w.ok() ? w->wait() : w.status();
    OURO_RANK_CHECK(said.reason() == Reason::device, "{}", said.message());
    Event mark;
    mark.record(seat.stream);
    OURO_RANK_OK(mark.synchronize(Milliseconds(20'000)));
    return "";
  };
  ASSERT_EQ(run(body), "");
}

/// Mates that disagree, with the streams of all others reaching the operation later or not, and hosts that
/// disagree: all ranks must report the mismatch for this call, and streams must continue.
TEST_P(GpuHierarchyTurns, DisagreementIsReportedOnAllRanks) {
  for (const auto& [mates, held] : {std::pair(true, false), {true, true}, {false, false}}) {
    const auto body = [mates = mates, held = held](Context& c) -> std::string {
      Group& g = c.world();
      const int two[] = {0, 1};
      Seat seat;
      OURO_RANK_OK(seat.make(c, 200'000));
      Result<Group> gate = g.rank() < kMates ? c.group(two, "gate") : Status(Reason::revoked, "");
      View mine = seat.data.view();
      if (mates ? g.rank() == 1 : g.rank() >= kMates) mine.count -= 2;
      if (held && g.rank() != 1)
        (void)seat.stream.run([] {
          std::this_thread::sleep_for(300ms);
          return Status();
        });
      if (held && g.rank() == 1) OURO_RANK_OK(barrier(*gate));
      auto w = all_reduce(g, mine, mine, ReduceOp::sum, seat.stream);
      if (held && g.rank() == 0) OURO_RANK_OK(barrier(*gate));
      const Status said = w.ok() ? w->wait() : w.status();
      OURO_RANK_CHECK(said.reason() == Reason::mismatch, "{}", said.message());
      OURO_RANK_CHECK(said.message().find("199998") != std::string::npos, "{}", said.message());
      Event mark;
      mark.record(seat.stream);
      OURO_RANK_OK(mark.synchronize(Milliseconds(20'000)));
      return "";
    };
    ASSERT_EQ(run(body), "") << mates << held;
  }
}

/// A rank dies between two pieces. Its mate, its partner and the rank that is neither must all learn of it;
/// the streams of all continue, and the three survivors continue without it, on the path for hosts of
/// unequal size.
TEST_P(GpuHierarchyTurnsOfProcesses, RankThatDiesBetweenPiecesDoesNotBlockSurvivors) {
  Watchdog watchdog;
  const UniqueId id = new_id();
  const std::string meeting =
      fmt::format("file:{}/ouro-hierarchy-{}", std::filesystem::temp_directory_path().string(), ::getpid());
  Processes ranks(kRanks, [&](int rank, Board& board) {
    InitOptions o = options(rank, kRanks, id);
    take_place(&o, rank, kRanks, meeting);
    auto joined = Context::create(o);
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    Floats v;
    ASSERT_TRUE(v.make(*joined, kMates * (StagedCut::kPiece / 4) * 4).ok());
    ASSERT_TRUE(v.fill(1).ok());
    auto s = Stream::create(joined->device());
    ASSERT_TRUE(s.ok());
    Crossed::seen().begin();
    board.stage[rank] = 1;
    if (rank == 3) Crossed::seen().die_at_up(2);
    auto w = all_reduce(joined->world(), v.view(), v.view(), ReduceOp::sum, *s);
    const Status said = w.ok() ? w->wait() : w.status();
    EXPECT_THAT(said, Fails(Reason::peer_dead, 3));
    Event mark;
    mark.record(*s);
    EXPECT_TRUE(mark.synchronize(20s).ok()) << "a stream waits on";
    auto rest = joined->world().shrink();
    ASSERT_TRUE(rest.ok()) << rest.status().message();
    ASSERT_TRUE(v.fill(static_cast<float>(1 + rank)).ok());
    EXPECT_TRUE(all_reduce(*rest, v.view(), v.view(), ReduceOp::sum).ok());
    EXPECT_EQ(v.expect(6), "");
    EXPECT_EQ(only_ran(*rest, "staged"), "");
    EXPECT_TRUE(rest->close().ok());
  });
  ASSERT_TRUE(ranks.all_reach(1));
  ranks.join({3});
  std::error_code ignored;
  std::filesystem::remove(meeting.substr(5), ignored);
}

}  // namespace
}  // namespace ouro::test
