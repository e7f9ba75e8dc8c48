// GPU mode: order in streams, several streams, graphs, devices, ends and errors. Programs see only CUDA and
// nccl.h; the devices behind are emulated.
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <thread>
#include <utility>

#include "place.h"
#include "ranks.h"

namespace ouro::test {
namespace {

using namespace std::chrono_literals;

#define CUDA_OK(call) ASSERT_EQ(call, cudaSuccess)

/// A number on a device, of one rank.
class Number {
 public:
  explicit Number(float value) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), sizeof value), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, &value, sizeof value, cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~Number() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  Number(const Number&) = delete;
  Number& operator=(const Number&) = delete;
  float* get() const { return data_; }
  /// Once all that is on the stream has ended.
  float read(cudaStream_t s) const {
    float value = -1;
    EXPECT_EQ(cudaMemcpyAsync(&value, data_, sizeof value, cudaMemcpyDeviceToHost, s), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(s), cudaSuccess);
    return value;
  }

 private:
  float* data_ = nullptr;
};

/// Holds a stream up until it is opened.
class Gate {
 public:
  explicit Gate(cudaStream_t s) {
    EXPECT_EQ(cudaLaunchHostFunc(
                  s, [](void* g) { static_cast<std::atomic<bool>*>(g)->wait(false); }, &open_),
              cudaSuccess);
  }
  ~Gate() { open(); }
  void open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  std::atomic<bool> open_{false};
};

cudaStream_t new_stream() {
  cudaStream_t s = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
  return s;
}

ncclResult_t sum(const Number& in, const Number& out, ncclComm_t comm, cudaStream_t s) {
  return ncclAllReduce(in.get(), out.get(), 1, ncclFloat, ncclSum, comm, s);
}

TEST(Gpu, ACallReturnsBeforeItsStreamHasComeToIt) {
  in_threads(2, [](int rank, ncclComm_t& comm) {
    const cudaStream_t s = stream_of(rank);
    const Number in(static_cast<float>(rank + 1)), out(0);
    Gate gate(s);
    OURO_OK(sum(in, out, comm, s));
    OURO_OK(sum(out, out, comm, s));
    OURO_OK(ncclGroupStart());
    OURO_OK(ncclSend(out.get(), 1, ncclFloat, 1 - rank, comm, s));
    OURO_OK(ncclRecv(in.get(), 1, ncclFloat, 1 - rank, comm, s));
    OURO_OK(ncclGroupEnd());
    EXPECT_EQ(cudaStreamQuery(s), cudaErrorNotReady);
    gate.open();
    EXPECT_EQ(in.read(s), 6);
  });
}

TEST(Gpu, TheFirstCallFindsRanksThatHaveJustJoined) {
  for (int round = 0; round < 15; ++round)
    in_threads(7, [](int rank, ncclComm_t& comm) {
      const Number x(1);
      OURO_OK(sum(x, x, comm, stream_of(rank)));
      EXPECT_EQ(x.read(stream_of(rank)), 7);
    });
}

TEST(Gpu, OneCommunicatorOnTwoStreamsKeepsItsOrder) {
  in_threads(2, [](int rank, ncclComm_t& comm) {
    const cudaStream_t a = stream_of(rank), b = new_stream();
    const Number x(1), y(0), z(0);
    Gate gate(a);
    OURO_OK(sum(x, y, comm, a));
    OURO_OK(ncclGroupStart());  // messages follow operations, and operations messages
    OURO_OK(ncclSend(y.get(), 1, ncclFloat, 1 - rank, comm, b));
    OURO_OK(ncclRecv(z.get(), 1, ncclFloat, 1 - rank, comm, b));
    OURO_OK(ncclGroupEnd());
    EXPECT_EQ(cudaStreamQuery(b), cudaErrorNotReady);
    OURO_OK(sum(z, z, comm, a));
    gate.open();
    EXPECT_EQ(z.read(a), 4);
    CUDA_OK(cudaStreamDestroy(b));  // before the communicator that has used it
    OURO_OK(sum(z, z, comm, a));
    EXPECT_EQ(z.read(a), 8);
  });
}

