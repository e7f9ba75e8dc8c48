// GPU mode: order in streams, several streams, graphs, devices and errors.
#include "gpu_values.h"

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "place.h"
#include "ranks.h"

namespace ouro::test {
namespace {

using namespace std::chrono_literals;

TEST(Gpu, CallReturnsBeforeItsStreamReachesIt) {
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
    OURO_OK(ncclGroupStart());  // messages after operations, and operations after messages
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

TEST(Gpu, RegisteredBuffersGetHandlesAndReduceCorrectly) {
  in_threads(2, [](int rank, ncclComm_t& comm) {
    constexpr std::size_t kFloats = 100'000;
    const cudaStream_t s = stream_of(rank);
    float* own = nullptr;
    void *ours = nullptr, *handle = nullptr, *part = nullptr, *left = nullptr;
    CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&own), kFloats * sizeof(float)));
    OURO_OK(ncclMemAlloc(&ours, kFloats * sizeof(float)));
    OURO_OK(ncclCommRegister(comm, own, kFloats * sizeof(float), &handle));
    OURO_OK(ncclCommRegister(comm, own + 100, 1000, &part));
    OURO_OK(ncclCommRegister(comm, ours, kFloats * sizeof(float), &left));  // ends with its communicator
    EXPECT_TRUE(handle != nullptr && part != nullptr && left != nullptr);
    EXPECT_NE(handle, part);
    ncclWindow_t window = nullptr;
    OURO_OK(ncclCommWindowRegister(comm, ours, kFloats * sizeof(float), &window, NCCL_WIN_COLL_SYMMETRIC));
    for (float* const x : {own, static_cast<float*>(ours)})
      for (int call = 0; call < 4; ++call) {
        const std::vector<float> ones(kFloats, 1);
        std::vector<float> sums(kFloats);
        CUDA_OK(cudaMemcpyAsync(x, ones.data(), kFloats * sizeof(float), cudaMemcpyHostToDevice, s));
        OURO_OK(ncclAllReduce(x, x, kFloats, ncclFloat, ncclSum, comm, s));
        CUDA_OK(cudaMemcpyAsync(sums.data(), x, kFloats * sizeof(float), cudaMemcpyDeviceToHost, s));
        CUDA_OK(cudaStreamSynchronize(s));
        EXPECT_EQ(sums, std::vector<float>(kFloats, 2));
      }
    EXPECT_OK(ncclCommWindowDeregister(comm, window));
    EXPECT_EQ(ncclCommWindowDeregister(comm, window), ncclInvalidArgument);
    EXPECT_OK(ncclCommDeregister(comm, part));
    EXPECT_EQ(ncclCommDeregister(comm, part), ncclInvalidArgument);
    EXPECT_OK(ncclCommDeregister(comm, handle));
    EXPECT_OK(ncclCommDeregister(comm, nullptr));
    // A hint: what cannot be registered works without.
    int on_host = 0;
    handle = &on_host;
    EXPECT_OK(ncclCommRegister(comm, &on_host, sizeof on_host, &handle));
    EXPECT_EQ(handle, nullptr);
    EXPECT_OK(ncclCommRegister(comm, own, 2 * kFloats * sizeof(float), &handle));  // beyond its end
    EXPECT_EQ(handle, nullptr);
    CUDA_OK(cudaFree(own));
    OURO_OK(ncclMemFree(ours));
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
  OURO_OK(ncclGroupStart());  // the communicators are unaffected
  OURO_OK(sum(x, x, comms[0], a));
  OURO_OK(sum(y, y, comms[1], b));
  OURO_OK(ncclGroupEnd());
  EXPECT_EQ(x.read(a), 2);
  for (const ncclComm_t c : comms) OURO_OK(ncclCommDestroy(c));
}

TEST(Gpu, TwoCommunicatorsOfAGroupOnOneStreamAreRefused) {
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

TEST(Gpu, CommunicatorTakesTheCurrentDeviceAndLeavesItCurrent) {
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
  CUDA_OK(cudaSetDevice(0));  // a device other than the communicator's
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

TEST(Gpu, HostMemoryIsRefusedWithAMessage) {
  in_threads(1, [](int, ncclComm_t& comm) {
    float x = 1;
    EXPECT_EQ(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, comm, stream_of(0)), ncclInvalidArgument);
    EXPECT_NE(std::string(ncclGetLastError(comm)).find("not memory of a GPU"), std::string::npos);
  });
}

TEST(Gpu, FakeRuntimeReportsUnsupportedCalls) {
  if (!std::getenv("OURO_FAKE_GPUS"))
    GTEST_SKIP() << "emulated devices only (OURO_FAKE_GPUS): this runtime is CUDA's own";
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaGraphCreate(&graph, 0), cudaErrorNotSupported);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(Gpu, UnsupportedMemoryCallsAreRefused) {
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

}  // namespace
}  // namespace ouro::test
