// Chooses which of this host's addresses other hosts should use. Used where a listener for other hosts is
// opened. The address to which the host's own name resolves is not trusted, as many systems map it to a
// loopback address.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/status.h"
#include "runtime/network/net_address.h"

namespace ouro::rt {

struct Interface {
  std::string name;
  std::vector<std::string> addresses;  ///< numeric, IPv6 link-local ones with their scope ("fe80::1%eth0")
  bool up = true, loopback = false;
};

/// NCCL_SOCKET_IFNAME's grammar: a list of prefixes, comma-separated; "=" before the list means exact names,
/// "^" excludes what matches, "^=" excludes exact names. Like NCCL, it also accepts "=" before each name.
/// Blanks do not count. An empty list takes all.
class NameFilter {
 public:
  explicit NameFilter(std::string_view list);
  bool takes(std::string_view interface) const;
  /// Whether the list selects interfaces. Without a list, or with one that excludes, the default
  /// order applies.
  bool chooses() const { return !exclude_ && !patterns_.empty(); }

 private:
  struct Pattern {
    std::string name;
    bool exact;
  };
  std::vector<Pattern> patterns_;
  bool exclude_ = false;
};

struct AddressQuestion {
  std::string filter;      ///< in the grammar above; "" is none
  std::string route;       ///< own address from which the kernel reaches the master; "" if unknown
  bool one_host = false;   ///< all ranks share this host, or the master is on a loopback address
  bool ipv6_only = false;  ///< the master has an IPv6 address
  bool ipv4_only = false;
};
/// Chooses a numeric address. Unless the filter selects interfaces, the one that routes to the master wins;
/// else the first that the filter takes in the order ib*, others, docker*, virbr*, lo (in reverse if all
/// ranks share this host and the filter does not select). IPv4 before IPv6, link-local last. Error invalid:
/// none fits; the text lists all interfaces and why each was dropped. Pure.
Result<std::string> choose_address(const std::vector<Interface>&, const AddressQuestion&);

/// The interfaces of this host. Errors: resource.
Result<std::vector<Interface>> list_interfaces();
/// Whether the interface exists, is up and has a carrier; true for "".
bool is_running(const std::string& interface);
/// The local address from which the kernel would reach `address` (numeric; a port is ignored). Nothing is
/// sent. Errors: invalid, peer-unresponsive (no route).
Result<std::string> route_to(const std::string& address);
/// OURO_SOCKET_IFNAME, else NCCL_SOCKET_IFNAME, else "".
Result<std::string> interface_filter();
/// Chooses an address of this host by interface_filter() and the route to `master`, rank 0's numeric address
/// ("" if not known).
Result<std::string> local_address(const std::string& master, bool one_host);
/// The address, of this family, at which other hosts reach this one; on a machine without a network the
/// loopback, for its own ranks.
enum class Family : std::uint8_t { any, ipv4, ipv6 };
Result<std::string> address_for_others(Family = Family::any);
bool is_loopback_address(std::string_view address);  ///< numeric, without a port

/// Resolves a name to addresses, best first. Errors: peer-unresponsive (it does not resolve, so far).
using Resolve =
    std::function<Result<std::vector<NetAddress>>(const std::string& name, const std::string& port)>;
Result<std::vector<NetAddress>> resolve(const std::string& name, const std::string& port);
/// Checks the form of a place where ranks of several hosts can meet: HOST:PORT or file:PATH. Resolves no
/// name. Errors: invalid.
Status check_rendezvous(const std::string& place);
/// The numeric form of "HOST:PORT", where ranks of several hosts meet. A name (other than "localhost") that
/// resolves to a loopback address is this host's own; the result is then the address that other hosts use, if
/// there is one. Errors: invalid, and those of the resolver.
Result<std::string> rendezvous_address(const std::string& place, const Resolve& = resolve);

}  // namespace ouro::rt
