// Decides which calls may begin and which fail. See fake_control.h.
#include "kernels/device/fake/fake_control.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace ouro::gpu::fake {
namespace {

using namespace std::chrono_literals;

constexpr int kPidShift = 40;  // handles are numbers: the process that made it, and an index
constexpr int kAligned = 4;    // even, like addresses, as in CUDA: PyTorch takes an odd one for its own

std::uintptr_t number_of(const void* handle) { return reinterpret_cast<std::uintptr_t>(handle); }

bool on_stream(FakeOp kind) { return kind <= FakeOp::graph; }

/// splitmix64: one well-mixed number for each `n`.
std::uint64_t mixed(std::uint64_t n) {
  n += 0x9e3779b97f4a7c15u;
  n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9u;
  n = (n ^ (n >> 27)) * 0x94d049bb133111ebu;
  return n ^ (n >> 31);
}

}  // namespace

bool& in_host_work() {
  static thread_local bool in = false;
  return in;
}

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
  if (d.lost.load(std::memory_order_relaxed)) return;  // the first reason is kept
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
         !(keep_fault && reason == Reason::device))  // the loop ends: each try empties it or finds it changed
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

Status Control::check(int device) const {
  if (device < 0 || static_cast<std::size_t>(device) >= devices_.size())
    return invalid(fmt::format("device {} does not exist; there are {}", device, devices_.size()));
  return lost(device);
}

Status Control::allowed_here() {
  return in_host_work() ? invalid("a function on a stream of a GPU must not call the GPU") : Status();
}

int Control::contexts() const {
  return static_cast<int>(std::ranges::count_if(devices_, [](const Device& d) { return d.used.load(); }));
}

Status Control::stalled(const std::string& what) {
  stalls_.fetch_add(1, std::memory_order_relaxed);
  return {Reason::resource, what};
}

Status Control::admit(FakeOp kind, int device) {
  OURO_TRY(check(device));
  use(device);
  return admit_anywhere(kind, device);
}

Status Control::admit_anywhere(FakeOp kind, int device) {
  OURO_TRY(allowed_here());
  if (!on_stream(kind)) hesitate(kind, device);
  const Reason reason = take(kind, on_stream(kind));
  if (reason == Reason::none) return {};
  if (reason == Reason::device) lose(device, "an injected failure");
  return {reason, "injected into a fake GPU"};
}

Handles::Handles(int parent) : pid_(getpid()), parent_(parent) {}

void* Handles::make(std::uint64_t number) const {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(pid_) << kPidShift | number << kAligned);
}

Status Handles::unknown(const char* what, const void* handle) const {
  if (parent_ != 0 && number_of(handle) >> kPidShift == static_cast<std::uintptr_t>(parent_))
    return {Reason::forked,
            fmt::format("a {} of process {}, which forked this one, cannot be used here", what, parent_)};
  return invalid(fmt::format("{} {} does not exist, or was destroyed", what, fmt::ptr(handle)));
}

}  // namespace ouro::gpu::fake
