// Which of this host's addresses other hosts should use. Used by whoever opens a listener for other hosts.
// What the host's own name resolves to is not believed: many systems map it to a loopback address.
#pragma once
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

/// NCCL_SOCKET_IFNAME's grammar: a list of prefixes, comma-separated; "=" before the list asks for exact
/// names,
/// "^" excludes what matches, "^=" excludes exact names. NCCL also takes "=" before each name, and so do we.
/// An empty list takes all.
class NameFilter {
 public:
  explicit NameFilter(std::string_view list);
  bool takes(std::string_view interface) const;
  /// Without a list, or with one that only excludes, the default order counts.
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
  std::string route;       ///< own address from which the system reaches the master; "" if unknown
  bool one_host = false;   ///< all ranks share this host, or the master is on a loopback address
  bool ipv6_only = false;  ///< the master has an IPv6 address
  bool ipv4_only = false;
};
/// The address, numeric. The interface that routes to the master wins if the filter takes it; else the first
/// that the filter takes in the order ib*, others, docker*, virbr*, lo. IPv4 before IPv6, link-local last.
/// Error invalid: none fits; the text lists all interfaces and why each was dropped. Pure.
Result<std::string> choose_address(const std::vector<Interface>&, const AddressQuestion&);

/// Of this host. Error resource.
Result<std::vector<Interface>> list_interfaces();
/// Whether the interface is there, up, and has a carrier; "" is.
bool is_running(const std::string& interface);
/// The local address from which the system would reach `address` (numeric, a port is ignored). Nothing is
/// sent. Errors: invalid, peer-unresponsive (no route).
Result<std::string> route_to(const std::string& address);
/// OURO_SOCKET_IFNAME, else NCCL_SOCKET_IFNAME, else "".
Result<std::string> interface_filter();
/// All of it: by interface_filter(); `master` is rank 0's numeric address, "" if it is not known.
Result<std::string> local_address(const std::string& master, bool one_host);
/// The address of this host that others reach it by; on a machine without a network the loopback, for its own
/// ranks.
Result<std::string> address_for_others();

/// What a name means, best first. Error peer-unresponsive: nothing, so far.
using Resolve =
    std::function<Result<std::vector<NetAddress>>(const std::string& name, const std::string& port)>;
Result<std::vector<NetAddress>> resolve(const std::string& name, const std::string& port);
/// Whether that is a place where ranks of several hosts can meet: HOST:PORT or file:PATH. Nobody is asked for
/// the name. Errors: invalid.
Status check_rendezvous(const std::string& place);
/// "HOST:PORT", where ranks of several hosts meet, in numbers. A name that leads to a loopback address (other
/// than "localhost") is this host's own: then it is the address that other hosts use, if there is one.
/// Errors: invalid.
Result<std::string> rendezvous_address(const std::string& place, const Resolve& = resolve);

}  // namespace ouro::rt
