// Links of a group whose ranks are on several hosts: over shared memory within a host, over a fabric between
// hosts. Used by the group.
#pragma once
#include <memory>
#include <vector>

#include "transport/net/fabric.h"
#include "transport/transport.h"

namespace ouro::transport {

class NetLinks final : public Links, public FarLinks {
 public:
  /// `ranks`: ranks in the job, by rank of the group. `local`: for each of these, its index among the group's
  /// ranks on this host, or -1. `here` links those (nullptr if this rank is alone on its host).
  NetLinks(Fabric& fabric, std::uint64_t key, std::vector<int> ranks, std::vector<int> local, int rank,
           NetSlots slots, std::unique_ptr<Links> here);
  ~NetLinks() override;
  const char* name() const override { return fabric_.name(); }
  LinkView inbound(int from) const override;
  LinkView outbound(int to) const override;
  Status reach(int to) override;
  Counter* doorbell(int rank) const override;
  FarLinks* far() override { return this; }
  bool is_far(int rank) const override { return local_[static_cast<std::size_t>(rank)] < 0; }
  void sent(int to) override { fabric_.kick(ranks_[static_cast<std::size_t>(to)]); }
  void settle() override { fabric_.kick(Fabric::kEveryone); }
  void post_receive(int from, const PostedReceive&) override;
  void recall_inbound(int from) override;
  void recall_outbound(int to) override;
  bool takes_device(int peer) const override {
    return fabric_.takes_device(ranks_[static_cast<std::size_t>(peer)]);
  }
  void lend_device(int to, std::uint64_t index, const std::byte* from, std::shared_ptr<void> memory) override;
  bool arrived(int to, bool ask) override;
  void linger(std::shared_ptr<void> after) override;

 private:
  NetLink& link(int rank) const { return *link_set_->links.at(ranks_[static_cast<std::size_t>(rank)]); }
  /// Requires the exchange's lock.
  void recall_inbound_locked(int from);
  /// The link of a rank that is alone on its host to itself, which carries nothing.
  LinkView nothing() const { return {nullptr, slot_bytes_, 2, &spare_->full, &spare_->freed}; }
  Fabric& fabric_;
  std::vector<int> ranks_, local_;
  int rank_;
  std::uint32_t slot_bytes_;
  std::unique_ptr<Links> here_;
  std::shared_ptr<LinkSet> link_set_;
  bool lingers_ = false;
  struct Spare {
    Counter own_doorbell{}, others_doorbell{}, full{}, freed{};
  };
  std::unique_ptr<Spare> spare_;
};

}  // namespace ouro::transport
