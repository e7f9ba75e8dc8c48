// Invalid calls: null arguments of every function, values out of range, ranks that differ, and features that
// do not exist.
#include <gmock/gmock.h>

#include <chrono>
#include <cstring>

#include "ranks.h"

namespace ouro::test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(Misuse, NullArgumentsAreRefusedByEveryFunction) {
  in_threads(1, [](int, ncclComm_t comm) {
    ncclUniqueId id;
    OURO_OK(ncclGetUniqueId(&id));
    const ncclComm_t none = nullptr;
    int x = 0, y = 0;
    ncclComm_t made = nullptr;
    void* p = nullptr;
    ncclRedOp_t op = ncclSum;
    ncclWindow_t window = nullptr;
    std::uint64_t u = 0;
    const char* text = nullptr;
    const ncclResult_t wrong[] = {
        ncclGetVersion(nullptr),
        ncclGetUniqueId(nullptr),
        ncclCommInitRank(nullptr, 1, id, 0),
        ncclCommInitRankConfig(nullptr, 1, id, 0, nullptr),
        ncclCommInitRankScalable(nullptr, 1, 0, 1, &id, nullptr),
        ncclCommInitRankScalable(&made, 1, 0, 1, nullptr, nullptr),
        ncclCommInitAll(nullptr, 1, nullptr),
        ncclCommSplit(none, 0, 0, &made, nullptr),
        ncclCommSplit(comm, 0, 0, nullptr, nullptr),
        ncclCommShrink(none, &x, 1, &made, nullptr, 0),
        ncclCommShrink(comm, &x, 1, nullptr, nullptr, 0),
        ncclCommShrink(comm, nullptr, 1, &made, nullptr, 0),
        ncclCommGetUniqueId(none, &id),
        ncclCommGetUniqueId(comm, nullptr),
        ncclCommGrow(nullptr, 2, nullptr, 1, &made, nullptr),
        ncclCommGrow(comm, 2, &id, -1, nullptr, nullptr),
        ncclCommCount(none, &x),
        ncclCommCount(comm, nullptr),
        ncclCommCuDevice(none, &x),
        ncclCommCuDevice(comm, nullptr),
        ncclCommUserRank(none, &x),
        ncclCommUserRank(comm, nullptr),
        ncclCommGetAsyncError(none, reinterpret_cast<ncclResult_t*>(&x)),
        ncclCommGetAsyncError(comm, nullptr),
        ncclCommQueryProperties(none, nullptr),
        ncclCommQueryProperties(comm, nullptr),
        ncclCommMemStats(none, ncclStatGpuMemTotal, &u),
        ncclCommMemStats(comm, ncclStatGpuMemTotal, nullptr),
        ncclCommSuspend(none, NCCL_SUSPEND_MEM),
        ncclCommResume(none),
        ncclMemAlloc(nullptr, 1),
        ncclCommRegister(none, &x, 4, &p),
        ncclCommRegister(comm, &x, 4, nullptr),
        ncclCommDeregister(none, nullptr),
        ncclCommWindowRegister(none, &x, 4, &window, 0),
        ncclCommWindowRegister(comm, &x, 4, nullptr, 0),
        ncclCommWindowDeregister(none, nullptr),
        ncclWinGetUserPtr(none, nullptr, &p),
        ncclWinGetUserPtr(comm, nullptr, &p),
        ncclWinGetUserPtr(comm, nullptr, nullptr),
        ncclGetLsaDevicePointer(nullptr, 0, 0, nullptr),
        ncclGetLsaMultimemDevicePointer(nullptr, 0, &p),
        ncclGetPeerDevicePointer(nullptr, 0, 0, &p),
        ncclGetMultimemDevicePointer(nullptr, 0, ncclMultimemHandle_t{nullptr}, &p),
        ncclRedOpCreatePreMulSum(nullptr, &x, ncclInt32, ncclScalarHostImmediate, comm),
        ncclRedOpCreatePreMulSum(&op, nullptr, ncclInt32, ncclScalarHostImmediate, comm),
        ncclRedOpCreatePreMulSum(&op, &x, ncclInt32, ncclScalarHostImmediate, none),
        ncclRedOpDestroy(ncclSum, none),
        ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, none, nullptr),
        ncclAllReduce(nullptr, &y, 1, ncclInt32, ncclSum, comm, nullptr),
        ncclAllReduce(&x, nullptr, 1, ncclInt32, ncclSum, comm, nullptr),
        ncclReduce(&x, &y, 1, ncclInt32, ncclSum, 0, none, nullptr),
        ncclBroadcast(&x, &y, 1, ncclInt32, 0, none, nullptr),
        ncclBcast(&x, 1, ncclInt32, 0, none, nullptr),
        ncclBcast(nullptr, 1, ncclInt32, 0, comm, nullptr),
        ncclAllGather(&x, &y, 1, ncclInt32, none, nullptr),
        ncclReduceScatter(&x, &y, 1, ncclInt32, ncclSum, none, nullptr),
        ncclAlltoAll(&x, &y, 1, ncclInt32, none, nullptr),
        ncclGather(&x, &y, 1, ncclInt32, 0, none, nullptr),
        ncclScatter(&x, &y, 1, ncclInt32, 0, none, nullptr),
        ncclSend(&x, 1, ncclInt32, 0, none, nullptr),
        ncclRecv(&x, 1, ncclInt32, 0, none, nullptr),
        ncclPutSignal(&x, 1, ncclInt32, 0, nullptr, 0, 0, 0, 0, none, nullptr),
        ncclSignal(0, 0, 0, 0, none, nullptr),
        ncclWaitSignal(0, nullptr, none, nullptr),
        ncclGroupSimulateEnd(nullptr),
        ncclDevCommCreate(none, nullptr, nullptr),
        ncclDevCommDestroy(none, nullptr),
        ncclGinBarrierCreateRequirement(none, ncclTeam_t{}, 0, nullptr, nullptr),
        ncclParamBind(nullptr, "x"),
        ncclParamGetI32(nullptr, &x),
        ncclParamGetStr(nullptr, &text),
        ncclParamGet(nullptr, &x, 4, &y),
        ncclParamGetParameter(nullptr, &text, &x),
        ncclParamGetAllParameterKeys(nullptr, &x),
    };
    int k = 0;
    for (const ncclResult_t r : wrong) EXPECT_EQ(r, ncclInvalidArgument) << "call " << k, ++k;
    EXPECT_STRNE(ncclGetLastError(nullptr), "");
    EXPECT_EQ(ncclTeamWorld(none).nRanks, 0);
    EXPECT_EQ(ncclTeamRankToWorld(none, ncclTeam_t{1, 0, 1}, 0), -1);
    ncclResult_t state = ncclInternalError;  // wrong arguments are not sticky
    EXPECT_OK(ncclCommGetAsyncError(comm, &state));
    EXPECT_EQ(state, ncclSuccess);
  });
}

