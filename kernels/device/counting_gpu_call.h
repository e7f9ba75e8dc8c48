// The counters of one thread, and a call while it is counted. Used by the files of CountingGpu only.
#pragma once
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/device/counting_gpu.h"

namespace ouro::gpu {

/// Written by one thread, read by all.
struct CountingGpu::OfThread {
  using Number = std::atomic<std::uint64_t>;
  explicit OfThread(std::string of_class) : name(std::move(of_class)) {}
  static void add(Number& n, std::uint64_t more) {
    n.store(n.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
  Report report() const {
    Report r;
    for (std::size_t i = 0; i < kGpuCalls; ++i) {
      r.counts.calls[i] = calls[i].load(std::memory_order_relaxed);
      r.total_ns[i] = total_ns[i].load(std::memory_order_relaxed);
      r.max_ns[i] = max_ns[i].load(std::memory_order_relaxed);
    }
    r.counts.words = words.load(std::memory_order_relaxed);
    r.counts.driver = driver.load(std::memory_order_relaxed);
    r.counts.contexts = contexts.load(std::memory_order_relaxed);
    return r;
  }

  const std::string name;
  bool ended = false;  // guarded by the registry's mutex
  std::array<Number, kGpuCalls> calls{}, total_ns{}, max_ns{};
  Number words{0}, driver{0}, contexts{0};
};

/// Counts a call when it begins, and its time when it ends.
class CountingGpu::Call {
 public:
  Call(CountingGpu& gpu, GpuCall kind)
      : of_(gpu.of_this_thread()), kind_(static_cast<std::size_t>(kind)), timed_(gpu.timed_) {
    OfThread::add(of_.calls[kind_], 1);
    driver(terms(kind).driver, terms(kind).contexts);
    if (timed_) begin_ = Clock::now();
  }
  ~Call() {
    if (!timed_) return;
    const auto ns = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin_).count());
    OfThread::add(of_.total_ns[kind_], ns);
    if (ns > of_.max_ns[kind_].load(std::memory_order_relaxed))
      of_.max_ns[kind_].store(ns, std::memory_order_relaxed);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  void driver(std::uint64_t more, std::uint64_t contexts) {
    OfThread::add(of_.driver, more);
    OfThread::add(of_.contexts, contexts);
  }
  void words(std::uint64_t more) { OfThread::add(of_.words, more); }

 private:
  using Clock = std::chrono::steady_clock;
  OfThread& of_;
  const std::size_t kind_;
  const bool timed_;
  Clock::time_point begin_;
};

}  // namespace ouro::gpu
