// ouro-train: trains a small model over the ranks of a job, data-parallel, federated or decentralised, as a
// demonstration and a check. The only translation unit that sees CLI11; the loops are in digits_trainer.cc,
// federated.cc, decentralised.cc.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/device/gpu.h"
#include "tools/train/decentralised.h"
#include "tools/train/digits_trainer.h"
#include "tools/train/federated.h"

namespace {

using ouro::DType;
using ouro::Numerics;
using ouro::Status;
using ouro::tools::DecentralisedOptions;
using ouro::tools::DecentralisedReport;
using ouro::tools::FederatedOptions;
using ouro::tools::FederatedReport;
using ouro::tools::SmallModel;
using ouro::tools::TrainOptions;
using ouro::tools::TrainReport;

constexpr const char* kExamples = R"(Examples:
  ouro-train digits                                    one rank
  ouro-run -n 4 ouro-train digits                      four ranks, the same losses
  ouro-run -n 4 ouro-train digits --steps 200 --json a.json
  ouro-run -n 4 ouro-train digits --dtype f64 --numerics canonical
  ouro-run -n 2 ouro-train digits --device cuda        gradients and optimiser on GPUs, or on one
  ouro-run -n 4 ouro-train digits --strategy decentralised --topology ring --csv ring.csv
  ouro-run -n 4 ouro-train digits --strategy federated --sites 2 --local-steps 10
  ouro-run -n 4 ouro-train digits --strategy diloco --sites 2 --delta int8
  ouro-run -n 4 ouro-train charlm --topology one-peer-exp --steps 120
  ouro-run -n 4 ouro-train charlm --stop-after 60 --save a; ouro-run -n 4 ouro-train charlm --resume a

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

Status write_file(const std::string& path, const nlohmann::ordered_json& json) {
  std::ofstream file(path);
  file << json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  file.close();
  if (!file) return {ouro::Reason::resource, fmt::format("--json {}: cannot be written", path)};
  return {};
}

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
  return write_file(path, json);
}

/// A line a step: step, mean loss, and where it was measured the consensus after the step.
Status write_csv(const std::string& path, int first_step, const std::vector<double>& losses,
                 const std::vector<double>& consensus) {
  std::ofstream file(path);
  file << (consensus.empty() ? "step,loss\n" : "step,loss,consensus\n");
  for (std::size_t k = 0; k < losses.size(); ++k) {
    file << fmt::format("{},{}", static_cast<std::size_t>(first_step) + k, losses[k]);
    if (!consensus.empty()) file << fmt::format(",{}", consensus[k]);
    file << '\n';
  }
  file.close();
  if (!file) return {ouro::Reason::resource, fmt::format("--csv {}: cannot be written", path)};
  return {};
}

/// "NVIDIA H200", or what is there in its place.
std::string gpu_name(const ouro::Context& context) {
  const auto properties = ouro::gpu::gpu().properties(context.device().index);
  return properties ? properties->name : "a GPU";
}

int train_digits_command(TrainOptions options, const std::string& json_file, const std::string& csv_file,
                         bool quiet) {
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
    if (!csv_file.empty())
      if (const Status written = write_csv(csv_file, 0, report->losses, {}); !written) return fail(written);
    fmt::print("digits: {} rank{}{}, {} steps, final loss {:.4f}, accuracy {:.2f} % ({} of {}), {:.2f} s\n",
               report->ranks, report->ranks == 1 ? "" : "s",
               options.device ? " on " + gpu_name(*context) : "", options.steps, report->losses.back(),
               100 * report->accuracy(), report->correct, report->test_rows, report->seconds);
  }
  if (const Status closed = context->close(); !closed) return fail(closed);
  return 0;
}

Status write_json(const std::string& path, const FederatedOptions& options, const std::string& strategy,
                  const FederatedReport& report) {
  const nlohmann::ordered_json json = {
      {"model", "digits"},         {"strategy", strategy},
      {"ranks", report.ranks},     {"sites", report.sites},
      {"steps", options.steps},    {"local_steps", options.local_steps},
      {"rounds", report.rounds},   {"bytes_across_a_round", report.bytes_across},
      {"batch", options.batch},    {"lr", options.lr},
      {"seed", options.seed},      {"dtype", options.dtype == DType::f64 ? "f64" : "f32"},
      {"seconds", report.seconds}, {"accuracy", report.accuracy()},
      {"correct", report.correct}, {"test_rows", report.test_rows},
      {"losses", report.losses},
  };
  return write_file(path, json);
}

