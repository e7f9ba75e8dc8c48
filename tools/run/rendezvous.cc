// The sockets that find a meeting place. Used through rendezvous.h.
#include "tools/run/rendezvous.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <random>
#include <utility>

#include "runtime/core/env.h"
#include "runtime/network/interfaces.h"
#include "runtime/network/net_address.h"

namespace ouro::run {
namespace {

constexpr std::size_t kMaxOffers = 32, kMaxGuests = 256;
constexpr int kPortsTried = 100;

sockaddr* socket_address(rt::NetAddress& address) { return reinterpret_cast<sockaddr*>(&address.at); }

/// The source address of packets to `peer`; "" if its name cannot be resolved here. Sends nothing.
std::string source_towards(const std::string& peer) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (peer.empty() || ::getaddrinfo(peer.c_str(), nullptr, &hints, &list) != 0) return "";
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  for (const addrinfo* a = list; a != nullptr; a = a->ai_next) {
    rt::NetAddress to;
    to.length = a->ai_addrlen;
    std::memcpy(&to.at, a->ai_addr, a->ai_addrlen);
    if (Result<std::string> source = rt::route_to(rt::to_string(to, false)); source.ok())
      return std::move(*source);
  }
  return "";
}

/// This host's addresses, best first. Never empty.
Result<std::vector<std::string>> own_addresses(const std::string& peer, const std::string& interfaces) {
  rt::AddressQuestion question{.filter = interfaces, .route = source_towards(peer)};
  if (interfaces.empty()) {
    OURO_ASSIGN(question.filter, rt::interface_filter());
  }
  OURO_ASSIGN(auto all, rt::list_interfaces());
  std::vector<std::string> addresses;
  const rt::NameFilter filter(question.filter);
  if (!filter.chooses() || filter.takes("lo")) addresses = {"127.0.0.1", "::1"};
  // Each iteration removes the best address from the list, so this terminates.
  for (;;) {
    const Result<std::string> best = rt::choose_address(all, question);
    if (!best.ok() && addresses.empty()) return best.status();
    if (!best.ok()) return addresses;
    const bool scoped = best->find('%') != best->npos;  // it has a meaning on this host only
    if (!scoped && std::find(addresses.begin(), addresses.end(), *best) == addresses.end())
      addresses.push_back(*best);
    for (rt::Interface& i : all) std::erase(i.addresses, *best);
  }
}

/// A socket bound to a free port of `address`, and the port. The port is outside the range from which the
/// system allocates ports, because rank 0 binds it shortly after it is released here.
Result<std::pair<Fd, int>> bound_socket(const std::string& address) {
  std::random_device random;
  std::uniform_int_distribution ports(12'000, 32'000);
  for (int attempt = 1;; ++attempt) {
    const int port = ports(random);
    OURO_ASSIGN(auto at, rt::parse_address(rt::with_port(address, port)));
    Fd socket(::socket(at.at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket && ::bind(socket.get(), socket_address(at), at.length) == 0)
      return std::pair(std::move(socket), port);
    if (!socket || errno != EADDRINUSE || attempt == kPortsTried)
      return system_error(fmt::format("cannot bind to {}", address));
  }
}

}  // namespace

Status Listeners::listen_on(const std::string& address) {
  OURO_ASSIGN(auto first, bound_socket(address));
  OURO_ASSIGN(auto second, bound_socket(address));
  if (::listen(first.first.get(), SOMAXCONN) != 0)
    return system_error(fmt::format("cannot listen on {}", address));
  offers_.push_back({address, first.second, second.second});
  sockets_.push_back(std::move(first.first));
  return {};
}

Result<Listeners> Listeners::open(const std::string& peer, std::string token, const std::string& interfaces) {
  Listeners l;
  l.token_ = std::move(token);
  OURO_ASSIGN(const auto addresses, own_addresses(peer, interfaces));
  Status last;
  for (const std::string& address : addresses) {
    if (l.offers_.size() == kMaxOffers) break;
    if (Status s = l.listen_on(address); !s.ok()) last = std::move(s);
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
  constexpr milliseconds kAfterFirst{300};  // after the first answer, wait this long for a better offer
  struct Try {
    Fd socket;
    std::string got;
  };
  std::vector<Try> tries(offers.size());
  for (std::size_t i = 0; i < offers.size(); ++i) {
    Result<rt::NetAddress> to = rt::parse_address(rt::with_port(offers[i].address, offers[i].port));
    if (!to.ok()) continue;
    Fd socket(::socket(to->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket && (::connect(socket.get(), socket_address(*to), to->length) == 0 || errno == EINPROGRESS))
      tries[i].socket = std::move(socket);
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
