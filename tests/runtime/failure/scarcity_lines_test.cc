// A listener that runs out of memory while strangers wait: it continues to accept others.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <exception>
#include <optional>
#include <vector>

#include "tests/runtime/failure/scarcity.h"
#include "tests/runtime/network/lab.h"

namespace ouro::rt {
namespace {

constexpr int kMost = 200;  // allocations; there are far fewer
// The places and the queue of one source, plus the connection that is held up: later ones stay in the kernel.
constexpr std::uint64_t kUpToHeldUp = 16 + 32 + 1;

TEST(NoMemoryInAListener, OtherConnectionsAreStillAccepted) {
  for (int n = 0; n < kMost; n += 2) {  // by 2: what is lost together needs more than one allocation
    asio::io_context io;
    auto listener = LineListener::open(io, who(0), {.bind = "127.0.0.1"}, [](const Line&) {});
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    const std::string& endpoint = (*listener)->endpoint();
    const auto to = *parse_address(endpoint);
    std::vector<Fd> strangers;
    for (std::uint64_t i = 0; i < kUpToHeldUp + 8; ++i) {
      strangers.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      ASSERT_EQ(connect(strangers.back().get(), reinterpret_cast<const sockaddr*>(&to.at), to.length), 0);
    }
    const auto run = [&](std::chrono::milliseconds time, auto&& done) {
      for (const auto end = Clock::now() + time; !done() && Clock::now() < end;) try {
          io.restart();
          io.run_one_for(1ms);
        } catch (const std::exception&) {
          continue;  // as the network thread does
        }
      return done();
    };
    ASSERT_TRUE(run(test::kHang, [&] { return (*listener)->counts().accepted >= kUpToHeldUp; }));
    // First the waiting connections end, so that it is the turn of the one that is held up.
    test::refuse_memory(0);
    (void)run(test::kHang, [] { return test::has_refused(); });
    ASSERT_TRUE(test::allow_memory());
    test::refuse_memory(n);
    const auto let_in = [&] { return (*listener)->counts().accepted > kUpToHeldUp; };
    ASSERT_TRUE(run(test::kHang, [&] { return test::has_refused() || let_in(); }));
    (void)test::allow_memory();
    if (let_in()) {  // it and those behind it were admitted before an allocation was refused
      EXPECT_GT(n, 10) << "it is let in with next to no memory";
      return;
    }
    strangers.clear();
    std::optional<Result<Line>> line;
    dial(io, endpoint, Purpose::control, who(1), 0, Clock::now() + 5s,
         [&](Result<Line> made) { line = std::move(made); });
    ASSERT_TRUE(run(test::kHang, [&] { return line.has_value(); }));
    ASSERT_TRUE(line->ok()) << "allocation " << n << ": " << line->status().message();
  }
  ADD_FAILURE() << "it has no end of allocations";
}

}  // namespace
}  // namespace ouro::rt
