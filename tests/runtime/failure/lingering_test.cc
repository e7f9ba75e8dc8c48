// The last words of ranks that leave: what they sent to other hosts arrives after they have gone.
#include <optional>

#include "tests/runtime/failure/two_hosts.h"

namespace ouro::test {
namespace {

/// The sender drops its group and its context at once. Its context gives the receiver two seconds and goes
/// while the message still lingers in its links: what lingers ends before what it tells of its end.
TEST(Lingering, AMessageArrivesAfterItsSenderOnAnotherHostHasGone) {
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
      ASSERT_TRUE(probe(*group, 0).ok());  // its links are open: the message lies in them
      opened = true;
      ASSERT_TRUE(eventually([&] { return gone.load(); }, 2 * kHang));
      const auto got = recv(*group, std::span(words), 0);
      ASSERT_TRUE(got.ok()) << got.status().message();
      EXPECT_EQ(words, std::vector<std::int32_t>(5000, 7));
    }
  });
}

}  // namespace
}  // namespace ouro::test
