// Parses lists of hosts. Used through hosts.h.
#include "tools/run/hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <utility>

#include "runtime/core/types.h"

namespace ouro::run {
namespace {

constexpr std::string_view kHost = "{host}";

/// Whether this can be a name or address. It becomes an argument of the agent's command, where a leading '-'
/// would be an option.
bool is_name(std::string_view s) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._:%@-").find(c) != std::string_view::npos;
  };
  return !s.empty() && s.size() <= 255 && s.front() != '-' && std::all_of(s.begin(), s.end(), fits);
}

/// 0 if it is not a number of slots.
int slots_of(std::string_view digits) {
  int slots = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), slots);
  if (error != std::errc() || end != digits.data() + digits.size() || slots < 1 || slots > kMaxRanks)
    return 0;
  return slots;
}

/// Parses "a", "a:2", "[fd77::1]" or "[fd77::1]:2".
Result<Host> parse_host(std::string_view item) {
  Host host;
  std::string_view slots;
  if (const std::size_t bracket = item.find(']');
      item.starts_with('[') && bracket != std::string_view::npos) {
    host.name = item.substr(1, bracket - 1);
    slots = item.substr(bracket + 1);
  } else {
    host.name = item.substr(0, item.find(':'));
    slots = item.substr(host.name.size());
  }
  host.elastic = slots.empty();
  if (!slots.empty()) host.slots = slots[0] == ':' ? slots_of(slots.substr(1)) : 0;
  if (!is_name(host.name) || host.slots == 0)
    return invalid(fmt::format("host '{}': expected NAME or NAME:SLOTS, an IPv6 address in [], 1 to {} slots",
                               item, kMaxRanks));
  return host;
}

Status add(std::vector<Host>& hosts, Host host) {
  const auto same = [&](const Host& h) { return h.name == host.name; };
  if (const auto it = std::find_if(hosts.begin(), hosts.end(), same); it != hosts.end()) {
    it->slots = std::min(it->slots + host.slots, kMaxRanks);  // no job has more ranks
    it->elastic = it->elastic && host.elastic;
  } else if (hosts.size() == kMaxHosts) {
    return invalid(fmt::format("more than {} hosts", kMaxHosts));
  } else {
    hosts.push_back(std::move(host));
  }
  return {};
}

}  // namespace

Result<std::vector<Host>> parse_hosts(std::string_view list) {
  std::vector<Host> hosts;
  for (;;) {
    const std::size_t comma = list.find(',');
    OURO_ASSIGN(auto host, parse_host(list.substr(0, comma)));
    OURO_TRY(add(hosts, std::move(host)));
    if (comma == std::string_view::npos) return hosts;
    list.remove_prefix(comma + 1);
  }
}

Result<std::vector<Host>> parse_hostfile(std::string_view text) {
  std::vector<Host> hosts;
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    std::string item, slots, more;
    if (!(words >> item)) continue;
    Result<Host> host = parse_host(item);
    if (!host.ok()) return invalid(fmt::format("line {}: {}", number, host.status().failure()->text));
    if (words >> slots) {
      host->elastic = false;
      host->slots = slots.starts_with("slots=") ? slots_of(std::string_view(slots).substr(6)) : 0;
      const bool twice = item.find(':', item.find(']') == item.npos ? 0 : item.find(']')) != item.npos;
      if (host->slots == 0 || twice || words >> more)
        return invalid(fmt::format("line {}: '{}': expected HOST, HOST:SLOTS or HOST slots=N", number, line));
    }
    OURO_TRY(add(hosts, std::move(*host)));
  }
  if (hosts.empty()) return invalid("no host in it");
  return hosts;
}

Result<std::vector<Host>> read_hostfile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return invalid(fmt::format("{}: cannot be read", path));
  Result<std::vector<Host>> hosts = parse_hostfile(text.str());
  if (!hosts.ok()) return invalid(fmt::format("{}: {}", path, hosts.status().failure()->text));
  return hosts;
}

Result<std::vector<Host>> place(const std::vector<Host>& hosts, int ranks) {
  std::vector<Host> used;
  int left = ranks;
  for (const Host& h : hosts) {
    if (left == 0) break;
    used.push_back({h.name, std::min(left, h.slots), h.elastic});
    left -= used.back().slots;
  }
  int elastic =
      static_cast<int>(std::count_if(used.begin(), used.end(), [](const Host& h) { return h.elastic; }));
  for (Host& h : used) {
    if (!h.elastic) continue;
    const int more = (left + elastic - 1) / elastic;
    --elastic;
    h.slots += more;
    left -= more;
    h.elastic = false;
  }
  if (left > 0)
    return invalid(fmt::format("{} ranks, but the hosts have {} slots: say how many each takes, as in {}:{}",
                               ranks, ranks - left, hosts.empty() ? "host" : hosts[0].name, ranks));
  return used;
}

Status check_agent(std::string_view agent) {
  if (agent.find_first_not_of(" \t\n") == agent.npos || agent.find(kHost) != agent.npos) return {};
  return invalid(
      fmt::format("agent command '{}' does not name {}; '' runs the ranks of every host here", agent, kHost));
}

std::vector<std::string> agent_command(std::string_view agent, const std::string& host) {
  std::vector<std::string> words;
  std::istringstream in{std::string(agent)};
  for (std::string word; in >> word;) {
    for (std::size_t at = 0; (at = word.find(kHost, at)) != word.npos; at += host.size())
      word.replace(at, kHost.size(), host);
    words.push_back(word);
  }
  return words;
}

}  // namespace ouro::run
