// Helpers that the tests of the fake GPU share: unwrapping results, a flag word, a time limit, a matcher for
// errors. Used by tests/kernels/device/fake_gpu_*.cc only.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "kernels/device/fake/fake_gpu.h"
#include "tests/timing.h"

#if defined(__SANITIZE_THREAD__)
#define OURO_NEEDS_PROCESSES() GTEST_SKIP() << "under ThreadSanitizer: it does not follow processes"
#else
#define OURO_NEEDS_PROCESSES() static_cast<void>(0)
#endif

#define OK(...) ASSERT_EQ((__VA_ARGS__).message(), Status().message())

namespace ouro {
inline void PrintTo(const Status& s, std::ostream* os) { *os << s.message(); }
}  // namespace ouro

namespace ouro::gpu::test {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

template <class T>
T value(Result<T> r) {
  if (!r.ok()) throw std::runtime_error(r.status().message());
  return *std::move(r);
}
template <class T>
Status status(const Result<T>& r) {
  return r.status();
}
inline Status status(const Status& s) { return s; }

/// Matches a Status or a Result by its reason and a part of its text.
MATCHER_P2(Fails, reason, part, std::string("fails with ") + name(reason) + ": ..." + part) {
  const Status s = status(arg);
  *result_listener << s.message();
  return s.reason() == reason && s.message().find(part) != std::string::npos;
}

inline std::uint32_t load(const void* word) {
  return std::atomic_ref(*static_cast<std::uint32_t*>(const_cast<void*>(word)))
      .load(std::memory_order_acquire);
}
inline void store(void* word, std::uint32_t v) {
  std::atomic_ref(*static_cast<std::uint32_t*>(word)).store(v, std::memory_order_release);
}
inline MemOp write(void* word, std::uint32_t v) { return {MemOp::Kind::write, v, word}; }
inline MemOp at_least(void* word, std::uint32_t v) { return {MemOp::Kind::wait_at_least, v, word}; }
inline MemOp equal(void* word, std::uint32_t v) { return {MemOp::Kind::wait_equal, v, word}; }

/// False if `f` does not become true in time.
inline bool eventually(const std::function<bool()>& f, std::chrono::milliseconds limit = ouro::test::kHang) {
  for (const auto until = Clock::now() + limit; Clock::now() < until; std::this_thread::sleep_for(200us))
    if (f()) return true;
  return f();
}

/// A fake with a stream on device 0, and zeroed words there and in pinned memory.
struct Rig {
  explicit Rig(FakeOptions o = {}) : gpu(std::move(o)) {
    stream = value(gpu.create_stream(0, 0));
    words = static_cast<std::uint32_t*>(value(gpu.alloc(0, 256)));
    host = static_cast<std::uint32_t*>(value(gpu.alloc_pinned(256)));
    std::memset(words, 0, 256);
    std::memset(host, 0, 256);
  }
  Status enqueue(MemOp op, Stream s) { return gpu.enqueue(std::span(&op, 1), s); }
  Status enqueue(MemOp op) { return enqueue(op, stream); }
  Stream another(int device = 0) { return value(gpu.create_stream(device, 0)); }
  Event event(bool timing = false, int device = 0) { return value(gpu.create_event(device, timing)); }

  FakeGpu gpu;
  Stream stream;
  std::uint32_t *words, *host;
};

/// Makes a kernel with one argument struct from a captureless lambda (const Args&, int block, int blocks).
template <class Args, class F>
Kernel kernel(const char* name, F, bool spins = false) {
  return {.name = name,
          .host =
              [](const void* a, int block, int blocks) {
                F()
                (*static_cast<const Args*>(a), block, blocks);
              },
          .arg_bytes = sizeof(Args),
          .spins = spins};
}

}  // namespace ouro::gpu::test
