// Messages by UCX from and to memory of GPUs, step by step, between two fabrics of one process: buffers that
// are taken back in mid-message, messages that do not fit, and who can do it at all.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>

#include "runtime/exec/gpu/device_receipt.h"
#include "runtime/exec/host/wiring.h"
#include "runtime/group/messages.h"
#include "runtime/stream/gpu_stream.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/exec/gpu/direct.h"
#include "tests/runtime/failure/harness.h"
#include "transport/net/net_links.h"

namespace ouro::test {
namespace {

constexpr std::size_t kChunk = rt::Wiring::kFarMessageSlot;

using transport::HandsOver;

/// A rank of two, whose test drives its messages.
struct Seat {
  Seat(int rank, std::function<bool()> takes = {})
      : fabric(*transport::UcxFabric::create({.rank = rank,
                                              .world = 2,
                                              .checks = true,
                                              .device = 0,
                                              .takes = std::move(takes),
                                              .devices = "lo",
                                              .patience = 300ms,
                                              .failed = [](int, Status) {}})),
        rank_(rank) {}
  void meet(Seat& other) { fabric->connect(other.rank_, other.fabric->address()); }
  void open() {
    std::vector<int> local = {-1, -1};
    local[static_cast<std::size_t>(rank_)] = 0;
    messages = std::make_unique<rt::Messages>(
        std::make_unique<transport::NetLinks>(*fabric, 7, std::vector<int>{0, 1}, local, rank_,
                                              transport::NetSlots{kChunk, 16}, nullptr),
        rank_, 2);
  }
  std::unique_ptr<transport::UcxFabric> fabric;
  std::unique_ptr<rt::Messages> messages;
  int rank_;
};

class DirectSteps : public testing::Test {
 protected:
  void SetUp() override {
    OURO_NEEDS_FAKES();
    OURO_NEEDS_UCX();
    make();
  }
  void make(std::function<bool()> takes = {}) {
    a_ = std::make_unique<Seat>(0);
    b_ = std::make_unique<Seat>(1, std::move(takes));
    a_->meet(*b_), b_->meet(*a_);
    a_->open(), b_->open();
  }
  static rt::Message sends(const std::vector<std::byte>& v, int tag = 1) {
    rt::Message m({.sends = true, .peer = 1, .tag = tag, .bytes = v.size()}, nullptr);
    rt::LentCarrier lent{*rt::take_device(0, v.size())};
    std::memcpy(lent.memory.get(), v.data(), v.size());  // memory of emulated devices
    m.carrier = std::move(lent);
    return m;
  }
  static rt::Message receives(std::size_t bytes, int tag = 1, bool exact = false) {
    rt::Message m({.peer = 0, .tag = tag, .bytes = bytes, .exact = exact}, nullptr);
    m.carrier = rt::ReceiptCarrier{*rt::DeviceReceipt::make(0, bytes, kChunk)};
    return m;
  }
  static const std::shared_ptr<rt::DeviceReceipt>& receipt_of(const rt::Message& m) {
    return m.carrier.as<rt::ReceiptCarrier>()->receipt;
  }
  /// Both ranks move until `done`.
  bool drive(const std::function<bool()>& done) {
    return eventually([&] {
      for (Seat* s : {a_.get(), b_.get()}) {
        s->fabric->progress();
        if (s->messages) {
          EXPECT_TRUE(s->messages->progress().ok());
        }
      }
      return done();
    });
  }
  bool finish(const std::vector<rt::Message*>& all) {
    return drive([&] {
      for (const rt::Message* m : all)
        if (!(m->request.sends ? a_ : b_)->messages->done(*m)) return false;
      return true;
    });
  }
  /// What a kernel behind the message would leave in the caller's buffer.
  static std::vector<std::byte> landed(rt::Message& m) {
    const std::size_t bytes = m.request.bytes;
    std::vector<std::byte> out(bytes);
    auto stream = gpu::gpu().create_stream(0, 0);
    auto to = rt::take_device(0, bytes);
    EXPECT_TRUE(stream.ok() && to.ok() && receipt_of(m)->finish().ok());
    std::memset(to->get(), 0x5a, bytes);  // the pool may have given what held the message before
    EXPECT_TRUE(receipt_of(m)->enqueue(to->get(), *stream).ok());
    EXPECT_TRUE(gpu::gpu().copy(out.data(), to->get(), out.size(), *stream).ok());
    EXPECT_TRUE(gpu::gpu().synchronize(*stream).ok());
    (void)gpu::gpu().destroy_stream(*stream).ok();
    return out;
  }
  std::unique_ptr<Seat> a_, b_;
};

constexpr std::size_t kLong = 40 * kChunk + 123;

/// Takes what arrives at b until about half of a message has.
#define OURO_HALF(b_receive)                                                                            \
  ASSERT_TRUE(a_->messages->post(out).ok());                                                            \
  ASSERT_TRUE(drive([&] { /* chunks may arrive in any order */                                          \
                          return b_receive.begun && b_->fabric->device_bytes_received() >= 10 * kChunk; \
  }));                                                                                                  \
  ASSERT_FALSE(b_->messages->done(b_receive))

/// The receive is taken back in mid-message: its memory goes on to stand in for the message, and the next
/// receive gets all of it, on a device or on the host.
TEST_F(DirectSteps, ReceiveWithdrawnInMidMessageLeavesItToTheNext) {
  for (const bool device : {true, false}) {
    make();
    const auto data = pattern(kLong, 5);
    rt::Message out = sends(data), first = receives(kLong), second = receives(kLong);
    std::vector<std::byte> host(kLong);
    if (!device) second.carrier = rt::MessageCarrier(host.data());
    ASSERT_TRUE(b_->messages->post(first).ok());
    OURO_HALF(first);
    const std::weak_ptr<rt::DeviceReceipt> kept = receipt_of(first);
    ASSERT_TRUE(b_->messages->withdraw(first));
    first = {};
    EXPECT_FALSE(kept.expired());
    ASSERT_TRUE(b_->messages->post(second).ok());
    ASSERT_TRUE(finish({&out, &second}));
    EXPECT_TRUE(second.outcome.ok());
    EXPECT_TRUE((device ? landed(second) : host) == data);
    second = {};
    EXPECT_TRUE(kept.expired());
  }
}

/// Nobody takes the message any more: it stays in the queue, until the links go.
TEST_F(DirectSteps, MessageOfAWithdrawnReceiveIsKeptUntilTheLinksEnd) {
  const auto data = pattern(kLong, 5);
  rt::Message out = sends(data), first = receives(kLong);
  ASSERT_TRUE(b_->messages->post(first).ok());
  OURO_HALF(first);
  const std::weak_ptr<std::byte> memory = receipt_of(first)->on_device();
  ASSERT_TRUE(b_->messages->withdraw(first));
  first = {};
  ASSERT_TRUE(finish({&out}));
  EXPECT_FALSE(memory.expired());
  b_->messages.reset();
  EXPECT_TRUE(drive([&] { return memory.expired(); }));
}

/// The send is taken back in mid-message: its memory is kept while UCX may read it, and not longer.
TEST_F(DirectSteps, MemoryOfAWithdrawnSendIsKeptWhileUcxMayReadIt) {
  rt::Message out = sends(pattern(kLong, 5)), in = receives(kLong);
  ASSERT_TRUE(b_->messages->post(in).ok());
  OURO_HALF(in);
  const std::weak_ptr<std::byte> memory = out.carrier.as<rt::LentCarrier>()->memory;
  ASSERT_FALSE(a_->messages->withdraw(out)) << "cut off halfway";
  out = {};
  EXPECT_TRUE(drive([&] { return memory.expired(); }));
}

/// A send that is completely on the link is taken back: it is done, and arrives.
TEST_F(DirectSteps, WithdrawnSendThatIsFullyOnTheLinkArrives) {
  const auto data = pattern(5 * kChunk + 1, 6);
  rt::Message out = sends(data), in = receives(data.size());
  ASSERT_TRUE(a_->messages->post(out).ok());
  ASSERT_TRUE(a_->messages->progress().ok());
  ASSERT_TRUE(a_->messages->withdraw(out));
  out = {};
  ASSERT_TRUE(b_->messages->post(in).ok());
  ASSERT_TRUE(finish({&in}));
  EXPECT_TRUE(landed(in) == data);
}

/// The memory of a receive gets chunks of a message that it then does not fit: the next one gets them.
TEST_F(DirectSteps, MessageThatDoesNotFitIsLeftToTheNextReceive) {
  const auto data = pattern(kLong, 7);
  rt::Message out = sends(data), first = receives(kLong + 1, 1, true), second = receives(kLong);
  ASSERT_TRUE(b_->messages->post(first).ok());
  ASSERT_TRUE(a_->messages->post(out).ok());
  // Chunks arrive on the device before b looks at them.
  ASSERT_TRUE(eventually([&] {
    a_->fabric->progress();
    EXPECT_TRUE(a_->messages->progress().ok());
    b_->fabric->progress();
    return b_->fabric->device_bytes_received() >= 4 * kChunk;
  }));
  ASSERT_TRUE(drive([&] { return b_->messages->done(first); }));
  EXPECT_EQ(first.outcome.reason(), Reason::mismatch);
  ASSERT_TRUE(b_->messages->post(second).ok());
  ASSERT_TRUE(finish({&out, &second}));
  EXPECT_TRUE(landed(second) == data);
}

/// A peer goes in mid-message: memory stays as long as UCX may use it, and the fabrics end.
TEST_F(DirectSteps, PeerLostInMidMessageKeepsMemoryWhileUcxMayUseIt) {
  for (const bool sender : {true, false}) {
    make();
    rt::Message out = sends(pattern(kLong, 5)), in = receives(kLong);
    ASSERT_TRUE(b_->messages->post(in).ok());
    OURO_HALF(in);
    Seat& gone = sender ? *a_ : *b_;
    Seat& left = sender ? *b_ : *a_;
    gone.messages.reset();
    gone.fabric.reset();
    left.fabric->drop(gone.rank_);
    (void)left.messages->withdraw(sender ? in : out);
    const auto end = Clock::now() + 100ms;
    while (Clock::now() < end) {
      left.fabric->progress();
      ASSERT_TRUE(left.messages->progress().ok());
    }
    left.messages.reset();
    left.fabric.reset();
  }
}

/// UCX says no at one end: neither hands memory over.
TEST_F(DirectSteps, NeitherEndHandsMemoryOverIfOneCannot) {
  make([] { return false; });
  EXPECT_TRUE(a_->fabric->device_ability().ok());
  EXPECT_EQ(b_->fabric->device_ability().reason(), Reason::unsupported);
  EXPECT_FALSE(a_->fabric->takes_device(1));
  EXPECT_FALSE(b_->fabric->takes_device(0));
}

TEST(DirectAbility, NeedsSupportOfUcxAndTheDevice) {
  using transport::hands_over;
  OURO_NEEDS_UCX();
  const transport::DeviceQuery can{.device = true, .rdma = true, .cuda = true};
  const auto with = [&](auto change) {
    transport::DeviceQuery q = can;
    change(q);
    return hands_over(q);
  };
  EXPECT_TRUE(hands_over(can).ok());
  EXPECT_TRUE(with([](auto& q) { q.emulated = true, q.cuda = q.rdma = false; }).ok());
  EXPECT_TRUE(with([](auto& q) { q.rdma = false, q.wanted = HandsOver::always; }).ok());
  EXPECT_FALSE(with([](auto& q) { q.rdma = false; }).ok());
  EXPECT_FALSE(with([](auto& q) { q.cuda = false; }).ok());
  EXPECT_FALSE(with([](auto& q) { q.cuda = false, q.wanted = HandsOver::always; }).ok());
  EXPECT_FALSE(with([](auto& q) { q.device = false; }).ok());
  EXPECT_FALSE(with([](auto& q) { q.wanted = HandsOver::never; }).ok());
  EXPECT_FALSE(with([](auto& q) { q.flush = unsupported("no"); }).ok());
}

}  // namespace
}  // namespace ouro::test
