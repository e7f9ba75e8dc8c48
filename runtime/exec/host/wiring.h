// Wiring: the links and staging buffers of a group over shared memory and the network. Owned by group; used
// by the host executors and, for links of their own, by messages.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "runtime/context/context.h"
#include "runtime/plan/members.h"
#include "transport/transport.h"

namespace ouro::rt {

/// The links of a group, and this rank's position on each of them.
struct LinkEnds {
  std::unique_ptr<transport::Links> links;
  transport::FarLinks* far = nullptr;       ///< those to other hosts, if there are any
  std::vector<transport::LinkEnd> in, out;  ///< by rank
};

/// Bytes of a group's memory, and what it is used for: the same on all members.
struct SlotBytes {
  std::size_t link = 0;     ///< payload of one slot of a link
  std::size_t staging = 0;  ///< a staging slot; no post is longer
  std::size_t eager = 0;    ///< an eager slot
  /// The ring of a staging buffer, at least StagingView::least_ring(staging); 0: there is none.
  std::size_t ring = 0;
  /// Posts of up to so many bytes do not use the ring: their slots fit into the nearest caches.
  std::size_t near = 4096;
};

/// Slot sizes of a group of `ranks` ranks.
SlotBytes slot_bytes(const Context&, int ranks);

/// Makes the links and the staging buffers of a group when they are first used, and owns them.
class Wiring {
 public:
  /// `key` identifies the group's memory on all members; `waiter` is that of the group's operations.
  Wiring(Context&, const Members&, std::uint64_t key, Waiter& waiter);
  ~Wiring();
  Wiring(const Wiring&) = delete;
  Wiring& operator=(const Wiring&) = delete;

  const SlotBytes& slot_bytes() const { return bytes_; }
  /// Create the links or the staging buffers unless they exist. Called in the first operation that needs
  /// them, which is the same on all members: members of one host wait for each other.
  Status need_links();
  Status need_staging();
  /// Called before the ring is used. The first time it has the system map all pages: otherwise operations
  /// would wait for that until a lap of the ring is complete.
  void need_ring() {
    if (!std::exchange(has_ring_, true)) map_pages();
  }
  LinkEnds& links() { return ends_; }  ///< empty before need_links()
  const std::vector<StagingView>& staging() const {
    return views_;
  }  ///< by rank; empty before need_staging()

  /// Makes links for messages. Data in flight to a rank is stored in memory of that rank (within its host; in
  /// the network's buffers otherwise), so any two ranks can start exchanging messages at any time.
  Result<std::unique_ptr<transport::Links>> make_message_links();

  /// Called when an operation has ended: notifies other hosts of the slots that have been given back to them.
  void settle() {
    if (settles()) ends_.far->settle();
  }
  bool settles() const { return ends_.far != nullptr; }
  /// When the links are destroyed, data that other hosts have not taken yet is still delivered; `after` is
  /// released then.
  void linger(const std::shared_ptr<void>& after) {
    if (ends_.far) ends_.far->linger(after);
  }
  void drop_links() { ends_ = {}; }

  /// Bytes of a slot of messages between hosts.
  static constexpr std::uint32_t kFarMessageSlot = 128 << 10;

 private:
  enum Purpose : std::uint64_t { kLinks = 1, kStaging = 2, kMessages = 3 };
  std::uint64_t segment_key(Purpose) const;
  /// The segment that member `owner` owns. Errors: those of HostMemory::segment, with ranks of the group.
  Result<std::shared_ptr<SharedSegment>> segment(Purpose, std::size_t bytes, int owner);
  /// Makes links to all members: `here` for those on this host and, if there are members on other hosts,
  /// links over the network with slots as `far` specifies.
  Result<std::unique_ptr<transport::Links>> make_links(Purpose, std::unique_ptr<transport::Links> here,
                                                       transport::NetSlots far);
  void map_pages();
  template <class Mark>
  Status await_all(Mark&& mark);

  Context& context_;
  const Members& members_;
  const std::uint64_t key_;
  Waiter& waiter_;
  SlotBytes bytes_;
  bool has_ring_ = false;
  LinkEnds ends_;
  std::unique_ptr<transport::StagingBuffers> staging_;
  std::vector<StagingView> views_;
};

}  // namespace ouro::rt
