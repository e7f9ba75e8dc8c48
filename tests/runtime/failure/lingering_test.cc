// Lingering data: what leaving ranks have sent to other hosts arrives after they have gone.
#include <algorithm>
#include <iterator>
#include <optional>

#include "runtime/context/context.h"
#include "tests/runtime/failure/two_hosts.h"

namespace ouro::test {
namespace {

/// The sender destroys its group and its context at once. The context waits two seconds for the receiver and
/// ends while the message still lingers in its links: lingering data must end before the objects that it
/// notifies of its end.
TEST(Lingering, MessageArrivesAfterItsSenderHasLeft) {
  Watchdog watchdog(3 * kHang);
  const TwoHosts hosts;
  std::atomic<bool> opened{false}, gone{false};
  on_threads(2, [&](int rank) {
    auto joined = hosts.join(rank);
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    std::optional<Context> context(std::move(*joined));
    const int both[] = {0, 1};
    auto made = context->group(both, "short");
    ASSERT_TRUE(made.ok()) << made.status().message();
    std::optional<Group> group(std::move(*made));
    ASSERT_TRUE(exact_all_reduce(*group).ok());
    std::vector<std::int32_t> words(5000, rank == 0 ? 7 : 0);
    if (rank == 0) {
      ASSERT_TRUE(eventually([&] { return opened.load(); }));
      ASSERT_TRUE(send(*group, std::span<const std::int32_t>(words), 1).ok());
      const auto start = Clock::now();
      group.reset();
      context.reset();
      EXPECT_LT(Clock::now() - start, kHang) << "a destructor waits for who receives";
      gone = true;
    } else {
      ASSERT_TRUE(probe(*group, 0).ok());  // its links exist, so the message will be stored in them
      opened = true;
      ASSERT_TRUE(eventually([&] { return gone.load(); }, 2 * kHang));
      const auto got = recv(*group, std::span(words), 0);
      ASSERT_TRUE(got.ok()) << got.status().message();
      EXPECT_EQ(words, std::vector<std::int32_t>(5000, 7));
    }
  });
}

/// A rank may leave when it has done its part of an operation that others are still in. A rank that has left
/// without sending its part is named as soon as that data can no longer be in flight, not at the deadline.
TEST(Lingering, ARankThatLeftWithoutSendingItsPartIsNamed) {
  Watchdog watchdog(3 * kHang);
  setenv("OURO_SILENT_FAIL", "1", 1);
  const TwoHosts hosts;
  on_threads(2, [&](int rank) {
    auto joined = hosts.join(rank);
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    std::optional<Context> context(std::move(*joined));
    ASSERT_TRUE(exact_all_reduce(context->world()).ok());
    if (rank == 0) {
      const auto start = Clock::now();
      const Status s = exact_all_reduce(context->world());
      EXPECT_EQ(s.reason(), Reason::peer_dead) << s.message();
      ASSERT_TRUE(s.failure());
      EXPECT_EQ(s.failure()->rank, 1);
      EXPECT_NE(s.message().find("it left, and what it had to send"), std::string::npos) << s.message();
      EXPECT_LT(Clock::now() - start, kHang);
    } else {  // publishes that it is in the same operation as rank 0, and leaves
      const auto& members = context->impl()->members();
      const auto second = [](const rt::GroupRecord& r) { return r.entered.get() == 2; };
      const auto& theirs = members.page(0).groups;
      ASSERT_TRUE(eventually([&] { return std::any_of(std::begin(theirs), std::end(theirs), second); }));
      const rt::GroupRecord& entered = *std::find_if(std::begin(theirs), std::end(theirs), second);
      rt::GroupRecord* const mine = members.find_record(1, entered.key.get());
      ASSERT_TRUE(mine && rt::entered_as(entered, 2));
      rt::enter(*mine, 2, *rt::entered_as(entered, 2));
      context.reset();
    }
  });
  unsetenv("OURO_SILENT_FAIL");
}

}  // namespace
}  // namespace ouro::test
