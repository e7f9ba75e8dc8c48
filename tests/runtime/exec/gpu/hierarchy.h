// Two hosts of two ranks each, with one GPU per rank and no shared memory between hosts, and counters of what
// crosses the bus between GPUs and hosts. On emulated devices. Used by the tests of the path `hierarchy`.
#pragma once
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/device/fake/fake_gpu.h"
#include "tests/runtime/exec/gpu/device_arena.h"

namespace ouro::test {

inline constexpr int kRanks = 4, kMates = 2;

/// Bytes that the devices of this process have copied down to the host, and up.
class Crossed {
 public:
  static Crossed& seen() {
    static Crossed crossed;
    return crossed;
  }
  void begin() {
    std::lock_guard lock(mutex_);
    down_ = up_ = downs_ = ups_ = 0;
  }
  std::size_t down() { return read(down_); }
  std::size_t up() { return read(up_); }
  std::size_t downs() { return read(downs_); }  ///< number of copies
  std::size_t ups() { return read(ups_); }
  void die_at_up(std::size_t which) {
    std::lock_guard lock(mutex_);
    dies_at_ = which;
  }
  void copying(const void* to, const void* from, std::size_t bytes) {
    const bool into = on_device(to), out_of = on_device(from);
    if (into == out_of) return;
    std::lock_guard lock(mutex_);
    (into ? up_ : down_) += bytes;
    ++(into ? ups_ : downs_);
    if (into && ups_ == dies_at_) raise(SIGKILL);
  }

 private:
  static bool on_device(const void* p) {
    const auto info = gpu::gpu().pointer(p);
    return info.ok() && info->kind == gpu::MemoryKind::device;
  }
  std::size_t read(const std::size_t& value) {
    std::lock_guard lock(mutex_);
    return value;
  }
  std::mutex mutex_;
  std::size_t down_ = 0, up_ = 0, downs_ = 0, ups_ = 0, dies_at_ = 0;
};

/// `hosts`: as in TEST_HOSTS; with 'i' the ranks of a host are not consecutive.
class GpuHierarchy : public testing::TestWithParam<std::tuple<Mode, const char*>> {
 protected:
  void SetUp() override { begin(std::get<1>(GetParam()), std::get<0>(GetParam())); }
  void begin(const char* hosts, Mode mode) {
    OURO_NEEDS_FAKES();
    OURO_SKIP_PROCESSES_UNDER_TSAN(mode);
    for (const auto& [name, value] :
         {std::pair("TEST_HOSTS", hosts), {"OURO_SOCKET_IFNAME", "lo"}, {"OURO_INSECURE", "1"}}) {
      const char* const had = std::getenv(name);
      before_.emplace_back(name, had ? std::optional<std::string>(had) : std::nullopt);
      setenv(name, value, 1);
    }
    give({});
  }
  /// Installs other devices, before any rank has one.
  gpu::FakeGpu& give(gpu::FakeOptions options, int devices = kRanks) {
    options.devices = devices;
    options.copying = [](const void* to, const void* from, std::size_t bytes) {
      Crossed::seen().copying(to, from, bytes);
    };
    fake_ = std::make_unique<gpu::FakeGpu>(std::move(options));
    gpu::install(fake_.get());
    return *fake_;
  }
  gpu::FakeGpu& fake() { return *fake_; }
  void TearDown() override {
    gpu::install(nullptr);
    for (const auto& [name, value] : before_) value ? setenv(name, value->c_str(), 1) : unsetenv(name);
  }

 private:
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
  std::unique_ptr<gpu::FakeGpu> fake_;
};

}  // namespace ouro::test
