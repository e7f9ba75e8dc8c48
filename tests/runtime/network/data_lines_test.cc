// Data connections that cannot be made, and closing a network during a failure.
#include "runtime/network/data_lines.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "runtime/network/network.h"
#include "tests/runtime/network/lab.h"

namespace ouro::rt {
namespace {

/// A rank 1 whose connections to rank 0 are refused.
class TimedDataLines : public testing::Test {
 protected:
  TimedDataLines() {
    options_.rank = 1, options_.world = 2, options_.silent_fail = 400ms;
    peers_.when_lost([this](const std::vector<LostRank>& losses) {
      for (const LostRank& l : losses) lost_.push_back(l.text);
    });
    peers_.add({.rank = 0, .endpoint = "127.0.0.1:1", .copy = page_.get()});
  }
  /// open() creates links to rank 0, close() removes them.
  void open(std::uint64_t key) {
    auto links = std::make_shared<transport::LinkSet>();
    links->key = key;
    links->doorbell = &doorbell_;
    links->links[0] = std::make_unique<transport::NetLink>(256, 8);
    fabric_.exchange().add(links);
    lines_.dial_peer(0);
  }
  void close(std::uint64_t key) {
    fabric_.exchange().remove(key, false);
    std::lock_guard lock(fabric_.exchange().lock());
    transport::Exchange::Outgoing farewell;
    while (fabric_.exchange().next(0, &farewell)) continue;
  }
  void settle(std::chrono::milliseconds time) {
    run_until(
        io_, [] { return false; }, time);
  }
  bool has_failed() { return !peers_.peer_of(0)->attempts.last_failure().empty(); }

  asio::io_context io_;
  Counter doorbell_{};
  std::unique_ptr<ControlPage> page_ = std::make_unique<ControlPage>();
  NetworkOptions options_;
  Identity identity_ = who(1, 2);
  transport::TcpFabric fabric_{{.world = 2,
                                .need = [](int) {},
                                .failed = [](int, const Status&) {},
                                .lost = [](int, const std::string&) {}}};
  RemotePeers peers_{io_, fabric_};
  DataLines lines_{io_, options_, identity_, peers_, fabric_};
  std::vector<std::string> lost_;
};

/// Time during which no connection is wanted does not count as time without a connection.
TEST_F(TimedDataLines, OldFailureDoesNotCountAfterAnUnusedTime) {
  open(1);
  ASSERT_TRUE(run_until(io_, [&] { return has_failed(); }));
  close(1);
  settle(1500ms);
  open(2);
  settle(300ms);
  EXPECT_THAT(lost_, testing::IsEmpty());
  EXPECT_TRUE(run_until(io_, [&] { return !lost_.empty(); })) << "it is given up after all";
}

TEST(NetworkCloses, IfTheServedCheckThrows) {
  setenv("OURO_INSECURE", "1", 1);
  setenv("OURO_SOCKET_IFNAME", "lo", 1);
  NetworkOptions options;
  options.world = 2, options.rendezvous = "127.0.0.1:0", options.host_id = "here";
  auto network = Network::create(options);
  for (const char* name : {"OURO_INSECURE", "OURO_SOCKET_IFNAME"}) unsetenv(name);
  ASSERT_TRUE(network.ok()) << network.status().message();
  int asked = 0;
  const auto served = [&asked] {
    if (asked++ == 0) throw std::bad_alloc();
    return true;
  };
  (*network)->keep(served, nullptr);
  const auto page = std::make_unique<ControlPage>();
  (*network)->start(*page, {}, {});
  (*network)->close();  // must not wait for ever
  EXPECT_EQ(asked, 2);
}

}  // namespace
}  // namespace ouro::rt
