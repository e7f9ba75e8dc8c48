// Numeric addresses. See net_address.h.
#include "runtime/network/net_address.h"

#include <fmt/format.h>
#include <netdb.h>

#include <algorithm>
#include <cstring>

namespace ouro::rt {

Result<NetAddress> parse_address(const std::string& text) {
  const auto wrong = [&] {
    return invalid(fmt::format("'{}' is no numeric address with or without a port", text));
  };
  std::string host = text, port = "0";
  if (text.starts_with('[')) {
    const auto end = text.find(']');
    if (end == text.npos) return wrong();
    host = text.substr(1, end - 1);
    if (end + 1 < text.size()) {
      if (text[end + 1] != ':') return wrong();
      port = text.substr(end + 2);
    }
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    host = text.substr(0, text.find(':'));
    port = text.substr(text.find(':') + 1);
  }
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != port.npos ||
      std::stoi(port) > 65535)
    return wrong();
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  if (host.empty() || getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return wrong();
  NetAddress a;
  a.length = found->ai_addrlen;
  std::memcpy(&a.at, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return a;
}

std::string to_string(const NetAddress& a, bool port) {
  char host[NI_MAXHOST], service[NI_MAXSERV];
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&a.at), a.length, host, sizeof host, service,
                  sizeof service, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "unknown";
  if (!port) return host;
  return a.at.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host, service)
                                    : fmt::format("{}:{}", host, service);
}

std::string with_port(std::string_view host, int port) {
  const bool bare = host.find(':') != std::string_view::npos && !host.starts_with('[');
  return bare ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

}  // namespace ouro::rt