int train_federated_command(FederatedOptions options, const std::string& strategy,
                            const std::string& json_file, const std::string& csv_file, bool quiet) {
  ouro::InitOptions init;
  init.gpu = -1;
  ouro::Result<ouro::Context> context = ouro::Context::from_env(init);
  if (!context) return fail(context.status());
  const bool speaks = context->rank() == 0;
  if (speaks && !quiet) options.on_step = Progress(options.steps);
  const ouro::Result<FederatedReport> report = ouro::tools::train_federated(*context, options);
  if (!report) return fail(report.status());
  if (speaks) {
    if (!json_file.empty())
      if (const Status written = write_json(json_file, options, strategy, *report); !written)
        return fail(written);
    if (!csv_file.empty())
      if (const Status written = write_csv(csv_file, 0, report->losses, {}); !written) return fail(written);
    fmt::print(
        "digits: {} rank{} at {} site{}, {}, {} steps, {} rounds of {} B, final loss {:.4f}, accuracy {:.2f} "
        "% ({} of "
        "{}), {:.2f} s\n",
        report->ranks, report->ranks == 1 ? "" : "s", report->sites.size(),
        report->sites.size() == 1 ? "" : "s", strategy, options.steps, report->rounds, report->bytes_across,
        report->losses.back(), 100 * report->accuracy(), report->correct, report->test_rows, report->seconds);
  }
  if (const Status closed = context->close(); !closed) return fail(closed);
  return 0;
}

/// The options of federated training, as words.
struct FederatedWords {
  FederatedOptions options;
  std::string delta = "exact", server = "avg";
  std::vector<const CLI::Option*> given = {};  // all of them
  const CLI::Option* server_option = nullptr;

  void add_to(CLI::App& app) {
    const auto add = [this](CLI::Option* o) { return given.emplace_back(o), o; };
    add(app.add_option("--sites", options.sites, "sites of consecutive ranks (federated, diloco)"))
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    add(app.add_option("--local-steps", options.local_steps, "steps of a site between two averages"))
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    add(app.add_option("--delta", delta, "what crosses the sites"))
        ->check(CLI::IsMember({"exact", "bf16", "int8"}))
        ->capture_default_str();
    add(app.add_flag("--weigh-by-ranks", options.weigh_by_ranks, "a site counts as often as it has ranks"));
    server_option = add(app.add_option("--server", server, "what is done with the mean (federated)"))
                        ->check(CLI::IsMember({"avg", "adam", "yogi"}))
                        ->capture_default_str();
  }
  FederatedOptions take(const TrainOptions& common, bool diloco) const {
    using ouro::tools::Server;
    using ouro::train::DeltaFormat;
    FederatedOptions f = options;
    f.steps = common.steps, f.batch = common.batch, f.lr = common.lr, f.momentum = common.momentum;
    f.dtype = common.dtype, f.numerics = common.numerics, f.seed = common.seed;
    f.delta = delta == "int8" ? DeltaFormat::int8 : delta == "bf16" ? DeltaFormat::bf16 : DeltaFormat::exact;
    f.server = diloco             ? Server::nesterov
               : server == "adam" ? Server::adam
               : server == "yogi" ? Server::yogi
                                  : Server::avg;
    return f;
  }
};

