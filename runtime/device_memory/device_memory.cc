// Memory of GPUs between the ranks of a host. See device_memory.h.
#include "runtime/device_memory/device_memory.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <string_view>
#include <thread>

#include "kernels/gpu/resident.h"
#include "runtime/core/deadline.h"
#include "runtime/core/no_memory.h"
#include "runtime/core/per_process.h"
#include "runtime/join/local_socket.h"

namespace ouro::rt {
namespace {

/// The ranks of this process that have a GPU; nullptr: the rank is joining.
struct Neighbours {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<wire::Nonce, int>, DeviceMemory*> ranks;
};
constexpr const char* kSocket = "socket";  // the error names a rank of the job, as those of MemoryRequests do
constexpr auto kToAnswer = std::chrono::milliseconds(100);  // at least, however little patience is left
constexpr auto kToUnmap = std::chrono::milliseconds(20);    // the watch thread gives this to the driver
constexpr auto kComing = std::chrono::seconds(10);  // it takes microseconds from joining to being found
constinit PerProcess<Neighbours> g_neighbours;
Neighbours& neighbours() { return *g_neighbours; }

}  // namespace

/// Publishes how many exports of other processes this rank has mapped, also of mappings that outlive its
/// context.
class DeviceMemory::OpenCount {
 public:
  explicit OpenCount(std::shared_ptr<SharedSegment> page) : page_(std::move(page)) {}
  /// Counts one more until the last copy is destroyed.
  static std::shared_ptr<void> one(const std::shared_ptr<OpenCount>& count) {
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

DeviceMemory::DeviceMemory(JobMembers& members, const MemoryRequests& requests, int device)
    : members_(members),
      requests_(requests),
      device_(device),
      exports_([this](std::uint64_t id) {
        ControlPage& page = members_.own_page();
        const std::uint64_t before = page.gpu_freed.get();
        page.gpu_gone[before % kGone].set(id);
        page.gpu_freed.set(before + 1);
      }),
      open_(std::make_shared<OpenCount>(members.self().control)),
      releaser_(device >= 0 ? DeferredFreeThread::of_process() : nullptr) {
  for (int r = 0; r < members.size(); ++r)
    imported_.push_back(std::make_unique<Imported>([this] { return OpenCount::one(open_); }));
}

Status DeviceMemory::survey(int device, GpuRecord* record) {
  gpu::Gpu& gpu = gpu::gpu();
  if (device >= gpu.devices())
    return invalid(fmt::format("GPU {}; this process sees {} ({})", device, gpu.devices(), gpu.version()));
  auto mine = gpu.properties(device);
  if (!mine.ok()) return mine.status();
  record->device = device;
  record->uuid = mine->uuid;
  record->stream_values = mine->stream_values;
  record->device_words = mine->stream_values && mine->device_words;
  record->multiprocessors = static_cast<std::uint32_t>(mine->multiprocessors);
  record->multicast = mine->multicast && gpu::compiled_for_switches(device);
  record->connections = static_cast<std::uint32_t>(mine->connections);
  OURO_ASSIGN(const auto reach, gpu.reachable(device));
  for (const gpu::Uuid& other : reach)
    if (record->reach_count < GpuRecord::kReach) record->reach[record->reach_count++] = other;
  record->present = 1;
  return {};
}

DeviceMemory::Coming::Coming(const wire::Nonce& job, int rank, int device)
    : job_(job), rank_(rank), device_(device) {
  if (device < 0) return;
  std::lock_guard lock(neighbours().mutex);
  neighbours().ranks.emplace(std::pair(job, rank), nullptr);
}

DeviceMemory::Coming::~Coming() {
  if (device_ < 0) return;
  std::lock_guard lock(neighbours().mutex);
  const auto it = neighbours().ranks.find({job_, rank_});
  if (it == neighbours().ranks.end() || it->second) return;
  neighbours().ranks.erase(it);  // it could not join
  neighbours().changed.notify_all();
}

void DeviceMemory::be_neighbour(bool on) {
  if (device_ < 0) return;
  std::lock_guard lock(neighbours().mutex);
  if (on)
    neighbours().ranks[{requests_.job(), members_.rank()}] = this;
  else
    neighbours().ranks.erase({requests_.job(), members_.rank()});
  neighbours().changed.notify_all();
}

Result<std::shared_ptr<GpuBlock>> DeviceMemory::make_block(std::size_t bytes) {
  poll_device();
  finish_freeing();
  return GpuBlock::create(device_, bytes);
}

Result<DeviceMemory::OwnBlock> DeviceMemory::own_block(std::uint64_t key, std::size_t bytes) {
  // Without the lock, which the watch thread needs to serve others: a driver may wait for its device.
  poll_device();
  finish_freeing();
  std::unique_lock lock(blocks_mutex_);
  block_made_.wait(lock, [&] { return !blocks_in_making_.contains(key); });
  if (const auto known = blocks_.find(key); known != blocks_.end()) return known->second;
  blocks_in_making_.insert(key);
  lock.unlock();
  auto made = Result<std::shared_ptr<GpuBlock>>(no_memory());
  try {
    made = GpuBlock::create(device_, bytes);
  } catch (const std::exception&) {  // or others would wait for it
  }
  lock.lock();
  blocks_in_making_.erase(key);
  block_made_.notify_all();
  if (!made.ok()) return made.status();
  return blocks_[key] = {*made, exports_.add(*made)};
}

void DeviceMemory::drop_block(std::uint64_t key) {
  decltype(blocks_)::node_type gone;
  {
    std::unique_lock lock(blocks_mutex_);
    block_made_.wait(lock, [&] { return !blocks_in_making_.contains(key); });
    gone = blocks_.extract(key);
  }
  if (gone) exports_.withdraw(gone.mapped().id);
}

Status DeviceMemory::serve(int line, const wire::Fetch& request, std::span<const Fd> given) {
  if (device_ < 0) return {Reason::refused, "this rank has no GPU"};
  using Kind = wire::Fetch::Kind;
  if (request.kind == Kind::multicast || request.kind == Kind::join || request.kind == Kind::bind)
    return serve_multicast(line, request, given);
  std::uint64_t id = request.key;
  if (request.kind == Kind::gpu_group) {
    if (request.bytes == 0 || request.bytes > MemoryRequests::kMaxSegment)
      return {Reason::refused,
              fmt::format("a group's device memory is at most {} bytes", MemoryRequests::kMaxSegment)};
    auto mine = own_block(request.key, request.bytes);
    if (!mine.ok()) return mine.status();
    if (mine->block->bytes() != request.bytes)
      return {Reason::mismatch,
              fmt::format("ranks computed different sizes for a group's device memory: {} and {}",
                          mine->block->bytes(), request.bytes)};
    id = mine->id;
  }
  if (request.kind == Kind::gpu_mapped) {
    const auto asks = static_cast<int>(request.ranks);
    if (asks >= members_.size()) return {Reason::refused, "no such rank asks"};
    return send_frame(line, wire::Grant{maps(asks, id) ? 1u : 0u});
  }
  auto offer = exports_.offer(id, request.kind == Kind::gpu ? request.bytes : 0, wire::Pieces::kMost);
  if (!offer.ok()) return offer.status();
  if (!offer->pieces.empty()) {
    wire::Pieces pieces{.bytes = offer->bytes, .sizes = {}};
    std::vector<int> fds;
    for (const auto& piece : offer->pieces) {
      pieces.sizes.push_back(piece.bytes);
      fds.push_back(piece.fd.get());
    }
    return send_frame(line, pieces, fds);
  }
  if (offer->fd) return send_frame(line, wire::Grant{offer->bytes}, {offer->fd.get()});
  wire::Loan loan{.bytes = offer->bytes};
  std::memcpy(loan.handle.data(), offer->handle.data(), loan.handle.size());
  return send_frame(line, loan);
}

Result<ExportHandles> DeviceMemory::fetch(int r, const wire::Fetch& request) {
  std::vector<Fd> fds;
  auto answer = requests_.ask(r, request, &fds);
  if (!answer.ok()) return answer.status();
  ExportHandles offer;
  if (auto* grant = std::get_if<wire::Grant>(&*answer); grant && fds.size() == 1) {
    offer.bytes = grant->bytes;
    offer.fd = std::move(fds[0]);
  } else if (auto* loan = std::get_if<wire::Loan>(&*answer); loan && fds.empty()) {
    offer.bytes = loan->bytes;
    std::memcpy(offer.handle.data(), loan->handle.data(), loan->handle.size());
  } else if (auto* some = std::get_if<wire::Pieces>(&*answer); some && fds.size() == some->sizes.size()) {
    offer.bytes = some->bytes;
    for (std::size_t i = 0; i < fds.size(); ++i) offer.pieces.push_back({some->sizes[i], std::move(fds[i])});
  } else {
    return Status(Reason::refused, fmt::format("rank {} answered with something else than device memory", r));
  }
  return offer;
}

void DeviceMemory::retire_ended(int r, Imported& from) {
  const ControlPage& page = members_.page(r);
  const std::uint64_t freed = page.gpu_freed.get(), seen = from.freed_seen;
  if (freed == seen) return;
  for (std::uint64_t k = seen; k != freed && freed - seen < kGone; ++k)
    from.exports.retire(page.gpu_gone[k % kGone].get());
  // If the reader was overtaken, or is so far behind that the list may be overwritten where it reads, it does
  // not know which were freed: it retires all, and maps again what is still needed.
  if (page.gpu_freed.get() - seen >= kGone) {
    from.exports.retire_all(false);
    from.overtaken = true;
  }
  from.freed_seen = freed;
}

bool DeviceMemory::release_ended_imports(int r) {
  std::lock_guard lock(imported_mutex_);
  Imported& from = *imported_[static_cast<std::size_t>(r)];
  retire_ended(r, from);
  return !from.overtaken;
}

Result<GpuImports::At> DeviceMemory::resolve(int r, const GpuRef& ref, std::size_t bytes) {
  if (members_.is_thread(r)) return GpuImports::At{reinterpret_cast<std::byte*>(ref.address), nullptr};
  if (ref.id == 0)
    return Status(Reason::ring_corrupt, fmt::format("rank {} posted memory that nobody can map", r));
  std::lock_guard lock(imported_mutex_);
  if (closed_) return Status(Reason::revoked, "the context is closed");
  Imported& from = *imported_[static_cast<std::size_t>(r)];
  retire_ended(r, from);
  return from.exports.map(device_, ref, bytes, [&](std::size_t first) {
    return fetch(r, {.kind = wire::Fetch::Kind::gpu, .key = ref.id, .bytes = first});
  });
}

Result<std::uint64_t> DeviceMemory::register_range(const void* p, std::size_t bytes) {
  GpuExports::Reach reach;
  for (int r = 0; r < members_.size(); ++r) {
    if (r == members_.rank() || members_.is_remote(r)) continue;
    (members_.is_thread(r) ? reach.devices : reach.processes) = true;
  }
  return exports_.register_range(p, bytes, device_, reach);
}

Result<std::vector<std::uint64_t>> DeviceMemory::deregister(std::uint64_t registration) {
  return exports_.deregister(registration);
}

bool DeviceMemory::maps(int r, std::uint64_t id) {
  // The holder of the lock may be waiting for an answer of the asking rank. That rank asks again.
  std::unique_lock lock(imported_mutex_, std::try_to_lock);
  if (!lock) return true;
  Imported& from = *imported_[static_cast<std::size_t>(r)];
  retire_ended(r, from);
  lock.unlock();
  notify_keepers();
  free_soon(kToUnmap);
  return from.exports.holds(id);
}

void DeviceMemory::notify_keepers() {
  // The watch thread calls this, too, so no thread may wait for the driver under the lock.
  const NeverFrees later;
  std::lock_guard keepers(keepers_mutex_);
  for (const auto& release_retired : keepers_) release_retired();
}

void DeviceMemory::poll_device() {
  const auto behind = [&](int r) {
    return !members_.is_remote(r) && !members_.is_thread(r) &&
           members_.page(r).gpu_freed.get() != imported_[static_cast<std::size_t>(r)]->freed_seen;
  };
  bool any = false;
  {
    // The holder of the lock may be waiting for the answer of another rank. This is called again.
    std::unique_lock lock(imported_mutex_, std::try_to_lock);
    if (!lock) return;
    for (int r = 0; r < members_.size(); ++r)
      if (behind(r)) retire_ended(r, *imported_[static_cast<std::size_t>(r)]), any = true;
  }
  if (any) notify_keepers();
}

void DeviceMemory::close() {
  {
    std::lock_guard lock(imported_mutex_);
    closed_ = true;
    for (const auto& from : imported_) from->exports.retire_all(true);
  }
  notify_keepers();
  finish_freeing();
}

/// Only what proves that the memory is not open there is ok. An error of the question, a rank that does not
/// answer and an answer that is not understood prove nothing.
Status DeviceMemory::closed_by(int r, std::uint64_t id, Clock::time_point until) {
  const auto open = [&](std::string_view says, std::string_view why) {
    return Status(Failure{.reason = Reason::deadline,
                          .text = fmt::format("rank {} {} memory open that was registered: {}", r, says, why),
                          .rank = r,
                          .detector = "registration"});
  };
  constexpr std::string_view kUses =
      "an operation of its process has not ended, or a graph that it has captured may use the memory";
  constexpr std::string_view kClosed =
      "it has closed its context, and an operation of its process has not ended, or a group that has "
      "captured "
      "a graph exists";
  if (r == members_.rank()) return exports_.ended(id) ? Status() : open("still has", kUses);
  const auto maps_nothing = [&] {
    const Peer& peer = members_.peer(r);
    pollfd process{peer.pidfd.get(), POLLIN, 0};  // poll ignores a negative descriptor
    return peer.remote() || members_.is_thread(r) || record(r).present == 0 || members_.is_dead(r) ||
           poll(&process, 1, 0) == 1 || (members_.has_closed(r) && members_.page(r).gpu_open.get() == 0);
  };
  if (maps_nothing()) return {};
  if (members_.has_closed(r)) return open("still has", kClosed);
  std::vector<Fd> fds;
  const auto answer = requests_.ask(r,
                                    {.kind = wire::Fetch::Kind::gpu_mapped,
                                     .key = id,
                                     .ranks = static_cast<std::uint32_t>(members_.rank())},
                                    &fds, {}, std::max(until, Clock::now() + kToAnswer));
  if (maps_nothing()) return {};  // it has ended or left meanwhile
  if (members_.has_closed(r)) return open("still has", kClosed);
  if (!answer.ok()) return open("may still have", answer.status().message());
  const auto* const grant = std::get_if<wire::Grant>(&*answer);
  if (!grant) return open("may still have", "it has answered with something else");
  return grant->bytes == 0 ? Status() : open("still has", kUses);
}

Status DeviceMemory::await_closed(std::vector<std::uint64_t>* ids, std::chrono::milliseconds patience) {
  using namespace std::chrono_literals;
  const auto until = deadline_after(patience);
  const auto closed = [&](std::uint64_t id) {
    Status s = closed_by(members_.rank(), id, until);
    for (int r = 0; s.ok() && r < members_.size(); ++r) s = closed_by(r, id, until);
    return s;
  };
  for (auto pause = 100us;; pause = std::min(2 * pause, 10'000us)) {
    free_if_idle();
    Status s;
    while (!ids->empty() && (s = closed(ids->back())).ok()) ids->pop_back();
    if (s.ok() || Clock::now() >= until) return s;
    std::this_thread::sleep_for(pause);
  }
}

DeviceMemory::Keeper::Keeper(DeviceMemory& memory, std::function<void()> release_retired) : memory_(memory) {
  std::lock_guard lock(memory_.keepers_mutex_);
  at_ = memory_.keepers_.insert(memory_.keepers_.end(), std::move(release_retired));
}

DeviceMemory::Keeper::~Keeper() {
  std::lock_guard lock(memory_.keepers_mutex_);
  memory_.keepers_.erase(at_);
}

Status DeviceMemory::with_neighbour(int r, const std::function<Status(DeviceMemory&)>& f) {
  Neighbours& all = neighbours();
  std::unique_lock lock(all.mutex);
  const std::pair key_of_rank(requests_.job(), r);
  auto it = all.ranks.end();
  // A rank that has joined earlier may call something before this rank can be found here.
  const bool here = all.changed.wait_for(lock, kComing, [&] {
    it = all.ranks.find(key_of_rank);
    return it == all.ranks.end() || it->second;
  });
  if (!here)
    return Status(Failure{.reason = Reason::never_joined,
                          .text = "it stopped while it joined",
                          .rank = r,
                          .detector = kSocket});
  if (it == all.ranks.end())
    return Status(
        Failure{.reason = Reason::peer_dead, .text = "it has left the job", .rank = r, .detector = kSocket});
  return f(*it->second);
}

Result<DeviceMemory::BlockAt> DeviceMemory::block(int r, std::uint64_t key, std::size_t bytes) {
  if (r == members_.rank()) {
    auto mine = own_block(key, bytes);
    if (!mine.ok()) return mine.status();
    return BlockAt{mine->block->data(), mine->block};
  }
  if (members_.is_thread(r)) {  // a rank that is another thread of this process
    auto theirs = Result<OwnBlock>(OwnBlock{});
    OURO_TRY(with_neighbour(r, [&](DeviceMemory& other) {
      theirs = other.own_block(key, bytes);
      return theirs.status();
    }));
    return BlockAt{theirs->block->data(), theirs->block};
  }
  std::lock_guard lock(imported_mutex_);
  auto at = imported_[static_cast<std::size_t>(r)]->blocks.map(device_, {key, 0, 0}, bytes, [&](std::size_t) {
    return fetch(r, {.kind = wire::Fetch::Kind::gpu_group, .key = key, .bytes = bytes});
  });
  if (!at.ok()) return at.status();
  return BlockAt{at->data, nullptr};
}

}  // namespace ouro::rt
