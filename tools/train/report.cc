// Lines, JSON, CSV and the picture of a run. See report.h.
#include "tools/train/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

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

/// Prefixes an error about an option's file with the option's name.
Status named(const char* option, const Status& s) {
  return s.ok() ? Status{} : Status(Reason::resource, fmt::format("{} {}", option, s.failure()->text));
}
Status try_it(const char* option, const std::string& path) {
  return path.empty() ? Status{} : named(option, try_replace(path));
}
Status write(const char* option, const std::string& path, const std::string& text) {
  return path.empty() ? Status{} : named(option, replace_file(path, text));
}

/// Whether two names refer to one file. Special files never count, because they are not overwritten.
bool same_file(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  if (a.empty() || b.empty() || is_special(a) || is_special(b)) return false;
  std::error_code none;
  if (fs::equivalent(a, b, none)) return true;
  const fs::path first = fs::weakly_canonical(fs::absolute(a, none), none);
  return !first.empty() && first == fs::weakly_canonical(fs::absolute(b, none), none);
}
/// Whether `file` is one of STEM.rank0, STEM.rank1, ...
bool of_stem(const std::string& file, const std::string& stem) {
  const std::size_t at = file.rfind(".rank");
  return at != std::string::npos && at + 5 < file.size() &&
         file.find_first_not_of("0123456789", at + 5) == std::string::npos &&
         same_file(file, stem + file.substr(at));
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

Status distinct(const Outputs& out, const TrainOptions& o) {
  const std::pair<const char*, const std::string&> files[] = {
      {"--csv", out.csv}, {"--json", out.json}, {"--plot", out.plot}};
  const auto refused = [](const char* a, const char* b, const std::string& file) {
    return invalid(fmt::format("{} and {} name one file: {}", a, b, file));
  };
  for (const auto& [option, file] : files) {
    for (const auto& [other, its] : files)
      if (&file != &its && (same_file(file, its) || (!file.empty() && same_file(file + kPart, its))))
        return refused(option, other, its);
    if (!o.save.empty() && of_stem(file, o.save)) return refused("--save", option, file);
    if (!o.resume.empty() && of_stem(file, o.resume)) return refused("--resume", option, file);
  }
  return {};
}

Status try_outputs(const Outputs& o) {
  OURO_TRY(try_it("--json", o.json));
  OURO_TRY(try_it("--csv", o.csv));
  return try_it("--plot", o.plot);
}

Status write_outputs(const Outputs& o, const TrainReport& r) {
  OURO_TRY(write("--json", o.json, json_text(r)));
  return write("--plot", o.plot, picture(r));
}

LossFile::LossFile(const std::string& path, Strategy s)
    : consensus_(s != Strategy::ddp && s != Strategy::fsdp) {
  if (!path.empty()) file_.emplace(path);
}

void LossFile::add(const Step& s) {
  if (!file_) return;
  std::string text;
  if (!std::exchange(begun_, true)) text = consensus_ ? "step,loss,consensus,lr\n" : "step,loss,lr\n";
  text += fmt::format("{},{}", s.number, s.loss);
  if (consensus_) text += fmt::format(",{}", s.consensus);
  file_->add(text + fmt::format(",{}\n", s.rate));
}

Status LossFile::finish() { return file_ ? named("--csv", file_->finish()) : Status{}; }

Progress::Progress(int steps)
    : steps_(steps), terminal_(isatty(STDERR_FILENO) != 0 && std::getenv("CI") == nullptr) {}

void Progress::operator()(const Step& s) const {
  const bool last = s.number == steps_;
  const std::string apart = s.consensus > 0 ? fmt::format("  consensus {:.2e}", s.consensus) : "";
  if (terminal_)
    complain("\rstep {}/{}  loss {:.4f}{}{}", s.number, steps_, s.loss, apart, last ? "\n" : "");
  else if (last || s.number % std::max(1, steps_ / 10) == 0)
    complain("step {}/{}  loss {:.4f}{}\n", s.number, steps_, s.loss, apart);
}

std::string summary(const TrainReport& r, const std::string& gpu) {
  std::string line =
      fmt::format("{}: {} rank{}{}, {}, {}, steps {}..{}, final loss {:.4f}", name(r.options.model), r.ranks,
                  plural(static_cast<std::size_t>(r.ranks)), gpu.empty() ? "" : " on " + gpu, how(r),
                  name(*r.options.optimizer), r.first_step + 1,
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
      .first_x = r.first_step + 1,
      .panels = {{.y_label = "loss", .lines = {{"mean loss over ranks", r.losses}}}}};
  if (!r.consensus.empty())
    chart.panels.push_back({.y_label = "consensus distance",
                            .lines = {{"sqrt(mean of ||x_r - mean||^2)", r.consensus}},
                            .log = true});
  return to_svg(chart);
}

}  // namespace ouro::tools
