// Choosing a local address. See interfaces.h.
#include "runtime/network/interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "runtime/core/env.h"
#include "runtime/core/fd.h"
#include "runtime/core/log.h"

namespace ouro::rt {
namespace {

bool is_ipv6(std::string_view address) { return address.find(':') != address.npos; }
bool is_link_local(std::string_view address) {
  return address.starts_with("fe80") || address.starts_with("169.254.");
}
/// NCCL's order: InfiniBand first; interfaces that only this host can reach last.
int place(const Interface& i) {
  if (i.loopback) return 4;
  if (i.name.starts_with("ib")) return 0;
  if (i.name.starts_with("docker")) return 2;
  if (i.name.starts_with("virbr")) return 3;
  return 1;
}

/// The reason why this interface cannot be used, or "".
std::string objection(const Interface& i, const NameFilter& filter, const AddressQuestion& q) {
  if (!i.up) return "is down";
  if (!filter.takes(i.name)) return "does not match " + q.filter;
  if (i.addresses.empty()) return "has no address";
  if (i.loopback && !q.one_host && !filter.chooses()) return "is a loopback, and ranks are on several hosts";
  return "";
}

}  // namespace

bool is_loopback_address(std::string_view address) { return address.starts_with("127.") || address == "::1"; }

NameFilter::NameFilter(std::string_view with_blanks) {
  std::string without(with_blanks);
  std::erase_if(without, [](unsigned char c) { return std::isspace(c) != 0; });
  std::string_view list = without;
  if (list.starts_with('^')) exclude_ = true, list.remove_prefix(1);
  bool all_exact = false;
  if (list.starts_with('=')) all_exact = true, list.remove_prefix(1);
  while (!list.empty()) {
    const auto end = std::min(list.find(','), list.size());
    std::string_view name = list.substr(0, end);
    list.remove_prefix(std::min(end + 1, list.size()));
    const bool exact = all_exact || name.starts_with('=');
    if (name.starts_with('=')) name.remove_prefix(1);
    if (!name.empty()) patterns_.push_back({std::string(name), exact});
  }
}

bool NameFilter::takes(std::string_view interface) const {
  const bool match = std::any_of(patterns_.begin(), patterns_.end(), [&](const Pattern& p) {
    return p.exact ? interface == p.name : interface.starts_with(p.name);
  });
  return patterns_.empty() || match != exclude_;
}

Result<std::string> choose_address(const std::vector<Interface>& all, const AddressQuestion& q) {
  const NameFilter filter(q.filter);
  struct Candidate {
    std::tuple<bool, int, bool, bool, std::size_t> order;  // lowest first
    std::string address;
  };
  std::optional<Candidate> best;
  std::string dropped;
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::string why = objection(all[i], filter, q);
    bool fits = false;
    for (const std::string& address : all[i].addresses) {
      if (!why.empty()) break;
      if ((q.ipv6_only && !is_ipv6(address)) || (q.ipv4_only && is_ipv6(address))) continue;
      if (is_loopback_address(address) && !q.one_host && !filter.chooses()) continue;
      fits = true;
      // An explicit list may mean a network other than the one that routes to the master.
      const bool routed = address == q.route && !filter.chooses();
      // If all ranks share this host, its loopback is the safest, unless a list selects other interfaces.
      const int where = q.one_host && !filter.chooses() ? 4 - place(all[i]) : place(all[i]);
      Candidate c{{!routed, where, is_link_local(address), is_ipv6(address), i}, address};
      if (!best || c.order < best->order) best = std::move(c);
    }
    if (why.empty() && !fits)
      why = fmt::format("has no {}address{}",
                        q.ipv6_only   ? "IPv6 "
                        : q.ipv4_only ? "IPv4 "
                                      : "",
                        q.one_host ? "" : " that other hosts could reach");
    if (!why.empty()) dropped += fmt::format("{}{} {}", dropped.empty() ? "" : "; ", all[i].name, why);
  }
  if (best) return best->address;
  return invalid(fmt::format("no network interface can be used: {}. Name one in OURO_SOCKET_IFNAME",
                             dropped.empty() ? "this host has none" : dropped));
}

