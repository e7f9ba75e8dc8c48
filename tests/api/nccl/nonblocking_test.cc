// Non-blocking communicators: their state reports every failure, and calls run in the order in which they
// were made.
#include <gmock/gmock.h>

#include <cstdlib>

#include "ranks.h"

namespace ouro::test {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 2;

void make(ncclComm_t (&comms)[kRanks]) {
  ncclUniqueId id;
  OURO_OK(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  for (int r = 0; r < kRanks; ++r)
    ASSERT_EQ(ncclCommInitRankConfig(&comms[r], kRanks, id, r, &config), ncclInProgress);
  for (const auto c : comms) ASSERT_EQ(settle(c), ncclSuccess);
}

void end(ncclComm_t (&comms)[kRanks]) {
  for (const auto c : comms) EXPECT_OK(ncclCommDestroy(c));
}

TEST(NonBlockingError, InvalidArgumentsAreReportedByTheState) {
  int x = 1;
  const auto expect = [&](const char* text, const std::function<ncclResult_t(ncclComm_t)>& call) {
    ncclComm_t comms[kRanks];
    make(comms);
    ASSERT_EQ(call(comms[0]), ncclInProgress);
    EXPECT_EQ(settle(comms[0]), ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(comms[0]), HasSubstr(text));
    EXPECT_EQ(settle(comms[1]), ncclSuccess);
    end(comms);
  };
  expect("null", [&](ncclComm_t c) { return ncclAllReduce(nullptr, &x, 1, ncclInt32, ncclSum, c, nullptr); });
  expect("overflow",
         [&](ncclComm_t c) { return ncclAllGather(&x, &x, SIZE_MAX / 2 + 1, ncclInt8, c, nullptr); });
  expect("null", [&](ncclComm_t c) {
    EXPECT_OK(ncclGroupStart());
    EXPECT_OK(ncclBroadcast(&x, &x, 1, ncclInt32, 0, c, nullptr));
    EXPECT_OK(ncclSend(nullptr, 1, ncclInt32, 1, c, nullptr));
    return ncclGroupEnd();
  });
}

TEST(NonBlockingError, FailedInitIsReportedByTheState) {
  ncclUniqueId id;
  OURO_OK(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  setenv("OURO_LATE", "soon", 1);
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
  EXPECT_EQ(settle(comm), ncclInvalidArgument);
  unsetenv("OURO_LATE");
  EXPECT_THAT(ncclGetLastError(comm), HasSubstr("OURO_LATE"));
  int x = 1, y = 0;
  EXPECT_EQ(ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, comm, nullptr), ncclInvalidUsage);
  EXPECT_OK(ncclCommAbort(comm));
}

TEST(NonBlockingError, FailedGrowIsReportedByTheState) {
  ncclComm_t comms[kRanks], child = nullptr;
  make(comms);
  ncclUniqueId foreign = {};
  for (const auto c : comms) ASSERT_EQ(ncclCommGrow(c, 3, &foreign, -1, &child, nullptr), ncclInProgress);
  for (const auto c : comms) {
    EXPECT_EQ(settle(c), ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(c), HasSubstr("another library"));
  }
  EXPECT_EQ(child, nullptr);
  end(comms);
}

TEST(NonBlockingGroup, RunsTheEndOfACommunicatorAfterItsOperations) {
  for (int i = 0; i < 20; ++i) {
    ncclComm_t comms[kRanks];
    make(comms);
    int in[kRanks] = {1, 2}, out[kRanks] = {};
    OURO_OK(ncclGroupStart());
    for (int r = 0; r < kRanks; ++r) {
      OURO_OK(ncclAllReduce(&in[r], &out[r], 1, ncclInt32, ncclSum, comms[r], nullptr));
      EXPECT_EQ(ncclCommFinalize(comms[r]), ncclInProgress);
    }
    ASSERT_EQ(ncclGroupEnd(), ncclInProgress);
    for (const auto c : comms) ASSERT_EQ(settle(c), ncclSuccess);
    EXPECT_EQ(out[0] + out[1], 6);
    end(comms);
  }
}

TEST(NonBlockingGroup, BeginsNothingBeforeItsEnd) {
  ncclUniqueId id;
  OURO_OK(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comms[kRanks] = {}, children[kRanks] = {};
  OURO_OK(ncclGroupStart());
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(ncclCommInitRankConfig(&comms[r], kRanks, id, r, &config), ncclInProgress);
    ncclResult_t state = ncclSuccess;
    EXPECT_OK(ncclCommGetAsyncError(comms[r], &state));
    EXPECT_EQ(state, ncclInProgress);
  }
  ASSERT_EQ(ncclGroupEnd(), ncclInProgress);
  for (const auto c : comms) ASSERT_EQ(settle(c), ncclSuccess);
  OURO_OK(ncclGroupStart());
  for (int r = 0; r < kRanks; ++r)
    EXPECT_EQ(ncclCommSplit(comms[r], 0, r, &children[r], nullptr), ncclInProgress);
  int x = 1;
  EXPECT_EQ(ncclBcast(&x, 1, ncclInt32, 9, comms[0], nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);  // drops the splits, too
  for (const auto c : comms) EXPECT_EQ(settle(c), ncclSuccess);
  EXPECT_TRUE(children[0] == nullptr && children[1] == nullptr);
  end(comms);
}

}  // namespace
}  // namespace ouro::test
