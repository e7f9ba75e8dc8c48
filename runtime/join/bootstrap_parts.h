// Parts shared by the two ways of joining: on one host, and as the first rank of one of several hosts. Used
// by bootstrap.cc and bootstrap_net.cc only.
#pragma once
#include <string>
#include <vector>

#include "runtime/join/bootstrap.h"

namespace ouro::rt {

/// Makes the Peer of a rank of this host from the content of its request or of the table.
Result<Peer> make_peer(std::int32_t pid, std::string host, std::string server, std::vector<Fd> fds,
                       std::size_t control_bytes);
/// Makes the Peer of a rank of another host, with a replica of its control page that is still to be filled.
Result<Peer> make_remote(const wire::Member&, std::size_t control_bytes);
/// Sends the table to one rank of this host: members of this host with their descriptors.
Status send_table(int line, const std::vector<Peer>& peers);

/// The failure that a process of this job reports, instead of asking to join, if it finds its own place taken
/// (in `join`).
Status objection_of(const wire::Refuse&);

/// Joining on the first rank of a host, in a job over several hosts: gathers the ranks of its host and brings
/// them to the rendezvous.
Result<Joined> gather_host(const JoinOptions&, Fd listener, Peer self);

}  // namespace ouro::rt
