// ouro-info: shows the facts that ouro finds on this machine, and the problems that ranks would have. The
// only translation unit that sees CLI11.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/include/ouro/ouro.hpp"
#include "runtime/core/env.h"
#include "runtime/core/types.h"
#include "tools/cli/errors.h"
#include "tools/cli/output.h"
#include "tools/info/calibration.h"
#include "tools/info/doctor.h"
#include "tools/info/facts.h"
#include "tools/info/report.h"
#include "tools/info/who.h"

namespace {

namespace info = ouro::info;
using ouro::tools::complain;
using ouro::tools::print;
using ouro::tools::print_text;

constexpr const char* kExamples = R"(Examples:
  ouro-info                      everything
  ouro-info --brief              nine lines
  ouro-info -d -t                devices, transports and topology
  ouro-info -c                   every parameter: value, origin, meaning
  ouro-info --doctor --ranks 8   would a job of 8 ranks run here? What to fix?
  ouro-info --calibration        what the processors do, as ranks that join now reckon
  ouro-info --who 4711           whose libnccl.so.2 does that process call?
  ouro-info --json | jq .memory

Exit: 0 good; 1 the doctor finds something broken, the process does not use ouro's
libnccl alone, or output could not be written; 2 wrong command line.)";

/// Bytes of a slot as configured. An unusable value is reported among the settings; sizes then assume
/// the default.
std::uint32_t slot_bytes() {
  const ouro::Result<std::optional<std::int64_t>> set = ouro::env::integer("OURO_SLOT_BYTES");
  constexpr std::uint32_t kDefault = 131072;
  return set && *set ? static_cast<std::uint32_t>(**set) : kDefault;
}

void print_json(const nlohmann::ordered_json& json) {
  print("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

int show_calibration(bool json) {
  const ouro::Result<ouro::rt::CalibrationMode> mode = ouro::rt::calibration_mode();
  if (!mode.ok()) return complain("ouro-info: {}\n", mode.status().failure()->text), 1;
  const ouro::rt::HostCalibration h = ouro::rt::host_calibration(*mode);
  if (!json) {
    print_text(info::calibration_text(h));
    return 0;
  }
  if (!h.record.known()) return complain("ouro-info: no calibration: {}\n", h.origin), 1;
  print_text(ouro::rt::to_json(h.record, h.key));
  return 0;
}

void heading(const char* text) { print("\n== {} ==\n", text); }

int run(int argc, char** argv) {
  bool brief = false, version = false, devices = false, topology = false, parameters = false, build = false;
  bool doctor = false, json = false, calibration = false;
  int ranks = 0, pid = 0;
  CLI::App app("Shows what ouro finds on this machine, and the problems that ranks would have.", "ouro-info");
  app.footer(kExamples);
  ouro::tools::name_in_errors(app);
  app.set_version_flag("--version", std::string("ouro-info ") + ouro::version());
  app.add_flag("--brief", brief, "nine lines: version, devices, transports, cores, memory, limits");
  app.add_flag("-v", version, "version and host");
  app.add_flag("-d,--devices", devices, "devices and transports, present and missing, and why");
  app.add_flag("-t,--topology", topology, "packages, caches, cores, and who shares what");
  app.add_flag("-c,--config", parameters, "all parameters: value, origin, meaning");
  app.add_flag("-b,--build", build, "how this program was built");
  app.add_flag("--doctor", doctor,
               "checks for every known failure, with fixes; exit 1 if something is broken");
  app.add_option("--ranks", ranks, "ranks that the checks assume on this host (default: one a core)")
      ->check(CLI::Range(1, ouro::kMaxRanks));
  app.add_option("--who", pid, "which libnccl process PID uses; exit 1 unless it is ouro's alone")
      ->type_name("PID")
      ->check(CLI::PositiveNumber);
  app.add_flag("--calibration", calibration,
               "what copies and hand-offs take here; with --json as a file for OURO_CALIBRATION");
  app.add_flag("--json", json, "everything (or, with --doctor, the checks) as JSON");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return ouro::tools::answer(app, e);
  }

  const bool sections = version || devices || topology || parameters || build;
  const auto refuse = [](const char* text) { return complain("ouro-info: {}\n", text), 2; };
  if (pid != 0) {
    if (brief || sections || doctor || json || ranks != 0) return refuse("--who takes no other option");
    const ouro::Result<info::Who> who = info::who(pid);
    if (!who.ok()) return complain("ouro-info: {}\n", who.status().failure()->text), 1;
    bool ours = false;
    print_text(info::who_text(*who, &ours));
    return ours ? 0 : 1;
  }
  if (calibration) {
    if (brief || sections || doctor || ranks != 0)
      return refuse("--calibration takes no other option but --json");
    return show_calibration(json);
  }
  if (brief && (sections || doctor || json)) return refuse("--brief takes no other option");
  if (sections && (doctor || json))
    return refuse("-v -d -t -c -b cannot be combined with --doctor or --json");
  if (ranks != 0 && (sections || (json && !doctor)))
    return refuse("--ranks is for the checks: with --doctor, --brief, or no other option");

  const info::Facts facts = info::gather();
  const std::vector<ouro::env::Setting> settings = ouro::env::settings();
  if (ranks == 0)
    ranks = facts.machine ? std::max(1, std::min(facts.machine->cores, facts.machine->usable_threads)) : 1;
  const std::vector<info::Check> checks = info::examine(facts, ranks, info::needs_of(ranks, slot_bytes()));
  const int broken = info::worst(checks) == info::Verdict::broken ? 1 : 0;

  if (json) {
    print_json(doctor ? info::to_json(checks, ranks) : info::to_json(facts, settings));
    return doctor ? broken : 0;
  }
  if (doctor) {
    print_text(info::doctor(checks, ranks));
    return broken;
  }
  if (brief) {
    print_text(info::brief(facts, checks));
    return 0;
  }
  const bool all = !sections;
  if (all || version) print_text(info::version_line(facts));
  if (all) heading("devices and transports");
  if (all || devices) print_text(info::devices(facts));
  if (all) heading("topology");
  if (all || topology) print_text(info::topology(facts));
  if (all) {
    heading("limits");
    print_text(info::limits(facts));
  }
  if (all) heading("parameters");
  if (all || parameters) print_text(info::parameters(settings));
  if (all) heading("build");
  if (all || build) print_text(info::build(facts));
  if (all) {
    heading("doctor");
    print_text(info::doctor(checks, ranks));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return ouro::tools::run_program("ouro-info", [&] { return run(argc, argv); });
}
