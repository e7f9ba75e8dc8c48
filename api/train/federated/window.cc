// Windows: shared memory of each rank with a lock in front of the array, mapped by all ranks of the group.
// See ouro/train/window.hpp.
#include "ouro/train/window.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "api/train/common/comparison.h"
#include "api/train/common/not_in_batch.h"
#include "kernels/host/host_loops.h"
#include "runtime/core/float_mode.h"

namespace ouro::train {
namespace {

/// Precedes each array in shared memory.
struct alignas(128) Front {
  std::uint32_t lock;  // kWriter, or the number of readers; possibly with kWaiting
  std::uint32_t unused;
  std::uint64_t version;  // written under the lock
};
constexpr std::uint32_t kWriter = 1u << 31;
/// Set by a writer that found readers: no further readers are admitted until one writer has had the lock,
/// because readers could otherwise hold it in turn forever. Other waiting writers set it again.
constexpr std::uint32_t kWaiting = 1u << 30;

bool try_lock(Front& f, bool writes) {
  const std::atomic_ref word(f.lock);
  std::uint32_t now = word.load(std::memory_order_relaxed);
  if (writes ? (now & ~kWaiting) != 0 : now >= kWaiting - 1) {
    if (writes && (now & kWaiting) == 0) word.fetch_or(kWaiting, std::memory_order_relaxed);
    return false;
  }
  // Pairs with the release in unlock().
  return word.compare_exchange_strong(now, writes ? kWriter : now + 1, std::memory_order_acquire,
                                      std::memory_order_relaxed);
}
/// Called by a writer that stops waiting; other waiting writers set the bit again.
void give_up(Front& f) { std::atomic_ref(f.lock).fetch_and(~kWaiting, std::memory_order_relaxed); }
void unlock(Front& f, bool writes) {
  const std::atomic_ref word(f.lock);
  if (writes)
    word.fetch_and(~kWriter, std::memory_order_release);
  else
    word.fetch_sub(1, std::memory_order_release);
}

bool on_host(Device d) { return d.kind == Device::Kind::host; }
Status gpu_memory() { return unsupported("window: memory of a GPU; expected memory of the host"); }

}  // namespace

struct Window::State {
  struct Shown {
    Front* front = nullptr;
    std::byte* data = nullptr;
  };
  explicit State(Group g) : group(std::move(g)) {}
  Group group;
  std::size_t count = 0;
  DType dtype = DType::f32;
  std::vector<Memory> memory;
  std::vector<Shown> shown;  // by rank; points into `memory`

