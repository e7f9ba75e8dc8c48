// Streams of fake GPUs and what runs on them. See fake_stream.h.
#include "kernels/device/fake/fake_stream.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <system_error>

namespace ouro::gpu::fake {
namespace {

using namespace std::chrono_literals;

constexpr auto kSlice = 10ms;  // how late a wait notices that its device has ended
constexpr int kSpins = 64, kYields = 64;
constexpr auto kShortestSleep = 20us, kLongestSleep = 100us;

thread_local bool t_in_host_work = false;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// splitmix64: one well-mixed number for each `n`.
std::uint64_t mixed(std::uint64_t n) {
  n += 0x9e3779b97f4a7c15u;
  n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9u;
  n = (n ^ (n >> 27)) * 0x94d049bb133111ebu;
  return n ^ (n >> 31);
}

bool holds(MemOp::Kind kind, std::uint32_t now, std::uint32_t value) {
  return kind == MemOp::Kind::wait_equal ? now == value : reached(now, value);
}

/// Many ranks share few cores: it polls briefly, then leaves the core to those it waits for.
void wait_for_word(const MemOp& op, const Run& run) {
  const std::atomic_ref word(*static_cast<std::uint32_t*>(op.address));
  auto sleep = kShortestSleep;
  for (int i = 0; !holds(op.kind, word.load(std::memory_order_acquire), op.value); ++i) {
    if (run.ended()) return;
    if (i < kSpins) {
      pause_briefly();
    } else if (i < kSpins + kYields) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(sleep);
      sleep = std::min(sleep * 2, kLongestSleep);
    }
  }
}

/// Runs f(0), ..., f(n - 1) at the same time, f(0) on this thread. False, and none ran: threads are lacking.
template <class F>
bool together(int n, const F& f) {
  std::atomic<int> gate{0};  // 1: go, -1: do not
  std::vector<Thread> others;
  bool all = true;
  try {
    others.reserve(static_cast<std::size_t>(n));
    for (int i = 1; i < n; ++i)
      others.emplace_back("ouro-fake", [&gate, &f, i] {
        gate.wait(0, std::memory_order_acquire);
        if (gate.load(std::memory_order_acquire) > 0) f(i);
      });
  } catch (const std::system_error&) {
    all = false;
  }
  gate.store(all ? 1 : -1, std::memory_order_release);
  gate.notify_all();
  if (all) f(0);
  for (Thread& t : others) t.join();
  return all;
}

/// The memory of an access, held until it has ended; the device is lost if it is not there.
bool hold(const Memory& memory, const void* p, std::size_t bytes, const char* what, const Run& run,
          std::shared_ptr<const Block>& held) {
  auto block = memory.range(p, bytes);
  if (block.ok()) {
    held = *std::move(block);
    return true;
  }
  run.control.lose(run.device,
                   fmt::format("illegal address in {}: {}", what, block.status().failure()->text));
  return false;
}

}  // namespace

