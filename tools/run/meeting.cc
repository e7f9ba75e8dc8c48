// Sockets of the search for a meeting place. Used through meeting.h.
#include "tools/run/meeting.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace ouro::run {
namespace {

constexpr std::size_t kMaxOffers = 32, kMaxGuests = 256;

/// A numeric address with a port, for any of the two families.
struct Endpoint {
  sockaddr_storage storage{};
  socklen_t size = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

struct FreeInfo {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

std::vector<Endpoint> resolve(const std::string& host, int port, bool numeric) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (numeric ? AI_NUMERICHOST : 0);
  addrinfo* list = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list) != 0) return {};
  const std::unique_ptr<addrinfo, FreeInfo> owner(list);
  std::vector<Endpoint> found;
  for (const addrinfo* a = list; a != nullptr; a = a->ai_next) {
    Endpoint e;
    e.size = a->ai_addrlen;
    std::memcpy(&e.storage, a->ai_addr, a->ai_addrlen);
    found.push_back(e);
  }
  return found;
}

std::string address_text(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST];
  return ::getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

/// Where packets to `peer` would leave this host; "" if its name is not known here. Sends nothing.
std::string source_towards(const std::string& peer) {
  constexpr int kDiscard = 9;
  for (Endpoint& to : resolve(peer, kDiscard, false)) {
    const Fd socket(::socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    Endpoint from;
    from.size = sizeof from.storage;
    if (socket && ::connect(socket.get(), to.get(), to.size) == 0 &&
        ::getsockname(socket.get(), from.get(), &from.size) == 0)
      return address_text(from.get(), from.size);
  }
  return "";
}

struct Interface {
  int order;  // smaller is better
  std::string address;
};

/// Of interfaces that are up, without loopback and link-local ones.
std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & IFF_LOOPBACK) != 0)
      continue;
    const bool ipv6 = i->ifa_addr->sa_family == AF_INET6;
    if (!ipv6 && i->ifa_addr->sa_family != AF_INET) continue;
    if (ipv6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr))
      continue;
    const std::string_view name = i->ifa_name;
    const bool inner = name.starts_with("docker") || name.starts_with("virbr") || name.starts_with("br-");
    const int order = (name.starts_with("ib") ? 0 : inner ? 4 : 2) + (ipv6 ? 1 : 0);
    found.push_back({order, address_text(i->ifa_addr, ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in))});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.order < b.order; });
  return found;
}

/// A socket bound to a free port of `address`, and the port.
Result<std::pair<Fd, int>> bound_socket(const std::string& address) {
  for (Endpoint& e : resolve(address, 0, true)) {
    Fd socket(::socket(e.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket || ::bind(socket.get(), e.get(), e.size) != 0 ||
        ::getsockname(socket.get(), e.get(), &e.size) != 0)
      continue;
    const in_port_t port = e.family() == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(e.get())->sin6_port
                                                  : reinterpret_cast<sockaddr_in*>(e.get())->sin_port;
    return std::pair(std::move(socket), static_cast<int>(ntohs(port)));
  }
  return system_error(fmt::format("cannot bind to {}", address));
}

}  // namespace

std::string endpoint_text(const std::string& address, int port) {
  return address.find(':') == address.npos ? fmt::format("{}:{}", address, port)
                                           : fmt::format("[{}]:{}", address, port);
}

Status Listeners::listen_on(const std::string& address) {
  Result<std::pair<Fd, int>> first = bound_socket(address), second = bound_socket(address);
  if (!first.ok()) return first.status();
  if (!second.ok()) return second.status();
  if (::listen(first->first.get(), SOMAXCONN) != 0)
    return system_error(fmt::format("cannot listen on {}", address));
  offers_.push_back({address, first->second, second->second});
  sockets_.push_back(std::move(first->first));
  return {};
}

Result<Listeners> Listeners::open(const std::string& peer, std::string token) {
  Listeners l;
  l.token_ = std::move(token);
  std::vector<std::string> addresses{"127.0.0.1"};
  if (const std::string source = peer.empty() ? "" : source_towards(peer); !source.empty())
    addresses.push_back(source);
  for (const Interface& i : interfaces()) addresses.push_back(i.address);
  Status last;
  for (std::size_t i = 0; i < addresses.size() && l.offers_.size() < kMaxOffers; ++i) {
    const auto here = addresses.begin() + static_cast<std::ptrdiff_t>(i);
    if (addresses[i].empty() || std::find(addresses.begin(), here, addresses[i]) != here) continue;
    if (Status s = l.listen_on(addresses[i]); !s.ok()) last = std::move(s);
  }
  if (l.offers_.empty()) return last;
  return l;
}

void Listeners::watch(std::vector<pollfd>& fds) const {
  for (const Fd& socket : sockets_) fds.push_back({socket.get(), POLLIN, 0});
}

void Listeners::handle(const pollfd* fds) {
  for (std::size_t i = 0; i < sockets_.size(); ++i) {
    if (fds[i].revents == 0) continue;
    Fd guest(::accept4(sockets_[i].get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!guest) continue;
    [[maybe_unused]] const ssize_t n = ::send(guest.get(), token_.data(), token_.size(), MSG_NOSIGNAL);
    if (guests_.size() == kMaxGuests) guests_.erase(guests_.begin());
    guests_.push_back(std::move(guest));
  }
}

std::vector<int> reach(const std::vector<Offer>& offers, const std::string& token, milliseconds limit) {
  constexpr milliseconds kAfterFirst{300};  // then an address that has not answered is not the one to use
  struct Try {
    Fd socket;
    std::string got;
  };
  std::vector<Try> tries(offers.size());
  for (std::size_t i = 0; i < offers.size(); ++i) {
    for (Endpoint& to : resolve(offers[i].address, offers[i].port, true)) {
      Fd socket(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (socket && (::connect(socket.get(), to.get(), to.size) == 0 || errno == EINPROGRESS))
        tries[i].socket = std::move(socket);
    }
  }
  std::vector<int> reached;
  auto end = Clock::now() + limit;
  for (;;) {
    std::vector<pollfd> fds;
    for (const Try& t : tries) fds.push_back({t.socket.get(), POLLIN, 0});
    const bool waiting = std::any_of(fds.begin(), fds.end(), [](const pollfd& p) { return p.fd >= 0; });
    if (!waiting || Clock::now() >= end) break;
    ::poll(fds.data(), fds.size(), wait_ms({end}));
    for (std::size_t i = 0; i < tries.size(); ++i) {
      if (fds[i].revents == 0) continue;
      Try& t = tries[i];
      char buffer[256];
      const ssize_t n = ::read(t.socket.get(), buffer, sizeof buffer);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (n > 0) t.got.append(buffer, static_cast<std::size_t>(n));
      if (n > 0 && t.got.size() < token.size()) continue;
      if (t.got == token) {
        reached.push_back(static_cast<int>(i));
        end = std::min(end, Clock::now() + kAfterFirst);
      }
      t.socket.reset();
    }
  }
  std::sort(reached.begin(), reached.end());
  return reached;
}

}  // namespace ouro::run
