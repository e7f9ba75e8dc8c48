// Memory of fake GPUs as a program allocates it itself, and operations on it that say whether they went by
// pointer. Used by the tests of registration.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "kernels/device/fake/fake_gpu.h"
#include "runtime/group/group.h"
#include "tests/runtime/exec/gpu/device_arena.h"

namespace ouro::test {

inline constexpr std::size_t kUnit = 64 << 10;  // of chunks
inline constexpr std::size_t kCount = 40'003;   // floats: more than one unit, and above what goes by packets
inline constexpr int kNamedFrom = 3;            // calls until all have mapped a buffer

inline gpu::FakeGpu& fake() { return static_cast<gpu::FakeGpu&>(gpu::gpu()); }

/// Memory as a program has it: of cudaMalloc, or of cuMemMap in chunks of so many units. The destructor frees
/// what is left.
class Own {
 public:
  Own() = default;
  ~Own() { free(); }
  Own(const Own&) = delete;
  Own& operator=(const Own&) = delete;

  Status make(Context& c, std::size_t bytes) {
    device_ = c.device().index;
    OURO_ASSIGN(void* const p, gpu::gpu().alloc(device_, bytes));
    data_ = static_cast<std::byte*>(p), bytes_ = bytes;
    return make_stream();
  }
  /// `room`: units that are reserved.
  Status make_chunks(Context& c, const std::vector<std::size_t>& units, std::size_t room,
                     bool shareable = true) {
    device_ = c.device().index;
    OURO_ASSIGN(void* const p, fake().reserve(device_, room * kUnit));
    data_ = static_cast<std::byte*>(p);
    for (const std::size_t u : units) OURO_TRY(grow(u, shareable));
    return make_stream();
  }
  Status grow(std::size_t units, bool shareable = true) {
    OURO_TRY(fake().map(device_, data_ + bytes_, units * kUnit, shareable));
    chunks_.push_back(data_ + bytes_);
    bytes_ += units * kUnit;
    return {};
  }
  /// Gives the memory back and keeps the addresses.
  Status unmap_all() {
    for (std::byte* chunk : std::exchange(chunks_, {})) OURO_TRY(fake().unmap(chunk));
    bytes_ = 0;
    return {};
  }
  /// Gives the first chunk back and keeps its addresses.
  Status unmap_first() {
    std::byte* const first = chunks_.front();
    chunks_.erase(chunks_.begin());
    return fake().unmap(first);
  }
  void free() {
    if (!data_) return;
    if (reserved()) {
      EXPECT_TRUE(unmap_all().ok());
      EXPECT_TRUE(fake().unreserve(data_).ok());
    } else {
      EXPECT_TRUE(gpu::gpu().free(data_).ok());
    }
    data_ = nullptr;
    EXPECT_TRUE(gpu::gpu().destroy_stream(stream_).ok());
  }
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  /// `count` floats at `offset`, which are all `v`.
  Status fill(std::size_t offset, std::size_t count, float v) {
    const std::vector<float> all(count, v);
    OURO_TRY(gpu::gpu().copy(data_ + offset, all.data(), 4 * count, stream_));
    return gpu::gpu().synchronize(stream_);
  }
  std::string expect(std::size_t offset, std::size_t count, float v) {
    std::vector<float> all(count);
    OURO_RANK_OK(gpu::gpu().copy(all.data(), data_ + offset, 4 * count, stream_));
    OURO_RANK_OK(gpu::gpu().synchronize(stream_));
    for (std::size_t i = 0; i < count; ++i)
      if (all[i] != v) return fmt::format("element {}: {} in place of {}", i, all[i], v);
    return "";
  }

 private:
  bool reserved() const { return !chunks_.empty() || bytes_ == 0; }
  Status make_stream() {
    OURO_ASSIGN(stream_, gpu::gpu().create_stream(device_, 0));
    return {};
  }
  int device_ = 0;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<std::byte*> chunks_;
  gpu::Stream stream_;
};

/// An all-reduce in place of `count` floats at `offset`, checked. *named: whether it went by pointer.
inline std::string reduce(Group& g, const Context& c, Own& on, std::size_t offset, std::size_t count,
                          bool* named) {
  const std::uint64_t before = g.impl()->gpu_named();
  OURO_RANK_OK(on.fill(offset, count, static_cast<float>(g.rank() + 1)));
  OURO_RANK_OK(barrier(g));
  const View v(on.data() + offset, count, DType::f32, c.device());
  OURO_RANK_OK(all_reduce(g, v, v));
  *named = g.impl()->gpu_named() > before;
  return on.expect(offset, count, static_cast<float>(g.size() * (g.size() + 1) / 2));
}

/// Calls reduce() until all ranks have mapped the buffer, if they are to. *named: whether the last call
/// went by pointer.
inline std::string settle(Group& g, const Context& c, Own& on, std::size_t offset, std::size_t count,
                          bool* named) {
  for (int call = 1; call <= kNamedFrom + 1; ++call)
    if (std::string said = reduce(g, c, on, offset, count, named); !said.empty())
      return fmt::format("call {}: {}", call, said);
  return "";
}
#define SETTLES(expected, ...)                                         \
  do {                                                                 \
    bool named = false;                                                \
    if (std::string said = settle(__VA_ARGS__, &named); !said.empty()) \
      return fmt::format("{}:{}: {}", __FILE__, __LINE__, said);       \
    OURO_RANK_CHECK(named == (expected), "named: {}", named);          \
  } while (0)

}  // namespace ouro::test
