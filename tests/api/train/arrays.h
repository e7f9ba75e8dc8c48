// Arrays on the host or on GPU 0, real or fake, that tests fill and read back; and the places where a step
// can run. Used by tests/api/train.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/device/gpu.h"
#include "ouro/train/optim.hpp"

namespace ouro::test {

inline constexpr Device kGpu{Device::Kind::cuda, 0};

/// Memory and stream of a step.
enum class Where { host, host_stream, gpu, gpu_stream, gpu_from_host_stream };
inline constexpr Where kEverywhere[] = {Where::host, Where::host_stream, Where::gpu, Where::gpu_stream,
                                        Where::gpu_from_host_stream};
inline const char* name(Where w) {
  constexpr const char* kNames[] = {"host", "host on a stream", "GPU", "GPU on a stream",
                                    "GPU from a stream of the host"};
  return kNames[static_cast<int>(w)];
}
inline Device device_of(Where w) { return w <= Where::host_stream ? Device{} : kGpu; }
/// Each stream is created once, and the tests share them.
inline const Stream& stream_of(Where w) {
  static const Stream none;
  static const Stream host = [] { return *Stream::create(); }();
  if (w == Where::host || w == Where::gpu) return none;
  if (w != Where::gpu_stream) return host;
  static const Stream gpu = [] { return *Stream::create(kGpu); }();
  return gpu;
}

/// Copies between the host and memory of `d`, or within the host; the copy is complete when it returns.
inline Status copy_bytes(Device d, void* to, const void* from, std::size_t bytes) {
  if (d.kind == Device::Kind::host) return std::memcpy(to, from, bytes), Status();
  const auto stream = gpu::gpu().create_stream(d.index, 0);
  OURO_TRY(stream.status());
  Status moved = gpu::gpu().copy(to, from, bytes, *stream);
  if (moved.ok()) moved = gpu::gpu().synchronize(*stream);
  const Status ended = gpu::gpu().destroy_stream(*stream);
  return moved.ok() ? ended : moved;
}

/// `count` elements of `dtype`, initially zero.
class Array {
 public:
  Array(Device d, std::size_t count, DType t) : view_(nullptr, count, t, d) {
    const std::size_t bytes = std::max<std::size_t>(view_.bytes(), 8);
    if (d.kind == Device::Kind::host) {
      room_.resize(bytes / 8 + 1);
      view_.data = room_.data();
    } else {
      auto memory = gpu::gpu().alloc(d.index, bytes);
      EXPECT_TRUE(memory.ok()) << memory.status().message();
      view_.data = *memory;
      stream_ = *gpu::gpu().create_stream(d.index, 0);
      EXPECT_TRUE(gpu::gpu().set(view_.data, 0, bytes, stream_).ok());
      EXPECT_TRUE(gpu::gpu().synchronize(stream_).ok());
    }
  }
  template <class T>
  Array(Device d, const std::vector<T>& values, DType t = DTypeOf<T>::value) : Array(d, values.size(), t) {
    write(values);
  }
  ~Array() {
    if (view_.device.kind == Device::Kind::host) return;
    EXPECT_TRUE(gpu::gpu().destroy_stream(stream_).ok());
    EXPECT_TRUE(gpu::gpu().free(view_.data).ok());
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  const View& view() const { return view_; }
  template <class T>
  void write(const std::vector<T>& values) {
    copy(view_.data, values.data(), values.size() * sizeof(T));
  }
  /// T must have the size of the elements.
  template <class T>
  std::vector<T> read() const {
    std::vector<T> values(view_.count);
    copy(values.data(), view_.data, view_.bytes());
    return values;
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all(view_.bytes());
    copy(all.data(), view_.data, all.size());
    return all;
  }

 private:
  void copy(void* to, const void* from, std::size_t bytes) const {
    if (view_.device.kind == Device::Kind::host) {
      std::memcpy(to, from, bytes);
      return;
    }
    EXPECT_TRUE(gpu::gpu().copy(to, from, bytes, stream_).ok());
    EXPECT_TRUE(gpu::gpu().synchronize(stream_).ok());
  }
  View view_;
  std::vector<std::uint64_t> room_;
  gpu::Stream stream_;
};

/// Numbers in [low, high] that depend on the seed.
template <class T>
std::vector<T> numbers(std::size_t n, unsigned seed, double low = -1, double high = 1) {
  std::vector<T> v(n);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (T& x : v) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    x = static_cast<T>(low + (high - low) * static_cast<double>(state >> 40) / double{1 << 24});
  }
  return v;
}
/// The same, truncated to bf16.
inline std::vector<std::uint16_t> bf16_numbers(std::size_t n, unsigned seed, double low = -1,
                                               double high = 1) {
  std::vector<std::uint16_t> v;
  for (const float x : numbers<float>(n, seed, low, high)) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, 4);
    v.push_back(static_cast<std::uint16_t>(bits >> 16));
  }
  return v;
}

inline ::testing::AssertionResult ok(const Status& s) {
  if (s.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << s.message();
}
template <class T>
::testing::AssertionResult ok(const Result<T>& r) {
  return ok(r.status());
}

}  // namespace ouro::test
