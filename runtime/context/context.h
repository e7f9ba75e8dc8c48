// Context: one rank's membership in a job. It knows the peers and their control pages, watches who lives, and
// hands out shared segments. Used by groups; the public handle is ouro::Context.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "runtime/core/fork.h"
#include "runtime/core/link_view.h"
#include "runtime/health/control_page.h"
#include "runtime/join/bootstrap.h"
#include "runtime/network/network.h"
#include "runtime/plan/rules.h"
#include "transport/cuda_ipc/cuda_ipc.h"

namespace ouro::rt {

class Watch;

/// What a context tells those who depend on its members: groups. Called on its watch and network threads.
class MemberObserver {
 public:
  virtual void on_losses(
      const std::vector<Loss>&) = 0;   ///< ranks that have gone; those of others are ignored
  virtual void on_fenced(int by) = 0;  ///< rank `by` goes on without this one
  virtual void adopt_errors() = 0;     ///< a peer has published an error
  virtual void look_at_gpu() = 0;      ///< time to look after operations on devices

 protected:
  ~MemberObserver() = default;
};

/// Registered memory, of the host or of this rank's GPU: the exporter's side. Gone with the last handle.
class Allocation {
 public:
  Allocation(std::shared_ptr<class Context> owner, std::uint64_t id, std::shared_ptr<device::Segment> segment)
      : owner_(std::move(owner)), id_(id), segment_(std::move(segment)) {}
  Allocation(std::shared_ptr<class Context> owner, std::uint64_t id,
             std::shared_ptr<transport::GpuBlock> block)
      : owner_(std::move(owner)), id_(id), block_(std::move(block)) {}
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  std::byte* data() const { return block_ ? block_->data() : segment_->data(); }
  std::size_t bytes() const { return block_ ? block_->bytes() : segment_->bytes(); }
  Device device() const { return block_ ? Device{Device::Kind::cuda, block_->device()} : Device{}; }

 private:
  std::shared_ptr<class Context> owner_;
  std::uint64_t id_;
  std::shared_ptr<device::Segment> segment_;
  std::shared_ptr<transport::GpuBlock> block_;
};

struct ContextSpec {
  JoinOptions join;
  int local_rank = 0, local_size = 1;
  int gpu = -1;  ///< this rank's device, or none
  std::string gpu_path = "auto";
  std::chrono::milliseconds deadline{600'000};
  bool deadline_chosen = false;  ///< by the user, not this default
  Numerics numerics = Numerics::fast;
  std::uint32_t slot_bytes = 128 << 10;  ///< of a link
  std::size_t page_bytes = 0;            ///< of a staging buffer; 0: by the number of ranks
  Rules rules = built_in_rules();
  std::optional<NetworkOptions>
      network;  ///< of a job on several hosts; its rank, world and job are those of `join`
  std::optional<std::chrono::microseconds> spin;  ///< unset: 50 us where every local rank can have a core
};

class Context : public std::enable_shared_from_this<Context> {
 public:
  static Result<std::shared_ptr<Context>> create(const ContextSpec&);
  ~Context();

  int rank() const { return spec_.join.rank; }
  int size() const { return spec_.join.world; }
  const ContextSpec& spec() const { return spec_; }
  /// How long waiters of this rank spin before they yield.
  std::chrono::microseconds spin() const { return spin_; }
  /// Whether this host lacks cores for a caller and a stream of each of its ranks (Waiter).
  bool crowded() const { return crowded_; }
  /// Whether every rank of this node can have a core.
  bool enough_cores() const { return enough_cores_[static_cast<std::size_t>(peer(rank()).node)]; }
  /// Whether that holds for every host that one of these ranks is on: all ranks give the same answer.
  bool enough_cores(const std::vector<int>& ranks) const;
  const Peer& peer(int r) const { return peers_[static_cast<std::size_t>(r)]; }
  /// Whether rank r is on another host.
  bool is_remote(int r) const { return peer(r).remote(); }
  /// Between hosts; nullptr where all ranks are on this one.
  Network* network() const { return network_.get(); }
  ControlPage& page(int r) const { return *reinterpret_cast<ControlPage*>(peer(r).control->data()); }

  /// `forked` in a child of the process that joined, `revoked` after close.
  Status usable() const;
  /// The same without the reason; two loads.
  bool ready() const { return !inherited() && active(); }
  /// Whether this is a forked child's copy: its threads do not run here, and its locks may be held for ever.
  bool inherited() const { return forks_ != forks(); }
  bool active() const { return !closed_.load(std::memory_order_acquire); }
  /// Waits until others have taken what was sent to them, up to the deadline of the context.
  void close();

  // Groups.
  void enrol(MemberObserver&);
  void dismiss(MemberObserver&);
  /// From now on the watch thread looks after this group's operations on devices, too.
  void enrol_gpu(MemberObserver&);
  Result<GroupRecord*> claim_record(std::uint64_t key);
  /// The record of group `key` on the page of rank r; nullptr while that rank has not made the group.
  GroupRecord* find_record(int r, std::uint64_t key) const;
  /// Something on this rank's page that others wait for has changed: those on other hosts are told at once.
  void tell() {
    if (network_) network_->kick();
  }
  /// Publishes a group's first error on this rank's page, for its peers to adopt.
  void publish(GroupRecord&, const Failure&, Collective op);
  /// How many groups of this name and membership this rank has made before.
  std::uint64_t instance(std::uint64_t name_hash);
  /// World ranks known to have died (not those that left in good order).
  std::vector<int> dead() const;
  bool is_dead(int r) const { return dead_[static_cast<std::size_t>(r)].load(std::memory_order_acquire); }