TEST(Gpu, InAGroupTheFirstStreamWaitsForTheOthersAndTheyForTheResult) {
  in_threads(2, [](int rank, ncclComm_t& comm) {
    const cudaStream_t a = stream_of(rank), b = new_stream();
    const Number x(1), y(0), z(0);
    Gate gate(b);
    OURO_OK(ncclGroupStart());
    OURO_OK(sum(x, y, comm, a));
    OURO_OK(sum(x, z, comm, b));
    OURO_OK(ncclGroupEnd());
    std::this_thread::sleep_for(5ms);
    EXPECT_EQ(cudaStreamQuery(a), cudaErrorNotReady) << "it does not wait for the other stream";
    gate.open();
    EXPECT_EQ(y.read(b), 2);
    EXPECT_EQ(z.read(a), 2);
    CUDA_OK(cudaStreamDestroy(b));
  });
}

TEST(Gpu, GraphsAreReplayedBetweenOtherCalls) {
  in_threads(2, [](int rank, ncclComm_t& comm) {
    const cudaStream_t s = stream_of(rank);
    const Number x(1);
    OURO_OK(sum(x, x, comm, s));  // 2
    EXPECT_EQ(x.read(s), 2);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    CUDA_OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    OURO_OK(sum(x, x, comm, s));
    OURO_OK(ncclGroupStart());
    OURO_OK(sum(x, x, comm, s));
    OURO_OK(ncclBroadcast(x.get(), x.get(), 1, ncclFloat, 0, comm, s));
    OURO_OK(ncclGroupEnd());
    CUDA_OK(cudaStreamEndCapture(s, &graph));
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_OK(cudaGraphDestroy(graph));
    for (int k = 0; k < 3; ++k) {
      CUDA_OK(cudaGraphLaunch(exec, s));  // four times as much
      OURO_OK(sum(x, x, comm, s));        // twice
    }
    EXPECT_EQ(x.read(s), 1024);
    CUDA_OK(cudaGraphExecDestroy(exec));
  });
}

TEST(Gpu, AGroupIsCapturedAsAWholeOrNotAtAll) {
  ncclComm_t comms[2];
  const int devices[] = {enter_device(0), enter_device(0)};
  OURO_OK(ncclCommInitAll(comms, 2, devices));
  const cudaStream_t a = new_stream(), b = new_stream();
  const Number x(1), y(1);
  CUDA_OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
  OURO_OK(ncclGroupStart());
  OURO_OK(sum(x, x, comms[0], a));
  OURO_OK(sum(y, y, comms[1], b));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("captured"), std::string::npos);
  OURO_OK(ncclGroupStart());
  OURO_OK(sum(x, x, comms[0], a));
  OURO_OK(sum(x, x, comms[0], b));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamEndCapture(a, &graph));
  CUDA_OK(cudaGraphDestroy(graph));
  OURO_OK(ncclGroupStart());  // the communicators are as they were
  OURO_OK(sum(x, x, comms[0], a));
  OURO_OK(sum(y, y, comms[1], b));
  OURO_OK(ncclGroupEnd());
  EXPECT_EQ(x.read(a), 2);
  for (const ncclComm_t c : comms) OURO_OK(ncclCommDestroy(c));
}

TEST(Gpu, TwoCommunicatorsOfAGroupAreNotOnOneStream) {
  ncclComm_t comms[2];
  const int devices[] = {0, 0};
  OURO_OK(ncclCommInitAll(comms, 2, devices));
  const Number x(1);
  const cudaStream_t s = stream_of(0);
  OURO_OK(ncclGroupStart());
  OURO_OK(sum(x, x, comms[0], s));
  OURO_OK(sum(x, x, comms[1], s));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("a stream for each"), std::string::npos);
  for (const ncclComm_t c : comms) OURO_OK(ncclCommDestroy(c));
}

TEST(Gpu, TheCurrentDeviceIsThatOfACommunicatorAndStaysCurrent) {
  int devices = 0;
  CUDA_OK(cudaGetDeviceCount(&devices));
  const int last = devices - 1;
  CUDA_OK(cudaSetDevice(last));
  ncclUniqueId id;
  OURO_OK(ncclGetUniqueId(&id));
  ncclComm_t comm = nullptr;
  OURO_OK(ncclCommInitRank(&comm, 1, id, 0));
  int device = -1;
  OURO_OK(ncclCommCuDevice(comm, &device));
  EXPECT_EQ(device, last);
  const cudaStream_t s = new_stream();
  const Number x(3), y(0);
  CUDA_OK(cudaSetDevice(0));  // another than the communicator's
  OURO_OK(sum(x, y, comm, s));
  CUDA_OK(cudaGetDevice(&device));
  EXPECT_EQ(device, 0);
  EXPECT_EQ(y.read(s), 3);
  void* memory = nullptr;
  OURO_OK(ncclMemAlloc(&memory, 100));
  cudaPointerAttributes about;
  CUDA_OK(cudaPointerGetAttributes(&about, memory));
  EXPECT_EQ(about.type, cudaMemoryTypeDevice);
  EXPECT_EQ(about.device, 0);
  OURO_OK(ncclMemFree(memory));
  OURO_OK(ncclCommDestroy(comm));
  const int missing[] = {devices};
  EXPECT_EQ(ncclCommInitAll(&comm, 1, missing), ncclInvalidArgument);
}

