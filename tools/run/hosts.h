// Which hosts, how many ranks on each, and how to reach them: pure functions of text. Used by ouro-run.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/status.h"

namespace ouro::run {

/// Runs a command on a host; {host} stands for its name. Fails rather than ask for a password.
inline constexpr const char* kSshAgent = "ssh -o BatchMode=yes {host}";
inline constexpr int kMaxHosts = 1024;

struct Host {
  std::string name;
  int slots = 1;  ///< ranks that it takes
  bool elastic =
      false;  ///< named without a number: takes more where more ranks are asked for than there are slots
  bool operator==(const Host&) const = default;
};

/// "a:2,b,[fd77::1]:4". A host without a number has one slot and is elastic; one that is named again gets
/// more slots, and is elastic only if it never has a number. Errors: invalid (the text names what cannot be
/// read).
Result<std::vector<Host>> parse_hosts(std::string_view list);

/// One host a line: "a", "a:2" or "a slots=2"; # begins a comment.
Result<std::vector<Host>> parse_hostfile(std::string_view text);
Result<std::vector<Host>> read_hostfile(const std::string& path);

/// How many of `ranks` ranks go to each host, in order: slots are filled, hosts without a rank are left out.
/// Ranks for which there is no slot are spread evenly over the elastic hosts, the first ones taking what is
/// left over. Errors: invalid (more ranks than slots, and no elastic host).
Result<std::vector<Host>> place(const std::vector<Host>& hosts, int ranks);

/// Error invalid: the command does not name {host}, so all ranks would run on the host that it leads to.
Status check_agent(std::string_view agent);

/// `agent` split at blanks, with {host} replaced. "": none, the command runs on this host.
std::vector<std::string> agent_command(std::string_view agent, const std::string& host);

}  // namespace ouro::run
