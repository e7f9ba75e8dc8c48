// The list of the ranks of this process that have GPUs. See process_ranks.h.
#include "runtime/device_memory/process_ranks.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "runtime/core/per_process.h"

namespace ouro::rt {
namespace {

struct ProcessRanks {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<wire::Nonce, int>, DeviceMemory*> memory;  // nullptr: the rank is joining
};
constinit PerProcess<ProcessRanks> g_process_ranks;
constexpr const char* kSocket =
    "socket";  // these errors name a rank of the job, like those of MemoryRequests
constexpr auto kPublished =
    std::chrono::seconds(10);  // a rank that has joined is published within microseconds

}  // namespace

JoiningRank::JoiningRank(const wire::Nonce& job, int rank, int device)
    : job_(job), rank_(rank), device_(device) {
  if (device < 0) return;
  std::lock_guard lock(g_process_ranks->mutex);
  g_process_ranks->memory.emplace(std::pair(job, rank), nullptr);
}

JoiningRank::~JoiningRank() {
  if (device_ < 0) return;
  ProcessRanks& ranks = *g_process_ranks;
  std::lock_guard lock(ranks.mutex);
  const auto it = ranks.memory.find({job_, rank_});
  if (it == ranks.memory.end() || it->second) return;
  ranks.memory.erase(it);  // the rank could not join
  ranks.changed.notify_all();
}

void publish_rank(const wire::Nonce& job, int rank, DeviceMemory& memory) {
  ProcessRanks& ranks = *g_process_ranks;
  std::lock_guard lock(ranks.mutex);
  ranks.memory[{job, rank}] = &memory;
  ranks.changed.notify_all();
}

void withdraw_rank(const wire::Nonce& job, int rank) {
  ProcessRanks& ranks = *g_process_ranks;
  std::lock_guard lock(ranks.mutex);
  ranks.memory.erase({job, rank});
  ranks.changed.notify_all();
}

Status with_rank_memory(const wire::Nonce& job, int rank, const std::function<Status(DeviceMemory&)>& f) {
  ProcessRanks& ranks = *g_process_ranks;
  std::unique_lock lock(ranks.mutex);
  const std::pair key(job, rank);
  auto it = ranks.memory.end();
  // A rank that has joined earlier may call this before the other rank has been published.
  const bool settled = ranks.changed.wait_for(lock, kPublished, [&] {
    it = ranks.memory.find(key);
    return it == ranks.memory.end() || it->second;
  });
  if (!settled)
    return Status(Failure{.reason = Reason::never_joined,
                          .text = "it stopped while it joined",
                          .rank = rank,
                          .detector = kSocket});
  if (it == ranks.memory.end())
    return Status(Failure{
        .reason = Reason::peer_dead, .text = "it has left the job", .rank = rank, .detector = kSocket});
  return f(*it->second);
}

}  // namespace ouro::rt
