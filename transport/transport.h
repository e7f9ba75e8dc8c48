// The transport interface: how the ranks of one group reach each other. One implementation a file pair.
// Used by the runtime's group; views are plain data (runtime/core/link_view.h).
#pragma once
#include <memory>
#include <vector>

#include "runtime/core/link_view.h"
#include "runtime/core/status.h"

namespace ouro::transport {

/// The ring of a link between hosts, at each end, one each way. At most 64 slots.
struct NetSlots {
  std::uint32_t bytes = 0, count = 8;
};

/// One end of a link and how far this rank has come on it.
struct LinkEnd {
  LinkView view;
  std::uint64_t next = 0;
  bool remote = false;  ///< the other end is on another host
};

/// All links of one rank in one group, over one medium. Made on first use; views live as long as this does.
class Links {
 public:
  virtual ~Links() = default;
  virtual const char* name() const = 0;
  virtual LinkView inbound(int from) const = 0;  ///< this rank consumes
  virtual LinkView outbound(int to) const = 0;   ///< this rank produces; after reach(to)
  /// Before the first chunk for `to`. May wait for an answer of that rank's process, not for its calls.
  virtual Status reach(int /*to*/) { return {}; }
  /// Rung by every producer after each slot; for those who wait for whichever comes first.
  virtual Counter* doorbell(int rank) const = 0;
  /// Whether `rank` is on another host: its counters move while somebody drives the fabric.
  virtual bool remote(int /*rank*/) const { return false; }
  /// Chunks for `to`, a remote rank, have been published.
  virtual void sent(int /*to*/) {}
  /// Lets remote ranks know what has been given back to them since.
  virtual void settle() {}
  /// A message from `from` goes there where that spares a copy (LinkView::elsewhere), in place of what was
  /// said before: nothing goes there any more, whatever the peer sends.
  virtual void post_receive(int /*from*/, const PostedReceive&) {}
  /// Nothing goes there any more, and what has come lies in slots.
  virtual void recall_inbound(int /*from*/) {}
  /// What the producer keeps elsewhere for `to` is not read any more.
  virtual void recall_outbound(int /*to*/) {}
  /// With the end of this object, what remote ranks have not taken yet still gets there; `after` is let go of
  /// then.
  virtual void linger(std::shared_ptr<void> /*after*/) {}
};

/// The staging buffers of a group whose ranks all share memory.
class StagingBuffers {
 public:
  virtual ~StagingBuffers() = default;
  virtual StagingView staging(int rank) const = 0;
  /// Bumped once by each rank that has come to reach the staging buffers.
  virtual Counter* present(int rank) const = 0;
};

}  // namespace ouro::transport
