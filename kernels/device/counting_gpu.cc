// Counters of each thread, and the calls that are counted in more than one way. The rest is in
// counting_gpu_calls.cc. See counting_gpu.h.
#include "kernels/device/counting_gpu.h"

#include <pthread.h>

#include <algorithm>
#include <vector>

#include "kernels/device/counting_gpu_call.h"
#include "runtime/core/per_process.h"

namespace ouro::gpu {
namespace {

std::uint64_t new_id() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

/// "ouro-stream" for the threads "ouro-stream" and "ouro-stream-3".
std::string class_of_this_thread() {
  char name[16] = {};
  (void)pthread_getname_np(pthread_self(), name, sizeof name);
  std::string all = name;
  all.resize(all.find_last_not_of("0123456789-") + 1);
  return all;
}

}  // namespace

struct CountingGpu::Threads {
  std::vector<std::unique_ptr<OfThread>> all;
};

/// The counters of all objects of the process. A thread that ends searches here, because the
/// object may no longer exist then.
struct CountingGpu::Registry {
  std::mutex mutex;
  std::map<std::uint64_t, Threads> objects;  // by CountingGpu::id_

  OfThread& take(std::uint64_t id) {
    const std::string name = class_of_this_thread();
    const std::lock_guard lock(mutex);
    auto& all = objects[id].all;
    // A thread that has ended leaves its counters to the next one of its class: programs make many threads.
    auto unused = std::ranges::find_if(all, [&](const auto& t) { return t->ended && t->name == name; });
    if (unused == all.end()) unused = all.insert(all.end(), std::make_unique<OfThread>(name));
    (*unused)->ended = false;
    return **unused;
  }
  void end(std::uint64_t id, const OfThread* of) {
    const std::lock_guard lock(mutex);
    const auto object = objects.find(id);
    if (object == objects.end()) return;
    for (const auto& t : object->second.all)
      if (t.get() == of) t->ended = true;
  }
};

CountingGpu::Registry& CountingGpu::registry() {
  static constinit PerProcess<Registry> all;
  return *all;
}

CountingGpu::CountingGpu(Gpu& of, Times times) : of_(of), timed_(times == Times::on), id_(new_id()) {}

CountingGpu::~CountingGpu() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.objects.erase(id_);
}

CountingGpu::OfThread& CountingGpu::of_this_thread() {
  /// Trivially destroyed: calls may follow the end of a thread's other objects.
  struct Newest {
    std::uint64_t id = 0;
    unsigned forks = 0;
    OfThread* counters = nullptr;
  };
  struct Known {
    std::vector<Newest> all;
    ~Known() {
      for (const Newest& n : all)
        if (n.forks == forks()) registry().end(n.id, n.counters);
    }
  };
  static thread_local constinit Newest newest;
  if (newest.id == id_ && newest.forks == forks()) return *newest.counters;
  static thread_local Known known;
  std::erase_if(known.all, [](const Newest& n) { return n.forks != forks(); });
  auto mine = std::ranges::find(known.all, id_, &Newest::id);
  if (mine == known.all.end())
    mine = known.all.insert(known.all.end(), {id_, forks(), &registry().take(id_)});
  newest = *mine;
  return *newest.counters;
}

CallCounts CountingGpu::mine() { return of_this_thread().report().counts; }

CallCounts CountingGpu::total() const {
  CallCounts sum;
  for (const auto& [name, report] : by_class()) sum += report.counts;
  return sum;
}

std::map<std::string, CountingGpu::Report> CountingGpu::by_class() const {
  std::map<std::string, Report> classes;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const auto& thread : all.objects[id_].all) {
    const Report one = thread->report();
    Report& sum = classes[thread->name];
    sum.counts += one.counts;
    for (std::size_t i = 0; i < kGpuCalls; ++i) {
      sum.total_ns[i] += one.total_ns[i];
      sum.max_ns[i] = std::max(sum.max_ns[i], one.max_ns[i]);
    }
  }
  return classes;
}

Result<Properties> CountingGpu::properties(int device) {
  const Call call(*this, GpuCall::properties);
  return of_.properties(device);
}

bool CountingGpu::peer_access(int device, int peer) {
  const Call call(*this, GpuCall::peers);
  return of_.peer_access(device, peer);
}

Result<PointerInfo> CountingGpu::pointer(const void* p) {
  Call call(*this, GpuCall::pointer);
  auto info = of_.pointer(p);
  if (info.ok() && info->kind == MemoryKind::device) {
    call.driver(2, 1);                         // the range of the allocation, in the device's context
    if (!info->legacy_ipc) call.driver(2, 0);  // base and size of its mapping
  }
  return info;
}

Result<bool> CountingGpu::query(Stream s) {
  Call call(*this, GpuCall::query_stream);
  auto ended = of_.query(s);
  if (ended.ok() && !*ended) call.driver(1, 0);  // CUDA's runtime keeps "not ready" as an error
  return ended;
}

Result<bool> CountingGpu::query(Event e) {
  Call call(*this, GpuCall::query_event);
  auto ended = of_.query(e);
  if (ended.ok() && !*ended) call.driver(1, 0);
  return ended;
}

Status CountingGpu::enqueue(std::span<const MemOp> ops, Stream s) {
  constexpr std::size_t kAtOnce = 64;  // as cuda.cc cuts a batch
  Call call(*this, GpuCall::batch);
  call.words(ops.size());
  call.driver((ops.size() + kAtOnce - 1) / kAtOnce, 0);
  return of_.enqueue(ops, s);
}

Status CountingGpu::check_context(Stream s) {
  Call call(*this, GpuCall::check_context);
  if (is_created(s)) call.driver(1, 0);
  return of_.check_context(s);
}
Result<std::uint64_t> CountingGpu::capturing(Stream s) {
  Call call(*this, GpuCall::capturing);
  if (s.handle != nullptr && s.handle != kLegacyStream) call.driver(1, 0);
  return of_.capturing(s);
}

}  // namespace ouro::gpu
