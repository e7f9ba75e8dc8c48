// Fuzz targets for text written by users and launchers: variables, parameter files, selection rules,
// addresses, calibration records. See targets.h.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime/calibration/choose.h"
#include "runtime/core/env.h"
#include "runtime/join/launch.h"
#include "runtime/network/interfaces.h"
#include "runtime/plan/cost.h"
#include "runtime/plan/rules.h"
#include "tests/system/fuzz/support.h"
#include "tests/system/fuzz/targets.h"

namespace ouro::fuzz {

/// The environment of a rank, as lines NAME=VALUE.
void launch(wire::View in) {
  Environment env;
  for (std::string_view rest = text_of(in); !rest.empty();) {
    std::string_view line = next(&rest);
    const std::string name(next(&line, '='));
    env[name] = line;
  }
  const auto found = discover(env, Identity{"1@2", "3@4"});
  require(found.ok() || found.status().reason() == Reason::invalid);
  (void)outer_launchers(env);
  if (!found.ok()) return;
  require(found->size >= 1 && found->size <= kMaxRanks && found->rank >= 0 && found->rank < found->size);
  require(found->local_size >= 1 && found->local_size <= found->size && found->local_rank >= 0 &&
          found->local_rank < found->local_size);
  require(!found->job_key.empty() && (!found->several_hosts() || !found->rendezvous.empty()));
}

/// A parameter file; lines that begin with '$' are environment variables.
void settings(wire::View in) {
  static const MemoryFile file;
  std::string text;
  std::vector<std::string> names;
  for (std::string_view rest = text_of(in); !rest.empty();) {
    std::string_view line = next(&rest);
    if (!line.starts_with('$')) {
      text.append(line) += '\n';
      continue;
    }
    line.remove_prefix(1);
    const std::string name(next(&line, '=')), value(line);
    if (!name.starts_with("OURO_") || name == "OURO_CONF_FILE") continue;
    if (setenv(name.c_str(), value.c_str(), 1) == 0) names.push_back(name);
  }
  file.fill(text);
  setenv("OURO_CONF_FILE", file.path().c_str(), 1);
  env::reload();
  bool all = true;
  for (const env::Setting& s : env::settings()) {
    require(s.valid.ok() || s.valid.reason() == Reason::invalid);
    all = all &&
          (s.valid.ok() || s.parameter->name.starts_with("OURO_DEBUG") || s.parameter->name == "OURO_ISA");
  }
  require(env::valid().ok() == all);
  (void)env::complaints();
  const auto slot = env::integer("OURO_SLOT_BYTES");
  require(!slot.ok() || !*slot || (**slot >= 4096 && **slot <= 67108864));
  const auto wait = env::real("OURO_SILENT_FAIL");
  require(!wait.ok() || !*wait || (**wait >= 0.6 && **wait <= 3600));
  (void)env::flag("OURO_CHECKSUM");
  (void)env::text("OURO_FABRIC");
  for (const std::string& name : names) unsetenv(name.c_str());
}

/// OURO_SELECT.
void rules(wire::View in) {
  const auto rows = rt::parse_rules(text_of(in));
  require(rows.ok() || rows.status().reason() == Reason::invalid);
  if (!rows.ok()) return;
  for (const rt::Rule& row : *rows) {
    const std::string text = rt::to_text(row);
    const auto again = rt::parse_rules(text);
    require(again.ok() && again->size() == 1 && rt::to_text(again->front()) == text);
  }
}

/// OURO_TUNE.
void tune(wire::View in) {
  static const MemoryFile file;
  file.fill(text_of(in));
  const auto rules = rt::load_rules(file.path());
  require(rules.ok() || rules.status().reason() == Reason::invalid);
  if (!rules.ok()) return;
  for (const rt::Rule& r : rules->rows) require(0 <= r.min_ranks && r.min_ranks <= r.max_ranks);
  file.fill(rt::to_json(*rules, "a machine"));
  const auto again = rt::load_rules(file.path());
  require(again.ok() && again->digest() == rules->digest());
}

/// The file of OURO_CALIBRATION, and the record on a rank's control page. A valid record is written and
/// read again.
void calibration(wire::View in) {
  static const MemoryFile file;
  file.fill(text_of(in));
  std::string key;
  const auto read = rt::load_calibration(file.path(), &key);
  require(read.ok() || read.status().reason() == Reason::invalid);
  rt::Calibration left{};
  std::memcpy(&left, in.data(), std::min(in.size(), sizeof left));
  for (const rt::Calibration& c : {read.ok() ? *read : rt::Calibration{}, rt::without_absurd(left)}) {
    require(c.pairs <= rt::kDistances);
    (void)rt::slot_kinds_by(c);
    (void)rt::buffer_kinds_by(c);
    (void)rt::rows_by_cost(c, 2, std::size_t{128} << 10);
    const auto again = rt::parse_calibration(rt::to_json(c, key));
    require(again.ok() == c.known());
    require(!again.ok() || (again->digest() == c.digest() && again->complete() == c.complete()));
  }
}

/// The first line is an interface filter, the second an address or a place; the others are interfaces, one
/// per line.
void addresses(wire::View in) {
  std::string_view rest = text_of(in);
  const std::string filter(next(&rest)), place(next(&rest));
  if (const auto a = rt::parse_address(place); a.ok()) {
    const auto again = rt::parse_address(rt::to_string(*a));
    require(again.ok() && rt::to_string(*again) == rt::to_string(*a));
    (void)rt::to_string(*a, false);
  }
  (void)rt::check_rendezvous(place);
  (void)rt::rendezvous_address(place, [&](const std::string& name, const std::string& port) {
    auto found = rt::parse_address(rt::with_port("127.0.0.1", std::atoi(port.c_str()) & 0xffff));
    if (!found.ok() || name.size() % 2 != 0)
      return Result<std::vector<rt::NetAddress>>(Status(Reason::peer_unresponsive, "nobody knows it"));
    return Result<std::vector<rt::NetAddress>>(std::vector<rt::NetAddress>{*found});
  });
  std::vector<rt::Interface> all;
  while (!rest.empty() && all.size() < 16) {
    std::string_view line = next(&rest);
    rt::Interface i{.name = std::string(next(&line, ' '))};
    i.up = !line.starts_with('!');
    i.loopback = i.name == "lo";
    while (!line.empty()) i.addresses.emplace_back(next(&line, ' '));
    all.push_back(std::move(i));
  }
  for (const bool six : {false, true}) {
    const auto chosen = rt::choose_address(
        all,
        {.filter = filter, .route = place, .one_host = place.empty(), .ipv6_only = six, .ipv4_only = !six});
    bool there = false;
    for (const rt::Interface& i : all)
      for (const std::string& a : i.addresses) there = there || (chosen.ok() && a == *chosen);
    require(chosen.ok() ? there : chosen.status().reason() == Reason::invalid);
  }
}

}  // namespace ouro::fuzz