int train_decentralised_command(DecentralisedOptions options, const std::string& model,
                                const std::string& csv_file, bool quiet) {
  ouro::InitOptions init;
  init.gpu = -1;
  ouro::Result<ouro::Context> context = ouro::Context::from_env(init);
  if (!context) return fail(context.status());
  const bool speaks = context->rank() == 0;
  if (speaks && !quiet)
    options.on_step = [progress = Progress(options.steps)](int step, double loss, double) {
      progress(step, loss);
    };
  const ouro::Result<DecentralisedReport> report = ouro::tools::train_decentralised(*context, options);
  if (!report) return fail(report.status());
  if (speaks) {
    if (!csv_file.empty())
      if (const Status written = write_csv(csv_file, report->first_step, report->losses, report->consensus);
          !written)
        return fail(written);
    const auto last = [](const std::vector<double>& v) { return v.empty() ? 0 : v.back(); };
    fmt::print("{}: {} rank{}, {}, steps {}..{}, final loss {:.4f}, consensus {:.2e}", model,
               context->world_size(), context->world_size() == 1 ? "" : "s", options.topology,
               report->first_step, static_cast<std::size_t>(report->first_step) + report->losses.size(),
               last(report->losses), last(report->consensus));
    if (options.model == SmallModel::digits) fmt::print(", accuracy {:.2f} %", 100 * report->test_accuracy);
    fmt::print(", {:.2f} s\n", report->seconds);
  }
  if (const Status closed = context->close(); !closed) return fail(closed);
  return 0;
}

/// The options of decentralised training, as words.
struct DecentralisedWords {
  DecentralisedOptions options;
  std::string order = "sequential", decay = "standard";
  std::vector<const CLI::Option*> given = {};  // all of them

  void add_to(CLI::App& app) {
    const auto add = [this](CLI::Option* o) { return given.emplace_back(o), o; };
    DecentralisedOptions& d = options;
    add(app.add_option("--topology", d.topology, "who averages with whom; names: ouro-topo list"))
        ->capture_default_str();
    add(app.add_option("--local-size", d.topology_options.local_world_size,
                       "ranks of a node (alternating-exp-ring)"))
        ->check(CLI::PositiveNumber);
    add(app.add_option("--peers", d.topology_options.peers,
                       "messages a round, at most (hypercuboid, base-k)"))
        ->check(CLI::PositiveNumber);
    add(app.add_option("--round-order", order, "which round mixes in which step"))
        ->check(CLI::IsMember({"sequential", "upstream"}))
        ->capture_default_str();
    add(app.add_option("--decay", decay, "which parameters decay"))
        ->check(CLI::IsMember({"standard", "upstream-inverted"}))
        ->capture_default_str();
    add(app.add_option("--bucket-mb", d.bucket_mb, "MiB of parameters that travel together"))
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    add(app.add_option("--clip", d.clip_norm, "limit of a bucket's gradient norm; 0: none"))
        ->check(CLI::NonNegativeNumber);
    add(app.add_option("--adaptive", d.adaptive, "share of the mix in a step"))->check(CLI::Range(0.0, 1.0));
    add(app.add_option("--stop-after", d.stop_after, "take this many of the steps"))
        ->check(CLI::PositiveNumber);
    add(app.add_option("--save", d.save, "each rank writes its state to FILE.rank0 ... at the end"));
    add(app.add_option("--resume", d.resume, "each rank goes on from such a file"));
  }
  DecentralisedOptions take(SmallModel model, int steps) const {
    DecentralisedOptions d = options;
    d.model = model, d.steps = steps;
    d.order = order == "upstream" ? ouro::train::RoundOrder::upstream : ouro::train::RoundOrder::sequential;
    d.decay =
        decay == "standard" ? ouro::train::DecayRule::standard : ouro::train::DecayRule::upstream_inverted;
    return d;
  }
};

