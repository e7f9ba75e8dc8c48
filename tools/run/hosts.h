// The grammar of host lists, the ranks placed on each host, and the command that reaches it: pure functions
// of text. Used by ouro-run.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/status.h"

namespace ouro::run {

/// Runs a command on a host; {host} stands for the host's name. Fails instead of asking for a password.
inline constexpr const char* kSshAgent = "ssh -o BatchMode=yes {host}";
inline constexpr int kMaxHosts = 1024;

struct Host {
  std::string name;
  int slots = 1;  ///< ranks that this host takes
  bool elastic =
      false;  ///< named without a number: takes more ranks if more are asked for than there are slots
  bool operator==(const Host&) const = default;
};

/// Parses "a:2,b,[fd77::1]:4". A host without a number has one slot and is elastic. Naming a host again adds
/// slots; it is elastic only if it never has a number. Errors: invalid (the text names the item that cannot
/// be parsed).
Result<std::vector<Host>> parse_hosts(std::string_view list);

/// Parses one host per line: "a", "a:2" or "a slots=2"; # begins a comment.
Result<std::vector<Host>> parse_hostfile(std::string_view text);
Result<std::vector<Host>> read_hostfile(const std::string& path);

/// The hosts that get ranks, in order, with the number of ranks of each as its slots: slots are filled first,
/// and hosts that get no rank are left out. Ranks for which there is no slot are spread evenly over the
/// elastic hosts, and the first of these take the remainder. Errors: invalid (more ranks than slots, and no
/// elastic host).
Result<std::vector<Host>> place(const std::vector<Host>& hosts, int ranks);

/// Fails with invalid if the command does not contain {host}: all ranks would then run on the one host that
/// it connects to.
Status check_agent(std::string_view agent);

/// `agent` split at blanks, with {host} replaced. "" gives an empty command: ouro-run runs on this host.
std::vector<std::string> agent_command(std::string_view agent, const std::string& host);

}  // namespace ouro::run