  Status lock(int rank, bool writes) const;
  void unlock(int rank, bool writes) const {
    train::unlock(*shown[static_cast<std::size_t>(rank)].front, writes);
  }
  Status check(int rank, const void* data, std::size_t elements, DType, Device, std::size_t offset) const;
  template <class F>
  Status locked(int rank, bool writes, F&& f) const {
    OURO_TRY(lock(rank, writes));
    const Shown& s = shown[static_cast<std::size_t>(rank)];
    f(s.data);
    if (writes) ++s.front->version;
    unlock(rank, writes);
    return {};
  }
};

Status Window::State::lock(int rank, bool writes) const {
  using Clock = std::chrono::steady_clock;
  constexpr int kSpins = 200;
  constexpr std::chrono::microseconds kSleep{50};
  Front& f = *shown[static_cast<std::size_t>(rank)].front;
  const auto start = Clock::now();
  const auto end = start + group.deadline();
  for (int turn = 0; !try_lock(f, writes); ++turn) {
    if (turn < kSpins) {
      std::this_thread::yield();
      continue;
    }
    Status over = group.status();
    if (over.ok() && Clock::now() >= end)
      over = Status(Failure{.reason = Reason::deadline,
                            .text = "the lock of its window was not free",
                            .rank = rank,
                            .group = group.name(),
                            .op = "window",
                            .elapsed_s = std::chrono::duration<double>(Clock::now() - start).count()});
    if (!over.ok()) {
      if (writes) give_up(f);
      return over;
    }
    std::this_thread::sleep_for(kSleep);
  }
  return {};
}

Status Window::State::check(int rank, const void* data, std::size_t elements, DType t, Device d,
                            std::size_t offset) const {
  if (group.failed())  // the memory of a failed group is still mapped, but not in a forked child
    if (Status s = group.status(); s.reason() == Reason::forked) return s;
  if (rank < 0 || rank >= group.size())
    return invalid(fmt::format("window: rank {} is not in the group (0..{})", rank, group.size() - 1));
  if (!on_host(d)) return gpu_memory();
  if (t != dtype) return invalid(fmt::format("window: a view of type {}; expected {}", name(t), name(dtype)));
  if (offset > count || elements > count - offset)
    return invalid(
        fmt::format("window: elements {} to {} of an array of {}", offset, offset + elements, count));
  if (data == nullptr && elements > 0) return invalid("window: a null pointer");
  return {};
}

Result<Window> Window::create(Group& g, CView initial) {
  if (!g.valid()) return invalid("window: the group is an empty handle");
  OURO_TRY(not_in_batch("window"));
  auto state = std::make_shared<State>(g);
  state->count = initial.count;
  state->dtype = initial.dtype;
  Status mine;
  if (!on_host(initial.device)) mine = gpu_memory();
  if (initial.data == nullptr && initial.count > 0) mine = invalid("window: a null pointer");
  const Claim claims[] = {{"an array of another type", static_cast<std::uint64_t>(initial.dtype)},
                          {"an array of another length", initial.count, true}};
  OURO_TRY(compare(g, "window", claims, mine));
  OURO_ASSIGN(state->memory, g.alloc_shared(sizeof(Front) + initial.bytes()));
  for (const Memory& m : state->memory) {
    auto* const at = static_cast<std::byte*>(m.data());
    state->shown.push_back({reinterpret_cast<Front*>(at), at + sizeof(Front)});
  }
  if (initial.bytes() > 0)
    std::memcpy(state->shown[static_cast<std::size_t>(g.rank())].data, initial.data, initial.bytes());
  OURO_TRY(barrier(g, kAuto));  // all arrays are initialised
  return Window(std::move(state));
}

int Window::rank() const { return state_->group.rank(); }
int Window::size() const { return state_->group.size(); }
std::size_t Window::count() const { return state_->count; }
DType Window::dtype() const { return state_->dtype; }

Status Window::get(int rank, View out, std::size_t offset) const {
  OURO_TRY(state_->check(rank, out.data, out.count, out.dtype, out.device, offset));
  return state_->locked(rank, false, [&](const std::byte* at) {
    if (out.count > 0) std::memcpy(out.data, at + offset * size_of(out.dtype), out.bytes());
  });
}
Status Window::put(int rank, CView in, std::size_t offset) const {
  OURO_TRY(state_->check(rank, in.data, in.count, in.dtype, in.device, offset));
  return state_->locked(rank, true, [&](std::byte* at) {
    if (in.count > 0) std::memcpy(at + offset * size_of(in.dtype), in.data, in.bytes());
  });
}
Status Window::accumulate(int rank, CView in, ReduceOp op, std::size_t offset) const {
  OURO_TRY(state_->check(rank, in.data, in.count, in.dtype, in.device, offset));
  if (op.kind == OpKind::avg || !applies(op.kind, in.dtype))
    return invalid(fmt::format("window: {} of {} does not accumulate", name(op.kind), name(in.dtype)));
  return state_->locked(rank, true, [&](std::byte* at) {
    at += offset * size_of(in.dtype);
    const void* sources[] = {at, in.data};
    const Scalar factors[] = {{1, 1}, op.scalar};
    if (in.count > 0) kernels::fold({.dtype = in.dtype, .op = op.kind}, at, sources, factors, in.count);
  });
}
Result<std::uint64_t> Window::version(int rank) const {
  OURO_TRY(state_->check(rank, nullptr, 0, state_->dtype, {}, 0));
  OURO_TRY(state_->lock(rank, false));
  const std::uint64_t v = state_->shown[static_cast<std::size_t>(rank)].front->version;
  state_->unlock(rank, false);
  return v;
}
Status Window::fence() const {
  OURO_TRY(not_in_batch("fence"));
  return barrier(state_->group, kAuto);
}

Status average_donors(Window& window, std::span<const int> donors, std::span<const double> weights,
                      View params, double keep) {
  constexpr const char* kCall = "average_donors";
  const Window::State& s = window.state();
  if (!(keep >= 0 && keep <= 1)) return invalid(fmt::format("{}: keep {}; expected 0 to 1", kCall, keep));
  if (donors.empty()) return invalid(fmt::format("{}: no donors", kCall));
  const StandardFloats floats;
  if (donors.size() != weights.size())
    return invalid(fmt::format("{}: {} weights for {} donors", kCall, weights.size(), donors.size()));
  double sum = 0;
  for (std::size_t k = 0; k < donors.size(); ++k) {
    OURO_TRY(s.check(donors[k], params.data, params.count, params.dtype, params.device, 0));
    if (!(weights[k] >= 0) || !std::isfinite(weights[k]))
      return invalid(fmt::format("{}: donor {} has weight {}; expected a finite number, 0 at least", kCall,
                                 donors[k], weights[k]));
    sum += weights[k];
  }
  if (params.count != s.count)
    return invalid(
        fmt::format("{}: parameters of {} elements for a window of {}", kCall, params.count, s.count));
  if (!(sum > 0) || !std::isfinite(sum))
    return invalid(fmt::format("{}: the weights add up to {}; expected a finite sum above 0", kCall, sum));
  if (!applies(OpKind::premulsum, s.dtype) || !is_float(s.dtype))
    return invalid(fmt::format("{}: a window of {}; expected floating-point numbers", kCall, name(s.dtype)));

  // All ranks take locks in rank order, which avoids deadlock.
  std::vector<std::size_t> order(donors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return donors[a] < donors[b]; });
  for (std::size_t k = 1; k < order.size(); ++k)
    if (donors[order[k]] == donors[order[k - 1]])
      return invalid(fmt::format("{}: rank {} is a donor twice", kCall, donors[order[k]]));
  std::vector<const void*> sources;
  std::vector<Scalar> factors;
  if (keep > 0) sources.push_back(params.data), factors.push_back({keep, 0});
  if (keep == 1) return {};
  std::vector<int> held;
  Status locked;
  for (const std::size_t k : order) {
    if (weights[k] == 0) continue;
    locked = s.lock(donors[k], false);
    if (!locked.ok()) break;
    held.push_back(donors[k]);
    sources.push_back(s.shown[static_cast<std::size_t>(donors[k])].data);
    factors.push_back({(1 - keep) * (weights[k] / sum), 0});
  }
  if (locked.ok() && params.count > 0)
    kernels::fold({.dtype = params.dtype, .op = OpKind::premulsum}, params.data, sources, factors,
                  params.count);
  for (const int rank : held) s.unlock(rank, false);
  return locked;
}

}  // namespace ouro::train
