// Shared memory inside a node: links and staging buffers laid out in one sealed segment a group.
// Used by the runtime's group; the segment itself is made and passed on by the context.
#pragma once
#include <cstddef>
#include <memory>

#include "runtime/core/segment.h"
#include "transport/transport.h"

namespace ouro::transport {

/// Sizes for n ranks, a pure function of n and the wish for a slot, so that every rank computes the same.
struct ShmLinkLayout {
  std::uint32_t slot_bytes, slot_count;
  std::size_t bytes;  ///< of the whole segment
  static ShmLinkLayout of(int n, std::uint32_t slot_bytes);
};
struct ShmStagingLayout {
  std::size_t slot_bytes, eager_bytes;
  std::size_t bytes;
  static ShmStagingLayout of(int n, std::size_t slot_bytes);
};

class ShmLinks final : public Links {
 public:
  ShmLinks(std::shared_ptr<device::Segment> segment, ShmLinkLayout layout, int rank, int n)
      : segment_(std::move(segment)), layout_(layout), rank_(rank), n_(n) {}
  const char* name() const override { return "shared-memory"; }
  LinkView inbound(int from) const override { return link(from, rank_); }
  LinkView outbound(int to) const override { return link(rank_, to); }
  Counter* doorbell(int rank) const override;

 private:
  LinkView link(int from, int to) const;
  std::shared_ptr<device::Segment> segment_;
  ShmLinkLayout layout_;
  int rank_, n_;
};

class ShmStaging final : public StagingBuffers {
 public:
  ShmStaging(std::shared_ptr<device::Segment> segment, ShmStagingLayout layout, int n)
      : segment_(std::move(segment)), layout_(layout), n_(n) {}
  StagingView staging(int rank) const override;
  Counter* present(int rank) const override;

 private:
  std::shared_ptr<device::Segment> segment_;
  ShmStagingLayout layout_;
  int n_;
};

}  // namespace ouro::transport
