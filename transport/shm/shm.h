// Shared memory inside a host: links and staging buffers in one sealed segment per group, and links for
// messages in one segment per rank. Used by the runtime's group; the context makes segments and
// passes them on.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/core/segment.h"
#include "transport/transport.h"

namespace ouro::transport {

/// Sizes for n ranks, a pure function of n and the desired slot size, so that every rank computes the same.
struct ShmLinkLayout {
  std::uint32_t slot_bytes, slot_count;
  std::size_t bytes;  ///< of the whole segment
  static ShmLinkLayout of(int n, std::uint32_t slot_bytes);
};
/// The links from all n ranks to one of them.
struct ShmInboxLayout {
  std::uint32_t slot_bytes, slot_count;
  std::size_t bytes;
  static ShmInboxLayout of(int n, std::uint32_t slot_bytes);
};
struct ShmStagingLayout {
  std::size_t slot_bytes, eager_bytes, ring_bytes;
  std::size_t bytes;
  /// `ring_bytes`: desired bytes of all rings together; 0: there are none. A ring is never smaller than
  /// least_ring(slot); where that would take more than half of all, there are none.
  static ShmStagingLayout of(int n, std::size_t slot_bytes, std::size_t ring_bytes);
};

class ShmLinks final : public Links {
 public:
  ShmLinks(std::shared_ptr<SharedSegment> segment, ShmLinkLayout layout, int rank, int n)
      : segment_(std::move(segment)), layout_(layout), rank_(rank), n_(n) {}
  const char* name() const override { return "shared-memory"; }
  LinkView inbound(int from) const override { return link(from, rank_); }
  LinkView outbound(int to) const override { return link(rank_, to); }
  Status reach(int) override { return {}; }  // all ranks are in one segment
  Counter* doorbell(int rank) const override;
  FarLinks* far() override { return nullptr; }

 private:
  LinkView link(int from, int to) const;
  std::shared_ptr<SharedSegment> segment_;
  ShmLinkLayout layout_;
  int rank_, n_;
};

/// Links each of which is in a segment of its consumer, so that two ranks can begin at any time, even after
/// others have left.
class ShmInboxes final : public Links {
 public:
  using Fetch = std::function<Result<std::shared_ptr<SharedSegment>>(int rank)>;
  /// `mine`: the inbox of `rank`; `fetch` gets the inbox of another rank. `doorbells`: those of all ranks.
  ShmInboxes(std::shared_ptr<SharedSegment> mine, ShmInboxLayout layout, int rank,
             std::vector<Counter*> doorbells, Fetch fetch);
  const char* name() const override { return "shared-memory"; }
  LinkView inbound(int from) const override { return link(from, rank_); }
  LinkView outbound(int to) const override { return link(rank_, to); }
  Status reach(int to) override;
  Counter* doorbell(int rank) const override { return doorbells_[static_cast<std::size_t>(rank)]; }
  FarLinks* far() override { return nullptr; }

 private:
  LinkView link(int from, int to) const;
  ShmInboxLayout layout_;
  int rank_;
  std::vector<Counter*> doorbells_;
  Fetch fetch_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<SharedSegment>> segments_;  // by rank; only those that have been reached
};

class ShmStaging final : public StagingBuffers {
 public:
  ShmStaging(std::shared_ptr<SharedSegment> segment, ShmStagingLayout layout, int n)
      : segment_(std::move(segment)), layout_(layout), n_(n) {}
  StagingView staging(int rank) const override;
  void map_pages() const override { segment_->populate(); }
  Counter* present(int rank) const override;

 private:
  std::shared_ptr<SharedSegment> segment_;
  ShmStagingLayout layout_;
  int n_;
};

}  // namespace ouro::transport
