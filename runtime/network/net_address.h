// Numeric TCP addresses, from text and to text. Used where the library listens, dials or chooses
// an interface.
#pragma once
#include <sys/socket.h>

#include <string>
#include <string_view>

#include "runtime/core/status.h"

namespace ouro::rt {

/// An address and a port, of IPv4 or IPv6.
struct NetAddress {
  sockaddr_storage at{};
  socklen_t length = 0;
};
/// "10.0.0.7:4711", "[fe80::1%eth0]:4711", or without a port (then 0): numbers only, no names are resolved.
/// Errors: invalid.
Result<NetAddress> parse_address(const std::string&);
/// "ip:port", IPv6 in brackets; without port and brackets if `port` is false.
std::string to_string(const NetAddress&, bool port = true);
/// "HOST:PORT" from a name or an address; an IPv6 address is put in brackets unless it has them.
std::string with_port(std::string_view host, int port);

}  // namespace ouro::rt
