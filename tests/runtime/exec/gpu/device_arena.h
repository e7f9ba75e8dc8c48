// Device memory for tests: arenas on a rank's GPU that are filled from and read back to the host. Used
// by tests/runtime/exec/gpu.
#pragma once
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/fake/fake_gpu.h"
#include "tests/runtime/group/ranks.h"

namespace ouro::test {

/// The source of a buffer: ouro's allocator, or the driver's, as for a user's own memory.
enum class From { ouro, driver };
inline const char* name(From f) { return f == From::ouro ? "ouro" : "driver"; }

/// The stream in which all arenas of a device are written and read, whichever thread they belong to. With one
/// for each of them, eight ranks that are threads would have more streams than a device has hardware queues.
struct CopyStream {
  static Result<std::shared_ptr<CopyStream>> of_device(int device);
  ~CopyStream() {
    if (stream.device >= 0) (void)gpu::gpu().destroy_stream(stream).ok();
  }
  gpu::Stream stream;
};

/// Memory on the GPU of a rank. Copies to and from it have ended when the calls return.
class DeviceArena {
 public:
  DeviceArena() = default;
  ~DeviceArena() {
    // A driver that frees memory waits for all work of the process, while ranks that are threads wait for
    // each other: its memory stays.
    if (own_ && std::getenv("OURO_FAKE_GPUS")) (void)gpu::gpu().free(own_).ok();
  }
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  Status make(Context& c, std::size_t bytes, From from) {
    bytes_ = bytes;
    OURO_ASSIGN(copies_, CopyStream::of_device(c.device().index));
    if (from == From::ouro) {
      auto m = c.alloc(bytes, c.device());
      if (!m.ok()) return m.status();
      memory_ = *m;
      data_ = static_cast<std::byte*>(memory_.data());
      return {};
    }
    auto p = gpu::gpu().alloc(c.device().index, bytes);
    if (!p.ok()) return p.status();
    own_ = *p;
    data_ = static_cast<std::byte*>(own_);
    return {};
  }
  std::byte* data() const { return data_; }
  Status write(const std::vector<std::byte>& bytes) {
    OURO_TRY(gpu::gpu().copy(data_, bytes.data(), bytes.size(), copies_->stream));
    return gpu::gpu().synchronize(copies_->stream);
  }
  Result<std::vector<std::byte>> read() { return read(bytes_); }
  Result<std::vector<std::byte>> read(std::size_t many) {
    std::vector<std::byte> bytes(many);
    OURO_TRY(gpu::gpu().copy(bytes.data(), data_, many, copies_->stream));
    OURO_TRY(gpu::gpu().synchronize(copies_->stream));
    return bytes;
  }

 private:
  Memory memory_;
  void* own_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::shared_ptr<CopyStream> copies_;
};

/// Floats on a device, written and read in stream order.
struct Floats {
  DeviceArena arena;
  std::size_t count = 0;
  Device device;
  Status make(Context& c, std::size_t n, From from = From::ouro) {
    count = n, device = c.device();
    return arena.make(c, 4 * n, from);
  }
  View view() const { return View(arena.data(), count, DType::f32, device); }
  Status fill(float v) {
    std::vector<std::byte> bytes(4 * count);
    for (std::size_t i = 0; i < count; ++i) std::memcpy(&bytes[4 * i], &v, 4);
    return arena.write(bytes);
  }
  /// "" if all elements are v.
  std::string expect(float v) {
    auto bytes = arena.read();
    if (!bytes.ok()) return bytes.status().message();
    for (std::size_t i = 0; i < count; ++i) {
      float x;
      std::memcpy(&x, &(*bytes)[4 * i], 4);
      if (x != v) return fmt::format("element {}: {} in place of {}", i, x, v);
    }
    return "";
  }
};
#define OURO_EXPECT_ALL(floats, value)                            \
  do {                                                            \
    if (std::string said = (floats).expect(value); !said.empty()) \
      return fmt::format("{}:{}: {}", __FILE__, __LINE__, said);  \
  } while (0)

/// First statement of a test that installs fake devices of its own.
#define OURO_NEEDS_FAKES() \
  if (!std::getenv("OURO_FAKE_GPUS")) GTEST_SKIP() << "emulated devices only (OURO_FAKE_GPUS)"

/// First statement of a test that needs a device, real or fake.
#define OURO_NEEDS_GPU() \
  if (!::ouro::test::has_gpu()) GTEST_SKIP() << "no CUDA device"
/// Whether there is a device. Asked in a child process, because a process that has used CUDA cannot
/// fork ranks.
bool has_gpu();
/// The number of devices, asked in the same way.
int gpus();
/// Between processes, each resident kernel needs a GPU of its own. Emulated ones are provided by ForcedPath.
#define OURO_NEEDS_GPU_EACH(path, mode, ranks)                                           \
  if (std::string_view(path) == "resident" && (mode) == ::ouro::test::Mode::processes && \
      !std::getenv("OURO_FAKE_GPUS") && ::ouro::test::gpus() < (ranks))                  \
  GTEST_SKIP() << "fewer GPUs than ranks: a resident kernel of a process needs its own"

/// Forces the path of operations (OURO_GPU_PATH) while an object lives. Kernels that spin need one device
/// for each process: emulated ones are provided if no process has used any yet. Tests check with
/// only_ran() afterwards.
class ForcedPath {
 public:
  explicit ForcedPath(const std::string& path, Mode mode = Mode::threads) {
    setenv("OURO_GPU_PATH", path.c_str(), 1);
    if (path == "resident" && mode == Mode::processes && std::getenv("OURO_FAKE_GPUS"))
      setenv("OURO_FAKE_GPUS", "8", 1);
  }
  ~ForcedPath() { unsetenv("OURO_GPU_PATH"); }
};

/// For tests of `nvls`: the number of ranks that can each have a GPU with multicast objects. Eight if devices
/// are emulated (FakeForEach).
int multicast_gpus();

/// Provides emulated devices, one for each of eight ranks, while an object lives.
class FakeForEach {
 public:
  explicit FakeForEach(gpu::FakeOptions options = {}) : fakes_(at_least(std::move(options))) {
    gpu::install(&fakes_);
  }
  ~FakeForEach() { gpu::install(nullptr); }
  gpu::FakeLive live() { return fakes_.live(); }

 private:
  static gpu::FakeOptions at_least(gpu::FakeOptions o) {
    o.devices = 8;
    return o;
  }
  gpu::FakeGpu fakes_;
};

/// "" if this rank has enqueued operations of the group on `path`, and on no other; else the paths that were
/// used. A group of one rank counts as "alone" on every path except the staged one.
std::string only_ran(Group&, std::string_view path);

}  // namespace ouro::test
