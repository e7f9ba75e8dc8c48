// The transport interface: how the ranks of one group exchange data. One implementation per pair of files.
// Used by the runtime's group; views are plain data (runtime/core/link_view.h).
#pragma once
#include <memory>
#include <vector>

#include "runtime/core/link_view.h"
#include "runtime/core/status.h"

namespace ouro::transport {

/// Size of the rings at each end of a link between hosts, one ring per direction. At most 64 slots.
struct NetSlots {
  std::uint32_t bytes = 0, count = 8;
};

/// One end of a link, and the number of chunks that this rank has processed on it.
struct LinkEnd {
  LinkView view;
  std::uint64_t next = 0;
  bool remote = false;  ///< the other end is on another host
};

class FarLinks;

/// All links of one rank in one group. Created on first use; views are valid as long as this object. Any
/// thread may call any function. None blocks unless its comment says so, and only reach() can fail.
class Links {
 public:
  virtual ~Links() = default;
  virtual const char* name() const = 0;
  virtual LinkView inbound(int from) const = 0;  ///< this rank consumes
  virtual LinkView outbound(int to) const = 0;   ///< this rank produces; valid after reach(to)
  /// Called before the first chunk for `to`. The first call for a rank may block until the watch thread of
  /// its process has answered, 10 s at most; that rank need not call anything. Errors: those of the request
  /// for its memory (peer-dead, refused, deadline, resource). A later call tries again.
  virtual Status reach(int to) = 0;
  /// A counter that every producer rings after each slot, for a rank that waits for several links at once.
  virtual Counter* doorbell(int rank) const = 0;
  /// The links to ranks of other hosts, which belong to this object; constant. nullptr: all ranks are on this
  /// host. Callers ask once and keep the answer.
  virtual FarLinks* far() = 0;
};

/// The functions that only links to ranks of other hosts have. Each rank that is passed is on another host.
/// Any thread may call any function. Each may wait for the lock of the exchange (see fabric.h); none waits
/// for the network unless its comment says so. None returns an error: the network reports a peer that fails
/// to the group.
class FarLinks {
 public:
  virtual ~FarLinks() = default;
  /// Whether `rank` is on another host: counters of its links move only while a thread drives the fabric.
  /// Takes no lock.
  virtual bool is_far(int rank) const = 0;
  /// Notifies the fabric that chunks for `to` have been published, and sends those that the connection
  /// takes at once.
  virtual void sent(int to) = 0;
  /// Notifies all far ranks of the slots that have been given back to them since the last call.
  virtual void settle() = 0;
  /// Posts a receive: the next message from `from` is written there if that saves a copy
  /// (LinkView::elsewhere). Replaces the previous receive, whose memory is not written any more, whatever the
  /// peer sends.
  virtual void post_receive(int from, const PostedReceive&) = 0;
  /// Revokes a posted receive: its memory is not written any more, and what has arrived is moved to slots.
  /// Memory of a device is not: what has arrived there, or is arriving, stays where it is.
  virtual void recall_inbound(int from) = 0;
  /// Whether memory of devices can be lent to `peer`, and receives from it be posted there. Both ends
  /// answer the same.
  virtual bool takes_device(int peer) const = 0;
  /// Chunk `index` for `to`, which is published next, is in memory of a device. `memory` is kept until the
  /// chunk has been given back and nobody reads it any more, also after recall_outbound.
  /// Precondition: takes_device(to).
  virtual void lend_device(int to, std::uint64_t index, const std::byte* from,
                           std::shared_ptr<void> memory) = 0;
  /// Afterwards, memory that the producer keeps elsewhere for `to` is not read any more. May block until the
  /// network has read it, as Fabric::moved does.
  virtual void recall_outbound(int to) = 0;
  /// Whether all that was published for `to` has arrived in its slots there, as far as this rank knows. With
  /// `ask` it requests a report, which is not awaited; from then on the peer reports every arrival. The
  /// request may be lost with its connection.
  virtual bool arrived(int to, bool ask) = 0;
  /// When the links are destroyed, data that far ranks have not taken yet is still delivered; `after` is
  /// released then.
  virtual void linger(std::shared_ptr<void> after) = 0;
};

/// The staging buffers of a group whose ranks all share memory. Any thread may call any function; only
/// map_pages() takes long.
class StagingBuffers {
 public:
  virtual ~StagingBuffers() = default;
  virtual StagingView staging(int rank) const = 0;
  /// Has the system map all pages of all ranks into this process before it returns.
  virtual void map_pages() const = 0;
  /// Incremented once by each rank that has mapped the staging buffers.
  virtual Counter* present(int rank) const = 0;
};

}  // namespace ouro::transport
