// The only translation unit of ouro-train that sees CLI11. See command_line.h.
#include "tools/train/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <initializer_list>
#include <map>

#include "ouro/ouro.hpp"
#include "tools/cli/errors.h"
#include "tools/cli/numbers.h"
#include "tools/cli/output.h"

namespace ouro::tools {
namespace {

using models::NetworkKind;

constexpr const char* kExamples = R"(Examples:
  ouro-train digits                                    one rank
  ouro-run -n 4 ouro-train digits                      four ranks, the same losses
  ouro-run -n 4 ouro-train digits --steps 200 --json a.json
  ouro-run -n 4 ouro-train digits --dtype f64 --numerics canonical
  ouro-run -n 2 ouro-train digits --device cuda        gradients and optimiser on GPUs, or on one
  ouro-run -n 4 ouro-train charlm --strategy fsdp --shards 2 --optimizer adamw --lr 1e-3
  ouro-run -n 6 ouro-train digits --strategy federated --sites 4,2 --local-steps 10
  ouro-run -n 4 ouro-train charlm --strategy diloco --sites 2 --delta int8
  ouro-run -n 4 ouro-train digits --strategy decentralised --topology ring --csv a.csv --plot a.svg
  ouro-run -n 4 ouro-train charlm --topology one-peer-exp --steps 120
  ouro-run -n 4 ouro-train charlm --stop-after 60 --save a; ouro-run -n 4 ouro-train charlm --resume a

Exit: 0 trained; 1 a rank failed, the loss is no number any more, or output could not be written; 2 wrong
command line.)";

constexpr const char* kStrategies =
    "ddp: gradients are averaged; fsdp: and each rank updates a shard; federated, diloco: parameters of "
    "sites are averaged, now and then; decentralised: parameters, among neighbours";

/// The names of an enumeration's values, by the `name` functions of options.h.
template <class E>
std::map<std::string, E> names(std::initializer_list<E> all) {
  std::map<std::string, E> map;
  for (const E e : all) map[name(e)] = e;
  return map;
}
/// Parses "4,2" as sizes and "2" as a number of sites. Returns an error text; empty: no error.
std::string read_sites(const std::string& text, TrainOptions& o) {
  std::vector<int> numbers;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    int value = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + comma, value);
    if (error != std::errc() || end != text.data() + comma || value < 1)
      return fmt::format("--sites {}: expected a number of sites, or the ranks of each, as 4,2", text);
    numbers.push_back(value);
    at = comma + 1;
  }
  if (numbers.size() == 1)
    o.sites = numbers[0];
  else
    o.site_ranks = std::move(numbers);
  return "";
}

/// The options of one model's subcommand.
class Words {
 public:
  Words(CLI::App& app, SmallModel model) : app_(app) {
    const bool digits = model == SmallModel::digits;
    o_.model = model;
    o_.strategy = digits ? Strategy::ddp : Strategy::decentralised;
    o_.steps = digits ? 240 : 120;
    app.footer(kExamples);
    option("--strategy", o_.strategy, kStrategies,
           names({Strategy::ddp, Strategy::fsdp, Strategy::federated, Strategy::diloco,
                  Strategy::decentralised}))
        ->default_str(name(o_.strategy));
    app.add_option("--steps", o_.steps, "steps to train")
        ->check(between(1, 1'000'000))
        ->capture_default_str();
    app.add_option("--batch", o_.batch, "samples a step, over all ranks together")
        ->check(between(1, 1'000'000));
    if (digits)
      option("--network", o_.network, "perceptron or convolutional network; default: cnn if decentralised",
             names({NetworkKind::mlp, NetworkKind::cnn}));
    option("--dtype", o_.dtype,
           "element type of parameters and optimiser; default: f64 if decentralised, else f32",
           std::map<std::string, DType>{{"f32", DType::f32}, {"f64", DType::f64}});
    app.add_option("--seed", o_.seed, "order of the training samples; 0: as in the data set")
        ->capture_default_str();
    optimiser();
    where_and_how();
    federated();
    decentralised();
    files();
  }

  const CLI::App& app() const { return app_; }
  /// The complaint about options that the strategy or the topology does not use; empty: there is none.
  std::string complaint() {
    for (const auto& [option, strategies] : only_)
      if (option->count() > 0 &&
          std::find(strategies.begin(), strategies.end(), o_.strategy) == strategies.end())
        return fmt::format("{} has no meaning with --strategy {}", option->get_name(), name(o_.strategy));
    for (const train::TopologyInfo& t : train::topologies()) {
      if (t.name != o_.topology) continue;
      const std::pair<bool, const CLI::Option*> read[] = {
          {t.by_node, local_size_}, {t.by_peers, peers_}, {t.by_rows, rows_}};
      for (const auto& [reads, option] : read)
        if (!reads && option->count() > 0)
          return fmt::format("{} has no meaning with --topology {}", option->get_name(), t.name);
    }
    if (sites_option_->count() > 0)
      if (const std::string wrong = read_sites(sites_, o_); !wrong.empty()) return wrong;
    const auto settled = settle(o_, 1);
    const Status wrong = settled.ok() ? distinct(outputs_, o_) : settled.status();
    return wrong.ok() ? "" : wrong.failure()->text;
  }
  CommandLine take() const {
    CommandLine line{o_, outputs_, quiet_};
    for (std::string* file : {&line.outputs.json, &line.outputs.csv, &line.outputs.plot})
      if (*file == "-") *file = "/dev/stdout", line.instead = true;
    return line;
  }

