// GPU mode: the end of communicators, finalising, aborting, and what remains.
#include "gpu_values.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <thread>
#include <utility>

#include "place.h"
#include "ranks.h"

namespace ouro::test {
namespace {

using namespace std::chrono_literals;

TEST(Gpu, EnqueuedOperationsRunAfterTheirCommunicatorIsDestroyed) {
  enum class What { sum, message, message_before_a_capture };
  for (const What what : {What::sum, What::message, What::message_before_a_capture})
    in_threads(2, [what](int rank, ncclComm_t& comm) {
      const bool message = what != What::sum;
      const cudaStream_t s = new_stream(), captured = new_stream();
      const Number x(static_cast<float>(rank + 1)), y(0), z(0);
      // Everything needed is allocated now.
      if (what == What::message_before_a_capture) OURO_OK(sum(z, z, comm, captured));
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
    if (rank == 1) {  // it never makes the second call
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
  for (int looks = 0; looks < 50; ++looks) {  // until none of them is closing in the background
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

TEST(Gpu, NonBlockingSplitReducesOnItsStream) {
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
