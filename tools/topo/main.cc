// ouro-topo: shows topologies of decentralised training: rounds, weights, how fast they mix, a picture. The
// only translation unit that sees CLI11; report.cc and picture.cc produce the output.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "api/include/ouro/ouro.hpp"
#include "tools/cli/errors.h"
#include "tools/cli/files.h"
#include "tools/cli/numbers.h"
#include "tools/cli/output.h"
#include "tools/topo/report.h"

namespace {

namespace topo = ouro::topo;
namespace train = ouro::train;
namespace tools = ouro::tools;

constexpr const char* kExamples = R"(Examples:
  ouro-topo list                                 names, and the options that each reads
  ouro-topo graph ring -n 8                      rounds, edges, weights, contraction
  ouro-topo graph base-k -n 12 --peers 2 --table-rows   every row of every mixing matrix
  ouro-topo graph alternating-exp-ring -n 8 --local-size 2 --svg ring.svg
  ouro-topo graph torus -n 12 --rows 3 --json | jq .contraction_per_period

Contraction: by how much one period shrinks the differences between ranks at least (0: it ends in the mean).

Exit: 0 shown; 1 output could not be written; 2 wrong command line, or a topology that does not exist for these numbers.)";

constexpr int kFailed = 1, kUsage = 2;

int refuse(const std::string& text, int code = kUsage) {
  tools::complain("ouro-topo: {}\n", text);
  return code;
}

struct Options {
  std::string name, svg;
  int ranks = 0;
  train::TopologyOptions topology;
  bool json = false, rows = false;
};

void list() {
  for (const train::TopologyInfo& t : train::topologies())
    tools::print("{:<22} {}{}{}{}\n", t.name, t.about, t.by_node ? "  [--local-size]" : "",
                 t.by_peers ? "  [--peers]" : "", t.by_rows ? "  [--rows]" : "");
}

int graph(const Options& o, bool peers_given, bool local_size_given, bool rows_given) {
  for (const train::TopologyInfo& t : train::topologies()) {
    if (t.name != o.name) continue;
    if (peers_given && !t.by_peers) return refuse(fmt::format("{} does not read --peers", o.name));
    if (local_size_given && !t.by_node) return refuse(fmt::format("{} does not read --local-size", o.name));
    if (rows_given && !t.by_rows) return refuse(fmt::format("{} does not read --rows", o.name));
  }
  const ouro::Result<train::Topology> t = train::Topology::make(o.name, o.ranks, o.topology);
  if (!t.ok()) return refuse(t.status().failure()->text);
  const topo::Summary s = topo::summarise(o.name, o.topology, *t);
  if (!o.svg.empty())
    if (const ouro::Status drawn = tools::write_file(o.svg, topo::picture(s, *t)); !drawn)
      return refuse(fmt::format("--svg {}", drawn.failure()->text), kFailed);
  if (o.json)
    tools::print("{}\n", topo::to_json(s, *t).dump(1));
  else
    tools::print_text(topo::table(s, *t, o.rows));
  return 0;
}

int run(int argc, char** argv) {
  Options o;
  CLI::App app("Shows topologies of decentralised training: who averages with whom, and how fast that mixes.",
               "ouro-topo");
  app.footer(kExamples);
  tools::name_in_errors(app);
  app.set_version_flag("--version", std::string("ouro-topo ") + ouro::version());
  app.require_subcommand(1);
  CLI::App* lister = app.add_subcommand("list", "Names of topologies, what they do, what options they read");
  CLI::App* grapher = app.add_subcommand("graph", "Rounds, weights and mixing of one topology");
  grapher->footer(kExamples);
  grapher->add_option("name", o.name, "Name, as `ouro-topo list` says it")->required();
  // The limit of 1024: computing the contraction takes O(n^3) time.
  grapher->add_option("-n,--ranks", o.ranks, "Number of ranks")->required()->check(CLI::Range(1, 1024));
  const CLI::Option* peers =
      grapher->add_option("-k,--peers", o.topology.peers, "Messages that a rank sends in a round, at most")
          ->check(tools::at_least(1));
  const CLI::Option* local_size =
      grapher->add_option("--local-size", o.topology.local_world_size, "Ranks of a node")
          ->check(tools::at_least(1));
  const CLI::Option* rows =
      grapher->add_option("--rows", o.topology.rows, "Rows of a grid or torus (0: nearly square)")
          ->check(tools::at_least(0));
  grapher->add_option("--svg", o.svg, "Draw a picture into this file");
  auto* table_rows =
      grapher->add_flag("--table-rows", o.rows, "Every row of the matrices, also where rounds are edges");
  grapher->add_flag("--json", o.json, "One JSON object in place of the table")->excludes(table_rows);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return tools::answer(app, e);
  }
  if (lister->parsed()) {
    list();
    return 0;
  }
  return graph(o, peers->count() > 0, local_size->count() > 0, rows->count() > 0);
}

}  // namespace

int main(int argc, char** argv) {
  return tools::run_program("ouro-topo", [&] { return run(argc, argv); });
}
