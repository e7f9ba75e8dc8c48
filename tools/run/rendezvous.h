// Finds the meeting place of the ranks of several hosts: an address of the first host that all other hosts
// have reached, and free ports there. Used by the agents.
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
  int port = 0, second_port = 0;  ///< both free; the first has a listener until the ranks start
};

/// Sockets that listen on one address each: loopback (where only agents in this network namespace can get the
/// right token), then this host's addresses in the order of rt::choose_address, beginning with the source
/// address of the route to `peer`. `interfaces` is a list in the grammar of OURO_SOCKET_IFNAME; "": this
/// host's own setting. A list that selects interfaces applies to loopback too. Every peer that connects is
/// sent the token.
class Listeners {
 public:
  /// Errors: invalid (no interface fits), resource.
  static Result<Listeners> open(const std::string& peer, std::string token, const std::string& interfaces);
  const std::vector<Offer>& offers() const { return offers_; }
  void watch(std::vector<pollfd>& fds) const;
  /// Takes the entries that watch() appended.
  void handle(const pollfd* fds);

 private:
  Status listen_on(const std::string& address);
  std::vector<Offer> offers_;
  std::vector<Fd> sockets_;
  // Kept open until the peer closes first; otherwise this end would hold the port in TIME_WAIT.
  std::vector<Fd> guests_;
  std::string token_;
};

/// The indexes of the offers that answer with the token within `limit`.
std::vector<int> reach(const std::vector<Offer>& offers, const std::string& token, milliseconds limit);

}  // namespace ouro::run