 private:
  template <class T, class E>
  CLI::Option* option(const char* words, T& to, const std::string& about,
                      const std::map<std::string, E>& values) {
    std::string known;
    for (const auto& [word, value] : values) known += (known.empty() ? "" : ",") + word;
    return app_
        .add_option_function<std::string>(
            words,
            [&to, values, known, words](const std::string& word) {
              const auto found = values.find(word);
              if (found == values.end())
                throw CLI::ValidationError(words, fmt::format("{} not in {{{}}}", word, known));
              to = found->second;
            },
            about)
        ->type_name(fmt::format("{{{}}}", known));
  }
  CLI::Option* only(std::vector<Strategy> strategies, CLI::Option* option) {
    only_.emplace_back(option, std::move(strategies));
    return option;
  }

  void optimiser() {
    option("--optimizer", o_.optimizer,
           "default: sgd; accum_adam for digits if decentralised; accum_adamw for charlm",
           names({Rule::sgd, Rule::adam, Rule::adamw, Rule::accum_adam, Rule::accum_adamw}))
        ->group(kOptimiser);
    app_.add_option("--lr", o_.lr,
                    "learning rate; default: sgd 0.2 (mlp) or 0.05, else 4e-3 (digits) or 2e-3")
        ->check(above_zero())
        ->group(kOptimiser);
    app_.add_option("--momentum", o_.momentum, "of sgd; default: 0.9")->group(kOptimiser);
    app_.add_option("--weight-decay", o_.weight_decay, "default: 0 (sgd), 1/32768 (adam, accum_adam), 0.1")
        ->check(at_least(0.0))
        ->group(kOptimiser);
    app_.add_option("--accum", o_.accum, "steps of a window of accum_adam and accum_adamw; default: 4")
        ->check(at_least(1))
        ->group(kOptimiser);
    option(
        "--decay", o_.decay, "which parameters decay",
        std::map<std::string, train::DecayRule>{{"standard", train::DecayRule::standard},
                                                {"upstream-inverted", train::DecayRule::upstream_inverted}})
        ->default_str("standard")
        ->group(kOptimiser);
    option("--schedule", o_.schedule,
           "of the learning rate; cosine: after ten steps of warm-up; default: cosine for charlm and if "
           "decentralised, else constant",
           names({Curve::constant, Curve::cosine}))
        ->group(kOptimiser);
    only({Strategy::ddp, Strategy::fsdp, Strategy::decentralised},
         app_.add_option("--clip", o_.clip_norm,
                         "limit of the gradient's norm (decentralised: of a bucket's); 0: none"))
        ->check(at_least(0.0))
        ->group(kOptimiser);
  }
  void where_and_how() {
    only({Strategy::ddp, Strategy::fsdp, Strategy::federated, Strategy::diloco},
         option(
             "--numerics", o_.numerics, "contract of the reductions; default: OURO_NUMERICS, else fast",
             std::map<std::string, Numerics>{{"fast", Numerics::fast}, {"canonical", Numerics::canonical}}));
    only({Strategy::ddp, Strategy::fsdp},
         option("--device", o_.device, "where parameters, reductions and optimiser are",
                std::map<std::string, bool>{{"host", false}, {"cuda", true}}))
        ->default_str("host");
    only({Strategy::ddp, Strategy::fsdp, Strategy::decentralised},
         app_.add_option("--bucket-mb", o_.bucket_mb, "MiB of parameters that travel together"))
        ->check(at_least(0.0))
        ->capture_default_str();
    only({Strategy::fsdp},
         app_.add_option("--shards", o_.shards,
                         "ranks that share one copy of the optimiser's state; default: all"))
        ->check(at_least(1))
        ->group("fsdp");
  }
  void federated() {
    const std::vector<Strategy> both = {Strategy::federated, Strategy::diloco};
    sites_option_ = only(both, app_.add_option("--sites", sites_,
                                               "sites of consecutive ranks; or the ranks of each, as 4,2"))
                        ->default_str("2")
                        ->group(kSites);
    only(both, app_.add_option("--local-steps", o_.local_steps, "steps of a site between two averages"))
        ->check(at_least(1))
        ->capture_default_str()
        ->group(kSites);
    only(both, option("--delta", o_.delta, "what crosses the sites",
                      std::map<std::string, train::DeltaFormat>{{"exact", train::DeltaFormat::exact},
                                                                {"bf16", train::DeltaFormat::bf16},
                                                                {"int8", train::DeltaFormat::int8}}))
        ->default_str("exact")
        ->group(kSites);
    only(both, app_.add_flag("--weigh-by-ranks", o_.weigh_by_ranks, "a site counts as often as it has ranks"))
        ->group(kSites);
    only({Strategy::federated}, option("--server", o_.server, "what is done with the mean (federated)",
                                       names({Server::avg, Server::adam, Server::yogi})))
        ->default_str("avg")
        ->group(kSites);
  }
  void decentralised() {
    const std::vector<Strategy> alone = {Strategy::decentralised};
    const auto add = [&](CLI::Option* o) { return only(alone, o)->group("decentralised"); };
    train::TopologyOptions& t = o_.topology_options;
    add(app_.add_option("--topology", o_.topology, "who averages with whom; names: ouro-topo list"))
        ->capture_default_str();
    local_size_ =
        add(app_.add_option("--local-size", t.local_world_size, "ranks of a node (alternating-exp-ring)"))
            ->check(at_least(1));
    peers_ = add(app_.add_option("--peers", t.peers, "messages a round, at most (hypercuboid, base-k)"))
                 ->check(at_least(1));
    rows_ = add(app_.add_option("--rows", t.rows, "of a grid or torus; default: nearly square"))
                ->check(at_least(1));
    add(option("--round-order", o_.order, "which round mixes in which step",
               std::map<std::string, train::RoundOrder>{{"sequential", train::RoundOrder::sequential},
                                                        {"upstream", train::RoundOrder::upstream}}))
        ->default_str("sequential");
    add(app_.add_option("--adaptive", o_.adaptive, "share of the mix in a step; default: 1"))
        ->check(between(0.0, 1.0));
  }
  void files() {
    const auto file = [this](const char* word, std::string& to, const char* about) {
      app_.add_option(word, to, about)
          ->check([](const std::string& path) { return path.empty() ? "a name is missing" : ""; })
          ->type_name("FILE")
          ->group(kFiles);
    };
    app_.add_option("--stop-after", o_.stop_after, "take this many of the steps")
        ->check(at_least(1))
        ->group(kFiles);
    file("--save", o_.save, "each rank writes its state to FILE.rank0 ... at the end");
    file("--resume", o_.resume, "each rank continues from such a file");
    file("--csv", outputs_.csv,
         "rank 0 writes a line a step, to FILE.part until the run has ended: its number, loss, consensus "
         "distance where there is one, rate; -: standard output in place of the last line");
    file("--json", outputs_.json, "rank 0 writes losses, accuracy and settings at the end; -: as there");
    file("--plot", outputs_.plot, "rank 0 draws loss and consensus distance at the end, as SVG; -: as there");
    app_.add_flag("--quiet", quiet_, "no progress")->group(kFiles);
  }

