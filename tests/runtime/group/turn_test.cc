// The life of an operation: each way in which a turn can end, and a turn that waits in a stream.
#include "runtime/group/turn.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "tests/runtime/group/access.h"
#include "tests/runtime/group/ranks.h"

namespace ouro::test {
namespace {

using rt::QueuedTurn;
using rt::Sequencer;
using rt::TestAccess;
using rt::Turn;

/// A group of one rank, whose turns nobody else takes.
class Turns : public testing::Test {
 protected:
  Turns() {
    auto made = Context::threads(1);
    EXPECT_TRUE(made.ok());
    context_ = std::move(made->front());
  }
  rt::Group& group() { return *context_.world().impl(); }
  Sequencer& sequencer() { return TestAccess::sequencer(group()); }
  Turn take(std::uint64_t many = 1) { return {sequencer(), sequencer().take_ticket(many), many}; }
  /// Whether an operation of the group ends well: all turns before it have been passed on.
  Status next() {
    const float in = 1;
    float out = 0;
    return all_reduce(context_.world(), CView(&in, 1, DType::f32), View(&out, 1, DType::f32));
  }
  rt::Plan plan() {
    rt::Plan plan;
    plan.op.collective = Collective::barrier;
    plan.idle = true;
    plan.table = TestAccess::table(group());
    return plan;
  }
  std::uint64_t completed() { return TestAccess::completed(group()); }

 private:
  Context context_;
};

/// Counts its calls, and ends as it is told to.
struct Counted {
  static constexpr bool kInStream = false;
  Status move(rt::InFlight&) {
    ++moved;
    if (throws) throw std::runtime_error("a carrier");
    return outcome;
  }
  Status damage(rt::InFlight&, Status request) { return request; }
  int moved = 0;
  bool throws = false;
  Status outcome = {};
};

TEST_F(Turns, LeavingPublishesTheEndAndPassesTheTurnOn) {
  const rt::Plan idle = plan();
  Turn turn = take();
  const std::uint64_t seq = turn.seq();
  ASSERT_TRUE(turn.enter(idle).ok());
  EXPECT_TRUE(turn.leave({}).ok());
  EXPECT_FALSE(turn) << "it has ended";
  EXPECT_EQ(completed(), seq);
  EXPECT_TRUE(next().ok());
}

TEST_F(Turns, DestroyingOneThatWasNotEnteredSkipsIt) {
  { const Turn one = take(); }
  { const Turn three = take(3); }
  EXPECT_TRUE(group().status().ok());
  EXPECT_TRUE(next().ok());
}

TEST_F(Turns, MovingFromOneEndsNothing) {
  Turn turn = take();
  {
    Turn other = std::move(turn);
    EXPECT_FALSE(turn);
    turn = std::move(other);
  }
  EXPECT_TRUE(turn);
  const rt::Plan idle = plan();
  ASSERT_TRUE(turn.enter(idle).ok());
  EXPECT_TRUE(turn.leave({}).ok());
  EXPECT_TRUE(next().ok());
}

TEST_F(Turns, DestroyingOneThatWasEnteredFailsTheGroupAndPassesTheTurnOn) {
  const rt::Plan idle = plan();
  {
    Turn turn = take();
    ASSERT_TRUE(turn.enter(idle).ok());
  }
  EXPECT_EQ(group().status().reason(), Reason::resource);
  EXPECT_EQ(next().reason(), Reason::resource) << "and waits for no turn";
}

TEST_F(Turns, ForfeitingFailsTheGroupWithTheGivenReason) {
  EXPECT_EQ(take(2).forfeit({Reason::device, "a stream failed"}).reason(), Reason::device);
  EXPECT_EQ(next().reason(), Reason::device);
}

TEST_F(Turns, AnErrorThatLeavesTheGroupUsableDoesNotFailIt) {
  rt::Plan moves = plan();
  moves.idle = false;
  Counted carrier{.outcome = invalid("a wrong argument")};
  EXPECT_EQ(take().carry(moves, carrier).reason(), Reason::invalid);
  EXPECT_EQ(carrier.moved, 1);
  EXPECT_TRUE(next().ok());
}

TEST_F(Turns, AnExceptionOfACarrierFailsTheGroup) {
  rt::Plan moves = plan();
  moves.idle = false;
  Counted carrier{.throws = true};
  EXPECT_EQ(take().carry(moves, carrier).reason(), Reason::resource);
  EXPECT_EQ(next().reason(), Reason::resource);
}

TEST_F(Turns, AnIdlePlanIsNotCarried) {
  const rt::Plan idle = plan();
  Counted carrier;
  EXPECT_TRUE(take().carry(idle, carrier).ok());
  EXPECT_EQ(carrier.moved, 0);
}

TEST_F(Turns, SplittingLeavesTheRestAsATurnOfItsOwn) {
  const rt::Plan idle = plan();
  Turn rest = take(3);
  const std::uint64_t seq = rest.seq();
  ASSERT_TRUE(rest.enter(idle).ok());
  EXPECT_TRUE(rest.split_first().leave({}).ok());
  EXPECT_EQ(rest.seq(), seq + 1);
  Counted carrier;
  EXPECT_TRUE(rest.split_first().carry(idle, carrier).ok());
  { const Turn last = rest.split_first(); }  // is skipped
  EXPECT_FALSE(rest);
  EXPECT_EQ(completed(), seq + 1);
  EXPECT_TRUE(next().ok());
}

TEST_F(Turns, AQueuedTurnIsClaimedOnce) {
  QueuedTurn queued;
  queued.hold(take());
  int calls = 0;
  EXPECT_TRUE(queued.claim([&](Turn) { return ++calls, Status(); }).ok());
  EXPECT_EQ(queued.claim([&](Turn) { return ++calls, Status(); }).reason(), Reason::revoked);
  queued.give_up({Reason::device, "too late"});
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(next().ok());
}

TEST_F(Turns, AQueuedTurnThatIsGivenUpFailsTheGroup) {
  QueuedTurn queued;
  queued.hold(take());
  queued.give_up({Reason::device, "the stream failed"});
  EXPECT_EQ(queued.claim([](Turn) { return Status(); }).reason(), Reason::revoked);
  EXPECT_EQ(next().reason(), Reason::device);
}

TEST_F(Turns, AQueuedTurnThatIsDestroyedUnclaimedFailsTheGroup) {
  {
    QueuedTurn queued;
    queued.hold(take());
  }
  EXPECT_EQ(next().reason(), Reason::revoked);
}

/// The stream and a failure reach a queued turn at the same time: one of them ends it, whichever it is.
TEST_F(Turns, ClaimAndGiveUpAtTheSameTimeEndAQueuedTurnOnce) {
  for (int round = 0; round < 2000 && group().status().ok(); ++round) {
    QueuedTurn queued;
    queued.hold(take());
    std::atomic<int> ready{0}, claimed{0};
    const auto meet = [&] {
      ++ready;
      while (ready < 2) std::this_thread::yield();
    };
    std::thread stream([&] {
      meet();
      (void)queued.claim([&](Turn) { return ++claimed, Status(); });
    });
    meet();
    queued.give_up({Reason::device, "the stream failed"});
    stream.join();
    EXPECT_EQ(claimed == 1, group().status().ok()) << "round " << round;
    EXPECT_FALSE(sequencer().busy());
  }
}

}  // namespace
}  // namespace ouro::test
