// ouro-train: trains a small model data-parallel over the ranks of a job, as a demonstration and a check.
// The only translation unit that sees CLI11; the loop itself is in digits_trainer.cc.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/device/gpu.h"
#include "tools/train/digits_trainer.h"

namespace {

using ouro::DType;
using ouro::Numerics;
using ouro::Status;
using ouro::tools::TrainOptions;
using ouro::tools::TrainReport;

constexpr const char* kExamples = R"(Examples:
  ouro-train digits                                    one rank
  ouro-run -n 4 ouro-train digits                      four ranks, the same losses
  ouro-run -n 4 ouro-train digits --steps 200 --json a.json
  ouro-run -n 4 ouro-train digits --dtype f64 --numerics canonical
  ouro-run -n 2 ouro-train digits --device cuda        gradients and optimiser on GPUs, or on one

Exit: 0 trained; 1 a rank failed; 2 wrong command line.)";

int fail(const Status& status) {
  fmt::print(stderr, "{}\n", status.message());
  return 1;
}

/// What rank 0 says while training: one line rewritten on a terminal, ten lines elsewhere.
class Progress {
 public:
  explicit Progress(int steps) : steps_(steps), terminal_(isatty(STDERR_FILENO) && !std::getenv("CI")) {}
  void operator()(int step, double loss) const {
    const bool last = step + 1 == steps_;
    if (terminal_)
      fmt::print(stderr, "\rstep {}/{}  loss {:.4f}{}", step + 1, steps_, loss, last ? "\n" : "");
    else if (last || (step + 1) % std::max(1, steps_ / 10) == 0)
      fmt::print(stderr, "step {}/{}  loss {:.4f}\n", step + 1, steps_, loss);
  }

 private:
  int steps_;
  bool terminal_;
};

/// Numbers are written in the shortest form that reads back to the same double.
Status write_json(const std::string& path, const TrainOptions& options, const TrainReport& report) {
  const nlohmann::ordered_json json = {
      {"model", "digits"},
      {"ranks", report.ranks},
      {"steps", options.steps},
      {"batch", options.batch},
      {"lr", options.lr},
      {"momentum", options.momentum},
      {"seed", options.seed},
      {"device", options.device ? "cuda" : "host"},
      {"dtype", options.dtype == DType::f64 ? "f64" : "f32"},
      {"numerics", name(options.numerics)},
      {"seconds", report.seconds},
      {"accuracy", report.accuracy()},
      {"correct", report.correct},
      {"test_rows", report.test_rows},
      {"losses", report.losses},
  };
  std::ofstream file(path);
  file << json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  file.close();
  if (!file) return {ouro::Reason::resource, fmt::format("--json {}: cannot be written", path)};
  return {};
}

/// "NVIDIA H200", or what is there in its place.
std::string gpu_name(const ouro::Context& context) {
  const auto properties = ouro::gpu::gpu().properties(context.device().index);
  return properties ? properties->name : "a GPU";
}

int train_digits_command(TrainOptions options, const std::string& json_file, bool quiet) {
  ouro::InitOptions init;
  if (!options.device) init.gpu = -1;
  ouro::Result<ouro::Context> context = ouro::Context::from_env(init);
  if (!context) return fail(context.status());
  const bool speaks = context->rank() == 0;
  if (speaks && !quiet) options.on_step = Progress(options.steps);
  const ouro::Result<TrainReport> report = ouro::tools::train_digits(*context, options);
  if (!report) return fail(report.status());
  if (speaks) {
    if (!json_file.empty())
      if (const Status written = write_json(json_file, options, *report); !written) return fail(written);
    fmt::print("digits: {} rank{}{}, {} steps, final loss {:.4f}, accuracy {:.2f} % ({} of {}), {:.2f} s\n",
               report->ranks, report->ranks == 1 ? "" : "s",
               options.device ? " on " + gpu_name(*context) : "", options.steps, report->losses.back(),
               100 * report->accuracy(), report->correct, report->test_rows, report->seconds);
  }
  if (const Status closed = context->close(); !closed) return fail(closed);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  TrainOptions options;
  std::string dtype = "f32", device = "host", numerics, json_file;
  bool quiet = false;

  CLI::App app("Trains a small model data-parallel over the ranks of a job.", "ouro-train");
  app.footer(kExamples);
  app.set_version_flag("--version", std::string("ouro-train ") + ouro::version());
  app.require_subcommand(0, 1);  // a missing or unknown model gets our own words below
  CLI::App* digits = app.add_subcommand("digits", "perceptron 64-32-10 on 8x8 images of digits");
  digits->add_option("--steps", options.steps, "steps to train")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  digits->add_option("--batch", options.batch, "rows a step, over all ranks together")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  digits->add_option("--lr", options.lr, "learning rate (SGD, momentum 0.9)")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  digits->add_option("--dtype", dtype, "element type of model and gradients")
      ->check(CLI::IsMember({"f32", "f64"}))
      ->capture_default_str();
  digits->add_option("--numerics", numerics, "contract of the reductions (default: OURO_NUMERICS, else fast)")
      ->check(CLI::IsMember({"fast", "canonical"}));
  digits->add_option("--device", device, "where parameters, all-reduce and optimiser are")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
  digits->add_option("--seed", options.seed, "order of the training rows; 0: as in the data set")
      ->capture_default_str();
  digits->add_option("--json", json_file, "rank 0 writes losses, accuracy and settings to this file");
  digits->add_flag("--quiet", quiet, "no progress");
  app.allow_extras();  // after add_subcommand, which would inherit it
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (app.get_subcommands().empty() || !app.remaining().empty()) {
    const std::string found = app.remaining().empty() ? "none" : app.remaining().front();
    fmt::print(stderr, "ouro-train: expected one model of: digits; found {}. See ouro-train --help\n", found);
    return 2;
  }
  options.dtype = dtype == "f64" ? DType::f64 : DType::f32;
  options.device = device == "cuda";
  if (!numerics.empty()) options.numerics = numerics == "canonical" ? Numerics::canonical : Numerics::fast;
  return train_digits_command(std::move(options), json_file, quiet);
}