/// Words of the strategy that was not chosen are refused.
int refuse(const std::vector<const CLI::Option*>& options, const char* strategy) {
  for (const CLI::Option* o : options)
    if (o->count() > 0) {
      fmt::print(stderr, "ouro-train: {} has no meaning with --strategy {}\n", o->get_name(), strategy);
      return 2;
    }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  TrainOptions options;
  DecentralisedWords decentralised, charlm_words;
  FederatedWords federated;
  std::string dtype = "f32", device = "host", numerics, json_file, csv_file, strategy = "ddp";
  int charlm_steps = 120;
  bool quiet = false;

  CLI::App app("Trains a small model over the ranks of a job.", "ouro-train");
  app.footer(kExamples);
  app.set_version_flag("--version", std::string("ouro-train ") + ouro::version());
  app.require_subcommand(0, 1);  // a missing or unknown model gets our own words below
  CLI::App* digits = app.add_subcommand(
      "digits",
      "8x8 images of digits: a perceptron (ddp, federated, diloco), a convolutional network (decentralised)");
  digits->add_option("--steps", options.steps, "steps to train")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  std::vector<const CLI::Option*> ddp;  // what only this strategy reads
  ddp.push_back(digits->add_option("--batch", options.batch, "rows a step, over all ranks together")
                    ->check(CLI::Range(1, 1'000'000))
                    ->capture_default_str());
  ddp.push_back(digits->add_option("--lr", options.lr, "learning rate (SGD, momentum 0.9)")
                    ->check(CLI::PositiveNumber)
                    ->capture_default_str());
  ddp.push_back(digits->add_option("--dtype", dtype, "element type of model and gradients")
                    ->check(CLI::IsMember({"f32", "f64"}))
                    ->capture_default_str());
  ddp.push_back(digits
                    ->add_option("--numerics", numerics,
                                 "contract of the reductions (default: OURO_NUMERICS, else fast)")
                    ->check(CLI::IsMember({"fast", "canonical"})));
  ddp.push_back(digits->add_option("--device", device, "where parameters, all-reduce and optimiser are")
                    ->check(CLI::IsMember({"host", "cuda"}))
                    ->capture_default_str());
  const CLI::Option* device_option = ddp.back();
  ddp.push_back(
      digits->add_option("--seed", options.seed, "order of the training rows; 0: as in the data set")
          ->capture_default_str());
  ddp.push_back(
      digits->add_option("--json", json_file, "rank 0 writes losses, accuracy and settings to this file"));
  digits->add_flag("--quiet", quiet, "no progress");
  digits
      ->add_option("--strategy", strategy,
                   "ddp: gradients are averaged; federated, diloco: parameters of sites, now and then; "
                   "decentralised: parameters, among neighbours")
      ->check(CLI::IsMember({"ddp", "federated", "diloco", "decentralised"}))
      ->capture_default_str();
  digits->add_option("--csv", csv_file, "rank 0 writes the losses to this file, a line a step");
  decentralised.add_to(*digits);
  federated.add_to(*digits);
  CLI::App* charlm = app.add_subcommand("charlm", "character model (a transformer block), decentralised");
  charlm->add_option("--steps", charlm_steps, "steps to train")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  charlm->add_option("--csv", csv_file, "rank 0 writes the losses to this file, a line a step");
  charlm->add_flag("--quiet", quiet, "no progress");
  charlm_words.add_to(*charlm);
  app.allow_extras();  // after add_subcommand, which would inherit it
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (app.get_subcommands().empty() || !app.remaining().empty()) {
    const std::string found = app.remaining().empty() ? "none" : app.remaining().front();
    fmt::print(stderr, "ouro-train: expected one model of: digits, charlm; found {}. See ouro-train --help\n",
               found);
    return 2;
  }
  if (*charlm)
    return train_decentralised_command(charlm_words.take(SmallModel::charlm, charlm_steps), "charlm",
                                       csv_file, quiet);
  if (strategy == "decentralised") {
    if (const int wrong = refuse(ddp, "decentralised")) return wrong;
    if (const int wrong = refuse(federated.given, "decentralised")) return wrong;
    return train_decentralised_command(decentralised.take(SmallModel::digits, options.steps), "digits",
                                       csv_file, quiet);
  }
  if (const int wrong = refuse(decentralised.given, strategy.c_str())) return wrong;
  options.dtype = dtype == "f64" ? DType::f64 : DType::f32;
  options.device = device == "cuda";
  if (!numerics.empty()) options.numerics = numerics == "canonical" ? Numerics::canonical : Numerics::fast;
  if (strategy != "ddp") {
    const bool diloco = strategy == "diloco";
    if (const int wrong = refuse({device_option}, strategy.c_str())) return wrong;
    if (const int wrong = diloco ? refuse({federated.server_option}, "diloco") : 0) return wrong;
    return train_federated_command(federated.take(options, diloco), strategy, json_file, csv_file, quiet);
  }
  if (const int wrong = refuse(federated.given, "ddp")) return wrong;
  return train_digits_command(std::move(options), json_file, csv_file, quiet);
}