TEST(Misuse, ValuesOutOfTheirRange) {
  ncclUniqueId id;
  OURO_OK(ncclGetUniqueId(&id));
  ncclComm_t made = reinterpret_cast<ncclComm_t>(8);
  EXPECT_EQ(ncclCommInitRank(&made, 0, id, 0), ncclInvalidArgument);
  EXPECT_EQ(made, nullptr);
  EXPECT_EQ(ncclCommInitRank(&made, 2, id, 2), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitRank(&made, 2, id, -1), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitRankScalable(&made, 2, 0, 3, &id, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitAll(&made, -1, nullptr), ncclInvalidArgument);
  const int devices[] = {-1};
  EXPECT_EQ(ncclCommInitAll(&made, 1, devices), ncclInvalidArgument);
  in_threads(1, [](int, ncclComm_t comm) {
    int x = 1, y = 0;
    EXPECT_EQ(ncclAllReduce(&x, &y, 1, beyond<ncclDataType_t>(12), ncclSum, comm, nullptr),
              ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(&x, &y, 1, beyond<ncclDataType_t>(-1), ncclSum, comm, nullptr),
              ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(&x, &y, 1, ncclInt32, beyond<ncclRedOp_t>(5), comm, nullptr),
              ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(&x, &y, 1, ncclInt32, beyond<ncclRedOp_t>(-1), comm, nullptr),
              ncclInvalidArgument);
    EXPECT_EQ(ncclReduce(&x, &y, 1, ncclInt32, ncclSum, 1, comm, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclReduce(&x, &y, 0, ncclInt32, ncclSum, -1, comm, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclSend(&x, 0, ncclInt32, 1, comm, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclRedOpDestroy(ncclSum, comm), ncclInvalidArgument);
    EXPECT_EQ(ncclRedOpDestroy(beyond<ncclRedOp_t>(5), comm), ncclInvalidArgument);
    ncclRedOp_t op;
    OURO_OK(ncclRedOpCreatePreMulSum(&op, &x, ncclInt32, ncclScalarHostImmediate, comm));
    EXPECT_EQ(ncclAllReduce(&x, &y, 1, ncclUint32, op, comm, nullptr), ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("made for type 2"));
    EXPECT_OK(ncclRedOpDestroy(op, comm));
    EXPECT_EQ(ncclRedOpDestroy(op, comm), ncclInvalidArgument);
  });
}

TEST(Misuse, UniqueIdsOfOtherLibrariesOrJobsAreRefused) {
  ncclComm_t comm = nullptr;
  ncclUniqueId id;
  std::memset(&id, 0x5a, sizeof id);
  EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 1), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("another library"));
  OURO_OK(ncclGetUniqueId(&id));
  id.internal[30] ^= 1;  // a byte of the secret
  EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 1), ncclInvalidUsage);
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("does not know the id"));
}

