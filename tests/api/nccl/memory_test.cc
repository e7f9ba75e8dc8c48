// Memory of the library, registration and windows in host mode.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "ranks.h"

namespace ouro::test {
namespace {

/// The memory is not mapped in a forked child, where other memory may have its address.
TEST(Memory, ForkedChildCannotFreeMemoryOfItsParent) {
  constexpr std::size_t kBytes = 1 << 20;
  void* memory = nullptr;
  OURO_OK(ncclMemAlloc(&memory, kBytes));
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    if (mmap(memory, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
             0) != memory)
      _exit(1);
    if (ncclMemFree(memory) != ncclInvalidArgument) _exit(2);
    std::memset(memory, 7, kBytes);
    void* own = nullptr;
    if (ncclMemAlloc(&own, kBytes) != ncclSuccess || ncclMemFree(own) != ncclSuccess) _exit(3);
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_OK(ncclMemFree(memory));
}

TEST(Memory, IsAlignedZeroAndUsable) {
  void* p = reinterpret_cast<void*>(8);
  OURO_OK(ncclMemAlloc(&p, 0));
  EXPECT_EQ(p, nullptr);
  EXPECT_OK(ncclMemFree(nullptr));
  in_threads(2, [](int, ncclComm_t comm) {
    void* data = nullptr;
    OURO_OK(ncclGroupStart());
    OURO_OK(ncclMemAlloc(&data, 10'000 * sizeof(int)));  // takes effect at once, even in a group
    EXPECT_NE(data, nullptr);
    OURO_OK(ncclGroupEnd());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 4096, 0u);
    int* const x = static_cast<int*>(data);
    EXPECT_EQ(x[9999], 0);
    x[9999] = 5;
    OURO_OK(ncclAllReduce(x, x, 10'000, ncclInt32, ncclSum, comm, nullptr));
    EXPECT_EQ(x[9999], 10);
    EXPECT_EQ(ncclMemFree(x + 1), ncclInvalidArgument);
    EXPECT_OK(ncclMemFree(data));
    EXPECT_EQ(ncclMemFree(data), ncclInvalidArgument);
  });
}

TEST(Memory, RegistrationOfHostMemoryIsANoOp) {
  in_threads(1, [](int, ncclComm_t comm) {
    int x[4];
    void* handle = x;
    EXPECT_OK(ncclCommRegister(comm, x, sizeof x, &handle));
    EXPECT_EQ(handle, nullptr);
    EXPECT_OK(ncclCommDeregister(comm, handle));
    EXPECT_EQ(ncclCommRegister(comm, x, 0, &handle), ncclInvalidArgument);
    EXPECT_EQ(ncclCommDeregister(comm, x), ncclInvalidArgument);
  });
}

TEST(Memory, WindowReturnsTheMemoryItWasRegisteredWith) {
  in_threads(2, [](int, ncclComm_t comm) {
    void *data = nullptr, *back = nullptr;
    OURO_OK(ncclMemAlloc(&data, 8192));
    ncclWindow_t window = nullptr;
    EXPECT_EQ(ncclCommWindowRegister(comm, nullptr, 8192, &window, 0), ncclInvalidArgument);
    EXPECT_EQ(ncclCommWindowRegister(comm, data, 0, &window, 0), ncclInvalidArgument);
    EXPECT_EQ(ncclCommWindowRegister(comm, static_cast<char*>(data) + 8, 8, &window, 0), ncclInvalidArgument);
    OURO_OK(ncclCommWindowRegister(comm, data, 8192, &window, NCCL_WIN_COLL_SYMMETRIC));
    EXPECT_OK(ncclWinGetUserPtr(comm, window, &back));
    EXPECT_EQ(back, data);
    EXPECT_EQ(ncclGetPeerDevicePointer(window, 0, 1, &back), ncclInvalidUsage);
    EXPECT_EQ(back, nullptr);
    EXPECT_OK(ncclCommWindowDeregister(comm, window));
    EXPECT_EQ(ncclCommWindowDeregister(comm, window), ncclInvalidArgument);
    EXPECT_OK(ncclCommWindowDeregister(comm, nullptr));
    EXPECT_OK(ncclMemFree(data));
  });
}

TEST(Memory, SuspendAndStatistics) {
  in_threads(2, [](int, ncclComm_t comm) {
    std::uint64_t value = 99;
    EXPECT_OK(ncclCommMemStats(comm, ncclStatGpuMemTotal, &value));
    EXPECT_EQ(value, 0u);
    EXPECT_EQ(ncclCommResume(comm), ncclInvalidUsage);
    EXPECT_OK(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
    EXPECT_OK(ncclCommMemStats(comm, ncclStatGpuMemSuspended, &value));
    EXPECT_EQ(value, 1u);
    int x = 1, y = 0;
    EXPECT_EQ(ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, comm, nullptr), ncclInvalidUsage);
    EXPECT_OK(ncclCommResume(comm));
    EXPECT_OK(ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, comm, nullptr));
    EXPECT_EQ(ncclCommMemStats(comm, beyond<ncclCommMemStat_t>(4), &value), ncclInvalidArgument);
  });
}

TEST(Properties, AreWrittenAsFarAsTheCallerHasRoom) {
  in_threads(3, [](int rank, ncclComm_t comm) {
    struct {
      ncclCommProperties_t known = NCCL_COMM_PROPERTIES_INITIALIZER;
      char more[64];
    } p;
    std::memset(p.more, 0x5a, sizeof p.more);
    OURO_OK(ncclCommQueryProperties(comm, &p.known));
    EXPECT_TRUE(p.known.rank == rank && p.known.nRanks == 3 && p.known.nLsaTeams == 1 &&
                !p.known.deviceApiSupport);
    EXPECT_EQ(p.more[0], 0x5a);
    p.known.size = sizeof p;  // of a later version
    OURO_OK(ncclCommQueryProperties(comm, &p.known));
    EXPECT_EQ(p.more[63], 0);
    p.known.size = 20;  // only up to rank
    p.known.nRanks = 77;
    OURO_OK(ncclCommQueryProperties(comm, &p.known));
    EXPECT_EQ(p.known.nRanks, 77);
    p.known.magic = 0;
    EXPECT_EQ(ncclCommQueryProperties(comm, &p.known), ncclInvalidArgument);
  });
}

TEST(Parameters, AreReadByTheirOuroNames) {
  const char** keys = nullptr;
  int many = 0;
  OURO_OK(ncclParamGetAllParameterKeys(&keys, &many));
  EXPECT_GT(many, 10);
  ncclParamHandle_t h = nullptr;
  OURO_OK(ncclParamBind(&h, "OURO_SLOT_BYTES"));
  std::int32_t number = 0;
  std::int8_t small = 0;
  EXPECT_OK(ncclParamGetI32(h, &number));
  EXPECT_EQ(number, 131072);
  EXPECT_EQ(ncclParamGetI8(h, &small), ncclInvalidArgument);
  const char* text = nullptr;
  int length = 0;
  EXPECT_OK(ncclParamGetParameter("OURO_NUMERICS", &text, &length));
  EXPECT_STREQ(text, "fast");
  EXPECT_EQ(length, 4);
  char room[8];
  OURO_OK(ncclParamBind(&h, "OURO_NUMERICS"));
  EXPECT_EQ(ncclParamGet(h, room, 4, &length), ncclInvalidArgument);
  EXPECT_EQ(length, 5);
  EXPECT_OK(ncclParamGet(h, room, 8, &length));
  EXPECT_STREQ(room, "fast");
  EXPECT_EQ(ncclParamBind(&h, "NCCL_NO_SUCH_THING"), ncclInvalidArgument);
}

}  // namespace
}  // namespace ouro::test
