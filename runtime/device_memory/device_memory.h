// Memory of GPUs between the ranks of a host. Used by Context and the GPU executor.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "runtime/device_memory/cuda_ipc.h"
#include "runtime/device_memory/gpu_multicast.h"
#include "runtime/job/job_members.h"
#include "runtime/job/memory_requests.h"
#include "runtime/job/observers.h"
#include "transport/wire/keys.h"

namespace ouro::rt {

/// Device memory between the ranks of a host: what this rank exports, what it has mapped of its peers, and
/// the blocks of groups. Thread-safe.
class DeviceMemory final : public DeviceObserver {
 public:
  /// `device`: this rank's GPU, or -1.
  DeviceMemory(JobMembers&, const MemoryRequests&, int device);
  /// Fills in what a rank publishes about its GPU: which one it is, and which others it can map. Errors:
  /// invalid (no such device), those of the device.
  static Status survey(int device, GpuRecord*);

  const GpuRecord& record(int r) const { return members_.page(r).gpu; }
  GpuExports& exports() { return exports_; }
  /// The local address of device memory of rank r (in the job); for ranks of this process, the memory's
  /// own. It is valid for operations that are on the device (OperationOnDevice) now, and beyond them as long
  /// as `keep` lives.
  Result<GpuImports::At> resolve(int r, const GpuRef&, std::size_t bytes);
  /// Releases mappings of what rank r of another process has freed: from then on only a `keep` holds them.
  /// Returns false if the list of ended exports overflowed; then all mappings of r were released.
  bool release_ended_imports(int r);
  /// Makes memory of this rank's GPU, after releasing what can be released now. Errors: those of
  /// GpuBlock::create.
  Result<std::shared_ptr<GpuBlock>> make_block(std::size_t bytes);
  /// Registers memory of this rank's GPU that the program allocated. Returns the number of the registration.
  /// Errors: those of GpuExports::register_range.
  Result<std::uint64_t> register_range(const void* p, std::size_t bytes);
  /// Ends a registration. Returns the exports that other processes may have open by a legacy handle; these
  /// must be closed before the memory is freed (await_closed).
  Result<std::vector<std::uint64_t>> deregister(std::uint64_t registration);
  /// Waits until these exports have ended and no other process has one open; removes the closed ones from the
  /// list. With a patience of 0, asks each peer once. A query can take 100 ms and may overrun the patience.
  /// Error deadline: a rank, which the text names, has one open, or has not answered.
  Status await_closed(std::vector<std::uint64_t>* ids, std::chrono::milliseconds patience);
  /// Before the context closes: from now on maps nothing (revoked), and releases all mappings of other
  /// processes' exports, except those that an owner keeps for a graph. They are unmapped when the process is
  /// idle (free_when_idle); the control page says how many are left.
  void close();
  /// Releases what other ranks have freed since the last call; called on the watch thread.
  void poll_device() override;
  /// As long as it lives, `release_retired` is called, from any thread, when imports may have been retired.
  /// Owners that keep imports beyond an operation then release the retired ones.
  class Keeper {
   public:
    Keeper(DeviceMemory&, std::function<void()> release_retired);
    ~Keeper();
    Keeper(const Keeper&) = delete;
    Keeper& operator=(const Keeper&) = delete;

   private:
    DeviceMemory& memory_;
    std::list<std::function<void()>>::iterator at_;
  };
  /// The block `key` of rank r's device memory, made there on first demand, at an address of this rank.
  struct BlockAt {
    std::byte* data;
    std::shared_ptr<GpuBlock> keep;  ///< of this process: mapped at least as long as this lives
  };
  Result<BlockAt> block(int r, std::uint64_t key, std::size_t bytes);
  void drop_block(std::uint64_t key);
  /// The multicast object `key` of these ranks of the job, including this one; all ranks must pass the same
  /// order. On return every rank has joined and bound memory. Peers do this from their watch threads, so they
  /// need not be in this call. A rank that has failed returns its error to all that ask.
  Result<std::shared_ptr<GpuMulticast>> multicast(std::span<const int> ranks, std::uint64_t key,
                                                  std::size_t bytes);
  void drop_multicast(std::uint64_t key);