TEST(Misuse, UnsupportedFunctionsAreRefusedByName) {
  in_threads(1, [](int, ncclComm_t comm) {
    int x = 0;
    const auto refused = [&](ncclResult_t r) {
      EXPECT_EQ(r, ncclInvalidUsage);
      EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("is not supported by ouro"));
    };
    refused(ncclDevCommCreate(comm, nullptr, nullptr));
    refused(ncclLsaBarrierCreateRequirement(ncclTeamLsa(comm), 1, nullptr, nullptr));
    refused(ncclGinBarrierCreateRequirement(comm, ncclTeamWorld(comm), 1, nullptr, nullptr));
    refused(ncclLLA2ACreateRequirement(1, 1, nullptr, nullptr));
    refused(ncclPutSignal(&x, 1, ncclInt32, 0, nullptr, 0, 0, 0, 0, comm, nullptr));
    refused(ncclSignal(0, 0, 0, 0, comm, nullptr));
    refused(ncclWaitSignal(0, nullptr, comm, nullptr));
  });
  in_threads(3, [](int rank, ncclComm_t comm) {
    const ncclTeam_t world = ncclTeamWorld(comm), rail = ncclTeamRail(comm);
    EXPECT_TRUE(world.nRanks == 3 && world.rank == rank && world.stride == 1);
    EXPECT_TRUE(rail.nRanks == 1 && rail.rank == 0);
    EXPECT_EQ(ncclTeamRankToWorld(comm, world, 2), 2);
    EXPECT_EQ(ncclTeamRankToWorld(comm, rail, 0), rank);
    EXPECT_EQ(ncclTeamRankToLsa(comm, world, 3), -1);
  });
}

/// It stays queued, and a receive of its own type gets it.
TEST(Misuse, MessageOfAnotherTypeIsRefusedAndStaysQueued) {
  in_threads(2, [](int rank, ncclComm_t comm) {
    float numbers[4] = {1, 2, 3, 4};
    if (rank == 0) {
      EXPECT_OK(ncclSend(numbers, 4, ncclFloat32, 1, comm, nullptr));
      return;
    }
    std::int32_t words[4];
    EXPECT_EQ(ncclRecv(words, 4, ncclInt32, 0, comm, nullptr), ncclInvalidUsage);
    EXPECT_THAT(std::string(ncclGetLastError(comm)), HasSubstr("has 4 elements of float; expected int32"));
    float got[4] = {};
    EXPECT_OK(ncclRecv(got, 4, ncclFloat32, 0, comm, nullptr));
    EXPECT_EQ(got[3], 4);
  });
}

/// Rank 2 of 3 makes a different call: all ranks get an error that names both calls. A rank that only sends,
/// such as the root of a broadcast, may get it at its next call.
void expect_mismatch(const std::function<ncclResult_t(bool odd, ncclComm_t)>& call, const char* one,
                     const char* other) {
  const auto begin = std::chrono::steady_clock::now();
  in_threads(3, [&](int rank, ncclComm_t comm) {
    ncclResult_t told = call(rank == 2, comm);
    int x = 1, y = 0;
    if (told == ncclSuccess) told = ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, comm, nullptr);
    EXPECT_EQ(told, ncclInvalidUsage);
    const std::string text = ncclGetLastError(comm);
    EXPECT_THAT(text, HasSubstr("ranks disagree"));
    EXPECT_THAT(text, HasSubstr(std::string("ranks {0,1} called ") + one));
    EXPECT_THAT(text, HasSubstr(std::string("ranks {2} called ") + other));
    ncclResult_t state = ncclSuccess;
    EXPECT_OK(ncclCommGetAsyncError(comm, &state));
    EXPECT_EQ(state, ncclInvalidUsage);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(TimedMismatch, DifferingCallsAreReportedWithBothDescriptions) {
  static thread_local int x[16], y[16];
  expect_mismatch(
      [](bool odd, ncclComm_t c) {
        return odd ? ncclBroadcast(x, y, 4, ncclInt32, 0, c, nullptr)
                   : ncclAllReduce(x, y, 4, ncclInt32, ncclSum, c, nullptr);
      },
      "all_reduce(int32, sum, count 4)", "broadcast(int32, count 4, root 0)");
  expect_mismatch(
      [](bool odd, ncclComm_t c) { return ncclAllReduce(x, y, odd ? 5 : 4, ncclInt32, ncclSum, c, nullptr); },
      "all_reduce(int32, sum, count 4)", "all_reduce(int32, sum, count 5)");
  expect_mismatch(
      [](bool odd, ncclComm_t c) {
        return ncclAllReduce(x, y, 4, odd ? ncclFloat32 : ncclInt32, ncclSum, c, nullptr);
      },
      "all_reduce(int32, sum, count 4)", "all_reduce(float, sum, count 4)");
  expect_mismatch(
      [](bool odd, ncclComm_t c) {
        return ncclAllReduce(x, y, 4, ncclInt32, odd ? ncclMax : ncclSum, c, nullptr);
      },
      "all_reduce(int32, sum, count 4)", "all_reduce(int32, max, count 4)");
  expect_mismatch(
      [](bool odd, ncclComm_t c) { return ncclBroadcast(x, y, 4, ncclInt32, odd ? 1 : 0, c, nullptr); },
      "broadcast(int32, count 4, root 0)", "broadcast(int32, count 4, root 1)");
}

}  // namespace
}  // namespace ouro::test
