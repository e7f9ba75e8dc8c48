// Imports from the other processes of the host. See peer_imports.h.
#include "runtime/device_memory/peer_imports.h"

#include <fmt/format.h>

#include <chrono>

#include "runtime/core/segment.h"
#include "runtime/device_memory/deferred_free.h"

namespace ouro::rt {

/// The number of exports of other processes that this rank has mapped, which it publishes on its control
/// page. The number includes mappings that outlive the context.
class PeerImports::OpenCount {
 public:
  explicit OpenCount(std::shared_ptr<SharedSegment> page) : page_(std::move(page)) {}
  /// Counts one more until the last copy of the result is destroyed.
  static std::shared_ptr<void> count_one(const std::shared_ptr<OpenCount>& count) {
    count->add(1);
    return {count.get(), [count](void*) { count->add(-1); }};
  }

 private:
  void add(int change) {
    std::lock_guard lock(mutex_);
    count_ += change;
    reinterpret_cast<ControlPage*>(page_->data())->gpu_open.set(static_cast<std::uint32_t>(count_));
  }
  const std::shared_ptr<SharedSegment> page_;
  std::mutex mutex_;
  int count_ = 0;
};

PeerImports::PeerImports(JobMembers& members, int device)
    : members_(members), device_(device), open_count_(std::make_shared<OpenCount>(members.self().control)) {
  for (int r = 0; r < members.size(); ++r)
    from_ranks_.push_back(std::make_unique<FromRank>([this] {
      mappings_.fetch_add(1, std::memory_order_relaxed);
      return OpenCount::count_one(open_count_);
    }));
}

/// Requires mutex_.
void PeerImports::read_endings(int r) {
  FromRank& from = from_rank(r);
  const ControlPage& page = members_.page(r);
  const std::uint64_t freed = page.gpu_freed.get(), seen = from.endings_seen;
  if (freed == seen) return;
  for (std::uint64_t k = seen; k != freed && freed - seen < kGone; ++k)
    from.exports.release_ended(page.gpu_gone[k % kGone].get());
  // The owner may have overwritten entries that were not read yet. Then it is unknown which exports have
  // ended: all are released, and those that are still needed are mapped again.
  if (page.gpu_freed.get() - seen >= kGone) {
    from.exports.release_all(false);
    from.list_overflowed = true;
  }
  from.endings_seen = freed;
}

bool PeerImports::release_ended(int r) {
  std::lock_guard lock(mutex_);
  read_endings(r);
  return !from_rank(r).list_overflowed;
}

Result<GpuImports::Mapped> PeerImports::map_export(int r, const GpuRef& ref, std::size_t bytes,
                                                   const RequestHandles& request) {
  std::lock_guard lock(mutex_);
  if (closed_) return Status(Reason::revoked, "the context is closed");
  read_endings(r);
  return from_rank(r).exports.map(device_, ref, bytes, request);
}

Result<GpuImports::Mapped> PeerImports::map_block(int r, std::uint64_t key, std::size_t bytes,
                                                  const RequestHandles& request) {
  std::lock_guard lock(mutex_);
  if (closed_) return Status(Reason::revoked, "the context is closed");
  auto& blocks = from_rank(r).blocks;
  std::shared_ptr<GpuImport> block = blocks[key].lock();
  if (!block) {
    std::erase_if(blocks, [](const auto& b) { return b.second.expired(); });
    OURO_ASSIGN(const ExportHandles handles, request(0));
    mappings_.fetch_add(1, std::memory_order_relaxed);
    OURO_ASSIGN(block, GpuImport::map(device_, handles, request, nullptr));
    blocks[key] = block;
  }
  if (bytes > block->bytes())
    return Status(Reason::ring_corrupt,
                  fmt::format("rank {} gave {} bytes of device memory where the group needs {}", r,
                              block->bytes(), bytes));
  return GpuImports::Mapped{block->data(), block};
}

bool PeerImports::still_maps(int r, std::uint64_t id) {
  constexpr auto kPatience = std::chrono::milliseconds(20);  // the watch thread gives the driver this time
  // The holder of the lock may be waiting for an answer of the rank that asks. That rank asks again.
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return true;
  read_endings(r);
  lock.unlock();
  notify_keepers();
  free_soon(kPatience);
  return from_rank(r).exports.is_mapped(id);
}

void PeerImports::notify_keepers() {
  // The watch thread calls this, too, so no thread may wait for the driver under the lock.
  const NeverFrees later;
  std::lock_guard keepers(keepers_mutex_);
  for (const auto& release_ended : keepers_) release_ended();
}

void PeerImports::release_all_ended() {
  const auto behind = [&](int r) {
    return !members_.is_remote(r) && !members_.is_thread(r) &&
           members_.page(r).gpu_freed.get() != from_rank(r).endings_seen;
  };
  bool any = false;
  {
    // The holder of the lock may be waiting for the answer of another rank. The watch thread calls
    // this again.
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return;
    for (int r = 0; r < members_.size(); ++r)
      if (behind(r)) read_endings(r), any = true;
  }
  if (any) notify_keepers();
}

void PeerImports::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    for (const auto& from : from_ranks_) from->exports.release_all(true);
  }
  notify_keepers();
  finish_freeing();
}

ImportKeeper::ImportKeeper(PeerImports& imports, std::function<void()> release_ended) : imports_(imports) {
  std::lock_guard lock(imports_.keepers_mutex_);
  at_ = imports_.keepers_.insert(imports_.keepers_.end(), std::move(release_ended));
}

ImportKeeper::~ImportKeeper() {
  std::lock_guard lock(imports_.keepers_mutex_);
  imports_.keepers_.erase(at_);
}

}  // namespace ouro::rt