  static constexpr const char *kOptimiser = "optimiser", *kSites = "federated, diloco", *kFiles = "files";
  CLI::App& app_;
  TrainOptions o_;
  Outputs outputs_;
  bool quiet_ = false;
  std::string sites_;
  std::vector<std::pair<const CLI::Option*, std::vector<Strategy>>> only_;
  const CLI::Option *sites_option_ = nullptr, *local_size_ = nullptr, *peers_ = nullptr, *rows_ = nullptr;
};

}  // namespace

Parsed parse_command_line(int argc, char** argv) {
  constexpr int kUsage = 2;
  CLI::App app("Trains a small model over the ranks of a job.", "ouro-train");
  app.footer(kExamples);
  name_in_errors(app);
  app.set_version_flag("--version", std::string("ouro-train ") + ouro::version());
  app.require_subcommand(0, 1);  // a missing or unknown model gets our own message below
  Words digits(*app.add_subcommand("digits", "8x8 images of digits: a perceptron or a convolutional network"),
               SmallModel::digits);
  Words charlm(*app.add_subcommand(
                   "charlm", "character model: a transformer block; decentralised unless chosen otherwise"),
               SmallModel::charlm);
  app.allow_extras();  // after add_subcommand, which would make subcommands inherit it
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return {{}, answer(app, e)};
  }
  if (app.get_subcommands().empty() || !app.remaining().empty()) {
    const std::string found = app.remaining().empty() ? "none" : app.remaining().front();
    complain("ouro-train: expected one model of: digits, charlm; found {}. See ouro-train --help\n", found);
    return {{}, kUsage};
  }
  Words& words = charlm.app().parsed() ? charlm : digits;
  if (const std::string wrong = words.complaint(); !wrong.empty()) {
    complain("ouro-train: {}\n", wrong);
    return {{}, kUsage};
  }
  return {words.take(), 0};
}

}  // namespace ouro::tools