  /// Exists from before a rank joins until it has become a neighbour, or has failed to. Meanwhile ranks of
  /// this process that joined earlier wait for it, instead of concluding that it has left.
  class Coming {
   public:
    Coming(const wire::Nonce& job, int rank, int device);
    ~Coming();
    Coming(const Coming&) = delete;
    Coming& operator=(const Coming&) = delete;

   private:
    const wire::Nonce job_;
    const int rank_, device_;
  };
  /// Whether ranks that are other threads of this process can find this one. Must be turned off before this
  /// is destroyed.
  void be_neighbour(bool on);
  /// Serves a peer's request; called on the watch thread.
  Status serve(int line, const wire::Fetch&, std::span<const Fd> given);

 private:
  struct Imported {
    explicit Imported(GpuImports::Token token) : exports(std::move(token)) {}
    std::atomic<std::uint64_t> freed_seen{0};  // set under imported_mutex_
    bool overtaken = false;
    GpuImports exports, blocks;
  };
  class OpenCount;
  struct OwnBlock {
    std::shared_ptr<GpuBlock> block;
    std::uint64_t id = 0;  // id of its export
  };
  void retire_ended(int r, Imported&);
  void notify_keepers();
  /// Releases the imports of rank r that can be released now, and returns whether this process still maps its
  /// export `id`. Called on the watch thread.
  bool maps(int r, std::uint64_t id);
  /// Returns ok if export `id` has ended and rank r does not have it open: it says so, is of this process,
  /// has no GPU, has left, or has died. For this rank itself: if the export has ended. Error deadline.
  Status closed_by(int r, std::uint64_t id, Clock::time_point until);
  Result<OwnBlock> own_block(std::uint64_t key, std::size_t bytes);
  Result<ExportHandles> fetch(int r, const wire::Fetch&);
  /// Calls f with the memory of a rank that is another thread of this process. Errors: those of f;
  /// never-joined, peer-dead.
  Status with_neighbour(int r, const std::function<Status(DeviceMemory&)>& f);

  // In multicast.cc:
  using FetchKind = wire::Fetch::Kind;
  struct MulticastKey {
    std::uint64_t key;
    std::size_t bytes;
    int ranks;
    wire::Fetch request(FetchKind kind) const {
      return {.kind = kind, .key = key, .bytes = bytes, .ranks = static_cast<std::uint32_t>(ranks)};
    }
  };
  struct MulticastPart {
    std::shared_ptr<GpuMulticast> object;
    Status failed;  // the error, if there is no object
  };
  struct EndedMulticast {
    std::uint64_t key;
    Status why;
  };
  static constexpr std::size_t kEndedMulticasts =
      256;  // remembered, so that a late request does not make an object that would never be dropped
  Status multicast_ended(std::uint64_t key) const;
  template <class Make>
  Result<std::shared_ptr<GpuMulticast>> multicast_part(std::uint64_t key, Make&& make);
  Result<ExportHandles> make_multicast(const MulticastKey&);
  Status join_multicast(const MulticastKey&, const Fd& object);
  Status bind_multicast(const MulticastKey&);
  Result<ExportHandles> multicast_offer(int maker, const MulticastKey&);
  Status multicast_step(int r, FetchKind, const MulticastKey&, const Fd& object);
  Status serve_multicast(int line, const wire::Fetch&, std::span<const Fd> given);

  JobMembers& members_;
  const MemoryRequests& requests_;
  const int device_;
  GpuExports exports_;
  const std::shared_ptr<OpenCount> open_;
  std::mutex imported_mutex_;
  bool closed_ = false;                              // under the lock
  std::vector<std::unique_ptr<Imported>> imported_;  // by rank
  std::mutex keepers_mutex_;
  std::list<std::function<void()>> keepers_;
  std::mutex blocks_mutex_;
  std::condition_variable block_made_;
  std::set<std::uint64_t> blocks_in_making_;
  std::map<std::uint64_t, OwnBlock> blocks_;
  std::mutex multicasts_mutex_;
  std::map<std::uint64_t, MulticastPart> multicasts_;
  std::deque<EndedMulticast> ended_multicasts_;         // those dropped last
  const std::shared_ptr<DeferredFreeThread> releaser_;  // last: it may release what is above
};

}  // namespace ouro::rt