TEST(Gpu, MemoryOfTheHostIsRefusedInWords) {
  in_threads(1, [](int, ncclComm_t& comm) {
    float x = 1;
    EXPECT_EQ(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, comm, stream_of(0)), ncclInvalidArgument);
    EXPECT_NE(std::string(ncclGetLastError(comm)).find("not memory of a GPU"), std::string::npos);
  });
}

TEST(Gpu, TheRuntimeOfTheTestsRefusesWhatItHasNot) {
  if (!std::getenv("OURO_FAKE_GPUS")) GTEST_SKIP() << "this is CUDA's own";
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaGraphCreate(&graph, 0), cudaErrorNotSupported);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(Gpu, WhatIsNotThereSaysSo) {
  in_threads(1, [](int, ncclComm_t& comm) {
    std::uint64_t value = 0;
    EXPECT_EQ(ncclCommMemStats(comm, ncclStatGpuMemTotal, &value), ncclInvalidUsage);
    EXPECT_NE(std::string(ncclGetLastError(comm)).find("not supported"), std::string::npos);
    EXPECT_EQ(ncclCommSuspend(comm, NCCL_SUSPEND_MEM), ncclInvalidUsage);
    OURO_OK(ncclCommMemStats(comm, ncclStatGpuMemSuspended, &value));
    EXPECT_EQ(value, 0u);
  });
}

TEST(Gpu, AFactorOnTheDeviceIsReadInStreamOrder) {
  in_threads(2, [](int rank, ncclComm_t& comm) {
    const cudaStream_t s = stream_of(rank);
    const Number x(1), factor(0), later(static_cast<float>(rank + 2));
    ncclRedOp_t op;
    OURO_OK(ncclRedOpCreatePreMulSum(&op, factor.get(), ncclFloat, ncclScalarDevice, comm));
    CUDA_OK(cudaMemcpyAsync(factor.get(), later.get(), sizeof(float), cudaMemcpyDeviceToDevice, s));
    OURO_OK(ncclAllReduce(x.get(), x.get(), 1, ncclFloat, op, comm, s));
    EXPECT_EQ(x.read(s), 5);
    CUDA_OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    EXPECT_EQ(ncclAllReduce(x.get(), x.get(), 1, ncclFloat, op, comm, s), ncclInvalidUsage);
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(s, &graph));
    CUDA_OK(cudaGraphDestroy(graph));
    OURO_OK(ncclRedOpDestroy(op, comm));
  });
}

TEST(Gpu, WhatIsEnqueuedRunsAfterItsCommunicatorHasBeenDestroyed) {
  enum class What { sum, message, message_before_a_capture };
  for (const What what : {What::sum, What::message, What::message_before_a_capture})
    in_threads(2, [what](int rank, ncclComm_t& comm) {
      const bool message = what != What::sum;
      const cudaStream_t s = new_stream(), captured = new_stream();
      const Number x(static_cast<float>(rank + 1)), y(0), z(0);
      if (what == What::message_before_a_capture) OURO_OK(sum(z, z, comm, captured));  // all is made
      {
        Gate gate(s);
        OURO_OK(sum(x, x, comm, s));
        if (message) {
          OURO_OK(ncclGroupStart());
          OURO_OK(ncclSend(x.get(), 1, ncclFloat, 1 - rank, comm, s));
          OURO_OK(ncclRecv(y.get(), 1, ncclFloat, 1 - rank, comm, s));
          OURO_OK(ncclGroupEnd());
        }
        if (what == What::message_before_a_capture) {
          cudaGraph_t graph = nullptr;
          CUDA_OK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeThreadLocal));
          OURO_OK(sum(z, z, comm, captured));
          CUDA_OK(cudaStreamEndCapture(captured, &graph));
          CUDA_OK(cudaGraphDestroy(graph));
        }
        OURO_OK(ncclCommDestroy(comm));
        comm = nullptr;
      }
      EXPECT_EQ(x.read(s), 3);
      EXPECT_EQ(y.read(s), message ? 3 : 0);
      for (const cudaStream_t stream : {s, captured}) CUDA_OK(cudaStreamDestroy(stream));
    });
}

