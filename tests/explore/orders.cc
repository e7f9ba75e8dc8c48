// Determines which acquires and releases the protocols need: each is made relaxed, place by place.
// See report.h.
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/explore/engine/explore.h"
#include "tests/explore/protocols/protocols.h"
#include "tests/explore/report.h"

namespace explore {
namespace {

/// One operation in the source, with all addresses at which the compiler placed it.
struct Place {
  Fault::At kind;
  Order order;
  std::string label;
  int weakened = 0;         // number of its sites that were weakened in protocols
  std::string first_found;  // name of the protocol
};

constexpr std::chrono::hours kNoLimit{24};

bool is_found(const Protocol& p, const Fault& fault, std::uint64_t executions) {
  for (const Plan::Kind kind : {Plan::Kind::reduced, Plan::Kind::random})
    if (!explore(*p.program, {.kind = kind}, {executions, kNoLimit}, &fault).violation.empty()) return true;
  return false;
}

const char* name_of(Fault::At kind) {
  constexpr const char* kNames[] = {"load", "store", "change", "sleep", "wake", "fence"};
  return kNames[static_cast<int>(kind)];
}

}  // namespace

int weaken_orders(const Settings& s) {
  std::map<std::string, Place> places;
  for (const Protocol& p : protocols()) {
    if (!std::string_view(p.name).starts_with(s.only)) continue;
    for (const Site& site : survey(*p.program, {.kind = Plan::Kind::random}, {2000, kNoLimit})) {
      if (site.order == Order::relaxed || site.kind > Fault::At::change) continue;
      const std::string where = source_of(site.at);
      if (where.find("gthr") != std::string::npos) continue;  // a lock of the standard library
      Place& place = places[where + "  " + site.label];
      place.kind = site.kind, place.order = site.order, place.label = site.label;
      ++place.weakened;
      if (!place.first_found.empty()) continue;
      const Fault fault{"relaxed", site.label.c_str(), site.kind, Fault::What::relax, 0, site.at};
      if (is_found(p, fault, s.executions)) place.first_found = p.name;
    }
    std::fprintf(stderr, "%s\n", p.name);
  }
  int found = 0;
  for (const bool needed : {true, false}) {
    std::printf("%s\n", needed ? "found if relaxed:" : "not found in any protocol:");
    for (const auto& [where, place] : places) {
      if (place.first_found.empty() == needed) continue;
      found += needed;
      std::printf("  %-6s %-8s %-16s %-22s %s\n", name_of(place.kind), name(place.order), place.label.c_str(),
                  place.first_found.c_str(), where.c_str());
    }
  }
  std::printf("%d of %zu places\n", found, places.size());
  return 0;
}

}  // namespace explore