Control::Control(int devices, const Control& from) : Control(devices) {
  for (std::size_t i = 0; i < kFakeOps; ++i) {
    delay_us_[i].store(from.delay_us_[i].load(std::memory_order_relaxed), std::memory_order_relaxed);
    failure_[i].store(from.failure_[i].load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  jitter(from.seed_.load(std::memory_order_relaxed));
}

bool Control::ended(int device) const {
  return stopping_.load(std::memory_order_acquire) || at(device).lost.load(std::memory_order_acquire);
}

void Control::lose(int device, std::string why) {
  Device& d = at(device);
  std::lock_guard lock(d.mutex);
  if (d.lost.load(std::memory_order_relaxed)) return;  // the first reason stays
  d.why = std::move(why);
  d.lost.store(true, std::memory_order_release);
}

Status Control::lost(int device) const {
  if (stopping_.load(std::memory_order_acquire)) return {Reason::revoked, "the fake GPU is being destroyed"};
  Device& d = at(device);
  if (!d.lost.load(std::memory_order_acquire)) return {};
  std::lock_guard lock(d.mutex);
  return {Reason::device, fmt::format("fake device {} is lost: {}", device, d.why)};
}

void Control::delay(FakeOp kind, std::chrono::microseconds d) {
  delay_us_[static_cast<std::size_t>(kind)].store(d.count(), std::memory_order_relaxed);
}
void Control::fail_next(FakeOp kind, Reason reason) {
  failure_[static_cast<std::size_t>(kind)].store(reason, std::memory_order_relaxed);
}
Reason Control::take(FakeOp kind, bool keep_fault) {
  auto& failure = failure_[static_cast<std::size_t>(kind)];
  Reason reason = failure.load();
  while (reason != Reason::none &&
         !(keep_fault && reason == Reason::device))  // ends: each try empties it or sees it changed
    if (failure.compare_exchange_weak(reason, Reason::none)) return reason;
  return Reason::none;
}
bool Control::take_fault(FakeOp kind) {
  Reason fault = Reason::device;
  return failure_[static_cast<std::size_t>(kind)].compare_exchange_strong(fault, Reason::none);
}

void Control::hesitate(FakeOp kind, int device) {
  auto left =
      std::chrono::microseconds(delay_us_[static_cast<std::size_t>(kind)].load(std::memory_order_relaxed));
  if (const std::uint64_t seed = seed_.load(std::memory_order_relaxed); seed != 0) {
    const std::uint64_t random = mixed(seed ^ turn_.fetch_add(1, std::memory_order_relaxed));
    if (random % 2 != 0) left += std::chrono::microseconds(random / 2 % 200);
  }
  const auto until = Clock::now() + left;
  while (left > 0us && !ended(device)) {
    std::this_thread::sleep_for(std::min<Clock::duration>(until - Clock::now(), kSlice));
    left = std::chrono::duration_cast<std::chrono::microseconds>(until - Clock::now());
  }
}

bool Control::enter_spin(int device, int blocks, int capacity) {
  Device& d = at(device);
  std::unique_lock lock(d.mutex);
  while (!d.room.wait_for(lock, kSlice, [&] { return d.spinning + blocks <= capacity; }))
    if (ended(device)) return false;
  d.spinning += blocks;
  return true;
}

void Control::leave_spin(int device, int blocks) {
  Device& d = at(device);
  {
    std::lock_guard lock(d.mutex);
    d.spinning -= blocks;
  }
  d.room.notify_all();
}

void Mark::pass() {
  {
    std::lock_guard lock(mutex_);
    passed_ = true;
    when_ = Clock::now();
  }
  cv_.notify_all();
}
bool Mark::passed() const {
  std::lock_guard lock(mutex_);
  return passed_;
}
Clock::time_point Mark::when() const {
  std::lock_guard lock(mutex_);
  return when_;
}
void Mark::wait_on_stream(const Control& control, int device) {
  std::unique_lock lock(mutex_);
  while (!cv_.wait_for(lock, kSlice, [&] { return passed_; }))
    if (control.ended(device) || control.ended(device_)) return;
}
void Mark::wait() {
  std::unique_lock lock(mutex_);
  cv_.wait(lock, [&] { return passed_; });
}

void perform(const Op& op, const Run& run) {
  if (!run.ended()) run.control.hesitate(op.kind, run.device);
  if (!run.ended() || op.kind == FakeOp::record) op.work(run);
}

void replay(const Recording& recording, const Run& outer) {
  std::deque<Mark> marks;
  for (int i = 0; i < recording.marks; ++i) marks.emplace_back(outer.device);
  const bool all = together(static_cast<int>(recording.lanes.size()), [&](int i) {
    const Recording::Lane& lane = recording.lanes[static_cast<std::size_t>(i)];
    const Run run{outer.control, lane.device, &marks};
    for (const Op& op : lane.ops) perform(op, run);
  });
  if (!all) outer.control.lose(outer.device, "no threads for the streams of a graph");
}

void Queue::end() {
  close();
  if (thread_.joinable()) thread_.join();
}

Status Queue::push(Op op) {
  {
    std::lock_guard lock(mutex_);
    if (!thread_.joinable()) {
      try {
        thread_ = Thread(name_, [this] { loop(); });
      } catch (const std::system_error& e) {
        return {Reason::resource, fmt::format("no thread for a fake stream: {}", e.what())};
      }
    }
    ops_.push_back(std::move(op));
    ++pushed_;
  }
  more_.notify_one();
  return {};
}

void Queue::push_behind_work(Op op) {
  {
    std::lock_guard lock(mutex_);
    if (done_ == pushed_) return;  // a closed queue's thread may have ended
    ops_.push_back(std::move(op));
    ++pushed_;
  }
  more_.notify_one();
}

bool Queue::idle() const {
  std::lock_guard lock(mutex_);
  return done_ == pushed_;
}
void Queue::drain() {
  std::unique_lock lock(mutex_);
  less_.wait(lock, [this, target = pushed_] { return done_ >= target; });
}
bool Queue::drain_until(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  return less_.wait_until(lock, until, [this, target = pushed_] { return done_ >= target; });
}
void Queue::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  more_.notify_one();
}

void Queue::loop() {
  const Run run{*control_, device_};
  for (;;) {
    Op op;
    {
      std::unique_lock lock(mutex_);
      more_.wait(lock, [this] { return closed_ || !ops_.empty(); });
      if (ops_.empty()) return;
      op = std::move(ops_.front());
      ops_.pop_front();
    }
    perform(op, run);
    op.work = nullptr;  // releases what it holds before anybody is told
    {
      std::lock_guard lock(mutex_);
      ++done_;
    }
    less_.notify_all();
  }
}

Work copy_work(const Memory& memory, void* to, const void* from, std::size_t bytes) {
  return [&memory, to, from, bytes](const Run& run) {
    std::shared_ptr<const Block> source, target;
    if (hold(memory, to, bytes, "copy", run, target) && hold(memory, from, bytes, "copy", run, source))
      std::memmove(to, from, bytes);
  };
}

Work set_work(const Memory& memory, void* to, std::uint8_t byte, std::size_t bytes) {
  return [&memory, to, byte, bytes](const Run& run) {
    std::shared_ptr<const Block> target;
    if (hold(memory, to, bytes, "set", run, target)) std::memset(to, byte, bytes);
  };
}

Work mem_op_work(const Memory& memory, std::span<const MemOp> ops) {
  return [&memory, ops = std::vector(ops.begin(), ops.end())](const Run& run) {
    for (const MemOp& op : ops) {
      std::shared_ptr<const Block> target;
      if (run.ended() || !hold(memory, op.address, sizeof op.value, "a stream value", run, target)) return;
      if (op.kind == MemOp::Kind::write)
        std::atomic_ref(*static_cast<std::uint32_t*>(op.address)).store(op.value, std::memory_order_release);
      else
        wait_for_word(op, run);
    }
  };
}

Work kernel_work(const Kernel& kernel, int blocks, const void* args, int capacity) {
  // Allocated by new: aligned for any argument.
  std::vector<std::byte> copied(kernel.arg_bytes);
  if (!copied.empty()) std::memcpy(copied.data(), args, copied.size());
  return [kernel, blocks, capacity, copied = std::move(copied)](const Run& run) {
    if (!kernel.spins) {
      for (int b = 0; b < blocks && !run.ended(); ++b) kernel.host(copied.data(), b, blocks);
      return;
    }
    if (!run.control.enter_spin(run.device, blocks, capacity)) return;
    const bool all = together(blocks, [&](int b) { kernel.host(copied.data(), b, blocks); });
    run.control.leave_spin(run.device, blocks);
    if (!all)
      run.control.lose(run.device, fmt::format("no threads for {} blocks of {}", blocks, kernel.name));
  };
}

Work host_work(void (*f)(void*), void* data) {
  return [f, data](const Run&) {
    t_in_host_work = true;
    f(data);
    t_in_host_work = false;
  };
}
Work fault_work() {
  return [](const Run& run) { run.control.lose(run.device, "injected fault"); };
}
bool in_host_work() { return t_in_host_work; }

}  // namespace ouro::gpu::fake