TEST(Gpu, FinalizeWaitsForWhatIsEnqueued) {
  in_threads(2, [](int rank, ncclComm_t& comm) {
    const cudaStream_t s = stream_of(rank);
    const Number x(1);
    Gate gate(s);
    OURO_OK(sum(x, x, comm, s));
    OURO_OK(ncclGroupStart());
    OURO_OK(ncclSend(x.get(), 1, ncclFloat, 1 - rank, comm, s));
    OURO_OK(ncclRecv(x.get(), 1, ncclFloat, 1 - rank, comm, s));
    OURO_OK(ncclGroupEnd());
    std::atomic<bool> opened{false};
    std::thread later([&] {
      std::this_thread::sleep_for(20ms);
      opened = true;
      gate.open();
    });
    OURO_OK(ncclCommFinalize(comm));
    EXPECT_TRUE(opened);
    later.join();
    EXPECT_EQ(x.read(s), 2);
  });
}

TEST(Gpu, AnAbortFromAnotherThreadFreesTheStream) {
  in_threads(2, [](int rank, ncclComm_t& comm) {
    const cudaStream_t s = stream_of(rank);
    const Number x(1);
    OURO_OK(sum(x, x, comm, s));
    EXPECT_EQ(x.read(s), 2);
    if (rank == 1) {  // it never calls the second
      const auto begin = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() < begin + 20s) {
        ncclResult_t error = ncclSuccess;
        OURO_OK(ncclCommGetAsyncError(comm, &error));
        if (error == ncclRemoteError) return;
        std::this_thread::sleep_for(1ms);
      }
      FAIL() << "the abort of rank 0 is not noticed";
    }
    OURO_OK(sum(x, x, comm, s));
    EXPECT_EQ(cudaStreamQuery(s), cudaErrorNotReady);
    std::thread([&] { OURO_OK(ncclCommAbort(comm)); }).join();
    comm = nullptr;
    CUDA_OK(cudaStreamSynchronize(s));
  });
}

TEST(Gpu, CommunicatorsLeaveNeitherThreadsNorDescriptors) {
  const auto entries = [](const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
  };
  const auto cycles = [](int n) {
    for (int k = 0; k < n; ++k)
      in_threads(2, [](int rank, ncclComm_t& comm) {
        const Number x(1);
        OURO_OK(sum(x, x, comm, stream_of(rank)));
        EXPECT_EQ(x.read(stream_of(rank)), 2);
      });
  };
  const auto counts = [&] { return std::pair(entries("/proc/self/task"), entries("/proc/self/fd")); };
  cycles(10);
  auto before = counts();
  for (int looks = 0; looks < 50; ++looks) {  // until none of them ends aside any more
    std::this_thread::sleep_for(200ms);
    if (const auto now = std::exchange(before, counts()); now == before) break;
  }
  cycles(40);
  auto after = counts();
  for (const auto end = std::chrono::steady_clock::now() + 20s;
       (after.first > before.first || after.second > before.second) && std::chrono::steady_clock::now() < end;
       std::this_thread::sleep_for(20ms))
    after = counts();
  EXPECT_LE(after.first, before.first);
  EXPECT_LE(after.second, before.second);
}

TEST(Gpu, SplitsAndNonBlockingCommunicators) {
  in_threads(4, [](int rank, ncclComm_t& comm) {
    const cudaStream_t s = stream_of(rank);
    const Number x(static_cast<float>(rank));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t half = nullptr;
    const ncclResult_t made = ncclCommSplit(comm, rank % 2, rank, &half, &config);
    ASSERT_TRUE(made == ncclSuccess || made == ncclInProgress) << ncclGetLastError(nullptr);
    ASSERT_EQ(settle(comm), ncclSuccess);
    ASSERT_NE(half, nullptr);
    OURO_OK(sum(x, x, half, s));  // enqueued when it returns
    EXPECT_EQ(x.read(s), rank % 2 ? 4 : 2);
    ASSERT_EQ(settle(half), ncclSuccess);
    OURO_OK(ncclCommDestroy(half));
  });
}

}  // namespace
}  // namespace ouro::test
