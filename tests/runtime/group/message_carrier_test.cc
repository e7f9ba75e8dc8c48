// MessageCarrier: how chunks get from memory of the host into slots and out of them. Memory of devices is
// tested in tests/runtime/exec/gpu/direct_steps_test.cc.
#include "runtime/group/message_carrier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

namespace ouro::rt {
namespace {

constexpr std::uint32_t kSlot = 64, kSlots = 2;
constexpr std::size_t kLong = MessageCarrier::kBuffered + 1;

/// A link without counters, whose slots are in this object.
struct PlainLink {
  explicit PlainLink(bool lends) {
    view.slots = reinterpret_cast<std::byte*>(memory.data());
    view.slot_bytes = kSlot, view.slot_count = kSlots;
    if (lends) view.elsewhere = elsewhere.data();
  }
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };
  std::array<Line, 2 * kSlots> memory = {};
  std::array<const std::byte*, kSlots> elsewhere = {};
  LinkView view;
};

std::vector<std::byte> numbered(std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (std::size_t b = 0; b < bytes; ++b) data[b] = static_cast<std::byte>(b % 251 + 1);
  return data;
}
constexpr ChunkReceiver kHere{nullptr, 1};

TEST(MessageCarrier, ChunkOfAShortSendIsCopiedThroughItsSlot) {
  for (const bool can_lend : {false, true}) {
    PlainLink link(can_lend);
    std::vector<std::byte> from = numbered(100), to(100);
    const MessageCarrier send(from.data()), receive(to.data());
    ASSERT_FALSE(send.lends(link.view, MessageCarrier::kBuffered));
    send.fill({link.view, 3, 36, 64, kHere}, false);
    std::fill(from.begin(), from.end(), std::byte{});  // the sender may write its memory again
    ASSERT_TRUE(receive.take({link.view, 3, 36, 64}).ok());
    auto expected = numbered(100);
    std::fill(expected.begin(), expected.begin() + 36, std::byte{});
    EXPECT_EQ(to, expected);
  }
}

TEST(MessageCarrier, ChunkOfALongSendIsLentWhereTheLinkCanReadIt) {
  PlainLink reads(true), only_slots(false);
  const std::vector<std::byte> from = numbered(kLong);
  const MessageCarrier send(const_cast<std::byte*>(from.data()));
  EXPECT_FALSE(send.lends(only_slots.view, kLong));
  ASSERT_TRUE(send.lends(reads.view, kLong));
  send.fill({reads.view, 1, 64, 64, kHere}, true);
  EXPECT_EQ(reads.view.found(1), from.data() + 64);
  EXPECT_EQ(reads.view.payload(1)[0], std::byte{}) << "it was copied, too";
  send.fill({reads.view, 3, 0, 64, kHere}, false);  // the slot is used again
  EXPECT_EQ(reads.view.found(3), reads.view.payload(3));
}

TEST(MessageCarrier, ChunkThatTheLinkHasPutInPlaceStaysThere) {
  PlainLink link(true);
  std::vector<std::byte> to = numbered(128);
  const MessageCarrier receive(to.data());
  link.elsewhere[0] = to.data() + 64;
  ASSERT_TRUE(receive.take({link.view, 2, 64, 64}).ok());
  EXPECT_EQ(to, numbered(128));
  link.elsewhere[0] = to.data();  // in memory of the receive, but elsewhere
  ASSERT_TRUE(receive.take({link.view, 2, 64, 64}).ok());
  EXPECT_TRUE(std::equal(to.begin(), to.begin() + 64, to.begin() + 64));
}

TEST(MessageCarrier, WholeMessageMovesFromStoredToPinnedMemory) {
  auto stored = numbered(50);
  const auto pinned = std::make_shared<std::vector<std::byte>>(60);
  const MessageCarrier receive(PinnedCarrier{std::shared_ptr<void>(pinned, pinned->data())});
  EXPECT_EQ(receive.on_host(), pinned->data());
  EXPECT_EQ(receive.on_device(), nullptr);
  EXPECT_FALSE(receive.outlives_receive());
  ASSERT_TRUE(receive.take_all(MessageCarrier(stored.data()), 50).ok());
  EXPECT_TRUE(std::equal(stored.begin(), stored.end(), pinned->begin()));
  EXPECT_EQ((*pinned)[50], std::byte{});
}

}  // namespace
}  // namespace ouro::rt
