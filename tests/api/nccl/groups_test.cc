// Groups of calls: what is deferred, what may be combined, what an error drops; messages.
#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "ranks.h"

namespace ouro::test {
namespace {

using ::testing::HasSubstr;

TEST(Group, NothingRunsBeforeTheOutermostEnd) {
  ncclComm_t comms[2];
  OURO_OK(ncclCommInitAll(comms, 2, nullptr));
  int in[2] = {3, 4}, out[2] = {0, 0};
  OURO_OK(ncclGroupStart());
  OURO_OK(ncclGroupStart());
  for (int r = 0; r < 2; ++r)
    OURO_OK(ncclAllReduce(&in[r], &out[r], 1, ncclInt32, ncclSum, comms[r], nullptr));
  OURO_OK(ncclGroupEnd());
  EXPECT_EQ(out[0] + out[1], 0);
  OURO_OK(ncclGroupEnd());
  EXPECT_EQ(out[0], 7);
  EXPECT_EQ(out[1], 7);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  for (auto c : comms) EXPECT_OK(ncclCommDestroy(c));
}

TEST(Group, ArgumentErrorIsReturnedAgainByGroupEndAndDropsAllCalls) {
  in_threads(2, [](int, ncclComm_t comm) {
    int in = 1, out = 0;
    OURO_OK(ncclGroupStart());
    OURO_OK(ncclAllReduce(&in, &out, 1, ncclInt32, ncclSum, comm, nullptr));
    EXPECT_EQ(ncclBroadcast(&in, &out, 1, ncclInt32, 2, comm, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
    EXPECT_EQ(out, 0);
    // The communicator is still usable.
    OURO_OK(ncclAllReduce(&in, &out, 1, ncclInt32, ncclSum, comm, nullptr));
    EXPECT_EQ(out, 2);
  });
}

TEST(Group, CreatingAndUsingCommunicatorsInOneGroupIsRefused) {
  in_threads(1, [](int, ncclComm_t comm) {
    int in = 1, out = 0;
    ncclUniqueId id;
    OURO_OK(ncclGetUniqueId(&id));
    ncclComm_t other = nullptr;
    OURO_OK(ncclGroupStart());
    EXPECT_OK(ncclCommInitRank(&other, 1, id, 0));
    EXPECT_OK(ncclAllReduce(&in, &out, 1, ncclInt32, ncclSum, comm, nullptr));
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    EXPECT_EQ(other, nullptr);
    EXPECT_EQ(out, 0);
  });
}

TEST(Group, BlockingAndNonBlockingCommunicatorsInOneGroupAreRefused) {
  in_threads(1, [](int, ncclComm_t comm) {
    ncclUniqueId id;
    OURO_OK(ncclGetUniqueId(&id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t other = nullptr;
    EXPECT_EQ(ncclCommInitRankConfig(&other, 1, id, 0, &config), ncclInProgress);
    EXPECT_EQ(settle(other), ncclSuccess);
    int in = 1, out = 0;
    OURO_OK(ncclGroupStart());
    EXPECT_OK(ncclAllReduce(&in, &out, 1, ncclInt32, ncclSum, comm, nullptr));
    EXPECT_OK(ncclAllReduce(&in, &out, 1, ncclInt32, ncclSum, other, nullptr));
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
    EXPECT_OK(ncclCommDestroy(other));
  });
}

TEST(Group, ReductionOpMayBeDestroyedBeforeGroupEnd) {
  in_threads(2, [](int rank, ncclComm_t comm) {
    float in = 1, out = 0, factor = static_cast<float>(rank + 2);
    ncclRedOp_t op;
    OURO_OK(ncclGroupStart());
    OURO_OK(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, comm));
    OURO_OK(ncclAllReduce(&in, &out, 1, ncclFloat32, op, comm, nullptr));
    OURO_OK(ncclRedOpDestroy(op, comm));
    factor = 1000;
    OURO_OK(ncclGroupEnd());
    EXPECT_EQ(out, 2 + 3);
    EXPECT_EQ(ncclAllReduce(&in, &out, 1, ncclFloat32, op, comm, nullptr), ncclInvalidArgument);
  });
}

TEST(Group, AScalarOfTheDeviceIsReadWhenTheOperationRuns) {
  in_threads(2, [](int, ncclComm_t comm) {
    float in = 1, out = 0, factor = 5;
    ncclRedOp_t op;
    OURO_OK(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarDevice, comm));
    OURO_OK(ncclGroupStart());
    OURO_OK(ncclAllReduce(&in, &out, 1, ncclFloat32, op, comm, nullptr));
    factor = 7;
    OURO_OK(ncclGroupEnd());
    EXPECT_EQ(out, 14);
    EXPECT_OK(ncclRedOpDestroy(op, comm));
  });
}

TEST(Group, EachSendsToAllAndToItselfWithEmptyMessagesBetween) {
  for (const int n : {1, 2, 3, 5})
    in_threads(n, [n](int rank, ncclComm_t comm) {
      const auto size = static_cast<std::size_t>(n);
      std::vector<std::vector<int>> in(size), out(size);
      OURO_OK(ncclGroupStart());
      for (int p = 0; p < n; ++p) {
        // The count depends on the pair: some pairs send nothing, others more than a link holds.
        const auto count = [&](int from, int to) {
          return static_cast<std::size_t>((from * 7 + to) % 3) * 50'000;
        };
        const auto at = static_cast<std::size_t>(p);
        in[at].assign(count(rank, p), 100 * rank + p);
        out[at].assign(count(p, rank), -1);
        OURO_OK(ncclSend(in[at].data(), in[at].size(), ncclInt32, p, comm, nullptr));
        OURO_OK(ncclRecv(out[at].data(), out[at].size(), ncclInt32, p, comm, nullptr));
      }
      OURO_OK(ncclGroupEnd());
      for (int p = 0; p < n; ++p)
        EXPECT_THAT(out[static_cast<std::size_t>(p)], ::testing::Each(100 * p + rank));
    });
}

TEST(Group, RunsTheCallsThatDeriveOrEndACommunicatorInTheirOrder) {
  constexpr int kRanks = 3;
  for (int round = 0; round < 30; ++round) {
    ncclComm_t comms[kRanks], whole[kRanks] = {}, single[kRanks] = {};
    OURO_OK(ncclCommInitAll(comms, kRanks, nullptr));
    OURO_OK(ncclGroupStart());
    for (int r = 0; r < kRanks; ++r) {
      OURO_OK(ncclCommSplit(comms[r], 0, r, &whole[r], nullptr));
      OURO_OK(ncclCommSplit(comms[r], r, r, &single[r], nullptr));
      OURO_OK(ncclCommFinalize(comms[r]));
      OURO_OK(ncclCommDestroy(comms[r]));
    }
    OURO_OK(ncclGroupEnd());
    for (int r = 0; r < kRanks; ++r) {
      int n = 0;
      EXPECT_OK(ncclCommCount(whole[r], &n));
      ASSERT_EQ(n, kRanks);
      EXPECT_OK(ncclCommCount(single[r], &n));
      ASSERT_EQ(n, 1);
    }
    OURO_OK(ncclGroupStart());
    for (int r = 0; r < kRanks; ++r) {
      OURO_OK(ncclCommDestroy(whole[r]));
      OURO_OK(ncclCommDestroy(single[r]));
    }
    OURO_OK(ncclGroupEnd());
  }
}

TEST(Group, EachCommunicatorOfAGroupKeepsItsOwnError) {
  ncclComm_t well[2], bad[2];
  OURO_OK(ncclCommInitAll(well, 2, nullptr));
  OURO_OK(ncclCommInitAll(bad, 2, nullptr));
  int in[4] = {1, 2, 3, 4}, out[2][4] = {};
  OURO_OK(ncclGroupStart());
  for (int r = 0; r < 2; ++r) OURO_OK(ncclAllReduce(in, out[r], 4, ncclInt32, ncclSum, well[r], nullptr));
  OURO_OK(ncclSend(in, 4, ncclInt32, 1, bad[0], nullptr));
  int room[3];
  OURO_OK(ncclRecv(room, 3, ncclInt32, 0, bad[1], nullptr));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  const auto state = [](ncclComm_t comm) {
    ncclResult_t s = ncclInternalError;
    EXPECT_OK(ncclCommGetAsyncError(comm, &s));
    return s;
  };
  EXPECT_EQ(state(well[0]), ncclSuccess);
  EXPECT_EQ(state(well[1]), ncclSuccess);
  EXPECT_EQ(state(bad[0]), ncclSuccess);  // the sender has no error
  EXPECT_EQ(state(bad[1]), ncclInvalidUsage);
  EXPECT_EQ(out[0][3] + out[1][3], 16);
  EXPECT_STREQ(ncclGetLastError(well[0]), "");
  EXPECT_THAT(ncclGetLastError(bad[1]), HasSubstr("16 bytes"));
  for (int r = 0; r < 2; ++r) {
    EXPECT_OK(ncclCommDestroy(well[r]));
    EXPECT_OK(ncclCommDestroy(bad[r]));
  }
}

TEST(Simulate, EstimatesATimeAndRunsNothing) {
  ncclComm_t comms[2];
  OURO_OK(ncclCommInitAll(comms, 2, nullptr));
  std::vector<float> in(1 << 20, 1), out[2] = {std::vector<float>(in.size()), std::vector<float>(in.size())};
  const auto simulate = [&](std::size_t count, int times) {
    EXPECT_OK(ncclGroupStart());
    EXPECT_OK(ncclGroupStart());
    for (int i = 0; i < times; ++i)
      for (int r = 0; r < 2; ++r)
        EXPECT_OK(ncclAllReduce(in.data(), out[r].data(), count, ncclFloat32, ncclSum, comms[r], nullptr));
    ncclSimInfo_t sim = NCCL_SIM_INFO_INITIALIZER;
    EXPECT_OK(ncclGroupSimulateEnd(&sim));  // an inner level
    EXPECT_EQ(sim.estimatedTime, NCCL_UNDEF_FLOAT);
    EXPECT_OK(ncclGroupSimulateEnd(&sim));
    return sim.estimatedTime;
  };
  const float small = simulate(1, 1), large = simulate(in.size(), 1), twice = simulate(in.size(), 2);
  EXPECT_GT(small, 0);
  EXPECT_GT(large, small);
  EXPECT_FLOAT_EQ(twice, 2 * large);
  EXPECT_EQ(simulate(0, 1), 0);
  EXPECT_EQ(out[0][0] + out[1][0], 0);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);  // the group has ended
  // Nothing of it remains.
  OURO_OK(ncclGroupStart());
  for (int r = 0; r < 2; ++r)
    OURO_OK(ncclAllReduce(in.data(), out[r].data(), 1, ncclFloat32, ncclSum, comms[r], nullptr));
  OURO_OK(ncclGroupEnd());
  EXPECT_EQ(out[0][0] + out[1][0], 4);
  EXPECT_EQ(out[0][1], 0);
  for (auto c : comms) EXPECT_OK(ncclCommDestroy(c));
}

TEST(Simulate, InvalidInfoAndInvalidGroupsAreRefused) {
  in_threads(1, [](int, ncclComm_t comm) {
    ncclSimInfo_t sim = NCCL_SIM_INFO_INITIALIZER;
    EXPECT_EQ(ncclGroupSimulateEnd(&sim), ncclInvalidUsage);  // without ncclGroupStart
    OURO_OK(ncclGroupStart());
    EXPECT_EQ(ncclGroupSimulateEnd(nullptr), ncclInvalidArgument);
    sim.magic = 1;
    EXPECT_EQ(ncclGroupSimulateEnd(&sim), ncclInvalidArgument);
    sim = NCCL_SIM_INFO_INITIALIZER;
    sim.size = 16;
    EXPECT_EQ(ncclGroupSimulateEnd(&sim), ncclInvalidArgument);
    sim.size = sizeof sim;
    int x = 1;
    ncclComm_t made = nullptr;
    ncclUniqueId id;
    OURO_OK(ncclGetUniqueId(&id));
    EXPECT_OK(ncclCommInitRank(&made, 1, id, 0));
    EXPECT_OK(ncclGroupSimulateEnd(&sim));
    EXPECT_EQ(made, nullptr);  // dropped, too
    EXPECT_EQ(sim.estimatedTime, 0);
    OURO_OK(ncclGroupStart());
    EXPECT_EQ(ncclBcast(&x, 1, ncclInt32, 4, comm, nullptr), ncclInvalidArgument);
    sim.estimatedTime = 7;
    EXPECT_EQ(ncclGroupSimulateEnd(&sim), ncclInvalidArgument);
    EXPECT_EQ(sim.estimatedTime, 7);
  });
}

TEST(Message, SendToSelfNeedsAReceiveInTheSameGroup) {
  in_threads(2, [](int rank, ncclComm_t comm) {
    int x = 1, y = 0;
    EXPECT_EQ(ncclSend(&x, 1, ncclInt32, rank, comm, nullptr), ncclInvalidUsage);
    EXPECT_EQ(ncclRecv(&y, 1, ncclInt32, rank, comm, nullptr), ncclInvalidUsage);
    OURO_OK(ncclGroupStart());
    OURO_OK(ncclSend(&x, 1, ncclInt32, rank, comm, nullptr));
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("to itself"));
  });
}

TEST(Message, MessagesOfOnePairArriveInOrder) {
  in_threads(2, [](int rank, ncclComm_t comm) {
    for (int i = 0; i < 50; ++i) {
      int x = i, y = -1;
      if (rank == 0) OURO_OK(ncclSend(&x, 1, ncclInt32, 1, comm, nullptr));
      if (rank == 1) OURO_OK(ncclRecv(&y, 1, ncclInt32, 0, comm, nullptr));
      ASSERT_EQ(y, rank == 1 ? i : -1);
    }
  });
}

TEST(Message, LengthMismatchIsAnErrorThatNamesBothLengths) {
  for (const std::size_t room : {std::size_t{3}, std::size_t{5}})
    in_threads(2, [room](int rank, ncclComm_t comm) {
      int x[4] = {1, 2, 3, 4}, y[5] = {};
      if (rank == 0) return (void)ncclSend(x, 4, ncclInt32, 1, comm, nullptr);
      EXPECT_EQ(ncclRecv(y, room, ncclInt32, 0, comm, nullptr), ncclInvalidUsage);
      EXPECT_THAT(ncclGetLastError(comm), HasSubstr("16 bytes"));
      EXPECT_THAT(ncclGetLastError(comm), HasSubstr(std::to_string(4 * room)));
    });
}

TEST(TimedMessage, SentJustBeforeItsSenderEndsArrives) {
  in_threads(2, [](int rank, ncclComm_t comm) {
    std::vector<int> data(20'000, 7);
    if (rank == 0) {
      EXPECT_OK(ncclSend(data.data(), data.size(), ncclInt32, 1, comm, nullptr));
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    data.assign(data.size(), 0);
    EXPECT_OK(ncclRecv(data.data(), data.size(), ncclInt32, 0, comm, nullptr));
    EXPECT_THAT(data, ::testing::Each(7));
  });
}

}  // namespace
}  // namespace ouro::test
