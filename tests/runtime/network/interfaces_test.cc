// Which address a host uses: recorded lists of interfaces, the grammar of the filter, and this host itself.
#include "runtime/network/interfaces.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/core/log.h"
#include "runtime/network/net_address.h"

namespace ouro::rt {
namespace {

using testing::HasSubstr;

const std::vector<Interface> kNode = {
    {"lo", {"127.0.0.1", "::1"}, true, true}, {"eth0", {"10.0.0.7", "fe80::7%eth0"}, true, false},
    {"eth1", {"192.168.1.7"}, true, false},   {"ib0", {"10.1.0.7", "fd00::7"}, true, false},
    {"docker0", {"172.17.0.1"}, true, false}, {"virbr0", {"192.168.122.1"}, true, false},
    {"eth9", {"10.9.0.7"}, false, false},     {"dummy0", {}, true, false},
};

std::string chosen(AddressQuestion q, const std::vector<Interface>& all = kNode) {
  const auto r = choose_address(all, q);
  return r.ok() ? *r : r.status().message();
}

TEST(NameFilter, MatchesPrefixesExactNamesAndExclusions) {
  struct Case {
    const char *list, *takes, *leaves;
  };
  for (const Case& c :
       {Case{"eth", "eth0", "ib0"}, Case{"eth,ib", "ib3", "lo"}, Case{"=eth1", "eth1", "eth10"},
        Case{"=eth1,eth2", "eth2", "eth20"}, Case{"eth0,=ib0", "eth01", "ib01"},
        Case{"^docker", "eth0", "docker0"}, Case{"^docker,lo", "eth0", "lo"}, Case{"^=eth1", "eth10", "eth1"},
        Case{"^=eth1,eth2", "eth20", "eth2"}}) {
    EXPECT_TRUE(NameFilter(c.list).takes(c.takes)) << c.list;
    EXPECT_FALSE(NameFilter(c.list).takes(c.leaves)) << c.list;
  }
  EXPECT_TRUE(NameFilter("").takes("anything"));
  EXPECT_TRUE(NameFilter("^").takes("anything"));
  EXPECT_TRUE(NameFilter(",,").takes("anything"));
  EXPECT_FALSE(NameFilter("^a").chooses());
  EXPECT_TRUE(NameFilter("a").chooses());
}

TEST(ChooseAddress, PrefersInfinibandThenEthernetThenOthers) {
  EXPECT_EQ(chosen({}), "10.1.0.7") << "ib first";
  EXPECT_EQ(chosen({.filter = "^ib"}), "10.0.0.7");
  EXPECT_EQ(chosen({.filter = "^ib,eth"}), "172.17.0.1");
  EXPECT_EQ(chosen({.filter = "^ib,eth,docker"}), "192.168.122.1");
  EXPECT_EQ(chosen({.filter = "eth1"}), "192.168.1.7");
}

TEST(ChooseAddress, TheRouteToTheMasterWinsUnlessAListChooses) {
  EXPECT_EQ(chosen({.route = "192.168.1.7"}), "192.168.1.7");
  EXPECT_EQ(chosen({.filter = "^ib", .route = "192.168.1.7"}), "192.168.1.7") << "an exclusion leaves it";
  EXPECT_EQ(chosen({.filter = "^eth1", .route = "192.168.1.7"}), "10.1.0.7") << "unless it excludes it";
  EXPECT_EQ(chosen({.filter = "ib", .route = "192.168.1.7"}), "10.1.0.7") << "a list means what it says";
}

TEST(ChooseAddress, LoopbackIsUsedOnlyOnOneHostOrIfNamed) {
  EXPECT_EQ(chosen({.one_host = true}), "127.0.0.1");
  EXPECT_EQ(chosen({.filter = "eth", .one_host = true}), "10.0.0.7");
  EXPECT_EQ(chosen({.route = "127.0.0.1"}), "10.1.0.7")
      << "a route through the loopback is of no use to others";
  EXPECT_EQ(chosen({.filter = "lo"}), "127.0.0.1") << "a list means what it says";
  EXPECT_THAT(chosen({.filter = "^ib,eth,docker,virbr"}),
              HasSubstr("lo is a loopback, and ranks are on several hosts"));
  // Debian's 127.0.1.1 on an ordinary interface.
  EXPECT_THAT(chosen({}, {{"eth0", {"127.0.1.1"}, true, false}}), HasSubstr("eth0 has no"));
}

TEST(ChooseAddress, OnlyTheRequestedAddressFamilyIsUsed) {
  EXPECT_EQ(chosen({.ipv6_only = true}), "fd00::7");
  EXPECT_EQ(chosen({.filter = "eth0", .ipv6_only = true}), "fe80::7%eth0")
      << "link-local where there is nothing else";
  EXPECT_EQ(chosen({.one_host = true, .ipv6_only = true}), "::1");
  EXPECT_THAT(chosen({.filter = "eth1", .ipv6_only = true}), HasSubstr("eth1 has no IPv6 address"));
  const std::vector<Interface> six = {{"eth0", {"fe80::1%eth0", "fd00::1"}, true, false}};
  EXPECT_EQ(chosen({}, six), "fd00::1");
  EXPECT_THAT(chosen({.ipv4_only = true}, six), HasSubstr("eth0 has no IPv4 address"));
}

TEST(ChooseAddress, FailureSaysWhyEachInterfaceWasDropped) {
  const std::string why = chosen({.filter = "=eth9,dummy0"});
  for (const char* word : {"eth9 is down", "dummy0 has no address", "eth0 does not match =eth9,dummy0",
                           "lo does not match", "OURO_SOCKET_IFNAME"})
    EXPECT_THAT(why, HasSubstr(word));
  EXPECT_THAT(chosen({}, {}), HasSubstr("this host has none"));
}

TEST(ThisHost, ListsTheLoopbackAndFindsItsRoute) {
  const auto all = list_interfaces();
  ASSERT_TRUE(all.ok());
  const auto lo = std::find_if(all->begin(), all->end(), [](const Interface& i) { return i.loopback; });
  ASSERT_NE(lo, all->end());
  EXPECT_THAT(lo->addresses, testing::Contains("127.0.0.1"));
  EXPECT_EQ(*route_to("127.0.0.1:29500"), "127.0.0.1");
  EXPECT_EQ(*local_address("127.0.0.1:29500", false), "127.0.0.1");
  EXPECT_EQ(route_to("not an address").status().reason(), Reason::invalid);
  EXPECT_EQ(local_address("localhost", true).status().reason(), Reason::invalid) << "names are not resolved";
}

std::string rendezvous(const std::string& place, std::vector<const char*> means) {
  const auto where = rendezvous_address(place, [&](const std::string&, const std::string& port) {
    std::vector<NetAddress> all;
    for (const char* a : means) all.push_back(*parse_address(fmt::format("{}:{}", a, port)));
    return Result<std::vector<NetAddress>>(all);
  });
  return where.ok() ? *where : where.status().message();
}

TEST(RendezvousAddress, NumbersStayAndNamesAreResolved) {
  EXPECT_EQ(rendezvous("10.0.0.7:29500", {}), "10.0.0.7:29500");
  EXPECT_EQ(rendezvous("127.0.1.1:29500", {}), "127.0.1.1:29500") << "who writes it means it";
  EXPECT_EQ(rendezvous("[fd00::7]:29500", {}), "[fd00::7]:29500");
  EXPECT_EQ(rendezvous("node7:29500", {"10.0.0.7"}), "10.0.0.7:29500");
  EXPECT_EQ(rendezvous("node7:29500", {"[fd00::7]", "10.0.0.7"}), "[fd00::7]:29500");
  EXPECT_THAT(rendezvous("node7", {}), HasSubstr("expected HOST:PORT"));
  EXPECT_THAT(rendezvous("node7:1", {}), HasSubstr("no address"));
  EXPECT_EQ(rendezvous_address("no.such.name.invalid:1").status().reason(), Reason::peer_unresponsive);
}

/// Debian maps a host's own name to 127.0.1.1, where ranks of other hosts could not reach rank 0.
TEST(RendezvousAddress, OwnHostNameDoesNotResolveToALoopback) {
  EXPECT_EQ(rendezvous("node7:29500", {"127.0.1.1", "10.0.0.7"}), "10.0.0.7:29500");
  EXPECT_EQ(rendezvous("localhost:29500", {"127.0.0.1"}), "127.0.0.1:29500") << "who writes it means it";
  setenv("OURO_SOCKET_IFNAME", "nosuch", 1);
  EXPECT_EQ(rendezvous("node7:29500", {"127.0.1.1"}), "127.0.1.1:29500") << "where nothing else is left";
  EXPECT_THAT(log::last_warning(), HasSubstr("127.0.1.1:29500"));
  unsetenv("OURO_SOCKET_IFNAME");
  const auto own = local_address("", false);
  if (!own.ok()) GTEST_SKIP() << "this machine has no interface but the loopback";
  EXPECT_THAT(rendezvous("node7:29500", {"127.0.1.1"}),
              testing::AllOf(HasSubstr(*own), testing::EndsWith(":29500")));
}

TEST(NetAddress, ParsesAndPrintsAddressesAndRefusesInvalidOnes) {
  for (const char* text : {"10.0.0.7:4711", "[::1]:29500", "[fd00::7]:1", "127.0.0.1:0"}) {
    const auto a = parse_address(text);
    ASSERT_TRUE(a.ok()) << text;
    EXPECT_EQ(to_string(*a), text);
  }
  EXPECT_EQ(to_string(*parse_address("::1")), "[::1]:0");
  EXPECT_EQ(to_string(*parse_address("[::1]:9"), false), "::1");
  EXPECT_EQ(to_string(*parse_address("10.0.0.7")), "10.0.0.7:0");
  for (const char* text : {"", ":", "host:1", "10.0.0.7:", "10.0.0.7:65536", "10.0.0.7:-1", "10.0.0.7:1x",
                           "[::1", "[::1]1", "[]:1", "1.2.3.4.5:6", "10.0.0.7:999999999999"})
    EXPECT_EQ(parse_address(text).status().reason(), Reason::invalid) << text;
}

}  // namespace
}  // namespace ouro::rt
