// Lists of hosts, and the bytes between ouro-run and its agents.
#include "tools/run/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <tuple>

#include "runtime/network/net_address.h"
#include "tools/run/messages.h"
#include "tools/run/rendezvous_choice.h"

namespace ouro::run {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(HostList, SlotsAndRepetitionsAreParsed) {
  EXPECT_THAT(*parse_hosts("a:2,b"), ElementsAre(Host{"a", 2}, Host{"b", 1, true}));
  EXPECT_THAT(*parse_hosts("a,b,a:2"), ElementsAre(Host{"a", 3}, Host{"b", 1, true}));
  EXPECT_THAT(*parse_hosts("a,b:1,a"), ElementsAre(Host{"a", 2, true}, Host{"b", 1}));
  EXPECT_THAT(*parse_hosts("[fd77::1]:4,[fd77::2],me@n1.example"),
              ElementsAre(Host{"fd77::1", 4}, Host{"fd77::2", 1, true}, Host{"me@n1.example", 1, true}));
  for (const char* bad : {"", ",", "a,", "a:", "a:0", "a:-1", "a:4097", "a:x", "a:1:2", "[a", "[]", "[a]2",
                          "-a", "a b", "a;b", "$a"}) {
    const auto hosts = parse_hosts(bad);
    ASSERT_FALSE(hosts.ok()) << bad;
    EXPECT_EQ(hosts.status().code(), Code::invalid);
  }
}

TEST(HostFile, HostsAreReadOnePerLine) {
  EXPECT_THAT(*parse_hostfile("# all\n a slots=2\nb:3 # fast\n\nc\n[fd77::1] slots=2"),
              ElementsAre(Host{"a", 2}, Host{"b", 3}, Host{"c", 1, true}, Host{"fd77::1", 2}));
  for (const char* bad :
       {"", "# none", "a 2", "a slots=", "a slots=0", "a slots=2 more", "a:2 slots=3", "[fd77::1]:2 slots=3"})
    EXPECT_FALSE(parse_hostfile(bad).ok()) << bad;
  EXPECT_THAT(parse_hostfile("a\nb slots=x\n").status().message(), HasSubstr("line 2"));
}

TEST(Placement, FillsHostsInOrderAndLeavesOutTheRest) {
  const std::vector<Host> hosts{{"a", 2}, {"b", 3}, {"c", 1}};
  EXPECT_THAT(*place(hosts, 1), ElementsAre(Host{"a", 1}));
  EXPECT_THAT(*place(hosts, 4), ElementsAre(Host{"a", 2}, Host{"b", 2}));
  EXPECT_THAT(*place(hosts, 6), ElementsAre(Host{"a", 2}, Host{"b", 3}, Host{"c", 1}));
  EXPECT_THAT(place(hosts, 7).status().message(), HasSubstr("7 ranks, but the hosts have 6 slots"));
}

TEST(Placement, SharesTheRestAmongHostsWithoutASlotCount) {
  EXPECT_THAT(*place(*parse_hosts("a,b"), 4), ElementsAre(Host{"a", 2}, Host{"b", 2}));
  EXPECT_THAT(*place(*parse_hosts("a,b,c"), 5), ElementsAre(Host{"a", 2}, Host{"b", 2}, Host{"c", 1}));
  EXPECT_THAT(*place(*parse_hosts("a:2,b"), 5), ElementsAre(Host{"a", 2}, Host{"b", 3}));
  EXPECT_THAT(*place(*parse_hosts("a,b:2,c"), 9), ElementsAre(Host{"a", 4}, Host{"b", 2}, Host{"c", 3}));
  EXPECT_THAT(*place(*parse_hosts("a,b"), 1), ElementsAre(Host{"a", 1}));
  EXPECT_THAT(*place(*parse_hosts("a"), 3), ElementsAre(Host{"a", 3}));
  EXPECT_THAT(*place(*parse_hostfile("a\nb\n"), 3), ElementsAre(Host{"a", 2}, Host{"b", 1}));
  EXPECT_FALSE(place(*parse_hosts("a:2,b:2"), 5).ok());
}

TEST(AgentCommand, SplitsAtBlanksAndInsertsTheHost) {
  EXPECT_THAT(agent_command(kSshAgent, "n1"), ElementsAre("ssh", "-o", "BatchMode=yes", "n1"));
  EXPECT_THAT(agent_command(" ip  netns exec {host} --on={host}-{host}", "lab-0"),
              ElementsAre("ip", "netns", "exec", "lab-0", "--on=lab-0-lab-0"));
  EXPECT_TRUE(agent_command("", "a").empty());
}

TEST(Messages, AreReassembledFromPiecesOfAnySize) {
  const std::vector<Message> sent{{Kind::over, {}},
                                  {Kind::line, {"3", "e", "1", std::string("a\0b\n", 4)}},
                                  {Kind::say, {"", std::string(100'000, 'x')}}};
  std::string bytes;
  for (const Message& m : sent) bytes += encode(m);
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, bytes.size()}) {
    MessageReader reader;
    std::vector<Message> got;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      reader.add(std::string_view(bytes).substr(at, piece));
      for (;;) {
        auto next = reader.next();
        ASSERT_TRUE(next.ok());
        if (!*next) break;
        got.push_back(**next);
      }
    }
    ASSERT_EQ(got.size(), sent.size());
    for (std::size_t i = 0; i < sent.size(); ++i) {
      EXPECT_EQ(got[i].kind, sent[i].kind);
      EXPECT_EQ(got[i].fields, sent[i].fields);
    }
  }
}

TEST(Messages, InvalidBytesAreRefused) {
  using namespace std::string_literals;
  for (const std::string& bytes : {"\0\0\0\0"s, "\1\0\0\0\0"s, "\1\0\0\0\xf0"s, "HTTP/1.1 400 Bad Request"s,
                                   "\3\0\0\0\1\1\0"s, "\6\0\0\0\1\2\0\0\0x"s, "\xff\xff\xff\xff"s}) {
    MessageReader reader;
    reader.add(bytes);
    const auto next = reader.next();
    ASSERT_FALSE(next.ok()) << testing::PrintToString(bytes);
    EXPECT_EQ(next.status().reason(), Reason::refused);
  }
}

Orders orders() {
  return {.directory = "/tmp/a b",
          .host = "n1",
          .secret = "00ff",
          .bind = rt::Bind::numa,
          .first_rank = 2,
          .local_size = 3,
          .size = 5,
          .node = 1,
          .nodes = 2,
          .rendezvous = {.job = "j", .address = "fd77::1", .port = 7001, .rendezvous = "[fd77::1]:7000"},
          .variables = {{"A", "1"}, {"B", ""}},
          .argv = {"sh", "-c", ""}};
}

TEST(Messages, OrdersArriveAsTheyWereGiven) {
  const Orders sent = orders();
  const Result<Orders> got = to_orders(to_message(sent));
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->directory, sent.directory);
  EXPECT_EQ(got->host, sent.host);
  EXPECT_EQ(got->secret, sent.secret);
  EXPECT_EQ(got->bind, sent.bind);
  EXPECT_EQ(std::tie(got->first_rank, got->local_size, got->size, got->node, got->nodes),
            std::tie(sent.first_rank, sent.local_size, sent.size, sent.node, sent.nodes));
  EXPECT_EQ(std::tie(got->rendezvous.job, got->rendezvous.address, got->rendezvous.port,
                     got->rendezvous.rendezvous),
            std::tie(sent.rendezvous.job, sent.rendezvous.address, sent.rendezvous.port,
                     sent.rendezvous.rendezvous));
  EXPECT_EQ(got->variables, sent.variables);
  EXPECT_EQ(got->argv, sent.argv);
}

TEST(Messages, InvalidOrdersAreRefused) {
  Orders none = orders(), beyond = orders();
  none.argv.clear();
  beyond.first_rank = 3;
  EXPECT_FALSE(to_orders(to_message(none)).ok());
  EXPECT_FALSE(to_orders(to_message(beyond)).ok());
  const Message whole = to_message(orders());
  for (std::size_t kept = 0; kept < whole.fields.size() - 3; ++kept) {
    Message cut = whole;
    cut.fields.resize(kept);
    EXPECT_FALSE(to_orders(cut).ok()) << kept;
  }
}

TEST(AgentCommand, CommandWithoutTheHostIsRefused) {
  for (const char* good : {kSshAgent, "", " ", "ip netns exec {host}"})
    EXPECT_TRUE(check_agent(good).ok()) << good;
  EXPECT_EQ(check_agent("ssh node1").code(), Code::invalid);
}

TEST(Rendezvous, AddressesFollowTheListOfInterfaces) {
  const auto addresses = [](const std::string& interfaces) {
    std::vector<std::string> all;
    const Result<Listeners> listeners = Listeners::open("", "token", interfaces);
    if (!listeners.ok()) return std::vector<std::string>{listeners.status().message()};
    for (const Offer& o : listeners->offers()) all.push_back(o.address);
    return all;
  };
  EXPECT_THAT(addresses("=lo"), testing::Each(testing::AnyOf("127.0.0.1", "::1")));
  EXPECT_THAT(addresses("^e,w,i"), testing::Contains("127.0.0.1"));
  EXPECT_THAT(addresses("none-such"), ElementsAre(HasSubstr("OURO_SOCKET_IFNAME")));
}

TEST(Rendezvous, TakesTheFirstOfferThatAllHaveReached) {
  RendezvousChoice place({"a", "b", "c"});
  EXPECT_FALSE(place.complete());
  place.offer({{"127.0.0.1", 1, 2}, {"10.0.0.1", 3, 4}, {"10.1.0.1", 5, 6}});
  place.reached(1, {2, 1, 77, -1});
  EXPECT_FALSE(place.complete());
  EXPECT_FALSE(place.has_answered(2));
  place.reached(2, {1, 2});
  ASSERT_TRUE(place.complete());
  EXPECT_EQ(place.choose()->address, "10.0.0.1");
}

TEST(Rendezvous, FailureListsWhichHostReachedWhichAddress) {
  RendezvousChoice place({"a", "b", "c"});
  place.offer({{"127.0.0.1", 1, 2}, {"10.0.0.1", 3, 4}});
  place.reached(1, {1});
  place.reached(2, {});
  EXPECT_THAT(place.choose().status().message(),
              HasSubstr("no address of host a is reached by all others: 127.0.0.1 by none; 10.0.0.1 by b"));
}

TEST(Rendezvous, OnlyAListenerWithTheTokenIsReached) {
  Result<Listeners> listeners = Listeners::open("localhost", "token", "");
  ASSERT_TRUE(listeners.ok()) << listeners.status().message();
  std::vector<Offer> offers = listeners->offers();
  ASSERT_FALSE(offers.empty());
  EXPECT_EQ(offers[0].address, "127.0.0.1");
  EXPECT_NE(offers[0].port, offers[0].second_port);
  offers.push_back({"127.0.0.1", offers[0].second_port, 1});  // free: it has no listener
  std::vector<int> right, wrong;
  std::thread asker([&] {
    right = reach(offers, "token", milliseconds(3000));
    wrong = reach(offers, "other", milliseconds(3000));
  });
  for (int i = 0; i < 200; ++i) {
    std::vector<pollfd> fds;
    listeners->watch(fds);
    ::poll(fds.data(), fds.size(), 10);
    listeners->handle(fds.data());
  }
  asker.join();
  EXPECT_THAT(right, testing::Contains(0));
  EXPECT_THAT(right, testing::Not(testing::Contains(static_cast<int>(offers.size()) - 1)));
  EXPECT_TRUE(wrong.empty());
  EXPECT_EQ(rt::with_port("10.0.0.1", 7), "10.0.0.1:7");
  EXPECT_EQ(rt::with_port("fd77::1", 7), "[fd77::1]:7");
}

}  // namespace
}  // namespace ouro::run