Result<std::vector<Interface>> list_interfaces() {
  ifaddrs* head = nullptr;
  if (getifaddrs(&head) != 0)
    return Status(Reason::resource, fmt::format("cannot list network interfaces: {}", std::strerror(errno)));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(head, freeifaddrs);
  std::vector<Interface> all;
  for (const ifaddrs* i = head; i; i = i->ifa_next) {
    auto at = std::find_if(all.begin(), all.end(), [&](const Interface& x) { return x.name == i->ifa_name; });
    if (at == all.end())
      at = all.insert(all.end(), {i->ifa_name,
                                  {},
                                  (i->ifa_flags & IFF_UP) != 0 && (i->ifa_flags & IFF_RUNNING) != 0,
                                  (i->ifa_flags & IFF_LOOPBACK) != 0});
    if (!i->ifa_addr) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char text[NI_MAXHOST];
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(i->ifa_addr, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
      at->addresses.emplace_back(text);
  }
  return all;
}

bool is_running(const std::string& interface) {
  if (interface.empty()) return true;
  const Fd any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  interface.copy(request.ifr_name, IFNAMSIZ - 1);
  if (!any || ioctl(any.get(), SIOCGIFFLAGS, &request) != 0) return false;
  return (request.ifr_flags & IFF_UP) && (request.ifr_flags & IFF_RUNNING);
}

Result<std::string> route_to(const std::string& address) {
  auto to = parse_address(address);
  if (!to.ok()) return to.status();
  // A connected UDP socket sends nothing, but has the source address that the routing table gives it. Any
  // port other than 0 will do.
  if (to->at.ss_family == AF_INET) reinterpret_cast<sockaddr_in*>(&to->at)->sin_port = htons(9);
  if (to->at.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(&to->at)->sin6_port = htons(9);
  const Fd fd(::socket(to->at.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  NetAddress own;
  own.length = sizeof own.at;
  if (!fd || connect(fd.get(), reinterpret_cast<sockaddr*>(&to->at), to->length) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own.at), &own.length) != 0)
    return Status(
        Failure{.reason = Reason::peer_unresponsive,
                .text = fmt::format("no route to {}: {}", to_string(*to, false), std::strerror(errno)),
                .detector = "routing table"});
  return to_string(own, false);
}

Result<std::string> interface_filter() {
  auto filter = env::text("OURO_SOCKET_IFNAME");
  if (!filter.ok()) return filter.status();
  const char* theirs = ::getenv("NCCL_SOCKET_IFNAME");
  return *filter ? **filter : std::string(theirs != nullptr ? theirs : "");
}

Result<std::string> local_address(const std::string& master, bool one_host) {
  AddressQuestion q;
  auto filter = interface_filter();
  if (!filter.ok()) return filter.status();
  q.filter = std::move(*filter);
  std::string ip = "an unknown master";
  q.one_host = one_host;
  if (!master.empty()) {
    const auto to = parse_address(master);
    if (!to.ok()) return to.status();
    ip = to_string(*to, false);
    q.one_host |= is_loopback_address(ip);
    (is_ipv6(ip) ? q.ipv6_only : q.ipv4_only) = true;
    auto route = route_to(ip);
    // On the master's own host the route may be the loopback, which other hosts cannot use.
    if (route.ok() && (q.one_host || !is_loopback_address(*route))) q.route = *route;
  }
  auto all = list_interfaces();
  if (!all.ok()) return all.status();
  auto chosen = choose_address(*all, q);
  if (chosen.ok())
    OURO_INFO(NET, "address {} towards {}{}", *chosen, ip, q.filter.empty() ? "" : " by " + q.filter);
  return chosen;
}

Result<std::string> address_for_others(Family family) {
  AddressQuestion q{.ipv6_only = family == Family::ipv6, .ipv4_only = family == Family::ipv4};
  OURO_ASSIGN(q.filter, interface_filter());
  OURO_ASSIGN(const auto all, list_interfaces());
  auto address = choose_address(all, q);
  if (!address.ok()) {
    q.one_host = true;
    address = choose_address(all, q);
  }
  if (address.ok())
    OURO_INFO(NET, "address {} towards all hosts{}", *address, q.filter.empty() ? "" : " by " + q.filter);
  return address;
}

Result<std::vector<NetAddress>> resolve(const std::string& name, const std::string& port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int e = getaddrinfo(name.c_str(), port.c_str(), &hints, &found); e != 0)
    return Status(Failure{.reason = Reason::peer_unresponsive,
                          .text = fmt::format("'{}:{}' cannot be resolved: {}", name, port, gai_strerror(e)),
                          .detector = "name service"});
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
  std::vector<NetAddress> all;
  for (const addrinfo* i = found; i; i = i->ai_next) {
    NetAddress& a = all.emplace_back();
    a.length = i->ai_addrlen;
    std::memcpy(&a.at, i->ai_addr, i->ai_addrlen);
  }
  return all;
}

namespace {
constexpr std::string_view kFile = "file:";
}

Status check_rendezvous(const std::string& place) {
  if (place.starts_with(kFile) && place.size() > kFile.size()) return {};
  if (parse_address(place).ok()) return {};
  const std::size_t colon = place.rfind(':');
  int port = 0;
  const char* const end = place.data() + place.size();
  if (colon != std::string::npos && colon != 0)
    if (const auto [stop, error] = std::from_chars(place.data() + colon + 1, end, port);
        error == std::errc() && stop == end && port >= 1 && port <= 65535)
      return {};
  return invalid(
      fmt::format("rendezvous '{}': expected HOST:PORT, with a port of 1 to 65535, or file:PATH", place));
}

Result<std::string> rendezvous_address(const std::string& place, const Resolve& resolve_name) {
  if (parse_address(place).ok()) return place;
  OURO_TRY(check_rendezvous(place));
  if (place.starts_with(kFile)) return invalid(fmt::format("rendezvous '{}' has no address", place));
  const std::size_t colon = place.rfind(':');
  const std::string name = place.substr(0, colon), port = place.substr(colon + 1);
  auto all = resolve_name(name, port);
  if (!all.ok()) return all.status();
  const auto elsewhere = std::find_if(all->begin(), all->end(), [](const NetAddress& a) {
    return !is_loopback_address(to_string(a, false));
  });
  if (elsewhere != all->end()) return to_string(*elsewhere);
  if (all->empty()) return invalid(fmt::format("rendezvous '{}': the name has no address", place));
  const std::string loopback = to_string(all->front());
  if (name == "localhost") return loopback;
  auto own = local_address("", false);
  if (!own.ok()) {
    OURO_WARN("rendezvous '{}' is {} here, which no other host reaches ({})", place, loopback,
              own.status().failure()->text);
    return loopback;
  }
  OURO_INFO(NET, "rendezvous '{}' is {} here; other hosts reach this one as {}", place, loopback, *own);
  return with_port(*own, std::stoi(port));  // a number, by check_rendezvous()
}

}  // namespace ouro::rt
