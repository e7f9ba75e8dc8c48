// Where the ranks of several hosts meet: an address of the first host that all others have reached, and free
// ports there. Used by the agents.
#pragma once
#include <poll.h>

#include <string>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/status.h"
#include "tools/run/system.h"

namespace ouro::run {

struct Offer {
  std::string address;            ///< numeric
  int port = 0, second_port = 0;  ///< free, both; somebody listens on the first until the ranks start
};

/// Listens, each on one address: loopback (which only agents in this network namespace reach with the right
/// token), then those of this host in the order of rt::choose_address, the one from which the route to `peer`
/// starts before all others. `interfaces` is a list in the grammar of OURO_SOCKET_IFNAME; "": this host's own
/// setting. A list that chooses counts for loopback too. Who connects is sent the token.
class Listeners {
 public:
  /// Errors: invalid (no interface fits), resource.
  static Result<Listeners> open(const std::string& peer, std::string token, const std::string& interfaces);
  const std::vector<Offer>& offers() const { return offers_; }
  void watch(std::vector<pollfd>& fds) const;
  /// Those that watch appended.
  void handle(const pollfd* fds);

 private:
  Status listen_on(const std::string& address);
  std::vector<Offer> offers_;
  std::vector<Fd> sockets_;
  std::vector<Fd> guests_;  // open until they leave first, or the port would be held by this end (TIME_WAIT)
  std::string token_;
};

/// The indexes of the offers that answer with the token, as far as they do within `limit`.
std::vector<int> reach(const std::vector<Offer>& offers, const std::string& token, milliseconds limit);

}  // namespace ouro::run
