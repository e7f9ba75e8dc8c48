// What the parts of bench_gpu_floor share: the device, the limits of time, lines of output, and measuring
// loops. A line is "name value unit" and is written at once, so that a program that is cut off loses nothing.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/device/gpu.h"
#include "tools/measure/figures.h"

namespace ouro::bench {

using Clock = std::chrono::steady_clock;

constexpr int kWallLimit = 42;  // seconds after which the program ends, also in a call of the driver
constexpr std::chrono::seconds kLastRow{35};  // no row begins later
constexpr std::chrono::seconds kPatience{5};  // for the device

inline double us_since(Clock::time_point t) {
  return std::chrono::duration<double, std::micro>(Clock::now() - t).count();
}

class Session {
 public:
  Session(gpu::Gpu& g, int device, gpu::Properties p, bool quick)
      : gpu(g), device(device), quick(quick), properties(std::move(p)) {}

  gpu::Gpu& gpu;
  const int device;
  const bool quick;
  const gpu::Properties properties;

  int rounds() const { return quick ? 3 : 15; }
  /// False if no time is left for the row; that is printed.
  bool begins(const std::string& name) const {
    if (Clock::now() < begin_ + kLastRow) return true;
    fmt::print("# {}: skipped, no time left\n", name);
    std::fflush(stdout);
    return false;
  }
  static void line(const std::string& name, double value, const char* unit) {
    fmt::print("{} {:.{}f} {}\n", name, value, value < 10 ? 3 : 2, unit);
    std::fflush(stdout);
  }

  /// Waits until `done()` for a limited time.
  template <class F>
  static Status await(F done) {
    const Clock::time_point end = Clock::now() + kPatience;
    for (;;) {
      const Result<bool> now = done();
      OURO_TRY(now.status());
      if (*now) return {};
      if (Clock::now() > end) return {Reason::deadline, "the device did not finish within 5 s"};
    }
  }
  Status finish(gpu::Stream s) {
    return await([&] {
      std::this_thread::yield();
      return gpu.query(s);
    });
  }

 private:
  const Clock::time_point begin_ = Clock::now();
};

/// Pinned memory of a word, and a stream that can be held up by it. All work that is enqueued between close()
/// and open() begins together.
class Gate {
 public:
  static Result<Gate> make(Session& s) {
    OURO_ASSIGN(void* const word, s.gpu.alloc_pinned(sizeof(std::uint32_t)));
    Gate g(s, static_cast<std::uint32_t*>(word));
    *g.word_ = 0;
    return g;
  }
  Gate(Gate&& o) noexcept : session_(o.session_), word_(std::exchange(o.word_, nullptr)), turn_(o.turn_) {}
  Gate& operator=(Gate&& o) noexcept {
    std::swap(session_, o.session_), std::swap(word_, o.word_), std::swap(turn_, o.turn_);
    return *this;
  }
  ~Gate() {
    if (!word_) return;
    open();
    (void)session_->gpu.free_pinned(word_).ok();
  }
  Status close(gpu::Stream s) {
    const gpu::MemOp wait{gpu::MemOp::Kind::wait_at_least, ++turn_, word_};
    return session_->gpu.enqueue({&wait, 1}, s);
  }
  void open() { std::atomic_ref(*word_).store(turn_, std::memory_order_release); }

 private:
  Gate(Session& s, std::uint32_t* word) : session_(&s), word_(word) {}
  Session* session_;
  std::uint32_t* word_;
  std::uint32_t turn_ = 0;
};

/// The parts of the program, each in a file of its own. Rows of features that the device lacks are left out.
Status device_rows(Session&);   ///< bandwidths, launches, graphs, hand-offs between streams
Status call_rows(Session&);     ///< prices of calls, from several threads at once
Status memory_rows(Session&);   ///< words that the host sees, fills, kernels that read and write unevenly
Status process_rows(Session&);  ///< mappings, words and kernels of two processes
/// The other process of process_rows: serves it over a socket until that is closed. Returns the exit code.
int serve_process_rows(int socket, int device);

}  // namespace ouro::bench
