// Fuzz targets for input of programs: host lists, pipes between ouro-run and its agents, cluster
// descriptions, results of earlier runs, training checkpoints, and ELF files of other processes.
// See targets.h.
#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "tests/system/fuzz/support.h"
#include "tests/system/fuzz/targets.h"
#include "tools/info/elf_file.h"
#include "tools/perf/compare.h"
#include "tools/perf/options.h"
#include "tools/run/hosts.h"
#include "tools/run/lines.h"
#include "tools/run/messages.h"
#include "tools/sim/cluster.h"
#include "tools/train/checkpoint.h"

namespace ouro::fuzz {
namespace {

void placed(const Result<std::vector<run::Host>>& hosts, int ranks) {
  require(hosts.ok() || hosts.status().reason() == Reason::invalid);
  if (!hosts.ok()) return;
  for (const run::Host& h : *hosts) require(h.slots >= 1 && !h.name.empty() && h.name.front() != '-');
  const auto used = run::place(*hosts, ranks);
  if (!used.ok()) return;
  int sum = 0;
  for (const run::Host& h : *used) sum += h.slots;
  require(sum == ranks);
}

}  // namespace

/// The first byte is a number of ranks; the rest is a host list, a host file, and an agent.
void hosts(wire::View in) {
  if (in.empty()) return;
  const int ranks = 1 + in[0];
  const std::string_view text = text_of(in.subspan(1));
  placed(run::parse_hosts(text), ranks);
  placed(run::parse_hostfile(text), ranks);
  static const MemoryFile file;
  file.fill(text);
  require(run::read_hostfile(file.path()).ok() == run::parse_hostfile(text).ok());
  (void)run::check_agent(text);
  for (const std::string& word : run::agent_command(text, "host")) require(word.find("{host}") == word.npos);
}

/// Output of an agent's pipe, in pieces whose length the first byte gives.
void agent(wire::View in) {
  if (in.empty()) return;
  const std::size_t piece = in[0] + 1u;
  std::string_view rest = text_of(in.subspan(1));
  run::LineSplitter splitter;
  std::size_t shown_in_all = 0;
  const auto line = [&](std::string_view text, std::size_t shown, run::LineEnd) {
    require(shown <= text.size());
    shown_in_all += text.size();
  };
  run::MessageReader reader;
  bool greeted = false;
  while (!rest.empty()) {
    const std::string_view now = rest.substr(0, piece);
    rest.remove_prefix(now.size());
    splitter.add(now, line);
    if (splitter.unfinished()) splitter.partial([](std::string_view) {});
    reader.add(now);
    while (!greeted) {
      const auto said = reader.next_line();
      if (!said) break;
      greeted = *said == run::kGreeting;
    }
    while (greeted) {
      const auto m = reader.next();
      require(m.ok() || m.status().reason() == Reason::refused);
      if (!m.ok()) return;
      if (!*m) break;
      const auto orders = run::to_orders(**m);
      if (orders.ok()) {
        require(orders->first_rank + orders->local_size <= orders->size && !orders->argv.empty());
        const auto again = run::to_orders(run::to_message(*orders));
        require(again.ok() && again->argv == orders->argv && again->variables == orders->variables);
      }
      if (const auto offers = run::to_offers(**m, 1); offers.ok()) {
        const auto again = run::to_message((*m)->kind, {(*m)->fields.at(0)}, *offers);
        require(run::to_offers(again, 1)->size() == offers->size());
      }
      (void)run::number_of(**m, 0, 0, 255);
    }
  }
  splitter.finish(line);
  require(shown_in_all <= in.size());
}

/// A cluster description in a file; after '@', a shape; after '!', a name.
void cluster(wire::View in) {
  static const MemoryFile file;
  const std::string text(text_of(in));
  const bool shape = text.starts_with('@'), name = text.starts_with('!');
  if (name && text.find('/') != text.npos) return;  // would open a file of the system
  file.fill(text);
  const auto found = shape  ? sim::parse_shape(text.substr(1))
                     : name ? sim::find_cluster(text.substr(1))
                            : sim::find_cluster(file.path());
  require(found.ok() || found.status().reason() == Reason::invalid);
  if (!found.ok()) return;
  std::size_t ranks = 0;
  for (const int n : found->nodes) require(n >= 1), ranks += static_cast<std::size_t>(n);
  if (ranks <= 10'000) require(found->node_of(16).size() == (found->nodes.empty() ? 16 : ranks));
  (void)found->even();
}

/// The first byte selects: the result of an earlier run, or arguments of the command line.
void results(wire::View in) {
  if (in.empty()) return;
  const std::string text(text_of(in.subspan(1)));
  if (in[0] % 2 == 0) {
    const auto base = perf::Baseline::parse(text, "a file");
    require(base.ok() || base.status().reason() == Reason::invalid);
    return;
  }
  (void)perf::parse_size(text);
  for (const auto& types = perf::parse_dtypes(text); types.ok() && types->empty();) require(false);
  for (const auto& ops = perf::parse_ops(text); ops.ok() && ops->empty();) require(false);
  if (const auto split = perf::parse_split(text); split.ok())
    for (const int rank : {0, 1, 1023}) require(split->color(rank) >= 0);
}

/// A checkpoint of ouro-train; if the first byte is odd, its checksum is corrected.
void checkpoint(wire::View in) {
  using Json = nlohmann::ordered_json;
  if (in.empty()) return;
  std::string all(text_of(in.subspan(1)));
  if (const std::size_t line = all.find('\n'); in[0] % 2 == 1 && line != all.npos) {
    Json head = Json::parse(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(line), nullptr, false);
    if (head.is_object()) {
      head.erase("checksum");
      const std::string body = all.substr(line + 1),
                        rest = head.dump(-1, ' ', false, Json::error_handler_t::replace);
      head["checksum"] =
          XXH3_64bits_withSeed(body.data(), body.size(), XXH3_64bits(rest.data(), rest.size()));
      all = head.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n' + body;
    }
  }
  const auto state = tools::parse_checkpoint("a file", all, Json{{"task", "digits"}, {"seed", 1}}, 2);
  require(state.ok() || state.status().reason() == Reason::invalid);
  if (!state.ok()) return;
  require(state->step >= 0 && state->parts.size() == 2 &&
          state->parts[0].size() + state->parts[1].size() < all.size());
}

/// An ELF file, as ouro-info --who finds it mapped in other processes.
void elf(wire::View in) {
  static const MemoryFile file;
  file.fill(text_of(in));
  const auto found = info::ElfFile::open(file.path());
  if (!found) return;
  (void)found->first_address();
  std::size_t many = 0, names = 0;
  found->for_each_reference([&](std::uint64_t, const Elf64_Sym&, std::string_view name) {
    ++many;
    for (const char c : name) names += c != '\0';
  });
  require(many <= 2 * in.size() / sizeof(Elf64_Rela) && names <= many * in.size());
}

}  // namespace ouro::fuzz
