// The plans that a thread keeps. See plan.h.
#include "runtime/plan/plan.h"

#include <array>
#include <atomic>

#include "runtime/core/thread_owned.h"
#include "runtime/core/wait.h"

namespace ouro::rt {
namespace {

constexpr std::size_t kKept = 64;  // per thread; two calls with the same hash replace each other

struct KeptPlan {
  std::uint64_t group = 0;  // 0: empty
  Operation call;
  Plan plan;
};
struct Table {
  std::array<KeptPlan, kKept> entries;
};
// Read on every call, so it needs no guard, and no function call to find it.
OURO_STATIC_TLS constinit thread_local Table* t_table = nullptr;

std::size_t index_of(std::uint64_t group, const Operation& o) {
  const std::uint64_t h = (reinterpret_cast<std::uintptr_t>(o.in.data) ^ o.in.count ^ o.out.count << 20 ^
                           static_cast<std::uint64_t>(o.collective) << 40 ^ group << 50) *
                          0x9e3779b97f4a7c15;
  return h >> 58;
}
static_assert(kKept == std::size_t{1} << (64 - 58));

bool alike(const Operation& a, const Operation& b) {
  return a.collective == b.collective && a.in.data == b.in.data && a.in.count == b.in.count &&
         a.in.dtype == b.in.dtype && a.in.device == b.in.device && a.out.data == b.out.data &&
         a.out.count == b.out.count && a.out.dtype == b.out.dtype && a.out.device == b.out.device &&
         a.op.kind == b.op.kind && a.root == b.root && a.numerics == b.numerics;
}
bool kept(const Operation& o) {
  return !o.uneven && o.algorithm.empty() && o.segments.empty() && o.op.kind != OpKind::premulsum;
}

std::atomic<std::uint64_t> g_ids{0};

}  // namespace

const Plan* find_plan(std::uint64_t group, const Operation& o) {
  if (t_table == nullptr || !kept(o)) return nullptr;
  const KeptPlan& e = t_table->entries[index_of(group, o)];
  return e.group == group && alike(e.call, o) ? &e.plan : nullptr;
}

void keep_plan(std::uint64_t group, const Operation& call, Plan* plan) {
  // An operation that waits further down this thread's stack may still use the kept plan in that entry.
  if (!kept(call) || inside_question()) return;
  if (t_table == nullptr) make_for_thread(t_table);
  plan->id = g_ids.fetch_add(1, std::memory_order_relaxed) + 1;
  t_table->entries[index_of(group, call)] = {group, call, *plan};
}

}  // namespace ouro::rt