  // Memory.
  /// The segment `key` of `bytes` bytes, which lives with rank `owner` and is made on first demand.
  Result<std::shared_ptr<device::Segment>> segment(std::uint64_t key, std::size_t bytes, int owner);
  void drop_segment(std::uint64_t key);
  Result<std::shared_ptr<Allocation>> allocate(std::size_t bytes, Device = {});
  /// Where [p, p + bytes) lies, if it is all registered memory of this rank; id 0 if not.
  MemoryRef find(const void* p, std::size_t bytes) const;
  /// The address here of a peer's registered memory; checked against its size.
  struct Resolved {
    std::byte* data;
    std::shared_ptr<device::Segment> keep;  ///< mapped at least as long as this
  };
  Result<Resolved> resolve(int r, MemoryRef, std::size_t bytes);
  // Memory of GPUs.
  const GpuRecord& gpu_record(int r) const { return page(r).gpu; }
  transport::GpuExports& gpu_exports() { return gpu_exports_; }
  /// The address here of device memory of rank r (of the job): within its process its own.
  Result<std::byte*> resolve_gpu(int r, const transport::GpuRef&, std::size_t bytes);
  /// The block `key` of rank r's device memory, made there on first demand, as this rank can reach it.
  struct BlockAt {
    std::byte* data;
    std::shared_ptr<transport::GpuBlock> keep;  ///< of this process: mapped at least as long as this
  };
  Result<BlockAt> gpu_block(int r, std::uint64_t key, std::size_t bytes);
  void drop_gpu_block(std::uint64_t key);
  /// Whether anything that rank r exported has ended since the last resolve_gpu: mappings are then renewed by
  /// the next, before which no work that uses them may be in flight.
  bool gpu_stale(int r);

  /// Whether this rank may read the private memory of all the given ranks; tried once for each of them.
  bool reaches(const std::vector<int>& ranks);

 private:
  friend class Watch;
  friend class Allocation;
  explicit Context(ContextSpec spec);
  Result<wire::Frame> ask(int r, const wire::Fetch&, std::vector<Fd>* fds);
  Result<wire::Frame> ask_once(int r, const wire::Fetch&, std::vector<Fd>* fds);
  Result<Fd> fetch(int r, const wire::Fetch&, std::uint64_t* bytes);
  Result<transport::GpuOffer> fetch_gpu(int r, wire::Fetch::Kind, std::uint64_t key, std::uint64_t bytes);
  Status serve_gpu(int line, const wire::Fetch&);
  static Status survey_gpu(int device, GpuRecord*);
  /// Fills in, on the copies of pages, what ranks of other hosts have said of themselves when they joined.
  Status read_remarks();
  /// Whether ranks of this process that are other threads find this one.
  void be_neighbour(bool on);
  static constexpr std::size_t kMaxSegment = std::size_t{16} << 30;  // links of kMaxRanks ranks stay below
  Result<std::pair<std::shared_ptr<transport::GpuBlock>, std::uint64_t>> own_gpu_block(std::uint64_t key,
                                                                                       std::size_t bytes);
  /// Serves a peer's request; called on the watch thread.
  Status serve(int line, const wire::Fetch&);
  void forget(std::uint64_t id);
  void on_deaths(const std::vector<int>& ranks);
  void on_losses(const std::vector<Loss>&);
  void start_network();
  void close(std::chrono::milliseconds linger);
  /// What a destructor gives others to take what was sent to them.
  static constexpr std::chrono::milliseconds kFarewell{2000};
  void scan_errors();
  void scan_gpu();

  ContextSpec spec_;
  std::vector<bool> enough_cores_;  // by host
  std::chrono::microseconds spin_{0};
  bool crowded_ = false;
  const unsigned forks_ = forks();
  std::vector<Peer> peers_;
  std::unique_ptr<std::atomic<bool>[]> dead_;
  std::mutex errors_mutex_;  // taken before mutex_
  std::mutex publish_mutex_;
  std::vector<std::uint32_t> errors_seen_;
  std::atomic<bool> closed_{false};

  mutable std::mutex mutex_;
  std::vector<MemberObserver*> groups_;
  std::mutex gpu_groups_mutex_;  // taken before mutex_, held while those groups are looked after
  std::vector<MemberObserver*> gpu_groups_;
  std::map<std::uint64_t, std::uint64_t> instances_;
  std::map<std::uint64_t, std::shared_ptr<device::Segment>> segments_;  // that this rank owns
  std::uint32_t next_record_ = 0;

  struct Exported {
    std::byte* base;
    std::size_t bytes;
    std::shared_ptr<device::Segment> segment;
  };
  mutable std::shared_mutex memory_mutex_;
  std::atomic<std::size_t> exported_count_{0};
  std::map<std::uint64_t, Exported> exported_;  // by id
  std::uint64_t next_allocation_ = 1;
  struct Imported {
    std::uint64_t freed_seen = 0;
    std::map<std::uint64_t, std::shared_ptr<device::Segment>> segments;
  };
  std::mutex import_mutex_;
  std::vector<Imported> imported_;

  transport::GpuExports gpu_exports_;
  struct GpuImported {
    std::uint64_t freed_seen = 0;
    transport::GpuImports exports, blocks;
  };
  std::mutex gpu_mutex_;
  std::vector<std::unique_ptr<GpuImported>> gpu_imported_;
  std::map<std::uint64_t, std::pair<std::shared_ptr<transport::GpuBlock>, std::uint64_t>> gpu_blocks_;

  std::unique_ptr<Network> network_;

  std::mutex reach_mutex_;
  std::map<int, bool> reach_;     // by rank
  std::unique_ptr<Watch> watch_;  // last: its thread uses all of the above
};

}  // namespace ouro::rt
