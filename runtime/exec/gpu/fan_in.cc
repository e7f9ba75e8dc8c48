// Who shares the events of a group, and waits for them. See fan_in.h.
#include "runtime/exec/gpu/fan_in.h"

#include <map>
#include <mutex>
#include <utility>

#include "runtime/core/per_process.h"

namespace ouro::rt {
namespace {

struct Known {
  std::mutex mutex;
  std::map<const void*, std::weak_ptr<FanIn>> groups;  // by their words, which are mapped once a process
};
constinit PerProcess<Known> g_known;

}  // namespace

Result<std::shared_ptr<FanIn>> FanIn::of(const GpuWords& words, int ranks, int device) {
  Known& known = *g_known;
  std::lock_guard lock(known.mutex);
  std::erase_if(known.groups, [](const auto& group) { return group.second.expired(); });
  std::weak_ptr<FanIn>& of_group = known.groups[words.identity()];
  auto shared = of_group.lock();
  if (!shared) {
    OURO_ASSIGN(auto launches, GpuStream::create(device, 1));
    of_group = shared = std::make_shared<FanIn>(ranks, std::move(launches));
  }
  return shared;
}

Status FanIn::come(int rank, std::uint64_t op, const gpu::Stream& stream) {
  std::shared_ptr<PooledEvent>& event = events_[place(static_cast<std::size_t>(rank), op)];
  if (!event) {
    OURO_ASSIGN(event, PooledEvent::take(stream.device));
  }
  return gpu::gpu().record(event->get(), stream);
}

Status FanIn::wait_for_all(std::uint64_t op, const gpu::Stream& stream) const {
  for (std::size_t r = 0; r < events_.size() / GpuWords::kArrivals; ++r)
    OURO_TRY(gpu::gpu().wait(stream, events_[place(r, op)]->get()));
  return {};
}

}  // namespace ouro::rt
