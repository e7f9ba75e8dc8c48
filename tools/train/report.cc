// Lines, JSON, CSV and the picture of a finished run. See report.h.
#include "tools/train/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tools/chart/chart.h"
#include "tools/cli/files.h"
#include "tools/cli/output.h"

namespace ouro::tools {
namespace {

/// Numbers are written in the shortest form that reads back to the same double.
std::string json_text(const TrainReport& r) {
  nlohmann::ordered_json json = to_json(r.options, r.ranks);
  const Strategy s = r.options.strategy;
  if (s == Strategy::federated || s == Strategy::diloco) {
    json["sites"] = r.sites;
    json["rounds"] = r.rounds;
    json["bytes_across_a_round"] = r.bytes_across;
  }
  if (s == Strategy::decentralised) {
    json["final_norm"] = r.final_norm;
    json["distance"] = r.distance;
  }
  if (!r.blocks.empty()) json["blocks"] = r.blocks;
  json["seconds"] = r.seconds;
  if (r.test_rows > 0) {
    json["accuracy"] = r.test_accuracy;
    json["correct"] = r.correct;
    json["test_rows"] = r.test_rows;
    json["test_loss"] = r.test_loss;
  }
  json["first_step"] = r.first_step;
  json["losses"] = r.losses;
  if (!r.consensus.empty()) json["consensus"] = r.consensus;
  json["rates"] = r.rates;
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

std::string csv_text(const TrainReport& r) {
  std::string text = r.consensus.empty() ? "step,loss,lr\n" : "step,loss,consensus,lr\n";
  for (std::size_t k = 0; k < r.losses.size(); ++k) {
    text += fmt::format("{},{}", static_cast<std::size_t>(r.first_step) + k, r.losses[k]);
    if (!r.consensus.empty()) text += fmt::format(",{}", r.consensus[k]);
    text += fmt::format(",{}\n", r.rates[k]);
  }
  return text;
}

/// Of an option's file, with the option's name before what is wrong.
Status named(const char* option, const Status& s) {
  return s.ok() ? Status{} : Status(Reason::resource, fmt::format("{} {}", option, s.failure()->text));
}
Status try_it(const char* option, const std::string& path) {
  return path.empty() ? Status{} : named(option, try_file(path));
}
Status write(const char* option, const std::string& path, const std::string& text) {
  return path.empty() ? Status{} : named(option, write_file(path, text));
}

const char* plural(std::size_t n) { return n == 1 ? "" : "s"; }

/// "federated at 2 sites", "ring"
std::string how(const TrainReport& r) {
  const TrainOptions& o = r.options;
  switch (o.strategy) {
    case Strategy::ddp:
      return "ddp";
    case Strategy::fsdp:
      return fmt::format("fsdp, {} shards", o.shards > 0 ? o.shards : r.ranks);
    case Strategy::federated:
    case Strategy::diloco:
      return fmt::format("{}, {} site{} ({}), {} rounds of {} B", name(o.strategy), r.sites.size(),
                         plural(r.sites.size()), fmt::join(r.sites, ","), r.rounds, r.bytes_across);
    case Strategy::decentralised:
      return fmt::format("decentralised, {}", o.topology);
  }
  return "";
}

}  // namespace

Status try_outputs(const Outputs& o) {
  OURO_TRY(try_it("--json", o.json));
  OURO_TRY(try_it("--csv", o.csv));
  return try_it("--plot", o.plot);
}

Status write_outputs(const Outputs& o, const TrainReport& r) {
  OURO_TRY(write("--json", o.json, json_text(r)));
  OURO_TRY(write("--csv", o.csv, csv_text(r)));
  return write("--plot", o.plot, picture(r));
}

Progress::Progress(int steps)
    : steps_(steps), terminal_(isatty(STDERR_FILENO) != 0 && std::getenv("CI") == nullptr) {}

void Progress::operator()(int step, double loss, double consensus) const {
  const bool last = step + 1 == steps_;
  const std::string apart = consensus > 0 ? fmt::format("  consensus {:.2e}", consensus) : "";
  if (terminal_)
    complain("\rstep {}/{}  loss {:.4f}{}{}", step + 1, steps_, loss, apart, last ? "\n" : "");
  else if (last || (step + 1) % std::max(1, steps_ / 10) == 0)
    complain("step {}/{}  loss {:.4f}{}\n", step + 1, steps_, loss, apart);
}

std::string summary(const TrainReport& r, const std::string& gpu) {
  std::string line =
      fmt::format("{}: {} rank{}{}, {}, {}, steps {}..{}, final loss {:.4f}", name(r.options.model), r.ranks,
                  plural(static_cast<std::size_t>(r.ranks)), gpu.empty() ? "" : " on " + gpu, how(r),
                  name(*r.options.optimizer), r.first_step,
                  static_cast<std::size_t>(r.first_step) + r.losses.size(), r.losses.back());
  if (!r.consensus.empty()) line += fmt::format(", consensus {:.2e}", r.consensus.back());
  if (r.test_rows > 0)
    line += fmt::format(", accuracy {:.2f} % ({} of {})", 100 * r.test_accuracy, r.correct, r.test_rows);
  return line + fmt::format(", {:.2f} s", r.seconds);
}

std::string picture(const TrainReport& r) {
  Chart chart{
      .title = fmt::format("{}: {} rank{}, {}, {}", name(r.options.model), r.ranks,
                           plural(static_cast<std::size_t>(r.ranks)), how(r), name(*r.options.optimizer)),
      .x_label = "step",
      .first_x = r.first_step,
      .panels = {{.y_label = "loss", .lines = {{"mean loss over ranks", r.losses}}}}};
  if (!r.consensus.empty())
    chart.panels.push_back({.y_label = "consensus distance",
                            .lines = {{"sqrt(mean of ||x_r - mean||^2)", r.consensus}},
                            .log = true});
  return to_svg(chart);
}

}  // namespace ouro::tools
