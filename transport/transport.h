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

/// All links of one rank in one group, over one medium. Created on first use; views are valid as long as
/// this object.
class Links {
 public:
  virtual ~Links() = default;
  virtual const char* name() const = 0;
  virtual LinkView inbound(int from) const = 0;  ///< this rank consumes
  virtual LinkView outbound(int to) const = 0;   ///< this rank produces; valid after reach(to)
  /// Called before the first chunk for `to`. May wait for an answer from that rank's process, but not for
  /// calls that it makes.
  virtual Status reach(int /*to*/) { return {}; }
  /// A counter that every producer rings after each slot, for a rank that waits for several links at once.
  virtual Counter* doorbell(int rank) const = 0;
  /// Whether `rank` is on another host: counters of its links move only while somebody drives the fabric.
  virtual bool remote(int /*rank*/) const { return false; }
  /// Notifies the fabric that chunks for `to`, a remote rank, have been published.
  virtual void sent(int /*to*/) {}
  /// Tells remote ranks which slots have been given back to them since.
  virtual void settle() {}
  /// Posts a receive: the next message from `from` is written there if that saves a copy
  /// (LinkView::elsewhere). Replaces the previous receive, whose memory is not written any more, whatever the
  /// peer sends.
  virtual void post_receive(int /*from*/, const PostedReceive&) {}
  /// Revokes a posted receive: its memory is not written any more, and what has arrived is moved to slots.
  /// Memory of a device is not: what has arrived there, or is arriving, stays where it is.
  virtual void recall_inbound(int /*from*/) {}
  /// Whether memory of devices can be lent to `peer`, and receives from it be posted there. Both ends answer
  /// the same.
  virtual bool takes_device(int /*peer*/) const { return false; }
  /// Chunk `index` for `to`, which is published next, is in memory of a device. `memory` is kept until the
  /// chunk has been given back and nobody reads it any more, also after recall_outbound. Precondition:
  /// takes_device(to).
  virtual void lend_device(int /*to*/, std::uint64_t /*index*/, const std::byte* /*from*/,
                           std::shared_ptr<void> /*memory*/) {}
  /// Afterwards, memory that the producer keeps elsewhere for `to` is not read any more.
  virtual void recall_outbound(int /*to*/) {}
  /// Whether all that was published for `to` has arrived in its slots there, as far as it is known here.
  /// `ask`: asks, and from then on every arrival is reported; a question may be lost with its connection.
  virtual bool arrived(int /*to*/, bool /*ask*/) { return true; }
  /// When this object is destroyed, data that remote ranks have not taken yet is still delivered; `after` is
  /// released then.
  virtual void linger(std::shared_ptr<void> /*after*/) {}
};

/// The staging buffers of a group whose ranks all share memory.
class StagingBuffers {
 public:
  virtual ~StagingBuffers() = default;
  virtual StagingView staging(int rank) const = 0;
  /// Has the system map all pages of all ranks into this process now.
  virtual void map_pages() const = 0;
  /// Incremented once by each rank that has mapped the staging buffers.
  virtual Counter* present(int rank) const = 0;
};

}  // namespace ouro::transport
