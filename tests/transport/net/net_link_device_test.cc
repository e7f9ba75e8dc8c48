// Memory of devices on a link between hosts: what goes there, and who keeps it for how long.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "transport/net/net_link.h"

namespace ouro::transport {
namespace {

constexpr std::uint32_t kSlot = 4096, kSlots = 4;

class NetLinkDevice : public testing::Test {
 protected:
  std::shared_ptr<std::byte> memory(std::size_t bytes) {
    return {new std::byte[bytes], std::default_delete<std::byte[]>()};
  }
  /// Chunk `index` of a message of three that begins with chunk 0.
  static NetHeader chunk(std::uint64_t index) {
    NetHeader h{};
    h.kind = NetHeader::kChunk, h.bytes = kSlot, h.index = index, h.total = 3 * kSlot, h.tag = 5;
    return h;
  }
  NetLink::Destination begin_receive(const NetHeader& h, bool anywhere) {
    std::string wrong;
    const NetLink::Destination p = link_.begin_receive(h, anywhere, &wrong);
    EXPECT_EQ(wrong, "");
    return p;
  }
  std::shared_ptr<std::byte> device_ = memory(3 * kSlot);
  std::vector<std::byte> host_ = std::vector<std::byte>(3 * kSlot);
  NetLink link_{kSlot, kSlots};
};

TEST_F(NetLinkDevice, TakesOnlyUncheckedChunksThatCannotBeRecalled) {
  link_.post({0, host_.data(), host_.size(), 5, device_});
  EXPECT_EQ(begin_receive(chunk(0), false).to, device_.get());
  EXPECT_EQ(link_.in().on_device[0], device_.get());
  EXPECT_EQ(begin_receive(chunk(1), true).to, host_.data() + kSlot);
  EXPECT_EQ(link_.in().on_device[1], nullptr);
  NetHeader checked = chunk(2);
  checked.check = 1;
  EXPECT_EQ(begin_receive(checked, false).to, link_.in().payload(2));
}

TEST_F(NetLinkDevice, TakesNoChunksAfterAFailedTransfer) {
  link_.post({0, host_.data(), host_.size(), 5, device_});
  const NetLink::Destination first = begin_receive(chunk(0), false);
  EXPECT_EQ(first.device, device_);
  link_.abandon(0);
  EXPECT_EQ(link_.in().on_device[0], nullptr);
  EXPECT_EQ(begin_receive(chunk(0), false).to, link_.in().payload(0));
  EXPECT_EQ(begin_receive(chunk(1), false).to, link_.in().payload(1));
}

/// It stays what it is when the receive is revoked, and goes when the slot has been released.
TEST_F(NetLinkDevice, ReceiveMemoryIsKeptUntilTheSlotIsReleased) {
  link_.post({0, host_.data(), host_.size(), 5, device_});
  begin_receive(chunk(0), false);
  ASSERT_EQ(link_.arrive(chunk(0)), NetLink::Arrived::kNews);
  link_.recall_inbound([](const NetLink::Move&) { ADD_FAILURE() << "memory of a device was moved"; });
  const std::weak_ptr<std::byte> memory = device_;
  device_.reset();
  EXPECT_FALSE(memory.expired());
  EXPECT_EQ(link_.in().on_device[0], memory.lock().get());
  publish(*link_.in().freed, 1);
  link_.post({});
  NetHeader next{};
  const std::byte* payload = nullptr;
  std::shared_ptr<void> lent;
  (void)link_.next(1, &next, &payload, &lent);
  EXPECT_TRUE(memory.expired());
}

TEST_F(NetLinkDevice, LentMemoryIsKeptUntilTheChunkIsReturned) {
  const LinkView out = link_.out();
  out.header(0) = {0, 0, kSlot, kSlot, 5};
  link_.lend_device(0, device_.get(), device_);
  publish(*out.full, 1);
  NetHeader opened{};
  opened.kind = NetHeader::kOpened;
  link_.handle_control(opened);
  NetHeader h{};
  const std::byte* payload = nullptr;
  std::shared_ptr<void> lent;
  while (link_.next(1, &h, &payload, &lent) && h.kind != NetHeader::kChunk) continue;
  EXPECT_EQ(payload, device_.get());
  EXPECT_EQ(lent, device_);
  EXPECT_NE(h.report, 0u) << "its owner waits for it";
  lent.reset();
  const std::weak_ptr<std::byte> memory = device_;
  device_.reset();
  link_.recall_outbound([](const NetLink::Move&) { ADD_FAILURE() << "memory of a device was moved"; });
  link_.resume();  // after a lost connection it is sent again from there
  while (link_.next(1, &h, &payload, &lent) && h.kind != NetHeader::kChunk) continue;
  EXPECT_EQ(payload, memory.lock().get());
  lent.reset();
  EXPECT_FALSE(memory.expired());
  EXPECT_TRUE(link_.give_back(1));
  EXPECT_TRUE(memory.expired());
}

}  // namespace
}  // namespace ouro::transport
