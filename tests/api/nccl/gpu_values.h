// Helpers that the tests of GPU mode share: a number on a device, a gate in a stream. Programs use only CUDA
// and nccl.h; the devices are emulated.
#pragma once
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>

#include "nccl.h"

namespace ouro::test {

#define CUDA_OK(call) ASSERT_EQ(call, cudaSuccess)

/// A number on the device of one rank.
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
  /// The value once everything in the stream has run.
  float read(cudaStream_t s) const {
    float value = -1;
    EXPECT_EQ(cudaMemcpyAsync(&value, data_, sizeof value, cudaMemcpyDeviceToHost, s), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(s), cudaSuccess);
    return value;
  }

 private:
  float* data_ = nullptr;
};

/// Blocks a stream until it is opened.
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

inline cudaStream_t new_stream() {
  cudaStream_t s = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
  return s;
}

inline ncclResult_t sum(const Number& in, const Number& out, ncclComm_t comm, cudaStream_t s) {
  return ncclAllReduce(in.get(), out.get(), 1, ncclFloat, ncclSum, comm, s);
}

}  // namespace ouro::test
